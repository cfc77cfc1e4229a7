"""Samples of several structures, their links, and their collation."""

from __future__ import annotations

import itertools
import pickle
import re

import numpy as np
import pytest

import cavs
from cavs import _engine
from cavs.errors import FeatureError, GraphError
from cavs.train.data_set import digest_of

LINK = cavs.Link("words", "chars", [1, 4, 6])


def words(**features):
    return cavs.Graph.chain(3, features or {"token": [5, 6, 7]})


def chars():
    return cavs.Graph.chains([2, 3, 2], {"char": np.arange(7)})


def sample(**options):
    named = {"words": words(), "chars": chars(), "links": {"spelling": LINK}}
    return cavs.Sample(**named | options)


def test_a_sample_has_graphs_and_links_by_name():
    found = sample(name="s")
    assert list(found.graphs) == ["chars", "words"]
    assert found.links["spelling"] is LINK
    assert (found.num_vertices, found.num_edges, found.depth) == (10, 6, 3)
    assert repr(found) == 'Sample("s", chars: 7 vertices, words: 3 vertices, link spelling)'
    assert repr(LINK) == "Link('words', 'chars', 3 rows)"


def test_chains_are_one_graph_of_several_roots():
    graph = chars()
    assert graph.roots.tolist() == [1, 4, 6]
    assert graph.topology.children.tolist() == [0, 2, 3, 5]
    assert [graph.children(v).tolist() for v in range(7)] == [[], [0], [], [2], [3], [], [5]]
    one = cavs.Graph.chains([3])
    assert one.topology.child_lists[0].tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize(
    ("lengths", "found"),
    [
        ([2, 0, 1], "chain 1 has length 0; it needs at least one vertex"),
        ([-1], "chain 0 has length -1"),
        ([], "chains needs at least one vertex, found 0"),
        ([1.5], "lengths of chains must be integers"),
    ],
)
def test_lengths_of_chains_are_checked(lengths, found):
    with pytest.raises(GraphError, match=re.escape(found)):
        cavs.Graph.chains(lengths, name="g")


@pytest.mark.parametrize(
    ("rows", "single", "lists"),
    [
        ([1, -1, 0], True, [[1], [], [0]]),
        (np.array([1, -1, 0]), True, [[1], [], [0]]),
        ([[1, 2], [], [0]], False, [[1, 2], [], [0]]),
        (np.array([[1, 2], [0, 3]]), False, [[1, 2], [0, 3]]),
        ((np.array([0, 2, 2]), np.array([3, 1])), False, [[3, 1], []]),
    ],
)
def test_rows_of_a_link(rows, single, lists):
    link = cavs.Link("words", "chars", rows)
    assert link.single is single
    assert link.num_rows == len(lists)
    offsets = range(len(lists) + 1) if single else link.offsets
    found = [link.vertices[a:b] for a, b in itertools.pairwise(offsets)]
    assert [[int(v) for v in x if v >= 0] for x in found] == lists
    again = pickle.loads(pickle.dumps(link))
    assert (again.target, again.source, again.single) == ("words", "chars", single)
    assert np.array_equal(again.vertices, link.vertices)


def test_a_link_to_all_vertices_has_the_pairs_of_each_sample():
    link = cavs.Link.all("words", "chars")
    assert (link.single, link.num_rows, link.vertices) == (False, None, None)
    assert repr(pickle.loads(pickle.dumps(link))) == "Link.all('words', 'chars')"
    one, two = cavs.Graph.chain(1, {"token": [1]}), cavs.Graph.chain(2, {"char": [1, 2]})
    short = cavs.Sample(words=one, chars=two, links={"all": link})
    listed = cavs.Link("words", "chars", [[5, 6], [], [0]])
    batch = cavs.batch([sample(links={"all": x}) for x in (link, listed)] + [short])
    offsets, vertices = _engine.link_of(batch.topology, 0)
    rows = [*[list(range(7))] * 3, [12, 13], [], [7], [14, 15]]
    assert [list(vertices[a:b]) for a, b in itertools.pairwise(offsets)] == rows
    assert digest_of([sample(links={"all": link})]) != digest_of([sample(links={"all": listed})])


