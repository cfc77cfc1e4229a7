"""State that averages of models keep from step to step: over programs, deaths and checkpoints."""

import numpy as np
import pytest

import cavs
from cavs import ops
from cavs.distributed import Trainer
from cavs.distributed.comm import run_threads
from cavs.distributed.strategy import GraphConfig, NodeConfig, Strategy
from cavs.distributed.sync import AllReduce, Crossbow, Lookahead, PartialAllReduce
from cavs.errors import NumericsError
from cavs.train.checkpoint import read_checkpoint
from tests.distributed.elastic.test_survivors import Killed
from tests.distributed.sync.test_merged_replicas import loader, trainer_of, values
from tests.distributed.sync.test_replicas import Chain
from tests.patience import patience

BATCHES = list(loader())


class Idle(Chain):
    """A chain, and a parameter whose gradient is zero."""

    def __init__(self):
        super().__init__()
        self.idle = cavs.Parameter((2, 2), init="ones")

    def loss(self, batch):
        return super().loss(batch) + 0.0 * ops.mean_squared_error(self.idle, 0.0)


def strategy_of(model, sync, size, compressor="none"):
    """Return a strategy with `sync` for all parameters but the idle one, which is all-reduced."""
    devices = tuple(f"localhost:CPU:{i}" for i in range(size))
    nodes = [
        NodeConfig(
            name=name,
            synchroniser=AllReduce() if name == "idle" else sync,
            compressor="none" if name == "idle" or p.sparse else compressor,
        )
        for name, p in model.parameters().items()
    ]
    return Strategy(graph=GraphConfig(replicas=devices), nodes=nodes)


ACROSS = {
    "crossbow": (Crossbow(), "none"),
    "lookahead": (Lookahead(every=4, alpha=0.3), "none"),
    "accumulated": (PartialAllReduce(bins=4, bin=3, accumulate=True), "none"),
    "compressed": (PartialAllReduce(bins=2, bin=1), "onebit"),
}


