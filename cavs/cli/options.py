"""Options that several commands share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from typing import Any

from cavs.cli.numbers import count
from cavs.cli.passes import OptionValues
from cavs.cli.registry import Entry, find, names, summary
from cavs.config import MAX_THREADS
from cavs.errors import ConfigError
from cavs.runtime.precision import PRECISIONS
from cavs.runtime.recurrence import CUDNN
from cavs.runtime.scheduling import SCHEDULING
from cavs.train import optim, schedules

BALANCES = ("equal", "structure", "lb-bsp", "lb-bsp-gpu")
# Options of a session that commands pass on and `cavs train` stores; threads are of each command.
ENGINE = ("device", "precision", "cudnn", "deterministic", "scheduling")
SCHEDULES = ("constant", "cosine", "step", "exponential", "plateau")


def add_models(
    commands: Any,
    command: str,
    text: str,
    argv: list[str],
    add: Callable[[argparse.ArgumentParser, Entry], None],
    kept: Callable[[argparse.Namespace], Mapping[str, Any]] | None = None,
) -> None:
    """Add ``command MODEL``. Only a model that `argv` names is imported and adds its options.

    kept: Returns other defaults for the options in `argv`.
    """
    description = f"{text}; MODEL is one of these, or FILE.py with a model of your own"
    parser = commands.add_parser(command, help=text, description=description)
    models = parser.add_subparsers(dest="model", metavar="MODEL", required=True)
    if argv[:1] != [command]:
        return
    named, rest = argv[1:2], argv[2:]  # a file among the other words is not the model
    for name in names():
        sub = models.add_parser(name, help=summary(name), description=summary(name))
        if name in named:
            _add_model(sub, find(name), add, kept, rest)
    for path in [word for word in named if word.endswith(".py")]:
        entry = find(path)
        sub = models.add_parser(path, description=entry.summary)
        _add_model(sub, entry, add, kept, rest)


def _add_model(
    parser: argparse.ArgumentParser,
    entry: Entry,
    add: Callable[[argparse.ArgumentParser, Entry], None],
    kept: Callable[[argparse.Namespace], Mapping[str, Any]] | None,
    argv: list[str],
) -> None:
    group = parser.add_argument_group("model")
    try:
        entry.add_arguments(group)
        own = list(group._group_actions)
        for action in own:
            _describe(action)
        add(parser, entry)
    except argparse.ArgumentError as error:  # "conflicting option string: --lr"
        raise _taken(entry, error.message.rpartition(": ")[2]) from error
    taken = {"run", "entry"} | {action.dest for action in parser._actions if action not in own}
    for action in own:
        if action.dest in taken:  # an option of another name with the same destination
            raise _taken(entry, f"{'/'.join(action.option_strings)}, args.{action.dest},")
    known = vars(parser.parse_args([]))
    defaults = {k: v for k, v in entry.defaults.items() if k in known}
    for action in parser._actions:  # argparse checks only values that are typed
        value = defaults.get(action.dest)
        if action.choices is not None and value is not None and value not in action.choices:
            raise ConfigError(
                f"DEFAULTS of {entry.name} has {action.dest} {value!r}",
                hint=f"it is one of {', '.join(map(str, action.choices))}",
            )
    parser.set_defaults(entry=entry, **defaults)
    if kept is not None and not {"-h", "--help"} & set(argv):
        found = kept(parser.parse_known_args(argv)[0])
        parser.set_defaults(**{k: v for k, v in found.items() if k in known})


def _taken(entry: Entry, option: str) -> ConfigError:
    return ConfigError(
        f"{entry.name} adds the option {option} which exists already",
        hint="give it another name: it is an option of cavs, or the file adds it twice",
    )


def _describe(action: argparse.Action) -> None:
    """Complete the help of a model's option with its type and default."""
    if action.metavar is None and action.choices is None and action.nargs is None:
        action.metavar = {int: "N", float: "X"}.get(action.type)  # type: ignore[call-overload]
    silent = any(action.default is value for value in (None, False, argparse.SUPPRESS))
    if not silent and "default" not in (action.help or ""):
        action.help = ", ".join(filter(None, (action.help, "default: %(default)s")))


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--data`` and ``--limit``."""
    group = parser.add_argument_group("data")
    group.add_argument("--data", metavar="DIR", help="the data set (default: the model's own)")
    group.add_argument(
        "--limit", type=count(1), metavar="N", help="use only the first N graphs of a split"
    )


def add_engine_arguments(parser: argparse.ArgumentParser) -> Any:
    """Add the options of a session; return their group."""
    group = parser.add_argument_group("engine")
    group.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1, ...")
    group.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="float32",
        help="precision of products (default: float32); faster on a CPU: int16 with AVX-512 VNNI, "
        "bfloat16 with AMX or AVX-512 BF16, bfloat16x3 with AMX; on a GPU: tf32 or bfloat16",
    )
    group.add_argument(
        "--cudnn",
        choices=CUDNN,
        default="never",
        help="let cuDNN run LSTMs over chains on a GPU (default: never; auto: where it measures "
        "faster)",
    )
    group.add_argument(
        "--deterministic",
        action="store_true",
        help="make libraries of a GPU sum in one order too: the same bits in every run, but slower",
    )
    group.add_argument(
        "--scheduling",
        choices=SCHEDULING,
        default="auto",
        help="order of tasks where vertices are of several kinds (default: auto, the one with the "
        "fewest tasks for vertices of several types, else level by level)",
    )
    group.add_argument(
        "--threads",
        type=count(1, MAX_THREADS),
        metavar="N",
        help="threads of the engine (default: all cores)",
    )
    return group


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options in `ENGINE`, as arguments of a session or a trainer."""
    return {name: getattr(args, name) for name in ENGINE}


