"""A stand-in for CuPy and its NCCL whose ranks are threads with the twin's memory.

Operations follow NCCL's documentation: those of a group begin at its end, collectives are matched
in the order of each rank's calls, sends and receives by pairs of ranks. An operation that all ranks
have begun runs at once, on the memory of all. One that some rank never begins does not end: its
stream never reaches a later event. Behaviour that NCCL leaves undefined is an error here.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import time
import types
from collections import defaultdict, deque
from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.cuda.cupy_on_twin import Devices
from tests.cuda.kernel_cases import narrowed, widened

TYPES = {"UINT8": 1, "INT32": 2, "INT64": 4, "FLOAT16": 6, "FLOAT32": 7, "FLOAT64": 8}
BFLOAT16 = 9
AVERAGE = 4
NUMPY = {number: np.dtype(name.lower()) for name, number in TYPES.items()}
NUMPY[BFLOAT16] = np.dtype(np.uint16)  # its bits


class NcclError(RuntimeError):
    """An error like CuPy's, with a text or a number, for which CuPy 14.2 has names up to 6."""

    def __init__(self, what):
        if isinstance(what, int):
            what = dict.fromkeys(range(7), "NCCL_ERROR_SYSTEM_ERROR")[what]
        super().__init__(what)


def misuse(text):
    return NcclError(f"NCCL_ERROR_INVALID_USAGE: {text}")


@dataclass(eq=False)
class Call:
    """A call of one rank. counts: numbers of elements that it sends and receives."""

    name: str
    rank: int
    source: int
    target: int
    counts: tuple[int, int]
    kind: int
    stream: int
    root: int | None = None
    operation: int = 0
    done: bool = False

    @property
    def same(self):
        """The arguments in which all ranks must agree."""
        return self.name, self.counts, self.kind, self.root, self.operation


def width(kind):
    """Size of an element in bytes."""
    if kind not in NUMPY:
        raise NcclError("NCCL_ERROR_INVALID_ARGUMENT: no such type")
    return NUMPY[kind].itemsize


def memory(at, count, kind):
    """Elements as a NumPy array."""
    if count == 0:
        return np.empty(0, NUMPY[kind])
    return np.frombuffer((ctypes.c_ubyte * (count * width(kind))).from_address(at), NUMPY[kind])


def added(terms, kind, operation=0):
    """Reduce in the order of ranks, rounding each time."""
    total = terms[0].copy()
    if operation in {2, 3}:
        return (np.maximum if operation == 2 else np.minimum).reduce(terms)
    for term in terms[1:]:
        if kind == BFLOAT16:
            total = narrowed(widened(total) + widened(term))
        else:
            total += term
    return total / np.array(len(terms), total.dtype) if operation == AVERAGE else total


@dataclass
class Group:
    """State shared by the ranks of one id."""

    size: int
    changed: threading.Condition = field(default_factory=threading.Condition)
    begun: dict = field(default_factory=lambda: defaultdict(dict))  # by number and rank
    numbers: dict = field(default_factory=lambda: defaultdict(itertools.count))
    letters: dict = field(default_factory=lambda: defaultdict(lambda: (deque(), deque())))
    aborted: bool = False
    wrong: Exception | None = None

    def begin(self, call):
        """Record a call, and run the collectives that are complete."""
        if call.name in {"send", "recv"}:
            pair = (call.rank, call.root) if call.name == "send" else (call.root, call.rank)
            sends, receives = self.letters[pair]
            (sends if call.name == "send" else receives).append(call)
            while sends and receives:
                self._deliver(sends.popleft(), receives.popleft())
            return
        number = next(self.numbers[call.rank])
        calls = self.begun[number]
        calls[call.rank] = call
        if len(calls) == self.size:
            del self.begun[number]
            self._run([calls[r] for r in range(self.size)])

    def _deliver(self, send, receive):
        a, b = max(send.counts), max(receive.counts)
        if (a, send.kind) != (b, receive.kind):
            self.wrong = misuse(f"rank {send.rank} sends {a}, rank {receive.rank} receives {b}")
            return
        memory(receive.target, b, receive.kind)[...] = memory(send.source, a, send.kind)
        send.done = receive.done = True

    def _run(self, calls):
        first = calls[0]
        for call in calls:
            if call.same != first.same:
                self.wrong = misuse(f"rank 0 calls {first.same}, rank {call.rank} {call.same}")
                return
        kind, (sent, received) = first.kind, first.counts
        if first.name == "broadcast":
            sources = [memory(calls[first.root].source, sent, kind).copy()]
        else:
            sources = [memory(call.source, sent, kind).copy() for call in calls]
        for rank, call in enumerate(calls):
            if first.name in {"allReduce", "reduce"}:
                result = added(sources, kind, first.operation)
            elif first.name == "reduceScatter":
                result = added(sources, kind)[rank * received : (rank + 1) * received]
            else:
                result = np.concatenate(sources)
            if first.name != "reduce" or rank == first.root:
                memory(call.target, received, kind)[...] = result
            call.done = True


