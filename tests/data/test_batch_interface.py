"""Attributes that batches of graphs share with those of samples, and batches by their number."""

import gc
import weakref

import numpy as np
import pytest

import cavs
from cavs.data.engine_batch import batch_of
from cavs.errors import GraphError, NoAttributeError
from cavs.train.data_set import vertex_types

CHAINS = [cavs.Graph.chain(n, {"x": np.ones(n)}) for n in (1, 2)]


def samples():
    """Return two samples whose links to one vertex each have features."""
    link = cavs.Link("a", "b", [0, -1, 1], {"weight": [0.5, 1.5, 2.5], "kind": [1, 2, -1]})
    chars = cavs.Graph.chain(2, {"x": [[1.0, 2.0], [3.0, 4.0]]})
    whole = cavs.Sample(a=cavs.Graph.chain(3), b=chars, links={"to": link})
    empty = cavs.Sample(
        a=cavs.Graph([]), b=chars, links={"to": cavs.Link("a", "b", np.zeros(0, np.int32))}
    )
    return [empty, whole]


def test_a_batch_of_graphs_has_no_links_and_no_pairs():
    batch = cavs.batch(CHAINS)
    assert batch.structures is None and dict(batch.links) == {}
    assert not batch.has_pairs("a.link to.weight") and batch.has_vertices("x")
    assert batch.has_edges("x") and not cavs.batch(CHAINS[:1]).has_edges("x")
    with pytest.raises(TypeError):
        batch.links["to"] = None


def test_a_batch_of_samples_tells_where_there_are_rows():
    batch = cavs.batch(samples()[:1])
    assert batch.structures == ("a", "b") and list(batch.links) == ["to"]
    assert not batch.has_vertices("a.x") and batch.has_vertices("b.x")
    assert batch.has_edges("b.e") and not batch.has_edges("a.e")
    assert not batch.has_pairs("a.link to.weight")


def test_a_batch_is_found_by_its_number_while_it_is_there():
    batch, other = cavs.batch(CHAINS), cavs.batch(CHAINS)
    number = batch.number
    assert number != other.number
    assert batch_of(number) is batch and batch_of(other.number) is other
    gone = weakref.ref(batch)
    del batch
    gc.collect()
    assert gone() is None and batch_of(number) is None
    assert batch_of(other.number) is other


def test_a_batch_of_samples_is_not_one_of_symbols():
    class Model(cavs.Model):
        def loss(self, batch):
            return batch.graph

    with pytest.raises(NoAttributeError, match="called with a batch of data") as caught:
        Model().loss(cavs.batch(samples()))
    assert ".evaluate(batch)" in caught.value.hint
    assert caught.value.where.startswith("test_batch_interface.py:")
    assert not hasattr(cavs.batch(samples()), "graph")


def test_features_of_vertices_without_rows_are_those_of_the_first_with_a_vertex():
    found = vertex_types(samples())
    assert {name: (rows.dtype.name, rows.shape) for name, rows in found.items()} == {
        "b.x": ("float32", (0, 2)),
        "a.link to.weight": ("float32", (0,)),
        "a.link to.kind": ("int32", (0,)),
    }
    assert vertex_types(CHAINS) == {} and list(vertex_types(samples()[:1])) == ["b.x"]


@pytest.mark.parametrize("name", [3, None, b"one"])
def test_the_name_of_a_sample_is_a_text(name):
    with pytest.raises(GraphError, match="the name of a sample is a text, found ") as caught:
        cavs.Sample(a=cavs.Graph.chain(1), name=name)
    assert repr(name) in caught.value.what and caught.value.hint == f"name={str(name)!r}"


def test_a_structure_without_vertices_has_no_bits_of_types():
    typed = cavs.Graph([[], [0]], types=["scan", "join"], features={"scan": {"x": [1.0]}})
    none = cavs.Graph([], types=[])
    batch = cavs.batch([cavs.Sample(a=cavs.Graph.chain(1), b=none)] * 2)
    merged = batch.graphs["b"].merged(())
    masks = merged.presence((), ("join", "scan"))
    assert masks.dtype == np.uint32 and masks.shape == (0,)
    both = cavs.batch([cavs.Sample(a=cavs.Graph.chain(1), b=typed)] * 2).graphs["b"].merged(())
    assert both.presence((), ("join", "scan")).shape == (both.num_vertices,) != (0,)
