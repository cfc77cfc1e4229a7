"""The CUDA engine gives the results of the oracle, on the host twin and on a GPU."""

from __future__ import annotations

import copy
import gc
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, reject, settings

import cavs
from cavs import nn
from cavs.cuda.device import Device
from cavs.errors import DeviceError, FeatureError, NumericsError
from cavs.runtime import program_cache
from tests import random_programs
from tests.compiler.test_equality import ALL_ON, FLOAT32, FLOAT64, check
from tests.compiler.test_random_programs import with_parameters
from tests.compiler.test_typed_vertices import cases, drawn
from tests.cuda.hardware import gpu
from tests.draws import examples
from tests.oracle import assert_close, reference, too_steep
from tests.random_cells import batches, models, traced_parameters
from tests.random_programs import programs
from tests.runtime.test_edge_cases import STRUCTURES
from tests.runtime.trees import Classifier, binary, graph, treebank
from tests.train.own_rules import AMSGrad

OPTIMIZERS = {
    "sgd": cavs.optim.SGD(lr=0.5, weight_decay=0.01),
    "momentum": cavs.optim.SGD(lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": cavs.optim.Adagrad(lr=0.1),
    "adam": cavs.optim.Adam(lr=0.01),
    "adamw": cavs.optim.AdamW(lr=0.01, weight_decay=0.1),
    "rmsprop": cavs.optim.RMSProp(lr=0.01, weight_decay=0.1),
    "own rule": AMSGrad(0.01, weight_decay=0.1, groups={"*.b*": {"weight_decay": 0.0}}),
    "groups": cavs.optim.AdamW(
        lr=0.01, weight_decay=0.1, groups={"*.b*": {"weight_decay": 0.0}, "emb*": {"lr": 0.3}}
    ),
}


@pytest.fixture(params=["twin", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request):
    """The host twin, and the machine's GPU if there is one."""
    if request.param == "cuda":
        yield gpu()
        return
    twin = request.getfixturevalue("twin")
    yield Device(twin.library, 0, "sm_90", twin.compiler, None)
    assert twin.fault() == ""


@pytest.fixture
def twin_device(twin):
    """For tests that read the log of the device."""
    yield Device(twin.library, 0, "sm_90", twin.compiler, None)
    assert twin.fault() == ""


def classifier(cell=nn.ChildSumTreeLSTM, dtype=np.float64):
    model = Classifier(cell(8, 6))
    model.initialize(1, dtype)
    return model


def compare(model, batch, device, tolerance, dtype=np.float64, shuffle=None):
    """shuffle: see the fixture; the session computes in issue order, then in another order."""
    at = {"seed": 5, "step": 2}
    graph, expected = reference(model, batch, **at)
    _, forward = reference(model, batch, training=False)
    passes = ALL_ON if batch.num_vertices % 3 else None  # equal vertices merged, or the default
    session = cavs.Session(model, device=device, passes=passes, dtype=dtype)
    # The batches are small; half of them compute products of child values at the child.
    shared = 0.0 if batch.num_vertices % 2 else np.inf
    other = batch.num_vertices + 1
    seeds = (None,) if shuffle is None else (other, 0) if other % 3 else (0, other)
    with mock.patch.multiple(program_cache, MIN_MERGED=1, MIN_READERS=shared):
        for seed in seeds:
            if shuffle is not None:
                shuffle(seed)
            try:
                check(session, batch, expected, forward, tolerance)
            except AssertionError:
                if dtype == np.float32 and too_steep(graph, batch, expected, tolerance, **at):
                    reject()  # draw another one
                raise


RANDOM = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@examples(14, RANDOM, most=100)
@given(models(), batches())
def test_float64_equals_the_oracle_in_any_order(device, shuffle, model, batch):
    """In any order of streams, blocks and threads."""
    batch = traced_parameters(model, batch)
    compare(model, batch, device, FLOAT64, shuffle=shuffle)


@examples(3, RANDOM, most=50)
@given(cases())
def test_types_of_vertices_equal_the_oracle(device, case):
    model, batch = case
    compare(drawn(model, batch), batch, device, FLOAT64)


@examples(11, RANDOM, most=100)
@given(models(smooth=True), batches())
def test_float32_equals_the_oracle(device, model, batch):
    batch = traced_parameters(model, batch)
    compare(model, batch, device, FLOAT32, np.float32)


@examples(11, RANDOM, most=100)
@given(programs(), random_programs.batches())
def test_operators_in_any_order_equal_the_oracle(device, shuffle, model, batch):
    assume(with_parameters(model, batch))
    compare(model, batch, device, FLOAT64, shuffle=shuffle)


# Inputs of products are rounded to 10 bits in tf32 and to 7 in bfloat16.
@pytest.mark.parametrize(("precision", "tolerance"), [("tf32", 1e-3), ("bfloat16", 1e-2)])
@pytest.mark.parametrize("rows", [1, 40])
def test_products_on_tensor_cores(device, precision, tolerance, rows):
    batch = treebank(rows)
    model = classifier(dtype=np.float32)
    exact = cavs.Session(model).gradients(batch)
    session = cavs.Session(model, device=device, precision=precision)
    loss, gradients = session.gradients(batch)
    assert loss == pytest.approx(exact[0], rel=tolerance)
    assert loss != exact[0]
    for name, g in gradients.items():
        wanted = exact[1][name]
        assert np.linalg.norm(g - wanted) <= tolerance * np.linalg.norm(wanted), name


@examples(5, RANDOM, most=100)
@given(models(), batches(max_vertices=150))
def test_products_by_cublas(twin, twin_device, model, batch):
    batch = traced_parameters(model, batch)
    device = replace(twin_device, cublas_lt=twin.cublaslt)
    compare(model, batch, device, FLOAT64)


def test_large_products_go_to_cublas(twin, twin_device):
    model = Classifier(nn.ChildSumTreeLSTM(40, 33), input_size=40)
    model.initialize(1, np.float64)
    batch = treebank(40)
    compare(model, batch, replace(twin_device, cublas_lt=twin.cublaslt), 1e-11)
    products = [o for o in twin.operations() if o.kind == "product"]
    assert len(products) > 10


@pytest.mark.parametrize("cell", [nn.ChildSumTreeLSTM, nn.TreeAttention], ids=lambda c: c.__name__)
@pytest.mark.parametrize("name", STRUCTURES)
def test_structures(device, cell, name):
    rng = np.random.default_rng(0)
    batch = cavs.batch([graph(children, rng) for children in STRUCTURES[name]])
    compare(classifier(cell), batch, device, 1e-11)


def test_a_chain_of_a_thousand_and_batches_of_any_size_after_it(device):
    rng = np.random.default_rng(0)
    chain = graph([[], *([i] for i in range(999))], rng)
    model = classifier()
    session = cavs.Session(model, dtype=np.float64, device=device)
    host = cavs.Session(model, dtype=np.float64)
    for batch in (cavs.batch([chain]), cavs.batch([graph([[]], rng)]), treebank(5)):
        loss, gradients = session.gradients(batch)
        expected, wanted = host.gradients(batch)
        assert_close(loss, expected, 1e-11, "loss")
        for name, g in gradients.items():
            assert_close(g, wanted[name], 1e-11, name)


@pytest.mark.parametrize("max_norm", [None, 0.05])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_equals_the_cpu(device, name, max_norm):
    data = [treebank(4, seed) for seed in range(4)]
    ends = []
    for where in ("cpu", device):
        model = classifier()
        session = cavs.Session(model, dtype=np.float64, device=where)
        optimizer = copy.deepcopy(OPTIMIZERS[name])
        trainer = cavs.Trainer(model, optimizer, session=session, max_norm=max_norm, seed=3)
        losses = [trainer.step(batch) for batch in data]
        values = {k: p.value.copy() for k, p in model.parameters().items()}
        ends.append((losses, values, [a.copy() for of in trainer.states for a in of]))
    (losses, values, states), (expected, wanted, others) = ends
    assert losses == pytest.approx(expected, rel=1e-12)
    for k, value in values.items():
        assert_close(value, wanted[k], 1e-11, k)
    for state, other in zip(states, others, strict=True):
        assert_close(state, other, 1e-11, "state")


def test_a_fit_with_dropout_equals_the_cpu(device):
    rng = np.random.default_rng(0)
    graphs = [binary(int(n), rng) for n in rng.integers(1, 20, 40)]
    ends = []
    for where in ("cpu", device):
        model = Classifier(nn.BinaryTreeLSTM(8, 6), rate=0.5)
        model.initialize(1, np.float64)
        session = cavs.Session(model, dtype=np.float64, device=where)
        trainer = cavs.Trainer(model, cavs.optim.Adagrad(lr=0.1), session=session, seed=7)
        loader = cavs.DataLoader(graphs[:30], 7, shuffle=True, seed=2)
        dev = cavs.DataLoader(graphs[30:], 7)
        result = trainer.fit(loader, epochs=2, dev=dev, progress=False, restore_best=True)
        losses = [(e["train_loss"], e["dev_loss"]) for e in result.epochs]
        ends.append((losses, {k: p.value.copy() for k, p in model.parameters().items()}))
    np.testing.assert_allclose(ends[0][0], ends[1][0], rtol=1e-10)
    for k, value in ends[0][1].items():
        assert_close(value, ends[1][1][k], 1e-10, k)


def test_parameters_written_by_the_host_are_uploaded(device, tmp_path):
    data = [treebank(3, seed) for seed in range(3)]
    model = classifier(dtype=np.float32)
    trainer = cavs.Trainer(model, cavs.optim.Adam(lr=0.01), device=device)
    trainer.step(data[0])
    trainer.save(tmp_path / "c.safetensors")
    kept = {k: p.value.copy() for k, p in model.parameters().items()}
    last = [trainer.step(batch) for batch in data]
    trainer.resume(tmp_path / "c.safetensors")
    assert all(np.array_equal(p.value, kept[k]) for k, p in model.parameters().items())
    assert [trainer.step(batch) for batch in data] == last  # the same bits from the same state


def test_sessions_on_host_and_devices_share_parameters(device):
    batch = treebank(3)
    alone, model = classifier(), classifier()
    optimizer = cavs.optim.SGD(lr=0.5)

    def trainer(model, where):
        session = cavs.Session(model, dtype=np.float64, device=where)
        return cavs.Trainer(model, optimizer, session=session)

    expected = [trainer(alone, "cpu").step(batch) for _ in range(6)]
    among = [trainer(model, where) for where in (device, "cpu", device)]
    found = [of.step(batch) for _ in range(2) for of in among]
    assert found == pytest.approx(expected, rel=1e-12)
    assert expected[0] > expected[-1]


def test_a_model_outlives_its_trainer_and_is_copied(device):
    batch = treebank(3)
    alone, model = classifier(dtype=np.float32), classifier(dtype=np.float32)
    for of, where in ((alone, "cpu"), (model, device)):
        cavs.Trainer(of, cavs.optim.SGD(lr=0.5), device=where).step(batch)
    gc.collect()
    copied = copy.deepcopy(model)
    cavs.Session(model, device=device)  # downloads the trainer's copy before it is dropped
    for k, p in alone.parameters().items():
        assert_close(copied.parameters()[k].value, p.value, 1e-5, k)
        assert_close(model.parameters()[k].value, p.value, 1e-5, k)
        assert len(model.parameters()[k].copies) == 1


def test_a_loss_that_is_not_finite_updates_nothing(device):
    batch = treebank(3)
    model = classifier(dtype=np.float32)
    trainer = cavs.Trainer(model, cavs.optim.SGD(lr=0.1), device=device)
    trainer.step(batch)
    weight = next(p for k, p in model.parameters().items() if "embedding" not in k)
    weight.value[...] = np.nan
    trainer.session.invalidate()
    before = {k: p.value.copy() for k, p in model.parameters().items()}
    with pytest.raises(NumericsError, match="nothing was updated"):
        trainer.step(batch)
    for k, p in model.parameters().items():
        np.testing.assert_array_equal(p.value, before[k])


def test_momentum_moves_parameters_without_a_gradient(device):
    leaves = cavs.batch([cavs.Graph([[]], {"token": [3], "label": [1]})] * 2)
    moved = []
    for where in (device, "cpu"):
        model = classifier(dtype=np.float32)
        trainer = cavs.Trainer(model, cavs.optim.SGD(lr=0.1, momentum=0.9), device=where)
        for arrays in trainer.states:
            for array in arrays:
                array[...] = 1.0
        before = {k: p.value.copy() for k, p in model.parameters().items()}
        trainer.step(leaves)
        moved.append({k: p.value - before[k] for k, p in model.parameters().items()})
    for k, expected in moved[1].items():
        assert np.abs(expected).max() > 0.08, k
        assert_close(moved[0][k], expected, 1e-5, k)


@pytest.mark.parametrize("seed", range(1, 9))
def test_streams_in_any_order(twin, twin_device, seed):
    twin.adversarial(seed)
    batch = treebank(12, seed)
    compare(classifier(), batch, twin_device, 1e-11)
    streams = {o.stream for o in twin.launches()}
    assert len(streams) == 2


def test_bad_features_are_found_before_launching(twin, twin_device):
    batch = treebank(3)
    session = cavs.Session(classifier(), dtype=np.float64, device=twin_device)
    session.evaluate(batch)
    unknown = cavs.batch([cavs.Graph([[], [0]], {"token": [3, 10_000], "label": [0, 0]})])
    session.evaluate(cavs.batch([cavs.Graph([[], [0]], {"token": [3, 1], "label": [0, 0]})]))
    twin.reset()
    with pytest.raises(FeatureError, match="10000"):
        session.evaluate(unknown)
    assert twin.launches() == []


def test_the_cpu_works_after_out_of_memory_on_the_device(twin, twin_device):
    batch = treebank(3)
    model = classifier()
    twin.memory(twin.used() + (1 << 12))
    with pytest.raises(DeviceError, match="OUT_OF_MEMORY"):
        cavs.Session(model, dtype=np.float64, device=twin_device).evaluate(batch)
    assert np.isfinite(cavs.Session(model, dtype=np.float64).evaluate(batch).loss)


def test_steps_do_not_allocate_after_the_largest_batch(twin, twin_device):
    data = [treebank(n) for n in (8, 3, 5)]
    trainer = cavs.Trainer(classifier(dtype=np.float32), cavs.optim.SGD(lr=0.1), device=twin_device)
    for batch in data:
        trainer.step(batch)
    before = twin.allocations(), twin.used()
    for batch in data:
        trainer.step(batch)
    assert (twin.allocations(), twin.used()) == before


def test_memory_is_freed_with_model_and_session(twin, twin_device):
    """At once: workspaces of dropped sessions would pile up until Python looks for cycles."""
    device = replace(twin_device, cublas_lt=twin.cublaslt)

    def run():
        trainer = cavs.Trainer(classifier(), cavs.optim.Adam(lr=0.1), device=device)
        trainer.step(treebank(3))
        trainer.session.predict(treebank(2))
        return twin.used()

    while gc.collect():  # objects of earlier tests
        pass
    gc.disable()
    try:
        before = twin.used()
        assert run() > before + (64 << 20)
        assert twin.used() == before
    finally:
        gc.enable()


def test_modules_are_unloaded_with_their_session(twin, twin_device):
    batch = treebank(3)
    model = classifier()

    def run():
        cavs.Session(model, dtype=np.float64, device=twin_device).evaluate(batch)
        gc.collect()
        for p in model.parameters().values():
            p.copies.clear()
        return twin.live()

    while gc.collect():  # objects of earlier tests, and their references
        pass
    first = run()
    assert run() == first


def test_a_batch_is_uploaded_in_one_copy(twin, twin_device):
    data = [treebank(3), treebank(4)]
    trainer = cavs.Trainer(classifier(dtype=np.float32), cavs.optim.SGD(lr=0.1), device=twin_device)
    for batch in (*data, *data):
        twin.reset()
        trainer.step(batch)
    ups = [o for o in twin.operations() if o.kind == "copy" and o.name == "to device"]
    assert len(ups) == 1


def test_the_report_counts_tasks_and_times(device):
    batch = treebank(3)
    session = cavs.Session(classifier(), dtype=np.float64, device=device)
    session.gradients(batch)
    session.set_profiling(True)
    session.gradients(batch)
    report = session.report()
    schedule = session.schedule(batch)
    assert report["tasks"] == len(schedule.tasks)
    assert report["runs"] == 1
    assert report["peak_bytes"] > 0
    assert all(stage["seconds"] >= 0 for stage in report["stages"])


@pytest.mark.parametrize("persistent", ["never", "always"])
def test_the_report_names_all_memory(twin, twin_device, persistent):
    gc.collect()
    before = twin.used()
    batch, model = treebank(30), Classifier(nn.ChildSumTreeLSTM(40, 33), input_size=40)
    device = replace(twin_device, cublas_lt=twin.cublaslt, persistent=persistent)
    session = cavs.Session(model, device=device)
    trainer = cavs.Trainer(model, cavs.optim.Adam(lr=0.01), session=session)
    trainer.step(batch)
    session.evaluate(batch)
    for training in (True, False):
        report = session.report(training)
        parts = report["memory"]
        assert sum(parts.values()) == twin.used() - before
        assert report["page_locked_bytes"] > 0
        wanted = {"parameters", "states", "workspaces", "weights", "arena", "staging", "programs"}
        assert all(parts[name] > 0 for name in wanted | ({"gradients"} if training else set()))
    values = sum(p.value.nbytes for p in model.parameters().values())
    assert values <= parts["parameters"] < 2 * values + 4096
    assert 2 * values <= parts["states"]


def test_the_report_counts_traffic_of_instructions(device):
    batch, model = treebank(3), classifier()
    reports = []
    for where in ("cpu", device):
        session = cavs.Session(model, dtype=np.float64, device=where)
        session.set_profiling(True)
        session.gradients(batch)
        reports.append(session.report())
    host, found = reports
    for line, other in zip(found["instructions"], host["instructions"], strict=True):
        names = ("label", "kind", "flops", "indexed_bytes", "gather_bytes", "write_bytes")
        assert [line[n] for n in names] == [other[n] for n in names]
        assert (line["calls"] > 0) == (other["calls"] > 0)
    assert found["gather_bytes"] == host["gather_bytes"] > 0
    assert found["indexed_bytes"] == host["indexed_bytes"] > host["gather_bytes"]
    assert found["write_bytes"] == host["write_bytes"] > 0
    run = cavs.explain(model, batch, device=device).run
    assert run.gather_bytes == host["gather_bytes"]
    assert run.gather_bytes + run.other_read_bytes == host["indexed_bytes"]
    assert run.write_bytes == host["write_bytes"] > run.scatter_bytes > 0
    assert sum(i.gather for i in run.instructions) == run.gather_bytes
    assert run.times.wall > run.times.stages > 0 and run.updated
