"""Input graphs, vertex functions and schedules as DOT text, the language of Graphviz."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cavs.data.batch import GraphBatch
from cavs.data.graph import Graph
from cavs.data.vocabulary import Vocabulary
from cavs.errors import ConfigError
from cavs.frontend.batch import Feature
from cavs.frontend.model import Model, trace_model
from cavs.ir import Node


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _shown(value: Any, name: str, words: Mapping[str, Vocabulary]) -> str | None:
    """A feature of one row as text; None where it is absent."""
    if np.ndim(value) > 0:
        return f"{name} [{' '.join(f'{x:.3g}' for x in np.ravel(value)[:4])}]"
    if not isinstance(value, np.integer):
        return f"{name} {value:.3g}"
    if value < 0:
        return None
    return str(words[name].decode([int(value)])[0]) if name in words else f"{name} {value}"


def dot_graph(
    graph: Graph, words: Mapping[str, Vocabulary] | None = None, max_vertices: int = 500
) -> str:
    """A graph as DOT text: edges go from child to parent, vertices show their features.

    ``words``: vocabularies for features that index one. ConfigError for graphs of more than
    ``max_vertices``, which Graphviz cannot lay out in reasonable time.
    """
    if graph.num_vertices > max_vertices:
        raise ConfigError(
            f"{graph.num_vertices} vertices are too many to draw",
            hint=f"draw a smaller graph, or raise max_vertices above {max_vertices}",
        )
    words = words or {}
    lines = [f"digraph {_quoted(graph.name or 'graph')} {{", "  rankdir=BT; node [shape=box];"]
    for v in range(graph.num_vertices):
        parts = [_shown(values[v], name, words) for name, values in graph.features.items()]
        label = "\n".join([str(v), *(part for part in parts if part is not None)])
        lines.append(f"  v{v} [label={_quoted(label)}];")
    edge = 0
    for v in range(graph.num_vertices):
        for position, child in enumerate(graph.children(v)):
            parts = [_shown(x[edge], name, words) for name, x in graph.edge_features.items()]
            label = "\n".join([str(position), *(part for part in parts if part is not None)])
            lines.append(f"  v{child} -> v{v} [label={_quoted(label)}];")
            edge += 1
    return "\n".join([*lines, "}", ""])


def _operation(node: Node) -> str:
    """What a node does, and the shape of one row of it."""
    attrs = dict(node.attrs)
    words = node.op.name
    if words == "parameter":
        words = attrs["parameter"].name
    elif words == "feature":
        words = f"feature {attrs['name']}"
    elif words == "constant":
        return f"{attrs['value']:.4g}"
    elif words == "slice":
        words = f"[{attrs['start']}:{attrs['stop']}]"
    elif words == "gather":
        words = f"gather {attrs['slot'].name}"
    elif words == "nth_child":
        words = f"child {attrs['k']}"
    return f"{words}\n{list(node.shape)} {node.type.domain}"


def dot_function(model: Model, batch: GraphBatch) -> str:
    """The vertex functions of a model, and what stands around them, as DOT text.

    Values flow along arrows, each with the shape of a row and what a row is; parameters are round.
    What scatter gives returns to the gather of the parents along a dashed arrow. ``batch`` says
    what features there are. Raises what tracing raises.
    """
    schema = {
        name: Feature(s.kind, s.dtype, s.shape, s.has_absent)
        for name, s in batch.feature_schema().items()
    }
    predicts = type(model).forward is not Model.forward
    graph = trace_model(model, schema, training=False, with_loss=not predicts)
    nodes = graph.nodes()
    number = {node: i for i, node in enumerate(nodes)}
    lines = [f"digraph {_quoted(type(model).__name__)} {{", "  rankdir=BT; node [shape=box];"]
    for node, i in number.items():
        shape = ", shape=ellipse" if node.op.name == "parameter" else ""
        lines.append(f"  n{i} [label={_quoted(_operation(node))}{shape}];")
        lines += [f"  n{number[x]} -> n{i};" for x in node.inputs]
    for s, (slot, value) in enumerate(graph.slots.items()):
        label = f"scatter {slot.name}\n{slot.structure.name}"
        lines.append(f"  s{s} [label={_quoted(label)}];")
        lines.append(f"  n{number[value]} -> s{s};")
        readers = [n for n in nodes if n.op.name == "gather" and n.attr("slot") is slot]
        lines += [f"  s{s} -> n{number[n]} [style=dashed, constraint=false];" for n in readers]
    for o, (name, value) in enumerate(graph.outputs.items()):
        lines.append(f"  o{o} [label={_quoted(name)}, shape=plaintext];")
        lines.append(f"  n{number[value]} -> o{o};")
    return "\n".join([*lines, "}", ""])


def dot_schedule(schedule: Any, max_tasks: int = 200) -> str:
    """The batch tasks of a schedule as DOT text, a rank for every level.

    A box says the kind of its vertices and how many run together; an arrow says how many edges go
    from one task to another. Beyond ``max_tasks`` a last box counts what is left out.
    """
    tasks = schedule.tasks
    drawn = tasks[:max_tasks]
    task_of_row = np.zeros(len(schedule.order), np.int64)
    for i, (_, _, (begin, end), _) in enumerate(tasks):
        task_of_row[begin:end] = i
    lines = ["digraph schedule {", "  rankdir=BT; node [shape=box];"]
    levels: dict[int, list[int]] = {}
    for i, (kind, level, rows, edges) in enumerate(drawn):
        key = schedule.kinds[kind][0]
        label = (
            f"level {level}, kind {kind} ({'inner' if key & 1 else 'leaf'}, mask {key >> 1:b})\n"
            f"{rows[1] - rows[0]} vertices, {edges[1] - edges[0]} edges"
        )
        lines.append(f"  t{i} [label={_quoted(label)}];")
        levels.setdefault(level, []).append(i)
    for level in levels.values():
        lines.append(f"  {{ rank=same; {' '.join(f't{i};' for i in level)} }}")
    ends = zip(task_of_row[schedule.child], task_of_row[schedule.parent], strict=True)
    for (source, target), count in sorted(Counter(ends).items()):
        if source < len(drawn) and target < len(drawn):
            lines.append(f"  t{source} -> t{target} [label={_quoted(str(count))}];")
    if len(tasks) > len(drawn):
        rest = f"{len(tasks) - len(drawn)} more tasks"
        lines.append(f"  rest [label={_quoted(rest)}, style=dashed];")
    return "\n".join([*lines, "}", ""])


def render(dot: str, path: str | os.PathLike[str]) -> Path:
    """Draws DOT text into ``path``, in the format that its suffix names (svg, png, pdf).

    ConfigError without a suffix, the Python package graphviz, or the program ``dot``.
    """
    target = Path(path)
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
