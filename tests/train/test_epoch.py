"""The batches of an epoch whose batch size changes on the way."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cavs
from cavs.errors import CheckpointError, ConfigError
from cavs.train import DataLoader
from cavs.train.epoch import EpochOrder


@settings(max_examples=60)
@given(
    count=st.integers(1, 40),
    size=st.integers(1, 12),
    changes=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), max_size=4),
    shuffle=st.booleans(),
    bucket=st.sampled_from([None, "size"]),
    prefetch=st.sampled_from([0, 2]),
)
def test_every_graph_comes_once_and_the_rest_in_the_new_size(
    count, size, changes, shuffle, bucket, prefetch
):
    graphs = [cavs.Graph.chain(1 + i * 7 % 5) for i in range(count)]

    def loader():
        return DataLoader(graphs, size, shuffle, bucket=bucket, prefetch=prefetch)

    def ids_of(of, until=None):
        found = []
        for item in of:
            found.append(list(item.ids))
            for at, to in changes:
                if at == len(found) - 1:
                    of.batch_size = to
            if until is not None and len(found) >= until:
                break
        return found

    whole = loader()
    found = ids_of(whole)
    assert sorted(i for ids in found for i in ids) == list(range(count))
    expected = size
    left = count
    odd = 0  # a smaller batch, which a shuffled order may put anywhere
    for i, batch in enumerate(found):
        assert len(batch) <= min(expected, left)
        odd += len(batch) < min(expected, left)
        left -= len(batch)
        expected = next((to for at, to in reversed(changes) if at == i), expected)
    assert odd <= 1 + len(changes)
    assert whole.epoch == 1 and len(whole) == -(-count // whole.batch_size)

    # A run that stops within the epoch continues with the same batches.
    first = loader()
    begun = ids_of(first, until=len(found) // 2)
    resumed = loader()
    resumed.load_state_dict(first.state_dict() if begun else resumed.state_dict())
    changes = [(at - len(begun), to) for at, to in changes]
    assert begun + ids_of(resumed) == found


def test_the_next_epoch_has_the_new_size_from_its_start():
    loader = DataLoader([cavs.Graph.chain(2)] * 10, 2)
    for _ in loader:
        loader.batch_size = 5
    assert [b.num_graphs for b in loader] == [5, 5]
    assert "batch_sizes" in loader.state_dict()
    fresh = DataLoader([cavs.Graph.chain(2)] * 10, 2)
    fresh.load_state_dict(loader.state_dict())
    assert fresh.batch_size == 5 and fresh.epoch == 2


def test_drop_last_leaves_out_what_the_new_size_leaves():
    loader = DataLoader([cavs.Graph.chain(2)] * 10, 4, drop_last=True)
    sizes = []
    for item in loader:
        sizes.append(item.num_graphs)
        loader.batch_size = 5
    assert sizes == [4, 5]
    with pytest.raises(ConfigError, match="nothing of 10 graphs at batch_size=11"):
        loader.batch_size = 11
    with pytest.raises(ConfigError, match="batch_size"):
        loader.batch_size = 0


def test_a_position_before_the_last_change_keeps_the_last_size():
    loader = DataLoader([cavs.Graph.chain(2)] * 12, 2)
    state = loader.state_dict() | {"position": 1, "batch_sizes": [[0, 2], [3, 4]]}
    loader.load_state_dict(state)
    assert [b.num_graphs for b in loader] == [4, 4, 2]


@pytest.mark.parametrize("sizes", [[[1, 4]], [[0, 0]], [[0, 2], [0, 3]], ["x"], 7])
def test_invalid_sizes_in_a_checkpoint_are_refused(sizes):
    loader = DataLoader([cavs.Graph.chain(2)] * 12, 2)
    with pytest.raises(CheckpointError, match="batch sizes"):
        loader.load_state_dict(loader.state_dict() | {"batch_sizes": sizes})
    assert loader.batch_size == 2


def test_the_order_of_an_epoch_is_drawn_once_for_each_change(monkeypatch):
    drawn = []
    batches = EpochOrder.batches

    def counted(order, epoch, parts):
        drawn.append(parts)
        return batches(order, epoch, parts)

    monkeypatch.setattr(EpochOrder, "batches", counted)
    loader = DataLoader([cavs.Graph.chain(2)] * 40, 2)
    for i, _ in enumerate(loader):
        if i == 3:
            loader.batch_size = 4
        len(loader)
    assert len(drawn) == 3  # at the start, and for the batches and their number after the change
