"""Batches of a loader: order, state, cache, threads and errors."""

import copy
import gc
import pickle
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

from cavs.data import batch
from cavs.errors import CheckpointError, ConfigError, DataError, FeatureError, GraphError
from cavs.runtime import Session
from cavs.train import DataLoader
from tests.patience import patience
from tests.train.classifier import Classifier, trees
from tests.train.fake import make_graph, make_graphs

ROOT = Path(__file__).parents[2]
GRAPHS = make_graphs(53)


def loader(graphs=GRAPHS, **options):
    return DataLoader(graphs, **{"batch_size": 8} | options)


def ids(batches):
    return [list(item.ids) for item in batches]


def prefetch_threads():
    return [t for t in threading.enumerate() if t.name == "cavs-prefetch"]


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_plain_order(prefetch, drop_last):
    batches = loader(prefetch=prefetch, drop_last=drop_last)
    whole = [list(range(i, min(i + 8, 53))) for i in range(0, 53, 8)]
    expected = whole[:-1] if drop_last else whole
    assert len(batches) == len(expected)
    assert ids(batches) == expected
    assert ids(batches) == expected
    assert not prefetch_threads()


def test_the_default_collate_may_be_passed():
    assert ids(loader(collate=batch)) == ids(loader())


@pytest.mark.parametrize("bucket", [None, "size", "depth"])
def test_shuffle_is_a_permutation_of_seed_and_epoch(bucket):
    first, second = loader(shuffle=True, bucket=bucket), loader(shuffle=True, bucket=bucket)
    epochs = [ids(first), ids(first)]
    assert epochs == [ids(second), ids(second)]
    assert epochs[0] != epochs[1]
    assert ids(loader(shuffle=True, bucket=bucket, seed=1)) != epochs[0]
    for epoch in epochs:
        assert sorted(i for batch in epoch for i in batch) == list(range(53))


@pytest.mark.parametrize(("bucket", "name"), [("size", "num_vertices"), ("depth", "depth")])
def test_buckets_hold_similar_graphs(bucket, name):
    spread = 0
    for chosen in loader(shuffle=True, bucket=bucket).epoch_ids(0):
        sizes = [getattr(GRAPHS[i], name) for i in chosen]
        spread += max(sizes) - min(sizes)
    everything = [getattr(g, name) for g in GRAPHS]
    # Sorted batches together span the range once.
    assert spread <= max(everything) - min(everything)


def test_drop_last_in_buckets_drops_other_graphs_each_epoch():
    batches = loader(shuffle=True, bucket="size", drop_last=True)
    dropped = [set(range(53)) - set(np.concatenate(batches.epoch_ids(e)).tolist()) for e in (0, 1)]
    assert [len(d) for d in dropped] == [5, 5]
    assert dropped[0] != dropped[1]


@pytest.mark.parametrize("taken", [0, 1, 4, 7])
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"shuffle": True, "bucket": "size"}])
def test_resuming_gives_the_identical_rest(taken, options):
    whole = loader(**options)
    expected = ids(whole) + ids(whole) + ids(whole)
    stopped = loader(**options)
    seen = ids(stopped)
    iterator = iter(stopped)
    seen += ids([next(iterator) for _ in range(taken)])
    state = stopped.state_dict()
    iterator.close()
    resumed = loader(**options)
    resumed.load_state_dict(state)
    seen += ids(resumed) + ids(resumed)
    assert seen == expected


def test_leaving_an_epoch_starts_the_next_one():
    batches = loader(shuffle=True)
    expected = loader(shuffle=True)
    next(iter(batches))
    assert ids(batches) == [i.tolist() for i in expected.epoch_ids(1)]


def test_whole_epoch_does_not_advance_the_loader():
    batches, expected = loader(shuffle=True), loader(shuffle=True)
    first = [i.tolist() for i in expected.epoch_ids(0)]
    seen = []
    for n, item in enumerate(batches):
        state = batches.state_dict()
        assert ids(batches.whole_epoch()) == first  # any number of times
        next(batches.whole_epoch())
        assert batches.state_dict() == state and batches.position == n + 1
        seen.append(list(item.ids))
    assert seen == first
    assert ids(batches) == [i.tolist() for i in expected.epoch_ids(1)]


def test_a_cached_batch_belongs_to_its_collate():
    made = []

    def collate(graphs, ids):
        made.append(ids)
        return batch(graphs, ids)

    class Part:
        whole = staticmethod(collate)

        def __call__(self, graphs, ids):
            return self.whole(graphs[:1], ids[:1])

    kept = loader(collate=Part(), cache=True)
    for _ in range(2):
        assert [len(i) for i in ids(kept)] == [1] * 7
        assert [len(i) for i in ids(kept.whole_epoch())] == [8] * 6 + [5]
    assert len(made) == 7 + 2 * 7


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({"batch_size": 4}, "batch_size", "8"),
        ({"seed": 3}, "seed", "0"),
        ({"graphs": GRAPHS[:-1]}, "num_graphs", "53"),
        ({"bucket": "size"}, "bucket", "None"),
    ],
)
def test_a_state_of_another_loader_is_refused(options, name, value):
    with pytest.raises(CheckpointError, match=f"{name}={value}"):
        loader(**options).load_state_dict(loader().state_dict())


