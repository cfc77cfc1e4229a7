"""A host twin of an NVIDIA GPU: a library like libcuda that runs kernels on the CPU.

docs/architecture/host_twin.md explains it. One device per process: call ``Twin().reset()``
between tests.
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
    """A line of the log, in issue order.

    kind: "launch", "copy", "set", "record", "wait" or "product"; "graph", with the number of its
    operations as argument, which follow as if issued one by one; or "synchronize", where the host
    waits for a stream or an event (stream -1). stream: 0 is the default one, others count from 1 in
    order of creation. priority: that of the stream, or of the node in a graph that keeps
    priorities; smaller ones run first. arguments: numbers and addresses, None for a struct; for a
    product m, n, k and the allowed reduction schemes of cublasLt.h. ``to``, ``from_``: addresses;
    events for records and waits. ran: position in the order of execution, -1 if it has not run.
    cooperative: a launch whose blocks may wait at barriers of the grid.
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

    without: entry points that the library lacks, like an old driver. checked: see TwinCompiler.
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
        """Return the operations issued since the last reset; of very many, the latest."""
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
        """Return the number of operations in the log that have not run."""
        return int(self.calls.twin_records().count(b'"ran":-1'))

    def reset(self) -> None:
        """Run queued operations, then clear log, faults and settings. Memory stays allocated."""
        self.calls.twin_reset()

    def set(self, name: str, value: int) -> None:
        if not self.calls.twin_set(name.encode(), value):
            raise KeyError(name)

    def adversarial(self, seed: int) -> None:
        """Run streams, blocks and threads in an order of this seed; 0: in issue order."""
        self.set("seed", seed)

    def check_guards(self) -> None:
        """Raise AssertionError if guard bytes of an allocation, live or freed, have changed."""
        violations = self.calls.twin_guards().decode()
        if violations:
            raise AssertionError(violations.rstrip())

    def fault(self) -> str:
        """Return the fault of a kernel with its thread, or ""."""
        return str(self.calls.twin_fault().decode())

    def live(self) -> dict[str, int]:
        """Return counts of live objects.

        "bytes" and "allocations" of the device, "pinned" allocations, "streams", "events",
        "modules" and "graphs", with executable ones.
        """
        return dict(json.loads(self.calls.twin_live()))

    def used(self) -> int:
        """Return the number of allocated bytes of the device."""
        return self.live()["bytes"]

    def allocations(self) -> int:
        """Return the number of live allocations of the device."""
        return self.live()["allocations"]

    def heuristics(self) -> int:
        """Return the number of requests to cuBLASLt for an algorithm."""
        return int(self.calls.twin_heuristics())

    def exact_algorithms(self, on: bool) -> None:
        """Make algorithms of cuBLASLt valid for the requested sizes only, or not."""
        self.set("exact_algorithms", int(on))

    def refuse_odd_strides(self, status: int) -> None:
        """Set the status of cuBLASLt for leading dimensions that are no multiples of 4: 7 or 15."""
        self.set("odd_strides", status)

    def refuse_other_sizes(self, status: int) -> None:
        """Set the status of cublasLtMatmul for algorithms of other sizes that were accepted."""
        self.set("other_sizes", status)

    def fail_init(self, code: int) -> None:
        """Set the result of cuInit from now on."""
        self.set("init_error", code)

    def no_device(self) -> None:
        self.set("devices", 0)

    def driver_version(self, version: int) -> None:
        """Set the version of the driver, as cuDriverGetVersion returns it: 12080 is 12.8."""
        self.set("driver_version", version)

    def capability(self, number: int) -> None:
        """Set the compute capability; 75 is 7.5."""
        self.set("capability", number)

    def watch_order(self) -> None:
        """Require an order of operations that access the same memory, unless both read it.

        Kernels report their accesses only in checked modules; copies, fills and products always
        do."""
        self.set("order", 1)

    def memory(self, size: int) -> None:
        """Set the memory of the device in bytes, beyond which allocations fail."""
        self.set("memory", size)

    def highest_grid(self, blocks: int) -> None:
        """Set the limit of blocks in y and z: the real 65535 are too many for a test."""
        self.set("grid_y", blocks)

    def cudnn_version(self, version: int) -> None:
        """Set the version of cuDNN, as cudnnGetVersion returns it: 90800 is 9.8.0."""
        self.set("cudnn_version", version)

    def fail_cudnn(self, nth: int = 1, status: int = 5000) -> None:
        """Make the nth call of cuDNN return a status; destroying descriptors does not count."""
        self.set("cudnn_error", status)
        self.set("cudnn_error_at", nth)

    def keep_up(self) -> None:
        """Run issued operations when a library is called, which then reports their fault."""
        self.set("device_keeps_up", 1)

    def fail_call(self, name: str, code: int) -> None:
        """Set the result of an entry point until the next reset.

        name: one of captures and graphs, cuLaunchCooperativeKernel, or "capture" for operations
        of a captured stream.
        """
        self.set(name, code)

    def clock(self, command: int, node: int) -> None:
        """Set the nanoseconds of an operation on the clock of events, alone and in a graph."""
        self.set("command_nanoseconds", command)
        self.set("node_nanoseconds", node)

    def cooperative(self, blocks_each: int) -> None:
        """Set the blocks of a cooperative launch per multiprocessor; 0: no such launches."""
        self.set("cooperative", int(blocks_each != 0))
        self.set("blocks_each", blocks_each)

    def fail_launch(self, nth: int = 1, code: int = 700) -> None:
        """Make the nth launch from now on a fault, which the next wait of the host reports."""
        self.set("launch_error", code)
        self.set("launch_error_at", nth)
