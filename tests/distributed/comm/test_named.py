"""Named collectives: any order, the same bits, one state a name, errors on all ranks."""

import functools
import threading
import time
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cavs.distributed.comm import LostPeerError, SingleCommunicator, run_threads
from cavs.distributed.comm.collective_state import CHUNK
from cavs.distributed.comm.topology import NAMES
from cavs.errors import CommunicationError, ConfigError
from tests.draws import EXAMPLES
from tests.patience import patience

COUNT = 200
TYPES = ("all-reduce", "broadcast", "all-gather")
DTYPES = ("float32", "float64", "int32", "uint8", "float16")


def draw(seed, count=COUNT):
    """Return collectives as (name, type, size, dtype, op, topology-independent root)."""
    rng = np.random.default_rng([seed, 1])
    drawn = []
    for i in range(count):
        op = ("sum", "min", "max")[rng.integers(3)]
        size = int(rng.choice([0, 1, 3, 50, 2000]))
        drawn.append(
            (
                f"c{i}",
                TYPES[int(rng.choice(3, p=[0.8, 0.1, 0.1]))],
                size,
                str(rng.choice(DTYPES)),
                op,
            )
        )
    return drawn


def value(seed, i, rank, size, dtype):
    """Return an array whose sums are rounded."""
    rng = np.random.default_rng([seed, i, rank])
    return (100 * rng.standard_normal(size)).astype(dtype)


def of_numpy(seed, i, size, collective):
    """Return the bits of a collective along a star: sums in the order of ranks."""
    _, which, n, dtype, op = collective
    wider = which == "all-gather"
    terms = [value(seed, i, rank, n + wider * rank, dtype) for rank in range(size)]
    if which == "broadcast":
        return terms[i % size].tobytes()
    if wider:
        return b"".join(term.tobytes() for term in terms)
    combine = {"sum": np.add, "min": np.minimum, "max": np.maximum}[op]
    return functools.reduce(combine, terms).tobytes()


def launch(named, seed, i, collective):
    name, which, size, dtype, op = collective
    array = value(seed, i, named.rank, size + (which == "all-gather") * named.rank, dtype)
    if which == "broadcast":
        return named.broadcast(name, array, i % named.size)
    if which == "all-gather":
        return named.all_gather(name, array)
    return named.all_reduce(name, array, op)


def run_in_order(named, seed, order, drawn):
    """Launch collectives in an order, half of them on a second thread; return all bits."""
    futures = {}

    def some(part):
        for i in part:
            futures[i] = launch(named, seed, i, drawn[i])

    other = threading.Thread(target=some, args=(order[::2],))
    other.start()
    some(order[1::2])
    other.join()
    named.end_step()
    return [b"".join(np.ascontiguousarray(a).tobytes() for a in result(futures[i])) for i in order]


def result(future):
    assert future.done
    found = future.wait()
    return found if isinstance(found, list) else [found]


def both_orders(c, seeds, topology="AUTO", count=COUNT):
    """Compare collectives in random orders with the same collectives in one order."""
    named = c.named()
    assert named.set_tree(topology)
    for seed in seeds:
        drawn = draw(seed, count)
        rng = np.random.default_rng([seed, 2, c.rank])
        straight = list(range(count))
        mixed = rng.permutation(count).tolist()
        expected = run_in_order(named, seed, straight, drawn)
        if named.routes.text == "STAR":
            assert expected == [of_numpy(seed, i, c.size, drawn[i]) for i in straight]
        step = named.step
        found = run_in_order(named, seed, mixed, drawn)
        assert named.states(step) == 0 and named.states(step - 1) == 0
        for i, bits in zip(mixed, found, strict=True):
            assert bits == expected[i], (seed, drawn[i])
        assert len(set(c.share(zlib.crc32(b"".join(expected))))) == 1
    return named.step


