"""Trainings over sources that are read one after the other, and over batches of the caller."""

import copy
import itertools
import os
import pickle
import signal
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cavs
from cavs.errors import CheckpointError, ConfigError, DataError, FeatureError
from cavs.train import BatchStream, DataLoader, Policy, StreamLoader
from tests.train.test_trainer import DEV, GRAPHS, bits, dev_loader, make, train_loader

CHAINS = [cavs.Graph.chain(1 + i * 7 % 5) for i in range(23)]


def drawn(epoch):
    """Yield other graphs in each epoch."""
    order = np.random.default_rng(epoch).permutation(len(GRAPHS))
    yield from (GRAPHS[i] for i in order)


def of_graphs(ids):
    return cavs.batch([GRAPHS[i] for i in ids], ids)


def batches(epoch):
    for i in range(0, len(GRAPHS), 8):
        yield of_graphs([(i * (epoch + 1) + j) % len(GRAPHS) for j in range(8)])


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def ids(of):
    return [list(batch.ids) for batch in of]


@given(
    size=st.integers(1, 9),
    shuffle=st.integers(0, 30),
    drop_last=st.booleans(),
    length=st.none() | st.integers(1, 30),
    prefetch=st.sampled_from([0, 2]),
    changes=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 12)), max_size=3),
    stop=st.integers(0, 8),
)
def test_every_graph_comes_once_and_a_resumed_stream_gives_the_rest(
    size, shuffle, drop_last, length, prefetch, changes, stop
):
    def stream():
        options = {"shuffle": shuffle, "drop_last": drop_last, "length": length}
        return StreamLoader(CHAINS, size, prefetch=prefetch, **options)

    def run(of, found=()):
        found = [*found]
        for batch in of:
            found.append(list(batch.ids))
            for at, to in changes:
                if at == len(found) - 1:
                    of.batch_size = to
            assert of.at_end in (False, True)
            yield found

    whole = stream()
    try:
        *_, found = run(whole)
    except ConfigError:
        assert drop_last and size > len(CHAINS)
        return
    seen = flat(found)
    assert len(set(seen)) == len(seen)
    if not shuffle:
        assert seen == list(range(len(seen)))
    if length is None and not drop_last:
        assert sorted(seen) == list(range(len(CHAINS)))
    if length is not None:
        assert len(found) <= length
    first, begun = stream(), []
    for begun in run(first):
        if len(begun) > stop % len(found):
            break
    resumed = stream()
    resumed.load_state_dict(first.state_dict())
    assert [begun, *run(resumed, begun)][-1] == found


def test_a_stream_is_a_loader_of_the_same_graphs():
    stream, listed = StreamLoader(CHAINS, 5), DataLoader(CHAINS, 5)
    for _ in range(2):
        assert ids(stream) == ids(listed)
    assert ids(stream.whole_epoch()) == ids(listed.whole_epoch())
    assert list(stream.peek().ids) == [0, 1, 2, 3, 4] and stream.epoch == 2
    shuffled = StreamLoader(CHAINS, 5, shuffle=9, seed=3)
    first, second = ids(shuffled), ids(shuffled)
    assert first != second and sorted(flat(first)) == sorted(flat(second))
    assert [*map(len, ids(StreamLoader(lambda e: itertools.repeat(CHAINS[0]), 4, length=3)))] == [
        4
    ] * 3


