"""``cavs train MODEL``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cavs.cli import distributed, options, passes, stored_options, streams
from cavs.cli.distributed import one_voice
from cavs.cli.numbers import count
from cavs.cli.overwrite import overwriting
from cavs.cli.registry import Entry, Task
from cavs.distributed import Trainer as DistributedTrainer
from cavs.distributed import world
from cavs.distributed.comm import Communicator
from cavs.distributed.comm.launcher_pipe import RESTORE
from cavs.errors import CheckpointError, ConfigError, DataError
from cavs.train import DataLoader, Trainer
from cavs.train.checkpoint import best_path, check_writable, read_checkpoint
from cavs.train.checkpoint_lock import CheckpointLock
from cavs.train.configuration.names import STORE
from cavs.train.fit_options import FitResult
from cavs.train.log import JsonLines
from cavs.train.policies import POLICIES, FollowStore, KeepSize

_KEEPING = FollowStore, KeepSize  # policies that replace dead ranks


def add_parser(commands: Any, argv: list[str]) -> None:
    """Add the command."""
    options.add_models(commands, "train", "train a model", argv, add_arguments, _kept)


def add_arguments(parser: argparse.ArgumentParser, entry: Entry) -> None:
    """Add all options of ``cavs train`` with `entry` but the model's own."""
    options.add_data_arguments(parser)
    options.add_training_arguments(parser)
    passes.add_argument(options.add_engine_arguments(parser))
    options.add_distributed_arguments(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--out", metavar="DIR", help="default: runs/MODEL")
    group.add_argument(
        "--resume",
        action="store_true",
        help="continue the run in --out; options that are not given here are those of the run, "
        "except --threads, --elastic, --collectives, --resources and --timeout",
    )
    group.add_argument("--overwrite", action="store_true", help="replace the run in --out")
    group.add_argument("--save-every", type=count(1), metavar="STEPS")
    group.add_argument("--quiet", action="store_true", help="no progress bar")
    unknown = sorted(set(entry.defaults) - set(vars(parser.parse_args([]))))
    if unknown:
        raise ConfigError(
            f"DEFAULTS of {entry.name} has {unknown[0]!r}, which is not an option",
            hint="cavs train MODEL --help lists the options; those of its own it adds itself",
        )
    parser.set_defaults(run=run)


def _kept(args: argparse.Namespace) -> dict[str, Any]:
    """Return, with ``--resume``, the options of the run in ``--out`` as defaults."""
    checkpoint = _checkpoint(args)
    if not args.resume or not os.path.exists(checkpoint):
        return {}
    config = read_checkpoint(checkpoint).config
    parts = [config.get(name, {}) for name in ("options", "training")]
    if not all(isinstance(part, dict) for part in parts):
        raise CheckpointError(
            f"{checkpoint} has no options of cavs train",
            hint="it was written by Trainer.save; resume it with Trainer.resume in Python",
        )
    trained, name = config.get("model"), args.entry.name
    if isinstance(trained, str) and not _same_model(trained, name):
        raise ConfigError(
            f"--resume with {name}, but the run in {checkpoint.parent} is of {trained}",
            hint=f"resume it by cavs train {trained}, or pass the --out of a run of {name}",
        )
    return {"data": config.get("data"), **parts[0], **parts[1]}


def _same_model(trained: str, name: str) -> bool:
    """True if `name` may be the model of a run of `trained`; for files, parameters decide later."""
    files = trained.endswith(".py") and name.endswith(".py")
    return files or _known_as(trained) == _known_as(name)


def _known_as(name: str) -> str:
    return Path(name).stem.replace("_", "-")


def _checkpoint(args: argparse.Namespace) -> Path:
    name = args.entry.name
    stem = Path(name).stem if name.endswith(".py") else name
    folder = Path(args.out) if args.out is not None else Path("runs") / stem
    return folder / "checkpoint.safetensors"


@dataclass
class TrainResult:
    """Result of a run; `kept` is the file with the best parameters."""

    task: Task
    trainer: Trainer
    kept: Path


def run(args: argparse.Namespace) -> int:
    """Train, keep the best, and report the test split."""
    communicator = world(args.timeout)
    with one_voice(communicator), locking(args) as lock:
        trainer = train(args, communicator, lock).trainer
        if isinstance(trainer, DistributedTrainer):
            trainer.close()  # waits for all ranks
    return 0


@contextmanager
def locking(args: argparse.Namespace) -> Iterator[CheckpointLock]:
    """Yield the lock on ``--out``, which `train` acquires and the end of the block releases."""
    checkpoint, hint = _checkpoint(args), "wait for it or end it, or pass another --out"
    lock = CheckpointLock(checkpoint, shown=checkpoint.parent, hint=hint)
    with _no_empty_folder(args), closing(lock):
        yield lock


@contextmanager
def _no_empty_folder(args: argparse.Namespace) -> Iterator[None]:
    """Remove new folders if the block fails before it has written anything."""
    folder = _checkpoint(args).parent
    new = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
    try:
        yield
    except BaseException:
        with suppress(OSError):  # not empty, or gone
            for path in new:
                path.rmdir()
        raise


def train(
    args: argparse.Namespace,
    communicator: Communicator | None = None,
    lock: CheckpointLock | None = None,
) -> TrainResult:
    """Do the work of `run`. args: All options of ``cavs train``. lock: The one on ``--out``."""
    first = communicator is None or communicator.rank == 0
    entry: Entry = args.entry
    checkpoint = _checkpoint(args)
    folder = checkpoint.parent
    _check_balance(args)
    if args.resources is not None and args.strategy is None:
        raise ConfigError(
            f"--resources {args.resources} without --strategy: all-reduce in buckets needs none",
            hint="pass --strategy auto, or another that is built for a cluster",
        )
    if args.data is not None and not os.path.exists(
        args.data
    ):  # the most likely mistake, checked first
        raise DataError(f"{args.data} is neither a folder nor a file", hint="pass another --data")
    if first:
        _check_folder(args, checkpoint)
    if lock is not None:
        _acquire(lock, communicator)
    task = entry.build(args)
    loader = task.loader(args.batch_size, args.seed, args.bucket)
    dev_graphs = task.graphs("dev")
    if args.patience is not None and not dev_graphs:
        _check_patience(args)
    dev = DataLoader(dev_graphs, args.batch_size, cache=True) if dev_graphs else None
    common: dict[str, Any] = {
        **options.engine_options(args),
        "seed": args.seed,
        "max_norm": args.max_norm,
        "threads": args.threads,
        "passes": passes.passes(args),
        "config": stored_options.training_config(entry, args, task),
    }
    optimizer = options.make_optimizer(args, loader.total)
    policies = [POLICIES.find(text) for text in args.policy]
    if os.environ.get(STORE) and not any(isinstance(p, FollowStore) for p in policies):
        policies.append(FollowStore())
    elif os.environ.get(RESTORE) and not any(isinstance(p, _KEEPING) for p in policies):
        policies.append(KeepSize())
    distributes = args.strategy is not None or args.collectives != "auto"
    if communicator is None or (
        communicator.size == 1 and not distributes and communicator.pool is None
    ):
        trainer = Trainer(task.model, optimizer, **common)
    else:
        trainer = distributed.trainer(args, task.model, optimizer, communicator, common)
    trainer.checkpoint_lock = lock
    if args.resume:  # options of this command line replace settings of the run
        trainer.resume(checkpoint, strict=False)
    quiet = args.quiet or not first
    settings = {k: v for k, v in vars(args).items() if k not in ("run", "entry")}
    with overwriting(checkpoint) if args.overwrite and first else nullcontext():
        on_event = None
        if first:
            log = JsonLines(folder / "log.jsonl")
            log.write("options", **settings)
            if isinstance(trainer, DistributedTrainer):
                on_event = distributed.log_strategy(trainer, log, shows=not quiet)
        if not quiet:
            size = sum(p.value.size for p in trainer.parameters.values())
            known = f"{len(loader.graphs)}" if isinstance(loader, DataLoader) else "a stream of"
            graphs = f"{known} training and {len(dev_graphs or ())} dev graphs"
            print(f"{entry.name}: {size:,} parameters, {graphs}", file=sys.stderr)
        result = trainer.fit(
            loader,
            epochs=args.epochs,
            dev=dev,
            metrics=task.metrics,
            monitor=task.monitor if dev is not None else None,
            patience=args.patience if dev is not None else None,
            checkpoint=checkpoint,
            checkpoint_every=args.save_every,
            restore_best=dev is not None,
            log=folder / "log.jsonl",
            progress=not quiet,
            on_event=on_event,
            policies=policies,
        )
    if result.status == "detached":
        return TrainResult(task, trainer, checkpoint)
    if isinstance(trainer, DistributedTrainer):  # the first rank may have died
        first = trainer.communicator.rank == 0
    say: Callable[[str], None] = streams.report if first else lambda text: None
    return TrainResult(task, trainer, _report(args, task, trainer, result, checkpoint, say))


def _check_balance(args: argparse.Namespace) -> None:
    if args.predictor is not None and args.balance != "lb-bsp":
        if args.resume:  # the predictor is that of the run, which had another --balance
            args.predictor = None
            return
        raise ConfigError(
            f"--predictor {args.predictor} with --balance {args.balance}",
            hint="pass --balance lb-bsp, the only one that predicts speeds",
        )


def _check_patience(args: argparse.Namespace) -> None:
    if args.resume and _kept(args).get("patience") == args.patience:
        args.patience = None  # an earlier version accepted it
        return
    raise ConfigError(
        f"--patience {args.patience}, but there are no dev graphs",
        hint="leave --patience out, or pass data with a dev split",
    )


def _check_folder(args: argparse.Namespace, checkpoint: Path) -> None:
    if args.resume and args.overwrite:
        raise ConfigError("--resume and --overwrite exclude each other", hint="pass one of them")
    if os.path.exists(checkpoint) and not (args.resume or args.overwrite):
        raise ConfigError(
            f"{checkpoint} exists", hint="pass --resume, --overwrite, or another --out"
        )
    if args.resume and not os.path.exists(checkpoint):
        raise ConfigError(f"nothing to resume: there is no {checkpoint}", hint="leave --resume out")
    check_writable(checkpoint)


def _acquire(lock: CheckpointLock, communicator: Communicator | None) -> None:
    """Acquire the lock on all ranks, since another rank writes if the one that does dies."""
    if communicator is None or communicator.rank == 0:
        lock.acquire(shared=communicator is not None and communicator.size > 1)
    pool = None if communicator is None else communicator.pool
    if pool is not None and not pool.is_member:  # it would have the lock before the first rank
        return
    if communicator is not None:
        communicator.barrier()
        if lock.path.parent.exists():  # False on a host that does not share the folder
            lock.join()


def _report(
    args: argparse.Namespace,
    task: Task,
    trainer: Trainer,
    result: FitResult,
    checkpoint: Path,
    say: Callable[[str], None],
) -> Path:
    kept = checkpoint
    if result.best_epoch is not None and best_path(checkpoint).exists():
        kept = best_path(checkpoint)
        why = ", stopped early" if result.stopped_early else ""
        say(f"best epoch {result.best_epoch}: dev {result.monitor} {result.best:.4f}{why}")
    try:
        test = task.graphs("test")
        if test:
            values = trainer.evaluate(DataLoader(test, args.batch_size), task.metrics)
            say("  ".join(["test", *(f"{name} {value:.4f}" for name, value in values.items())]))
    finally:  # also if the test split cannot be read
        say(f"saved {kept}")
    return kept
