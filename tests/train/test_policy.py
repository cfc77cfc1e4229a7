"""Policies on one process: hooks, changes of the training, states in checkpoints."""

import json

import numpy as np
import pytest

from cavs.errors import CheckpointError, ConfigError
from cavs.train import Monitor, Policy, monitors, read_checkpoint
from cavs.train.progress import Progress
from cavs.train.ranks import OneRank
from cavs.train.run_table import RunTable, Setting
from tests.train.test_trainer import BATCHES, bits, dev_loader, make, train_loader


class Recorder(Policy):
    """Appends the name of every hook to a list."""

    def __init__(self, calls, tag=""):
        self.calls, self.tag = calls, tag

    def before_train(self, run):
        self.calls.append(f"before_train{self.tag}")

    def after_train(self, run):
        self.calls.append(f"after_train{self.tag}")

    def before_epoch(self, run):
        self.calls.append(f"before_epoch{self.tag} {run.epoch}")

    def after_epoch(self, run):
        self.calls.append(f"after_epoch{self.tag} {run.epoch}")

    def before_step(self, run):
        self.calls.append(f"before_step{self.tag} {run.step}")

    def after_step(self, run):
        self.calls.append(f"after_step{self.tag} {run.step}")


class Doubling(Policy):
    """Doubles the batch size after every `every` steps and counts how often."""

    def __init__(self, every=3, most=64):
        self.every, self.most, self.count = every, most, 0

    def after_step(self, run):
        if run.step % self.every == 0 and run.batch_size < self.most:
            assert run.set_batch_size(min(2 * run.batch_size, self.most))
            self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = int(state["count"])


def test_hooks_are_called_in_order_and_after_ones_in_reverse():
    calls = []
    policies = [Recorder(calls, "_a"), Recorder(calls, "_b")]
    make().fit(train_loader(), epochs=2, progress=False, policies=policies)
    assert calls[:4] == ["before_train_a", "before_train_b", "before_epoch_a 1", "before_epoch_b 1"]
    assert calls[4:8] == ["before_step_a 0", "before_step_b 0", "after_step_b 1", "after_step_a 1"]
    assert calls[-4:] == ["after_epoch_b 2", "after_epoch_a 2", "after_train_b", "after_train_a"]
    assert sum("before_step_a" in call for call in calls) == 2 * BATCHES


def test_a_policy_without_effect_changes_no_bit():
    plain, adapted = make(), make()
    plain.fit(train_loader(), epochs=2, progress=False)
    adapted.fit(train_loader(), epochs=2, progress=False, policies=[Policy()])
    assert bits(plain) == bits(adapted)


def test_the_batch_size_follows_the_policy_and_every_graph_is_seen(tmp_path):
    log = tmp_path / "log"
    seen = []

    class Seen(Policy):
        def before_step(self, run):
            assert run.rank == 0 and run.size == 1

        def after_step(self, run):
            seen.append(run.step)

    trainer = make()
    loader = train_loader()
    count = len(loader.graphs)
    trainer.fit(loader, epochs=2, progress=False, policies=[Doubling(), Seen()], log=log)
    records = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [r for r in records if r["event"] == "step"]
    assert [r["step"] for r in steps] == list(range(1, trainer.steps + 1))
    for epoch in (1, 2):
        assert sum(r["batch_size"] for r in steps if r["epoch"] == epoch) == count
    changes = [r for r in records if r["event"] == "change"]
    assert [r["setting"] for r in changes] == ["batch_size"] * len(changes)
    assert [r["value"] for r in changes] == [16, 32, 64][: len(changes)]
    assert len(changes) >= 2


@pytest.mark.parametrize("stop_at", [2, 4, 7])
def test_a_run_stopped_anywhere_resumes_with_size_rate_and_states(tmp_path, stop_at):
    def policies():
        return [Doubling(), HalfRate()]

    class HalfRate(Policy):
        def after_step(self, run):
            if run.step == 4:
                assert run.set_lr_scale(0.5)

    class StopAt(Policy):
        def after_step(self, run):
            if run.step == stop_at:
                assert run.stop()

    whole = make()
    whole.fit(train_loader(), epochs=3, progress=False, policies=policies())

    path = tmp_path / "m"
    first = make()
    result = first.fit(
        train_loader(),
        epochs=3,
        progress=False,
        policies=[StopAt(), *policies()],
        checkpoint=path,
    )
    assert result.status == "stopped" and first.steps == stop_at
    again, kept = make(), policies()
    again.resume(path)
    loader = train_loader()
    result = again.fit(loader, epochs=3, progress=False, policies=kept)
    assert result.status == "finished"
    assert again.steps == whole.steps and bits(again) == bits(whole)
    assert kept[0].count == 3 and loader.batch_size == 64


