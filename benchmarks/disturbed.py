"""What came of a training in which a rank was killed, beside trainings that nobody disturbed.

With a synchronous strategy losses and parameters must be those of the undisturbed one but for
rounding. Where parameters are stale no two runs are equal: then several, with all ranks and with
those that a death leaves, say how far apart runs may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

EQUAL = 1e-8  # of the undisturbed run, relative, in float64: other numbers of ranks round otherwise
LIKELY = 4.0  # standard deviations of undisturbed runs that a loss may be away from their mean
STILL = 10.0  # seconds that the others may stand still, to notice a death, meet and make a step
ALIKE = 2.0  # times as far from their mean as the furthest of them parameters may be


@dataclass
class Ended:
    """One run: what each rank that came to the end has, and what was said on the way."""

    status: int
    errors: str
    results: dict[int, dict[str, Any]]
    values: dict[int, dict[str, Any]]
    checkpoint: int
    still: float | None = None  # seconds from the kill to the end of the others' next step

    @property
    def is_stale(self) -> bool:
        """Whether ranks apply gradients in an order that no two runs have alike."""
        return bool(self.results[0]["stale"])


def judge(ended: Ended, calm: Sequence[Ended], ranks: int) -> dict[str, Any]:
    """What came of a disturbed run; faults: what does not hold. calm: undisturbed ones."""
    found = _unfinished(ended, calm[0].results[0], ranks)
    said, losses, distance = (_likely if calm[0].is_stale else _equal)(ended, calm)
    return {"losses": losses, "distance": distance, "faults": found + said}


def _unfinished(ended: Ended, expected: dict[str, Any], ranks: int) -> list[str]:
    found = []
    if len(ended.results) != ranks - 1:
        found.append(f"{len(ended.results)} of {ranks} ranks came to the end")
    for r, result in ended.results.items():
        if result["steps"] != expected["steps"]:
            found.append(f"rank {r} made {result['steps']} of {expected['steps']} steps")
        if sorted(result["seen"]) != sorted(expected["seen"]):
            found.append(f"rank {r} saw other graphs")
    if ended.status != 0:
        found.append(f"it ended with status {ended.status}")
    if ended.still is not None and not ended.still <= STILL:
        found.append(f"the others stood still for {ended.still:.1f} s")
    if ended.checkpoint != expected["steps"]:
        found.append(f"the last checkpoint is of step {ended.checkpoint}")
    return found


def _equal(ended: Ended, calm: Sequence[Ended]) -> tuple[list[str], float, float]:
    """As the undisturbed run but for rounding; largest relative distances from it."""
    expected, values = calm[0].results[0], calm[0].values[0]
    away, apart, said = [0.0], [0.0], []
    for r, result in ended.results.items():
        for kind in ("losses", "dev"):
            if len(result[kind]) != len(expected[kind]):
                said.append(f"rank {r} has {len(result[kind])} of {len(expected[kind])} {kind}")
            else:
                away += np.abs(np.subtract(result[kind], expected[kind]) / expected[kind]).tolist()
        apart += [_apart(value, values[name]) for name, value in ended.values[r].items()]
    losses, distance = float(np.max(away)), float(np.max(apart))  # NaN if one is
    if not (losses <= EQUAL and distance <= EQUAL):
        said.append(f"losses {losses:.1e}, parameters {distance:.1e} from the calm run")
    return said, losses, distance


def _likely(ended: Ended, calm: Sequence[Ended]) -> tuple[list[str], float, float]:
    """Within the noise of undisturbed runs, and the same on all ranks; distances from their mean.

    losses: of the evaluations, relative, the largest.
    """
    said = []
    runs = np.array([c.results[0]["dev"] for c in calm])
    mean, spread = runs.mean(axis=0), runs.std(axis=0, ddof=1)
    spread = np.maximum(spread, np.sqrt(np.mean(spread**2)))  # few runs may be near by chance
    centre = {n: np.mean([c.values[0][n] for c in calm], axis=0) for n in calm[0].values[0]}
    furthest = {n: max(_apart(c.values[0][n], value) for c in calm) for n, value in centre.items()}
    losses, apart = 0.0, {"": 0.0}
    ranks = list(ended.results)
    for r in ranks:
        if ended.results[r]["dev"] != ended.results[ranks[0]]["dev"]:
            said.append(f"rank {r} found other losses in evaluations than rank {ranks[0]}")
        for name, value in ended.values[r].items():
            if value.tobytes() != ended.values[ranks[0]][name].tobytes():
                said.append(f"rank {r} ended with another {name} than rank {ranks[0]}")
    for r in ranks[:1]:
        away = np.subtract(ended.results[r]["dev"], mean)
        losses = float(np.abs(away / mean).max())
        if not np.abs(away / spread).max() <= LIKELY:
            said.append(f"losses {np.abs(away / spread).max():.1f} standard deviations away")
        apart = {name: _apart(value, centre[name]) for name, value in ended.values[r].items()}
        for name, distance in apart.items():
            if not distance <= ALIKE * furthest[name]:
                most = f"of calm runs {furthest[name]:.1e} at most"
                said.append(f"{name} is {distance:.1e} away, {most}")
    return said, losses, float(np.max(list(apart.values())))


def _apart(a: Any, b: Any) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))
