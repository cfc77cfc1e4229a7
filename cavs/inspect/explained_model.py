"""The vertex functions of a model as their sources, and the tasks of a batch by kind."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

from cavs.compiler.program import Program
from cavs.frontend.model import Model
from cavs.frontend.parameter import Module
from cavs.frontend.typed import functions_of, name_of
from cavs.frontend.vertex import VertexFunction
from cavs.inspect.loop_report import LoopReport
from cavs.passes.specialise import Kind


@dataclass(frozen=True)
class FunctionReport:
    """A vertex function. cells: of the model, which run it. source: "" where Python has none."""

    name: str
    cells: tuple[str, ...]
    where: str
    source: str


@dataclass(frozen=True)
class KindReport:
    """A kind of vertices of a batch, in words. looped: its tasks run in a loop."""

    text: str
    structure: str
    vertices: int
    looped: bool


@dataclass(frozen=True)
class TaskReport:
    """A task: vertices of one kind. level: or its number, where a policy orders tasks."""

    kind: int
    level: int
    vertices: int
    edges: int


def functions_in(model: Model) -> tuple[FunctionReport, ...]:
    """Return the vertex functions of a model, each once for all cells of its class."""
    cells: dict[type, list[str]] = {}
    found: dict[type, VertexFunction] = {}
    for name, cell in _cells(model, "", set()):
        cells.setdefault(type(cell), []).append(name)
        found.setdefault(type(cell), cell)
    reports = []
    for cls, cell in found.items():
        for vertex_type, function in functions_of(cell, VertexFunction).items():
            where, source = _source(function)
            name = name_of(cls.__name__, vertex_type, function)
            reports.append(FunctionReport(name, tuple(cells[cls]), where, source))
    return tuple(reports)


def _cells(module: Module, prefix: str, seen: set[int]) -> Iterator[tuple[str, VertexFunction]]:
    for name, child in module.children():
        if not isinstance(child, Module) or id(child) in seen:
            continue
        seen.add(id(child))
        if isinstance(child, VertexFunction):
            yield prefix + name, child
        yield from _cells(child, f"{prefix}{name}.", seen)


def _source(function: Any) -> tuple[str, str]:
    """Return the line where a function begins, as ``file.py:12``, and its source; "" for none."""
    try:
        lines, first = inspect.getsourcelines(function)
        file = os.path.basename(inspect.getsourcefile(function) or "")
    except (OSError, TypeError):  # typed at a prompt, or written in C
        return "", ""
    return f"{file}:{first}", dedent("".join(lines)).rstrip()


def kinds_and_tasks(
    program: Program, schedule: Any, loops: tuple[LoopReport, ...]
) -> tuple[tuple[KindReport, ...], tuple[TaskReport, ...]]:
    """Return the kinds of vertices of a batch, and its tasks in the order they run."""
    names = program.optional, program.types, program.structures.names
    looped = {key for loop in loops for key in loop.keys}
    kinds = []
    for number, (begin, end), _ in schedule.kinds:
        kind = Kind.of(number, *names)
        text = kind.text(program.optional)
        kinds.append(KindReport(text, kind.structure, int(end - begin), number in looped))
    tasks = (
        TaskReport(int(kind), int(level), int(rows[1] - rows[0]), int(edges[1] - edges[0]))
        for kind, level, rows, edges in schedule.tasks
    )
    return tuple(kinds), tuple(tasks)
