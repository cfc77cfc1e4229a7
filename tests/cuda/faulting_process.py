"""A process whose kernels fail: `python -m tests.cuda.faulting_process DEVICE FAILURE`.

DEVICE: "twin" or "cuda". FAILURE: "fault", a kernel that writes to an invalid address, after which
the process has lost the GPU; or "launch", a kernel that cannot be launched with its block size.
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
OUTCOME = 'extern "C" __global__ __launch_bounds__(256, 4) void compute_outcome('
MESSAGES = {"fault": "ILLEGAL_ADDRESS", "launch": "cuLaunchKernel of update"}


class Failing:
    """A compiler whose kernels fail once it is switched on."""

    def __init__(self, compiler, failure):
        self.compiler, self.failure, self.on = compiler, failure, False

    def compile(self, name, source, headers, options):
        if self.on and name == "update.cu":
            if self.failure == "launch":
                changed = source.replace(BOUNDS, BOUNDS.replace("256, kBlocks", "32"))
            else:
                write = "*reinterpret_cast<volatile int*>(16ull * gridDim.x) = 1;"
                before = f"  if (threadIdx.x == 0) {write}\n"
                head, body = source.split(OUTCOME)
                at = body.index("{\n") + 2
                changed = f"{head}{OUTCOME}{body[:at]}{before}{body[at:]}"
            assert changed != source
            source = changed
        return self.compiler.compile(name, source, headers, options)


def opened(name):
    if name == "cuda":
        return gpu()
    twin = Twin()
    return Device(twin.library, 0, "sm_90", twin.compiler, None)


def main(name, failure):
    device = opened(name)
    compiler = Failing(device.compiler, failure)
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
        assert MESSAGES[failure] in error.what, error.what
        assert "a bug of cavs" in error.hint or failure == "launch", error.hint
    else:
        raise AssertionError("nothing failed")
    for key, value in values(trainer.model).items():
        np.testing.assert_array_equal(value, before[key])
    on_cpu = cavs.Session(trainer.model, dtype=np.float64)
    expected = cavs.Session(host.model, dtype=np.float64).evaluate(single(2)).loss
    assert abs(on_cpu.evaluate(single(2)).loss - expected) <= 1e-10 * abs(expected)
    if failure == "launch":  # after which the device still works
        good = trainer_on(device, trainer.model)
        loss, wanted = good.step(single(2)), trainer_on("cpu", host.model).step(single(2))
        assert abs(loss - wanted) <= 1e-10 * abs(wanted)
    print("as expected")


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main(*sys.argv[1:])
