"""Logs as numbers and marks: resumed, partial, damaged, and files that are none."""

import errno
import json
import math
import os

import pytest

from cavs.errors import DataError
from cavs.inspect.report.run_log import number, read_log
from tests.inspect.report.logs import Log, adaptive, without_policies


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.jsonl"


def marks(log):
    return [(mark.event, mark.step, mark.text) for mark in log.marks]


def test_a_run_without_policies_has_its_epochs(path):
    log = read_log(without_policies(path))
    assert not log.numbers and log.steps == 30
    assert list(log.epoch_numbers["dev_accuracy"].values) == [0.5, 0.75, 0.625]
    assert list(log.epoch_numbers["train_loss"].steps) == [10, 20, 30]
    assert [epoch["epoch"] for epoch in log.epochs] == [1, 2, 3]
    assert log.best["epoch"] == 2 and log.ending["status"] == "finished"
    assert [mark[:2] for mark in marks(log)] == [("checkpoint", s) for s in (10, 20, 30)]
    assert log.seconds == 7.0 and log.options["model"] == "toy"


def test_a_folder_stands_for_the_log_in_it(path):
    without_policies(path)
    assert read_log(path.parent).path == path
    assert read_log(str(path.parent)).steps == 30


def test_a_resumed_run_goes_on_in_steps_and_time(path):
    log = read_log(adaptive(path))
    loss = log.numbers["loss"]
    assert list(loss.steps) == list(range(1, 11))
    assert list(loss.fits) == [1] * 6 + [2] * 4
    assert loss.seconds[6] - loss.seconds[5] == 3.0  # two hours of pause do not count
    assert marks(log) == [
        ("change", 3, "batch size 16"),
        ("checkpoint", 6, "checkpoint"),
        ("interrupt", 6, "interrupted"),
        ("resume", 6, "resumed after step 6"),
    ]
    assert list(log.settings["batch_size"].values) == [8, 16, 16]
    assert list(log.settings["ranks"].values) == [1] * 7 + [4] * 5
    assert log.ending is None
    assert list(log.numbers["graphs_per_second"].values)[::9] == [16, 32]


def test_steps_that_a_resumed_run_repeats_are_counted_once(path):
    log = Log(path).start()
    for step in range(1, 9):
        log.step(step, 1.0)
    log.epoch(1, 8, 1.0, best=True).write("change", step=8, setting="lr_scale", value=2.0)
    log.start(5)
    for step in range(6, 8):
        log.step(step, 2.0)
    found = read_log(path)
    assert list(found.numbers["loss"].steps) == [1, 2, 3, 4, 5, 6, 7]
    assert list(found.numbers["loss"].values) == [1.0] * 5 + [2.0] * 2
    assert not found.epochs and found.best is None and found.steps == 7
    assert marks(found) == [
        ("interrupt", 8, "ended without a record"),
        ("resume", 5, "resumed after step 5, 3 steps back"),
    ]


def test_a_run_that_has_just_begun_again_has_nothing_to_draw(path):
    Log(path).start().step(1, 1.0).epoch(1, 1, 1.0).start(0)
    with pytest.raises(DataError, match="has 4 records, but no values of steps or epochs"):
        read_log(path)


def test_an_error_is_marked_at_the_step_that_failed(path):
    log = Log(path).start().step(1, 1.0)
    log.write("numerics", step=2, error="step 2: the loss is nan\n  hint: lower lr")
    found = read_log(path)
    assert marks(found) == [("error", 2, "step 2: the loss is nan")]
    assert found.steps == 1 and found.ending["event"] == "numerics"


def test_the_builder_of_the_strategy_is_the_last_one(path):
    log = Log(path).start().step(1, 1.0)
    assert read_log(path).builder == ""
    log.write("strategy", builder="PartitionedPS", digest="a").step(2, 1.0)
    assert read_log(path).builder == "PartitionedPS"
    log.write("strategy", builder=None, digest="b")
    assert read_log(path).builder == "" and read_log(path).steps == 2