@pytest.mark.parametrize("ends", [("words", "letters"), ("letters", "chars")])
def test_a_link_to_all_vertices_is_between_structures_of_the_sample(ends):
    with pytest.raises(GraphError, match='there is no structure "letters": chars, words'):
        sample(links={"all": cavs.Link.all(*ends)})
    with pytest.raises(GraphError, match="a link is between structures by name, found 3"):
        cavs.Link.all("words", 3)


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (3, 'link from "words" to "chars" has the rows 3'),
        ([0.5], "must be integers in one dimension"),
        ([[1], 2], "has lists for some vertices and numbers for others"),
        ((np.array([0, 2]), np.array([1])), "offsets run from 0 to the 1 vertices, found [0, 2]"),
        (
            (np.array([0, 2, 1, 3]), np.arange(3)),
            "must not decrease: vertex 1 has 2 and the next 1",
        ),
    ],
)
def test_rows_of_a_link_are_checked(rows, found):
    with pytest.raises(GraphError, match=re.escape(found)) as error:
        cavs.Link("words", "chars", rows)
    assert "\n" in str(error.value) or error.value.hint


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (
            {"links": {"spelling": cavs.Link("words", "letters", [0, 0, 0])}},
            'sample "s": link "spelling" is between "words" and "letters", but there is no '
            'structure "letters": chars, words',
        ),
        (
            {"links": {"spelling": cavs.Link("words", "chars", [0, 1])}},
            'link "spelling" has 2 rows, but structure "words" has 3 vertices',
        ),
        (
            {"links": {"spelling": cavs.Link("words", "chars", [0, 7, 1])}},
            'link "spelling" leads from vertex 1 of "words" to vertex 7 of "chars", whose vertices '
            "are 0..6",
        ),
        (
            {"links": {"spelling": cavs.Link("words", "chars", [[0], [1, -1], []])}},
            'leads from vertex 1 of "words" to vertex -1 of "chars"',
        ),
        ({"links": [LINK]}, "links are a dict of cavs.Link by name"),
        ({"links": {"spelling": [1, 2, 3]}}, "links are cavs.Link by name, found 'spelling'"),
        ({"words": [[]]}, 'structure "words" is [[]], no graph'),
        ({"a word": chars()}, "'a word' is no name of a structure"),
    ],
)
def test_a_sample_is_checked(options, found):
    with pytest.raises(GraphError, match=re.escape(found)) as error:
        sample(name="s", **options)
    assert error.value.hint


def test_a_sample_needs_a_structure():
    with pytest.raises(GraphError, match="1 to 64 structures are needed, found 0"):
        cavs.Sample()


def test_samples_pickle():
    again = pickle.loads(pickle.dumps(sample(name="s")))
    assert again.name == "s"
    assert again.schema is sample().schema
    assert again.graphs["chars"].features["char"].tolist() == list(range(7))
    batch = pickle.loads(pickle.dumps(cavs.batch([sample(), again], [4, 9])))
    assert batch.ids == (4, 9)
    assert batch.num_vertices == 20


def test_a_batch_is_structure_by_structure():
    other = cavs.Sample(
        chars=cavs.Graph.chains([1], {"char": [9]}),
        words=cavs.Graph([[]], {"token": [8]}),
        links={"spelling": cavs.Link("words", "chars", [-1])},
    )
    batch = cavs.batch([sample(), other, sample()])
    assert isinstance(batch, cavs.SampleBatch)
    assert batch.structures == ("chars", "words")
    assert batch.topology.num_structures == 2
    assert batch.num_graphs == batch.topology.num_graphs == 3
    assert batch.topology.vertex_offsets.tolist() == [0, 7, 8, 15, 18, 19, 22]
    assert batch["words.token"].tolist() == [5, 6, 7, 8, 5, 6, 7]
    assert batch.graphs["chars"]["char"].tolist() == [*range(7), 9, *range(7)]
    offsets, vertices = _engine.link_of(batch.topology, 0)
    assert offsets.tolist() == [0, 1, 2, 3, 3, 4, 5, 6]
    assert vertices.tolist() == [1, 4, 6, 9, 12, 14]
    assert set(batch.feature_schema()) == {"chars.char", "words.token"}
    assert "words.token" in batch
    assert "token" not in batch
    assert repr(batch) == "SampleBatch(3 samples, chars: 15 vertices, words: 7 vertices)"
    two = batch.select([1, 0])
    assert two["words.token"].tolist() == [8, 5, 6, 7]


