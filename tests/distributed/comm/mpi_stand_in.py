"""A stand-in for MPI whose ranks live in one process, without ULFM, for errors of MPI itself."""

from collections import defaultdict, deque
from types import SimpleNamespace

import numpy as np


class MPIError(Exception):
    """The class of errors of the stand-in."""

    def Get_error_class(self):
        return 16


class Aborted(BaseException):
    """The end of all ranks, which a real MPI would kill."""


class Status:
    """Source, tag and bytes of a message."""

    def Get_source(self):
        return self.source

    def Get_tag(self):
        return self.tag

    def Get_count(self, dtype):
        return self.count

    def fill(self, source, tag, data):
        self.source, self.tag, self.count = source, tag, data.size


class Request:
    """A message under way; `advance` returns True once it has ended."""

    def __init__(self, advance):
        self.advance, self.ended = advance, False

    def Test(self):
        self.ended = self.ended or self.advance()
        return self.ended

    def Get_status(self):
        return self.ended


class Group:
    def __init__(self, size):
        self.size = size

    def Translate_ranks(self, ranks, other):
        return list(range(self.size))


class Comm:
    """The communicator `name` as `rank` sees it. Messages of ranks in `dead` raise."""

    def __init__(self, mpi, name, rank):
        self.mpi, self.name, self.rank, self.duplicates = mpi, name, rank, 0

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return self.mpi.size

    def Get_group(self):
        return Group(self.mpi.size)

    def Get_attr(self, key):
        return (1 << 30) - 1

    def Dup(self):
        self.duplicates += 1
        return Comm(self.mpi, (*self.name, self.duplicates), self.rank)

    def Merge(self, high):
        return self

    def allgather(self, value):
        return [*range(self.rank), value]

    def Spawn(self, command, arguments, count):
        raise MPIError(f"no room for {count} times {command} {arguments}")

    def Abort(self, status):
        raise Aborted(status)

    def box(self, rank):
        return self.mpi.boxes[self.name, rank]

    def check(self, rank):
        if rank in self.mpi.dead:
            raise MPIError(f"process {rank} has failed")

    def Isend(self, buffer, to, tag):
        self.check(to)
        self.box(to).append((self.rank, tag, np.frombuffer(bytes(buffer[0]), np.uint8)))
        left = iter(range(self.mpi.tests))
        self.mpi.sent.append(Request(lambda: next(left, None) is None))
        return self.mpi.sent[-1]

    def Irecv(self, buffer, source, tag):
        def advance():
            self.check(source)
            found = next((m for m in tuple(self.box(self.rank)) if m[:2] == (source, tag)), None)
            if found is not None:
                self.box(self.rank).remove(found)
                buffer[0][...] = found[2]
            return found is not None

        return Request(advance)

    def Iprobe(self, source, tag, status):
        found = next((m for m in tuple(self.box(self.rank)) if m[0] == source), None)
        if found is not None:
            status.fill(*found)
            status.tag = found[1]
        return found is not None

    def Improbe(self, source, tag, status):
        for rank in self.mpi.dead:
            self.check(rank)
        if not self.box(self.rank):
            return None
        found = self.box(self.rank).popleft()
        status.fill(*found)

        def receive(buffer):
            buffer[0][...] = found[2]
            return Request(lambda: True)

        return SimpleNamespace(Irecv=receive)

    def _missing(self, *arguments):
        raise NotImplementedError("MPIX")

    Agree = Revoke = Shrink = Ack_failed = Get_failed = Is_revoked = _missing


class StandIn:
    """The module ``mpi4py.MPI`` of ranks 0 to `size` - 1; it is rank 0 that looks at COMM_WORLD.

    dead: ranks whose messages raise. tests: number of looks after which a message has left.
    """

    BYTE, ANY_SOURCE, ANY_TAG, TAG_UB, UNDEFINED = "byte", -1, -1, "tags", -32766
    THREAD_SERIALIZED = 2
    Exception, Status = MPIError, Status

    def __init__(self, size, threads=2):
        self.size, self.threads, self.tests = size, threads, 0
        self.boxes, self.dead, self.sent = defaultdict(deque), set(), []
        self.COMM_WORLD = self.comm(0)
        self.Request = SimpleNamespace(
            Testall=lambda requests: all([request.Test() for request in requests])
        )
        self.Comm = SimpleNamespace(Get_parent=lambda: self.COMM_WORLD)

    def comm(self, rank):
        return Comm(self, (), rank)

    def Query_thread(self):
        return self.threads