class StandIn(Devices):
    """fails: ranks whose next all-reduce fails. refuses: ranks that cannot join a group."""

    available = True
    NCCL_SUM, NCCL_MAX, NCCL_MIN = 0, 2, 3

    def __init__(self, twin, timeout=20.0):
        super().__init__(twin)
        self.timeout = timeout
        for name, number in {**TYPES, "BFLOAT16": BFLOAT16}.items():
            setattr(self, f"NCCL_{name}", number)
        self.calls, self.groups, self.fails = [], {}, set()
        self.lock, self.refuses = threading.Lock(), set()
        self.open = []  # communicators that are neither destroyed nor aborted
        self.grouped = threading.local()
        self.numbers = itertools.count()

    def get_unique_id(self):
        return next(self.numbers).to_bytes(128, "big")

    def groupStart(self):
        self.log("groupStart")
        self.grouped.depth = getattr(self.grouped, "depth", 0) + 1
        if self.grouped.depth == 1:
            self.grouped.calls = []

    def groupEnd(self):
        self.log("groupEnd")
        self.grouped.depth -= 1
        if self.grouped.depth == 0:
            self.run(self.grouped.calls)

    def log(self, *call):
        with self.lock:
            self.calls.append(call)

    def ask(self, communicator, call):
        self.log(call.name, call.rank, max(call.counts), call.kind)
        if getattr(self.grouped, "depth", 0):
            self.grouped.calls.append((communicator, call))
        else:
            self.run([(communicator, call)])

    def run(self, asked):
        """Begin all calls, then wait until they have ended or been aborted."""
        for _, call in asked:
            if self.twin.calls.cuStreamSynchronize(ctypes.c_void_p(call.stream)):
                raise NcclError("NCCL_ERROR_UNHANDLED_CUDA_ERROR: unhandled cuda error")
        end = time.monotonic() + self.timeout
        for communicator, call in asked:
            with communicator.group.changed:
                communicator.group.begin(call)
                communicator.group.changed.notify_all()
        for communicator, call in asked:
            group = communicator.group
            with group.changed:
                while not (call.done or group.aborted or group.wrong):
                    if not group.changed.wait(end - time.monotonic()):
                        break
                if group.wrong:
                    raise group.wrong
            if not call.done:  # the result is invalid, as on a GPU
                self.never.add(call.stream)

    def NcclCommunicator(self, size, unique, rank):
        assert isinstance(unique, bytes) and len(unique) == 128
        assert not getattr(self.grouped, "depth", 0), "a group is open in this thread"
        if rank in self.refuses:
            raise NcclError("NCCL_ERROR_SYSTEM_ERROR: no such network")
        with self.lock:
            group = self.groups.setdefault(unique, Group(size))
            self.open.append(Communicator(self, group, rank, size))
            return self.open[-1]

    def open_of(self, rank):
        return [c for c in self.open if c.rank == rank]

    def install(self, patch: pytest.MonkeyPatch):
        """The stand-ins by the names of the modules that the package imports."""
        cupy, cuda = types.ModuleType("cupy"), self.cuda()
        cupy.cuda, cupy.__version__, cuda.nccl = cuda, "14.2.0", self
        for name, module in (("cupy", cupy), ("cupy.cuda", cuda), ("cupy.cuda.nccl", self)):
            patch.setitem(sys.modules, name, module)


class Communicator:
    """The communicator of one rank, with the arguments of CuPy's methods."""

    def __init__(self, module, group, rank, size):
        self.module, self.group, self.rank, self.size = module, group, rank, size
        self.error = None  # the first error

    def _ask(self, name, source, target, counts, kind, stream, root=None, own=0, operation=0):
        """Check and issue a call. own: offset at which the smaller array may be in the larger."""
        if root is not None and not 0 <= root < self.size:
            raise NcclError(f"NCCL_ERROR_INVALID_ARGUMENT: no rank {root}")
        (sent, received), size = counts, width(kind)
        disjoint = source + sent * size <= target or target + received * size <= source
        inside = target - source == own if sent >= received else source - target == own
        if name not in {"send", "recv"} and not (disjoint or inside):
            raise misuse(f"{name}: arrays overlap, but not as in-place arrays do")
        call = Call(name, self.rank, source, target, counts, kind, stream, root, operation)
        self.module.ask(self, call)

    def allReduce(self, source, target, count, kind, operation, stream):
        assert operation in {0, 2, 3, AVERAGE}
        if self.rank in self.module.fails:
            self.module.fails.remove(self.rank)
            self._give_up()  # other ranks may already wait in theirs
            raise NcclError("NCCL_ERROR_SYSTEM_ERROR: unhandled system error")
        self._ask("allReduce", source, target, (count, count), kind, stream, operation=operation)

    def reduce(self, source, target, count, kind, operation, root, stream):
        assert operation == self.module.NCCL_SUM
        self._ask("reduce", source, target, (count, count), kind, stream, root)

    def broadcast(self, source, target, count, kind, root, stream):
        self._ask("broadcast", source, target, (count, count), kind, stream, root)

    def reduceScatter(self, source, target, count, kind, operation, stream):
        assert operation == self.module.NCCL_SUM
        own = self.rank * count * width(kind)
        counts = (count * self.size, count)
        self._ask("reduceScatter", source, target, counts, kind, stream, own=own)

    def allGather(self, source, target, count, kind, stream):
        own = self.rank * count * width(kind)
        counts = (count, count * self.size)
        self._ask("allGather", source, target, counts, kind, stream, own=own)

    def send(self, source, count, kind, peer, stream):
        self._ask("send", source, 0, (count, 0), kind, stream, peer)

    def recv(self, target, count, kind, peer, stream):
        self._ask("recv", 0, target, (0, count), kind, stream, peer)

    def check_async_error(self):
        if self.error is not None:
            raise NcclError(self.error)

    def abort(self):
        self.module.log("abort", self.rank)
        self._give_up()
        self._end()

    def destroy(self):
        self.module.log("destroy", self.rank)
        self._end()

    def _give_up(self):
        with self.group.changed:
            self.group.aborted = True
            self.group.changed.notify_all()

    def _end(self):
        with self.module.lock:
            self.module.open.remove(self)
