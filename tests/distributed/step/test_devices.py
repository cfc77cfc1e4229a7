"""Ranks agree on their devices, also where one of them dies meanwhile."""

import pytest

from cavs.distributed.comm import LostPeerError, run_threads
from cavs.distributed.step.devices import device_of_rank
from cavs.errors import ConfigError
from tests.distributed.elastic.test_survivors import Killed, mortal
from tests.distributed.step.test_consensus import outcomes
from tests.patience import patience


def test_a_rank_on_the_cpu_needs_no_other_to_begin():
    """The first step finds the death again, and the ranks go on if they can."""

    def work(c):
        mortal(c, 1, 0)
        try:
            return device_of_rank("cpu", c)
        except Killed:
            return None

    assert run_threads(2, work, timeout=patience(20)) == ["cpu", None]


def test_a_gpu_is_not_dealt_out_among_ranks_that_have_died():
    def work(c):
        mortal(c, 1, 0)
        try:
            device_of_rank("cuda", c)
        except Killed:
            return None
        except LostPeerError as error:
            return str(error)

    first, dead = run_threads(2, work, timeout=patience(20))
    assert "[1] are gone" in first and dead is None


def test_a_fault_of_one_rank_is_an_error_on_all():
    def work(c):
        def check():
            if c.rank == 1:
                raise ConfigError("no such option")

        device_of_rank("cpu", c, check=check)

    first, second = outcomes(2, work)
    assert isinstance(second, ConfigError) and "no such option" in str(second)
    assert "rank 1" in str(first) and "no such option" in str(first)


@pytest.mark.parametrize("collectives", ["nccl", "gloo"])
def test_collectives_of_other_devices_are_refused(collectives):
    for error in outcomes(2, lambda c: device_of_rank("cpu", c, collectives)):
        assert isinstance(error, ConfigError)
        assert f"collectives is {collectives!r}" in str(error)
