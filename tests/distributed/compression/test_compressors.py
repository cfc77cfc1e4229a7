"""Compressors: residuals are sent later, and messages have the stated size."""

import math
import threading
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cavs.distributed.compression import (
    BFloat16,
    ErrorFeedback,
    Float16,
    OneBit,
    PowerSGD,
    TopK,
    lockstep,
    parse,
    run,
)
from cavs.distributed.compression.fewer_numbers import orthonormal
from cavs.errors import ConfigError

LOSSY = [
    "float16",
    "bfloat16",
    "error_feedback(float16)",
    "error_feedback(bfloat16)",
    "onebit",
    "powersgd(rank=2)",
    "topk(ratio=0.1)",
]
KEEPING = [name for name in LOSSY if name not in ("float16", "bfloat16")]
ALL = ["none", *LOSSY, "topk(ratio=0.05, momentum=0.9, clip=3, warm_up=5)"]
shapes = st.one_of(
    st.tuples(st.integers(1, 40)),
    st.tuples(st.integers(1, 12), st.integers(1, 12)),
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
)


def gradients_of(rng, ranks, shape, dtype=np.float64):
    return [rng.standard_normal(shape).astype(dtype) for _ in range(ranks)]


def starts(compressor, ranks, shape, dtype=np.float64):
    return [compressor.start(shape, dtype, seed=3) for _ in range(ranks)]


@pytest.mark.parametrize("name", ALL)
@given(shapes, st.integers(1, 5), st.sampled_from([np.float32, np.float64]), st.integers(0, 99))
@settings(deadline=None, max_examples=25)
def test_ranks_agree_and_sent_values_add_up(name, shape, ranks, dtype, seed):
    """Every rank ends with the same bits, the sent values add up to the total, arguments stay
    unchanged.
    """
    rng = np.random.default_rng(seed)
    compressor = parse(name)
    states = starts(compressor, ranks, shape, dtype)
    for _ in range(3):
        gradients = gradients_of(rng, ranks, shape, dtype)
        before = [g.copy() for g in gradients]
        results, _ = lockstep(compressor, gradients, states)
        states = [r.state for r in results]
        total = results[0].total
        assert total.shape == shape and total.dtype == dtype
        for result in results:
            assert result.total.tobytes() == total.tobytes()
        shares = sum(r.sent for r in results)
        scale = max(1.0, sum(np.abs(g).max() for g in gradients))
        tolerance = 1e-4 if dtype == np.float32 else 1e-6
        assert np.allclose(shares, total, rtol=0, atol=tolerance * scale)
        assert all(np.array_equal(a, b) for a, b in zip(before, gradients, strict=True))


@pytest.mark.parametrize("name", ALL)
@given(shapes, st.integers(1, 5), st.sampled_from([np.float32, np.float64]))
@settings(deadline=None, max_examples=25)
def test_wire_bytes_are_as_stated(name, shape, ranks, dtype):
    compressor = parse(name)
    rng = np.random.default_rng(0)
    states = starts(compressor, ranks, shape, dtype)
    for step in range(3):
        results, rounds = lockstep(compressor, gradients_of(rng, ranks, shape, dtype), states)
        states = [r.state for r in results]
        stated = compressor.rounds(shape, np.dtype(dtype).itemsize, ranks, step)
        assert [r.collective for r in stated] == [requests[0].collective for requests in rounds]
        for expected, requests in zip(stated, rounds, strict=True):
            sizes = [sum(a.nbytes for a in request.arrays) for request in requests]
            # A part of an all-gather is whole elements; the stated size is the mean of the ranks.
            assert sum(sizes) == pytest.approx(expected.nbytes * ranks)


