"""Run a function of a test module on MPI ranks.

Each rank executes ``python -m tests.distributed.mpirun MODULE FUNCTION ARGUMENTS...``.
"""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.patience import patience

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]

needs_mpi = [
    pytest.mark.mpi,
    pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is missing"),
]


def run_ranks(size, module, function, *arguments, env=None, timeout=60, check=True, elastic=False):
    """Run `module.function(communicator, *arguments)` on `size` ranks; return the result of rank 0,
    or the finished process if `check` is off.
    """
    from cavs.distributed.launch.launcher import SESSIONS, command_of, find_mpirun

    text = json.dumps(arguments)
    command = command_of(find_mpirun(), size, [str(HERE), module, function, text], elastic=elastic)
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


def main():
    from cavs.distributed.comm import MPICommunicator

    module, function, text = sys.argv[1:]
    communicator = MPICommunicator(timeout=patience(30))
    result = getattr(importlib.import_module(module), function)(communicator, *json.loads(text))
    if communicator.rank == 0:
        print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
