"""Which commands are replayed, and what happens if that fails."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs.errors import ConfigError, DeviceError, DeviceWarning
from tests.cuda.allocators import DriverMemory
from tests.cuda.replay_cases import TIMES, classifier, device_of, found, of_report, session_on
from tests.cuda.tagger import single, trainer_on
from tests.cuda.twin import Twin
from tests.oracle import assert_close
from tests.runtime.trees import graph, treebank

CALLS = ("cuStreamBeginCapture_v2", "capture", "cuStreamEndCapture", "cuGraphInstantiateWithFlags",
         "cuGraphLaunch")  # fmt: skip
MISSING = ("cuStreamBeginCapture_v2", "cuGraphLaunch", "cuGraphExecDestroy")


@pytest.fixture
def device(twin):
    yield device_of(twin)
    assert twin.fault() == ""


def test_waiting_raises_a_fault_in_a_graph(twin):
    device, batch = device_of(twin), single(2)
    trainer = trainer_on(device)
    for _ in range(TIMES):
        trainer.step(batch)
    replays = of_report(trainer.session)["replays"]
    twin.fail_launch(4)
    trainer.launch(batch)
    assert of_report(trainer.session)["replays"] == replays + 1
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
        trainer.land()
    assert trainer.steps == 0  # lost with the device, see test_fallback_to_cpu.py
    twin.reset()
    assert trainer_on(device).step(batch) == trainer_on(device_of(twin, "never")).step(batch)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("replay", ["always", "auto"])
def test_commands_are_launched_if_the_driver_refuses_a_graph(twin, name, replay):
    batch, model = treebank(3), classifier()
    device = device_of(twin, replay)
    session, never = session_on(device, model), session_on(device_of(twin, "never"), model)
    for _ in range(4):
        found(session, batch)
    twin.fail_call(name, 999)
    with pytest.warns(DeviceWarning, match="without CUDA graphs: .*ERROR_UNKNOWN") as warned:
        first = session.gradients(batch)[0]
    assert len(warned) == 1
    assert first == never.gradients(batch)[0]
    report = of_report(session)
    assert (report["replays"], report["graphs"]) == (0, [])
    assert "UNKNOWN" in report["trouble"]
    twin.fail_call(name, 0)
    for step in range(TIMES):  # without another attempt, and without a warning
        assert found(never, batch, step)[0] == session.gradients(batch, seed=5, step=step)[0]
    assert of_report(session)["replays"] == 0


def test_a_graph_that_can_no_longer_be_launched(twin):
    """It is dropped, and the batch runs without it."""
    batch, model = treebank(3), classifier()
    session, never = (session_on(device_of(twin, r), model) for r in ("always", "never"))
    for _ in range(TIMES):
        session.gradients(batch)
    assert of_report(session)["replays"] == 2
    twin.fail_call("cuGraphLaunch", 2)
    with pytest.warns(DeviceWarning, match="OUT_OF_MEMORY"):
        loss, gradients = session.gradients(batch)
    expected, wanted = never.gradients(batch)
    assert loss == expected
    assert all(g.tobytes() == wanted[k].tobytes() for k, g in gradients.items())
    assert of_report(session)["replays"] == 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", MISSING)
@pytest.mark.parametrize("replay", ["auto", "never"])
def test_drivers_without_graphs(name, replay):
    twin = Twin(without=(name,))
    twin.reset()
    batch, model = treebank(3), classifier()
    session, host = session_on(device_of(twin, replay), model), session_on("cpu", classifier())
    for _ in range(TIMES):
        assert session.evaluate(batch).loss == pytest.approx(host.evaluate(batch).loss, rel=1e-11)
    report = of_report(session, False)
    assert report["replays"] == 0
    assert report["trouble"] == ("" if replay == "never" else "the driver has no graphs")


def test_always_without_graphs_is_a_warning():
    twin = Twin(without=("cuGraphLaunch",))
    session = session_on(device_of(twin), classifier())
    with pytest.warns(DeviceWarning, match="the driver has no graphs"):
        session.evaluate(treebank(3))


# A launch takes a microsecond and a node ten nanoseconds, or the reverse.
@pytest.mark.parametrize(("command", "node"), [(1000, 10), (10, 1000)])
def test_a_shape_uses_the_faster_mode(twin, command, node):
    batch, model = treebank(4), classifier()
    session, never = (session_on(device_of(twin, r), model) for r in ("auto", "never"))
    expected = found(never, batch)
    twin.clock(command, node)
    for _ in range(24):
        assert found(session, batch) == expected
    report = of_report(session)
    assert len(report["graphs"]) == 2
    for line in report["graphs"]:
        assert line["decided"]
        assert line["replayed"] == (node < command)
        assert line["direct_seconds"] >= line["commands"] * command * 1e-9
        assert (line["replay_seconds"] < line["direct_seconds"]) == line["replayed"]
    replays = report["replays"]
    twin.reset()
    for _ in range(4):
        assert found(session, batch) == expected
    kinds = [o.kind for o in twin.operations()]
    assert of_report(session)["replays"] - replays == (4 if node < command else 0)
    assert ("graph" in kinds) == (node < command)
    assert "wait" in kinds


def test_explain_lists_graphs(twin):
    twin.clock(1000, 10)
    found = cavs.explain(classifier(), treebank(3), device=device_of(twin, "auto"))
    assert [line["replayed"] for line in found.run.replay["graphs"]] == [True, True]
    assert f"CUDA graphs: {found.run.replay['replays']} of 20 runs" in str(found)
    assert str(found).count(" ms as a graph") == 2
    assert cavs.explain(classifier(), treebank(3)).run.replay == {}


def test_timing_ends_and_does_not_wait(twin):
    """Timing waits for nothing, and ends."""
    twin.clock(100, 100)
    trainer = trainer_on(device_of(twin, "auto"))
    batch = single(4)
    for _ in range(40):
        trainer.launch(batch)
    trainer.land()
    before = twin.live()["events"]
    twin.reset()
    for _ in range(2):
        trainer.launch(batch)
    waits = [o for o in twin.operations() if o.kind == "synchronize" and o.stream >= 0]
    assert waits == []
    assert all(line["decided"] for line in of_report(trainer.session)["graphs"])
    trainer.land()
    assert twin.live()["events"] == before


def test_profiled_runs_and_split_steps_are_not_replayed(twin, device):
    batch, model = treebank(3), classifier()
    session = session_on(device, model)
    for _ in range(TIMES):
        session.gradients(batch)
    runs = of_report(session)["runs"]
    session.set_profiling(True)
    twin.reset()
    session.gradients(batch)
    assert not [o for o in twin.operations() if o.kind == "graph"]
    assert session.report()["runs"] == 1
    session.set_profiling(False)
    session.gradients(batch)
    assert [o for o in twin.operations() if o.kind == "graph"]
    assert of_report(session)["runs"] == runs + 1


def test_the_number_of_graphs_is_limited(twin, device):
    """The most recently used ones stay; a batch whose graph was evicted gets another."""
    gc.collect()  # sessions of earlier tests
    rng = np.random.default_rng(0)
    model, wanted = classifier(), classifier()
    session, host = session_on(device, model), session_on("cpu", wanted)
    before = twin.live()["graphs"]
    for n in (*range(1, 70), 1, 2):
        batch = cavs.batch([graph([[]], rng) for _ in range(n)])
        expected = host.predict(batch)["output"]
        for _ in range(TIMES):
            np.testing.assert_allclose(session.predict(batch)["output"], expected, rtol=1e-11)
    report = of_report(session, False)
    assert len(report["graphs"]) == 128
    assert report["replays"] == 69 * 2 + 2 * 4  # known shapes are recorded at once
    assert twin.live()["graphs"] == before + 128


def test_graphs_are_destroyed_with_their_session(twin, device):
    batch, model = treebank(3), classifier()

    def run():
        session = session_on(device, model)
        for _ in range(TIMES):
            session.evaluate(batch)
        assert of_report(session, False)["replays"] == 2
        del session
        gc.collect()
        for p in model.parameters().values():
            p.copies.clear()
        return twin.live()

    gc.collect()  # objects of other tests
    first = run()
    assert run() == first


def test_graphs_do_not_allocate(twin, device):
    data, model = [treebank(n) for n in (8, 3, 5)], classifier()
    session = session_on(device, model)
    trainer = cavs.Trainer(model, cavs.optim.SGD(lr=0.1), session=session)
    for batch in data * TIMES:
        trainer.step(batch)
    before = twin.live()
    for batch in data * TIMES:
        trainer.step(batch)
    assert twin.live() == before


def test_the_next_runs_are_correct_after_any_failed_allocation(twin):
    """If memory grows during a recording, the recorded commands are issued first."""
    small, large = treebank(2, longest=8), treebank(16, longest=12)
    wanted = session_on("cpu", classifier(size=40))
    expected = [wanted.gradients(batch) for batch in (small, large)]
    failed = 0
    for at in range(1, 100, 7):
        error = DeviceError(f"no room for number {at}")
        device = device_of(twin, cublas_lt=twin.cublaslt)
        device = replace(device, memory=DriverMemory(twin, at, error))
        session = session_on(device, classifier(size=40))
        twin.adversarial(at)
        failing = 0
        for batch, (loss, gradients) in zip((small, large), expected, strict=True):
            for _ in range(TIMES):
                try:
                    found_loss, found_gradients = session.gradients(batch)
                except DeviceError as refused:
                    assert f"number {at}" in refused.what
                    failing += 1
                    continue
                assert found_loss == pytest.approx(loss, rel=1e-11)
                for k, g in found_gradients.items():
                    assert_close(g, gradients[k], 1e-11, k)
        twin.reset()
        failed += failing
        if not failing:
            break
    else:
        pytest.fail("a hundred allocations for two batches")
    assert failed > 2


def test_threads_that_share_a_device(twin, device):
    """One captures while another frees memory, drops a session, or launches."""
    data = [treebank(n) for n in (2, 4)]
    host = session_on("cpu", classifier())
    expected = [host.gradients(batch)[0] for batch in data]
    found_by = {}

    def run(i):
        losses = []
        for _ in range(3):
            session = session_on(device, classifier())
            losses.append([session.gradients(data[i % 2])[0] for _ in range(TIMES)])
            assert of_report(session)["replays"] == 2
            del session
        found_by[i] = np.array(losses)

    threads = [threading.Thread(target=run, args=[i]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        np.testing.assert_allclose(found_by[i], expected[i % 2], rtol=1e-11)


def test_an_invalid_option(twin):
    with pytest.raises(ConfigError, match="replay is 'sometimes', but must be one of auto, always"):
        device_of(twin, "sometimes")
