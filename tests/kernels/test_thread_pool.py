from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .support import KERNELS

Make = Callable[[int], Any]
GOMP = "libgomp.so.1"  # the runtime of GCC, under the name by which the dynamic linker finds it


def openmp() -> ctypes.CDLL:
    """Return the OpenMP runtime of GCC, which this process has loaded then; skip without it."""
    try:
        return ctypes.CDLL(GOMP)
    except OSError as error:
        pytest.skip(f"no OpenMP runtime: {error}")


@pytest.fixture(params=["own", "openmp"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Make pools on threads of their own, or on those of the OpenMP runtime of GCC."""
    if request.param == "own":
        yield KERNELS.ThreadPool
        return
    runtime = openmp()

    def pool_on_runtime(threads: int) -> Any:
        pool = KERNELS.ThreadPool(threads)
        assert pool.use_openmp_of(GOMP)
        return pool

    before = runtime.omp_get_max_threads()
    runtime.omp_set_num_threads(6)
    yield pool_on_runtime
    runtime.omp_set_num_threads(before)


def test_task_t_runs_on_thread_t(make: Make) -> None:
    pool = make(4)
    for _ in range(20):
        seen: dict[int, int] = {}
        pool.parallel(4, lambda t, seen=seen: seen.__setitem__(t, threading.get_ident()))
        assert sorted(seen) == [0, 1, 2, 3]
        assert len(set(seen.values())) == 4
        assert seen[0] == threading.get_ident()
        again: dict[int, int] = {}
        pool.parallel(3, lambda t, again=again: again.__setitem__(t, threading.get_ident()))
        assert again == {t: seen[t] for t in range(3)}


def test_sleeping_workers_wake(make: Make) -> None:
    pool = make(3)
    for _ in range(5):
        time.sleep(0.002)
        seen: list[int] = []
        pool.parallel(3, seen.append)
        assert sorted(seen) == [0, 1, 2]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_barrier_holds_all_threads(threads: int, make: Make) -> None:
    assert make(threads).barrier_faults(threads, 300) == 0


def test_the_exception_of_the_lowest_task_is_rethrown(make: Make) -> None:
    pool = make(3)

    def fail(t: int) -> None:
        if t > 0:
            raise KeyError(t)

    for _ in range(3):
        with pytest.raises(KeyError, match="1"):
            pool.parallel(3, fail)
    seen: list[int] = []
    pool.parallel(3, seen.append)
    assert sorted(seen) == [0, 1, 2]


def test_nested_regions_run_one_after_the_other(make: Make) -> None:
    pool = make(2)
    seen: list[tuple[int, int]] = []
    pool.parallel(2, lambda t: pool.parallel(5, lambda u: seen.append((t, u))))
    for t in range(2):
        assert [u for s, u in seen if s == t] == list(range(5))
    with pytest.raises(RuntimeError, match="cannot change in a parallel region"):
        pool.parallel(2, lambda t: pool.set_num_threads(3))


def test_regions_of_several_threads_run_in_turn(make: Make) -> None:
    pool = make(2)
    counts = [0, 0, 0]

    def work(who: int) -> None:
        for _ in range(100):
            inside: list[int] = []
            pool.parallel(2, inside.append)
            counts[who] += len(inside)

    callers = [threading.Thread(target=work, args=(who,)) for who in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert counts == [200, 200, 200]


def test_number_of_threads(make: Make) -> None:
    pool = make(2)
    pool.set_num_threads(4)
    assert pool.num_threads == 4
    assert pool.barrier_faults(4, 10) == 0
    pool.set_num_threads(1)
    with pytest.raises(ValueError, match="2 tasks for 1 threads"):
        pool.parallel(2, print)
    for bad in (0, -1, 257):
        with pytest.raises(ValueError, match=f"from 1 to 256, not {bad}"):
            pool.set_num_threads(bad)


def test_regions_run_on_threads_of_the_runtime() -> None:
    runtime = openmp()
    before, pool = runtime.omp_get_max_threads(), KERNELS.ThreadPool(3)
    numbers: dict[int, int] = {}

    def number(t: int) -> None:
        numbers[t] = runtime.omp_get_num_threads()

    try:
        runtime.omp_set_num_threads(4)
        for library, threads in (("libnone.so", 1), (GOMP, 4), ("libnone.so", 1)):
            assert pool.use_openmp_of(library) == (library == GOMP)
            pool.parallel(3, number)
            assert numbers == dict.fromkeys(range(3), threads)
        assert pool.use_openmp_of(GOMP)
        runtime.omp_set_num_threads(2)  # too few for three tasks, which may wait for each other
        assert pool.barrier_faults(3, 10) == 0
        pool.parallel(3, number)
        assert numbers == dict.fromkeys(range(3), 1)
    finally:
        runtime.omp_set_num_threads(before)


def default_threads(wish: str) -> subprocess.CompletedProcess[str]:
    code = "from cavs import _engine; print(_engine.kernels.default_num_threads())"
    return subprocess.run(
        [sys.executable, "-c", code],
        text=True,
        capture_output=True,
        env={**os.environ, "CAVS_NUM_THREADS": wish},
        check=False,
    )


def test_default_number_of_threads() -> None:
    assert default_threads("3").stdout.strip() == "3"
    assert 1 <= int(default_threads("").stdout) <= len(os.sched_getaffinity(0))
    for bad in ("0", "2x"):
        assert f'from 1 to 256, not "{bad}"' in default_threads(bad).stderr


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("runtime", ["own", "openmp"])
def test_forked_child_has_its_own_threads(runtime: str) -> None:
    pool = KERNELS.thread_pool()
    threads, library = pool.num_threads, openmp()
    most = library.omp_get_max_threads()
    library.omp_set_num_threads(3)
    assert pool.use_openmp_of(GOMP if runtime == "openmp" else "libnone.so") == (
        runtime == "openmp"
    )
    pool.set_num_threads(3)
    try:
        assert pool.barrier_faults(3, 10) == 0
        pid = os.fork()
        if pid == 0:
            os._exit(7 if pool.num_threads == 3 and pool.barrier_faults(3, 10) == 0 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert pool.barrier_faults(3, 10) == 0
    finally:
        pool.set_num_threads(threads)
        pool.use_openmp_of("libnone.so")
        library.omp_set_num_threads(most)


LIMITED = """
import resource
import numpy as np
from cavs import _engine
pool = _engine.kernels.ThreadPool(200)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), resource.RLIM_INFINITY))
try:
    pool.barrier_faults(200, 1)
except RuntimeError as error:
    print("refused", error)
pool.set_num_threads(2)
print(pool.barrier_faults(2, 10))
"""


@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="ASan needs the room")
def test_missing_threads_are_an_error() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED], text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused") and done.stdout.endswith("\n0\n")
