"""`Fit`: the epochs of `Trainer.fit`, with evaluation, early stopping, checkpoints and log."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from cavs.errors import CavsError, CheckpointError, NumericsError
from cavs.train.adaptation import Adaptation
from cavs.train.batches import Loader, iterating
from cavs.train.checkpoint import best_path, check_writable
from cavs.train.checkpoint_lock import CheckpointLock
from cavs.train.coordination import BEST, Coordinator, Detached
from cavs.train.engine import Engine
from cavs.train.fit_options import FitOptions, FitResult
from cavs.train.interrupt import DeferredInterrupt
from cavs.train.log import JsonLines
from cavs.train.metrics import as_metrics
from cavs.train.progress import Progress, duration
from cavs.train.run_state import (
    ResumePoint,
    RunState,
    check_best,
    check_replaceable,
    read_best,
)
from cavs.train.stepping import Loop, Step, TrainingState

_LAST = "last good checkpoint: "


class Fit:
    """One call of `Trainer.fit`.

    Args:
        loop: Steps, evaluation and files.
        state: State of the training.
        engine: Engine of the training.
        coordinator: Agrees with the other processes.
        train: The training batches.
        options: The arguments of the call.
        lock: Lock on the checkpoint that the caller holds already.
        resume_point: Progress of the run that this one continues.
    """

    def __init__(
        self,
        loop: Loop,
        state: TrainingState,
        engine: Engine,
        coordinator: Coordinator,
        train: Loader,
        options: FitOptions,
        *,
        lock: CheckpointLock | None = None,
        resume_point: ResumePoint | None = None,
    ) -> None:
        options.check(train)
        self.loop, self.state, self.engine, self.coordinator = loop, state, engine, coordinator
        self.train, self.options = train, options
        self.metrics = as_metrics(options.metrics)
        self.monitor = options.monitored(self.metrics)
        self.path = None if options.checkpoint is None else Path(options.checkpoint)
        self.run, self.carry = RunState(), coordinator.carry(options)
        self.result = FitResult(monitor=self.monitor.name)
        # Best parameters of the resumed run, until this call finds better ones.
        self.best_values: Mapping[str, np.ndarray[Any, Any]] | None = None
        self.best_run: RunState | None = None  # progress at which they were written
        self.lock: CheckpointLock | None = None
        self.interrupt = DeferredInterrupt()
        self.evaluating = False  # True in its own evaluation, not in one by a callback
        self.since_checkpoint = 0
        self.saved, self.written = self.state.steps, False  # last saved step; True if in a file
        self.loader_state: dict[str, Any] | None = None  # where to resume, if not where `train` is
        with ExitStack() as held:
            if self.path is not None:
                check_writable(self.path)
                self._lock(self.path, lock, held)
            if resume_point is not None and resume_point.progress:
                self._resume(resume_point)
            self.adaptation = Adaptation(
                options, state, coordinator, train, self.run, self._log_record
            )
            if resume_point is not None:
                self.adaptation.load_state_dict(resume_point.progress)
            self.log: JsonLines | None = None
            if options.log is not None:
                self.log = JsonLines(options.log, opens=self.coordinator.writes_files)
            self.held = held.pop_all()

    @property
    def shows(self) -> bool:
        """True if this process shows progress; another one does if it dies."""
        return self.options.progress and self.coordinator.writes_files

    def _lock(self, path: Path, lock: CheckpointLock | None, held: ExitStack) -> None:
        """Lock `path` against other trainings; check that it may be replaced."""
        if lock is None or lock.path != Path(os.path.realpath(path)):
            lock = CheckpointLock(path)
            held.callback(lock.close)
        self.lock = lock
        if self.coordinator.writes_files:
            lock.acquire()
            for file in (path, best_path(path))[: 1 if self.options.dev is None else 2]:
                check_replaceable(file, self.state.model)

    def _resume(self, point: ResumePoint, *, joins: bool = False) -> None:
        """Continue the run at `point`; joins: it is that of the other ranks, which still runs."""
        stored = point.progress
        run = RunState.from_json(stored["fit"])
        if stored.get("monitor") != self.monitor.name and run.best is not None:
            raise CheckpointError(
                f"the run monitored {stored.get('monitor')!r}, not {self.monitor.name!r}",
                hint=f"pass monitor={stored.get('monitor')!r}",
            )
        evaluates = self.options.dev is not None
        if stored.get("dev", evaluates) != evaluates:  # a training loss and a dev loss: no relation
            run.best, run.best_epoch, run.bad_epochs = None, None, 0
        if self.options.restore_best and run.best is not None and not joins:
            best = best_path(point.path)
            self.best_values, self.best_run = read_best(best, run, self.state.model)
        self.train.load_state_dict(stored.get("loader") or {})
        self.carry.restore(point.arrays if self.train.first else {})
        vars(self.run).update(vars(run))
        self.result.best, self.result.best_epoch = run.best, run.best_epoch

    def progress(self) -> dict[str, Any]:
        """Return the progress of the run as checkpoints store it."""
        return {
            "fit": asdict(self.run),
            "monitor": self.monitor.name,
            "dev": self.options.dev is not None,
            "loader": self.loader_state or self.train.state_dict(),
            **self.adaptation.state_dict(),
        }

    def go(self) -> FitResult:
        """Run until the last epoch, the end of patience, or Ctrl-C."""
        with self.held:
            state, run, options = self.state, self.run, self.options
            self._record(
                "start",
                epoch=run.epoch,
                step=state.steps,
                optimizer=repr(state.optimizer),
                seed=state.seed,
                max_norm=state.max_norm,
                epochs=options.epochs,
                monitor=self.monitor.name,
                ranks=self.adaptation.run.size,
                loader=self.train.state_dict(),
            )
            adaptation = self.adaptation
            with self.interrupt, self._releasing():
                if not self.coordinator.detached():
                    with self._saving_on_error(evaluating=True):
                        adaptation.call("before_train")
                if not self._train_or_wait():
                    self.result.status = "detached"
                    return self.result
                if adaptation.run.stopping:
                    self.result.status = "stopped"
                with self._saving_on_error(evaluating=True):
                    adaptation.call("after_train")
            # Asked outside of the block, where Ctrl-C acts at once again, so that none is missed.
            if self.coordinator.should_stop_at_end(self.interrupt.requested):
                self._stop()
            if options.restore_best:
                self._restore_best()
            self._record("end", step=state.steps, **asdict(self.result) | {"epochs": run.epoch})
            return self.result

    def _train_or_wait(self) -> bool:
        """Train all epochs; return False if this process is not one of those that end them."""
        while True:
            try:
                if self.coordinator.detached() and not self._join():
                    return False
                self._epochs()
                return True
            except Detached:
                self.run.trained = False  # the state comes from the ranks when they want this one

    def _join(self) -> bool:
        """Wait, then continue from the state of the ranks; return False if the training ends."""
        stored = self.coordinator.join(self.train, lambda: self.interrupt.requested)
        if stored is None:
            return False
        point = ResumePoint(self.path or Path(), stored.progress, stored.extra)
        self._resume(point, joins=True)
        self.adaptation.load_state_dict(stored.progress)
        self.since_checkpoint, self.saved, self.written = stored.progress["saved"]
        self.adaptation.size = stored.progress["size"]
        arrays = stored.extra.items()
        best = {name.removeprefix(BEST): a for name, a in arrays if name.startswith(BEST)}
        self.best_values = best or None
        self.coordinator.shard_loader(self.train)
        with self._saving_on_error(evaluating=True):
            self.adaptation.note_size()
        return True

    def _regroup(self) -> None:
        """Bring about the number of ranks that policies want, and let them know of a new one."""
        if self.coordinator.wants_regroup():
            self._resize()
        self.adaptation.note_size()

    def _resize(self) -> None:
        if self.coordinator.regroup_may_fail():
            self._checkpoint(improved=False)
        self.run.loss_sum = self.coordinator.sum_losses(self.run.loss_sum)
        saved = [self.since_checkpoint, self.saved, self.written]
        self.adaptation.restart_clock()
        best = {} if self.best_run is not None else self.best_values or {}
        carried = self.carry.gathered()
        self.coordinator.regroup(
            self.train,
            lambda: {**self.progress(), "saved": saved, "size": self.adaptation.size},
            {f"{BEST}{name}": array for name, array in best.items()} | carried,
        )
        self.carry.restore(carried)  # by other ranks than before

    @contextmanager
    def _releasing(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.coordinator.release()

    def _epochs(self) -> None:
        run, options = self.run, self.options
        while run.epoch < options.epochs and not self.adaptation.run.stopping:
            with self._saving_on_error(evaluating=True):
                self._regroup()
            if options.patience is not None and run.bad_epochs > options.patience:
                self.result.stopped_early = True
                break
            self._epoch()

    def _epoch(self) -> None:
        state, run, adaptation = self.state, self.run, self.adaptation
        if not (run.trained or run.opened) and self.train.first == 0:
            with self._saving_on_error(evaluating=True):
                adaptation.call("before_epoch")
            run.opened = True
            self._regroup()
        number, total = run.epoch + 1, self.train.total
        title = f"epoch {number}/{self.options.epochs}"
        with Progress(title, total, done=self.train.first, enabled=self.shows) as bar:
            if not run.trained:
                with self._saving_on_error(evaluating=False):
                    self._train(bar)
                if self.train.position > 0:  # a policy has ended the run within the epoch
                    self._checkpoint(improved=False)
                    return
                run.loss_sum = self.coordinator.sum_losses(run.loss_sum)
                run.trained = True
            train_loss = run.loss_sum / max(run.loss_count, 1)
            record: dict[str, Any] = {
                "epoch": number,
                "step": state.steps,
                "lr": state.optimizer.rate(max(state.steps - 1, 0)),  # that of the last update
                "train_loss": train_loss,
                "seconds": bar.seconds,
                "graphs_per_second": bar.rate,
            }
            with self._saving_on_error(evaluating=True):
                values = self._evaluate()
            record |= {f"dev_{name}": value for name, value in values.items()}
            record["dev_seconds"] = bar.seconds - record["seconds"]
            improved = self._note_best(number, values.get(self.monitor.name, train_loss))
            shown = [f"loss {train_loss:.4f}"]
            shown += [f"dev {name} {value:.4f}" for name, value in values.items()]
            took = f"{record['graphs_per_second']:.0f} graphs/s  {duration(bar.seconds)}"
            bar.finish("  ".join([*shown, took]) + ("  best so far" if improved else ""))
        with self._saving_on_error(evaluating=True):
            adaptation.call("after_epoch")
        run.epoch, run.trained, run.opened = number, False, False
        run.loss_sum, run.loss_count = 0.0, 0
        self.result.epochs.append(record)
        self._log("epoch", record | {"best": improved})
        self._checkpoint(improved)  # before the callback, which may raise
        self._call_back("epoch", record | {"best": improved})

    def _train(self, bar: Progress) -> None:
        run, loop, every = self.run, self.loop, self.options.checkpoint_every
        adaptation, carry = self.adaptation, self.carry

        def count(ended: Iterable[Step]) -> None:
            for step in ended:
                run.step = self.state.steps
                run.loss_sum += step.outcome.loss
                run.loss_count += 1
                shown = adaptation.shown()
                bar.advance(step.batch.num_graphs, loss=run.loss_sum / run.loss_count, **shown)
                adaptation.after_step(step)

        def stop_if_asked() -> None:
            if self.coordinator.should_stop(self.interrupt.requested):
                count(loop.land())
                self._stop()

        adaptation.restart_clock()
        counted, launched = run.loss_count, 0
        loader_state: dict[str, Any] | None = None
        with iterating(self.train) as batches:
            try:
                for batch in self.coordinator.guard_batches(batches):
                    launched, loader_state = launched + 1, self.train.state_dict()
                    adaptation.before_step()
                    batch = carry.into(batch)  # noqa: PLW2901
                    ended = loop.launch(batch)
                    if carry:  # the next batch reads results of this step
                        ended += loop.land()
                    count(ended)
                    if carry:
                        carry.take(*ended[-1])
                    stop_if_asked()
                    self.since_checkpoint += 1
                    if every is not None and self.since_checkpoint >= every:
                        count(loop.land())
                        self._checkpoint(improved=False)
                        adaptation.restart_clock()
                        stop_if_asked()
                    if adaptation.run.stopping and not self.train.at_end:
                        break
                    bar.total = self.train.total
                    self._regroup()
                count(loop.land())
                if self.train.position == 0:  # the epoch has ended
                    carry.clear()
            except BaseException:
                count(loop.land())
                if loader_state is not None:  # a resumed run repeats the batches not counted
                    now = self.train.state_dict()  # policies may have changed the batch size
                    if now["epoch"] == loader_state["epoch"]:
                        loader_state = now
                    uncounted = launched - (run.loss_count - counted)
                    position = loader_state["position"] - uncounted
                    self.loader_state = loader_state | {"position": position}
                raise

    def _evaluate(self) -> dict[str, float]:
        if self.options.dev is None:
            return {}
        self.loader_state = self.train.state_dict()  # dev may be the same loader
        self.evaluating = True
        try:
            values = self.loop.evaluate(
                self.options.dev,
                self.metrics,
                stop=lambda: self.interrupt.requested,
                carry=self.options.carry,
            )
        finally:
            self.evaluating = False
        if self.coordinator.should_stop(self.interrupt.requested):
            self._stop()
        self.loader_state = None
        return values

    @contextmanager
    def _saving_on_error(self, *, evaluating: bool) -> Iterator[None]:
        """If an error ends the block, save the steps so far; the error then names the file."""
        try:
            yield
        except Exception as error:
            state = self.state
            in_policy = self.adaptation.failed is error
            may_save = self.coordinator.may_save
            if self.path is not None and may_save(
                error, evaluating=evaluating, in_policy=in_policy
            ):
                try:
                    if state.steps > self.saved:
                        self._checkpoint(improved=False)
                except NumericsError:
                    pass  # the parameters are not finite either
                except CavsError as failed:
                    _append_line(error, f"the steps since are not saved: {failed.what}")
                if self.written:
                    path = self.options.checkpoint
                    _append_line(error, f"{_LAST}{path}, of step {self.saved}")
            name = "numerics" if isinstance(error, NumericsError) else "error"
            self._record(name, step=state.steps + (not evaluating), error=str(error))
            raise

    def _note_best(self, epoch: int, value: float) -> bool:
        """Compare the monitored value with the best and pass it to a schedule.

        Returns True if it is the best so far.
        """
        run, score = self.run, self.monitor.score
        if not math.isnan(value):
            self.state.optimizer.observe(score(value))
        if math.isnan(value) or (run.best is not None and score(value) >= score(run.best)):
            run.bad_epochs += 1
            return False
        run.best, run.best_epoch, run.bad_epochs = value, epoch, 0
        self.result.best, self.result.best_epoch = value, epoch
        self.best_values = self.best_run = None
        if self.options.restore_best and self.path is None:
            self.best_values = self.coordinator.merged_values(self.state.parameters)
        return True

    def _stop(self) -> None:
        self._checkpoint(improved=False)
        self._record("interrupt", epoch=self.run.epoch, step=self.state.steps)
        where = self.state.last_checkpoint if self.path is not None else None
        saved = f"saved {where}" if where else "no checkpoint= was given, nothing was saved"
        raise KeyboardInterrupt(f"stopped after step {self.state.steps}; {saved}")

    def _checkpoint(self, improved: bool) -> None:
        path = self.options.checkpoint
        if path is None:
            return
        self.run.loss_sum = self.coordinator.sum_losses(self.run.loss_sum)
        if self.lock is not None and self.coordinator.writes_files:
            self.lock.acquire()  # the process that wrote before may have died
        progress = self.progress()
        if improved and self.options.dev is not None:
            self.loop.save(best_path(path), progress=progress, states=False)
        self.loop.save(path, progress=progress)
        self.since_checkpoint, self.saved, self.written = 0, self.state.steps, True
        self._log("checkpoint", {"epoch": self.run.epoch, "step": self.saved})

    def _restore_best(self) -> None:
        if self.best_values is not None:
            for name, values in self.best_values.items():
                np.copyto(self.state.parameters[name].value, values)
            self.engine.invalidate()
            if self.best_run is not None:  # no epoch of this call was better
                self.result.best, self.result.best_epoch = (
                    self.best_run.best,
                    self.best_run.best_epoch,
                )
        elif self.path is not None and self.run.best is not None:
            best = best_path(self.path)
            check_best(best, self.run)
            self.loop.load(best)

    def _record(self, event: str, **record: Any) -> None:
        self._log(event, record)
        self._call_back(event, record)

    def _log_record(self, event: str, **record: Any) -> None:
        self._log(event, record)

    def _log(self, event: str, record: Mapping[str, Any]) -> None:
        if self.log is not None and self.coordinator.writes_files:
            self.log.write(event, **record)

    def _call_back(self, event: str, record: Mapping[str, Any]) -> None:
        if self.options.on_event is not None:
            self.options.on_event(event, record)


def _append_line(error: Exception, line: str) -> None:
    """Append `line` to the message of `error`, in place of an earlier line on a checkpoint."""
    if not isinstance(error, CavsError):
        error.add_note(line)
    elif type(error).__init__ is CavsError.__init__:
        said = error.what.split("\n  ")
        if line.startswith(_LAST):
            said = [text for text in said if not text.startswith(_LAST)]
        what = "\n  ".join([*said, line])
        CavsError.__init__(error, what, where=error.where, hint=error.hint)
