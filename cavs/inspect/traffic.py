"""Bytes that instructions move: states through edges by gather and scatter, and the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cavs.compiler.program import Program
from cavs.runtime.space_rows import BatchRows, rows_of


@dataclass(frozen=True)
class InstructionReport:
    """Bytes of one instruction in one run.

    gather: of states, or their cotangents, read through the edges of the graphs. scatter: written
    to the rows that gather reads. other_reads: through other indices, such as lookups; operands
    that are read row by row are not counted. other_writes: everything else that is written, also
    values that stay in a cache. seconds: summed over threads; 0 on a device, which times stages.
    """

    label: str
    kind: str
    gather: int
    scatter: int
    other_reads: int
    other_writes: int
    seconds: float = 0.0

    @property
    def total(self) -> int:
        """All bytes that are counted."""
        return self.gather + self.scatter + self.other_reads + self.other_writes


def traffic_of(
    program: Program,
    rows: BatchRows,
    counted: list[dict[str, Any]],
    size: int,
) -> tuple[InstructionReport, ...]:
    """Return what the engine ``counted`` for each instruction; ``size``: bytes of a number."""
    found = []
    for i, line in zip(program.instructions, counted, strict=True):
        scatter = rows_of(program, rows, i.space) * i.scatters * size if i.scatters else 0
        found.append(
            InstructionReport(
                line["label"],
                line["kind"],
                line["gather_bytes"],
                scatter,
                line["indexed_bytes"] - line["gather_bytes"],
                line["write_bytes"] - scatter,
                line["seconds"],
            )
        )
    return tuple(found)
