"""One process alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cavs.distributed.communicator.collectives import Collectives, Message
from cavs.distributed.communicator.mailbox import LonelyMailbox
from cavs.errors import ConfigError


class SingleCommunicator(Collectives):
    """A group of one rank: every operation is done at once, and nothing is sent."""

    def __init__(self) -> None:
        super().__init__(0, 1, timeout=0.0, overlaps=False)  # nothing to wait for

    def _exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        if sends or receives:
            raise ConfigError("one rank has nobody to send to", hint="run it on 2 ranks or more")

    def split(self, color: int, key: int = 0) -> SingleCommunicator:
        """See `Communicator`."""
        return SingleCommunicator()

    def mailbox(self) -> LonelyMailbox:
        """See `Communicator`."""
        return LonelyMailbox(0, 1)

    def leave(self) -> None:
        """See `Communicator`."""

    def shrink(self) -> SingleCommunicator:
        """See `Communicator`."""
        return self

    def abort(self, message: str) -> None:
        """See `Communicator`."""
        sys.exit(message)
