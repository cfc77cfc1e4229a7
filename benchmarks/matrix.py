"""Every strategy builder with every compressor, trained on MPI ranks: bytes, agreement, equality.

A binary Tree-LSTM is trained with a table of word vectors (a sparse gradient) and without one. Each
case that verification admits runs its steps; what the ranks sent is held against the formula of the
cost model, parameters must have the same bits on all ranks, and without a compressor they must be
those of one process, on made-up trees or on those of SST. Times are not measured.

All of it travels in messages, whose bytes are counted as they are sent. Dense gradients that ranks
of one host sum in common memory, as they do elsewhere and with `--common-memory`, send none: what
is reported of them is the formula.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np

import cavs
from benchmarks.distributed import print_result, run_ranks
from benchmarks.harness import markdown, write_report
from benchmarks.options import at_least, builder_name, compressor_name
from benchmarks.result_paths import GridParser
from benchmarks.sentiment import Sentiment, treebank, trees
from benchmarks.workloads import missing_data
from cavs.distributed import Trainer
from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.comm import MPICommunicator
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.launch.launcher import command_of, find_mpirun
from cavs.distributed.planning.builders import build, builders_of_equal_replicas
from cavs.distributed.planning.cost import Load, bytes_by_rank
from cavs.distributed.strategy import NodeConfig, Strategy, Variable, variables_of
from cavs.distributed.strategy.variable import measured_variables
from cavs.distributed.strategy.verify import problems
from cavs.distributed.sync import FactorBroadcast

# Each builder of the registry, and options that make it send something else.
VARIANTS = (
    "AllReduce(chunk=2)",
    "PartitionedPS(local_replication=True)",
    "Poseidon(batch_size=1)",
    "Poseidon(otherwise='all_reduce')",
)
COMPRESSORS = (
    "none",
    "float16",
    "bfloat16",
    "error_feedback(float16)",
    "error_feedback(bfloat16)",
    "onebit",
    "powersgd(rank=2)",
    "topk(ratio=0.01)",
    "topk(ratio=0.01, momentum=0.5, clip=5, warm_up=50)",
)
TABLES = ("dense", "sparse")
GRAPHS, BATCHES = 16, 10  # graphs of a global batch; number of batches
BYTES = 0.05  # relative deviation of bytes sent from the formula
EQUAL = {"float32": 1e-6, "float64": 1e-12}  # relative norm of the difference to one process
OPTIMIZERS = {
    "sgd": partial(cavs.optim.SGD, lr=0.1),
    "momentum": partial(cavs.optim.SGD, lr=0.02, momentum=0.9),
    "adagrad": partial(cavs.optim.Adagrad, lr=0.05),
    "adam": partial(cavs.optim.Adam, lr=1e-3),
}
# Adagrad divides a gradient by its own size when it first comes: one that is nothing but rounding
# moves a parameter as far as any other. So in float32 ranks may be as far from one process as one
# process is from itself in float64, times this.
ROUNDING = 10


@dataclass(frozen=True)
class Case:
    """One cell of the matrix; refused: the error of verification, if any."""

    table: str
    builder: str
    compressor: str
    strategy: Strategy
    refused: str = ""


def cases(
    variables: Sequence[Variable], table: str, ranks: int, given: argparse.Namespace
) -> Iterator[Case]:
    """Return every builder with every compressor."""
    resources = ResourceSpec.local(ranks)
    for builder in given.builders:
        plain = build(builder, variables, resources)
        for compressor in given.compressors:
            strategy = _compressed(plain, variables, compressor)
            found = problems(strategy, variables, resources)
            yield Case(table, builder, compressor, strategy, found[0].what if found else "")


def _compressed(strategy: Strategy, variables: Sequence[Variable], compressor: str) -> Strategy:
    """Return the strategy with `compressor` for dense parameters; sparse gradients have none."""
    sparse = {v.name for v in variables if v.sparse}

    def with_compressor(node: NodeConfig) -> NodeConfig:
        if node.name in sparse:
            return node
        if node.shards:
            leaves = tuple(dataclasses.replace(s, compressor=compressor) for s in node.shards)
            return dataclasses.replace(node, shards=leaves)
        return dataclasses.replace(node, compressor=compressor)

    nodes = tuple(with_compressor(node) for node in strategy.nodes)
    return dataclasses.replace(strategy, nodes=nodes)


def train(trainer: Any, batches: Sequence[Any], steps: int) -> list[Any]:
    return [trainer.advance(batches[i % len(batches)]) for i in range(steps)]


def values_of(model: cavs.Model) -> dict[str, Any]:
    return {name: p.value.astype(np.float64) for name, p in model.parameters().items()}


def difference(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """Return the largest relative norm of the difference of a parameter."""
    norm = np.linalg.norm
    return float(np.max([norm(found[n] - v) / norm(v) for n, v in expected.items()]))


def load_of(trainer: Trainer, part: Any, c: Communicator) -> Load:
    """Return the rows and factor pairs of every rank in the last step on its `part`."""
    rows: dict[str, list[int]] = {}
    if "token" in part.local.feature_schema():
        token = part.local["token"]
        rows = {"embedding.weight": np.unique(token[token >= 0]).tolist()}
    names = list(trainer.parameters)
    pairs = {
        names[e.part.parameter]: len(e.executor.factors(e.part.parameter)[0])
        for e in trainer.session.exchanges
        if isinstance(e, FactorBroadcast)
    }
    every = c.share([rows, pairs])
    return Load(
        rows={name: [np.array(r[name], np.int64) for r, _ in every] for name in rows},
        factors={name: [p[name] for _, p in every] for name in pairs},
    )


def run_case(
    case: Case,
    c: Communicator,
    batches: Sequence[Any],
    expected: dict[str, Any],
    given: argparse.Namespace,
) -> dict[str, Any]:
    """Train, and return the result, which is the same on all ranks."""
    model, steps, dtype = Sentiment(case.table == "sparse"), given.steps, given.dtype
    trainer = Trainer(
        model,
        OPTIMIZERS[given.optimizer](),
        strategy=case.strategy,
        communicator=c,
        threads=1,
        dtype=np.dtype(dtype),
    )
    reports, loads = [], []
    for i in range(steps):
        reports.append(trainer.advance(batches[i % len(batches)]))
        if i < len(batches):
            loads.append(load_of(trainer, trainer.session.shard(batches[i]), c))
    variables = variables_of(model, dtype=dtype)
    formula = np.zeros(c.size)
    for i in range(steps):
        formula += bytes_by_rank(case.strategy, variables, loads[i % len(loads)], step=i)
    sent = np.zeros(c.size)
    sent[c.rank] = sum(r.sent_bytes for r in reports)
    c.all_reduce(sent)
    bits = c.share([sha256(p.value.tobytes()).hexdigest() for p in model.parameters().values()])
    found = values_of(model)
    half = min(len(batches), steps // 2)
    return {
        "sent": sent.tolist(),
        "formula": formula.tolist(),
        "off": float(sent.sum() / formula.sum() - 1),
        "worst_rank": float(np.abs(sent / formula - 1).max()),
        "same_bits": all(other == bits[0] for other in bits),
        "difference": difference(found, expected),
        "loss": [sum(r.loss for r in part) / half for part in (reports[:half], reports[-half:])],
    }


def alone(
    table: str, batches: Sequence[Any], given: argparse.Namespace, dtype: str
) -> dict[str, Any]:
    """Return the parameters of one process after the same steps."""
    model = Sentiment(table == "sparse")
    session = cavs.Session(model, dtype=np.dtype(dtype), threads=1)
    trainer = cavs.Trainer(model, OPTIMIZERS[given.optimizer](), session=session)
    train(trainer, batches, given.steps)
    return {name: p.value.copy() for name, p in model.parameters().items()}


def nearest(
    table: str, batches: Sequence[Any], expected: dict[str, Any], given: argparse.Namespace
) -> float:
    """Return the allowed difference between ranks and one process."""
    bound = EQUAL[given.dtype]
    if given.optimizer == "adagrad" and given.dtype == "float32":
        exact = alone(table, batches, given, "float64")
        bound = max(bound, ROUNDING * difference(expected, exact))
    return bound


def faults(case: Case, result: dict[str, Any], equal: float) -> list[str]:
    """Return the faults of a result. equal: allowed difference to one process."""
    found = []
    if max(abs(result["off"]), result["worst_rank"]) > BYTES:
        found.append(f"bytes {result['off']:+.1%}, at a rank {result['worst_rank']:.1%} off")
    if not result["same_bits"]:
        found.append("ranks have different parameters")
    if case.compressor == "none" and not result["difference"] <= equal:
        found.append(f"{result['difference']:.1e} from one process")
    first, last = result["loss"]
    if not last < first:
        found.append(f"the loss goes from {first:.3f} to {last:.3f}")
    return found


def measure(c: Communicator, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure on every rank."""
    if not given.common_memory:
        MPICommunicator.common_memory = lambda self, nbytes: None  # type: ignore[method-assign]
    records = []
    for table in given.tables:
        made = partial(treebank, os.path.join(given.data, "sst")) if given.data else trees
        graphs = made(GRAPHS * BATCHES, table == "sparse")
        batches = [cavs.batch(graphs[i::BATCHES]) for i in range(BATCHES)]
        expected = alone(table, batches, given, given.dtype)
        equal = nearest(table, batches, expected, given)
        if c.rank == 0:
            print(f"{table}: at most {equal:.1e} from one process", file=sys.stderr)
        variables = measured_variables(
            Sentiment(table == "sparse"), cavs.batch(batches[0].graphs[: GRAPHS // c.size])
        )
        found = list(cases(variables, table, c.size, given))
        for i, case in enumerate(found):
            record: dict[str, Any] = {
                "ranks": c.size,
                "table": table,
                "builder": case.builder,
                "compressor": case.compressor,
                "refused": case.refused,
            }
            if not case.refused:
                result = run_case(case, c, batches, expected, given)
                record |= result | {"faults": faults(case, result, equal)}
            records.append(record)
            if c.rank == 0:
                said = case.refused or "; ".join(record["faults"]) or "as it should be"
                where = f"{c.size} ranks, {table}, {i + 1} of {len(found)}"
                print(f"{where}: {case.builder} {case.compressor}: {said}", file=sys.stderr)
    return records


def show(records: Sequence[dict[str, Any]]) -> str:
    """Return tables of the cases that ran and of those that were refused."""
    headers = ["ranks", "table", "builder", "compressor", "KB a step and rank", "formula"]
    headers += ["off", "worst rank", "from one process", "faults"]
    rows = []
    for r in records:
        if r["refused"]:
            continue
        scale = 1e-3 / r["steps"] / r["ranks"]
        row = [str(r["ranks"]), r["table"], r["builder"], r["compressor"]]
        row += [f"{sum(r[k]) * scale:.2f}" for k in ("sent", "formula")]
        row += [f"{r['off']:+.2%}", f"{r['worst_rank']:.2%}", f"{r['difference']:.1e}"]
        rows.append([*row, "; ".join(r["faults"]) or "none"])
    refused = dict.fromkeys(
        (r["builder"], r["compressor"], r["refused"].partition(": ")[2] or r["refused"])
        for r in records
        if r["refused"]
    )
    return markdown(headers, rows) + (
        f"\n\n{len(refused)} combinations that verification refuses, such as "
        f"{' with '.join(next(iter(refused))[:2])}\n"
        if refused
        else ""
    )


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = GridParser("matrix", __doc__ or "")
    add = parser.add_argument
    add("--data", default="", metavar="DIR", help="holds sst/; made-up trees unless given")
    add("--ranks", type=at_least(2), nargs="+", default=[2, 4], metavar="N")
    add("--steps", type=at_least(1), default=100, metavar="N")
    add(
        "--builders",
        nargs="+",
        type=builder_name,
        default=[*builders_of_equal_replicas(), *VARIANTS],
        metavar="NAME",
    )
    add("--compressors", nargs="+", type=compressor_name, default=list(COMPRESSORS), metavar="NAME")
    add("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    add("--common-memory", action="store_true", help="where ranks have it")
    add("--dtype", choices=list(EQUAL), default="float32")
    add("--optimizer", choices=list(OPTIMIZERS), default="sgd")
    add("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if max(given.ranks) > GRAPHS:
        parser.error(f"--ranks: a global batch has {GRAPHS} graphs, one for a rank at least")
    if given.data and (missing := missing_data(["tree-lstm"], given.data)):
        parser.error(missing)
    return given


def main(arguments: list[str] | None = None) -> int:
    given = parsed(arguments)
    if given.rank:
        records = measure(MPICommunicator(), given)
        print_result(records)
        return 0
    own = list(sys.argv[1:] if arguments is None else arguments)
    records = []
    for ranks in given.ranks:
        program = ["-m", "benchmarks.matrix", "--rank", *own]
        records += run_ranks(command_of(find_mpirun(), ranks, program))
    for record in records:
        record["steps"] = given.steps
    print(show(records))
    write_report(given.out, show(records), records)
    ran = [r for r in records if not r["refused"]]
    failed = sum(bool(r["faults"]) for r in ran)
    print(f"{len(ran)} combinations ran, {failed} with faults")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