@pytest.mark.parametrize("name", KEEPING)
@pytest.mark.parametrize("ranks", [1, 3])
def test_sums_over_steps_converge_to_the_true_sums(name, ranks):
    """Values sent over t steps differ from the sum of gradients by one bounded error."""
    rng = np.random.default_rng(1)
    shape = (12, 9)
    compressor = parse(name)
    states = starts(compressor, ranks, shape)
    mean = rng.standard_normal(shape)
    true, seen = np.zeros(shape), np.zeros(shape)
    errors = []
    for _ in range(400):
        gradients = [mean + 0.3 * g for g in gradients_of(rng, ranks, shape)]
        results, _ = lockstep(compressor, gradients, states)
        states = [r.state for r in results]
        true += sum(gradients)
        seen += results[0].total
        errors.append(np.linalg.norm(true - seen))
    # The error does not grow: its second half is at most as large as its first.
    assert max(errors[200:]) <= 1.5 * max(errors[:200])
    assert errors[-1] / np.linalg.norm(true) < 0.1
    kept = sum(s["unsent"] if "unsent" in s else s["error"] for s in states)
    assert np.allclose(true - seen, kept, atol=1e-6)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_error_feedback_makes_a_difference(name):
    """A gradient too small for the format next to another gets through only with feedback."""
    gradient = np.full(8, 1.0 + 2**-12)
    sums = {}
    for text in (name, f"error_feedback({name})"):
        compressor = parse(text)
        state = compressor.start((8,), np.float64)
        total = np.zeros(8)
        for _ in range(256):
            (result,), _ = lockstep(compressor, [gradient], [state])
            state, total = result.state, total + result.total
        sums[text] = abs(total / 256 - gradient).max()
    assert sums[name] > 2**-13
    assert sums[f"error_feedback({name})"] < 2**-14


@pytest.mark.parametrize("name", ALL)
def test_deterministic(name):
    def once():
        rng = np.random.default_rng(5)
        compressor = parse(name)
        states = starts(compressor, 3, (7, 11), np.float32)
        for _ in range(4):
            results, _ = lockstep(compressor, gradients_of(rng, 3, (7, 11), np.float32), states)
            states = [r.state for r in results]
        return results[0].total.tobytes()

    assert once() == once()


@given(st.integers(1, 4), st.integers(8, 20), st.integers(8, 20), st.integers(1, 3))
@settings(deadline=None)
def test_powersgd_of_a_matrix_of_its_rank_is_exact(rank, rows, columns, ranks):
    rng = np.random.default_rng(rank)
    base = rng.standard_normal((rows, rank))
    gradients = [base @ rng.standard_normal((rank, columns)) for _ in range(ranks)]
    compressor = PowerSGD(rank=rank)
    results, rounds = lockstep(compressor, gradients, starts(compressor, ranks, (rows, columns)))
    assert np.allclose(results[0].total, sum(gradients), rtol=1e-8, atol=1e-8)
    if rank * (rows + columns) < rows * columns:
        assert len(rounds) == 2
        assert np.allclose(sum(r.state["error"] for r in results), 0, atol=1e-8)


def test_powersgd_sends_vectors_and_small_matrices_uncompressed():
    for shape in [(7,), (1, 9), (9, 1), (3, 3), (2, 2, 2)]:
        compressor = PowerSGD(rank=4)
        gradients = gradients_of(np.random.default_rng(0), 2, shape)
        results, rounds = lockstep(compressor, gradients, starts(compressor, 2, shape))
        assert len(rounds) == 1
        assert np.array_equal(results[0].total, gradients[0] + gradients[1])


def test_powersgd_finds_the_large_directions_over_steps():
    rng = np.random.default_rng(0)
    u, _ = np.linalg.qr(rng.standard_normal((30, 30)))
    v, _ = np.linalg.qr(rng.standard_normal((20, 20)))
    matrix = (u[:, :20] * 0.5 ** np.arange(20)) @ v.T
    compressor = PowerSGD(rank=2)
    right = compressor.start(matrix.shape, np.float64)["right"]
    for _ in range(20):  # without feedback: the same matrix, only the factor is kept
        (result,), _ = lockstep(compressor, [matrix], [{"error": 0 * matrix, "right": right}])
        right = result.state["right"]
    best = np.sqrt(sum(0.25**i for i in range(2, 20)))
    assert np.linalg.norm(matrix - result.total) <= 1.001 * best


@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 99), st.booleans())
def test_orthonormal_columns(rows, columns, seed, dependent):
    matrix = np.random.default_rng(seed).standard_normal((rows, columns))
    if dependent and columns > 1:
        matrix[:, -1] = 2 * matrix[:, 0]
    q = orthonormal(matrix)
    gram = q.T @ q
    used = np.diag(gram) > 0.5
    assert np.allclose(gram, np.diag(used.astype(float)), atol=1e-9)
    assert used.sum() == np.linalg.matrix_rank(matrix)
    assert np.allclose(q @ (q.T @ matrix), matrix, atol=1e-9)


def test_orthonormal_of_an_empty_matrix():
    assert not orthonormal(np.zeros((3, 2))).any()
    assert np.isnan(orthonormal(np.full((3, 2), np.nan))).all()


