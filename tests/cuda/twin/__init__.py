"""A host twin of an NVIDIA GPU: a library that stands for libcuda and runs kernels on the CPU.

docs/architecture/host_twin.md explains it. One device per process: ``Twin().reset()`` between
tests.
"""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass

from tests.cuda.twin import build
from tests.cuda.twin.build import CompileError, missing
from tests.cuda.twin.compile import TwinCompiler

__all__ = ["CompileError", "Operation", "Twin", "TwinCompiler", "missing"]


@dataclass(frozen=True)
class Operation:
    """A line of the log, in the order in which they were asked for.

    kind: "launch", "copy", "set", "record", "wait" or "product"; "graph", a graph of as many
    operations as its argument says, which follow as if they had been asked for one by one; or
    "synchronize", where the host waits for a stream, or for an event (stream -1). stream: 0 is the
    default one, the others count from 1 as they were created. priority: of the stream, or of the
    node where a graph has those of its nodes; the smaller the sooner. arguments: numbers and
    addresses; None for a struct; of a product its m, n, k and the schemes by which its sums may be
    split, as in cublasLt.h. ``to`` and ``from_``: addresses; of events for records and waits of
    either kind. ran: its place in the order of execution, -1 if it has not run. cooperative: a
    launch whose blocks may meet at barriers of the grid.
    """

    kind: str
    name: str
    stream: int
    priority: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    arguments: tuple[int | float | str | None, ...]
    to: int
    from_: int
    bytes: int
    issued: int
    ran: int
    cooperative: bool = False


class Twin:
    """The twin device of this process.

    without: names of entry points that the library shall not have, as if its driver were too old.
    checked: as of TwinCompiler.
    """

    def __init__(self, without: tuple[str, ...] = (), checked: bool | None = None):
        self.path = build.driver(tuple(without))
        self.library = str(self.path)
        self.cublaslt = self.cudnn = self.library
        self.compiler = TwinCompiler(checked)
        self.calls = ctypes.CDLL(self.library)
        for name in ("twin_records", "twin_fault", "twin_guards", "twin_parameters", "twin_live"):
            getattr(self.calls, name).restype = ctypes.c_char_p
        self.calls.twin_parameters.argtypes = [ctypes.c_void_p]
        self.calls.twin_set.argtypes = [ctypes.c_char_p, ctypes.c_longlong]
        self.calls.twin_heuristics.restype = ctypes.c_longlong

    def operations(self) -> list[Operation]:
        """What was asked of the device since the last reset; of very much the latest."""
        records = json.loads(self.calls.twin_records())
        return [
            Operation(
                **{
                    {"from": "from_"}.get(key, key): tuple(value)
                    if isinstance(value, list)
                    else value
                    for key, value in record.items()
                }
            )
            for record in records
        ]

    def launches(self) -> list[Operation]:
        return [operation for operation in self.operations() if operation.kind == "launch"]

    def pending(self) -> int:
        """How many operations of the log have not run."""
        return int(self.calls.twin_records().count(b'"ran":-1'))

    def reset(self) -> None:
        """Runs what is queued, then forgets log, faults and settings. Memory stays allocated."""
        self.calls.twin_reset()

    def set(self, name: str, value: int) -> None:
        if not self.calls.twin_set(name.encode(), value):
            raise KeyError(name)

    def adversarial(self, seed: int) -> None:
        """Streams, blocks and threads run in an order of this seed; 0: in the order of issue."""
        self.set("seed", seed)

    def check_guards(self) -> None:
        """AssertionError if anything was written beside an allocation, live or freed since."""
        violations = self.calls.twin_guards().decode()
        if violations:
            raise AssertionError(violations.rstrip())

    def fault(self) -> str:
        """What a kernel did wrong, with its thread; empty: nothing."""
        return str(self.calls.twin_fault().decode())

    def live(self) -> dict[str, int]:
        """What exists: "bytes" and "allocations" of the device, allocations of "pinned" memory,
        "streams", "events", "modules" and "graphs", executable ones too."""
        return dict(json.loads(self.calls.twin_live()))

    def used(self) -> int:
        """Bytes of the device that are allocated."""
        return self.live()["bytes"]

    def allocations(self) -> int:
        """How many allocations of the device are live."""
        return self.live()["allocations"]

    def heuristics(self) -> int:
        """How often cuBLASLt was asked for an algorithm, in all."""
        return int(self.calls.twin_heuristics())

    def exact_algorithms(self, on: bool) -> None:
        """Whether algorithms of cuBLASLt take no sizes but those that they were asked for."""
        self.set("exact_algorithms", int(on))

    def refuse_odd_strides(self, status: int) -> None:
        """What cuBLASLt says to leading dimensions that are no multiples of 4: 7 or 15."""
        self.set("odd_strides", status)

    def refuse_other_sizes(self, status: int) -> None:
        """What cublasLtMatmul says to algorithms for other sizes, to which their check agrees."""
        self.set("other_sizes", status)

    def fail_init(self, code: int) -> None:
        """What cuInit returns from now on."""
        self.set("init_error", code)

    def no_device(self) -> None:
        self.set("devices", 0)

    def driver_version(self, version: int) -> None:
        """As cuDriverGetVersion gives it: 12080 is 12.8."""
        self.set("driver_version", version)

    def capability(self, number: int) -> None:
        """The compute capability; 75 is 7.5."""
        self.set("capability", number)

    def watch_order(self) -> None:
        """From here on two operations that touch the same memory, one of them to write, must be
        ordered by streams, events or waits of the host; else the second of them is a fault.

        What kernels touch, checked modules alone tell; copies, fills and products always do."""
        self.set("order", 1)

    def memory(self, size: int) -> None:
        """Bytes of the device; beyond them an allocation is out of memory."""
        self.set("memory", size)

    def highest_grid(self, blocks: int) -> None:
        """Most blocks of a grid in y and in z: a real one's 65535 are too many for a test."""
        self.set("grid_y", blocks)

    def cudnn_version(self, version: int) -> None:
        """As cudnnGetVersion gives it: 90800 is 9.8.0."""
        self.set("cudnn_version", version)

    def fail_cudnn(self, nth: int = 1, status: int = 5000) -> None:
        """The nth call of cuDNN from now on returns a status; its descriptors' ends count not."""
        self.set("cudnn_error", status)
        self.set("cudnn_error_at", nth)

    def keep_up(self) -> None:
        """All that was asked for has run when a library is called: a fault shows to it first."""
        self.set("device_keeps_up", 1)

    def fail_call(self, name: str, code: int) -> None:
        """What an entry point of captures and graphs, or cuLaunchCooperativeKernel, returns until
        the next reset; "capture": what the operations of a captured stream do."""
        self.set(name, code)

    def clock(self, command: int, node: int) -> None:
        """Nanoseconds of an operation on the clock of events, alone and as part of a graph."""
        self.set("command_nanoseconds", command)
        self.set("node_nanoseconds", node)

    def cooperative(self, blocks_each: int) -> None:
        """Blocks of a cooperative launch that a multiprocessor holds; 0: the device has none."""
        self.set("cooperative", int(blocks_each != 0))
        self.set("blocks_each", blocks_each)

    def fail_launch(self, nth: int = 1, code: int = 700) -> None:
        """The nth launch from now on ends in a fault, which shows when the host waits."""
        self.set("launch_error", code)
        self.set("launch_error_at", nth)
