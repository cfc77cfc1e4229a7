"""The communicator of a process alone."""

import numpy as np
import pytest

from cavs.distributed.comm import SingleCommunicator
from cavs.errors import CommunicationError, ConfigError


def test_a_single_process_agrees_with_itself():
    c = SingleCommunicator()
    assert c.agree(True) and not c.agree(False)
    c.leave()
    assert c.shrink() is c and c.agree(True)


def test_groups_of_a_single_process_have_it_alone():
    c = SingleCommunicator()
    box = c.mailbox()
    group = c.subgroup([0], 1, box)
    assert (group.size, group.rank, group.names) == (1, 0, (0,))
    group.traffic.count(0, sent=8)
    assert c.traffic.totals([0])[0].sum() == 0


def test_no_letter_leaves_a_single_process():
    box = SingleCommunicator().mailbox()
    assert box.lost() == set()
    with pytest.raises(CommunicationError, match="there is no rank 1 to write to"):
        box.__class__(0, (0, 1)).post(1, [5])


def test_a_single_process_sends_nothing_to_itself():
    c = SingleCommunicator()
    with pytest.raises(ConfigError, match="one rank has no other to send to") as caught:
        c.send(np.zeros(1), 0)
    assert "hint: run it on 2 ranks or more" in str(caught.value)


def test_a_single_process_aborts_with_its_message():
    with pytest.raises(SystemExit) as caught:
        SingleCommunicator().abort("the disk is full")
    assert caught.value.code == "the disk is full"