@pytest.mark.parametrize("size", [4, 8])
def test_any_order_gives_the_bits_of_one_order(size):
    """A thorough run asks for 100 seeds."""
    seeds = range(max(min(EXAMPLES, 100), 1))
    steps = run_threads(size, lambda c: both_orders(c, seeds), timeout=patience(120))
    assert steps == [2 * len(seeds)] * size


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.sampled_from("ab"), min_size=1, max_size=5),
    st.sampled_from(NAMES),
    st.integers(0, 1000),
)
def test_any_topology_gives_the_bits_of_one_order(hosts, name, seed):
    run_threads(len(hosts), lambda c: both_orders(c, [seed], name, 12), hosts=hosts)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_arrays_of_several_chunks(size, name):
    n = 2 * CHUNK // 8 + 5

    def work(c):
        named = c.named()
        assert named.set_tree(name)
        mean = value(0, 0, c.rank, n, "float64").reshape(1, n, 1)
        mine = value(0, 1, c.rank, n, "float64")
        futures = [
            named.all_reduce("mean", mean, "mean"),
            named.broadcast("mine", mine, c.size - 1),
        ]
        assert futures[0].wait() is mean and futures[1].wait() is mine
        named.end_step()
        return mean.reshape(-1), mine, named.sent_bytes

    results = run_threads(size, work)
    expected = sum(value(0, 0, r, n, "float64") for r in range(size)) / size
    for mean, mine, _ in results:
        np.testing.assert_allclose(mean, expected, rtol=1e-12, atol=1e-12)
        assert mean.tobytes() == results[0][0].tobytes()
        np.testing.assert_array_equal(mine, value(0, 1, size - 1, n, "float64"))
    # 2 (K - 1) messages of each chunk and K - 1 of the broadcast, each with a short head.
    total = sum(sent for *_, sent in results)
    assert total == pytest.approx(3 * (size - 1) * 8 * n, rel=1e-2)


def test_a_sum_adds_own_values_first_then_those_of_children_in_order():
    def work(c):
        named = c.named()
        assert named.set_tree([1, 1, 1, 2])
        array = value(0, 0, c.rank, 99, "float32")
        return named.all_reduce("a", array).wait()

    v = [value(0, 0, r, 99, "float32") for r in range(4)]
    expected = (v[1] + v[0]) + (v[2] + v[3])
    for found in run_threads(4, work):
        assert found.tobytes() == expected.tobytes()


def test_steps_that_overlap_never_mix():
    """Rank 1 is a step behind: names repeat, and letters of the next step come first."""
    steps = 30

    def work(c):
        named, rng = c.named(), np.random.default_rng(c.rank)
        totals = []
        for step in range(steps):
            arrays = {name: np.full(3, 10.0 * step + c.rank) for name in "abc"}
            roots = np.full(2, step if c.rank == step % c.size else -1)
            with named.one_step():
                named.broadcast("root", roots, step % c.size)
                for name in rng.permutation(list(arrays)):
                    if rng.random() < 0.2:
                        time.sleep(0.002)
                    named.all_reduce(name, arrays[name])
            assert named.states(step) == 0
            assert (roots == step).all()
            totals.append({float(x) for array in arrays.values() for x in array})
        return totals

    for totals in run_threads(3, work):
        assert totals == [{30.0 * step + 3} for step in range(steps)]


def test_letters_of_an_older_cluster_are_dropped():
    def work(c):
        named = c.named()
        key = named._key("a")._replace(version=-1)
        named.post(1 - c.rank, 0, key, [0, 0, 0, 0, 8, 0], [np.ones(8, np.uint8)])
        named.barrier()
        assert named.states(0) == 0
        named.barrier()  # before the other rank sends a letter of this version
        array = np.ones(1)
        named.all_reduce("a", array).wait()
        return array[0]

    assert run_threads(2, work) == [2, 2]


# ---- errors ------------------------------------------------------------------------------------


def errors_of(size, work, timeout=20.0):
    """Return the error that each rank raises in `work(communicator, named)`."""

    def run(c):
        c.barrier()  # a thread that has not started yet would be missing, too
        c.timeout = timeout
        named, error = c.named(), None
        c.barrier()
        try:
            work(c, named)
        except CommunicationError as found:
            error = found
        if not isinstance(error, LostPeerError):
            with pytest.raises(CommunicationError):  # it is given up
                named.all_reduce("later", np.zeros(1)).wait()
            c.barrier()
        return error

    return run_threads(size, run)


