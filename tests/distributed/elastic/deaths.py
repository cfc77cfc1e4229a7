"""Deaths of ranks that are threads, in whatever group they exchange messages."""

import threading

import pytest

from cavs.distributed.comm.threads import ThreadCommunicator
from tests.distributed.elastic.test_survivors import Killed


@pytest.fixture
def deaths(monkeypatch):
    """Yield a dict: the number of messages after which a process dies, in whatever group."""
    left, made, lock = {}, [], threading.Lock()
    init, exchange = ThreadCommunicator.__init__, ThreadCommunicator._exchange

    def noted(self, *arguments, **options):
        init(self, *arguments, **options)
        made.append(self)

    def counted(self, sends, receives):
        process = self.names[self.rank]
        with lock:
            count = left[process] = left.get(process, 1 << 40) - 1
        if count < 0:
            for c in list(made):
                if c.names[c.rank] == process:
                    c.die()
            raise Killed
        exchange(self, sends, receives)

    monkeypatch.setattr(ThreadCommunicator, "__init__", noted)
    monkeypatch.setattr(ThreadCommunicator, "_exchange", counted)
    return left
