"""Features of links: their rows, collation and errors."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

import cavs
from cavs.errors import FeatureError, GraphError
from cavs.train.data_set import bytes_of, digest_of, digests_of, pair_types

WEIGHT, KIND = "a.link to.weight", "a.link to.kind"


def sample(rows=([0, 1], [], [1]), features=None, sources=2, name="", **links):
    """Return a sample with a link from three vertices of a to vertices of b."""
    graphs = {"a": cavs.Graph.chain(3), "b": cavs.Graph.chain(sources)}
    links = {"to": cavs.Link("a", "b", list(rows), features or {}), **links}
    return cavs.Sample(links=links, name=name, **graphs)


def test_a_feature_has_a_row_for_each_pair():
    weight = np.arange(6.0).reshape(3, 2)
    found = sample(features={"weight": weight, "kind": [1, -1, 0]})
    assert list(found.link_features) == [WEIGHT, KIND]
    assert found.link_features[WEIGHT].dtype == np.float32
    assert found.link_features[KIND].tolist() == [1, -1, 0]
    assert found.absent == {KIND}
    weight[...] = 9  # a link has its own copy
    again = pickle.loads(pickle.dumps(found))
    for one in (found, again):
        assert one.link_features[WEIGHT].tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ValueError, match="read-only"):
        found.link_features[WEIGHT][0] = 1


def test_a_link_to_one_vertex_each_has_a_row_for_each_vertex():
    found = sample([0, -1, 1], {"weight": [0.5, 1.5, 2.5]})
    batch = cavs.batch([found, found])
    assert batch[WEIGHT].tolist() == [0.5, 1.5, 2.5] * 2
    assert batch.feature_schema()[WEIGHT].domain == "vertex"


@pytest.mark.parametrize("shape", [(3, 2), (6,), (3, 2, 4), (6, 4)])
def test_a_link_to_all_vertices_takes_a_grid_or_rows(shape):
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    link = cavs.Link.all("a", "b", {"weight": values})
    found = sample(to=link).link_features[WEIGHT]
    assert found.shape == (6, *((4,) if 4 in shape else ()))
    assert found.ravel().tolist() == values.ravel().tolist()
    assert np.array_equal(pickle.loads(pickle.dumps(link)).features["weight"], values)


def test_features_are_joined_in_the_order_of_the_samples():
    one = sample(features={"weight": [1.0, 2.0, 3.0], "kind": [0, 1, 2]})
    none = sample([[], [], []])
    empty = sample([[], [], []], {"weight": [], "kind": np.zeros(0, np.int32)})
    batch = cavs.batch([none, one, empty, one])
    assert batch[WEIGHT].tolist() == [1, 2, 3] * 2
    assert batch[KIND].dtype == np.int32
    spec = batch.feature_schema()[WEIGHT]
    assert (spec.domain, spec.dtype, spec.shape, spec.has_absent) == ("pair", "float", (), False)
    assert WEIGHT in batch
    assert "a.link to.other" not in batch
    assert batch.select([3, 0])[WEIGHT].tolist() == [1, 2, 3]
    assert pickle.loads(pickle.dumps(batch))[KIND].tolist() == [0, 1, 2] * 2
    assert batch.has_pairs(WEIGHT)
    assert not batch.select([0, 2]).has_pairs(KIND)
    assert batch.select([2]).feature_schema()[KIND].dtype == "int"
    assert WEIGHT not in batch.select([2])


@pytest.mark.parametrize(
    ("features", "found"),
    [
        ({"w": [1.0, 2.0]}, 'sample "s": link "to" has 3 pairs, but its feature "w" has 2 rows'),
        ({"w": 1.0}, 'sample "s": link "to" has 3 pairs, but its feature "w" has a single number'),
        ({"w": []}, 'sample "s": link "to" has 3 pairs, but its feature "w" has 0 rows'),
        ({"w": [1.0, np.nan, 0.0]}, 'sample "s": link "to": pair feature "w" holds nan at pair 1'),
        ({"k": [0, -2, 0]}, 'sample "s": link "to": pair feature "k" holds -2 at pair 1'),
        (
            {"k": np.ma.masked_array([1, 2, 3], [False, False, True])},
            'sample "s": link "to": pair feature "k" is masked at pair 2',
        ),
        ({"w": ["x", "y", "z"]}, 'link from "a" to "b": feature "w" needs integers'),
        ({3: [1.0]}, 'link from "a" to "b": features are a dict of arrays by name, not {3: [1.0]}'),
        ([1.0], 'link from "a" to "b": features are a dict of arrays by name, not [1.0]'),
    ],
)
def test_features_are_checked(features, found):
    with pytest.raises(FeatureError, match=re.escape(found)) as error:
        sample(features=features, name="s")
    assert error.value.hint


def test_rows_of_other_links_are_checked():
    with pytest.raises(FeatureError, match='has 3 vertices of "a", but its feature "w" has 2 rows'):
        sample([0, -1, 1], {"w": [1.0, 2.0]})
    with pytest.raises(FeatureError, match='has 6 pairs, but its feature "w" has 2 rows') as error:
        sample(to=cavs.Link.all("a", "b", {"w": np.zeros((2, 3))}))
    assert "(vertices of a, vertices of b, ...)" in error.value.hint
    with pytest.raises(GraphError, match=r"link 'x\.y' has features, and a dot in its name"):
        sample(**{"x.y": cavs.Link.all("a", "b", {"w": np.zeros((3, 2))})})


def test_features_of_a_batch_agree():
    one, other = sample(features={"weight": np.ones(3)}), sample(name="s")
    found = 'feature "weight" of link "to" is in sample 0, but not in sample 1 "s"'
    with pytest.raises(FeatureError, match=re.escape(found)):
        cavs.batch([one, other])
    for rows, shape in (([1, 2, 3], "int32 rows of shape ()"), (np.ones((3, 2)), "shape (2,)")):
        with pytest.raises(FeatureError, match=re.escape(shape)) as error:
            cavs.batch([one, sample(features={"weight": rows})])
        assert 'feature "weight" of link "to" differs: float32 rows of shape ()' in str(error.value)


def test_a_link_to_all_vertices_without_any_may_leave_features_out():
    def all_of(features, sources):
        link = cavs.Link.all("a", "b", features)
        return cavs.Sample(a=cavs.Graph.chain(3), b=cavs.Graph([[]] * sources), links={"to": link})

    one, empty = all_of({"weight": np.ones((3, 2))}, 2), all_of({}, 0)
    assert cavs.batch([empty, one])[WEIGHT].tolist() == [1.0] * 6
    found = 'feature "weight" of link "to" is in sample 0, but not in sample 1'
    with pytest.raises(FeatureError, match=re.escape(found)) as error:
        cavs.batch([one, all_of({}, 1)])
    assert "without vertices to read may leave them out" in error.value.hint


def test_a_data_set_knows_its_features_of_links():
    one = sample(features={"weight": np.ones((3, 2)), "kind": [0, 1, 2]})
    other = sample(features={"weight": np.ones((3, 2)), "kind": [0, 1, 1]})
    single = cavs.Link("a", "b", [0, 1, 1], {"x": np.ones(3)})
    assert {n: x.shape for n, x in pair_types([sample(single=single), one]).items()} == {
        WEIGHT: (0, 2),
        KIND: (0,),
    }
    assert digest_of([one]) != digest_of([other])
    assert digests_of([one])["feature 'a.link to.kind'"]
    more = bytes_of(cavs.batch([one])) - bytes_of(cavs.batch([sample()]))
    assert more == 3 * (2 + 1) * 4
