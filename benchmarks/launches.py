"""Cost of a launch for host and device: one by one, newly captured, and as a replayed CUDA graph.

An empty kernel is launched over and over, with few bytes of arguments and with as many as a product
takes. "enqueue" is what the host needs until all are under way, "done" until the device is through,
both a launch. A graph is captured and instantiated, as for a batch that never came before, and
launched again. All in microseconds.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.options import OptionParser, at_least
from cavs.cuda.device import Device, open_device

COUNT = 200  # launches in a series, as in a training step
KERNEL = """
struct Bytes { unsigned long long word[WORDS]; };
extern "C" __global__ void nothing(Bytes bytes, unsigned long long* to) {
  if (to != nullptr) *to = bytes.word[0];
}
"""
FEW, MANY = 16, 440  # bytes of arguments: few, and those of a product of several operands


class Launcher:
    """Streams of a device, and an empty kernel with so many bytes of arguments."""

    def __init__(self, device: Device, bytes_of_arguments: int) -> None:
        self.driver = ctypes.CDLL(device.driver_library)
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device.ordinal)
        self.call("cuCtxSetCurrent", context)
        words = bytes_of_arguments // 8
        text = KERNEL.replace("WORDS", str(words))
        self.image = device.compile("nothing.cu", text, {}, "float")
        self.module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(self.module), self.image)
        self.call("cuModuleGetFunction", ctypes.byref(self.function), self.module, b"nothing")
        self.arguments = (ctypes.c_uint64 * words)(), ctypes.c_uint64(0)
        addresses = [ctypes.addressof(a) for a in self.arguments]
        self.pointers = (ctypes.c_void_p * 2)(*addresses)
        self.streams = [self._stream(), self._stream()]
        self.event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(self.event), 2)  # without a time

    def _stream(self) -> ctypes.c_void_p:
        stream = ctypes.c_void_p()
        # A non-blocking stream of the lowest priority, 0.
        self.call("cuStreamCreateWithPriority", ctypes.byref(stream), 1, 0)
        return stream

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.driver, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: error {status}")

    def launch(self, lane: int = 0) -> None:
        sizes = (1, 1, 1, 32, 1, 1, 0)
        self.call("cuLaunchKernel", self.function, *sizes, self.streams[lane], self.pointers, None)

    def wait(self) -> None:
        for stream in self.streams:
            self.call("cuStreamSynchronize", stream)

    def one_by_one(self) -> None:
        for _ in range(COUNT):
            self.launch()

    def forked(self) -> None:
        """Launch on two streams in turns, each waiting for the launch before."""
        for _ in range(COUNT // 2):
            self.launch()
            self.call("cuEventRecord", self.event, self.streams[0])
            self.call("cuStreamWaitEvent", self.streams[1], self.event, 0)
            self.launch(1)

    def captured(self) -> ctypes.c_void_p:
        """Capture a graph of as many launches."""
        graph = ctypes.c_void_p()
        self.call("cuStreamBeginCapture_v2", self.streams[0], 2)  # mode: relaxed, this thread
        self.one_by_one()
        self.call("cuStreamEndCapture", self.streams[0], ctypes.byref(graph))
        return graph

    def instantiated(self, graph: ctypes.c_void_p) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, ctypes.c_uint64(0))
        return made

    def replay(self, made: ctypes.c_void_p) -> None:
        self.call("cuGraphLaunch", made, self.streams[0])

    def drop(self, graph: ctypes.c_void_p, made: ctypes.c_void_p) -> None:
        self.call("cuGraphExecDestroy", made)
        self.call("cuGraphDestroy", graph)


def _each(launcher: Launcher, work: Callable[[], object], rounds: int) -> dict[str, float]:
    """Return microseconds per launch: until all are issued, and until all are done."""
    enqueue, done = [], []
    for _ in range(rounds):
        launcher.wait()
        started = time.perf_counter()
        work()
        enqueue.append(time.perf_counter() - started)
        launcher.wait()
        done.append(time.perf_counter() - started)
    scale = 1e6 / COUNT
    return {
        "enqueue": scale * statistics.median(enqueue),
        "done": scale * statistics.median(done),
    }


def _seconds(work: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    found = work()
    return found, time.perf_counter() - started


def measured(device: Device, bytes_of_arguments: int, rounds: int) -> dict[str, Any]:
    """Return the cost of a launch with so many bytes of arguments, in microseconds."""
    launcher = Launcher(device, bytes_of_arguments)
    launcher.one_by_one()
    found: dict[str, Any] = {
        "bytes": bytes_of_arguments,
        # The share of Python, measured with a call that does nothing in the driver.
        "call": _each(launcher, lambda: [launcher.call("cuInit", 0) for _ in range(COUNT)], rounds),
        "one_by_one": _each(launcher, launcher.one_by_one, rounds),
        "forked": _each(launcher, launcher.forked, rounds),
    }
    capture, instantiate = [], []
    for _ in range(rounds):
        graph, seconds = _seconds(launcher.captured)
        capture.append(1e6 * seconds / COUNT)
        made, seconds = _seconds(lambda g=graph: launcher.instantiated(g))
        instantiate.append(1e6 * seconds / COUNT)
        launcher.replay(made)
        launcher.wait()
        launcher.drop(graph, made)
    graph = launcher.captured()
    made = launcher.instantiated(graph)
    launcher.replay(made)
    found["capture"] = statistics.median(capture)
    found["instantiate"] = statistics.median(instantiate)
    found["replay"] = _each(launcher, lambda: launcher.replay(made), rounds)
    launcher.wait()
    launcher.drop(graph, made)
    return found


def launches(device: Device, rounds: int) -> list[dict[str, Any]]:
    """Measure launches with few and with many bytes of arguments."""
    return [measured(device, size, rounds) for size in (FEW, MANY)]


def main() -> int:
    parser = OptionParser("benchmarks.launches", __doc__ or "")
    parser.add_argument("--device", default="cuda", help="default: %(default)s")
    parser.add_argument("--rounds", type=at_least(1), default=20, help="default: %(default)s")
    given = parser.parse_args()
    print(json.dumps(launches(open_device(given.device), given.rounds), indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