@pytest.mark.parametrize("stop", [1, 7, 8, 9, 20])
@pytest.mark.parametrize(
    "source",
    [
        lambda: StreamLoader(drawn, 8, shuffle=20),
        lambda: StreamLoader(drawn, 8, prefetch=0, length=6),
        lambda: batches,
        lambda: BatchStream(batches, prefetch=0),
        lambda: [of_graphs(range(i, min(i + 8, 60))) for i in range(0, 60, 8)],
    ],
)
def test_resuming_is_bit_identical(source, stop, tmp_path):
    """Stop by Ctrl-C at any step, also the last of an epoch, and resume in a new trainer."""
    whole = make(seed=3)
    expected = whole.fit(source(), epochs=3, dev=dev_loader(), progress=False)
    if whole.steps < stop:
        return
    path = tmp_path / "run"
    first = make(seed=3)
    first.session.on_step = lambda step: step == stop - 1 and os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        first.fit(source(), epochs=3, dev=dev_loader(), checkpoint=path, progress=False)
    assert first.steps == stop
    second = make(seed=9)
    second.resume(path)
    result = second.fit(source(), epochs=3, dev=dev_loader(), checkpoint=path, progress=False)
    assert bits(second) == bits(whole)
    assert first.session.batches + second.session.batches == whole.session.batches
    assert (result.best, result.best_epoch) == (expected.best, expected.best_epoch)


def test_a_stream_trains_as_a_loader_does(capsys):
    listed, streamed, own = make(), make(), make()
    listed.fit(train_loader(shuffle=False, bucket=None), epochs=2, progress=False)
    streamed.fit(StreamLoader(GRAPHS, 8), epochs=2, dev=StreamLoader(DEV, 8))
    own.fit(
        [of_graphs(range(i, min(i + 8, 60))) for i in range(0, 60, 8)], epochs=2, progress=False
    )
    assert bits(listed) == bits(streamed) == bits(own)
    assert "epoch 2/2  loss" in capsys.readouterr().err


def test_an_epoch_ends_after_its_last_batch_where_a_policy_stops():
    class Stops(Policy):
        def __init__(self, at):
            self.at = at

        def after_step(self, run):
            if run.step == self.at:
                run.stop()

    for at, ended in [(5, 0), (8, 1), (9, 1), (16, 2)]:
        for source in (StreamLoader(GRAPHS, 8), batches, train_loader()):
            trainer = make()
            result = trainer.fit(source, epochs=9, policies=[Stops(at)], progress=False)
            assert (trainer.steps, len(result.epochs), result.status) == (at, ended, "stopped")


def test_a_policy_changes_the_batch_size_of_a_stream_alone():
    class Grows(Policy):
        def after_step(self, run):
            run.set_batch_size(20)

    trainer = make()
    trainer.fit(StreamLoader(GRAPHS, 8), epochs=2, policies=[Grows()], progress=False)
    assert [len(b) for b in trainer.session.batches] == [8, 20, 20, 12, 20, 20, 20]
    with pytest.raises(ConfigError, match="batch_size=20 of batches that the caller makes"):
        make().fit(batches, epochs=1, policies=[Grows()], progress=False)


def test_edge_features_of_graphs_without_edges_are_known_to_a_resumed_stream():
    with_edges = cavs.Graph([[], [0]], edge_features={"e": [1.5]})
    graphs = [with_edges, *[cavs.Graph([[]])] * 5]
    assert [list(b.edge_features) for b in StreamLoader(graphs, 2)] == [["e"]] * 3
    first = StreamLoader(graphs, 2)
    next(iter(first))
    resumed = StreamLoader(graphs, 2)
    resumed.load_state_dict(first.state_dict())
    assert [list(b.edge_features) for b in resumed] == [["e"]] * 2


@pytest.mark.parametrize("skips", [False, True])
def test_types_of_vertices_of_earlier_graphs_are_known_to_a_resumed_stream(skips):
    joins = cavs.Graph([[]], types=["join"], features={"join": {"x": [[1.5]]}})
    scans = [cavs.Graph([[]], types=["scan"], features={"scan": {"rows": [2.5]}})] * 5
    graphs = Skipping([joins, *scans]) if skips else [joins, *scans]
    first = StreamLoader(graphs, 2, prefetch=0)
    next(iter(first))
    resumed = StreamLoader(graphs, 2, prefetch=0)
    resumed.load_state_dict(first.state_dict())
    for loader, count in ((StreamLoader(graphs, 2, prefetch=0), 3), (resumed, 2)):
        found = [{t: list(of) for t, of in b.typed_features.items()} for b in loader]
        assert found == [{"join": ["x"], "scan": ["rows"]}] * count


