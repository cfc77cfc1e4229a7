"""Arrays that the engine's graphs and schedules refuse: the needed and the found size are named."""

import numpy as np
import pytest

from cavs import _engine
from cavs.errors import GraphError

TREE = ([0, 0, 0, 2], [0, 1])  # two leaves and their parent


def batch_of(count=1):
    return _engine.collate([_engine.Graph(*TREE) for _ in range(count)])


def test_lists_of_children_are_vectors():
    with pytest.raises(ValueError, match="offsets must have one dimension, found 2"):
        _engine.Graph([[0, 0, 0, 2]], [0, 1])
    with pytest.raises(ValueError, match="children must have one dimension, found 0"):
        _engine.Graph([0, 0, 0, 2], 3)


def test_a_batch_holds_graphs():
    with pytest.raises(GraphError, match="a batch holds graphs, found none in its list"):
        _engine.collate([_engine.Graph(*TREE), None])


ROWS = {
    "too few": np.zeros((5, 2), np.float32),
    "too many": np.zeros(7, np.int32),
    "a number": np.float32(0),
    "columns first": np.zeros((6, 2), np.float32, order="F"),
    "every second": np.zeros(12, np.int32)[::2],
}


@pytest.mark.parametrize("case", ROWS)
def test_features_that_distinguish_vertices_have_a_row_for_each(case):
    with pytest.raises(ValueError, match="of_vertices must be C-contiguous with 6 rows"):
        _engine.merge_copies(batch_of(2), [np.zeros(6, np.int32), np.asarray(ROWS[case])], [])


def test_features_that_distinguish_edges_have_a_row_for_each():
    with pytest.raises(ValueError, match="of_edges must be C-contiguous with 4 rows"):
        _engine.merge_copies(batch_of(2), [], [np.zeros(6, np.int32)])


@pytest.mark.parametrize("number", [-1, 33])
def test_numbers_of_children_have_a_bit_each(number):
    with pytest.raises(ValueError, match=f"child_numbers must be 0 to 32, found {number}"):
        _engine.merge_copies(batch_of(), [], [], number)


def test_values_are_permuted_by_one_for_each_row():
    schedule = _engine.make_schedule(batch_of(2))
    with pytest.raises(ValueError, match="values must be one-dimensional of 6 values, found 4"):
        schedule.permute_vertices(np.zeros(4, np.int32))
    with pytest.raises(ValueError, match="of 4 values, found 4 in 2 dimensions"):
        schedule.permute_edges(np.zeros((2, 2), np.int32))


def test_the_first_graph_without_vertices():
    empty = _engine.Graph([0], [])
    assert batch_of(3).first_empty == -1
    assert _engine.collate([_engine.Graph(*TREE), empty, empty]).first_empty == 1


MASKS = {
    "features of two sizes": (
        dict(features=[np.zeros(3, np.int32), np.zeros(4, np.int32)]),
        "a feature must be one-dimensional of 3 values, found 4",
    ),
    "leaf of another size": (
        dict(features=[], rows=np.zeros(3, np.int32), leaf=np.zeros(2, np.uint32)),
        "leaf must be one-dimensional of 3 values, found 2",
    ),
    "a row of no vertex": (
        dict(features=[np.zeros(3, np.int32)], rows=np.array([0, 3], np.int32)),
        "row 1 is of vertex 3, there are 3",
    ),
    "a bit of leaf": (
        dict(features=[], leaf=np.zeros(2, np.uint32), child_numbers=[32]),
        "no bit 32 in leaf",
    ),
    "numbers of children alone": (
        dict(features=[np.zeros(3, np.int32)], child_numbers=[0]),
        "child_numbers need leaf",
    ),
    "nothing": (dict(features=[]), "masks of no rows"),
}


@pytest.mark.parametrize("case", MASKS)
def test_masks_of_absent_features(case):
    arguments, message = MASKS[case]
    with pytest.raises(ValueError, match=message):
        _engine.presence_masks(**arguments)
