"""LSTMs over chains by cuDNN, on the host twin's stand-in and on the machine's GPU."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cavs
from cavs import nn, ops
from cavs.cuda import device as device_module
from cavs.cuda import libraries
from cavs.cuda.device import Device
from cavs.errors import ConfigError, DeviceError
from cavs.runtime.recurrence import TRIALS
from tests.cuda.hardware import gpu_with_cudnn
from tests.lstm_cells import LSTMS, OTHERS, WIDTH, BothWays, DroppedState, Tagger, chains
from tests.oracle import assert_close, reference

RAGGED = [7, 1, 40, 12, 12, 1, 3]
SHAPES = {"ragged": RAGGED, "fixed": [6] * 5, "one": [1], "alone": [23], "ones": [1, 1, 1]}


@pytest.fixture(params=["twin", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request):
    """The host twin, and the machine's GPU if it has one with cuDNN."""
    if request.param == "cuda":
        yield gpu_with_cudnn()
        return
    yield request.getfixturevalue("on_twin")


@pytest.fixture
def on_twin(twin):
    yield Device(twin.library, 0, "sm_90", twin.compiler, None, cudnn=twin.cudnn)
    assert twin.fault() == ""


def made(model, dtype=np.float64):
    model.initialize(1, dtype)
    return model


def by_cudnn(model, device, dtype=np.float64, **options):
    return cavs.Session(model, dtype=dtype, device=device, cudnn="always", **options)


def calls(twin):
    return [o.name for o in twin.operations() if o.name.startswith("cudnn")]


def compare(model, batch, device, tolerance, dtype=np.float64, **options):
    """Compare loss, outputs and gradients with the oracle's."""
    _, expected = reference(model, batch, seed=5, step=2)
    _, forward = reference(model, batch, training=False)
    session = by_cudnn(model, device, dtype, **options)
    found = session.evaluate(batch)
    assert_close(found.loss, forward["loss"], tolerance, "loss")
    for name, rows in found.outputs.items():
        assert_close(rows, forward[name], tolerance, name)
    loss, gradients = session.gradients(batch, seed=5, step=2)
    assert_close(loss, expected["loss"], tolerance, "loss of training")
    for name, g in gradients.items():
        none = np.zeros(g.shape)
        assert_close(g, expected.get(f"grad:{name}", none), tolerance, name)
    return session


@pytest.mark.parametrize("cell", LSTMS, ids=lambda c: c.__name__)
def test_every_way_to_write_an_lstm(device, cell):
    compare(made(Tagger(cell)), chains(RAGGED), device, 1e-9)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-9), (np.float32, 1e-5)])
def test_shapes_of_batches(device, shape, dtype, tolerance):
    compare(made(Tagger(nn.LSTM), dtype), chains(SHAPES[shape]), device, tolerance, dtype)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(0, 2**16))
def test_random_chains(on_twin, twin, lengths, seed):
    twin.adversarial(seed)
    compare(made(Tagger(LSTMS[seed % len(LSTMS)])), chains(lengths, seed), on_twin, 1e-9)