def test_the_rate_is_that_of_the_schedule_times_the_scale():
    rates = []

    class Scaled(Policy):
        def after_step(self, run):
            rates.append(run.lr / run.optimizer.rate(run.step))
            assert run.set_lr_scale(0.1)

    scaled = make()
    scaled.fit(train_loader(), epochs=1, progress=False, policies=[Scaled()])
    assert rates[:2] == pytest.approx([1.0, 0.1])
    arguments = scaled.state.step_arguments(scaled.session, 0)
    assert arguments["hyper"]["lr"] == pytest.approx(0.1 * scaled.optimizer.rate(0))


class Failing(Policy):
    def after_step(self, run):
        if run.step == 5:
            raise ZeroDivisionError("of the policy")


def test_an_error_in_a_hook_ends_the_run_with_a_checkpoint_of_that_step(tmp_path):
    trainer = make()
    with pytest.raises(ZeroDivisionError, match="of the policy"):
        trainer.fit(
            train_loader(),
            epochs=2,
            progress=False,
            policies=[Failing()],
            checkpoint=tmp_path / "m",
        )
    assert read_checkpoint(tmp_path / "m").progress["step"] == 5
    again = make()
    again.resume(tmp_path / "m")
    again.fit(train_loader(), epochs=2, progress=False)
    whole = make()
    whole.fit(train_loader(), epochs=2, progress=False)
    assert bits(again) == bits(whole)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("batch_size", 0, "batch_size is 0"),
        ("batch_size", 2.5, "batch_size is 2.5"),
        ("lr_scale", 0.0, "lr_scale is 0.0"),
        ("lr_scale", float("nan"), "lr_scale is nan"),
        ("batch_size", object(), "batch_size is <object"),
        ("size", 2, "resize to 2 ranks, but this training is one process"),
        ("speed", 2, "no setting 'speed'"),
    ],
)
def test_invalid_changes_are_refused(setting, value, message):
    class Asking(Policy):
        def after_step(self, run):
            run.adapt(setting, value)

    trainer, loader = make(), train_loader()
    with pytest.raises(ConfigError, match=message):
        trainer.fit(loader, epochs=1, progress=False, policies=[Asking()])
    assert trainer.steps == 1 and loader.batch_size == train_loader().batch_size


def test_collectives_of_one_process_return_the_value():
    class Calling(Policy):
        def after_step(self, run):
            assert run.all_reduce(3.0, "mean") == 3.0
            assert run.broadcast(2) == 2.0
            np.testing.assert_array_equal(run.all_gather([1, 2])[0], [1, 2])
            with pytest.raises(ConfigError, match="op is 'median'"):
                run.all_reduce(1.0, "median")
            with pytest.raises(ConfigError, match="root is 1"):
                run.broadcast(1.0, 1)

    make().fit(train_loader(), epochs=1, progress=False, policies=[Calling()])


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("policies", [object()], r"policies\[0\]"),
        ("monitors", [object()], r"monitors\[0\]"),
        ("monitors", [Monitor()], "name"),
        (
            "monitors",
            [monitors.NoiseScale(alpha=0.1), monitors.NoiseScale(alpha=0.2)],
            "two monitors are called noise_scale",
        ),
    ],
)
def test_arguments_that_are_none_are_refused(argument, value, message):
    with pytest.raises(ConfigError, match=message):
        make().fit(train_loader(), epochs=1, progress=False, **{argument: value})


def test_states_of_policies_must_be_json_and_those_in_a_file_valid(tmp_path):
    class Odd(Policy):
        def state_dict(self):
            return {"array": np.zeros(2)}

    with pytest.raises(ConfigError, match=r"Odd\.state_dict"):
        make().fit(
            train_loader(), epochs=1, progress=False, policies=[Odd()], checkpoint=tmp_path / "m"
        )
    trainer = make()
    trainer.fit(train_loader(), epochs=1, progress=False)
    trainer.save(tmp_path / "m", progress={"policies": 3})
    again = make()
    again.resume(tmp_path / "m")
    with pytest.raises(CheckpointError, match="state of policies: 3"):
        again.fit(train_loader(), epochs=2, progress=False, policies=[Policy()])


def test_throughput_and_speed_are_measured_on_one_process():
    measures = []

    class Reading(Policy):
        monitors = (monitors.Throughput(window=3), monitors.RankSpeed(), monitors.NoiseScale())

        def after_step(self, run):
            measures.append((run.throughput, run.measures["rank_speed"], run.noise_scale))

    make().fit(train_loader(), epochs=1, progress=False, policies=[Reading()])
    assert all(t > 0 and speed == 1.0 and np.isnan(noise) for t, speed, noise in measures)


