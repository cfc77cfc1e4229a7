"""Report the batch tasks of a program's loops over a schedule: number, widths, lower bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cavs.compiler.program import Program, Stage


@dataclass(frozen=True)
class LoopReport:
    """The tasks of one loop that have work in it.

    stage: its number. gradient: a loop of cotangents. levels and widths: level and number of
    vertices of every task. bound: no policy of batching needs fewer tasks. keys: of the kinds with
    work in it, see `cavs.passes.specialise.Kind`.
    """

    label: str
    stage: int
    gradient: bool
    levels: tuple[int, ...]
    widths: tuple[int, ...]
    bound: int
    keys: tuple[int, ...]

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(self.widths)


def loops_of(program: Program, schedule: Any) -> tuple[LoopReport, ...]:
    """Return the loops of ``program`` over ``schedule``, in the order they run."""
    loops = ((n, s) for n, s in enumerate(program.stages) if s.type == "loop")
    return tuple(_loop(program, schedule, n, s) for n, s in loops)


def _loop(program: Program, schedule: Any, number: int, stage: Stage) -> LoopReport:
    keys = [key for key, _, _ in schedule.kinds]
    working = {i for i, key in enumerate(keys) if stage.bodies[program.kinds.index(key)]}
    tasks = [t for t in schedule.tasks if t[0] in working]
    return LoopReport(
        stage.label,
        number,
        stage.gradient,
        tuple(int(level) for _, level, _, _ in tasks),
        tuple(int(end - begin) for _, _, (begin, end), _ in tasks),
        schedule.fewest_tasks(working),
        tuple(int(keys[i]) for i in sorted(working)),
    )