def test_rows_are_sorted_by_structure():
    batch = cavs.batch([sample(), sample()])
    schedule = batch.schedule()
    keys = [key for key, _, _ in schedule.kinds]
    assert keys == [1, 0, (1 << 33) + 1, 1 << 33]
    order = np.asarray(schedule.order)
    assert sorted(order[:14]) == list(range(14))  # vertices of chars, then those of words
    assert sorted(order[14:]) == list(range(6))
    assert sorted(np.asarray(schedule.edge_order)[8:]) == list(range(4))
    graph_of = np.asarray(schedule.graph_of)
    assert [int((graph_of == g).sum()) for g in (0, 1)] == [10, 10]


def test_absent_features_are_of_one_structure():
    one = sample(words=words(token=[5, -1, 7]))
    schedule = cavs.batch([one]).schedule(("words.token",))
    present = [(key >> 33, key >> 1 & 1) for key, _, _ in schedule.kinds]
    assert sorted(set(present)) == [(0, 0), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("other", "error", "found"),
    [
        (
            cavs.Sample(words=words(), name="t"),
            GraphError,
            'structure "chars" is in sample 3, but not in sample 8 "t"',
        ),
        (
            sample(links={}),
            GraphError,
            'link "spelling" differs: from "words" to "chars", one vertex each, in sample 3, none '
            "in sample 8",
        ),
        (
            sample(links={"spelling": cavs.Link("words", "chars", [[0], [], [1]])}),
            GraphError,
            'one vertex each, in sample 3, from "words" to "chars", lists, in sample 8',
        ),
        (words(), FeatureError, "item 0 is a cavs.Sample and item 1 is Graph("),
        (
            sample(words=words(word=[1, 2, 3])),
            FeatureError,
            'feature "token" is in "words" of sample 3, but not in "words" of sample 8',
        ),
    ],
)
def test_samples_of_a_batch_agree(other, error, found):
    with pytest.raises(error, match=re.escape(found)) as raised:
        cavs.batch([sample(), other], [3, 8])
    assert raised.value.hint


def test_a_batch_of_graphs_takes_no_sample():
    with pytest.raises(FeatureError, match=re.escape("but item 1 is Sample(")):
        cavs.batch([words(), sample()])


def test_features_of_a_batch_belong_to_structures():
    batch = cavs.batch([sample()])
    with pytest.raises(FeatureError, match="no feature 'token' in a batch of samples"):
        batch["token"]
    with pytest.raises(FeatureError, match="no sample 2 in a batch of 1 samples"):
        batch.select([2])


def test_graph_features_are_replaced():
    named = words().with_features(graph_features={"h": np.zeros(2)})
    batch = cavs.batch([sample(words=named), sample(words=named)])
    rows = np.arange(4, dtype=np.float32).reshape(2, 2)
    other = batch.with_graph_features({"words.h": rows})
    assert other["words.h"].tolist() == rows.tolist()
    assert not batch["words.h"].any()
    assert other.topology is batch.topology
    with pytest.raises(FeatureError, match="no feature 'h' in a batch of samples"):
        batch.with_graph_features({"h": rows})


