"""A process whose kernels fail: `python -m tests.cuda.faulting_process DEVICE WAY`.

DEVICE: "twin" or "cuda". WAY: "fault", a kernel that writes where nothing is, which takes the GPU
from its process; or "launch", one that does not run in blocks as large as it is launched in.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace

import numpy as np

import cavs
from cavs.cuda.device import Device
from cavs.errors import DeviceError
from tests.cuda.hardware import gpu
from tests.cuda.tagger import close, single, trainer_on, values
from tests.cuda.twin import Twin

BOUNDS = "__launch_bounds__(256, kBlocks) void update("
JUDGE = 'extern "C" __global__ __launch_bounds__(256, 4) void judge('
WAYS = {"fault": ("judge", "ILLEGAL_ADDRESS"), "launch": ("update", "cuLaunchKernel of update")}


class Failing:
    """A compiler of kernels that fail from the second time on that they are compiled."""

    def __init__(self, compiler, way):
        self.compiler, self.way, self.on = compiler, way, False

    def compile(self, name, source, headers, options):
        if self.on and name == "update.cu":
            if self.way == "launch":
                changed = source.replace(BOUNDS, BOUNDS.replace("256, kBlocks", "32"))
            else:
                write = "*reinterpret_cast<volatile int*>(16ull * gridDim.x) = 1;"
                before = f"  if (threadIdx.x == 0) {write}\n"
                head, body = source.split(JUDGE)
                at = body.index("{\n") + 2
                changed = f"{head}{JUDGE}{body[:at]}{before}{body[at:]}"
            assert changed != source
            source = changed
        return self.compiler.compile(name, source, headers, options)


def opened(name):
    if name == "cuda":
        return gpu()
    twin = Twin()
    return Device(twin.library, 0, "sm_90", twin.compiler, None)


def main(name, way):
    device = opened(name)
    compiler = Failing(device.compiler, way)
    host = trainer_on("cpu")
    trainer = trainer_on(replace(device, compiler=compiler))
    for each in (host, trainer):
        each.step(single(4))
    before = values(trainer.model)
    close(trainer, host)
    compiler.on = True
    failing = trainer_on(replace(device, compiler=compiler), trainer.model)
    try:
        failing.step(single(2))
    except DeviceError as error:
        assert WAYS[way][1] in error.what, error.what
        assert "a bug of cavs" in error.hint or way == "launch", error.hint
    else:
        raise AssertionError("nothing failed")
    for key, value in values(trainer.model).items():
        np.testing.assert_array_equal(value, before[key])
    on_cpu = cavs.Session(trainer.model, dtype=np.float64)
    expected = cavs.Session(host.model, dtype=np.float64).evaluate(single(2)).loss
    assert abs(on_cpu.evaluate(single(2)).loss - expected) <= 1e-10 * abs(expected)
    if way == "launch":  # which the device survives
        good = trainer_on(device, trainer.model)
        loss, wanted = good.step(single(2)), trainer_on("cpu", host.model).step(single(2))
        assert abs(loss - wanted) <= 1e-10 * abs(wanted)
    print("as expected")


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main(*sys.argv[1:])