def add_distributed_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a training on many ranks."""
    from cavs.distributed.balance import PREDICTORS
    from cavs.distributed.step.devices import COLLECTIVES

    group = parser.add_argument_group("distributed", "under mpirun, srun or cavs launch")
    group.add_argument(
        "--strategy",
        metavar="NAME",
        help="how gradients are synchronised: a builder such as PartitionedPS, FILE.py:CLASS, auto "
        "or a strategy file ending in .json (default: all-reduce in buckets)",
    )
    group.add_argument(
        "--balance",
        choices=BALANCES,
        default="equal",
        help="assign equal numbers of graphs to ranks (default), or balance their time: predicted "
        "from the structure of graphs, by numbers from the ranks' speeds (LB-BSP for CPUs), or by "
        "moving a few graphs from the slowest to the fastest rank (LB-BSP for GPUs)",
    )
    group.add_argument(
        "--predictor",
        choices=tuple(PREDICTORS),
        help="predictor of the ranks' speeds with --balance lb-bsp (default: narx, at first ema)",
    )
    group.add_argument(
        "--elastic",
        action="store_true",
        default=bool(os.environ.get("CAVS_ELASTIC")),
        help="go on with the surviving ranks if one dies (set by cavs launch --elastic)",
    )
    group.add_argument(
        "--collectives",
        choices=COLLECTIVES,
        default="auto",
        help="how GPUs sum dense gradients (default: auto, by NCCL where every rank has a GPU)",
    )
    group.add_argument("--resources", metavar="FILE", help="resource specification in YAML")
    group.add_argument(
        "--timeout",
        type=count(1),
        default=300,
        metavar="SECONDS",
        help="time that a rank waits for another (default: %(default)s)",
    )


class _Optimizers(tuple[str, ...]):
    """Names of optimisers; options in parentheses and classes of files are valid choices too."""

    __slots__ = ()

    def __contains__(self, text: object) -> bool:
        return super().__contains__(text) or any(mark in str(text) for mark in ("(", ".py:"))


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of optimiser and epochs."""
    group = parser.add_argument_group("training")
    add = group.add_argument
    add("--epochs", type=count(1), default=10, metavar="N", help="default: %(default)s")
    add("--batch-size", type=count(1), default=64, metavar="N", help="default: %(default)s")
    add(
        "--bucket",
        choices=("none", "size", "depth"),
        default="none",
        help="put similar graphs into one batch",
    )
    add(
        "--optimizer",
        choices=_Optimizers(sorted(optim.OPTIMIZERS)),
        default="adagrad",
        metavar="NAME",
        help=f"{', '.join(sorted(optim.OPTIMIZERS))}, NAME(option=value), or FILE.py:CLASS "
        "(default: %(default)s)",
    )
    add("--lr", type=float, default=0.05, metavar="X", help="learning rate (default: %(default)s)")
    add(
        "--momentum",
        type=float,
        default=0.0,
        metavar="X",
        help="momentum of sgd (default: %(default)s)",
    )
    add("--weight-decay", type=float, metavar="X", help="default: 0.01 for adamw, else 0")
    add("--max-norm", type=float, metavar="X", help="clip the gradient to this norm")
    add("--schedule", choices=SCHEDULES, default="constant", help="schedule of the learning rate")
    add(
        "--decay",
        type=float,
        default=0.5,
        metavar="X",
        help="factor of the schedules step, exponential and plateau",
    )
    add("--decay-epochs", type=count(1), default=1, metavar="N", help="epochs between two decays")
    add(
        "--warm-up",
        type=count(0),
        default=0,
        metavar="N",
        help="first steps, in which the rate rises linearly",
    )
    add(
        "--patience",
        type=count(0),
        metavar="N",
        help="stop after more than N epochs in a row without improvement",
    )
    add("--seed", type=count(0), default=0, metavar="N", help="default: %(default)s")
    add(
        "--policy",
        action=OptionValues,
        default=[],
        metavar="NAME",
        help="adapt the training while it runs: NAME, NAME(option=value), or FILE.py:CLASS; may be "
        "given several times (with --resume: in place of those of the run)",
    )


