"""The builder ``auto``, which compares others by simulation, and strategies by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.planning.builders import REGISTRY, Builder, build, find, register
from cavs.distributed.planning.compute import Compute
from cavs.distributed.planning.cost import Prediction, Simulation, predict, simulate
from cavs.distributed.strategy import Strategy, Variable, load
from cavs.distributed.strategy.verify import verify
from cavs.distributed.sync.operation import NO_LOAD, Load
from cavs.errors import ConfigError

# Synchronous and exact, so that they differ in time alone; chunks in overlap and latency.
CANDIDATES = (
    "Buckets",
    "AllReduce",
    *(f"AllReduce(chunk={chunk})" for chunk in (32, 8, 4, 2, 1)),
    "Horovod",
    "PartitionedAR",
    *("Parallax", "Parallax(chunk=8)", "Parallax(chunk=1)"),
    *("Poseidon", "Poseidon(local_replication=True)", "Poseidon(otherwise='all_reduce')"),
    *(
        f"{name}{options}"
        for name in ("PSLoadBalancing", "PartitionedPS", "UnevenPartitionedPS")
        for options in ("", "(local_replication=True)")
    ),
    "BytePS",
    "PS",
)


@dataclass(frozen=True)
class Auto(Builder):
    """The fastest of `CANDIDATES` by simulation."""

    measures: ClassVar[bool] = True
    compute: Compute = field(default_factory=Compute)
    load: Load = NO_LOAD

    def __str__(self) -> str:
        return "auto"

    def informed(self, compute: Compute, load: Load) -> Auto:
        return replace(self, compute=compute, load=load)

    def build(self, variables: Sequence[Variable], resources: ResourceSpec) -> Strategy:
        return compare(CANDIDATES, variables, resources, self.compute, self.load)[0].strategy


register(Auto, "auto")


@dataclass(frozen=True)
class Candidate:
    """A strategy, its prediction by the cost model, and its simulation.

    builder: the name that it was requested by. same: other names for the same strategy.
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
    """Return the strategies of `names`, the fastest by simulation first; equal ones by traffic.

    names: as `make_strategy` takes them. If several give the same strategy, the first is kept.
    """
    compute = compute or Compute()
    found: dict[str, Candidate] = {}
    for name in names:
        strategy = make_strategy(name, variables, resources, compute, load)
        if known := found.get(strategy.digest):
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
    """Return the verified strategy that `text` names: a builder, or a ``.json`` file.

    Raises `ConfigError`.
    """
    if not is_file(text):
        return build(find(text).informed(compute or Compute(), load_of_step), variables, resources)
    strategy = load(text)
    # As in the run: a matrix whose gradient has no factors in this program is all-reduced.
    matrices = [v for v in variables if len(v.shape) == 2 and v.factors is None]
    known = [replace(v, factors=0.0) if v in matrices else v for v in variables]
    try:
        verify(strategy, known, resources)
    except ConfigError as error:
        raise ConfigError(f"{text}: {error.what}", hint=error.hint) from None
    return strategy


def is_file(text: str) -> bool:
    """True if `text` names a file of a strategy, False if it names a builder."""
    return text.endswith(".json")


def measures(text: str) -> bool:
    """True if `text` names a builder that decides by measurements, such as ``auto``."""
    return text in REGISTRY and REGISTRY[text].measures
