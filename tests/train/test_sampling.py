"""Samplers of a `DataLoader`."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cavs
from cavs.errors import CheckpointError, ConfigError
from cavs.train import DataLoader, WeightedSampler
from tests.train.test_trainer import GRAPHS, bits, make, train_loader

CHAINS = [cavs.Graph.chain(1 + i * 7 % 5) for i in range(12)]
WEIGHTS = [0.0, 1, 2, 3, 4, 0, 1, 1, 1, 1, 1, 0]


def loader(weights=WEIGHTS, count=None, replacement=True, **options):
    sampler = WeightedSampler(weights, count, replacement=replacement)
    return DataLoader(CHAINS, 5, sampler=sampler, **options)


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def ids(batches):
    return [list(batch.ids) for batch in batches]


def test_graphs_come_in_proportion_to_their_weights():
    drawn = loader(count=9000)
    seen = np.bincount(flat(ids(drawn)), minlength=12)
    expected = np.array(WEIGHTS) / sum(WEIGHTS) * 9000
    assert (seen[expected == 0] == 0).all()
    assert (abs(seen - expected) <= 5 * np.sqrt(expected) + 1e-9).all()
    without = [sorted(flat(ids([*loader(count=9, replacement=False)]))) for _ in range(2)]
    assert without == [[1, 2, 3, 4, 6, 7, 8, 9, 10]] * 2
    firsts = np.zeros(12)
    sampler = WeightedSampler(WEIGHTS, 1, replacement=False)
    rng = np.random.default_rng(0)
    for _ in range(3000):
        firsts[sampler(rng)[0]] += 1
    expected = np.array(WEIGHTS) / sum(WEIGHTS) * 3000
    assert (abs(firsts - expected) <= 5 * np.sqrt(expected) + 1e-9).all()


@given(
    count=st.integers(1, 30),
    changes=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 12)), max_size=3),
    bucket=st.sampled_from([None, "size"]),
    drop_last=st.booleans(),
)
def test_an_epoch_is_what_the_sampler_draws_for_any_batch_size(count, changes, bucket, drop_last):
    def run(of, found=()):
        found = [*found]
        for batch in of:
            found.append(list(batch.ids))
            for at, to in changes:
                if at == len(found) - 1 and not (drop_last and count < to):
                    of.batch_size = to
            yield found

    drop_last = drop_last and count >= 5
    options = {"count": count, "bucket": bucket, "drop_last": drop_last}
    whole = loader(**options)
    *_, found = run(whole)
    drawn = sorted(WeightedSampler(WEIGHTS, count)(np.random.default_rng((0, 0))).tolist())
    seen = sorted(flat(found))
    assert seen == drawn if not drop_last else len(seen) <= count and set(seen) <= set(drawn)
    # A run that stops within the epoch continues with the same batches.
    first = loader(**options)
    for begun in run(first):
        if len(begun) >= len(found) // 2:
            break
    resumed = loader(**options)
    resumed.load_state_dict(first.state_dict())
    assert [begun, *run(resumed, begun)][-1] == found


def test_a_resumed_training_has_the_bits_of_a_whole_one(tmp_path):
    def sampled(seed=1):
        weights = np.random.default_rng(seed).random(len(GRAPHS))
        return train_loader(shuffle=False, sampler=WeightedSampler(weights, 40))

    whole = make()
    whole.fit(sampled(), epochs=3, progress=False)
    path = tmp_path / "run"
    first = make()
    first.session.on_step = lambda step: first.session.batches[7:] and 1 / 0
    with pytest.raises(ZeroDivisionError):
        first.fit(sampled(), epochs=3, progress=False, checkpoint=path, checkpoint_every=1)
    second = make()
    second.resume(path)
    second.fit(sampled(), epochs=3, progress=False)
    assert bits(second) == bits(whole)
    second = make()
    second.resume(path)
    with pytest.raises(CheckpointError, match=r"saved with the sampler .*, but has"):
        second.fit(sampled(2), epochs=3, progress=False)
    with pytest.raises(CheckpointError, match=r"saved with the sampler .*, but has None"):
        second.fit(train_loader(shuffle=False), epochs=3, progress=False)


class Ends:
    """A sampler of a user."""

    def __init__(self, drawn=(0, 11, 0)):
        self.drawn = drawn

    def __len__(self):
        return 3

    def __call__(self, rng):
        return self.drawn


def test_a_sampler_of_a_user():
    own = DataLoader(CHAINS, 2, sampler=Ends())
    assert ids(own) == [[0, 11], [0]] and len(own) == 2
    state = own.state_dict()
    assert state["sampler"] == ["Ends", None]
    DataLoader(CHAINS, 2, sampler=Ends()).load_state_dict(state)
    for drawn, message in [
        ((0, 1), r"drew an array of int64 of shape \[2\]; expected 3 integers"),
        ((0.0, 1.0, 2.0), "an array of float64"),
        ((0, 12, 1), "drew graph 12 of 12"),
        ((0, -1, 1), "drew graph -1 of 12"),
    ]:
        with pytest.raises(ConfigError, match=message):
            next(iter(DataLoader(CHAINS, 2, sampler=Ends(drawn))))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: loader(shuffle=True), "shuffle=True with a sampler"),
        (lambda: loader(cache=True), "cache=True with a sampler"),
        (lambda: loader([1, 2]), "the sampler has 2 weights for 12 graphs"),
        (lambda: loader([-1.0] * 12), "weights is"),
        (lambda: loader([np.nan] * 12), "weights is"),
        (lambda: loader([0.0] * 12), "weights is"),
        (lambda: loader(count=10, replacement=False), "10 graphs without replacement, but 9 have"),
        (lambda: loader(count=0), "count is 0"),
        (lambda: loader(count=4, drop_last=True), "leaves nothing of 4 graphs"),
        (lambda: DataLoader(CHAINS, sampler=[1, 2]), "sampler is"),
        (lambda: DataLoader(CHAINS, sampler=lambda rng: [0]), "sampler is"),
    ],
)
def test_samplers_that_do_not_fit(wrong, message):
    with pytest.raises(ConfigError, match=message):
        wrong()
