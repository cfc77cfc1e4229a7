"""Random schedules of deaths, resizes and stops: every run ends as one process would end it.

CAVS_TEST_EXAMPLES raises the number of schedules.
"""

import random

import numpy as np
import pytest

import cavs
from cavs.distributed.comm import LostPeerError, run_threads
from cavs.train.checkpoint import read_checkpoint
from tests.distributed.elastic.deaths import deaths  # noqa: F401  (a fixture)
from tests.distributed.elastic.schedules import CALM, STEPS, Scheduled, draw
from tests.distributed.elastic.test_resize import alone, loader, make, values
from tests.distributed.elastic.test_survivors import Killed
from tests.draws import EXAMPLES
from tests.patience import patience

DEFAULT = 4  # schedules of each strategy that the suite draws
EVERY = 5  # steps between checkpoints
STRATEGIES = [None, "PartitionedPS"]


class Stopping(Scheduled):
    """Lets the first rank want to stop, as Ctrl-C would; others may leave at that step."""

    def __init__(self, sizes, stop, session):
        super().__init__(sizes)
        self.stop, self.session = stop, session

    def after_step(self, run):
        super().after_step(run)
        if run.step == self.stop and run.rank == 0:
            self.session.wants_stop = True


def train(c, schedule, path, strategy):
    """Return status, trainer and policy of one process."""
    optimizer = cavs.optim.SGD(lr=0.1, momentum=0.9)
    trainer = make(c, optimizer, np.float32, strategy=strategy, elastic=True)
    policy = Stopping(schedule.sizes, schedule.stop, trainer.session)
    try:
        if path.exists():
            trainer.resume(path)
        result = trainer.fit(
            loader(),
            epochs=2,
            progress=False,
            checkpoint=path,
            checkpoint_every=EVERY,
            policies=[policy],
        )
    except Killed:
        return "killed", trainer, policy
    except KeyboardInterrupt:
        return "stopped", trainer, policy
    except LostPeerError as error:
        assert "all ranks that trained have died" in str(error)
        return "left alone", trainer, policy
    return result.status, trainer, policy


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "seed",
    [*range(DEFAULT), *(pytest.param(n, marks=pytest.mark.slow) for n in range(DEFAULT, EXAMPLES))],
)
def test_runs_on_threads_end_as_one_process(seed, strategy, deaths, tmp_path):  # noqa: F811
    rng, path = random.Random(seed), tmp_path / "m"
    expected, _ = alone(cavs.optim.SGD(lr=0.1, momentum=0.9), np.float32)
    begun = 0
    for attempt in range(CALM + 1):
        schedule = draw(rng, begun, lambda rng: rng.randint(1, 1500), attempt)
        deaths.clear()
        deaths.update(schedule.deaths)
        found = run_threads(
            schedule.ranks,
            lambda c, schedule=schedule: train(c, schedule, path, strategy),
            spares=schedule.spares,
            timeout=patience(20),
        )
        ends = [status for status, _, _ in found]
        told = f"seed {seed}: {schedule} ended as {ends}"
        assert set(ends) <= {"finished", "stopped", "detached", "killed", "left alone"}, told
        assert "left alone" not in ends or not {"finished", "stopped"} & set(ends), told
        reached = {t.steps for status, t, _ in found if status in ("finished", "stopped")}
        assert len(reached) <= 1, told
        if "finished" in ends:
            assert reached == {STEPS} and "stopped" not in ends, told
            break
        saved = read_checkpoint(path).progress["step"] if path.exists() else 0
        if "stopped" in ends:  # nothing is lost
            assert reached == {saved} and saved - schedule.stop in (0, 1), told
        else:  # all ranks have died
            most = max(max(policy.ranks, default=begun) for _, _, policy in found)
            assert most - EVERY <= saved <= most, told
        begun = saved
    else:
        raise AssertionError(told)
    for status, trainer, policy in found:
        if status == "finished":
            assert sorted(policy.ranks) == list(range(1, STEPS + 1)), told
            for name, value in expected.items():
                np.testing.assert_allclose(
                    values(trainer)[name], value, rtol=0, atol=1e-6, err_msg=f"{name}, {told}"
                )