def test_replaced_graph_features_are_kept():
    whole = cavs.Graph.chain(1, graph_features={"s": np.zeros(2)})
    batch = cavs.batch([cavs.Sample(words=whole), cavs.Sample(words=whole)], ids=iter([7, 9]))
    rows = np.array([[1.0, 2.0], [3.0, 4.0]])
    new = batch.with_graph_features({"words.s": rows})
    assert pickle.loads(pickle.dumps(new))["words.s"].tolist() == rows.tolist()
    chosen = new.select([1])
    assert chosen["words.s"].tolist() == rows[1:].tolist() and chosen.ids == (9,)
    assert batch["words.s"].tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    "empty", [lambda: cavs.data.SampleBatch([]), lambda: cavs.batch([sample()]).select([])]
)
def test_batches_of_no_sample_are_refused(empty):
    with pytest.raises(FeatureError, match="needs at least one sample"):
        empty()


def test_samples_have_a_number_of_optional_features():
    chain = cavs.Graph.chain(1, {f"f{i}": [-1] for i in range(40)})
    batch = cavs.batch([cavs.Sample(words=chain)])
    with pytest.raises(FeatureError, match="33 features may be absent"):
        batch.schedule(tuple(f"words.f{i}" for i in range(33)))


def test_loader_over_samples():
    samples = [sample(name=str(i)) for i in range(5)]
    loader = cavs.DataLoader(samples, 2, bucket="depth", shuffle=True)
    found = [name for batch in loader for name in batch.names]
    assert sorted(found) == ["0", "1", "2", "3", "4"]
    assert loader.digest() == digest_of(samples) != digest_of(samples[:1])
    cached = cavs.DataLoader(samples, 2, cache=True)
    assert [batch.names for batch in cached] == [batch.names for batch in cached]
    assert digest_of([cavs.batch(samples)]) != digest_of([cavs.batch(samples[:2])])
    moved = sample(links={"spelling": cavs.Link("words", "chars", [1, 4, 5])})
    assert digest_of([moved]) != digest_of([sample()])


def test_the_engine_checks_links():
    batch = cavs.batch([sample()])
    parts = [graphs.topology for graphs in batch.graphs.values()]
    rows = np.array([0, 1, 2], np.int32)
    offsets = np.array([0, 1, 1, 3], np.int32)
    found = _engine.stack_structures(parts, [(1, 0, [offsets], [rows])])
    assert [x.tolist() for x in _engine.link_of(found, 0)] == [[0, 1, 1, 3], [0, 1, 2]]
    for link, what in (
        ((1, 2, [None], [rows]), "from structure 1 to 2 of 2"),
        ((1, 0, [None], [rows[:2]]), "must be one-dimensional of 3 values, found 2"),
        ((1, 0, [], []), "a link of 0 samples, there are 1"),
        ((1, 0, [offsets[::-1].copy()], [rows]), "must ascend from 0"),
        ((1, 0, [offsets[:2]], [rows]), "offsets of a link must be one-dimensional of 4"),
    ):
        with pytest.raises(ValueError, match=re.escape(what)):
            _engine.stack_structures(parts, [link])
    with pytest.raises(GraphError, match="leads to vertex 7 of 7"):
        _engine.stack_structures(parts, [(1, 0, [None], [rows + 5])])
    with pytest.raises(IndexError, match="link 1 of 1"):
        _engine.link_of(batch.topology, 1)
    with pytest.raises(ValueError, match="as many graphs"):
        _engine.stack_structures([parts[0], cavs.batch([words(), words()]).topology])


def test_a_link_of_more_vertices_than_an_int32_counts_is_refused_before_it_is_joined():
    pairs, samples = 2**20, 2**11
    one, many = cavs.Graph([[]]), cavs.Graph([[]] * 2**16)
    link = cavs.Link("a", "b", (np.array([0, pairs]), np.zeros(pairs, np.int32)))
    wide = cavs.Sample(a=one, b=one, links={"wide": link})
    with pytest.raises(GraphError, match=r"at most 2147483647 .* found 2147483648; use a smaller"):
        cavs.batch([wide] * samples)
    square = cavs.Sample(a=many, links={"all": cavs.Link.all("a", "a")})
    with pytest.raises(GraphError, match=r"at most 2147483647 .* found 4294967296; use a smaller"):
        cavs.batch([square])
