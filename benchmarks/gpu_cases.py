"""The cases of the GPU program, in groups, with the runners of each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.workloads import Case

SST = Case("tree-lstm", 256, 256, batches=8)
TREE_FC = Case("tree-fc", 512, 64, batches=4, embedding=512)
FIXED = Case("fixed-lstm", 512, 64, batches=8, embedding=512, classes=8)
VAR = replace(FIXED, workload="var-lstm")
HIDDEN = (64, 128, 256, 512, 1024)
BATCH_SIZES = (1, 4, 16, 64, 256)


@dataclass(frozen=True)
class Group:
    """Cases of one question; ratios are relative to the first runner.

    bounded: it has a bound to hold, and is measured first. optional: may be left out for want of
    time.
    """

    name: str
    cases: tuple[Case, ...]
    runners: tuple[str, ...]
    bounded: bool = False
    optional: bool = False


def precisions(device: str) -> list[str]:
    return ["fp32"] if device == "cpu" else ["fp32", "tf32", "bf16"]


def small(case: Case) -> Case:
    """Return the same workload in a small size."""
    size = min(case.batch_size, 4)
    hidden = {256: 8, 512: 12}.get(case.hidden, 10)
    width = hidden if case.embedding == case.hidden else 6
    return replace(
        case, hidden=hidden, embedding=width, batch_size=size, batches=2, leaves=8, length=6,
        vocabulary=50,
    )  # fmt: skip


def _batches(case: Case) -> Case:
    """Return a number of batches for which a pass is long enough."""
    return replace(case, batches=32 if case.batch_size < 64 else 8)


def groups(device: str, data: str, full: bool, tiny: bool) -> list[Group]:
    """Return all groups in order of importance: a run that is short of time leaves out the last."""
    from benchmarks.runners_cavs import SWITCHES
    from cavs.compiler.pipeline import default_passes

    def there(*cases: Case, precision: str = "fp32") -> tuple[Case, ...]:
        found = [replace(c, device=device, data=data, precision=precision) for c in cases]
        return tuple(small(c) if tiny else c for c in found)

    low = precisions(device)[1:]
    walked = () if device == "cpu" else ("cavs-without-launches-by-task",)
    batched = ("cavs", *walked, "hand", "hand-graph", "manual-graph", "floor-torch")
    by_cudnn = () if device == "cpu" else ("cavs-cudnn",)
    made = [
        Group("sst", there(SST), batched, bounded=True),
        Group("tree-fc", there(TREE_FC, precision=(low or ["fp32"])[0]), batched, bounded=True),
        Group(
            "fixed-lstm",
            there(FIXED) + tuple(c for p in low[:1] for c in there(FIXED, precision=p)),
            ("cavs", *walked, *by_cudnn, "padded", "hand-graph", "manual-graph", "floor-torch"),
            bounded=True,
        ),
        Group("naive", there(replace(SST, batch_size=64)), ("cavs", "naive")),
        Group(
            "precision",
            tuple(c for p in low for c in there(SST, precision=p)),
            ("cavs", "hand", "hand-graph", "floor-torch"),
        ),
        Group("inference", there(replace(SST, training=False)), batched),
        Group(
            "var-lstm",
            there(VAR),
            ("cavs", *walked, *by_cudnn, "padded", "packed", "manual-graph", "floor-torch"),
        ),
    ]
    names = [name for name, on in vars(default_passes(device)).items() if on]
    if device != "cpu":
        names = [*SWITCHES, *names]
    off = [f"cavs-without-{name}" for name in (names[:2] if tiny else names)]
    made.append(Group("ablation", there(replace(SST, batch_size=64)), ("cavs", *off)))
    if device != "cpu":
        switched = ("cavs", "cavs-without-graphs", "cavs-without-single-launches")
        again = there(FIXED) + there(TREE_FC, precision=low[0])
        made.append(Group("graphs", again, switched))
    grid = [(h, n) for h in HIDDEN for n in BATCH_SIZES if (h, n) != (256, 256)]  # measured above
    few = [(h, n) for h, n in grid if h in (64, 256, 1024) and n != 4 and (h == 256 or n == 64)]
    rest = [point for point in grid if point not in few]
    for name, points in (("sweep", few), ("sweep-rest", rest)):
        cases = [_batches(replace(SST, hidden=h, batch_size=n)) for h, n in points]
        if full:
            cases += [replace(case, training=False) for case in cases]
        if tiny:
            cases = cases[:1]
        runners = ("cavs", *walked, "hand", "hand-graph", "floor-torch")
        made.append(Group(name, there(*cases), runners, optional=name == "sweep-rest" and not full))
    if full and low:
        others = (TREE_FC, VAR)
        cases = tuple(c for p in ("fp32", *low) for c in there(*others, precision=p))
        made.append(Group("others", cases, ("cavs", "hand", "hand-graph", "floor-torch")))
    return [group for group in made if group.cases]
