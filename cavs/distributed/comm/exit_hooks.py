"""Programs of one's own that end while their training does not: the other ranks are told.

Python calls no hook for ``sys.exit``, and MPI waits for all ranks when a process ends. So a rank
whose training is not closed meets the others before that, as `Trainer.close` does.
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
    """A training that is not closed. begun: whether all ranks train it. torn: see `torn`."""

    communicator: MPICommunicator
    begun: bool
    torn: bool = False


_open: dict[int, _Open] = {}  # by communicator, which is kept: the trainer may be gone by then


def attend(c: Communicator, *, begun: bool = False, free: bool = False) -> None:
    """A training of these ranks, until `closed`; threads of one process end together anyway.

    free: ranks meet in no step; their servers tell the others.
    """
    if free:
        closed(c)
    if free or not isinstance(c, MPICommunicator) or c.size == 1:
        return
    if not _open:
        atexit.unregister(_leave)
        atexit.register(_leave, os.getpid())
    _open[id(c)] = _Open(c, begun)


def closed(c: Communicator) -> None:
    """Nobody waits for this rank in `c` any more."""
    _open.pop(id(c), None)


def torn(c: Communicator) -> None:
    """This rank leaves a step in the middle, to end its program: the others wait in that step."""
    if id(c) in _open:
        _open[id(c)].torn = True


def _leave(process: int) -> None:
    """The program ends. If others train on, all are ended, and this rank says why."""
    if os.getpid() != process:  # a child, which is no rank
        return
    for training in reversed(_open.values()):
        c = training.communicator
        try:
            if training.torn:
                c.abort("its program has ended in the middle of a step")
            Agreement(c).leave(training.begun)
        except CommunicationError as error:
            if is_agreed(error):
                c.abort("its program has ended, without Trainer.close(), while others train")
            # Else they are gone themselves, or do something else for long: nobody may wait.
