"""Sources of streams at the edges: short memory, unknown types, batches of the caller."""

import pytest

import cavs
from cavs.errors import ConfigError, DataError
from cavs.train import BatchStream, StreamLoader
from tests.train.test_stream import CHAINS, Skipping, batches, ids
from tests.train.test_trainer import GRAPHS, bits, make
from tests.train.truncated import CARRY, PARTS, loader, text_chains
from tests.train.truncated import bits as carried_bits
from tests.train.truncated import trainer as carrying


def test_a_source_that_skips_is_read_again_where_vertices_have_types():
    """Any graph that was read before may be the first with a type of vertices."""
    joins = cavs.Graph([[]], types=["join"], features={"join": {"x": [[1.5]]}})
    scans = [cavs.Graph([[]], types=["scan"], features={"scan": {"rows": [2.5]}})] * 5
    source = Skipping([joins, *scans])
    first = StreamLoader(source, 2, prefetch=0)
    it = iter(first)
    next(it), next(it)
    resumed = StreamLoader(source, 2, prefetch=0)
    resumed.load_state_dict(first.state_dict())
    source.read.clear()
    (batch,) = resumed
    assert {name: list(of) for name, of in batch.typed_features.items()} == {
        "join": ["x"],
        "scan": ["rows"],
    }
    assert source.read == [0, 0, 1, 2, 3, 4, 5]  # once for the types of the first


def test_a_source_that_skips_may_have_no_edge_at_all():
    source = Skipping([cavs.Graph([[]], {"x": [float(i)]}) for i in range(7)])
    first = StreamLoader(source, 2, prefetch=0)
    it = iter(first)
    next(it), next(it)
    resumed = StreamLoader(source, 2, prefetch=0)
    resumed.load_state_dict(first.state_dict())
    source.read.clear()
    assert ids(resumed) == [[4, 5], [6]]
    assert source.read == [*range(7), *range(2, 7)]  # all for an edge, then one batch before


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_lack_of_memory_is_not_blamed_on_a_batch(prefetch):
    def prepare(batch):
        raise MemoryError("no more")

    stream = BatchStream(batches, prefetch=prefetch)
    stream.prepare = prepare
    with pytest.raises(MemoryError, match=r"^no more$"):
        next(iter(stream))
    graphs = StreamLoader(CHAINS, 5, prefetch=prefetch)
    graphs.prepare = prepare
    with pytest.raises(MemoryError, match=r"^no more$"):
        next(iter(graphs))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_another_error_of_the_preparation_names_the_batch(prefetch):
    def prepare(batch):
        raise ValueError("too deep")

    stream = BatchStream(batches, prefetch=prefetch)
    stream.prepare = prepare
    told = r"cannot prepare batch 0 of epoch 0: ValueError: too deep"
    with pytest.raises(DataError, match=told):
        next(iter(stream))


@pytest.mark.parametrize(
    "train", [{"train": GRAPHS}, "train.txt", b"train", list], ids=["dict", "str", "bytes", "type"]
)
def test_a_training_needs_a_loader_or_batches(train):
    trainer = make()
    before = bits(trainer)
    with pytest.raises(ConfigError, match=r"but must be a cavs\.DataLoader, a StreamLoader, or b"):
        trainer.fit(train, epochs=1, progress=False)
    assert bits(trainer) == before


def test_the_smallest_batch_of_the_caller_is_that_of_its_first():
    small = cavs.batch(GRAPHS[:3], range(3))
    assert BatchStream([small, cavs.batch(GRAPHS[:8], range(8))]).smallest_batch == 3
    assert StreamLoader(GRAPHS, 8).smallest_batch == 8


def test_batches_of_the_caller_carry_states_as_a_loader_does():
    given, listed = carrying(), carrying()
    given.fit(list(loader()), epochs=2, carry=CARRY, progress=False)
    listed.fit(loader(), epochs=2, carry=CARRY, progress=False)
    assert carried_bits(given) == carried_bits(listed)


def test_states_are_carried_along_a_stream_that_keeps_its_order():
    ordered, listed, graphs = carrying(), carrying(), text_chains()
    ordered.fit(StreamLoader(graphs, PARTS), epochs=1, carry=CARRY, progress=False)
    listed.fit(loader(graphs), epochs=1, carry=CARRY, progress=False)
    assert carried_bits(ordered) == carried_bits(listed)
    told = "but train has the graphs of an epoch in an order of its own"
    with pytest.raises(ConfigError, match=told):
        ordered.fit(StreamLoader(graphs, PARTS, shuffle=9), epochs=2, carry=CARRY, progress=False)
