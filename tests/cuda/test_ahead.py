"""Training steps launched ahead of their outcome: what a CPU's training gives, in any order."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.cuda.device import Device
from cavs.errors import ConfigError, DataError, DeviceError, FeatureError, NumericsError
from cavs.train.safetensors import read
from tests.cuda.test_sharing import DriverMemory
from tests.oracle import assert_close

CLASSES, SIZE = 3, 4
SGD, STATES = {"kind": "sgd", "lr": 0.5}, [[]] * 7


class Tagger(cavs.Model):
    """A class for every vertex, from an embedding and from numbers whose exp may be infinite."""

    def __init__(self, rate=0.0):
        self.embedding = nn.Embedding(30, SIZE, init="xavier")
        self.tree = nn.ChildSumTreeLSTM(SIZE, 3)
        self.dropout = nn.Dropout(rate)
        self.output = nn.Linear(3, CLASSES)

    def loss(self, batch):
        x = self.embedding(batch["token"]) + ops.exp(batch["x"])
        return ops.cross_entropy(
            self.output(self.dropout(self.tree(batch.graph, x=x))), batch["label"]
        )


def tagger(rate=0.0):
    model = Tagger(rate)
    model.initialize(1, np.float64)
    return model


def graphs(sizes=(2, 1, 9, 3, 14, 2, 5, 1), bad=(), tokens=30):
    """Random trees of these sizes; those in `bad` give a loss or a gradient that is not finite."""
    rng, found = np.random.default_rng(sum(sizes)), []
    for i, n in enumerate(sizes):
        parents = [-1, *(int(rng.integers(v)) for v in range(1, n))]
        children = [[c for c in range(n) if parents[c] == v] for v in range(n)]
        x = rng.normal(size=(n, SIZE))
        x[0, : 1 + i % 2 * SIZE] = 1e4 if i in bad else 0
        features = {"x": x, "token": rng.integers(0, tokens, n), "label": rng.integers(0, 3, n)}
        found.append(cavs.Graph(children, features))
    return found


def single(i, **options):
    return cavs.batch([graphs(**options)[i]])


class Pool(DriverMemory):
    """A block that is given back is handed out at once, as CuPy's pool does."""

    def __init__(self, twin):
        super().__init__(twin)
        self.sizes, self.free = {}, []

    def allocate(self, nbytes):
        for at in self.free:
            if self.sizes[at] >= nbytes:
                self.free.remove(at)
                return at
        at = super().allocate(nbytes)
        self.sizes[at] = nbytes
        return at

    def release(self, pointer):
        self.free.append(pointer)


@pytest.fixture
def device(twin):
    yield Device(twin.library, 0, "sm_90", twin.compiler, Pool(twin))
    assert twin.fault() == ""


def trainer_on(where, model=None, optimizer=None, **options):
    model = tagger() if model is None else model
    session = cavs.Session(model, dtype=np.float64, device=where)
    return cavs.Trainer(model, optimizer or cavs.optim.Adam(lr=0.02), session=session, **options)


def values(model):
    return {k: p.value.copy() for k, p in model.parameters().items()}


def rounded(text):
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.9f}", text)


def close(trainer, other, tolerance=1e-10):
    wanted = values(other.model)
    for k, value in values(trainer.model).items():
        assert_close(value, wanted[k], tolerance, k)
    pairs = zip(trainer.states, other.states, strict=True)
    for i, (own, others) in enumerate(pairs):
        for a, b in zip(own, others, strict=True):
            assert_close(a, b, tolerance, f"state {i}")


def both(device, run, **options):
    """What `run` does with a trainer on the CPU and with one on the device: the same."""
    host, there = trainer_on("cpu", **options), trainer_on(device, **options)
    expected, found = run(host), run(there)
    assert there.steps == host.steps
    close(there, host)
    return expected, found


def test_a_launch_waits_for_nothing(twin, device):
    data = [single(4), single(2), single(3)]
    session = cavs.Session(tagger(), dtype=np.float64, device=device)
    for batch in data:
        session.step(batch, SGD, STATES)
    twin.reset()
    first = session.launch(data[0], SGD, STATES)
    of_first = twin.operations()
    second = session.launch(data[1], SGD, STATES)
    assert all(o.ran < 0 for o in twin.operations() if o.kind != "synchronize")
    copies = [o for o in twin.operations() if o.kind == "copy" and o.name == "to device"]
    assert len(copies) == 2
    assert len({o.stream for o in copies}) == 1
    assert copies[0].stream not in {o.stream for o in twin.launches()}
    assert np.isfinite(first.loss)
    ran = [o.ran >= 0 for o in twin.operations() if o.kind != "synchronize"]
    before = sum(o.kind != "synchronize" for o in of_first)
    assert all(ran[:before])
    assert not any(ran[before:]), "the first step's loss waits for the second step"
    assert np.isfinite(second.loss)