def test_layouts_follow_the_batch(twin, on_twin):
    session = by_cudnn(made(Tagger(nn.LSTM)), on_twin)
    for lengths, layout in ((RAGGED, 1), ([4, 4], 0), ([3, 2], 1)):  # packed, unpacked
        twin.calls.twin_reset()
        session.gradients(chains(lengths))
        found = [o for o in twin.operations() if o.name.startswith("cudnn")]
        assert [o.name.split("RNN")[1] for o in found] == [
            "Forward",
            "BackwardData_v8",
            "BackwardWeights_v8",
        ]
        assert {o.arguments for o in found} == {(sum(lengths), len(lengths), layout)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("vectors", [False, True])
def test_stacked(device, twin, vectors, seed):
    twin.adversarial(seed)
    compare(made(Tagger(nn.LSTM, 3, vectors)), chains(RAGGED), device, 1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_parallel_lstms_and_shared_weights(twin, on_twin, seed):
    twin.adversarial(seed)
    compare(made(BothWays()), chains(RAGGED), on_twin, 1e-9)


def test_absent_inputs_are_zeros(device):
    batch = chains(RAGGED, absent=True)
    assert (np.asarray(batch["token"]) < 0).any()
    compare(made(Tagger(nn.LSTM)), batch, device, 1e-9)


def test_a_graph_may_hold_several_chains(device):
    rng = np.random.default_rng(0)
    features = {"token": rng.integers(0, 11, 6), "label": rng.integers(0, 3, 6)}
    features["vector"] = rng.normal(size=(6, WIDTH))
    forest = cavs.Graph([[], [4], [], [0], [], [3]], features)  # 0 3 5, 4 1, 2
    session = compare(made(Tagger(nn.LSTM)), cavs.batch([forest, forest]), device, 1e-9)
    assert any(i["kind"] == "lstm" for i in session.report()["instructions"])


def test_frozen_parameters(device):
    model = made(Tagger(nn.LSTM))
    model.cells[0].U.trainable = False
    compare(model, chains(RAGGED), device, 1e-9)
    for p in model.cells[0].parameters().values():
        p.trainable = False
    compare(model, chains(RAGGED), device, 1e-9)


@pytest.mark.parametrize("cell", OTHERS, ids=lambda c: c.__name__)
def test_other_cells_run_on_our_own_kernels(twin, on_twin, cell):
    model, batch = made(Tagger(cell)), chains([5, 3])
    compare(model, batch, on_twin, 1e-9)
    # In an evaluation nothing is dropped, and that cell is an LSTM.
    assert calls(twin) == (["cudnnRNNForward"] if cell is DroppedState else [])


def test_chains_and_trees_alternate(twin, on_twin):
    model = made(Tagger(nn.LSTM))
    here, there = cavs.Session(model, dtype=np.float64), by_cudnn(model, on_twin)
    rng = np.random.default_rng(0)
    features = {"token": rng.integers(0, 11, 3), "label": rng.integers(0, 3, 3)}
    features["vector"] = rng.normal(size=(3, WIDTH))
    fork = cavs.batch([cavs.Graph([[], [0], [0]], features)])
    for batch, count in ((chains([4, 2]), 3), (fork, 0), (chains([3]), 3), (fork, 0)):
        twin.calls.twin_reset()
        expected, found = here.gradients(batch), there.gradients(batch)
        assert len(calls(twin)) == count
        for name, g in found[1].items():
            assert_close(g, expected[1][name], 1e-11, name)
        assert_close(there.evaluate(batch).loss, expected[0], 1e-11, "loss")


def train(model, batches, **options):
    trainer = cavs.Trainer(
        model, cavs.optim.Adam(lr=0.02), max_norm=0.05, session=cavs.Session(model, **options)
    )
    losses = [trainer.step(b) for b in batches * 3]
    return losses, {n: p.value.copy() for n, p in model.parameters().items()}


@pytest.mark.parametrize("choice", ["always", "auto"])
def test_training_follows_the_cpu(device, choice):
    batches = [chains(n, i) for i, n in enumerate((RAGGED, [5] * 4, [2, 9, 9], [1]))]
    losses, values = train(made(Tagger(nn.LSTM, 2)), batches, dtype=np.float64)
    model = made(Tagger(nn.LSTM, 2))
    got, found = train(model, batches, dtype=np.float64, device=device, cudnn=choice)
    assert_close(got, losses, 1e-9, "losses")
    for name, value in values.items():
        assert_close(found[name], value, 1e-9, name)


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_precision_of_products(device, precision):
    model, batch = made(Tagger(nn.LSTM), np.float32), chains([6, 4, 4])
    exact = cavs.Session(model).gradients(batch)
    loss, gradients = by_cudnn(model, device, np.float32, precision=precision).gradients(batch)
    tolerance = {"float32": 1e-5, "tf32": 1e-3}[precision]
    assert loss == pytest.approx(exact[0], rel=tolerance)
    for name, g in gradients.items():
        wanted = exact[1][name]
        assert np.linalg.norm(g - wanted) <= tolerance * np.linalg.norm(wanted), name


def test_a_program_is_switched_off_pass_by_pass(on_twin):
    from cavs.compiler.pipeline import Passes

    off = Passes(**dict.fromkeys(vars(Passes()), False))
    compare(made(Tagger(nn.LSTM)), chains(RAGGED), on_twin, 1e-9, passes=off)


# ---- the choice ----------------------------------------------------------------------------------


def clocks(monkeypatch, own, cudnn):
    """Make a run seem to take given times on the device, with our own kernels and with cuDNN."""
    from cavs import _cuda

    real = _cuda.Executor.clocked

    def clocked(executor):
        if real(executor) is None:
            return None
        kinds = {i["kind"] for i in executor.report()["instructions"]}
        return cudnn if "lstm" in kinds else own

    monkeypatch.setattr(_cuda.Executor, "clocked", clocked)


@pytest.mark.parametrize(("own", "cudnn"), [(1.0, 2.0), (2.0, 1.0)])
def test_the_faster_one_is_kept(monkeypatch, twin, on_twin, own, cudnn):
    clocks(monkeypatch, own, cudnn)
    model = made(Tagger(nn.LSTM))
    session = cavs.Session(model, dtype=np.float64, device=on_twin, cudnn="auto")
    used = []
    for _ in range(2 * TRIALS + 5):
        twin.calls.twin_reset()
        session.gradients(chains([5, 4]))
        used.append(bool(calls(twin)))
    assert used[: 2 * TRIALS + 2] == [True, False] * (TRIALS + 1)
    assert used[2 * TRIALS + 2 :] == [cudnn < own] * 3
    (found,) = session.report()["cudnn"]["classes"]
    assert (found["own_seconds"], found["cudnn_seconds"]) == (own, cudnn)
    assert found["cudnn"] is (cudnn < own)
    # Another class of batches is timed separately, and so is a run without gradients.
    session.gradients(chains([5] * 9))
    session.evaluate(chains([5, 4]))
    assert [c["cudnn"] for c in session.report()["cudnn"]["classes"]] == [cudnn < own, None, None]


def test_measured_times_decide(on_twin):
    session = cavs.Session(made(Tagger(nn.LSTM)), dtype=np.float64, device=on_twin, cudnn="auto")
    for _ in range(2 * TRIALS + 3):
        session.gradients(chains([5, 4]))
    (found,) = session.report()["cudnn"]["classes"]
    faster = found["cudnn_seconds"] < found["own_seconds"]
    assert found["cudnn"] is faster and min(found["cudnn_seconds"], found["own_seconds"]) > 0


def test_the_decision_is_stored_in_checkpoints(monkeypatch, twin, on_twin):
    clocks(monkeypatch, 2.0, 1.0)
    model = made(Tagger(nn.LSTM))
    session = cavs.Session(model, dtype=np.float64, device=on_twin, cudnn="auto")
    for _ in range(2 * TRIALS + 3):
        session.gradients(chains([5, 4]))
    other = cavs.Session(model, dtype=np.float64, device=on_twin, cudnn="auto")
    other.load_state_dict(session.state_dict())
    for _ in range(3):
        twin.calls.twin_reset()
        other.gradients(chains([5, 4]))
        assert calls(twin)


def test_the_choice_is_checked(on_twin):
    model = made(Tagger(nn.LSTM), np.float32)
    with pytest.raises(ConfigError, match="cudnn"):
        cavs.Session(model, device=on_twin, cudnn="sometimes")
    with pytest.raises(ConfigError, match="on the CPU"):
        cavs.Session(model, cudnn="always")
    with pytest.raises(DeviceError, match="bfloat16"):
        by_cudnn(model, on_twin, np.float32, precision="bfloat16")
    with pytest.raises(DeviceError, match="deterministic"):
        by_cudnn(model, on_twin, np.float32, deterministic=True)
    with pytest.raises(DeviceError, match="was not found"):
        by_cudnn(model, replace(on_twin, cudnn=None), np.float32)


def test_it_is_explained(on_twin):
    model, batch = made(Tagger(nn.LSTM)), chains([5, 4])
    text = str(cavs.explain(model, batch, device=on_twin, cudnn="always"))
    assert "= lstm(" in text and "cells.0.W, cells.0.U, cells.0.b)" in text
    assert "lstm_grad(" in text and "grad(cells.0.U)" in text
    assert "lstm(" not in str(cavs.explain(model, batch, device=on_twin))
    with pytest.raises(ConfigError, match="cudnn"):
        cavs.explain(model, batch, device=on_twin, cudnn="auto")


def test_a_trainer_with_a_session_uses_its_choice(on_twin):
    model = made(Tagger(nn.LSTM), np.float32)
    with pytest.raises(ConfigError, match="a choice of its own"):
        cavs.Trainer(model, cavs.optim.SGD(0.1), session=cavs.Session(model), cudnn="auto")
    trainer = cavs.Trainer(model, cavs.optim.SGD(0.1), device=on_twin, cudnn="always")
    trainer.step(chains([3, 2]))
    assert trainer.session.report()["cudnn"]["choice"] == "always"


def test_replicas_run_our_own_kernels(twin, on_twin):
    session = cavs.Session(
        made(Tagger(nn.LSTM)), dtype=np.float64, device=on_twin, cudnn="auto", replicated=True
    )
    session.gradients(chains([5, 4]))
    assert calls(twin) == []


def test_deterministic_uses_our_own_kernels(twin, on_twin):
    model = made(Tagger(nn.LSTM))
    options = {"device": on_twin, "cudnn": "auto", "deterministic": True}
    cavs.Session(model, dtype=np.float64, **options).gradients(chains([3, 2]))
    assert calls(twin) == []


def test_memory_is_reported(twin, on_twin):
    session = by_cudnn(made(Tagger(nn.LSTM)), on_twin)
    gc.collect()  # objects of earlier tests are not freed in between
    before = twin.used()
    session.gradients(chains([3, 2]))
    memory = session.report()["memory"]
    assert memory["lstms"] > 0
    assert sum(memory.values()) == twin.used() - before


def test_never(twin, on_twin):
    model = made(Tagger(nn.LSTM))
    cavs.Session(model, dtype=np.float64, device=on_twin).gradients(chains([3, 2]))
    assert calls(twin) == []


def test_cudnn_is_searched_for_on_first_use(monkeypatch, on_twin):
    asked = []
    monkeypatch.setattr(
        device_module, "find_cudnn", lambda newest: asked.append(newest) or on_twin_cudnn
    )
    on_twin_cudnn = libraries.Library(on_twin.cudnn, "a test", 9)
    device = replace(on_twin, cudnn=device_module.LOOK_UP)
    model, batch = made(Tagger(nn.LSTM)), chains([3, 2])
    cavs.Session(model, dtype=np.float64, device=device).gradients(batch)
    assert asked == []
    by_cudnn(model, device).gradients(batch)
    assert asked == [12]


def test_cublas_is_loaded_before_cudnn(monkeypatch, twin):
    loaded = []
    there = {n: libraries.Library(f"/lib{n}.so", "a test", 12) for n in ("cublas", "cublasLt")}
    there["cudnn"] = libraries.Library(twin.cudnn, "a test", 9)
    monkeypatch.setattr(libraries, "find", lambda name, newest=None: there.get(name))
    monkeypatch.setattr(libraries.ctypes, "CDLL", loaded.append)
    assert libraries.find_cudnn(12) is there["cudnn"]
    assert loaded == ["/libcublasLt.so", "/libcublas.so"]
    loaded.clear()
    del there["cudnn"]
    assert libraries.find_cudnn(12) is None and loaded == []


# ---- errors --------------------------------------------------------------------------------------


def lacking(twin, what, tmp_path):
    """A cuDNN that cannot be used."""
    if what == "old":
        twin.cudnn_version(8907)
        return twin.cudnn
    if what == "no entry":
        from tests.cuda.twin import Twin

        return Twin(without=("cudnnRNNForward",)).library
    if what == "no library":
        path = tmp_path / "libcudnn.so.9"
        path.write_bytes(b"nothing")
        return str(path)
    twin.fail_cudnn(1, 3000)
    return twin.cudnn


@pytest.mark.parametrize("what", ["old", "no entry", "no library", "refused"])
def test_without_a_usable_cudnn_our_own_kernels_run(twin, on_twin, what, tmp_path):
    device = replace(on_twin, cudnn=lacking(twin, what, tmp_path))
    model, batch = made(Tagger(nn.LSTM)), chains([3, 2])
    expected = cavs.Session(model, dtype=np.float64).gradients(batch)
    session = cavs.Session(model, dtype=np.float64, device=device, cudnn="auto")
    found = session.gradients(batch)
    assert_close(found[0], expected[0], 1e-12, "loss")
    assert session.report()["cudnn"]["lacks"] != ""
    twin.fail_cudnn(1, 3000)
    with pytest.raises(DeviceError, match=r"cuDNN|cudnn") as caught:
        by_cudnn(model, device).gradients(batch)
    assert "never" in caught.value.hint


def test_a_call_that_fails_is_an_error_and_the_next_batch_runs(twin, on_twin):
    model, batch = made(Tagger(nn.LSTM)), chains([3, 2])
    session = by_cudnn(model, on_twin)
    expected = session.gradients(batch)
    before = len(calls(twin))
    other, failed = chains([4, 4, 1], 1), set()
    for _ in range(2):  # while its shape is new, and when it is known
        for nth in range(1, 100):
            twin.fail_cudnn(nth)
            try:
                session.gradients(other)
            except DeviceError as error:
                failed.add(error.what.split(":")[0])
            else:
                break
    assert nth < 99 and failed == {
        "cudnnSetStream",
        "cudnnCreateRNNDataDescriptor",
        "cudnnCreateTensorDescriptor",
        "cudnnSetRNNDataDescriptor",
        "cudnnSetTensorNdDescriptor",
        "cudnnGetRNNTempSpaceSizes",
        "cudnnRNNForward",
        "cudnnRNNBackwardData_v8",
        "cudnnRNNBackwardWeights_v8",
    }
    twin.set("cudnn_error_at", 0)
    found = session.gradients(batch)
    assert found[0] == expected[0]
    for name, g in found[1].items():
        np.testing.assert_array_equal(g, expected[1][name])
    assert len(calls(twin)) > before


def test_each_call_of_the_setup_may_fail(twin, on_twin):
    model, batch = made(Tagger(nn.LSTM)), chains([3, 2])
    expected = cavs.Session(model, dtype=np.float64).gradients(batch)
    failed = set()
    for nth in range(1, 300, 7):
        session = cavs.Session(model, dtype=np.float64, device=on_twin, cudnn="auto")
        twin.fail_cudnn(nth)
        try:
            found = session.gradients(batch)
        except DeviceError as error:  # from the first run on
            assert "RNN" in error.what or "cudnnSet" in error.what
            break
        assert_close(found[0], expected[0], 1e-12, "loss")
        failed.add(session.report()["cudnn"]["lacks"].split(":")[0])
    assert {"cudnnCreate", "cudnnGetRNNWeightParams"} <= failed and len(failed) > 5 and nth < 290


def test_a_failing_step_changes_nothing(twin, on_twin):
    batches = [chains([3, 2], i) for i in range(3)]
    losses, values = train(made(Tagger(nn.LSTM)), batches, dtype=np.float64)
    model = made(Tagger(nn.LSTM))
    session = by_cudnn(model, replace(on_twin, replay="never"))  # every step calls it
    trainer = cavs.Trainer(model, cavs.optim.Adam(lr=0.02), max_norm=0.05, session=session)
    found = []
    for i, batch in enumerate(batches * 3):
        if i % 2:
            found += [step.outcome.loss for step in trainer.land()]
            twin.fail_cudnn(2)
            with pytest.raises(DeviceError, match="cudnnRNNForward"):
                trainer.step(batch)
        found += [step.outcome.loss for step in trainer.launch(batch)]
    found += [step.outcome.loss for step in trainer.land()]
    assert_close(found, losses, 1e-9, "losses")
    for name, value in values.items():
        assert_close(model.parameters()[name].value, value, 1e-9, name)


def test_out_of_memory(twin, on_twin):
    session = by_cudnn(made(Tagger(nn.LSTM)), on_twin)
    batch = chains([3, 2])
    expected = session.gradients(batch)
    twin.memory(twin.used() + 4096)
    with pytest.raises(DeviceError, match="cuMemAlloc"):
        session.gradients(chains([40] * 30))
    twin.memory(1 << 36)
    assert session.gradients(batch)[0] == expected[0]


def test_dropout_around_an_lstm(on_twin):
    class Dropped(Tagger):
        def forward(self, batch):
            x = ops.dropout(self.embedding(batch["token"]), 0.4)
            return self.output(ops.dropout(self.cells[0](batch.graph, x=x), 0.3))

    compare(made(Dropped(nn.LSTM)), chains(RAGGED), on_twin, 1e-9)


def test_the_other_direction_runs_in_a_loop(twin, on_twin):
    """cuDNN runs the direction from left to right, a loop the other one."""

    class TwoWays(Tagger):
        def forward(self, batch):
            x = self.embedding(batch["token"])
            back = self.cells[0](batch.graph.reversed(), x=x)
            return self.output(self.cells[0](batch.graph, x=x) * back)

    compare(made(TwoWays(nn.LSTM)), chains(RAGGED), on_twin, 1e-9)
    assert calls(twin)
