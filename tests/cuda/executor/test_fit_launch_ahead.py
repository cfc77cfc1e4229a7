"""Trainers that launch a step before the previous one has ended train as on the CPU."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest

import cavs
from cavs.errors import DataError, DeviceError, FeatureError, NumericsError
from cavs.train.safetensors import read
from tests.cuda.tagger import (
    both,
    close,
    graphs,
    rounded,
    single,
    tagger,
    trainer_on,
)
from tests.oracle import assert_close


def test_fit_uploads_a_batch_before_it_waits_for_the_previous_step(twin, twin_device):
    trainer, loader = trainer_on(twin_device), cavs.DataLoader(graphs(), 1)
    trainer.fit(loader, epochs=1, progress=False)
    twin.reset()
    trainer.fit(loader, epochs=1, progress=False)
    log = twin.operations()
    copies = [o for o in log if o.kind == "copy" and o.name == "to device"]
    outcomes = [o for o in log if o.kind == "launch" and o.name == "compute_outcome"]
    assert len(copies) == len(outcomes) == 8
    for step, (verdict, following) in enumerate(zip(outcomes, copies[1:], strict=False)):
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
def test_fit_equals_the_cpu_in_any_order(device, shuffle, seed, profiling):
    shuffle(seed)

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
def test_a_loss_that_is_not_finite_ends_fit_as_on_the_cpu(device, shuffle, tmp_path, bad, options):
    shuffle(bad)
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


def test_a_trainer_goes_on_after_a_failed_step(device):
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
    # Batch 3 was launched while 2 failed, 6 while 5 did: neither is applied.
    assert trainer.steps == 4
    assert rounded(next(x for x in found if isinstance(x, str))) == rounded(expected[2])
    assert [b for b, _ in (x for x in found if not isinstance(x, str))] == [
        data[i] for i in (0, 1, 4, 7)
    ]
    host = trainer_on("cpu")
    for i in (0, 1, 4, 7):
        host.step(data[i])
    close(trainer, host)


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("how", ["feature", "loader"])
def test_an_error_of_the_next_batch_comes_after_that_of_the_step(device, how, nan):
    good = graphs(bad=[3] if nan else [])
    if how == "feature":
        one = graphs((3,), tokens=31)[0]
        good[4] = one.with_features({"token": [30, *one.features["token"][1:]]})

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
def test_an_interrupt_waits_for_launched_steps(twin, device, tmp_path, at):
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


def test_a_trainer_goes_on_after_a_second_interrupt(device):
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


@pytest.mark.parametrize("seed", [0, 5])
def test_threads_that_train_on_one_device(device, shuffle, seed):
    shuffle(seed)
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


@pytest.mark.parametrize("late", [False, True])
def test_out_of_memory_in_the_next_step(twin, twin_device, late):
    small, large = [single(i) for i in (2, 3, 2)], cavs.batch(graphs((60,) * 20))
    host = trainer_on("cpu")
    trainer = trainer_on(replace(twin_device, memory=None))
    for batch in small:
        host.step(batch)
        trainer.launch(batch)
    twin.memory(twin.used() + (1 << 13 if late else 0))
    with pytest.raises(DeviceError, match="OUT_OF_MEMORY"):
        trainer.launch(large)
    assert [step.batch for step in trainer.land()] == small[2:]  # which were not returned before
    assert trainer.steps == 3
    close(trainer, host)
    twin.memory(1 << 36)
    assert trainer.step(large) == pytest.approx(host.step(large), rel=1e-10)
    close(trainer, host)