def test_a_fit_copies_a_batch_up_before_it_waits_for_the_step_before(twin, device):
    trainer, loader = trainer_on(device), cavs.DataLoader(graphs(), 1)
    trainer.fit(loader, epochs=1, progress=False)
    twin.reset()
    trainer.fit(loader, epochs=1, progress=False)
    log = twin.operations()
    copies = [o for o in log if o.kind == "copy" and o.name == "to device"]
    judged = [o for o in log if o.kind == "launch" and o.name == "judge"]
    assert len(copies) == len(judged) == 8
    for step, (verdict, following) in enumerate(zip(judged, copies[1:], strict=False)):
        ends = next(o for o in log if o.kind == "copy" and o.issued > verdict.issued)
        done = next(o for o in log if o.kind == "record" and o.issued > ends.issued)
        waits = [o for o in log if o.kind == "synchronize" and o.from_ == done.to]
        waited = next(o for o in waits if o.issued > done.issued)
        assert ends.name == "to host"
        assert following.issued < waited.issued, f"step {step} ended before the next began"
        between = [o for o in log if verdict.issued < o.issued < waited.issued]
        streams = [o for o in between if o.kind == "synchronize" and o.stream >= 0]
        assert not streams, "the host waited for all that was launched"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("profiling", [False, True])
def test_a_fit_equals_the_cpus_whatever_the_order(twin, device, seed, profiling):
    twin.adversarial(seed)

    def run(trainer):
        trainer.session.set_profiling(profiling)
        loader = cavs.DataLoader(graphs(), 1 + seed % 2, shuffle=True, seed=seed)
        dev = cavs.DataLoader(graphs((3, 12)), 1)
        result = trainer.fit(loader, epochs=2, dev=dev, progress=False, restore_best=seed > 4)
        return [[e["train_loss"], e["dev_loss"], e["step"]] for e in result.epochs]

    host, there = trainer_on("cpu", tagger(0.4), seed=3), trainer_on(device, tagger(0.4), seed=3)
    np.testing.assert_allclose(run(there), run(host), rtol=1e-9)
    close(there, host)


@pytest.mark.parametrize("bad", range(5))
@pytest.mark.parametrize("options", [{}, {"checkpoint_every": 2}, {"checkpoint_every": 1}])
def test_a_loss_that_is_not_finite_ends_a_fit_as_on_the_cpu(twin, device, tmp_path, bad, options):
    twin.adversarial(bad)
    path = tmp_path / "c.safetensors"
    kept = []

    def run(trainer):
        more = options | ({"checkpoint": path} if options else {})
        path.unlink(missing_ok=True)
        loader = cavs.DataLoader(graphs(bad=[bad]), 1)
        with pytest.raises(NumericsError) as error:
            trainer.fit(loader, epochs=2, progress=False, log=tmp_path / "log", **more)
        kept.append(read(path) if path.exists() else None)
        return str(error.value)

    expected, found = both(device, run)
    assert rounded(found) == rounded(expected)
    assert f"step {bad + 1}:" in found
    if kept[0] is not None:
        assert kept[0][0].keys() == kept[1][0].keys()
        for name, array in kept[0][0].items():
            assert_close(kept[1][0][name], array, 1e-10, name)
    events = (tmp_path / "log").read_text().splitlines()
    assert sum('"numerics"' in line and f'"step": {bad + 1},' in line for line in events) == 2


def test_a_trainer_goes_on_after_a_step_that_failed(twin, device):
    data = [single(i, bad=[2, 5]) for i in range(8)]

    def run(trainer):
        found = []
        for batch in data:
            try:
                found += [(step.batch, step.outcome.loss) for step in trainer.launch(batch)]
            except NumericsError as error:
                found.append(str(error))
        found += [(step.batch, step.outcome.loss) for step in trainer.land()]
        return found

    expected = run(trainer_on("cpu"))
    trainer = trainer_on(device)
    found = run(trainer)
    # Batch 3 was launched while 2 failed, 6 while 5 did: nothing of them counts.
    assert trainer.steps == 4
    assert rounded(next(x for x in found if isinstance(x, str))) == rounded(expected[2])
    assert [b for b, _ in (x for x in found if not isinstance(x, str))] == [
        data[i] for i in (0, 1, 4, 7)
    ]
    host = trainer_on("cpu")
    for i in (0, 1, 4, 7):
        host.step(data[i])
    close(trainer, host)