def test_a_log_that_cannot_be_read_is_named(path, monkeypatch):
    """The file is one that another user alone may read."""
    without_policies(path)
    opened = type(path).open

    def closed(self, *arguments, **options):
        if self == path:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return opened(self, *arguments, **options)

    monkeypatch.setattr(type(path), "open", closed)
    with pytest.raises(DataError, match=r"log\.jsonl: cannot be read: Permission denied"):
        read_log(path.parent)


def test_a_stop_of_a_policy_is_a_change(path):
    Log(path).start().step(1, 1.0).write("end", step=1, status="stopped")
    assert marks(read_log(path)) == [("change", 1, "stopped by a policy")]


@pytest.mark.parametrize(
    ("value", "result"),
    [("nan", math.nan), ("inf", math.inf), ("-inf", -math.inf), (2, 2.0), (10**400, math.inf)],
)
def test_numbers_that_are_not_finite_are_texts(value, result):
    assert number(value) == pytest.approx(result, nan_ok=True)


@pytest.mark.parametrize("value", [None, True, "3", [1], {}])
def test_other_values_are_no_numbers(value):
    assert number(value) is None


@pytest.mark.parametrize(
    "partial", ['{"event": "epoch", "time": "20', '{"eve', '{"event": "a"\0\0']
)
def test_partial_lines_are_skipped(path, partial):
    without_policies(path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(partial + "\n" + "".join(lines[:3]) + partial + "\n\n" + "".join(lines[3:]))
    with path.open("a") as file:
        file.write("\0\0\0\n" + partial)
    found = read_log(path)
    assert found.skipped == 3 and len(found.epochs) == 3


def test_unknown_events_and_damaged_records_are_ignored(path):
    log = Log(path).start().step(1, 1.0)
    log.write("sample", step=99, text="a b").write("step", step="two", loss=1.0)
    for step in ("nan", "inf", -1, 1e300, None):
        log.write("step", step=step, loss=1.0)
    log.write("change", step=1)
    log.write("step", step=2, loss=None, seconds=0, batch_size=3, time="yesterday")
    with path.open("a") as file:
        file.write('{"event": "step", "step": 3, "time": "yesterday", "loss": 5}\n')
    found = read_log(path)
    assert list(found.numbers["loss"].values) == [1.0, 5.0]
    assert found.steps == 3 and found.seconds < 15


def test_a_clock_that_was_set_back_does_not_turn_time_back(path):
    log = Log(path).start().step(1, 1.0)
    log.now = log.now.replace(hour=3)
    log.step(2, 1.0)
    assert list(read_log(path).numbers["loss"].seconds) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty: there is nothing to draw"),
        ("\n\n", "is empty"),
        ('{"event": "epoch", "step": 1}\n', "has 1 records"),
        ('{"event": "options", "time": "x"}\n', "has 1 records, but no values of steps or epochs"),
        ("hello\n", r"log\.jsonl:1: 'hello' is no record of a log"),
        ('{"loss": 1}\n', "is no record"),
        ('["event"]\n', "is no record"),
        ('{"event": 3}\n', "is no record"),
        ("[" * 100000, "is no record"),
        ("1" * 10000, "is no record"),
        ("\ud800\udc00".encode("utf-16", "surrogatepass").decode("latin-1"), "is no record"),
    ],
)
def test_files_that_are_no_logs_are_refused(path, text, message):
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message) as error:
        read_log(path)
    assert error.value.hint


def test_a_line_that_is_no_record_is_named(path):
    without_policies(path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], json.dumps("epoch"), *lines[2:]]))
    with pytest.raises(DataError, match=r"log\.jsonl:3: '\"epoch\"' is no record"):
        read_log(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "none: no such file"),
        (".", "there is no log.jsonl in it"),
        ("/dev/zero", "/dev/zero is no regular file"),
        ("pipe", "pipe is no regular file"),
        ("a\0b", "is no path"),
        ("x" * 300, "cannot be read: File name too long"),
    ],
)
def test_paths_without_a_log_are_refused(tmp_path, name, message):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=message):
        read_log(os.path.join(tmp_path, name))
