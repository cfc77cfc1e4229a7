"""Ranks of one host that a plain mpirun started share its processors."""

import os
import subprocess

import pytest

from cavs.distributed.comm.own_ranks import own_processors
from cavs.distributed.launch.launcher import SESSIONS, command_of, environment_of, find_mpirun
from tests.distributed.mpirun import ROOT, needs_mpi
from tests.patience import patience

PROGRAM = """
import sys
import cavs
from cavs.distributed import world
alone = cavs.num_threads()
if "set" in sys.argv:
    cavs.set_num_threads(3)
world(60)
again = world(60)
print(alone, cavs.num_threads(), flush=True)
again.barrier()
"""


BOUND = """
import os
cores = sorted(os.sched_getaffinity(0))[:2]
os.sched_setaffinity(0, cores)
from cavs.distributed import world
c = world(60)
mine = [sorted(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")]
(own,) = {tuple(m) for m in mine}
print(len(cores), c.rank, *(cores.index(core) for core in own), flush=True)
c.barrier()
"""


def started(folder, ranks, text, *arguments, **environment):
    """Return the lines that the ranks of a program print."""
    program = folder / "program.py"
    program.write_text(text)
    launcher = find_mpirun()
    command = command_of(launcher, ranks, [str(program), *arguments])
    given = environment_of(launcher, ranks, threads=1, elastic=False)
    done = subprocess.run(
        command,
        env={**given, SESSIONS: str(folder), **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(60),
    )
    assert done.returncode == 0, done.stderr
    return {tuple(map(int, line.split())) for line in done.stdout.splitlines()}


def threads(folder, ranks, *arguments, wish=""):
    """Return the default number of threads, and that of `ranks` concurrent ranks, equal on all."""
    (found,) = started(folder, ranks, PROGRAM, *arguments, CAVS_NUM_THREADS=wish)
    return found


def places(*told):
    """Return processors and threads of each of the ranks of one host."""
    return [("host", tuple(mask), count) for mask, count in told]


def test_ranks_that_fill_their_processors_are_bound():
    four = range(4)
    each = [own_processors(places(*[(four, 1)] * 4), r) for r in range(4)]
    assert each == [(0,), (1,), (2,), (3,)]
    mixed = places((four, 1), (four, 2), (four, 1))
    assert [own_processors(mixed, r) for r in range(3)] == [(0,), (1, 2), (3,)]
    two = places(((2, 5), 1), ((2, 5), 1))
    assert [own_processors(two, r) for r in range(2)] == [(2,), (5,)]


def test_other_ranks_are_not_bound():
    for told in (
        [(range(4), 1)] * 3,  # one processor is free
        [(range(4), 2)] * 3,  # too many threads
        [((0, 1), 1), ((0, 1), 0)],  # one refuses to be bound
        [((0,), 1), ((1,), 1)],  # they are bound already
        [((0, 1), 2)],  # alone
        [((0, 1), 1), ((1, 2), 1)],  # on other processors
    ):
        assert {own_processors(places(*told), r) for r in range(len(told))} == {()}
    hosts = [("a", (0, 1), 1), ("b", (0, 1), 1)]
    assert [own_processors(hosts, r) for r in range(2)] == [(), ()]


class TestRanks:
    pytestmark = needs_mpi

    @pytest.mark.parametrize("ranks", [2, 3])
    def test_ranks_share_the_default(self, ranks, tmp_path):
        alone, together = threads(tmp_path, ranks)
        assert alone <= len(os.sched_getaffinity(0))
        assert together == max(1, alone // ranks)

    def test_a_given_number_of_threads_is_kept(self, tmp_path):
        assert threads(tmp_path, 2, "set")[1] == 3
        assert threads(tmp_path, 2, wish="5") == (5, 5)

    @pytest.mark.parametrize(("wish", "bound"), [("1", True), ("0", False)])
    def test_all_threads_of_a_rank_are_bound(self, wish, bound, tmp_path):
        if len(os.sched_getaffinity(0)) < 2:
            pytest.skip("two ranks on one processor are never bound")
        found = started(tmp_path, 2, BOUND, CAVS_BIND=wish)
        assert found == ({(2, 0, 0), (2, 1, 1)} if bound else {(2, 0, 0, 1), (2, 1, 0, 1)})
