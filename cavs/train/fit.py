"""The epochs of `Trainer.fit`: training, evaluation, early stopping, checkpoints, log."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cavs.config import require, require_count, require_flag
from cavs.errors import (
    CavsError,
    CheckpointError,
    CommunicationError,
    ConfigError,
    DeviceError,
    NumericsError,
)
from cavs.train.claim import Claim
from cavs.train.interrupt import DeferredInterrupt
from cavs.train.loader import DataLoader, iterating
from cavs.train.log import JsonLines
from cavs.train.metrics import Metric
from cavs.train.progress import Progress, duration
from cavs.train.standing import (
    Resumed,
    Standing,
    check_best,
    check_replaceable,
    read_best,
)

if TYPE_CHECKING:
    from cavs.train.trainer import Step, Trainer


_LAST = "last good checkpoint: "
OnEvent = Callable[[str, Mapping[str, Any]], object]


@dataclass(frozen=True)
class FitOptions:
    """The arguments of `Trainer.fit`, see there."""

    epochs: int
    metrics: list[Metric]
    monitor: str | None = None
    patience: int | None = None
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: int | None = None
    restore_best: bool = False
    progress: bool = True
    on_event: OnEvent | None = None


@dataclass
class FitResult:
    """What `Trainer.fit` did.

    `epochs` has one record an epoch of this call: ``epoch``, ``train_loss`` (a mean over batches),
    ``lr``, ``step``, ``seconds``, ``graphs_per_second`` and the values on `dev` as ``dev_NAME``.
    """

    epochs: list[dict[str, Any]] = field(default_factory=list)
    monitor: str = "loss"
    best: float | None = None
    best_epoch: int | None = None
    stopped_early: bool = False


def best_path(checkpoint: str | os.PathLike[str]) -> Path:
    """Where the best parameters go: ``NAME.best.safetensors`` for ``NAME.safetensors``."""
    path = Path(checkpoint)
    return path.with_name(f"{path.stem}.best{path.suffix}")


class Run:
    """One call of `Trainer.fit`."""

    def __init__(
        self,
        trainer: Trainer,
        train: DataLoader,
        dev: Iterable[Any] | None,
        options: FitOptions,
        *,
        log: str | os.PathLike[str] | None,
        resumed: Resumed | None,
    ) -> None:
        _check(options, train, dev)
        for name, path in (("checkpoint", options.checkpoint), ("log", log)):
            require(isinstance(path, str | os.PathLike | None), name, path, "a path or None")
        self.trainer, self.train, self.dev, self.options = trainer, train, dev, options
        self.monitor = _monitored(options, dev)
        self.standing = Standing()
        self.result = FitResult(monitor=self.monitor.name)
        # In place of the file, as long as the best are not those of this call.
        self.best_values: Mapping[str, np.ndarray[Any, Any]] | None = None
        self.ahead: Standing | None = None  # of best values from a file that is an epoch ahead
        self.claim: Claim | None = None
        self.interrupt = DeferredInterrupt()
        self.judging = False  # whether it evaluates, not a callback
        self.since_checkpoint = 0
        self.saved, self.written = trainer.steps, False  # up to this step; whether in a file
        self.loader: dict[str, Any] | None = None  # where a resumed run begins, if not where it is
        with ExitStack() as held:
            if options.checkpoint is not None:
                check_writable(Path(options.checkpoint))
                self._claim(Path(options.checkpoint), held)
            if resumed is not None and resumed.progress:
                self._continue(resumed)
            self.log = JsonLines(log) if log is not None else None
            self.held = held.pop_all()

    def _claim(self, path: Path, held: ExitStack) -> None:
        """Nobody else writes to `path` from now on, and nothing is lost if this run does."""
        trainer = self.trainer
        self.claim = trainer.claim
        if self.claim is None or self.claim.path != Path(os.path.realpath(path)):
            self.claim = Claim(path)
            held.callback(self.claim.close)
        if trainer._writes:
            self.claim.take()
            for file in (path, best_path(path))[: 1 if self.dev is None else 2]:
                check_replaceable(file, trainer.model)

    def _continue(self, resumed: Resumed) -> None:
        stored = resumed.progress
        standing = Standing.from_json(stored["fit"])
        if stored.get("monitor") != self.monitor.name and standing.best is not None:
            raise CheckpointError(
                f"the run monitored {stored.get('monitor')!r}, not {self.monitor.name!r}",
                hint=f"pass monitor={stored.get('monitor')!r}",
            )
        judges = self.dev is not None
        if stored.get("dev", judges) != judges:  # the one loss says nothing of the other
            standing.best, standing.best_epoch, standing.bad_epochs = None, None, 0
        if self.options.restore_best and standing.best is not None:
            path = best_path(resumed.path)
            self.best_values, self.ahead = read_best(path, standing, self.trainer.model)
        self.train.load_state_dict(stored.get("loader") or {})
        self.standing = standing
        self.result.best, self.result.best_epoch = standing.best, standing.best_epoch

    def progress(self) -> dict[str, Any]:
        """Where the run stands, as checkpoints keep it."""
        fit, loader = asdict(self.standing), self.loader or self.train.state_dict()
        judged = {"monitor": self.monitor.name, "dev": self.dev is not None}
        return {"fit": fit, **judged, "loader": loader}

    def go(self) -> FitResult:
        """Run to the last epoch, to the end of patience, or to Ctrl-C."""
        trainer, standing = self.trainer, self.standing
        about = {"optimizer": repr(trainer.optimizer), "seed": trainer.seed}
        about |= {"max_norm": trainer.max_norm, "epochs": self.options.epochs}
        about |= {"loader": self.train.state_dict()}
        self._write("start", epoch=standing.epoch, step=trainer.steps, **about)
        patience = self.options.patience
        with self.interrupt:
            while standing.epoch < self.options.epochs:
                if patience is not None and standing.bad_epochs > patience:
                    self.result.stopped_early = True
                    break
                self._epoch()
        # Out of its block, where Ctrl-C acts by itself again: none is missed.
        if trainer.stops_at_end(self.interrupt.requested):
            self._stop()
        if self.options.restore_best:
            self._restore()
        self._write("end", step=trainer.steps, **asdict(self.result) | {"epochs": standing.epoch})
        return self.result

    def _epoch(self) -> None:
        trainer, standing = self.trainer, self.standing
        number, total = standing.epoch + 1, len(self.train)
        title = f"epoch {number}/{self.options.epochs}"
        done = self.train.first
        bar = Progress(title, total, done=done, enabled=self.options.progress)
        with bar:
            if not standing.trained:
                with self._saving(evaluating=False):
                    self._train(bar)
                standing.loss_sum = trainer._whole(standing.loss_sum)
                standing.trained = True
            lr = trainer.optimizer.rate(max(trainer.steps - 1, 0))  # of the last update
            train_loss = standing.loss_sum / max(standing.loss_count, 1)
            record: dict[str, Any] = {"epoch": number, "step": trainer.steps, "lr": lr}
            record |= {"train_loss": train_loss, "seconds": bar.seconds}
            record["graphs_per_second"] = bar.rate
            with self._saving(evaluating=True):
                values = self._evaluate()
            record |= {f"dev_{name}": value for name, value in values.items()}
            record["dev_seconds"] = bar.seconds - record["seconds"]
            improved = self._judge(number, values.get(self.monitor.name, train_loss))
            shown = [f"loss {train_loss:.4f}"]
            shown += [f"dev {name} {value:.4f}" for name, value in values.items()]
            took = f"{record['graphs_per_second']:.0f} graphs/s  {duration(bar.seconds)}"
            bar.finish("  ".join([*shown, took]) + ("  best so far" if improved else ""))
        standing.epoch, standing.trained = number, False
        standing.loss_sum, standing.loss_count = 0.0, 0
        self.result.epochs.append(record)
        self._log("epoch", record | {"best": improved})
        self._checkpoint(improved)  # before the callback, which may raise
        self._tell("epoch", record | {"best": improved})

    def _train(self, bar: Progress) -> None:
        trainer, standing, every = self.trainer, self.standing, self.options.checkpoint_every

        def count(ended: Iterable[Step]) -> None:
            for batch, outcome in ended:
                standing.step = trainer.steps
                standing.loss_sum += outcome.loss
                standing.loss_count += 1
                mean = standing.loss_sum / standing.loss_count
                bar.advance(batch.num_graphs, loss=mean)

        def stop_if_asked() -> None:
            if trainer.stops(self.interrupt.requested):
                count(trainer.land())
                self._stop()

        counted, at = standing.loss_count, None
        handed = 0
        with iterating(self.train) as batches:
            try:
                for batch in trainer._arriving(batches):
                    handed, at = handed + 1, self.train.state_dict()
                    count(trainer.launch(batch))
                    stop_if_asked()
                    self.since_checkpoint += 1
                    if every is not None and self.since_checkpoint >= every:
                        count(trainer.land())
                        self._checkpoint(improved=False)
                        stop_if_asked()
                count(trainer.land())
            except BaseException:
                count(trainer.land())  # what was launched before
                behind = handed - (standing.loss_count - counted)
                if at is not None:  # the batches that have not counted come again
                    self.loader = at | {"position": at["position"] - behind}
                raise

    def _evaluate(self) -> dict[str, float]:
        if self.dev is None:
            return {}
        asked = self.interrupt
        self.loader = self.train.state_dict()  # dev may go through it, too
        self.judging = True
        try:
            values = self.trainer.evaluate(
                self.dev, self.options.metrics, stop=lambda: asked.requested
            )
        finally:
            self.judging = False
        if self.trainer.stops(asked.requested):
            self._stop()
        self.loader = None
        return values

    @contextmanager
    def _saving(self, *, evaluating: bool) -> Iterator[None]:
        """What was trained before an error inside is kept; the error says where."""
        try:
            yield
        except Exception as error:
            path, trainer = self.options.checkpoint, self.trainer
            if path is not None and trainer._saves_after(error, evaluating):
                try:
                    if trainer.steps > self.saved:
                        self._checkpoint(improved=False)
                except NumericsError:
                    pass  # the parameters are no better than the loss
                except CavsError as failed:
                    _add(error, f"the steps since are not saved: {failed.what}")
                if self.written:
                    _add(error, f"{_LAST}{path}, of step {self.saved}")
            name = "numerics" if isinstance(error, NumericsError) else "error"
            self._write(name, step=trainer.steps + (not evaluating), error=str(error))
            raise

    def _judge(self, epoch: int, value: float) -> bool:
        """Whether the monitored value is the best so far; tells the schedule too."""
        standing, score = self.standing, self.monitor.score
        if not math.isnan(value):
            self.trainer.optimizer.observe(score(value))
        best = standing.best
        if math.isnan(value) or (best is not None and score(value) >= score(best)):
            standing.bad_epochs += 1
            return False
        standing.best, standing.best_epoch, standing.bad_epochs = value, epoch, 0
        self.result.best, self.result.best_epoch = value, epoch
        self.best_values = self.ahead = None
        if self.options.restore_best and self.options.checkpoint is None:
            own = self.trainer.parameters
            self.best_values = {name: p.current().copy() for name, p in own.items()}
        return True

    def _stop(self) -> None:
        self._checkpoint(improved=False)
        self._write("interrupt", epoch=self.standing.epoch, step=self.trainer.steps)
        where = self.trainer.last_checkpoint if self.options.checkpoint is not None else None
        saved = f"saved {where}" if where else "no checkpoint= was given, nothing was saved"
        raise KeyboardInterrupt(f"stopped after step {self.trainer.steps}; {saved}")

    def _checkpoint(self, improved: bool) -> None:
        path = self.options.checkpoint
        if path is None:
            return
        self.standing.loss_sum = self.trainer._whole(self.standing.loss_sum)
        if self.claim is not None and self.trainer._writes:  # which another rank did until it died
            self.claim.take()
        progress = self.progress()
        if improved and self.dev is not None:
            self.trainer.save(best_path(path), progress=progress, states=False)
        self.trainer.save(path, progress=progress)
        self.since_checkpoint, self.saved, self.written = 0, self.trainer.steps, True

    def _restore(self) -> None:
        if self.best_values is not None:
            for name, values in self.best_values.items():
                np.copyto(self.trainer.parameters[name].value, values)
            self.trainer.session.invalidate()
            if self.ahead is not None:  # nothing has been better than what the file holds
                self.result.best, self.result.best_epoch = self.ahead.best, self.ahead.best_epoch
        elif self.options.checkpoint is not None and self.standing.best is not None:
            check_best(best_path(self.options.checkpoint), self.standing)
            self.trainer.load(best_path(self.options.checkpoint))

    def _write(self, event: str, **record: Any) -> None:
        self._log(event, record)
        self._tell(event, record)

    def _log(self, event: str, record: Mapping[str, Any]) -> None:
        if self.log is not None:
            self.log.write(event, **record)

    def _tell(self, event: str, record: Mapping[str, Any]) -> None:
        if self.options.on_event is not None:
            self.options.on_event(event, record)


def spares(error: BaseException, evaluating: bool) -> bool:
    """Whether `error` leaves what a checkpoint is written from.

    Of an evaluation any one does, but those of a device, of other ranks and of a checkpoint; in a
    step those of data and of numbers alone.
    """
    lost = isinstance(error, DeviceError | CommunicationError | CheckpointError)
    return not lost and (evaluating or isinstance(error, CavsError))


def _add(error: Exception, line: str) -> None:
    """Let `error` say `line` too; of the last checkpoint it says one thing."""
    if isinstance(error, CavsError):
        if type(error).__init__ is CavsError.__init__:
            said = [text for text in error.what.split("\n  ") if not text.startswith(_LAST)]
            said = said if line.startswith(_LAST) else error.what.split("\n  ")
            what = "\n  ".join([*said, line])
            CavsError.__init__(error, what, where=error.where, hint=error.hint)
    else:
        error.add_note(line)


def _check(options: FitOptions, train: object, dev: Iterable[Any] | None) -> None:
    require(isinstance(train, DataLoader), "train", train, "a cavs.DataLoader")
    told = options.on_event
    require(told is None or callable(told), "on_event", told, "a function or None")
    require_count("epochs", options.epochs)
    require_flag("restore_best", options.restore_best)
    require_flag("progress", options.progress)
    if dev is not None:
        again = isinstance(dev, Iterable) and not isinstance(dev, Iterator)
        require(again, "dev", dev, "a cavs.DataLoader or a list of batches")
        _check_batches(dev)
    if options.patience is not None:
        require_count("patience", options.patience, 0)
    if options.checkpoint_every is not None:
        require_count("checkpoint_every", options.checkpoint_every)
        if options.checkpoint is None:
            raise ConfigError(
                f"checkpoint_every={options.checkpoint_every} without checkpoint",
                hint='pass checkpoint="runs/model.safetensors"',
            )
    for name, value in (("patience", options.patience), ("restore_best", options.restore_best)):
        if value not in (None, False) and dev is None:
            raise ConfigError(f"{name}={value} without dev", hint="pass dev=, a loader to judge by")


def _check_batches(dev: Iterable[Any]) -> None:
    """Of a list: those of a loader are made later."""
    if isinstance(dev, Collection):
        require(len(dev) > 0, "dev", dev, "at least one batch")
        for i, item in enumerate(dev):
            is_batch = hasattr(item, "num_graphs")
            require(
                is_batch, f"dev[{i}]", item, "a batch: cavs.batch(graphs), or a cavs.DataLoader"
            )


def _monitored(options: FitOptions, dev: Iterable[Any] | None) -> Metric:
    loss = Metric("loss", lambda outputs, batch: (0.0, 0.0), "lower")
    known = {metric.name: metric for metric in [*options.metrics, loss]}
    if options.monitor is None:
        return next(iter(known.values())) if dev is not None else loss
    if options.monitor not in known:
        raise ConfigError(
            f"monitor is {options.monitor!r}, but the metrics are {', '.join(known)}",
            hint="pass one of them",
        )
    if dev is None and options.monitor != loss.name:  # the loss in training would be taken for it
        raise ConfigError(
            f"monitor={options.monitor!r} without dev", hint="pass dev=, a loader to judge by"
        )
    return known[options.monitor]


def check_writable(path: Path) -> None:
    """Find out before any work that a checkpoint could not be written. Raises CheckpointError."""
    try:
        final = Path(os.path.realpath(path))  # which is what is replaced
        probe = final.parent / f".{final.name}.{os.getpid()}.{time.monotonic_ns()}.probe"
        final.parent.mkdir(parents=True, exist_ok=True)
        probe.touch(exist_ok=False)
        probe.unlink()
        if final.exists() and not (final.is_file() and os.access(final, os.W_OK)):
            raise PermissionError("it exists and is not a file that may be written")
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise CheckpointError(
            f"cannot write the checkpoint {path}: {getattr(error, 'strerror', None) or error}",
            hint="choose a folder and file that you may write to",
        ) from error