@pytest.mark.parametrize("change", [{"position": 99}, {"epoch": -1}, {"position": "x"}])
def test_a_damaged_state_is_refused(change):
    with pytest.raises(CheckpointError, match="saved at epoch"):
        loader().load_state_dict(loader().state_dict() | change)
    with pytest.raises(CheckpointError, match="no 'num_graphs'"):
        loader().load_state_dict({})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"graphs": []}, "no graphs"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"bucket": "width"}, "'width'"),
        ({"prefetch": -1}, "prefetch is -1"),
        ({"cache": True, "shuffle": True}, "cache=True with shuffle=True"),
        ({"batch_size": 100, "drop_last": True}, "leaves nothing of 53 graphs"),
    ],
)
def test_invalid_options_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        loader(**options)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_graph_that_causes_an_error_is_named(prefetch):
    bad = list(GRAPHS)
    bad[20] = make_graph(np.zeros((2, 6)), np.zeros(2))
    seen = []
    with pytest.raises(FeatureError, match=r"\"label\" differs(.|\n)*\(batch 2 of epoch 0\)") as e:
        for item in loader(bad, prefetch=prefetch):
            seen.append(item)
    assert ids(seen) == [list(range(8)), list(range(8, 16))]
    assert "graph 20" in str(e.value)
    assert not prefetch_threads()


def test_an_error_of_another_class_is_wrapped():
    def broken(graphs, ids):
        if {9, 12} & set(ids.tolist()):
            raise RuntimeError(f"levels -1 in {ids.tolist()}")
        return batch(graphs, ids.tolist())

    with pytest.raises(DataError, match=r"graphs 9, 12 of .*RuntimeError: levels -1 in \[8, 9"):
        list(loader(collate=broken))


def test_copied_and_pickled_loaders_have_no_session():
    session = Session(Classifier(), threads=1)
    batches = loader(trees(9), cache=True)
    batches.prepare = session.prepare
    first = ids(batches)
    for copied in (pickle.loads(pickle.dumps(batches)), copy.deepcopy(batches)):
        assert (copied.prepare, copied.epoch) == (None, 1)
        assert ids(copied) == first
    assert batches.prepare == session.prepare
    used = weakref.ref(session)
    del session
    gc.collect()
    assert used() is None
    assert batches.prepare is None
    assert ids(batches) == first


@pytest.mark.parametrize("error", [OSError("gone"), StopIteration(), DataError("bad", hint="fix")])
def test_an_error_of_the_data_set_names_the_graph_with_buckets_too(error):
    class Data:
        def __len__(self):
            return len(GRAPHS)

        def __getitem__(self, i):
            if i == 17:
                raise error
            return GRAPHS[i]

    raised = Data.__getitem__.__code__.co_firstlineno + 2  # not the line that reads the item
    line = getattr(error, "where", f"test_loader.py:{raised}")
    told = "bad\n  in graph 17 of the data set\n  hint: fix"
    if not isinstance(error, DataError):
        told = f"cannot prepare graph 17 of the data set: {type(error).__name__}: {error}"
    with pytest.raises(DataError) as caught:
        loader(Data(), bucket="size")
    here = f"\n  from {caught.value.where}"
    assert here == f"\n  from {line}"
    assert str(caught.value).replace(here, "") == told


def test_an_error_in_prepare_is_raised_by_the_consumer():
    batches = loader()

    def prepare(item):
        if 30 in item.ids:
            raise GraphError("arity 7, but the cell takes 2")

    batches.prepare = prepare
    with pytest.raises(GraphError, match=r"arity 7.*\n  in graph 30 "):
        list(batches)


def test_prefetch_runs_ahead_by_its_depth_only():
    made = []

    def slow(graphs, ids):
        made.append(len(made))
        return batch(graphs, ids.tolist())

    iterator = iter(loader(collate=slow, prefetch=2))
    next(iterator)
    deadline = time.monotonic() + patience(5)
    while len(made) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.05)
    assert len(made) == 3
    iterator.close()
    assert not prefetch_threads()


def test_the_thread_ends_when_the_iterator_is_dropped():
    iterator = iter(loader())
    next(iterator)
    assert len(prefetch_threads()) == 1
    del iterator
    gc.collect()
    assert not prefetch_threads()


@pytest.mark.parametrize("limit", [True, 7000])
def test_cache_reuses_batches(limit):
    batches = loader([make_graph(np.zeros((3, 6)), np.zeros(3, int))] * 53, cache=limit)
    first, second = list(batches), list(batches)
    same = [a is b for a, b in zip(first, second, strict=True)]
    assert same == [True] * 7 if limit is True else same == [True] * 3 + [False] * 4
    assert ids(first) == ids(second)


def test_no_hang_at_interpreter_exit():
    code = """
from tests.train.fake import make_graphs
from cavs.data import batch
from cavs.runtime import Session
from cavs.train import DataLoader
import time
from pathlib import Path
def slow(graphs, ids):
    time.sleep(0.01)
    return batch(graphs, ids.tolist())
iterator = iter(DataLoader(make_graphs(500), 2, collate=slow))
next(iterator)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        timeout=patience(20),
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_cached_batch_belongs_to_its_graphs():
    """A batch of another size at the same position is another batch."""
    kept = loader(cache=True)
    before = [batch.num_graphs for batch in kept]
    kept.batch_size = max(kept.batch_size // 2, 1)
    after = [batch.num_graphs for batch in kept]
    assert sum(after) == sum(before) and max(after) < max(before)


def test_an_error_of_a_lazy_data_set_keeps_its_vertex():
    class Lazy:
        def __len__(self):
            return 3

        def __getitem__(self, i):
            error = GraphError("no such child", hint="count from 0")
            error.vertex = 7
            raise error

    with pytest.raises(GraphError, match=r"no such child\n  in .*\n(.|\n)*count from") as caught:
        next(iter(DataLoader(Lazy(), 2, prefetch=0)))
    assert caught.value.vertex == 7