@pytest.mark.parametrize(("sync", "compressor"), ACROSS.values(), ids=ACROSS)
def test_a_new_program_goes_on_with_the_state_of_the_one_before(sync, compressor):
    """A parameter that does not move anyway is frozen: ranks compile again, and nothing changes."""

    def work(c, freezes):
        model = Idle()
        trainer = Trainer(
            model,
            cavs.optim.SGD(lr=0.3),
            communicator=c,
            dtype=np.float64,
            threads=1,
            strategy=strategy_of(model, sync, 2, compressor),
        )
        for step, batch in enumerate([*BATCHES, *BATCHES]):
            if step == 2 and freezes:
                model.idle.trainable = False
            trainer.advance(batch)
        trainer.close()
        return values(trainer)

    expected = run_threads(2, lambda c: work(c, freezes=False))
    for one, other in zip(expected, run_threads(2, lambda c: work(c, freezes=True)), strict=True):
        for name, value in one.items():
            np.testing.assert_allclose(other[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("strategy", ["Crossbow", "Lookahead(every=2)"])
def test_a_checkpoint_has_the_state_of_steps_that_were_made(strategy, tmp_path):
    """A first step that fails leaves no central model behind; slow values begin with the fast."""
    path = tmp_path / "c.safetensors"
    name = "center" if strategy == "Crossbow" else "slow"

    def work(c):
        trainer = trainer_of(c, strategy, save_replicas=True)
        trainer.begin(BATCHES[0])
        weight = trainer.parameters["output.bias"].value
        kept, weight[0] = weight[0], np.inf
        trainer.session.invalidate()
        with pytest.raises(NumericsError):
            trainer.advance(BATCHES[0])
        weight[0] = kept
        trainer.session.invalidate()
        trainer.save(path)
        before = stored(path, name) if c.rank == 0 else []
        c.barrier()
        trainer.advance(BATCHES[0])
        trainer.save(path)
        return before, stored(path, name)

    before, after = run_threads(2, work)[0]
    assert before == [] and after


def stored(path, name):
    return [key for key in read_checkpoint(path).extra if name in key]


# ---- deaths --------------------------------------------------------------------------------------


def moved_after_a_death(c, strategy, steps, *, in_update=False, **options):
    """Return the values of a survivor before and after the step in which ranks learn of a death.

    The rank of the highest number dies after so many steps, or in the exchange of values after the
    update of the last of them. Values are drawn, and hardly move by gradients.
    """
    trainer = trainer_of(c, strategy, cavs.optim.SGD(lr=1e-13), elastic=True, **options)
    trainer.begin(BATCHES[0])
    rng = np.random.default_rng(c.rank)
    for p in trainer.parameters.values():
        p.value[...] = rng.standard_normal(p.shape)
    trainer.session.invalidate()
    for step in range(steps):
        if step == steps - 1 and in_update and c.rank == c.size - 1:
            dies_in_update(c, trainer)
        try:
            trainer.advance(BATCHES[step % 4])
        except Killed:
            return None
    if c.rank == c.size - 1:
        c.die()
        return None
    before = values(trainer)
    reports = [trainer.advance(BATCHES[0]) for _ in range(2)]
    return before, values(trainer), trainer.steps, len(reports)


def dies_in_update(c, trainer):
    def die(*arguments):
        c.die()
        raise Killed

    for exchange in trainer.session.exchanges:
        exchange.mix_updated = die


def assert_step_to(found, moved):
    """Compare values after the steps with `moved` of those of all survivors before."""
    for rank, (before, after, *_) in enumerate(found):
        for name in before:
            expected = moved([other[0][name] for other in found], before[name])
            np.testing.assert_allclose(
                after[name], expected, rtol=1e-7, atol=1e-9, err_msg=f"{rank} {name}"
            )


def test_the_central_model_of_survivors_begins_from_their_mean():
    """One of dead ranks, too, would pull them to a model that no rank has."""
    strategy = "Crossbow(alpha=0.25, momentum=0.0)"
    *found, dead = run_threads(
        3, lambda c: moved_after_a_death(c, strategy, 2), timeout=patience(20)
    )
    assert dead is None

    def two_steps(all_values, own):
        mean = np.mean(all_values, axis=0)
        once = own - 0.25 * (own - mean)
        return once - 0.25 * (once - mean)  # their mean does not move

    assert_step_to(found, two_steps)


@pytest.mark.parametrize("in_update", [False, True])
def test_slow_values_of_survivors_begin_from_their_mean(in_update):
    """Also if the rank dies in the exchange of an update: that step is made, without a mean."""
    *found, dead = run_threads(
        3,
        lambda c: moved_after_a_death(
            c, "Lookahead(every=2, alpha=0.5)", 2 if in_update else 4, in_update=in_update
        ),
        timeout=patience(20),
    )
    assert dead is None
    assert {steps for _, _, steps, _ in found} == {4 if in_update else 6}
    assert_step_to(found, lambda all_values, own: np.mean(all_values, axis=0))


PARTIAL = {
    "accumulated": (PartialAllReduce(bins=4, bin=3, accumulate=True), "none", 2),
    "compressed": (PartialAllReduce(bins=4, bin=1), "onebit", 2),
}


@pytest.mark.parametrize(("sync", "compressor", "steps"), PARTIAL.values(), ids=PARTIAL)
def test_gradients_that_survivors_have_not_sent_keep_their_weight(sync, compressor, steps):
    """They were shares of a mean over three ranks, and become shares of one over two."""

    def kept(trainer):
        return {
            (exchange.parameters, name): array.copy()
            for exchange in trainer.session.exchanges
            for name, array in exchange.memory_of().items()
            if name.endswith(("unsent", "error"))
        }

    def work(c):
        model = Idle()
        trainer = Trainer(
            model,
            cavs.optim.SGD(lr=0.1),
            communicator=c,
            dtype=np.float64,
            elastic=True,
            threads=1,
            strategy=strategy_of(model, sync, 3, compressor),
        )
        for batch in BATCHES[:steps]:
            trainer.advance(batch)
        before = kept(trainer)
        if c.rank == 2:
            c.die()
            return None
        trainer.advance(BATCHES[steps])
        fresh = {x.parameters: getattr(x, "fresh", 0.0) for x in trainer.session.exchanges}
        return before, {key: array - fresh[key[0]] for key, array in kept(trainer).items()}

    *found, dead = run_threads(3, work, timeout=patience(20))
    assert dead is None
    for before, after in found:
        assert before and any(array.any() for array in before.values())
        for key, array in before.items():
            np.testing.assert_allclose(after[key], array * 2 / 3, rtol=1e-9, atol=1e-12)