@pytest.mark.parametrize("seed", range(4))
def test_steps_count_each_alone_or_after_another(twin, device, seed):
    twin.adversarial(seed)
    good, bad, last = single(2), single(4, bad=[4]), single(3)
    host = cavs.Session(tagger(), dtype=np.float64)
    session = cavs.Session(tagger(), dtype=np.float64, device=device)

    def step(batch, **options):
        return session.launch(batch, SGD, STATES, **options)

    first = step(good)
    second = step(bad, after=first)
    third = step(last, after=second)
    fourth = step(last, after=third)
    assert [s.applied for s in (first, second, third, fourth)] == [True, False, False, False]
    fifth = step(last, after=fourth)  # what failed is known by now
    assert not fifth.applied
    assert step(last, after=first).applied
    assert np.isnan(step(bad).grad_norm)
    sixth = step(good)  # asks nobody
    assert sixth.applied
    losses = [host.step(b, SGD, STATES).loss for b in (good, last, good)]
    assert [first.loss, sixth.loss] == pytest.approx([losses[0], losses[2]], rel=1e-11)
    assert third.loss == fourth.loss == fifth.loss == pytest.approx(losses[1], rel=1e-11)
    for k, value in values(session.model).items():
        assert_close(value, values(host.model)[k], 1e-11, k)


@pytest.mark.parametrize("seed", range(8))
def test_a_run_behind_two_steps(twin, device, seed):
    data = [single(i) for i in (4, 2, 5, 6, 3, 4)]
    host, session = (cavs.Session(tagger(), dtype=np.float64, device=d) for d in ("cpu", device))
    for batch in data:  # whatever grows has grown
        host.step(batch, SGD, STATES)
        session.step(batch, SGD, STATES)
    twin.adversarial(seed)
    for _ in range(3):
        losses = [host.step(batch, SGD, STATES).loss for batch in data[:2]]
        steps = [session.launch(batch, SGD, STATES) for batch in data[:2]]
        for batch in data[2:]:
            loss, wanted = host.gradients(batch)
            found, gradients = session.gradients(batch)
            assert found == pytest.approx(loss, rel=1e-10)
            for k, g in gradients.items():
                assert_close(g, wanted[k], 1e-10, k)
        assert [step.loss for step in steps] == pytest.approx(losses, rel=1e-10)


def test_a_step_after_one_of_another_model_is_refused(device):
    sessions = [cavs.Session(tagger(), dtype=np.float64, device=device) for _ in range(2)]
    other = sessions[0].launch(single(2), SGD, STATES)
    with pytest.raises(ValueError, match="other parameters"):
        sessions[1].launch(single(2), SGD, STATES, after=other)


def test_a_program_compiled_anew_keeps_the_updates_before_it(device):
    host, trainer, watched = trainer_on("cpu"), trainer_on(device), trainer_on(device)
    for i in (1, 2, 0):  # no vertex of the first has children
        assert trainer.step(single(i)) == pytest.approx(host.step(single(i)), rel=1e-11)
        for step in watched.launch(single(i)):
            assert np.isfinite(step.outcome.loss)
        assert all(np.isfinite(p.value).all() for p in watched.parameters.values())
    close(trainer, host)
    watched.land()
    close(watched, host)


def test_launching_on_the_cpu(device):
    with pytest.raises(ConfigError, match="CPU"):
        cavs.Session(tagger(), dtype=np.float64).launch(single(2), SGD, STATES)
    trainer, batch = trainer_on("cpu"), single(2)
    ((ended, outcome),) = trainer.launch(batch)
    assert ended is batch
    assert np.isfinite(outcome.loss)
    assert trainer.land() == []