@given(st.lists(st.floats(width=32, allow_subnormal=False), min_size=1, max_size=9))
def test_bfloat16_rounds_to_nearest(values):
    array = np.array(values, np.float32)
    code = BFloat16()
    back = code.decode(code.encode(array), np.float32)
    assert np.array_equal(np.isnan(back), np.isnan(array))
    assert np.array_equal(np.isinf(back), np.isinf(array))
    finite = np.isfinite(array)
    big = np.abs(array[finite]) > 3.38e38
    error = np.abs(back[finite] - array[finite])
    assert np.all(error[~big] <= np.abs(array[finite][~big]) * 2.0**-8)
    assert np.array_equal(code.encode(back), code.encode(array))


def test_float16_clips_finite_numbers_only():
    code = Float16()
    array = np.array([1e6, -1e6, np.inf, -np.inf, np.nan, 1.5])
    back = code.decode(code.encode(array), np.float64)
    assert back.tolist()[:4] == [65504, -65504, math.inf, -math.inf]
    assert math.isnan(back[4]) and back[5] == 1.5


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_values_are_seen_and_do_not_stay(name, bad):
    """The total shows it, so the step is refused; later steps are finite again."""
    shape = (6, 7)
    compressor = parse(name)
    states = starts(compressor, 2, shape)
    gradients = gradients_of(np.random.default_rng(0), 2, shape)
    gradients[1][2, 3] = bad
    with np.errstate(invalid="ignore"):
        results, _ = lockstep(compressor, gradients, states)
        assert not np.isfinite(results[0].total).all()
        states = [r.state for r in results]
        for _ in range(3):
            gradients = gradients_of(np.random.default_rng(1), 2, shape)
            results, _ = lockstep(compressor, gradients, states)
            states = [r.state for r in results]
            assert np.isfinite(results[0].total).all()


def test_onebit_is_signs_and_two_means():
    gradient = np.array([1.0, 3.0, -2.0, -4.0, -6.0])
    (result,), rounds = lockstep(OneBit(), [gradient], [{}])
    assert result.total.tolist() == [2, 2, -4, -4, -4]
    assert rounds[0][0].array.nbytes == 9


def test_topk_sends_the_largest_and_keeps_the_rest():
    gradient = np.array([0.1, -5.0, 2.0, 0.3])
    compressor = TopK(ratio=0.5)
    (result,), _ = lockstep(compressor, [gradient], starts(compressor, 1, (4,)))
    assert result.total.tolist() == [0, -5, 2, 0]
    assert result.state["unsent"].tolist() == [0.1, 0, 0, 0.3]


def test_topk_momentum_correction_and_factor_masking():
    """Unsent values accumulate momentum as in SGD; sent values reset it."""
    compressor = TopK(ratio=0.5, momentum=0.5)
    state = compressor.start((2,), np.float64)
    for _ in range(3):
        (result,), _ = lockstep(compressor, [np.array([8.0, 1.0])], [state])
        state = result.state
    assert result.total.tolist() == [8, 0]  # masked: 8 each time, not 8 + 4 + ...
    assert state["velocity"].tolist() == [0, 1.75]
    assert state["unsent"].tolist() == [0, 1 + 1.5 + 1.75]


@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -3.0, math.inf, math.nan]), min_size=1),
    st.floats(0.01, 1.0),
)
def test_topk_sends_the_first_of_equal_magnitudes(numbers, ratio):
    gradient = np.array(numbers)
    compressor = TopK(ratio=ratio)
    (result,), _ = lockstep(compressor, [gradient], starts(compressor, 1, gradient.shape))
    magnitude = np.where(np.isfinite(gradient), np.abs(gradient), np.inf)
    first = np.argsort(-magnitude, kind="stable")[: compressor.count(gradient.size, 0)]
    expected = np.zeros_like(gradient)
    expected[first] = gradient[first]
    assert np.array_equal(result.sent, expected, equal_nan=True)


def test_topk_of_an_empty_gradient():
    (result,), _ = lockstep(TopK(), [np.empty(0)], starts(TopK(), 1, (0,)))
    assert result.total.size == 0


