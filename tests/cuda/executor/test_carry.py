"""Values that come with the loss on a device, and states that are carried on from them."""

import numpy as np
import pytest

import cavs
from tests.oracle import assert_close
from tests.train.truncated import CARRY, LanguageModel, loader, text_chains, trainer


@pytest.mark.parametrize("seed", range(3))
def test_fit_carries_states_as_on_the_cpu(device, shuffle, seed):
    shuffle(seed)
    runs = []
    for where in (None, device):
        made = trainer(where)
        result = made.fit(loader(), epochs=2, dev=loader(), carry=CARRY, progress=False)
        values = {name: p.current().copy() for name, p in made.parameters.items()}
        runs.append((values, [[e["train_loss"], e["dev_loss"]] for e in result.epochs]))
    (expected, losses), (found, own) = runs
    np.testing.assert_allclose(own, losses, rtol=1e-10)
    for name, value in expected.items():
        assert_close(found[name], value, 1e-9, name)


def test_values_of_a_launched_step_outlast_the_next_one(device):
    """The next step reuses the memory in which a device computes them."""
    first, second = (cavs.batch(text_chains(length=n)[:4]) for n in (3, 5))
    host = cavs.Session(LanguageModel(), dtype=np.float64)
    made = cavs.Session(LanguageModel(), dtype=np.float64, device=device)
    hyper = cavs.optim.SGD(lr=0.1).hyper(0)
    states = [[] for _ in made.parameters]
    pending = [made.launch(batch, hyper, states) for batch in (first, second)]
    for step, batch in zip(pending, (first, second), strict=True):
        expected = host.step(batch, hyper, states)
        assert step.loss == pytest.approx(expected.loss, rel=1e-12)
        for name, rows in expected.aux.items():
            np.testing.assert_allclose(step.aux[name], rows, rtol=1e-10, atol=1e-13)