def test_a_rank_that_never_launches_is_named_on_all():
    def work(c, named):
        if c.rank == 2:
            time.sleep(0.5)
            return named.barrier()
        named.all_reduce("a", np.zeros(10)).wait()

    begun = time.monotonic()
    errors = errors_of(4, work, timeout=0.3)
    assert time.monotonic() - begun < patience(5)
    assert all("rank 2 never launched 'a' of step 0" in str(error) for error in errors), errors
    text = "waited 0.3 s in all-reduce of 80 bytes of float64 'a' of step 0: rank 2 never launched"
    assert any(text in str(error) for error in errors)


def test_two_ranks_that_wait_for_each_other():
    """Each has launched a collective that the other has not."""

    def work(c, named):
        named.all_reduce("ab"[c.rank], np.zeros(1)).wait()

    errors = errors_of(2, work, timeout=0.3)
    assert all("never launched" in str(error) for error in errors), errors


@pytest.mark.parametrize(
    ("act", "found"),
    [
        (
            lambda n: n.all_reduce("a", np.zeros(3 + (n.rank == 1))),
            ["all-reduce of 24 bytes of float64", "all-reduce of 32 bytes of float64"],
        ),
        (
            lambda n: n.all_reduce("a", np.zeros(4, "f4" if n.rank else "i4")),
            ["all-reduce of 16 bytes of float32", "all-reduce of 16 bytes of int32"],
        ),
        (
            lambda n: n.all_reduce("a", np.zeros(4), "max" if n.rank == 2 else "sum"),
            ["max all-reduce of 32 bytes", "rank 2 "],
        ),
        (
            lambda n: n.broadcast("a", np.zeros(4), n.rank),
            ["broadcast of 32 bytes of float64 by rank"],
        ),
        (
            lambda n: (
                n.broadcast("a", np.zeros(4), 0) if n.rank else n.all_reduce("a", np.zeros(4))
            ),
            ["broadcast of 32 bytes of float64 by rank 0", "as all-reduce of 32 bytes"],
        ),
        (
            lambda n: n.all_gather("a", np.zeros((2, 3 + (n.rank == 1)))),
            ["all-gather of rows of 24 bytes", "all-gather of rows of 32 bytes"],
        ),
    ],
)
def test_mismatched_collectives_are_an_error_on_all(act, found):
    def work(c, named):
        act(named).wait()
        named.barrier()  # a root that is done learns of it at its next call
        named.barrier()

    errors = errors_of(3, work)
    for error in errors:
        assert all(text in str(error) for text in ["launched 'a' of step 0 as", *found]), errors


def test_a_step_that_ends_without_a_collective_is_an_error_on_all():
    def work(c, named):
        future = None if c.rank == 1 else named.all_reduce("a", np.zeros(1))
        if c.rank == 1:
            time.sleep(0.1)
        named.end_step()
        assert future is None
        named.barrier()

    for error in errors_of(3, work):
        assert "rank 1 ended step 0 without 'a', which rank" in str(error)


@pytest.mark.parametrize("size", [2, 4])
def test_a_death_is_an_error_of_all_futures(size):
    def work(c, named):
        futures = [named.all_reduce(f"a{i}", np.zeros(3)) for i in range(5) if c.rank or i != 2]
        if c.rank == 0:
            for future in futures[:2]:
                future.wait()
            c.die()
            raise LostPeerError("this one")
        caught = []
        for future in futures[2:3]:
            with pytest.raises(LostPeerError, match=r"ranks \[0\] are gone") as error:
                future.wait()
            caught.append(error.value)
        with pytest.raises(LostPeerError):
            named.end_step()
        with pytest.raises(LostPeerError):
            named.all_reduce("later", np.zeros(1))
        assert named.states(0) == 0
        raise caught[0]

    assert all(isinstance(error, LostPeerError) for error in errors_of(size, work))


def test_survivors_have_collectives_of_their_own():
    def work(c):
        named = c.named()
        named.all_reduce("a", np.ones(1)).wait()
        if c.rank == 1:
            c.die()
            return None
        with pytest.raises(LostPeerError):
            named.all_reduce("b", np.ones(1)).wait()
        left = c.shrink()
        array = left.named().all_reduce("b", np.ones(1)).wait()
        left.barrier()
        left.close()
        return array[0]

    assert run_threads(3, work) == [2, None, 2]