def test_topk_clips_each_rank_to_its_share():
    compressor = TopK(ratio=1.0, clip=2.0)
    gradients = [np.array([30.0, 40.0])] * 4
    results, _ = lockstep(compressor, gradients, starts(compressor, 4, (2,)))
    assert np.allclose(results[0].sent, [0.6, 0.8])  # norm 2 / sqrt(4)
    assert np.allclose(results[0].total, [2.4, 3.2])
    averaged = compressor.averaged(4)  # dividing by 4 gives the same value
    results, _ = lockstep(averaged, gradients, starts(averaged, 4, (2,)))
    assert np.allclose(results[0].total / 4, [2.4, 3.2])
    assert parse("float16").averaged(4) == parse("float16")


def test_topk_warms_up():
    compressor = TopK(ratio=0.001, warm_up=4)
    counts = [compressor.count(10_000, step) for step in range(6)]
    assert counts[0] == 2500
    assert counts[4] == counts[5] == 10
    ratios = [a / b for a, b in pairwise(counts[:5])]
    assert max(ratios) / min(ratios) < 1.05
    assert TopK(ratio=0.5, warm_up=9).count(10, 0) == 5
    assert TopK(ratio=0.001).count(10, 0) == 1


@pytest.mark.parametrize("text", ALL)
def test_names_are_read_and_written(text):
    assert parse(str(parse(text))) == parse(text)
    assert parse(f" {text} ".replace("(", " ( ")) == parse(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("zip", "unknown compressor 'zip'"),
        ("", "unknown compressor ''"),
        ("float16)", "unknown compressor"),
        ("powersgd(rank=0)", "rank is '0'"),
        ("powersgd(rank=1.5)", "rank is '1.5'"),
        ("powersgd(2)", "'2'"),
        ("powersgd(rank=1, rank=2)", "'rank=2'"),
        ("powersgd(width=2)", "'width=2'"),
        ("float16(rank=2)", "no options"),
        ("onebit(rank=2)", "no options"),
        ("topk(ratio=0)", "ratio is '0'"),
        ("topk(ratio=2)", "ratio is '2'"),
        ("topk(ratio=nan)", "ratio is 'nan'"),
        ("topk(clip=inf)", "clip is 'inf'"),
        ("topk(momentum=1)", "momentum is '1'"),
        ("error_feedback(none)", "none loses nothing"),
        ("error_feedback(onebit)", "feeds its own errors back"),
        ("error_feedback", "none loses nothing"),
        ("error_feedback(zip)", "unknown compressor 'zip'"),
    ],
)
def test_invalid_names_are_refused(text, words):
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert words in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("value", [3, None, [1], {}])
def test_names_that_are_no_strings(value):
    with pytest.raises(ConfigError, match="which is no string"):
        parse(value)


class Group:
    """Ranks as threads with barriers: the operations that a communicator must offer."""

    def __init__(self, size):
        self.barrier = threading.Barrier(size)
        self.slots = [None] * size


class Rank:
    def __init__(self, group, rank):
        self.group, self.rank, self.size = group, rank, len(group.slots)

    def _share(self, value):
        self.group.slots[self.rank] = value
        self.group.barrier.wait()
        values = list(self.group.slots)
        self.group.barrier.wait()
        return values

    def all_reduce(self, array):
        array[...] = sum(self._share(array.copy()))

    def all_gather(self, array):
        return self._share(array)

    def all_to_all(self, parts):
        return [theirs[self.rank] for theirs in self._share(parts)]


@pytest.mark.parametrize("name", ALL)
def test_on_a_communicator_as_in_lockstep(name):
    compressor, shape = parse(name), (9, 8)
    gradients = gradients_of(np.random.default_rng(0), 3, shape)
    expected, _ = lockstep(compressor, gradients, starts(compressor, 3, shape))
    group, results = Group(3), {}

    def work(rank):
        state = compressor.start(shape, np.float64, seed=3)
        results[rank] = run(compressor, gradients[rank], state, Rank(group, rank))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in range(3):
        assert np.array_equal(results[rank].total, expected[rank].total)
        assert np.array_equal(results[rank].sent, expected[rank].sent)


def test_ranks_must_run_the_same_operations():
    class Odd(OneBit):
        def reduce(self, gradient, state, rank, ranks):
            if rank:
                return (yield from Float16().reduce(gradient, state, rank, ranks))
            return (yield from super().reduce(gradient, state, rank, ranks))

    with pytest.raises(ConfigError, match="different exchanges"):
        lockstep(Odd(), [np.ones(3)] * 2, [{}] * 2)
    assert isinstance(parse("onebit"), ErrorFeedback)
