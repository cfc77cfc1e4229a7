"""Residuals of compressors when a rank dies: survivors keep theirs, with their weight.

On a loss that is linear in the parameters every step's gradient is known: applied values and
residuals must add up to the updates of one process, except for the residuals of the dead rank.
"""

import numpy as np
import pytest

import cavs
from cavs.distributed import Trainer
from cavs.distributed.comm import run_threads
from cavs.distributed.elastic import survivors
from cavs.distributed.step.session import DistributedSession
from cavs.distributed.step.synchronous_step import SynchronousStep
from cavs.distributed.sync import CompressedAllReduce
from tests.distributed.elastic.test_resize import Planned
from tests.distributed.elastic.test_stale_survivors import Linear, alone, data  # noqa: F401  (a fixture)
from tests.distributed.elastic.test_survivors import Killed, mortal
from tests.distributed.step.test_compressor_state import COMPRESSORS
from tests.distributed.step.test_consensus import loader
from tests.distributed.step.test_stale_parameters import assert_same_bits, trainer, values_of
from tests.patience import patience

LR, EPOCHS = 0.05, 3
HELD = ("error", "unsent")
KEEPING = ["error_feedback(float16)", "onebit", "powersgd(rank=1)", "topk(ratio=0.1, warm_up=9)"]


def held_by(t, uncommitted=False):
    """Return the residuals of the exchanges of a trainer, by parameter."""
    names = list(t.parameters)
    return {
        names[e.parameters[0]]: next(
            (a for name, a in (e.coming if uncommitted else e.state).items() if name in HELD), 0.0
        )
        for e in t.session.exchanges
        if isinstance(e, CompressedAllReduce)
    }


def alike_in(t):
    """Return the states of compressors that are equal on all ranks."""
    return {
        f"{e.parameters[0]}.{name}": np.asarray(e.state[name])
        for e in t.session.exchanges
        if isinstance(e, CompressedAllReduce)
        for name in e.state
        if name in ("step", "right")
    }


def trainer_of(c, strategy, **options):
    optimizer = cavs.optim.SGD(lr=LR)
    return Trainer(
        Linear(), optimizer, communicator=c, dtype=np.float64, strategy=strategy, **options
    )


def train(c, strategy, deaths):
    for rank, messages in deaths:
        mortal(c, rank, messages)
    t = trainer_of(c, strategy, elastic=True)
    try:
        t.fit(data(), epochs=EPOCHS, progress=False)
    except Killed:
        return None, [held_by(t), held_by(t, uncommitted=True)], t.steps
    return values_of(t), held_by(t), t.steps


def missing(results, alone, left):  # noqa: F811
    """Return by parameter the part of the sum of all gradients that was neither applied nor is
    a residual.
    """
    values, _, _ = results[left[0]]
    return {
        name: (values[name] - alone[0][name]) / LR
        - sum(results[r][1][name] for r in left) / len(left)
        for name in results[left[0]][1]
    }


def check(results, alone, left):  # noqa: F811
    assert_same_bits([results[r][0] for r in left])
    assert {results[r][2] for r in left} == {alone[2]}
    found = missing(results, alone, left)
    assert found and any(np.any(held) for held in results[left[0]][1].values())
    for gone in {0, 1, 2}.difference(left):
        before, after = results[gone][1]  # it died before the step counted, or after
        assert any(
            all(np.allclose(found[n], held.get(n, 0.0) / 3, rtol=1e-8, atol=1e-11) for n in found)
            for held in (before, after)
        )


@pytest.mark.parametrize("messages", range(30, 320, 23))
@pytest.mark.parametrize("compressor", KEEPING)
def test_survivors_keep_residuals_and_lose_those_of_the_dead(compressor, messages, alone):  # noqa: F811
    victim = messages % 3
    strategy = f"AllReduce(compressor={compressor!r})"
    results = run_threads(
        3, lambda c: train(c, strategy, [(victim, messages)]), timeout=patience(30)
    )
    left = [r for r in range(3) if results[r][0] is not None]
    if len(left) == 3:
        assert messages > 150
        return
    assert left == [r for r in range(3) if r != victim]
    check(results, alone, left)


