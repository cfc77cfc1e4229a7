"""The result of a training in which a rank was killed, compared with undisturbed trainings.

With a synchronous strategy, losses and parameters must equal those of an undisturbed run except for
rounding. With stale parameters no two runs are equal: several runs, with all ranks and with one
less, then tell how far two runs may differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

EQUAL = 1e-8  # relative difference to the undisturbed run, in float64: the order of sums differs
LIKELY = 4.0  # deviation of a loss from the mean of undisturbed runs, in standard deviations
STILL = 10.0  # seconds for survivors to notice a death, agree and make a step
ALIKE = 2.0  # distance of parameters to the mean, over that of the furthest undisturbed run


@dataclass
class FinishedRun:
    """One run: exit status, errors, and the results of each rank that finished."""

    status: int
    errors: str
    results: dict[int, dict[str, Any]]
    values: dict[int, dict[str, Any]]
    checkpoint: int
    still: float | None = None  # seconds from the kill to the end of the others' next step

    @property
    def is_stale(self) -> bool:
        """True if the order in which gradients are applied differs between runs."""
        return bool(self.results[0]["stale"])


def compare(ended: FinishedRun, calm: Sequence[FinishedRun], ranks: int) -> dict[str, Any]:
    """Return distances and faults of a disturbed run, compared with ``calm`` ones."""
    found = _unfinished(ended, calm[0].results[0], ranks)
    said, losses, distance = (_likely if calm[0].is_stale else _equal)(ended, calm)
    return {"losses": losses, "distance": distance, "faults": found + said}


def _unfinished(ended: FinishedRun, expected: dict[str, Any], ranks: int) -> list[str]:
    found = []
    if len(ended.results) != ranks - 1:
        found.append(f"{len(ended.results)} of {ranks} ranks finished")
    for r, result in ended.results.items():
        if result["steps"] != expected["steps"]:
            found.append(f"rank {r} made {result['steps']} of {expected['steps']} steps")
        if sorted(result["seen"]) != sorted(expected["seen"]):
            found.append(f"rank {r} saw other graphs")
    if ended.status != 0:
        found.append(f"it ended with status {ended.status}")
    if ended.still is not None and not ended.still <= STILL:
        found.append(f"the survivors paused for {ended.still:.1f} s")
    if ended.checkpoint != expected["steps"]:
        found.append(f"the last checkpoint is of step {ended.checkpoint}")
    return found


def _equal(ended: FinishedRun, calm: Sequence[FinishedRun]) -> tuple[list[str], float, float]:
    """Compare with the undisturbed run up to rounding; return the largest distances."""
    expected, values = calm[0].results[0], calm[0].values[0]
    away, distances, said = [0.0], [0.0], []
    for r, result in ended.results.items():
        for series in ("losses", "dev"):
            if len(result[series]) != len(expected[series]):
                said.append(
                    f"rank {r} has {len(result[series])} of {len(expected[series])} {series}"
                )
            else:
                away += np.abs(
                    np.subtract(result[series], expected[series]) / expected[series]
                ).tolist()
        distances += [_distance(value, values[name]) for name, value in ended.values[r].items()]
    losses, distance = float(np.max(away)), float(np.max(distances))  # NaN if one is
    if not (losses <= EQUAL and distance <= EQUAL):
        said.append(f"losses {losses:.1e}, parameters {distance:.1e} from the calm run")
    return said, losses, distance


def _likely(ended: FinishedRun, calm: Sequence[FinishedRun]) -> tuple[list[str], float, float]:
    """Compare with the noise of undisturbed runs; all ranks must agree.

    Return the distances from the mean of the runs: the largest relative one of losses of the
    evaluations, and that of parameters.
    """
    said = []
    runs = np.array([c.results[0]["dev"] for c in calm])
    mean, spread = runs.mean(axis=0), runs.std(axis=0, ddof=1)
    spread = np.maximum(spread, np.sqrt(np.mean(spread**2)))  # few runs may be close by chance
    centre = {n: np.mean([c.values[0][n] for c in calm], axis=0) for n in calm[0].values[0]}
    furthest = {
        n: max(_distance(c.values[0][n], value) for c in calm) for n, value in centre.items()
    }
    losses, distances = 0.0, {"": 0.0}
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
        distances = {
            name: _distance(value, centre[name]) for name, value in ended.values[r].items()
        }
        for name, distance in distances.items():
            if not distance <= ALIKE * furthest[name]:
                most = f"of calm runs {furthest[name]:.1e} at most"
                said.append(f"{name} is {distance:.1e} away, {most}")
    return said, losses, float(np.max(list(distances.values())))


def _distance(a: Any, b: Any) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))
