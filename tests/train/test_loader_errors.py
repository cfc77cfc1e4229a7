"""Errors of graphs that a loader reads: a lack of memory stays one, others name the graph."""

import numpy as np
import pytest

import cavs
from cavs.errors import DataError
from cavs.train import DataLoader
from tests.train.test_trainer import GRAPHS, make, train_loader


class Built:
    """Graphs that are built on access; reading one of them raises."""

    def __init__(self, graphs, error=None, at=3):
        self.graphs, self.error, self.at, self.read = graphs, error, at, []

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, i):
        self.read.append(i)
        if i == self.at and self.error is not None:
            raise self.error
        return self.graphs[i]


@pytest.mark.parametrize("bucket", [None, "size", "depth"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_lack_of_memory_is_not_blamed_on_a_graph(bucket, prefetch):
    error = MemoryError("no more")
    with pytest.raises(MemoryError) as caught:
        list(DataLoader(Built(GRAPHS, error), 8, bucket=bucket, prefetch=prefetch))
    assert caught.value is error


@pytest.mark.parametrize(
    ("bucket", "where"), [(None, r"graph 3 of the data set \(batch 0"), ("size", "graph 3 of the")]
)
def test_another_error_names_the_graph(bucket, where):
    graphs = Built(GRAPHS, OSError("disk is gone"))
    with pytest.raises(DataError, match=f"cannot prepare {where}(.|\n)*OSError: disk is gone"):
        list(DataLoader(graphs, 8, bucket=bucket))


def test_a_lack_of_memory_ends_a_fit_after_the_steps_before():
    trainer, loader = make(), train_loader(prefetch=0)
    collate = loader.collate

    def limited(graphs, ids):
        if loader.position == 3:
            raise MemoryError("no more")
        return collate(graphs, ids)

    loader.collate = limited
    with pytest.raises(MemoryError, match="no more"):
        trainer.fit(loader, epochs=1, progress=False)
    assert trainer.steps == 3


def test_graphs_built_on_access_are_not_read_for_types_of_later_ones():
    """A batch has the types of graphs that were read; a list gives those of all graphs."""
    scans = [cavs.Graph([[]], types=["scan"], features={"scan": {"rows": [2.5]}})] * 4
    joins = [cavs.Graph([[]], types=["join"], features={"join": {"x": [[1.5]]}})] * 2
    built = Built([*scans, *joins])
    first, *_, last = DataLoader(built, 2, prefetch=0)
    assert list(first.typed_features) == ["scan"] and set(last.typed_features) == {"scan", "join"}
    assert sorted(set(built.read)) == list(range(6))
    listed = next(iter(DataLoader([*scans, *joins], 2, prefetch=0)))
    assert set(listed.typed_features) == {"scan", "join"}


def test_items_that_are_no_graphs_have_no_digest():
    texts = ["a", "bc", "def"]
    loader = DataLoader(texts, 2, collate=lambda items, ids: (list(items), ids.tolist()))
    assert list(loader) == [(["a", "bc"], [0, 1]), (["def"], [2])]
    assert loader.digest() == 0 and DataLoader(Built(GRAPHS)).digest() == 0
    graphs = DataLoader(GRAPHS)
    assert graphs.digest() == DataLoader(list(GRAPHS)).digest() != 0
    assert graphs.digest() != DataLoader(GRAPHS[::-1]).digest()
    assert np.array_equal(graphs.epoch_ids(0)[0], np.arange(60))
