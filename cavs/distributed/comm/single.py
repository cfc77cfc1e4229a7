"""One process alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cavs.distributed.comm.collectives import Collectives
from cavs.distributed.comm.hang_detection import WaitRegister
from cavs.distributed.comm.mailbox import SingleMailbox
from cavs.distributed.comm.messages import Message
from cavs.errors import ConfigError


class SingleCommunicator(Collectives):
    """A group of one rank: every operation is done at once, and nothing is sent."""

    def __init__(self) -> None:
        # There is no other rank; the timeout is that of NCCL, which is set up with this
        # communicator.
        super().__init__(0, [0], timeout=300.0, overlaps=False, desk=WaitRegister(0), group="alone")

    def _exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        if sends or receives:
            raise ConfigError("one rank has no other to send to", hint="run it on 2 ranks or more")

    def _check_alive(self) -> None:
        """This rank is."""

    def split(self, color: int, key: int = 0) -> SingleCommunicator:
        return SingleCommunicator()

    def mailbox(self) -> SingleMailbox:
        return SingleMailbox(0, self.names)

    def leave(self) -> None:
        """See `Communicator`."""

    def shrink(self) -> SingleCommunicator:
        return self

    def abort(self, message: str) -> None:
        sys.exit(message)