class Skipping:
    """Items that can be read from any number on; counts those that were read."""

    def __init__(self, items, first=0, read=None):
        self.items, self.first, self.read = items, first, [] if read is None else read

    def __iter__(self):
        for i in range(self.first, len(self.items)):
            self.read.append(i)
            yield self.items[i]

    def skip(self, count):
        return Skipping(self.items, self.first + count, self.read)


@pytest.mark.parametrize("of_epoch", [False, True])
@pytest.mark.parametrize("stop", [1, 2, 4, 5])
def test_a_source_that_skips_is_not_read_again(of_epoch, stop):
    edges = cavs.Graph([[], [0]], edge_features={"e": [1.5]})
    source = Skipping([cavs.Graph([[]]), edges, *[cavs.Graph([[]])] * 21])

    def stream():
        return StreamLoader((lambda epoch: source) if of_epoch else source, 5, prefetch=0)

    first, found = stream(), []
    it = iter(first)
    for _ in range(stop):
        found.append(list(next(it).ids))
    resumed = stream()
    resumed.load_state_dict(first.state_dict())
    source.read.clear()
    rest = [(list(batch.ids), list(batch.edge_features)) for batch in resumed]
    assert found + [one for one, _ in rest] == [
        list(range(i, min(i + 5, 23))) for i in range(0, 23, 5)
    ]
    assert all(names == ["e"] for _, names in rest)
    known = [0, 1] if stop > 1 else []  # up to the first graph with an edge
    assert source.read == known + list(range(5 * (stop - 1), 23))


def test_batches_that_are_skipped_and_streams_that_cannot_skip():
    source = Skipping([of_graphs([i]) for i in range(6)])
    first = BatchStream(source, prefetch=0)
    it = iter(first)
    next(it), next(it), next(it), next(it)
    resumed = BatchStream(source, prefetch=0)
    resumed.load_state_dict(first.state_dict())
    source.read.clear()
    assert ids(resumed) == [[4], [5]] and source.read == [3, 4, 5]
    short = BatchStream(Skipping(source.items[:3]), prefetch=0)
    short.load_state_dict(first.state_dict())
    with pytest.raises(CheckpointError, match="ends after 3 of the 4 batches"):
        next(iter(short))
    graphs = Skipping(CHAINS)
    drawn = StreamLoader(graphs, 5, shuffle=7, prefetch=0)
    it = iter(drawn)
    found = [list(next(it).ids) for _ in range(2)]
    resumed = StreamLoader(graphs, 5, shuffle=7, prefetch=0)
    resumed.load_state_dict(drawn.state_dict())
    graphs.read.clear()
    assert sorted(flat(found + ids(resumed))) == list(range(23)) == graphs.read


def test_states_of_another_source_are_refused():
    stream = StreamLoader(CHAINS, 5)
    it = iter(stream)
    next(it), next(it), next(it)
    state = stream.state_dict()
    with pytest.raises(CheckpointError, match="saved with batch_size=5, but has 4"):
        StreamLoader(CHAINS, 4).load_state_dict(state)
    with pytest.raises(CheckpointError, match="saved with shuffle=0, but has 3"):
        StreamLoader(CHAINS, 5, shuffle=3).load_state_dict(state)
    with pytest.raises(CheckpointError, match="has no 'num_graphs'"):
        DataLoader(CHAINS, 5).load_state_dict(state)
    with pytest.raises(CheckpointError, match="saved with stream='graphs', but has 'batches'"):
        BatchStream([1]).load_state_dict(state | {"length": None})
    shorter = StreamLoader(CHAINS[:9], 5)
    shorter.load_state_dict(state)
    with pytest.raises(
        CheckpointError, match="ends after 9 of the 15 graphs that the run had read"
    ):
        next(iter(shorter))
    ended = StreamLoader(CHAINS[:13], 5)  # the third batch is the last
    ended.load_state_dict(state)
    assert ids(ended) == []


