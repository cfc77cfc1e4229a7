"""The MPI communicator on real ranks. All operations share one start, which costs a second."""

import importlib.util
import os
import subprocess
import sys
import time
from importlib import metadata
from types import SimpleNamespace

import numpy as np
import pytest

from cavs.distributed.comm import MPICommunicator, SingleCommunicator, world
from cavs.distributed.comm.mpi import library as mpi
from cavs.distributed.comm.mpi import polling
from cavs.distributed.comm.nccl.group import load_nccl
from cavs.errors import CommunicationError, ConfigError, DeviceError
from tests.distributed.mpirun import ROOT, needs_mpi, run_ranks
from tests.patience import patience

pytestmark = needs_mpi


def operations(c):
    """Run the checks of `test_communicator` in short, plus those of MPI alone."""
    rng = [np.random.default_rng(r) for r in range(c.size)]
    values = [r.normal(size=70_001) for r in rng]
    total = sum(values)
    big = values[c.rank].copy()
    before = c.sent_bytes
    c.all_reduce(big)
    sent = c.sent_bytes - before
    np.testing.assert_allclose(big, total, rtol=1e-10, atol=1e-10)
    assert len({x.tobytes() for x in c.all_gather(big)}) == 1  # the same bits on all ranks
    common = c.common_memory(big.nbytes + 24).view(big.dtype)[3:]
    common[...] = values[c.rank]
    before = c.sent_bytes
    c.all_reduce(common)
    assert abs(c.sent_bytes - before - sent) <= 16 * c.size
    np.testing.assert_allclose(common, total, rtol=1e-10, atol=1e-10)
    assert len({x.tobytes() for x in c.all_gather(common)}) == 1
    half = values[c.rank].astype(np.float16)
    c.all_reduce(half)
    np.testing.assert_allclose(half, total, rtol=2e-2, atol=2e-2)
    counts = [len(x) for x in np.array_split(total, c.size)]
    part = c.reduce_scatter(values[c.rank].copy(), counts)
    np.testing.assert_allclose(part, np.array_split(total, c.size)[c.rank], atol=1e-10)
    rows = [r.normal(size=(i + 1, 3)) for i, r in enumerate(rng)]
    for got, expected in zip(c.all_gather(rows[c.rank]), rows, strict=True):
        np.testing.assert_array_equal(got, expected)
    got = c.all_to_all([rows[c.rank][: r + 1] for r in range(c.size)])
    for r in range(c.size):
        np.testing.assert_array_equal(got[r], rows[r][: c.rank + 1])
    small = np.full(3, c.rank, np.int64)
    c.broadcast(small, c.size - 1)
    assert (small == c.size - 1).all()
    c.reduce(small, 0)
    assert c.rank or (small == c.size * (c.size - 1)).all()
    handles = [c.start(c.all_reduce, values[c.rank].copy()) for _ in range(3)]
    c.barrier()
    assert all(h.done for h in handles)
    halves = c.split(c.rank % 2)
    assert halves.size == len(range(c.rank % 2, c.size, 2))
    assert (halves.common_memory(100) is None) == (halves.size == 1)
    with pytest.raises(CommunicationError, match=r"gone before all of them had begun(.|\n)*first"):
        MPICommunicator(OneIsGone())
    return sent


class OneIsGone:
    def Dup(self):
        from mpi4py import MPI

        raise MPI.Exception(MPI.ERR_OTHER)


@pytest.mark.parametrize("size", [2, 3])
def test_operations(size):
    sent = run_ranks(size, __name__, "operations")
    assert abs(sent - 2 * (size - 1) / size * 8 * 70_001) <= 16 * size


def one_sleeps(c):
    polling._GRACE = patience(1)
    c.barrier()
    c.timeout = 0.5
    if c.rank == 1:
        time.sleep(8)
        os._exit(0)
    with pytest.raises(CommunicationError) as caught:
        c.all_reduce(np.zeros(10))
    print("RESULT", str(caught.value).splitlines()[0], flush=True)
    time.sleep(0.5)  # the other living rank reports, too: either may be first
    c.abort("stopped")


def test_a_hanging_peer_is_named():
    done = run_ranks(3, __name__, "one_sleeps", check=False)
    assert done.returncode != 0
    assert "waited 0.5 s in all-reduce of 80 bytes: rank 1 does not answer" in done.stdout
    told = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert all("in all-reduce of 80 bytes: rank 1 does not answer" in line for line in told)
    assert "rank 0: stopped" in done.stderr or "rank 2: stopped" in done.stderr


def test_a_missing_or_old_mpi4py_is_a_clear_error(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "3.1.6")
    with pytest.raises(
        DeviceError, match=r"mpi4py 3.1.6 is too old, cavs needs 4.1\n(.|\n)*cavs\[mpi"
    ):
        mpi.load_mpi()

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    with pytest.raises(DeviceError, match="mpi4py is not installed"):
        mpi.load_mpi()


OLD = """
def Get_version():
    return 2, 2


def Get_library_version():
    return "Ancient MPI 1.0, of long ago"
"""


