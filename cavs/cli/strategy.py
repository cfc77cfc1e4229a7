"""``cavs strategy show|check|compare MODEL``: strategies for training a model on many ranks.

``cavs strategy measure`` is in `cavs.cli.measure`.
"""

from __future__ import annotations

import argparse
from typing import Any

from cavs.cli import measure, options
from cavs.cli.numbers import count
from cavs.cli.registry import Entry
from cavs.data import GraphBatch, batch
from cavs.distributed.cluster.resources import ResourceSpec, load_resources
from cavs.distributed.planning.auto import CANDIDATES, Candidate, compare, is_file, make_strategy
from cavs.distributed.planning.builders import REGISTRY
from cavs.distributed.planning.compute import Compute
from cavs.distributed.planning.cost import Prediction, predict, simulate
from cavs.distributed.strategy import NodeConfig, Strategy, Variable, load, save, to_text
from cavs.distributed.strategy.expression import Problem
from cavs.distributed.strategy.variable import measured_variables
from cavs.distributed.strategy.verify import problems
from cavs.errors import ConfigError

ACTIONS = {
    "show": "the strategy of a builder",
    "check": "check that a strategy in a file fits a model and a cluster",
    "compare": "the predicted time of each builder's strategy, the fastest first",
}

_MAX_WORKERS = 4096  # on one machine; planning for more takes minutes


def add_parser(commands: Any, argv: list[str]) -> None:
    """Add the command."""
    text = "show, check or compare strategies of data-parallel training, or measure a cluster"
    parser = commands.add_parser("strategy", help=text, description=text)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    below = argv[1:] if argv[:1] == ["strategy"] else []
    for name, summary in ACTIONS.items():
        options.add_models(actions, name, summary, below, _ADD[name])
    measure.add_parser(actions)


def _add_common(parser: argparse.ArgumentParser) -> None:
    options.add_data_arguments(parser)
    cluster = parser.add_argument_group("cluster").add_mutually_exclusive_group()
    cluster.add_argument("--resources", metavar="FILE", help="resource specification, YAML")
    cluster.add_argument(
        "--workers",
        type=count(1, _MAX_WORKERS),
        metavar="N",
        help=f"processes on this machine (default: 2), at most {_MAX_WORKERS}",
    )
    group = parser.add_argument_group("step")
    group.add_argument(
        "--batch-size",
        type=count(1),
        default=64,
        metavar="N",
        help="graphs per worker (default: %(default)s)",
    )
    group.add_argument(
        "--compute",
        type=_milliseconds,
        default=0.0,
        metavar="MS",
        help="milliseconds of forward and backward on a worker, a third of them forward",
    )
    parser.set_defaults(seed=0)


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time in milliseconds")
    return value / 1000


def _add_show(parser: argparse.ArgumentParser, entry: Entry) -> None:
    _add_common(parser)
    parser.add_argument(
        "--strategy",
        default="auto",
        metavar="NAME",
        help=f"{', '.join(REGISTRY)} (default: auto), each with options as in AllReduce(chunk=8), "
        "FILE.py:CLASS or FILE.json",
    )
    parser.add_argument("--json", action="store_true", help="print the whole strategy as JSON")
    parser.add_argument("--out", metavar="FILE.json", help="write it to a file")
    parser.set_defaults(run=show)


def _add_check(parser: argparse.ArgumentParser, entry: Entry) -> None:
    _add_common(parser)
    parser.add_argument("--strategy", metavar="FILE.json", help="required")
    parser.set_defaults(run=check)


def _add_compare(parser: argparse.ArgumentParser, entry: Entry) -> None:
    _add_common(parser)
    parser.add_argument(
        "--strategy",
        action="append",
        metavar="NAME",
        help="a builder, FILE.json or auto; may be repeated (default: the candidates of auto)",
    )
    parser.set_defaults(run=run_compare)


_ADD = {"show": _add_show, "check": _add_check, "compare": _add_compare}


def _situation(
    args: argparse.Namespace,
) -> tuple[tuple[Variable, ...], ResourceSpec, Compute]:
    local = args.resources is None
    resources = ResourceSpec.local(args.workers or 2) if local else load_resources(args.resources)
    task = args.entry.build(args)
    graphs = task.graphs("train", args.batch_size)
    sample: GraphBatch | None = batch(list(graphs)) if graphs else None
    compute = Compute(args.compute / 3, args.compute * 2 / 3)
    return measured_variables(task.model, sample), resources, compute