@pytest.mark.parametrize("seed", range(1, 5))
def test_whatever_reads_waits(twin, device, seed, tmp_path):
    twin.adversarial(seed)
    data = [single(i) for i in (2, 4, 0)]
    path = tmp_path / "c.safetensors"

    def run(trainer):
        found, session = [], trainer.session
        trainer.launch(data[0])
        found.append(session.evaluate(data[1]).loss)
        trainer.launch(data[1])
        found += [p.value.sum() for p in trainer.parameters.values()]
        trainer.launch(data[2])
        loss, gradients = session.gradients(data[0])
        found += [loss, *(g.sum() for g in gradients.values())]
        trainer.launch(data[0])
        for p in trainer.parameters.values():  # what is written counts, and goes up
            p.value *= 0.9
        session.invalidate()
        trainer.launch(data[1])
        trainer.save(path)
        found.append(trainer.steps)
        trainer.launch(data[2])
        found.append(trainer.evaluate(data)["loss"])
        trainer.launch(data[2])
        trainer.resume(path)
        found += [trainer.steps, trainer.step(data[0])]
        trainer.launch(data[1])
        other = cavs.Session(trainer.model, dtype=np.float64)
        found.append(other.evaluate(data[2]).loss)
        found += [step.outcome.grad_norm for step in trainer.land()][-1:]
        return found

    host, there = trainer_on("cpu"), trainer_on(device)
    expected, found = run(host), run(there)
    np.testing.assert_allclose(found, [*expected, found[-1]][: len(found)], rtol=1e-9, atol=1e-14)
    close(there, host)


def test_parameters_that_are_read_wait_for_a_step(device):
    trainer, host, other = trainer_on(device), trainer_on("cpu"), single(3)
    beside = cavs.Session(trainer.model, dtype=np.float64)
    for i in (2, 4, 2):
        host.step(single(i))
        trainer.launch(single(i))
        close(trainer, host)
        expected = host.session.evaluate(other).loss
        assert beside.evaluate(other).loss == pytest.approx(expected, rel=1e-11)
        host.step(single(i))
        trainer.launch(single(i))
        expected = host.session.evaluate(other).loss
        assert beside.evaluate(other).loss == pytest.approx(expected, rel=1e-11)


def test_what_the_host_writes_counts_more_than_a_step_on_its_way(device):
    trainer, host = trainer_on(device), trainer_on("cpu")
    written = [p.value for p in trainer.parameters.values()]
    trainer.step(single(2))
    trainer.launch(single(4))
    for value, p in zip(written, host.parameters.values(), strict=True):
        value[...] = p.value
    trainer.session.invalidate()
    for k, value in values(trainer.model).items():
        np.testing.assert_array_equal(value, values(host.model)[k])
    expected = host.session.evaluate(single(3)).loss
    assert trainer.session.evaluate(single(3)).loss == pytest.approx(expected, rel=1e-11)


def test_a_batch_may_be_changed_once_it_is_launched(twin, device):
    trainer, host = trainer_on(device), trainer_on("cpu")
    for i in (2, 4, 3):
        host.step(single(i))
        batch = single(i)
        trainer.launch(batch)
        for features in (batch.features, batch.edge_features, batch.graph_features):
            for array in features.values():
                array.flags.writeable = True
                array[...] = 1
    trainer.land()
    close(trainer, host)


@pytest.mark.parametrize("late", [False, True])
def test_no_memory_for_the_next_step(twin, device, late):
    small, large = [single(i) for i in (2, 3, 2)], cavs.batch(graphs((60,) * 20))
    host = trainer_on("cpu")
    trainer = trainer_on(replace(device, memory=None))
    for batch in small:
        host.step(batch)
        trainer.launch(batch)
    twin.memory(twin.used() + (1 << 13 if late else 0))
    with pytest.raises(DeviceError, match="OUT_OF_MEMORY"):
        trainer.launch(large)
    assert trainer.land() == []
    assert trainer.steps == 3
    close(trainer, host)
    twin.memory(1 << 36)
    assert trainer.step(large) == pytest.approx(host.step(large), rel=1e-10)
    close(trainer, host)


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("how", ["feature", "loader"])
def test_an_error_of_the_next_batch_comes_after_that_of_the_step(device, how, nan):
    good = graphs(bad=[3] if nan else [])
    if how == "feature":
        good[4] = graphs((3,), tokens=31)[0]
        good[4].features["token"].flags.writeable = True
        good[4].features["token"][0] = 30

    def collate(chosen, ids):
        if how == "loader" and ids[0] == 4:
            raise DataError("no such graph")
        return cavs.batch(chosen)

    def run(trainer):
        loader = cavs.DataLoader(good, 1, collate=collate, prefetch=0)
        wanted = NumericsError if nan else FeatureError if how == "feature" else DataError
        with pytest.raises(wanted) as error:
            trainer.fit(loader, epochs=1, progress=False)
        return str(error.value)

    expected, found = both(device, run)
    assert found == expected


