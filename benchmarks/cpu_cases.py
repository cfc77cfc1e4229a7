"""The cases of the CPU program, each with its bound."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.batching import base_case
from benchmarks.gpu_cases import small
from benchmarks.workloads import WORKLOADS, Case

# Rivals, of which the fastest counts, and the bound on its time over that of cavs, or None.
Need = tuple[tuple[str, ...], float | None]

SST = Case("tree-lstm", 150, 64, threads=2)
TREE_FC = Case("tree-fc", 512, 64, embedding=512)
MANUAL = ("manual", "manual-compile")
A_TREE = 150e-6  # seconds for one tree, its preparation included
SECOND_CORE = 1.7  # speed-up over one core, in batches of 64 at 512 hidden units
NOISE = 0.03  # a ratio of two equal times may be off by this
BATCHES = 5.0  # speed-up over one tree at a time, at 150 hidden units
SHARE = 0.05  # collation and schedule, over a training step
RATE = 10e6  # vertices a second, prepared on one thread
LINEAR = 0.1  # deviation of memory from four times that of a quarter of the vertices
PEAK = 1.5  # peak memory over the values that backward reads


@dataclass(frozen=True)
class Against:
    """A case on which rivals take turns with cavs. what: its line in the table."""

    part: str
    what: str
    case: Case
    needs: tuple[Need, ...]
    rounds: int = 9

    @property
    def runners(self) -> tuple[str, ...]:
        """Runners; ratios are relative to the first."""
        return "cavs", *(name for names, _ in self.needs for name in names)


def against(data: str, quick: bool) -> list[Against]:
    """Return the comparisons in the order of the table."""
    h512 = replace(SST, hidden=512)
    inference = replace(SST, training=False)
    lstm = replace(base_case("var-lstm", 256, True, data), batch_size=64, threads=2)
    tree = replace(inference, batch_size=1, batches=32)
    sst = "SST against PyTorch"
    one = "one tree at a time"
    alone = "the recurrence alone"
    shares = "share of the floor"
    recursion = "against the recursion"
    made = [
        Against("training", sst, SST, ((("hand",), 3.0), (MANUAL, 2.5))),
        Against("training", sst, h512, ((("hand",), 3.5), (MANUAL, 3.0))),
        Against("inference", sst, inference, ((("hand",), 2.0),)),
        Against("inference", sst, replace(inference, hidden=512), ((("hand",), 1.8),)),
        Against("one-tree", one, replace(tree, threads=1), ((("hand",), 3.0),)),
        Against("one-tree", one, tree, ((("hand",), 3.0),)),
        # Checked on two threads, as other rivals, although it uses one.
        Against("naive", recursion, replace(SST, batches=1), ((("naive",), 40.0),), 5),
        Against("naive", recursion, replace(SST, batches=1, threads=1), ((("naive",), None),), 5),
        Against("floor", shares, replace(SST, threads=1), ((("floor",), 0.6),)),
        Against("floor", shares, replace(h512, threads=1), ((("floor",), 0.85),)),
        Against("floor", shares, TREE_FC, ((("floor",), 0.85),)),
        *(
            Against(
                "lstm",
                alone,
                replace(lstm, hidden=hidden, embedding=hidden),
                ((("padded", "packed"), 2.0), (("hand",), 1.3)),
            )
            for hidden in (256, 512)
        ),
    ]
    made = [replace(a, case=replace(a.case, data=data)) for a in made]
    return [_quick(a) for a in made] if quick else made


def _quick(a: Against) -> Against:
    """Return a small case, without torch.compile, which takes longer than all others."""
    needs = tuple((tuple(n for n in names if n != MANUAL[1]), least) for names, least in a.needs)
    return replace(a, case=small(a.case), needs=needs, rounds=1)


@dataclass(frozen=True)
class Batching:
    """Batches of two sizes on one thread and two, with bounds on the speed-ups, or None."""

    case: Case
    sizes: tuple[int, ...]
    samples: int
    batches: float | None
    second_core: float | None
    rounds: int = 25


def batching(data: str, quick: bool) -> list[Batching]:
    """Return the cases; passes are shorter where steps are long."""
    made = []
    for workload in ("tree-lstm", "var-lstm"):
        for training in (True, False):
            for hidden in (150, 256, 512):
                asked = workload == "tree-lstm" and training and hidden == 150
                worth = BATCHES if asked else None
                core = SECOND_CORE if hidden == 512 else None
                case = base_case(workload, hidden, training, data)
                many = 128 if hidden == 512 else 256
                made.append(Batching(case, (1, 64), many, worth, core))
    if quick:
        made = [replace(b, case=small(b.case), sizes=(1, 4), samples=4, rounds=1) for b in made]
    return made


def preparation(data: str, quick: bool) -> list[Case]:
    """Return cases with the step on one thread and on two, where preparation is a larger share."""
    sst = Case("tree-lstm", 128, 32, batches=8, data=data)
    made = [
        replace(case, threads=threads)
        for case in (sst, replace(sst, workload="tree-fc", embedding=128))
        for threads in (1, 2)
    ]
    return [small(case) for case in made] if quick else made


def growth(quick: bool) -> list[tuple[str, int]]:
    """Return shapes of one graph and numbers of vertices."""
    sizes = (2_000, 8_000) if quick else (250_000, 1_000_000)
    return [("chain", 5_000), *((shape, n) for shape in ("chain", "tree") for n in sizes)]


def memory(data: str, quick: bool) -> list[Case]:
    """Return a batch of each workload."""
    made = [
        replace(base_case(workload, 150, True, data), batch_size=64, batches=1)
        for workload in WORKLOADS
    ]
    return [small(case) for case in made] if quick else made