def show(args: argparse.Namespace) -> int:
    """Print a strategy: the synchronisation of every parameter, and the predicted time."""
    if args.out is not None and not is_file(args.out):
        raise ConfigError(
            f"--out {args.out}: strategies are read only from files that end in .json",
            hint=f"--out {args.out}.json",
        )
    variables, resources, compute = _situation(args)
    strategy = make_strategy(args.strategy, variables, resources, compute)
    if args.out is not None:
        save(strategy, args.out)
    if args.json:
        print(to_text(strategy), end="")
        return 0
    print("\n".join(_described(strategy, variables)))
    prediction = predict(strategy, variables, resources, compute=compute.seconds)
    simulated = simulate(strategy, variables, resources, compute)
    print(
        f"\n{_milli(simulated.seconds)} ms a step, {_milli(simulated.exposed)} of them waiting for "
        f"the network; {_traffic(prediction)}"
    )
    return 0


def _described(strategy: Strategy, variables: tuple[Variable, ...]) -> list[str]:
    graph = strategy.graph
    lines = [
        f"strategy   {strategy.builder or 'of unknown origin'}, digest {strategy.digest[:16]}",
        f"replicas   {len(graph.replicas)}: {_some(graph.replicas)}",
    ]
    if graph.servers:
        lines.append(f"servers    {len(graph.servers)}: {_some(graph.servers)}")
    lines.append(f"gradients  {graph.gradients}\n")
    width = max(len(variable.name) for variable in variables)
    for variable in variables:
        node = strategy.node(variable.name)
        type_ = f"{variable.dtype}{list(variable.shape)}" + (" sparse" if variable.sparse else "")
        lines.append(f"{variable.name:{width}}  {type_:28}  {_node(node)}")
    return lines


def _node(node: NodeConfig) -> str:
    if not node.shards:
        return _leaf(node)
    leaves = list(dict.fromkeys(_leaf(leaf) for leaf in node.shards))
    return f"{len(node.shards)} shards {list(node.partition)}: {_some(leaves, '; ')}"


def _leaf(leaf: NodeConfig) -> str:
    return leaf.sync.summary(leaf.compressor)


def _some(items: tuple[str, ...] | list[str], separator: str = ", ") -> str:
    shown = separator.join(items[:4])
    return shown if len(items) <= 4 else f"{shown}{separator}..."


def _milli(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"


def _traffic(prediction: Prediction) -> str:
    sent = prediction.bytes_by_rank
    return f"a rank sends {sent.min():,.0f} to {sent.max():,.0f} bytes"


def check(args: argparse.Namespace) -> int:
    """Print every problem of a strategy; exit status 1 if there is one."""
    if args.strategy is None:
        raise ConfigError("there is no strategy to check", hint="pass --strategy FILE.json")
    variables, resources, _ = _situation(args)
    strategy = load(args.strategy)
    found = problems(strategy, variables, resources)
    graph, devices = strategy.graph, len(resources.devices)
    ranks = len(graph.replicas) + len(graph.servers)
    if not found and args.workers not in (None, ranks):
        found.append(
            Problem(
                f"the strategy is for {ranks} ranks, but --workers is {args.workers}",
                f"pass --workers {ranks}, or make a strategy for {args.workers}",
            )
        )
    for problem in found:
        print(f"{problem.what}\n  hint: {problem.hint}")
    if not found:
        print(f"{args.strategy} fits: {len(variables)} parameters, {ranks} of {devices} devices")
    return 1 if found else 0


def run_compare(args: argparse.Namespace) -> int:
    """Print one line per strategy, the fastest first."""
    variables, resources, compute = _situation(args)
    found = compare(args.strategy or CANDIDATES, variables, resources, compute)
    # List every requested name; of the candidates of auto, one of equal ones.
    names = [_requested(c) if args.strategy else c.builder for c in found]
    width = max(len("builder"), *map(len, names))
    heads = f"{'ms a step':>10}  {'waiting':>10}  {'all send':>16}  {'most of a rank':>16}"
    print(f"{'builder':{width}}  {heads}")
    for name, candidate in zip(names, found, strict=True):
        sent = candidate.prediction.bytes_by_rank
        print(
            f"{name:{width}}  {_milli(candidate.simulation.seconds):>10}  "
            f"{_milli(candidate.simulation.exposed):>10}  {sent.sum():16,.0f}  {sent.max():16,.0f}"
        )
    return 0


def _requested(candidate: Candidate) -> str:
    """Return the names of a requested strategy, and the choice of auto."""
    names = dict.fromkeys((candidate.builder, *candidate.same))
    taken = {"auto": f"auto: {candidate.strategy.builder}"}
    return ", ".join(taken.get(name, name) for name in names)