def training_defaults(entry: Entry) -> argparse.Namespace:
    """Return the defaults of the options of training: those of the model, else those of cavs."""
    parser = argparse.ArgumentParser(add_help=False)
    add_training_arguments(parser)
    parser.set_defaults(**entry.defaults)
    return parser.parse_args([])


def make_optimizer(args: argparse.Namespace, steps_an_epoch: int) -> optim.Optimizer:
    """Return the optimiser for the options. steps_an_epoch: 0 if that is not known."""
    if not steps_an_epoch and args.schedule in ("cosine", "step", "exponential"):
        raise ConfigError(
            f"--schedule {args.schedule} counts epochs in steps, but the stream of training graphs "
            "does not say how many an epoch has",
            hint="give it: StreamLoader(source, length=N); or pass --schedule plateau",
        )
    lr: float | schedules.Schedule = args.lr
    every = args.decay_epochs * steps_an_epoch
    match args.schedule:
        case "cosine":
            total = args.epochs * steps_an_epoch
            lr = schedules.Cosine(args.lr, steps=max(total - args.warm_up, 1))
        case "step":
            lr = schedules.StepDecay(args.lr, every=every, factor=args.decay)
        case "exponential":
            lr = schedules.Exponential(args.lr, factor=args.decay, every=every)
        case "plateau":
            lr = schedules.Plateau(args.lr, factor=args.decay, patience=args.decay_epochs - 1)
    if args.warm_up:
        lr = schedules.WarmUp(lr, steps=args.warm_up)
    options: dict[str, Any] = {}
    if args.weight_decay is not None:  # else the default of the optimiser
        options["weight_decay"] = args.weight_decay
    if args.momentum:
        if args.optimizer.partition("(")[0] != "sgd":
            raise ConfigError(
                f"--momentum {args.momentum} with --optimizer {args.optimizer}",
                hint="only sgd has momentum",
            )
        options["momentum"] = args.momentum
    return optim.NAMED.find(args.optimizer, lr=lr, **options)
