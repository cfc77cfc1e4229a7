"""Run a function of a test module on MPI ranks.

Each rank executes ``tests/distributed/rank.py``.
"""

import importlib.util
import json
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.patience import patience

RANK = Path(__file__).resolve().parent / "rank.py"
ROOT = RANK.parents[2]

needs_mpi4py = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None, reason="mpi4py is missing"
)
needs_mpi = [pytest.mark.mpi, needs_mpi4py]


def run_ranks(size, module, function, *arguments, env=None, timeout=60, check=True, elastic=False):
    """Run `module.function(communicator, *arguments)` on `size` ranks; return the result of rank 0,
    or the finished process if `check` is off.
    """
    from cavs.distributed.launch.launcher import SESSIONS, command_of, find_mpirun

    text = json.dumps(arguments)
    command = command_of(find_mpirun(), size, [str(RANK), module, function, text], elastic=elastic)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        done = subprocess.run(
            command,
            env={**os.environ, "CAVS_NUM_THREADS": "1", SESSIONS: folder, **(env or {})},
            check=False,
            capture_output=True,
            text=True,
            timeout=patience(timeout),
            cwd=ROOT,
        )
    if not check:
        return done
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(lines[0][7:])