class Constant(Monitor):
    """Sets its value to a number."""

    def __init__(self, name, number):
        super().__init__()
        self.name, self.number = name, number

    def end_step(self, facts):
        self.value = self.number


@pytest.mark.parametrize("every", [None, 2])
def test_evaluations_and_checkpoints_are_no_time_of_steps(tmp_path, monkeypatch, every):
    clock = [0.0]
    monkeypatch.setattr("cavs.train.adaptation.time.perf_counter", lambda: clock[0])
    trainer = make()
    advance, save, evaluate = trainer.advance, trainer.save, trainer.evaluate

    def after(seconds, call):
        def timed(*arguments, **options):
            clock[0] += seconds
            return call(*arguments, **options)

        return timed

    trainer.advance, trainer.save = after(1.0, advance), after(50.0, save)
    trainer.evaluate = after(70.0, evaluate)
    speed, seen = monitors.Throughput(window=1), []

    class Reading(Policy):
        monitors = (speed,)

        def after_step(self, run):
            seen.append(run.throughput)

    options = {"checkpoint": tmp_path / "m", "checkpoint_every": every, "dev": dev_loader()}
    trainer.fit(train_loader(), epochs=3, progress=False, policies=[Reading()], **options)
    assert set(seen) == {float(len(ids)) for ids in train_loader().epoch_ids(0)}


def test_monitors_of_a_class_of_policies_are_not_shared_by_trainings():
    counts = []

    class Counting(monitors.Monitor):
        name = "steps"

        def end_step(self, facts):
            self.value = 1.0 if np.isnan(self.value) else self.value + 1

    class Reading(Policy):
        monitors = (Counting(),)

        def after_train(self, run):
            counts.append(run.measures["steps"])

    for _ in range(2):
        make().fit(train_loader(), epochs=1, progress=False, policies=[Reading()])
    assert counts == [BATCHES, BATCHES]


def test_progress_shows_batch_size_noise_scale_and_other_monitors(monkeypatch):
    shown = []

    def advance(self, graphs, **values):
        shown.append(values)

    monkeypatch.setattr(Progress, "advance", advance)
    given = [
        Constant("rank_speed", 0.5),
        Constant("noise_scale", 1200.5),
        Constant("throughput", 7.0),
        Constant("unknown", float("nan")),
    ]
    make().fit(train_loader(), epochs=1, policies=[Doubling()], monitors=given)
    assert list(shown[0]) == ["loss", "batch"] and shown[0]["batch"] == 8
    assert list(shown[4]) == ["loss", "batch", "noise", "rank speed"]
    assert (shown[4]["batch"], shown[4]["noise"], shown[4]["rank speed"]) == (16, 1200.5, 0.5)


def test_progress_shows_the_ranks_of_several(monkeypatch):
    shown = []
    monkeypatch.setattr(Progress, "advance", lambda self, graphs, **values: shown.append(values))
    monkeypatch.setattr(OneRank, "size", 3)
    make().fit(train_loader(), epochs=1, policies=[Policy()])
    assert list(shown[0]) == ["loss", "batch", "ranks"] and shown[0]["ranks"] == 3


def test_the_log_has_the_ranks_and_checkpoints(tmp_path):
    log = tmp_path / "log"
    make().fit(
        train_loader(),
        epochs=1,
        progress=False,
        log=log,
        checkpoint=tmp_path / "m",
        checkpoint_every=3,
    )
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert (records[0]["ranks"], records[0]["monitor"]) == (1, "loss")
    saved = [(r["epoch"], r["step"]) for r in records if r["event"] == "checkpoint"]
    assert saved == [*((0, step) for step in range(3, BATCHES + 1, 3)), (1, BATCHES)]


def test_a_table_checks_before_it_writes():
    values = {"x": 1}

    def check(value):
        if value > 3:
            raise ConfigError(f"x is {value}", hint="at most 3")

    table = RunTable(OneRank())
    table.declare("x", Setting(lambda: values["x"], lambda v: values.update(x=v), check))
    assert table.adapt("x", 2) and table["x"] == 2 and table.version == 1
    assert table.adapt("x", 2) and table.version == 1
    with pytest.raises(ConfigError, match="x is 4"):
        table.adapt("x", 4)
    assert values == {"x": 2} and table.version == 1


def test_dev_and_checkpoints_within_epochs_go_with_policies(tmp_path):
    trainer = make()
    result = trainer.fit(
        train_loader(),
        epochs=2,
        dev=dev_loader(),
        progress=False,
        policies=[Doubling(every=2)],
        checkpoint=tmp_path / "m",
        checkpoint_every=1,
    )
    assert len(result.epochs) == 2
    stored = read_checkpoint(tmp_path / "m").progress
    assert stored["policies"] == [["Doubling", {"count": 3}]]