@pytest.mark.parametrize("compressor", KEEPING)
def test_a_step_counts_on_ranks_without_its_end(compressor, alone, monkeypatch):  # noqa: F811
    """Rank 0 dies while it sends the loss of step 6: one of the others receives it, or none."""
    late, ended = [], []
    end, finish = SynchronousStep.finish, DistributedSession.finish

    def killed_at_end(step, *arguments):
        c = step.context.communicator
        if c.size == 3 and c.rank == 0:
            ended.append(said)
            if ended.count(said) == 6:
                mortal(c, 0, said)
        return end(step, *arguments)

    def finished(session):
        late.append(session.communicator.rank)
        finish(session)

    monkeypatch.setattr(SynchronousStep, "finish", killed_at_end)
    monkeypatch.setattr(DistributedSession, "finish", finished)
    strategy = f"AllReduce(compressor={compressor!r})"
    for said in range(6):
        results = run_threads(3, lambda c: train(c, strategy, []), timeout=patience(30))
        assert results[0][0] is None or said > 3
        left = [r for r in range(3) if results[r][0] is not None]
        check(results, alone, left)
    assert late


@pytest.mark.parametrize("messages", range(40, 320, 40))
@pytest.mark.parametrize("compressor", KEEPING)
def test_with_servers_no_residual_is_lost(compressor, messages, alone, monkeypatch):  # noqa: F811
    """All restore a copy with the residuals of every rank, and share them equally."""
    monkeypatch.setattr(survivors, "EVERY", 4)
    victim = messages % 3
    strategy = f"Parallax(compressor={compressor!r})"
    results = run_threads(
        3, lambda c: train(c, strategy, [(victim, messages)]), timeout=patience(30)
    )
    left = [r for r in range(3) if results[r][0] is not None]
    assert left == [r for r in range(3) if r != victim]
    for name, rest in missing(results, alone, left).items():
        np.testing.assert_allclose(rest, 0, atol=1e-10, err_msg=name)
    for values in (results[r][0] for r in left):
        np.testing.assert_allclose(
            values["embedding.weight"], alone[0]["embedding.weight"], rtol=1e-9
        )


@pytest.mark.parametrize("builder", ["AllReduce", "Parallax"])
@pytest.mark.parametrize("compressor", KEEPING)
def test_ranks_4_2_4_lose_no_residual(compressor, builder, alone):  # noqa: F811
    """Counters of steps and the matrices of PowerSGD go on, and are equal on ranks that join."""

    def work(c):
        strategy = f"{builder}(compressor={compressor!r})"
        t = trainer_of(c, strategy)
        t.fit(data(), epochs=EPOCHS, progress=False, policies=[Planned({4: 2, 9: 4})])
        return values_of(t), held_by(t), t.steps, alike_in(t)

    results = run_threads(4, work, timeout=patience(30))
    assert_same_bits([values for values, _, _, _ in results])
    assert_same_bits([same for _, _, _, same in results])
    counters = [int(n) for name, n in results[0][3].items() if name.endswith("step")]
    assert results[0][2] == alone[2] and set(counters) <= {alone[2]}
    assert any(np.any(held) for held in results[0][1].values())
    for name, rest in missing([r[:3] for r in results], alone, range(4)).items():
        np.testing.assert_allclose(rest, 0, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("messages", [60, 101, 142])
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_equal_states_stay_equal(compressor, messages, capsys):
    """Counters of steps and the matrices of PowerSGD must stay equal, or survivors would send
    other shapes.
    """

    def work(c):
        mortal(c, 1, messages)
        strategy = f"AllReduce(compressor={compressor!r})"
        t = trainer(c, strategy=strategy, optimizer=cavs.optim.SGD(lr=0.05), elastic=True)
        try:
            begin = t.evaluate(loader())["loss"]
            result = t.fit(loader(), epochs=6, dev=loader(), progress=False)
        except Killed:
            return None
        return values_of(t), alike_in(t), begin, result.epochs[-1]["dev_loss"]

    first, gone, third = run_threads(3, work, timeout=patience(30))
    assert gone is None and "1 of 3 ranks lost" in capsys.readouterr().err
    assert_same_bits([first[0], third[0]])
    assert_same_bits([first[1], third[1]])
    assert first[3] < first[2] - 0.1