def test_bad_arguments_are_named():
    named = SingleCommunicator().named()
    named.all_reduce("a", np.ones(3))
    with pytest.raises(ConfigError, match="'a' of step 0 was launched before"):
        named.broadcast("a", np.ones(3), 0)
    with pytest.raises(ConfigError, match="there is no reduction 'median'"):
        named.all_reduce("b", np.ones(3), "median")
    with pytest.raises(ConfigError, match="the mean of arrays of int32"):
        named.all_reduce("b", np.ones(3, "i4"), "mean")
    with pytest.raises(ConfigError, match="there is no rank 1"):
        named.broadcast("b", np.ones(3), 1)
    with pytest.raises(ConfigError, match="without axes"):
        named.all_gather("b", np.zeros(()))
    with pytest.raises(ConfigError, match="not C-contiguous"):
        named.all_reduce("b", np.ones((2, 3)).T)
    with pytest.raises(ConfigError, match="not C-contiguous"):
        named.broadcast("b", np.ones((2, 3)).T, 0)
    named.end_step()
    assert named.all_reduce("a", np.ones(3)).done and named.step == 1
    named.close()
    with pytest.raises(CommunicationError, match="closed this service"):
        named.all_reduce("b", np.ones(3))


# ---- routes ------------------------------------------------------------------------------------


def test_routes_change_on_all_ranks_or_on_none():
    def work(c):
        named = c.named()
        before = named.routes
        agreed = [
            named.set_tree([0, 0, 0 if c.rank else 1]),
            named.set_tree("RING" if c.rank else "STAR"),
        ]
        assert named.routes is before and named.version == 0
        if c.rank == 1:
            with pytest.raises(ConfigError, match="both roots"):
                named.set_tree([0, 1, 0])
        else:
            agreed.append(named.set_tree([0, 0, 0]))
        with pytest.raises(ConfigError, match="a tree of 2 ranks does not fit 3"):
            named.set_tree([0, 0])
        if c.rank == 2:
            future = named.all_reduce("a", np.ones(1))
            with pytest.raises(ConfigError, match="while 'a' of step 0 is under way"):
                named.set_tree("RING")
            future.wait()
        else:
            agreed.append(named.set_tree("RING"))
            named.all_reduce("a", np.ones(1)).wait()
        assert not any(agreed)
        assert named.set_tree([2, 2, 2]) and named.version == 1
        assert named.routes.text == "TREE(2, 2, 2)"
        named.end_step()
        return named.all_reduce("a", np.ones(1)).wait()[0]

    assert run_threads(3, work) == [3, 3, 3]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_agree_on_equal_bytes_alone(size):
    def work(c):
        named = c.named()
        same = [named.agree(data) for data in (b"", b"abc", bytes(range(256)))]
        if size > 1:
            same += [
                not named.agree(b"x" * (1 + (c.rank == size - 1))),
                not named.agree(bytes([7, c.rank, 9])),
            ]
        return same

    assert all(all(same) for same in run_threads(size, work))


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 5), st.data())
def test_a_death_at_any_letter_is_an_error_of_all(size, data):
    """The rank dies as it sends its letter number `left`, in one of several steps and routes."""
    victim, left = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 25))
    topology = data.draw(st.sampled_from(["STAR", "RING", "BINARY_TREE"]))

    def work(c):
        named, letters = c.named(), [left]
        assert named.set_tree(topology)
        c.barrier()
        deliver = named._mailbox._deliver

        def counted(to, coded):
            letters[0] -= 1
            if letters[0] == 0:
                c.die()
            deliver(to, coded)

        if c.rank == victim:
            named._mailbox._deliver = counted
        with pytest.raises(LostPeerError):
            for step in range(12):
                rng = np.random.default_rng([step, c.rank])
                with named.one_step():
                    for name in rng.permutation(list("abc")):
                        named.all_reduce(name, np.full(4, c.rank))
            c.die()  # it sent fewer
            named.all_reduce("never", np.ones(1)).wait()
        assert not named._running and not named._early

    run_threads(size, work, timeout=patience(20))