@pytest.mark.parametrize("prefetch", [0, 2])
def test_errors_name_the_graph(prefetch):
    def broken(epoch):
        yield from CHAINS[:7]
        raise OSError("gone")

    found = []
    stream = StreamLoader(broken, 5, prefetch=prefetch)
    with pytest.raises(
        DataError, match=r"cannot prepare item 7 of the source \(epoch 0\): OSError"
    ):
        found.extend(stream)
    assert [b.num_graphs for b in found] in ([], [5])  # it is known to be no last one
    with pytest.raises(FeatureError, match=r"graph 6 of the source \(batch 1 of epoch 0\)"):
        list(StreamLoader([*CHAINS[:6], None, *CHAINS], 5, prefetch=prefetch))
    with pytest.raises(ConfigError, match=r"item 0 of the source is Graph.*, not a batch"):
        make().fit(lambda epoch: CHAINS, epochs=1, progress=False)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: StreamLoader(iter(CHAINS)), "gives its items once"),
        (
            lambda: make().fit((b for b in batches(0)), epochs=1, progress=False),
            "gives its items once",
        ),
        (lambda: StreamLoader(3), "source is 3"),
        (lambda: StreamLoader("abc"), "source is 'abc'"),
        (lambda: StreamLoader(CHAINS, length=0), "length is 0"),
        (lambda: StreamLoader(CHAINS, shuffle=-1), "shuffle is -1"),
        (lambda: list(StreamLoader([])), "the source has no graph in epoch 0"),
        (lambda: StreamLoader([]).peek(), "the source has no graph in epoch 0"),
        (lambda: make().fit([], epochs=1, progress=False), "the source has no batch in epoch 0"),
        (lambda: make().fit(CHAINS, epochs=1, progress=False), r"train is \[Graph"),
        (lambda: make().fit(3, epochs=1, progress=False), "train is 3"),
    ],
)
def test_sources_that_cannot_be_read(wrong, message):
    with pytest.raises(ConfigError, match=message):
        wrong()


def test_threads_end_and_copies_have_no_reader():
    before = threading.active_count()
    stream = StreamLoader(CHAINS, 5)
    iterator = iter(stream)
    next(iterator)
    for other in (copy.copy(stream), pickle.loads(pickle.dumps(stream))):
        assert other.position == 1 and len(ids(other)) == 5
    iterator.close()
    assert threading.active_count() == before


def test_a_run_that_a_broken_source_has_ended_resumes_with_the_corrected_one(tmp_path):
    def broken(epoch):
        for i, graph in enumerate(drawn(epoch)):
            if (epoch, i) == (1, 37):
                raise OSError("gone")
            yield graph

    whole = make()
    whole.fit(StreamLoader(drawn, 8, shuffle=5), epochs=3, progress=False)
    first, path = make(), tmp_path / "run"
    with pytest.raises(DataError, match="item 37 of the source"):
        source = StreamLoader(broken, 8, shuffle=5)
        first.fit(source, epochs=3, checkpoint=path, progress=False)
    assert 8 < first.steps < 16
    second = make()
    second.resume(path)
    assert second.steps == first.steps
    second.fit(StreamLoader(drawn, 8, shuffle=5), epochs=3, progress=False)
    assert bits(second) == bits(whole)


def test_an_evaluation_of_the_training_stream_does_not_disturb_it():
    expected, trainer, source = make(), make(), StreamLoader(drawn, 8, shuffle=5)
    expected.fit(StreamLoader(drawn, 8, shuffle=5), epochs=2, progress=False)

    def told(event, record):
        trainer.evaluate(source)

    trainer.fit(source, epochs=2, dev=source, on_event=told, progress=False)
    assert bits(trainer) == bits(expected)
