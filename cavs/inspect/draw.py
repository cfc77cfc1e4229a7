"""Drawings of vertex functions and schedules in DOT, the language of Graphviz; pictures of DOT."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from cavs.config import is_whole
from cavs.data.batch import GraphBatch
from cavs.data.graph import Graph
from cavs.data.sample import Sample
from cavs.data.sample_batch import SampleBatch
from cavs.data.source import as_path
from cavs.errors import ConfigError, FeatureError
from cavs.frontend.batch import Feature, SymbolicBatch
from cavs.frontend.model import Model, trace_model
from cavs.frontend.typed import functions_of
from cavs.frontend.values import Pushed
from cavs.frontend.vertex import VertexFunction
from cavs.inspect.draw_graph import LAYOUT, quoted
from cavs.ir import Graph as Traced
from cavs.ir import Node
from cavs.ir.trace import tracing

Shape = int | tuple[int, ...]


def _check_one_structure(value: object, name: str, hint: str) -> None:
    """Raise ConfigError for samples of several structures, which ``name`` does not draw.

    hint: how to call it; {0} is the name of a structure.
    """
    if isinstance(value, Sample | SampleBatch):
        of = type(value).__name__
        raise ConfigError(
            f"{name} draws graphs, but this {of} has the structures {', '.join(value.graphs)}",
            hint=hint.format(next(iter(value.graphs))),
        )


def _operation(node: Node, names: Mapping[int, str], source: str) -> str:
    """Return the operation of a node, and the shape of one row of its value.

    names: of parameters, by id. source: the word for a feature.
    """
    attrs = dict(node.attrs)
    words = node.op.name
    if words == "parameter":
        words = names.get(
            id(attrs["parameter"]), words
        )  # a cell may use the parameter of another module
    elif words == "feature":
        words = f"{source} {attrs['name']}"
    elif words == "constant":
        return f"{attrs['value']:.4g}"
    elif words == "slice":
        words = f"[{attrs['start']}:{attrs['stop']}]"
    elif words == "gather":
        words = f"gather {attrs['slot'].name}"
    elif words == "gather_grad":  # top-down
        words = f"gather {attrs['slot'].name} of parents"
    elif words == "nth_child":
        words = f"child {attrs['k']}"
    return f"{words}\n{list(node.shape)} {node.type.domain}"


def _features(batch: GraphBatch | Graph) -> dict[str, Feature]:
    """Return the features that a model is traced with for such a batch."""
    found = batch if isinstance(batch, GraphBatch) else GraphBatch([batch])
    return {
        name: Feature(s.domain, s.dtype, s.shape, s.has_absent, s.type)
        for name, s in found.feature_schema().items()
    }


def _traced_cell(
    cell: VertexFunction, known: Mapping[str, Feature], inputs: Mapping[str, Shape]
) -> Traced:
    """Trace a cell by itself, trying each of ``inputs`` as a feature of vertices and of edges."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in inputs.items():
        shapes[name] = (shape,) if isinstance(shape, int) else tuple(shape)
        if not all(is_whole(size) and size >= 1 for size in shapes[name]):
            raise ConfigError(
                f"{name}={shape!r} is no shape of a row", hint=f"give its sizes: {name}=(3,)"
            )
    first: FeatureError | None = None
    for domains in product(("vertex", "edge"), repeat=len(shapes)):
        pairs = zip(shapes, domains, strict=True)
        given = {name: Feature(domain, "float", shapes[name]) for name, domain in pairs}
        schema = {**known, **given}
        try:
            with tracing(False) as trace:
                batch = SymbolicBatch(schema)
                every = {name: batch[name] for name, f in schema.items() if not f.type}
                of_cell = functions_of(cell, VertexFunction)
                types = {f.type for f in schema.values()}.intersection(of_cell)
                every |= {name: batch[name] for name in types}
                pushed, _ = cell._over(batch.graph, None, every, offered=known)
                values = pushed._values if isinstance(pushed, Pushed) else {"output": pushed}
                return Traced(dict(values), dict(trace.slots))
        except FeatureError as error:
            first = first or error
    assert first is not None
    raise FeatureError(
        first.what,
        where=first.where,
        hint="give the row shape of every input that the cell pulls, dot_function(cell, x=(3,)), "
        "or a batch that has them",
    )


def dot_function(
    function: Model | VertexFunction, batch: GraphBatch | Graph | None = None, **inputs: Shape
) -> str:
    """Return a model with its vertex functions, or one vertex function, as DOT text.

    Values flow along arrows, each with the shape and the domain of its rows; parameters are round.
    A dashed arrow leads from a scatter to the gather of the parents, or of the children where a
    cell runs top-down. ``batch`` tells the features. A vertex function takes the row shapes of its
    inputs, instead of a batch or in addition: ``dot_function(cell, x=(3,))``. Raises the errors of
    tracing, and ConfigError for anything but a model or a vertex function.
    """
    if not isinstance(function, Model | VertexFunction):
        raise ConfigError(
            f"dot_function draws a model or a vertex function, not {function!r:.80}",
            hint="dot_function(model, batch), or dot_function(cell, x=(3,))",
        )
    hint = "cavs.explain(model, batch) prints the operators of a model of several structures"
    if isinstance(function, VertexFunction):
        hint = 'dot_function(cell, batch.graphs["{0}"]) draws a cell with the features of one'
    _check_one_structure(batch, "dot_function", hint)
    if batch is not None and not isinstance(batch, GraphBatch | Graph):
        raise ConfigError(
            f"dot_function takes a batch, not {type(batch).__name__}",
            hint="make one: cavs.batch(graphs)",
        )
    schema = {} if batch is None else _features(batch)
    if isinstance(function, VertexFunction):
        graph, source = _traced_cell(function, schema, inputs), "pull"
    elif batch is None or inputs:
        raise ConfigError(
            f"{type(function).__name__} is a model, which is drawn for the features of a batch",
            hint="dot_function(model, cavs.batch(graphs))",
        )
    else:
        predicts = type(function).forward is not Model.forward
        graph = trace_model(function, schema, training=False, with_loss=not predicts)
        source = "feature"
    return _function_text(function, graph, source)


