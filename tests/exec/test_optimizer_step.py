"""Updates: every optimiser on dense and sparse gradients, clipping, non-finite gradients."""

import numpy as np
import pytest
from hand_programs import TreeRnn, batch_children, random_dag, schedule

from cavs import _engine

LR, EPS, DECAY = 0.1, 1e-7, 0.01
STATES = {"sgd": 0, "momentum": 1, "adagrad": 1, "adam": 2, "adamw": 2}


pytestmark = pytest.mark.usefixtures("threads")


def options(kind, t=1, **rest):
    return {
        "kind": kind,
        "lr": LR,
        "momentum": 0.9,
        "nesterov": False,
        "beta1": 0.9,
        "beta2": 0.99,
        "eps": EPS,
        "weight_decay": DECAY,
        "bias1": 1 - 0.9**t,
        "bias2": 1 - 0.99**t,
        **rest,
    }


def reference_update(kind, t, p, g, states, *, nesterov):
    if kind == "adamw":
        p *= 1 - LR * DECAY
    else:
        g = g + DECAY * p
    if kind == "sgd":
        p -= LR * g
    elif kind == "momentum":
        states[0][...] = 0.9 * states[0] + g
        p -= LR * (g + 0.9 * states[0] if nesterov else states[0])
    elif kind == "adagrad":
        states[0] += g * g
        p -= LR * g / (np.sqrt(states[0]) + EPS)
    else:
        m, v = states
        m[...] = 0.9 * m + 0.1 * g
        v[...] = 0.99 * v + 0.01 * g * g
        p -= LR * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.99**t)) + EPS)


@pytest.mark.parametrize("kind", [*STATES, "nesterov"])
@pytest.mark.parametrize("max_norm", [None, 0.5, 1e6])
def test_three_steps(kind, max_norm):
    nesterov = kind == "nesterov"
    kind = "momentum" if nesterov else kind
    rng = np.random.default_rng(2)
    cell = TreeRnn(d=40, h=120, scale=0.08)  # W, U: more elements than one chunk of an update
    executor = cell.executor()
    mine = [p.copy() for p in cell.parameters]
    states = [[np.zeros_like(p) for _ in range(STATES[kind])] for p in mine]
    my_states = [[s.copy() for s in per] for per in states]
    trainable = [True, True, True, True, False]
    for t in [1, 2, 3]:
        graphs = [random_dag(rng, 30) for _ in range(4)]
        children = batch_children(graphs)
        tokens = rng.integers(0, 6, len(children)).astype(np.int32)
        loss, norm = executor.step(
            schedule(graphs),
            [],
            [tokens],
            0,
            t,
            options(kind, t, nesterov=nesterov),
            states,
            trainable,
            max_norm,
        )
        now = list(mine)
        cell.parameters, keep = now, cell.parameters
        expected, _, grads = cell.reference(children, mine[0][tokens])
        cell.parameters = keep
        table = np.zeros_like(mine[0])
        np.add.at(table, tokens, grads[0])
        grads[0] = table
        np.testing.assert_allclose(loss, expected, rtol=1e-9)
        my_norm = np.sqrt(sum((g**2).sum() for g in grads[:4]))
        np.testing.assert_allclose(norm, my_norm, rtol=1e-9)
        scale = 1.0 if max_norm is None else min(1.0, max_norm / my_norm)
        touched = np.unique(tokens)
        reference_update(kind, t, mine[1], grads[1] * scale, my_states[1], nesterov=nesterov)
        reference_update(kind, t, mine[2], grads[2] * scale, my_states[2], nesterov=nesterov)
        reference_update(kind, t, mine[3], grads[3] * scale, my_states[3], nesterov=nesterov)
        rows, row_states = mine[0][touched], [s[touched] for s in my_states[0]]
        reference_update(kind, t, rows, table[touched] * scale, row_states, nesterov=nesterov)
        mine[0][touched] = rows
        for s, r in zip(my_states[0], row_states, strict=True):
            s[touched] = r
        for a, b in zip(cell.parameters, mine, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-10)
        for a, b in zip(states, my_states, strict=True):
            for x, y in zip(a, b, strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("bad", ["loss", "gradient"])
def test_nothing_is_updated_unless_finite(bad):
    cell = TreeRnn()
    if bad == "loss":
        cell.parameters[4][0] = np.nan
    else:
        cell.parameters[4][:] = 1e200  # the square of its gradient overflows
    before = [p.copy() for p in cell.parameters]
    executor = cell.executor()
    loss, norm = executor.step(
        schedule([[[], [0]]]),
        [],
        [np.zeros(2, np.int32)],
        0,
        0,
        options("sgd"),
        [[]] * 5,
        [True] * 5,
    )
    assert not (np.isfinite(loss) and np.isfinite(norm))
    for a, b in zip(cell.parameters, before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_training_is_reproducible_and_learns():
    rng = np.random.default_rng(9)
    graphs = [random_dag(rng, 20) for _ in range(10)]
    tokens = rng.integers(0, 11, 200).astype(np.int32)
    plan = schedule(graphs)

    def train(threads):
        _engine.set_num_threads(threads)
        cell = TreeRnn(h=64, dtype=np.float32)
        executor = cell.executor()
        states = [[np.zeros_like(p)] for p in cell.parameters]
        losses = [
            executor.step(plan, [], [tokens], 0, t, options("adagrad"), states, [True] * 5)[0]
            for t in range(5)
        ]
        return losses, cell.parameters

    losses, parameters = train(1)
    assert losses[-1] < losses[0]
    for n in [1, 2]:
        again, others = train(n)
        assert again == losses
        for a, b in zip(parameters, others, strict=True):
            np.testing.assert_array_equal(a, b)


def test_invalid_states():
    cell = TreeRnn()
    executor = cell.executor()
    plan, tokens = schedule([[[]]]), np.zeros(1, np.int32)

    def step(kind, states, trainable=(True,) * 5):
        executor.step(plan, [], [tokens], 0, 0, options(kind), states, list(trainable))

    with pytest.raises(ValueError, match=r"parameter 0: 0 arrays, the optimizer needs 2"):
        step("adam", [[]] * 5)
    with pytest.raises(ValueError, match=r"has 3 elements, the parameter 77"):
        step("adagrad", [[np.zeros(3)]] * 5)
    with pytest.raises(ValueError, match=r"states of 1 parameters"):
        step("sgd", [[]])
    with pytest.raises(TypeError, match=r"float32, needs float64"):
        step("adagrad", [[np.zeros(77, np.float32)]] * 5)
    with pytest.raises(ValueError, match=r"optimizer 'lion' is none of sgd"):
        step("lion", [[]] * 5)
    with pytest.raises(KeyError, match=r"unknown key 'rho'"):
        executor.step(plan, [], [tokens], 0, 0, options("sgd", rho=1), [[]] * 5, [True] * 5)
