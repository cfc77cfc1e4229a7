"""Drawings of graphs and samples in DOT, the language of Graphviz."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cavs.data.batch import GraphBatch
from cavs.data.features import Array, feature_name, types_in
from cavs.data.graph import Graph
from cavs.data.link import Link
from cavs.data.sample import Sample
from cavs.data.sample_batch import SampleBatch
from cavs.data.vocabulary import Vocabulary
from cavs.errors import ConfigError

LAYOUT = "  rankdir=BT; node [shape=box];"

_TYPE_COLOURS = 12  # in the scheme set312 of Graphviz
_LINK_COLOURS = 8  # in the scheme dark28

Words = Mapping[str, Vocabulary]


def quoted(text: str) -> str:
    """Return text as a quoted string of DOT."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def dot_graph(
    graph: Graph | GraphBatch | Sample | SampleBatch,
    words: Words | None = None,
    max_vertices: int = 500,
    *,
    pairs: bool = False,
) -> str:
    """Return a graph or a sample as DOT text: edges go from child to parent, with the position.

    Vertices show their features; those with types show and are filled by their type. A dotted edge
    from a point is an empty position. The graphs of a batch are drawn next to each other, each in a
    frame, and so are the structures of a sample. A dashed edge with the name of a link goes from a
    vertex that is read to the one that reads it; for a link of all with all it is one edge between
    two frames.

    words: vocabularies of features that are indices; "structure.feature" names one of a sample.
    pairs: show the features of links, and each pair of a link of all with all. ConfigError for more
    than ``max_vertices``, or as many edges of links, which Graphviz cannot lay out in reasonable
    time, and for anything but a graph, a sample or a batch.
    """
    if not isinstance(graph, Graph | GraphBatch | Sample | SampleBatch):
        raise ConfigError(
            f"dot_graph draws a graph, a sample or a batch, not {type(graph).__name__}",
            hint="dot_graph(graph), or dot_graph(cavs.batch(graphs)) for several",
        )
    if graph.num_vertices > max_vertices:
        raise ConfigError(
            f"{graph.num_vertices} vertices are too many to draw",
            hint=f"draw a smaller graph, or raise max_vertices above {max_vertices}",
        )
    drawing = _Drawing(words or {}, graph.type_names or (), pairs)
    head, layout = "batch", LAYOUT
    if isinstance(graph, Graph):
        head, lines = graph.name or "graph", drawing.graph(graph, "")
    elif isinstance(graph, GraphBatch):
        lines = _frames(
            (f"{i}", graph.graph_label(i), drawing.graph(one, f"g{i}"))
            for i, one in enumerate(graph.graphs)
        )
    else:
        layout += " compound=true;"  # edges may end at frames
        samples = (graph,) if isinstance(graph, Sample) else graph.samples
        _check_links(samples, max_vertices, pairs)
        if isinstance(graph, Sample):
            head, lines = graph.name or "sample", drawing.sample(graph, "")
        else:
            lines = _frames(
                (f"{i}", graph.graph_label(i), drawing.sample(one, f"g{i}"))
                for i, one in enumerate(samples)
            )
    body = (f"  {line}" for line in lines)
    return "\n".join([f"digraph {quoted(head)} {{", layout, *body, "}", ""])


def _check_links(samples: Iterable[Sample], most: int, pairs: bool) -> None:
    """Raise ConfigError if the links of samples have more than ``most`` edges."""
    count = 0
    for sample in samples:
        for link in sample.links.values():
            if link.vertices is not None:
                count += int((link.vertices >= 0).sum())
            elif pairs:
                count += _count(sample, link.target) * _count(sample, link.source)
    if count > most:
        hint = f"draw a smaller sample, or raise max_vertices above {most}"
        if pairs:
            hint += "; without pairs=True a link of all with all is one edge"
        raise ConfigError(f"{count} pairs of links are too many to draw", hint=hint)


def _count(sample: Sample, structure: str) -> int:
    return sample.graphs[structure].num_vertices


def _frames(parts: Iterable[tuple[str, str, Iterable[str]]]) -> Iterator[str]:
    """Iterate over the lines of frames, each given by its number, its label and its content."""
    for number, label, lines in parts:
        # Graphviz draws a frame around a subgraph whose name begins with "cluster".
        yield f"subgraph cluster{number} {{ label={quoted(label)};"
        yield from (f"  {line}" for line in lines)
        yield "}"


def _pairs(link: Link, targets: int, sources: int) -> Iterator[tuple[int, int, int]]:
    """Iterate over the pairs of a link: the vertex that reads, the one it reads, and their row."""
    readers: Array
    read: Array
    if link.vertices is None:
        readers, read = (x.ravel() for x in np.indices((targets, sources)))
    elif link.offsets is None:
        readers, read = np.arange(targets), link.vertices
    else:
        readers, read = np.repeat(np.arange(targets), np.diff(link.offsets)), link.vertices
    for row, (v, other) in enumerate(zip(readers.tolist(), read.tolist(), strict=True)):
        if other >= 0:
            yield v, other, row