def _function_text(function: Model | VertexFunction, graph: Traced, source: str) -> str:
    nodes = graph.nodes()
    number = {node: i for i, node in enumerate(nodes)}
    names = {id(parameter): name for name, parameter in function.parameters().items()}
    lines = [f"digraph {quoted(type(function).__name__)} {{", LAYOUT]
    for node, i in number.items():
        shape = ", shape=ellipse" if node.op.name == "parameter" else ""
        lines.append(f"  n{i} [label={quoted(_operation(node, names, source))}{shape}];")
        lines += [f"  n{number[x]} -> n{i};" for x in node.inputs]
    for s, (slot, value) in enumerate(graph.slots.items()):
        label = f"scatter {slot.name}\n{slot.structure.name}"
        lines.append(f"  s{s} [label={quoted(label)}];")
        lines.append(f"  n{number[value]} -> s{s};")
        # A cell that runs top-down gathers states by the operator that gathers cotangents.
        gathers = [n for n in nodes if n.op.reads_slot]
        readers = [n for n in gathers if n.attr("slot") is slot]
        lines += [f"  s{s} -> n{number[n]} [style=dashed, constraint=false];" for n in readers]
    for o, (name, value) in enumerate(graph.outputs.items()):
        lines.append(f"  o{o} [label={quoted(name)}, shape=plaintext];")
        lines.append(f"  n{number[value]} -> o{o};")
    return "\n".join([*lines, "}", ""])


def dot_schedule(schedule: Any, max_tasks: int = 200) -> str:
    """Return the tasks of a schedule as DOT text, one row of boxes for every level.

    For a batch or a graph, kinds depend on children alone; the schedule of a model has more kinds,
    and equal vertices once: ``session.schedule(batch)``. ConfigError for anything else.

    A box names the kind of its vertices and their number; an arrow has the number of edges from one
    task to another. Beyond ``max_tasks``, a last box has the number of tasks that are left out.
    """
    if isinstance(schedule, Graph):
        schedule = GraphBatch([schedule])
    if isinstance(schedule, GraphBatch):
        schedule = schedule.schedule(types=schedule.type_names or ())
    _check_one_structure(
        schedule,
        "dot_schedule",
        "dot_schedule(session.schedule(batch)) draws the tasks of all of them, "
        'dot_schedule(batch.graphs["{0}"]) those of one',
    )
    if not hasattr(schedule, "tasks"):
        raise ConfigError(
            f"dot_schedule draws a schedule or a batch, not {type(schedule).__name__}",
            hint="dot_schedule(batch), or dot_schedule(session.schedule(batch))",
        )
    tasks = schedule.tasks
    drawn = tasks[:max_tasks]
    task_of_row = np.zeros(len(schedule.order), np.int64)
    for i, (_, _, (begin, end), _) in enumerate(tasks):
        task_of_row[begin:end] = i
    lines = ["digraph schedule {", LAYOUT]
    levels: dict[int, list[int]] = {}
    for i, (kind, level, rows, edges) in enumerate(drawn):
        key = schedule.kinds[kind][0]
        label = (
            f"level {level}, kind {kind} ({'inner' if key & 1 else 'leaf'}, mask {key >> 1:b})\n"
            f"{rows[1] - rows[0]} vertices, {edges[1] - edges[0]} edges"
        )
        lines.append(f"  t{i} [label={quoted(label)}];")
        levels.setdefault(level, []).append(i)
    for level in levels.values():
        lines.append(f"  {{ rank=same; {' '.join(f't{i};' for i in level)} }}")
    ends = zip(task_of_row[schedule.child], task_of_row[schedule.parent], strict=True)
    for (source, target), count in sorted(Counter(ends).items()):
        if source < len(drawn) and target < len(drawn):
            lines.append(f"  t{source} -> t{target} [label={quoted(str(count))}];")
    if len(tasks) > len(drawn):
        rest = f"{len(tasks) - len(drawn)} more tasks"
        lines.append(f"  rest [label={quoted(rest)}, style=dashed];")
    return "\n".join([*lines, "}", ""])


def render(dot: str, path: str | os.PathLike[str]) -> Path:
    """Draw DOT text into the file ``path``, in the format of its suffix (svg, png, pdf).

    ConfigError without a suffix, the Python package graphviz, or the program ``dot``.
    """
    target = as_path(path)
    if not target.suffix:
        raise ConfigError(f"{target} has no suffix to name a format", hint="use .svg, .png or .pdf")
    try:
        import graphviz
    except ImportError:
        raise ConfigError(
            "drawing needs the Python package graphviz", hint="pip install 'cavs[viz]'"
        ) from None
    try:
        picture = graphviz.Source(dot).pipe(format=target.suffix[1:])
    except graphviz.ExecutableNotFound:
        raise ConfigError(
            "drawing needs the program dot of Graphviz, which is not on the path",
            hint="install Graphviz (apt install graphviz), or keep the DOT text",
        ) from None
    except (ValueError, graphviz.CalledProcessError) as error:
        raise ConfigError(
            f"Graphviz cannot draw {target.name}: {error}", hint="use .svg, .png or .pdf"
        ) from None
    try:
        target.write_bytes(picture)
    except OSError as error:
        raise ConfigError(
            f"cannot write the picture {target}: {error.strerror or error}",
            hint="choose a folder and file that you may write to",
        ) from None
    return target
