"""Out of memory and kernel faults, on the twin and on the machine's GPU."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import cavs
from cavs.errors import DeviceError
from tests.cuda.hardware import gpu
from tests.cuda.tagger import close, graphs, single, trainer_on, values
from tests.cuda.twin import missing
from tests.patience import patience

ROOT = Path(__file__).resolve().parents[3]
LARGE = 1 << 14  # bytes


class Narrow:
    """Memory that allocates a million times the bytes for blocks above a size."""

    def __init__(self, memory):
        self.memory, self.most = memory, 1 << 62

    def allocate(self, nbytes):
        return self.memory.allocate(nbytes if nbytes <= self.most else nbytes << 20)

    def release(self, pointer):
        self.memory.release(pointer)

    def used(self):
        return self.memory.used()


@pytest.fixture
def full(device, request):
    """A device, and a function that leaves it without memory for large blocks."""
    if device.memory is not None and hasattr(device.memory, "free_and_total"):
        memory = Narrow(device.memory)
        yield replace(device, memory=memory), lambda: setattr(memory, "most", LARGE)
        return
    twin = request.getfixturevalue("twin")
    yield replace(device, memory=None), lambda: twin.memory(twin.used() + LARGE)


def test_out_of_memory_reports_sizes_and_loses_nothing(full):
    device, fill = full
    trainer, host = trainer_on(device), trainer_on("cpu")
    for each in (trainer, host):
        each.step(single(4))
        each.step(single(2))
    before = values(trainer.model)
    fill()
    large = cavs.batch(graphs((300, 400, 500)))
    for attempt in (trainer.step, trainer.session.evaluate, trainer.launch):
        with pytest.raises(DeviceError, match=r"(?i)out.of.memory") as error:
            attempt(large)
        assert all(word in error.value.what for word in (" bytes", " free of "))
        assert "smaller batch" in error.value.hint
    for key, value in values(trainer.model).items():
        assert (value == before[key]).all()
    assert trainer.steps == 2
    for each in (trainer, host):
        each.step(single(2))
    close(trainer, host)


@pytest.mark.parametrize("way", ["fault", "launch"])
@pytest.mark.parametrize("where", ["twin", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_a_kernel_fault_in_a_step(where, way):
    """In a process of its own, since a fault takes its GPU."""
    if where == "cuda":
        gpu()
    elif reason := missing():
        pytest.skip(reason)
    command = [sys.executable, "-m", "tests.cuda.faulting_process", where, way]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=patience(300), check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "as expected\n"
