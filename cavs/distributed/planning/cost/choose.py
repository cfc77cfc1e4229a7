"""From what a user writes after ``--strategy`` to a strategy; ``auto`` takes the cheapest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.planning.builders import build
from cavs.distributed.planning.cost.predict import Prediction, predict
from cavs.distributed.planning.cost.simulate import Compute, Simulation, simulate
from cavs.distributed.strategy import Strategy, Variable, load
from cavs.distributed.strategy.verify import verify
from cavs.distributed.sync.operation import NO_LOAD, Load
from cavs.errors import ConfigError

# Synchronous and exact: what else changes is time alone. Chunks differ in overlap and latency.
CANDIDATES = (
    "Buckets",
    "AllReduce",
    "AllReduce(chunk=32)",
    "AllReduce(chunk=8)",
    "AllReduce(chunk=4)",
    "AllReduce(chunk=2)",
    "AllReduce(chunk=1)",
    "Horovod",
    "PartitionedAR",
    "Parallax",
    "Parallax(chunk=8)",
    "Parallax(chunk=1)",
    "Poseidon",
    "Poseidon(local_replication=True)",
    "Poseidon(otherwise='all_reduce')",
    "PSLoadBalancing",
    "PSLoadBalancing(local_replication=True)",
    "PartitionedPS",
    "PartitionedPS(local_replication=True)",
    "UnevenPartitionedPS",
    "UnevenPartitionedPS(local_replication=True)",
    "BytePS",
    "PS",
)


@dataclass(frozen=True)
class Candidate:
    """A strategy with what the cost model and the simulation say of it.

    builder: what it was asked for by. same: what else made the same strategy.
    """

    builder: str
    strategy: Strategy
    prediction: Prediction
    simulation: Simulation
    same: tuple[str, ...] = ()


def compare(
    names: Sequence[str],
    variables: Sequence[Variable],
    resources: ResourceSpec,
    compute: Compute | None = None,
    load: Load = NO_LOAD,
) -> list[Candidate]:
    """What each of `names` makes, the fastest by simulation first; equal ones by less traffic.

    names: as `make_strategy` takes them. Of those that make the same strategy, the first is kept.
    """
    compute = compute or Compute()
    found: dict[str, Candidate] = {}
    for name in names:
        strategy = make_strategy(name, variables, resources, compute, load)
        known = found.get(strategy.digest)
        if known is not None:
            found[strategy.digest] = replace(known, same=(*known.same, name))
            continue
        prediction = predict(strategy, variables, resources, compute=compute.seconds, load=load)
        simulation = simulate(strategy, variables, resources, compute, load)
        found[strategy.digest] = Candidate(name, strategy, prediction, simulation)
    return sorted(
        found.values(),
        key=lambda c: (c.simulation.seconds, c.prediction.sync_seconds, c.prediction.total_bytes),
    )


def make_strategy(
    text: str,
    variables: Sequence[Variable],
    resources: ResourceSpec,
    compute: Compute | None = None,
    load_of_step: Load = NO_LOAD,
) -> Strategy:
    """The verified strategy that `text` names: ``auto``, a builder, or a ``.json`` file.

    Raises `ConfigError`.
    """
    if text == "auto":
        if not variables:
            raise ConfigError(
                "the model has no trainable parameter", hint="there is nothing to share"
            )
        return compare(CANDIDATES, variables, resources, compute, load_of_step)[0].strategy
    if is_file(text):
        strategy = load(text)
        # As in the run: where the program at hand has no factors, the matrix is all-reduced.
        matrices = [v for v in variables if len(v.shape) == 2 and v.factors is None]
        known = [replace(v, factors=0.0) if v in matrices else v for v in variables]
        try:
            verify(strategy, known, resources)
        except ConfigError as error:
            raise ConfigError(f"{text}: {error.what}", hint=error.hint) from None
        return strategy
    return build(text, variables, resources)


def is_file(text: str) -> bool:
    """Whether `text` names a strategy that was saved, not who makes one."""
    return text.endswith(".json")
