"""Exit hooks: a program that ends before its training tells the other ranks.

Python calls no hook for ``sys.exit``, and MPI waits for all ranks when a process ends. So a rank
whose training is not closed reaches a consensus with the others first, as `Trainer.close` does.
"""

from __future__ import annotations

import atexit
import os
from dataclasses import dataclass

from cavs.distributed.comm.agreement import Agreement, is_agreed
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.comm.mpi.communicator import MPICommunicator
from cavs.errors import CommunicationError


@dataclass
class _Open:
    """A training that is not closed. begun: True if all ranks train it. aborted: see
    `mark_aborted`."""

    communicator: MPICommunicator
    begun: bool
    aborted: bool = False


_open: dict[int, _Open] = {}  # by communicator, which is kept: the trainer may be gone by then


def attend(c: Communicator, *, begun: bool = False, asynchronous: bool = False) -> None:
    """Register a training of these ranks, until `closed`; threads of one process end together
    anyway.

    asynchronous: servers tell the other ranks of errors.
    """
    if asynchronous:
        closed(c)
    if asynchronous or not isinstance(c, MPICommunicator) or c.size == 1:
        return
    if not _open:
        atexit.unregister(_leave)
        atexit.register(_leave, os.getpid())
    _open[id(c)] = _Open(c, begun)


def closed(c: Communicator) -> None:
    """Note that no rank waits for this one in `c` any more."""
    _open.pop(id(c), None)


def mark_aborted(c: Communicator) -> None:
    """Note that this rank leaves a step in the middle, in which the others wait for it."""
    if id(c) in _open:
        _open[id(c)].aborted = True


def _leave(process: int) -> None:
    """At the end of the program, abort all ranks if others go on training; this rank says why."""
    if os.getpid() != process:  # a child, which is no rank
        return
    for training in reversed(_open.values()):
        c = training.communicator
        try:
            if training.aborted:
                c.abort("its program has ended in the middle of a step")
            Agreement(c).leave(training.begun)
        except CommunicationError as error:
            if is_agreed(error):
                c.abort("its program has ended, without Trainer.close(), while others train")
            # Otherwise the others are gone themselves, or busy for long: this rank must not wait.
