"""Ranks agree on those that a step counts: late words, silence, and losses that cannot wait."""

import threading

import numpy as np
import pytest

import cavs
from cavs.distributed import Trainer
from cavs.distributed.comm import run_threads
from cavs.distributed.step.counted import Counted, CountedRanks, Word
from cavs.errors import CommunicationError, ConfigError
from tests.distributed.step.test_consensus import outcomes
from tests.distributed.step.test_counted import (  # noqa: F401  (slowed: a fixture)
    DATA,
    LONG,
    OneMean,
    check,
    slowed,
    train,
)
from tests.patience import patience
from tests.train.truncated import CARRY, LanguageModel, loader, text_chains


def test_a_mean_over_graphs_becomes_one_over_those_of_counted_ranks(slowed):  # noqa: F811
    slow_ranks = [{1}, {2}, {1}]
    check(train(slowed, slow_ranks, 3, 1, "graphs"), slow_ranks, 3, "graphs")


# ---- words --------------------------------------------------------------------------------------


def test_ranks_that_have_computed_are_counted_with_their_part_of_the_batch():
    """The rank of the others learns that it is not counted, and abandons its run."""
    told = threading.Event()

    def work(c):
        ranks = CountedRanks(c)
        assert ranks.begin(1, 3, 12.0, told.set if c.rank == 2 else None)
        c.barrier()
        if c.rank == 2:
            assert told.wait(patience(10))
        found = ranks.end(2 + c.rank, 4.0, computed=c.rank < 2)
        c.barrier()
        ranks.close()
        return found

    assert run_threads(3, work, timeout=patience(20)) == [Counted(frozenset({0, 1}), 1.5)] * 3


def test_a_word_about_an_earlier_step_counts_for_no_later_one():
    def work(c):
        ranks = CountedRanks(c)
        for step in (1, 2):
            ranks.begin(1, 3, 12.0, None)
            c.barrier()
            if step == 2 and c.rank == 2:  # it was late in the first step
                ranks._mailbox.post(0, [Word.COMPUTED, 1], [np.array([2.0, 4.0])])
            c.barrier()
            found = ranks.end(2, 4.0, computed=c.rank < 2)
            c.barrier()
        ranks.close()
        return found

    assert run_threads(3, work, timeout=patience(20)) == [Counted(frozenset({0, 1}), 1.5)] * 3


def test_ranks_that_are_waited_for_in_vain_are_named():
    """The first rank names those that have not computed; the others wait for it, which decides."""
    late = threading.Barrier(3)

    def work(c):
        c.timeout = 0.2
        ranks = CountedRanks(c)
        ranks.begin(0, 3, 12.0, None)
        errors = []
        for call in (
            lambda: ranks.end(2, 4.0, computed=True),
            lambda: ranks.begin(0, 3, 12.0, None),
        ):
            if c.rank == 2:
                continue
            try:
                call()
            except CommunicationError as error:
                errors.append(str(error))
        late.wait(patience(20))
        ranks.close()
        return errors

    first, second, _ = run_threads(3, work, timeout=patience(20))
    waited = "waited 0.2 s in ranks that a step counts: rank"
    assert first[0].startswith(f"rank 0 {waited} 2 did not come")
    assert second[0].startswith((f"rank 1 {waited} 2 did not come", f"rank 1 {waited} 0 "))
    for errors in (first, second):  # later calls fail at once
        assert errors == errors[:1] * 2


# ---- what does not go with backup ranks ---------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "what"), [("SMA", "replicas that differ"), ("ADPSGD", "replicas that differ")]
)
def test_replicas_that_differ_need_all_ranks(strategy, what):
    def work(c):
        options = {"communicator": c, "strategy": strategy}
        t = Trainer(OneMean(), cavs.optim.SGD(lr=0.1), **options)
        t.session.backup = 1
        t.advance(cavs.batch(DATA))

    for error in outcomes(2, work):
        assert isinstance(error, (ConfigError, CommunicationError))
        assert f"backup ranks with {what}" in str(error)


def carried(c, train, backup=0):
    adam = cavs.optim.Adam(lr=0.05)
    t = Trainer(LanguageModel(), adam, communicator=c, dtype=np.float64)
    t.session.backup = backup
    t.fit(train, epochs=1, carry=CARRY, progress=False)


def test_states_of_dropped_ranks_cannot_be_carried(slowed):  # noqa: F811
    slowed[1, 0] = LONG
    for error in outcomes(2, lambda c: carried(c, loader(), backup=1)):
        assert isinstance(error, ConfigError)
        assert "but a step went on without ranks [1], whose states are not known" in str(error)


def test_a_batch_of_fewer_graphs_continues_none():
    """Every rank has half of the graphs, as many as on one process are told."""
    shorter = loader(text_chains()[:-2])
    for error in outcomes(2, lambda c: carried(c, shorter)):
        assert "a batch of 1 graphs follows one of 2, whose states" in str(error)
