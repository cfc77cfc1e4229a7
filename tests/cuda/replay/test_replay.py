"""Repeated commands run as graphs, with the same bits as single launches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import cavs
from cavs import nn
from cavs.train.schedules import Cosine
from tests.compiler.test_structures import Bags, Translator, bag, translation
from tests.cuda.replay_cases import (
    TIMES,
    classifier,
    device_of,
    found,
    of_report,
    session_on,
)
from tests.cuda.tagger import close, graphs, single, tagger, trainer_on
from tests.cuda.twin import TwinCompiler
from tests.oracle import assert_close, drawn
from tests.random_cells import batches, models, traced_parameters
from tests.runtime.test_edge_cases import STRUCTURES
from tests.runtime.trees import graph, treebank


@pytest.fixture
def target(device, shuffle, request):
    """A device for each value of replay; streams of the twin run in the order of a seed."""
    if isinstance(device.compiler, TwinCompiler):
        device = replace(device, cublas_lt=request.getfixturevalue("twin").cublaslt)

    def made(replay, seed=0):
        shuffle(seed)
        return replace(device, replay=replay)

    return made


def check_replays(target, model, batch, seed=0):
    """Check that a repeated batch has the same bits as a graph and as single launches."""
    often, never = (session_on(target(r, seed), model) for r in ("always", "never"))
    for step in range(TIMES):
        assert found(often, batch, step) == found(never, batch, step)
    for training in (True, False):
        assert of_report(often, training)["replays"] == TIMES - 4
        assert of_report(never, training)["replays"] == 0


RANDOM = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=5)


@RANDOM
@given(models(), batches())
def test_random_cells_over_random_graphs(target, model, batch):
    batch = traced_parameters(model, batch)
    check_replays(target, model, batch, batch.num_vertices)


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures(target, name):
    rng = np.random.default_rng(0)
    batch = cavs.batch([graph(children, rng) for children in STRUCTURES[name]])
    check_replays(target, classifier(nn.TreeAttention), batch, len(name))


def test_chains_and_products_of_cublas(target, request):
    rng = np.random.default_rng(0)
    chains = [graph([[], *([i] for i in range(19))], rng) for _ in range(8)]
    check_replays(target, classifier(size=40), cavs.batch(chains), 3)
    if "twin" in request.node.callspec.id:
        log = request.getfixturevalue("twin").operations()
        assert any(o.kind == "product" for o in log)


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_products_on_tensor_cores(target, precision):
    batch, model = treebank(4, longest=12), classifier()
    model.initialize(1, np.float32)
    often, never = (
        cavs.Session(model, device=target(r, 4), precision=precision) for r in ("always", "never")
    )
    for step in range(TIMES):
        assert found(often, batch, step) == found(never, batch, step)
    assert of_report(often)["replays"] == TIMES - 4


def test_other_words_in_batches_of_one_shape(target):
    """A batch is staged in the buffer of the batch before the last, with new contents."""
    rng = np.random.default_rng(0)
    shape = [[], [], [0, 1], [], [2, 3]]
    data = [cavs.batch([graph(shape, rng) for _ in range(3)]) for _ in range(8)]
    often, never = (session_on(target(r), classifier()) for r in ("always", "never"))
    for batch in data:
        assert often.predict(batch)["output"].tobytes() == never.predict(batch)["output"].tobytes()
    assert of_report(often, False)["replays"] == 4


READS = ([[0, 1], [2], []], [[0], [1, 2], []], [[], [2, 2, 1, 0], [0]])


@pytest.mark.parametrize(
    ("model", "sample", "runs"),
    [
        (Translator, lambda rows, rng: translation(3, 3, rng, rows), [5, 5, 5]),
        (Bags, bag, [10, 5]),  # sums over equally many vertices run the same commands
    ],
)
def test_batches_that_differ_in_links_alone(target, model, sample, runs):
    """In the number of vertices that each one reads; runs: those of the commands of each batch."""
    data = [cavs.batch([sample(rows, np.random.default_rng(0))]) for rows in READS]
    often, never = (session_on(target(r), drawn(model(), 0.5)) for r in ("always", "never"))
    for batch in [batch for batch in data for _ in range(2)] * 5:  # both buffers of staging
        assert found(often, batch) == found(never, batch)
    assert of_report(often)["replays"] == 2 * sum(n - 2 for n in runs)


def test_memory_that_grows_in_between(target):
    """Commands then have other addresses: they are launched, and become a graph again."""
    model = classifier()
    often, never = (session_on(target(r, 5), model) for r in ("always", "never"))
    small, large = treebank(2, longest=5), treebank(12, longest=15)
    for batch in [small] * TIMES + [large] * TIMES + [small] * TIMES:
        assert found(often, batch) == found(never, batch)
    # The first two of the last batches are recorded, because their shape is known.
    assert of_report(often)["replays"] == 2 * (TIMES - 4) + TIMES - 2


@pytest.mark.parametrize(("seed", "rate"), [(1, 0.01), (2, Cosine(0.01, 20))])
def test_training_with_dropout(target, seed, rate):
    """Batches of other shapes in between; rates, bias corrections and random numbers change."""
    data = [treebank(3, 1), treebank(5, 2), treebank(2, 3)]
    ends = []
    for replay in ("always", "never"):
        model = classifier(nn.BinaryTreeLSTM, rate=0.3)
        session = session_on(target(replay, seed), model)
        optimizer = cavs.optim.Adam(lr=rate)
        trainer = cavs.Trainer(model, optimizer, session=session, seed=seed, max_norm=0.5)
        losses = [trainer.step(data[i % 3]) for i in range(18)]
        values = [p.value.tobytes() for p in model.parameters().values()]
        states = [a.tobytes() for of in trainer.states for a in of]
        ends.append((losses, values, states))
        assert (of_report(session)["replays"] > 3) == (replay == "always")
    assert ends[0] == ends[1]


@pytest.mark.parametrize("seed", range(3))
def test_fits_that_launch_ahead_equal_the_cpu(target, seed):
    device = target("always", seed)

    def run(trainer):
        loader = cavs.DataLoader(graphs(), 1, shuffle=False)
        dev = cavs.DataLoader(graphs((3, 12)), 1)
        result = trainer.fit(loader, epochs=5, dev=dev, progress=False)
        return [[e["train_loss"], e["dev_loss"], e["step"]] for e in result.epochs]

    host, there = trainer_on("cpu", tagger(0.4), seed=3), trainer_on(device, tagger(0.4), seed=3)
    np.testing.assert_allclose(run(there), run(host), rtol=1e-9)
    close(there, host)


@pytest.mark.parametrize("replay", ["always", "auto"])
def test_steps_ahead_of_one_batch(target, replay):
    batch, host, there = single(4), trainer_on("cpu"), trainer_on(target(replay))
    for seed in range(25):
        target(replay, seed)
        host.step(batch)
        there.launch(batch)
    close(there, host)
    report = of_report(there.session)
    assert report["runs"] == 25
    assert report["replays"] >= 2


def test_the_host_writes_parameters_between_replays(target):
    model, wanted = classifier(), classifier()
    session, host = session_on(target("always"), model), session_on("cpu", wanted)
    batch = treebank(3)
    for i in range(8):
        for of, which in ((model, session), (wanted, host)):
            for p in of.parameters().values():
                p.value *= 1 + 0.1 * i
            which.invalidate()
        loss, gradients = session.gradients(batch)
        expected, others = host.gradients(batch)
        assert loss == pytest.approx(expected, rel=1e-11)
        for k, g in gradients.items():
            assert_close(g, others[k], 1e-11, k)
    assert of_report(session)["replays"] == 4


@pytest.mark.parametrize("replay", ["always", "never"])
def test_priorities_of_lanes(twin, replay):
    """Kernels keep them as single launches and in a graph."""
    session, batch = session_on(device_of(twin, replay), classifier()), treebank(6)
    for _ in range(TIMES):
        twin.reset()
        session.gradients(batch)
    launches = twin.launches()
    assert any(o.kind == "graph" for o in twin.operations()) == (replay == "always")
    greatest, least = sorted({o.priority for o in launches})
    assert greatest < 0 == least
    second = [o.name for o in launches if o.priority == least]
    assert set(second) <= {"matmul_tn", "sum_parts", "sum_rows", "sum_parts_of_rows", "lookup_grad"}
    assert len(second) < len(launches) / 2