@pytest.mark.parametrize("at", [0, 3, 7])
def test_an_interrupt_lets_what_was_launched_end(twin, device, tmp_path, at):
    path, calm = tmp_path / "c.safetensors", trainer_on("cpu")
    calm.fit(cavs.DataLoader(graphs(), 1), epochs=2, progress=False)

    def run(trainer):
        asked = []

        def collate(chosen, ids):
            if ids[0] == at and not asked:
                asked.append(os.kill(os.getpid(), signal.SIGINT))
            return cavs.batch(chosen)

        loader = cavs.DataLoader(graphs(), 1, collate=collate, prefetch=0)
        with pytest.raises(KeyboardInterrupt) as stopped:
            trainer.fit(loader, epochs=2, progress=False, checkpoint=path)
        return str(stopped.value)

    expected, found = both(device, run)
    assert found == expected
    assert f"after step {at + 1};" in found
    resumed = trainer_on(device)
    resumed.resume(path)
    resumed.fit(cavs.DataLoader(graphs(), 1), epochs=2, progress=False)
    close(resumed, calm)


def test_a_second_interrupt_leaves_a_trainer_that_goes_on(device):
    class Impatient(cavs.DataLoader):
        def __iter__(self):
            for i, batch in enumerate(super().__iter__()):
                if i == 3:
                    raise KeyboardInterrupt
                yield batch

    def run(trainer):
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(Impatient(graphs(), 1), epochs=1, progress=False)
        return trainer.steps, trainer.step(single(2))

    expected, found = both(device, run)
    assert found[0] == expected[0] == 3
    assert found[1] == pytest.approx(expected[1], rel=1e-10)


def test_a_fault_of_a_kernel_is_raised_by_what_waits(twin):
    device = Device(twin.library, 0, "sm_90", twin.compiler, None)
    trainer = trainer_on(device)
    trainer.step(single(2))
    twin.fail_launch(3)
    trainer.launch(single(2))
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
        trainer.land()
    assert trainer.steps == 1
    assert trainer.land() == []


def test_a_session_may_go_with_a_step_on_its_way(twin, device):
    twin.adversarial(2)
    batch, model = single(4), tagger()
    gc.collect()
    live = twin.live()["pinned"]
    session = cavs.Session(model, dtype=np.float64, device=replace(device, memory=None))
    session.launch(batch, SGD, STATES)
    pending = session.launch(batch, SGD, STATES)
    del session
    gc.collect()
    host = cavs.Session(tagger(), dtype=np.float64)
    expected = [host.step(batch, SGD, STATES).loss for _ in range(2)]
    assert pending.loss == pytest.approx(expected[1], rel=1e-11)
    for k, value in values(model).items():
        assert_close(value, values(host.model)[k], 1e-11, k)
    del pending
    for p in model.parameters().values():
        p.copies = []
    gc.collect()
    assert twin.live()["pinned"] <= live


@pytest.mark.parametrize("seed", [0, 5])
def test_threads_that_train_on_one_device(twin, device, seed):
    twin.adversarial(seed)
    host = trainer_on("cpu")
    host.fit(cavs.DataLoader(graphs(), 1), epochs=2, progress=False)
    trainers, failures = [trainer_on(device) for _ in range(3)], []

    def work(trainer):
        try:
            trainer.fit(cavs.DataLoader(graphs(), 1), epochs=2, progress=False)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=[t]) for t in trainers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for trainer in trainers:
        close(trainer, host)


def test_one_thread_may_wait_for_a_step_while_others_launch(twin, device):
    host, session = (cavs.Session(tagger(), dtype=np.float64, device=d) for d in ("cpu", device))
    data, found = [single(i) for i in (2, 4, 3, 1, 0)] * 3, {}

    def read(i, step):
        found[i] = step.loss

    threads = []
    for i, batch in enumerate(data):
        threads.append(threading.Thread(target=read, args=[i, session.launch(batch, SGD, STATES)]))
        threads[-1].start()
    for thread in threads:
        thread.join()
    expected = [host.step(batch, SGD, STATES).loss for batch in data]
    assert [found[i] for i in range(len(data))] == pytest.approx(expected, rel=1e-10)
