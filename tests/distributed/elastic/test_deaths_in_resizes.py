"""A process dies while others join: the ranks that are left go on, as one process would."""

import numpy as np
import pytest

from cavs.distributed.comm import run_threads
from tests.distributed.elastic.deaths import deaths  # noqa: F401  (a fixture)
from tests.distributed.elastic.test_resize import Planned, alone, resized, values
from tests.distributed.elastic.test_survivors import Killed
from tests.draws import EXAMPLES
from tests.patience import patience

PLANS = {"grows": {3: 4}, "shrinks": {3: 2}}
# At each of the messages a rank dies, and every rank at some; in a thorough run, every rank at all.
DEATHS = [
    pytest.param(plan, 6 * i, victim, id=f"{name}-{6 * i}-{victim}")
    for n, (name, plan) in enumerate(PLANS.items())
    for i in range(12)
    for victim in range(3)
    if EXAMPLES or victim == (n + i) % 3
]


class Mortal(Planned):
    """Resizes, and lets a rank die so many messages later."""

    def __init__(self, plan, left, victim, messages):
        super().__init__(plan)
        self.left, self.victim, self.messages = left, victim, messages

    def after_step(self, run):
        super().after_step(run)
        if run.rank == self.victim and run.step in self.plan:
            self.left[self.victim] = self.messages


@pytest.fixture(scope="module")
def expected():
    return alone()[0]


@pytest.mark.parametrize(("plan", "messages", "victim"), DEATHS)
def test_a_death_in_a_resize_costs_nothing(plan, victim, messages, deaths, expected, capsys):  # noqa: F811
    """Rank 2 is a spare where the ranks grow from 2 to 4, and leaves where they shrink from 3."""
    size, spares = (2, 2) if plan[3] == 4 else (3, 0)

    def work(c):
        if c.rank == victim >= size:  # a spare that has joined the pool
            deaths[victim] = messages
        policy = Mortal(plan, deaths, victim, messages)
        try:
            return resized(c, {}, elastic=True, policies=[policy])
        except Killed:
            return None

    found = run_threads(size, work, spares=spares, timeout=patience(20))
    assert found[victim] is None or victim == 2
    left = [r for r in found if r is not None and r[0].status == "finished"]
    assert len(left) >= min(plan[3], size) - 1
    for _, trainer, policy in left:
        assert trainer.steps == 30 and policy.sizes[-1][1] == len(left)
        for name, value in expected.items():
            np.testing.assert_allclose(values(trainer)[name], value, 1e-10, 1e-12, err_msg=name)