@pytest.mark.parametrize(
    ("version", "library", "found"),
    [
        ("3.1.6", None, "mpi4py 3.1.6 is too old, cavs needs 4.1"),
        ("4.1.0", OLD, "Ancient MPI 1.0 implements MPI 2.2, cavs needs 3.0"),
        ("4.1.0", "raise ImportError('libmpi.so')", "mpi4py finds no MPI library: libmpi.so"),
        ("4.1.1", None, "mpi4py finds no MPI library: half installed"),
    ],
)
def test_every_rank_reports_an_outdated_mpi(version, library, found, tmp_path):
    """Another mpi4py shadows the real one; mpirun is real."""
    (tmp_path / "mpi4py").mkdir()
    whole = "import types\nrc = types.SimpleNamespace()\n"
    half = "raise ImportError('half installed')"
    (tmp_path / "mpi4py" / "__init__.py").write_text(half if version == "4.1.1" else whole)
    (tmp_path / "mpi4py" / "MPI.py").write_text(library or "")
    described = tmp_path / f"mpi4py-{version}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Name: mpi4py\nVersion: {version}\n")
    train = ["launch", "-n", "2", "train", str(ROOT / "tests" / "cli" / "tree_toy.py")]
    done = subprocess.run(
        [sys.executable, "-m", "cavs.cli", *train, "--out", str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"},
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=patience(60),
    )
    assert done.returncode == 1
    said = done.stderr.splitlines()  # lines of two ranks may alternate
    for line in (f"cavs: DeviceError: {found}", '  hint: pip install "cavs[mpi]"'):
        assert said.count(line) == done.stderr.count("Error") == 2, done.stderr
    assert not (tmp_path / "out").exists()


def test_a_singleton_leaves_no_shared_memory():
    """Programs that it starts may use shared memory."""
    code = (
        "from cavs.distributed.comm import MPICommunicator; import os, numpy as np\n"
        "c = MPICommunicator(); array = np.ones(3); c.all_reduce(array)\n"
        "print(c.size, array.sum(), [name for name in os.environ if name == 'OMPI_MCA_btl'])\n"
        "print([line for line in open('/proc/self/maps') if '_segment.' in line])"
    )
    alone = {name: value for name, value in os.environ.items() if name != "OMPI_MCA_btl"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=alone,
        check=True,
        capture_output=True,
        text=True,
        timeout=patience(60),
    )
    assert done.stdout.splitlines() == ["1 3.0 []", "[]"]


def test_a_foreign_mpirun_is_a_clear_error():
    code = "from cavs.distributed.comm import MPICommunicator; MPICommunicator()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        # It runs as a singleton: otherwise Open MPI leaves a segment in /dev/shm.
        env={**os.environ, "PMI_SIZE": "4", "OMPI_MCA_btl": "self"},
        check=False,
        capture_output=True,
        text=True,
        timeout=patience(60),
    )
    assert "mpirun started 4 ranks, but the MPI library of mpi4py (Open MPI" in done.stderr


@pytest.fixture
def of_one(monkeypatch):
    """An MPI library that sees this process alone, without a sign of its launcher."""
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    one = SimpleNamespace(Get_size=lambda: 1)
    library = {"Get_version": lambda: (4, 0), "Get_library_version": lambda: "Open MPI v5, a"}
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", SimpleNamespace(COMM_WORLD=one, **library))


@pytest.mark.parametrize("told", [{}, {"PMIX_RANK": "1", "PMIX_NAMESPACE": "slurm.pmix.7.0"}])
def test_an_srun_without_this_mpi_is_a_clear_error(told, of_one, monkeypatch):
    """Otherwise each of the four ranks trains alone."""
    for name, value in ({"SLURM_STEP_NUM_TASKS": "4"} | told).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DeviceError) as caught:
        world()
    assert "srun started 4 ranks, but the MPI library of mpi4py (Open MPI v5) sees 1\n" in str(
        caught.value
    )
    assert "start with: srun --mpi=pmix" in str(caught.value)


def test_ranks_inside_a_task_of_slurm_are_not_counted_by_it(of_one, monkeypatch):
    """Slurm starts the daemons of a mpirun, and these the ranks."""
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    for name, value, ranks in (("PMIX_RANK", "0", None), ("OMPI_COMM_WORLD_SIZE", "1", 1)):
        monkeypatch.setenv(name, value)
        assert mpi.started().by == "mpirun" and mpi.started().ranks == ranks
        mpi.load_mpi()
    for name in ("PMIX_RANK", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert isinstance(world(), SingleCommunicator)


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is there")
def test_missing_cupy_is_a_clear_error():
    with pytest.raises(DeviceError, match=r"NCCL needs CuPy: (.|\n)*cavs\[cuda12"):
        load_nccl()


def children_of_a_rank(c):
    if c.rank == 0:
        code = "import cavs.distributed; cavs.distributed.world(5)"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        expected = f"is no rank: rank 0, process {os.getpid()}, started it"
        assert done.returncode == 1 and expected in done.stderr, done.stderr
        marks = ("OMPI_COMM_WORLD_", "PMIX_", "PMI_")
        alone = {k: v for k, v in os.environ.items() if not k.startswith(marks)}
        subprocess.run(command, env=alone, check=True)
        child = os.fork()
        if child == 0:
            try:
                world(5)
            except ConfigError as error:
                os._exit(0 if expected in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
    c.barrier()


def test_a_child_process_of_a_rank_is_no_rank():
    run_ranks(2, __name__, "children_of_a_rank")
