"""The group of ranks of a training on one process, as its policies see it."""

import numpy as np
import pytest

from cavs.errors import ConfigError
from cavs.train import Policy
from cavs.train.ranks import OneRank
from tests.train.test_trainer import GRAPHS, make, train_loader


class Asking(Policy):
    """Calls `ask` with the run after the first step, and keeps its result."""

    def __init__(self, ask):
        self.ask, self.answers = ask, []

    def after_step(self, run):
        if run.step == 1:
            self.answers.append(self.ask(run))


def asked(ask):
    policy = Asking(ask)
    make().fit(train_loader(GRAPHS[:8]), epochs=1, policies=[policy], progress=False)
    (answer,) = policy.answers
    return answer


def test_one_rank_is_its_own_root_and_stays():
    assert asked(lambda run: (run.latency_tree(), run.detached, run.max_size)) == ([0], False, 1)


def test_one_process_has_the_size_one():
    """A policy may ask for the number of ranks that there is."""
    assert asked(lambda run: (run.resize(1), run.size)) == (True, 1)
    with pytest.raises(ConfigError, match="resize to 2 ranks, but this training is one process"):
        asked(lambda run: run.resize(2))


def test_an_array_that_is_kept_is_a_copy_for_every_request():
    def ask(run):
        values = np.arange(3.0)
        run.keep("values", [9.0])
        run.keep("values", values)
        values[0] = 7.0
        first = run.request(0, "values")
        first[1] = 7.0
        return first.tolist(), run.request(0, "values").tolist()

    assert asked(ask) == ([0.0, 7.0, 2.0], [0.0, 1.0, 2.0])


@pytest.mark.parametrize(
    ("rank", "tag", "told"),
    [
        (1, "values", "rank is 1, but must be 0 on one process"),
        (0, "other", r"tag is 'other', but must be one of \['values'\], which are kept"),
    ],
)
def test_requests_that_no_rank_can_answer_are_refused(rank, tag, told):
    group = OneRank()
    group.keep("values", np.ones(2))
    with pytest.raises(ConfigError, match=told):
        group.request(rank, tag)


def test_the_root_of_a_broadcast_is_the_only_rank():
    assert asked(lambda run: run.broadcast(2.5)) == 2.5
    with pytest.raises(ConfigError, match="root is 1, but must be 0 on one process"):
        asked(lambda run: run.broadcast(2.5, root=1))
