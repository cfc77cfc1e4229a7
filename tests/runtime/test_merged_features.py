"""Features that are absent in many combinations make no kinds of vertices."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.runtime import tracing
from cavs.runtime.variant import Variant
from tests.oracle import assert_close, reference


class Many(cavs.Model):
    def __init__(self, features):
        self.tables = [nn.Embedding(5, 4) for _ in range(features)]
        self.cell = nn.ChildSumTreeLSTM(4, 4)
        self.output = nn.Linear(4, 3)

    def loss(self, batch):
        x = sum(table(batch[f"f{k}"]) for k, table in enumerate(self.tables))
        return ops.cross_entropy(self.output(self.cell(batch.graph, x=x)), batch["label"])


def chains(features, count, seed=0, length=12):
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        shown = rng.integers(-1, 5, (features, length))
        shown[rng.random(shown.shape) < 0.5] = -1
        given = {f"f{k}": row for k, row in enumerate(shown)}
        graphs.append(
            cavs.Graph.chain(length, features={**given, "label": rng.integers(-1, 3, length)})
        )
    return cavs.batch(graphs)


def decisions_of(session):
    (variant,) = session._variants.values()
    return variant.decisions


@pytest.mark.parametrize("features", [3, 7, 40])
def test_few_kinds_are_compiled_with_the_same_results(features):
    model = Many(features)
    model.initialize(1, np.float64)
    session = cavs.Session(model, dtype=np.float64)
    for seed in range(3):
        batch = chains(features, 20, seed)
        _, expected = reference(model, batch)
        loss, gradients = session.gradients(batch)
        assert_close(loss, expected["loss"], 1e-12, "loss")
        for key, value in gradients.items():
            assert_close(value, expected[f"grad:{key}"], 1e-12, key)
    decisions = decisions_of(session)
    assert len(decisions.kinds) <= tracing.MAX_KINDS
    assert bool(decisions.merged_features) == (features > 3)


def test_replicas_merge_features_before_they_compile():
    """The ranks of a training compile once for all their batches, of which one has many kinds."""
    model, batch = Many(7), chains(7, 20)
    model.initialize(1, np.float64)
    session = cavs.Session(model, dtype=np.float64, replicated=True)
    session.compile_for(batch, lambda own: own)
    decisions = decisions_of(session)
    assert decisions.merged_features and len(decisions.kinds) <= tracing.MAX_KINDS
    assert not session.is_new(batch)
    _, expected = reference(model, batch)
    loss, gradients = session.gradients(batch)
    assert_close(loss, expected["loss"], 1e-12, "loss")
    for key, value in gradients.items():
        assert_close(value, expected[f"grad:{key}"], 1e-12, key)


def test_kinds_that_appear_one_by_one():
    session = cavs.Session(Many(5))
    cache = session._programs
    with mock.patch.object(cache, "compile", wraps=cache.compile) as compiled:
        for seed in range(80):
            session.gradients(chains(5, 1, seed, length=1))
    decisions = decisions_of(session)
    assert decisions.merged_features and decisions.recompiles == tracing.MAX_RECOMPILES
    # Each of five features is absent once first.
    assert compiled.call_count <= tracing.MAX_RECOMPILES + 2 + 5


def test_a_resumed_training_runs_the_same_programs(tmp_path):
    def trainer():
        return cavs.Trainer(Many(7), cavs.optim.Adam(lr=0.01))

    first, second = trainer(), trainer()
    batches = [chains(7, 10, seed) for seed in range(4)]
    for batch in batches[:2]:
        first.step(batch)
    first.save(tmp_path / "c.safetensors")
    second.resume(tmp_path / "c.safetensors")
    merged = decisions_of(first.session).merged_features
    assert merged and decisions_of(second.session).merged_features == merged
    for batch in batches[2:]:
        assert first.step(batch) == second.step(batch)
    for a, b in zip(first.parameters.values(), second.parameters.values(), strict=True):
        assert (a.value == b.value).all()


def test_decisions_are_read_under_their_former_names():
    session = cavs.Session(Many(7))
    for seed in range(4):
        session.gradients(chains(7, 10, seed))
    former = {"merged_features": "lumped", "recompiles": "grown"}  # former names
    (entry,) = session.state_dict()["variants"]
    renamed = {former.get(name, name): value for name, value in entry.items()}
    assert set(former) & set(renamed) == set() and entry["merged_features"]
    assert Variant.from_json(renamed).to_json() == entry