def _shown(value: Any, name: str, words: Words) -> str | None:
    """Return the value of a feature in one row as text; None if it is absent."""
    if np.ndim(value) > 0:
        return f"{name} [{' '.join(f'{x:.3g}' for x in np.ravel(value)[:4])}]"
    if not isinstance(value, np.integer):
        return f"{name} {value:.3g}"
    if value < 0:
        return None
    return str(words[name].decode([int(value)])[0]) if name in words else f"{name} {value}"


def _owned(values: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return the values whose names are those of features of a structure or a link, by feature."""
    begin = feature_name(owner, "")
    return {name.removeprefix(begin): x for name, x in values.items() if name.startswith(begin)}


def _label(head: object, words: Words, *rows: tuple[Mapping[str, Any], int]) -> str:
    """Return a quoted label: a line with ``head``, and one for each feature that is not absent.

    rows: features by name, and the row of each that is shown.
    """
    shown = [_shown(x[row], name, words) for features, row in rows for name, x in features.items()]
    return quoted("\n".join([str(head), *(text for text in shown if text is not None)]))


@dataclass(frozen=True)
class _Drawing:
    """The options of a drawing. types: all that it shows, which number the colours."""

    words: Words
    types: tuple[str, ...]
    pairs: bool

    def _words_of(self, owner: str) -> Words:
        """Return the vocabularies by the name of a feature of a structure, or of a link."""
        return {**self.words, **_owned(self.words, owner)}

    def graph(self, graph: Graph, prefix: str, structure: str = "") -> Iterator[str]:
        """Iterate over vertices and edges of a graph. structure: its name in a sample."""
        types = types_in(self.types, structure) if structure else list(self.types)
        words = self._words_of(structure) if structure else self.words
        if not graph.num_vertices:
            yield f'{prefix}none [label="no vertices", shape=plaintext];'
        rows = {name: iter(range(graph.num_vertices)) for name in types}
        for v, of in enumerate(graph.types or [""] * graph.num_vertices):
            label, fill = _label(v, words, (graph.features, v)), ""
            if of:
                own = graph.typed_features.get(of, {}), next(rows[of])
                label = _label(f"{v} {of}", words, (graph.features, v), own)
                fill = f', style=filled, fillcolor="/set312/{types.index(of) % _TYPE_COLOURS + 1}"'
            yield f"{prefix}v{v} [label={label}{fill}];"
        edge = 0
        for v in range(graph.num_vertices):
            for position, child in enumerate(graph.children(v)):
                if child < 0:
                    empty = f"{prefix}v{v}empty{position}"
                    yield f"{empty} [shape=point];"
                    yield f'{empty} -> {prefix}v{v} [label="{position}", style=dotted];'
                    continue
                label = _label(position, words, (graph.edge_features, edge))
                yield f"{prefix}v{child} -> {prefix}v{v} [label={label}];"
                edge += 1

    def sample(self, sample: Sample, prefix: str) -> Iterator[str]:
        """Iterate over the structures of a sample, each in a frame, and its links."""
        numbers = {name: f"{prefix}s{i}" for i, name in enumerate(sample.graphs)}
        yield from _frames(
            (own, _title(sample, name, self.pairs), self.graph(sample.graphs[name], own, name))
            for name, own in numbers.items()
        )
        for i, (name, link) in enumerate(sample.links.items()):
            colour = f"/dark28/{i % _LINK_COLOURS + 1}"
            style = f'style=dashed, color="{colour}", fontcolor="{colour}"'
            read, reader = numbers[link.source], numbers[link.target]
            for ends, label, how in self._link(sample, name, read, reader):
                yield f"{ends} [label={label}, {style}, {how}];"

    def _link(
        self, sample: Sample, name: str, read: str, reader: str
    ) -> Iterator[tuple[str, str, str]]:
        """Iterate over the edges of a link: ends, label and how they are drawn.

        read, reader: the names of its structures in the drawing.
        """
        link = sample.links[name]
        targets, sources = _count(sample, link.target), _count(sample, link.source)
        if link.vertices is None and not self.pairs:
            if targets and sources and reader != read:
                label = quoted(f"{name}\nall with all")
                frames = f"ltail=cluster{read}, lhead=cluster{reader}"
                yield f"{read}v{sources - 1} -> {reader}v0", label, frames
            return
        owner = feature_name(link.target, f"link {name}")
        features = _owned(sample.link_features, owner) if self.pairs else {}
        words = self._words_of(owner)
        for v, other, row in _pairs(link, targets, sources):
            label = _label(name, words, (features, row))
            yield f"{read}v{other} -> {reader}v{v}", label, "constraint=false"


def _title(sample: Sample, structure: str, pairs: bool) -> str:
    """Return the label of a structure: its name, and its links of all with all to itself."""
    own = [
        f"{name}: all with all"
        for name, link in sample.links.items()
        if link.vertices is None and link.target == link.source == structure and not pairs
    ]
    return "\n".join([structure, *own])
