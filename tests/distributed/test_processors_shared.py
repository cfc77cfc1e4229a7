"""Ranks of one host that mpirun started by itself do not each take all of its processors."""

import os
import subprocess

import pytest

from cavs.distributed.launch import SESSIONS, command_of, environment_of, find_mpirun
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


def threads(folder, ranks, *arguments, wish=""):
    """By default, and with `ranks` of them side by side; the same on all."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    launcher = find_mpirun()
    command = command_of(launcher, ranks, [str(program), *arguments])
    environment = environment_of(launcher, ranks, threads=1, elastic=False)
    environment |= {"CAVS_NUM_THREADS": wish, SESSIONS: str(folder)}
    done = subprocess.run(
        command,
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(60),
    )
    assert done.returncode == 0, done.stderr
    (found,) = {tuple(map(int, line.split())) for line in done.stdout.splitlines()}
    return found


class TestRanks:
    pytestmark = needs_mpi

    @pytest.mark.parametrize("ranks", [2, 3])
    def test_they_share_the_default(self, ranks, tmp_path):
        alone, together = threads(tmp_path, ranks)
        assert alone <= len(os.sched_getaffinity(0))
        assert together == max(1, alone // ranks)

    def test_who_said_how_many_keeps_them(self, tmp_path):
        assert threads(tmp_path, 2, "set")[1] == 3
        assert threads(tmp_path, 2, wish="5") == (5, 5)
