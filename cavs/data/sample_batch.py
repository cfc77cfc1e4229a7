"""Batches of samples with several structures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, final

from cavs import _engine
from cavs.data.batch import GraphBatch, Ids, chosen_of, ids_of
from cavs.data.batch_of_structures import BatchOfStructures
from cavs.data.features import Array, FeatureSpec, feature_name, link_parts, owner_of
from cavs.data.link_features import joined_features
from cavs.data.merge_samples import MergedSampleBatch, MergedStructure
from cavs.data.sample import Sample
from cavs.errors import FeatureError, GraphError, NoAttributeError, user_line


class LinkType(NamedTuple):
    """A link that all samples of a batch have.

    single: it leads to one vertex at most; None if it has no rows, so that both are possible.
    """

    target: str
    source: str
    single: bool | None


@final
class SampleBatch(BatchOfStructures[GraphBatch]):
    """Samples that run together, as ``cavs.batch`` returns them.

    ``graphs``: a `GraphBatch` for every structure, by name. ``batch["words.token"]`` is a feature
    of one. The engine numbers the vertices of all samples' first structure, then those of the
    second, in the order of their names.
    """

    def __init__(self, samples: Iterable[Sample], ids: Ids | None = None) -> None:
        self.samples: tuple[Sample, ...] = tuple(samples)
        self.ids: tuple[int, ...] | None = None if ids is None else ids_of(ids, len(self.samples))
        self._links: Mapping[str, LinkType] = MappingProxyType(self._check())
        names = tuple(self.samples[0].graphs)
        parts = list(zip(*[sample.parts for sample in self.samples], strict=True))
        self.graphs: Mapping[str, GraphBatch] = MappingProxyType(
            {
                name: GraphBatch(graphs, self.ids, of=name)
                for name, graphs in zip(names, parts, strict=False)
            }
        )
        #: Features of links by "structure.link name.feature", and their types.
        self.link_features, self._link_schema = joined_features(
            self.samples, self._links, self.graph_label
        )
        super().__init__(
            _engine.stack_structures(
                [graphs.topology for graphs in self.graphs.values()],
                [
                    (names.index(link.target), names.index(link.source), offsets, vertices)
                    for link, offsets, vertices in zip(
                        self._links.values(),
                        parts[len(names) :: 2],
                        parts[len(names) + 1 :: 2],
                        strict=True,
                    )
                ],
            )
        )
        self._merged: dict[tuple[MergedStructure, ...], MergedSampleBatch] = {}

    def _check(self) -> dict[str, LinkType]:
        """Return the links. FeatureError unless all are samples, one at least; GraphError unless
        they have the same structures and links."""
        if not self.samples:
            raise FeatureError(
                "an empty batch: it needs at least one sample",
                hint="leave it out; a DataLoader makes none without samples",
            )
        for i, sample in enumerate(self.samples):
            if not isinstance(sample, Sample):
                raise FeatureError(
                    f"a batch is made of samples alone or of graphs alone, but item 0 is a "
                    f"cavs.Sample and item {i} is {sample!r:.80}",
                    hint="a graph becomes a sample by a name: cavs.Sample(words=graph)",
                )
        first = self.samples[0].schema
        known = {name: (0, LinkType(*form)) for name, *form in first[1]}
        for i, sample in enumerate(self.samples):
            if sample.schema is first or sample.schema == first:
                continue
            own, others = sample.schema[0], first[0]
            if own != others:
                name = sorted(set(own) ^ set(others))[0]
                has, lacks = (i, 0) if name in own else (0, i)
                raise GraphError(
                    f'structure "{name}" is in {self.graph_label(has)}, but not in '
                    f"{self.graph_label(lacks)}",
                    hint="samples of a batch have the same structures; a structure without "
                    "content is a graph without vertices, cavs.Graph([])",
                )
            forms = {name: LinkType(*form) for name, *form in sample.schema[1]}
            for link in sorted({*forms, *known}):
                j, before = known.get(link, (0, None))
                if not _alike(before, forms.get(link)):
                    found = [self._link_text(k, link) for k in (j, i)]
                    raise GraphError(
                        f'link "{link}" differs: {found[0]} in {self.graph_label(j)}, {found[1]} '
                        f"in {self.graph_label(i)}",
                        hint="samples of a batch have the same links, between the same structures, "
                        "all to one vertex each or all to lists",
                    )
                if before is not None and before.single is None:
                    known[link] = i, forms[link]
        return {name: form for name, (_, form) in known.items()}

    def _link_text(self, sample: int, name: str) -> str:
        link = self.samples[sample].links.get(name)
        if link is None:
            return "none"
        many = "one vertex each" if link.single else "lists"
        return f'from "{link.target}" to "{link.source}", {many},'

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the samples, "" where one has none."""
        return tuple(sample.name for sample in self.samples)

    @property
    def typed_features(self) -> Mapping[str, Mapping[str, Array]]:
        """Features of types of vertices, by "structure.type"."""
        return {
            feature_name(structure, name): features
            for structure, graphs in self.graphs.items()
            for name, features in graphs.typed_features.items()
        }

    @property
    def num_graphs(self) -> int:
        """Number of samples, at least 1."""
        return len(self.samples)

    @property
    def features(self) -> Mapping[str, Array]:
        """Vertex features of all structures, by "structure.feature"."""
        return self._named("features")

    @property
    def edge_features(self) -> Mapping[str, Array]:
        """Edge features of all structures, by "structure.feature"."""
        return self._named("edge_features")

    @property
    def graph_features(self) -> Mapping[str, Array]:
        """Features of whole graphs of all structures, by "structure.feature"."""
        return self._named("graph_features")

    @property
    def _replaced(self) -> Mapping[str, Array]:
        """Rows of graph features that no sample brings, by "structure.feature"."""
        return self._named("replaced")

    def _named(self, group: str) -> Mapping[str, Array]:
        return MappingProxyType(
            {
                feature_name(structure, name): rows
                for structure, graphs in self.graphs.items()
                for name, rows in getattr(graphs, group).items()
            }
        )

    def __contains__(self, name: object) -> bool:
        if name in self.link_features:
            return True
        structure, feature = owner_of(name) if isinstance(name, str) else ("", "")
        return structure in self.graphs and feature in self.graphs[structure]

    @property
    def graph(self) -> NoReturn:
        """NoAttributeError: models compute with symbolic batches, which sessions give them."""
        raise NoAttributeError(
            "a model was called with a batch of data; it computes with symbols",
            where=user_line(),
            hint="cavs.Session(model).evaluate(batch) or .predict(batch) runs the model on it",
        )

    def select(self, indices: Sequence[int]) -> SampleBatch:
        """Return a batch of the samples at ``indices``; FeatureError for indices out of range."""
        chosen = chosen_of(indices, self.num_graphs, "sample")
        ids = None if self.ids is None else [self.ids[i] for i in chosen]
        replaced = {name: rows[chosen] for name, rows in self._replaced.items()}
        return _rebuilt([self.samples[i] for i in chosen], ids, replaced)

    def with_graph_features(self, values: Mapping[str, Array]) -> SampleBatch:
        """Return this batch with other rows of graph features, by "structure.feature".

        See `GraphBatch.with_graph_features`. FeatureError for another feature or other rows.
        """
        of: dict[str, dict[str, Array]] = {}
        for name, rows in values.items():
            self[name]  # raises for a structure, or feature, that is not there
            structure, feature = owner_of(name)
            of.setdefault(structure, {})[feature] = rows
        graphs = {
            name: graphs.with_graph_features(of[name]) if name in of else graphs
            for name, graphs in self.graphs.items()
        }
        found = object.__new__(SampleBatch)
        vars(found).update(vars(self), graphs=MappingProxyType(graphs), _merged={})
        return found

    def pair_label(self, name: str, row: int) -> str:
        """Return the words for a pair in errors. name: of a feature of pairs, row: of it."""
        _, link, _ = link_parts(name)
        for i, sample in enumerate(self.samples):
            count = len(sample.link_features.get(name, ()))
            if row < count:
                return f'pair {row} of link "{link}" of {self.graph_label(i)}'
            row -= count
        raise IndexError(row)

    def graph_label(self, index: int) -> str:
        """Return the name of sample ``index`` in errors: its id in the data set and its name."""
        number = index if self.ids is None else self.ids[index]
        name = self.samples[index].name
        return f'sample {number} "{name}"' if name else f"sample {number}"

    def feature_schema(self) -> dict[str, FeatureSpec]:
        """Return the `FeatureSpec` of every feature by "structure.feature"."""
        found = dict(self._link_schema)
        for structure, graphs in self.graphs.items():
            for name, spec in graphs.feature_schema().items():
                of = feature_name(structure, spec.type) if spec.type else ""
                found[feature_name(structure, name)] = spec._replace(type=of)
        return found

    def merged(
        self, copies: tuple[MergedStructure, ...], child_numbers: int = 0
    ) -> MergedSampleBatch:
        """Return the batch with equal vertices of some structures merged; cached.

        child_numbers: none; leaves of samples are not distinguished by their use.
        """
        found = self._merged.get(copies)
        if found is None:
            found = MergedSampleBatch(
                self.topology, self.graphs, copies, self._links, self.link_features
            )
            self._merged[copies] = found
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.samples, self.ids, dict(self._replaced))

    def __repr__(self) -> str:
        parts = [f"{name}: {graphs.num_vertices} vertices" for name, graphs in self.graphs.items()]
        return f"SampleBatch({self.num_graphs} samples, {', '.join(parts)})"


def _alike(one: LinkType | None, other: LinkType | None) -> bool:
    """True if two samples may have a link of these types in one batch."""
    if one is None or other is None:
        return False
    return one[:2] == other[:2] and (None in (one.single, other.single) or one == other)


def _rebuilt(
    samples: Iterable[Sample], ids: Ids | None, replaced: Mapping[str, Array]
) -> SampleBatch:
    found = SampleBatch(samples, ids)
    return found.with_graph_features(replaced) if replaced else found
