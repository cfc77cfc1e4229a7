"""Reports as HTML: well-formed, self-contained, with the values of the log."""

import re

import pytest

from cavs.inspect.report.page import page
from cavs.inspect.report.run_log import read_log
from tests.inspect.pages import Page, assert_loads_nothing, contrast, themes
from tests.inspect.report.logs import Log, adaptive, without_policies


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.jsonl"


def drawn(path, over="steps"):
    text = page(read_log(path), over)
    return text, Page(text)


@pytest.mark.parametrize("write", [without_policies, adaptive])
def test_a_page_loads_nothing(path, write):
    text, parsed = drawn(write(path))
    assert_loads_nothing(text, parsed)
    assert not re.search(r"//\w", text) and not parsed.values("href")


def test_a_page_fits_phones_and_dark_mode(path):
    text, parsed = drawn(adaptive(path))
    assert "width=device-width,initial-scale=1" in parsed.values("content")
    for theme in themes(text):
        colors = theme.keys() - {"--back", "--grid"}
        assert all(contrast(theme[name], theme["--back"]) >= 4.5 for name in colors)
    assert set(re.findall(r'viewBox="([^"]*)"', text)) == {"0 0 480 250"}


def test_facts_of_a_finished_run(path):
    _, parsed = drawn(without_policies(path))
    facts = dict(zip(parsed.texts["dt"], parsed.texts["dd"], strict=True))
    assert facts == {
        "model": "toy",
        "state": "finished",
        "steps": "30",
        "epochs": "3 of 3",
        "best": "accuracy 0.75 in epoch 2",
        "training time": "7.0 s",
        "ranks": "1",
        "batch size": "8",
        "optimizer": "SGD(lr=0.1)",
    }
    assert parsed.texts["h1"] == [path.parent.name]


def test_a_run_without_an_evaluated_epoch_has_no_best(path):
    log = Log(path).start().step(1, 1.0)
    _, parsed = drawn(path)
    assert "best" not in parsed.texts["dt"] and "0 of 3" in parsed.texts["dd"]
    log.epoch(1, 10, 1.0, dev_accuracy=0.5)
    facts = drawn(path)[1].texts
    assert dict(zip(facts["dt"], facts["dd"], strict=True))["best"] == "accuracy 0.5 in epoch 1"


def test_a_log_without_its_start_has_only_facts_of_its_steps(path):
    Log(path).step(1, 1.0, ranks=2).step(2, 0.5, ranks=4)
    _, parsed = drawn(path)
    facts = dict(zip(parsed.texts["dt"], parsed.texts["dd"], strict=True))
    assert facts["ranks"] == "2 to 4" and facts["epochs"] == "0"
    assert "batch size" not in facts and "optimizer" not in facts


@pytest.mark.parametrize(
    ("event", "record", "state"),
    [
        ("interrupt", {}, "interrupted"),
        ("error", {"error": "no disk"}, "failed: no disk"),
        ("end", {"status": "stopped"}, "stopped by a policy"),
        ("end", {"stopped_early": True}, "stopped early, after epochs without improvement"),
        ("other", {}, "running, or ended without a record"),
    ],
)
def test_the_state_of_a_run(path, event, record, state):
    Log(path).start().step(1, 1.0).write(event, step=1, **record)
    assert state in drawn(path)[1].texts["dd"]


def test_hovering_shows_values_and_marks(path):
    _, parsed = drawn(adaptive(path))
    titles = parsed.texts["title"]
    assert "step 3\nbatch size: 16\ngradient noise scale: 12\nbatch size 16" in titles
    at_6 = [t for t in titles if t.startswith("step 6\n")]
    assert all(t.endswith("checkpoint\ninterrupted\nresumed after step 6") for t in at_6)
    assert "step 10\nranks: 4" in titles
    assert "training time 2 s\nbatch: 1.5\ntraining, mean of an epoch: 1 at 14" in titles
    assert {"Loss", "Ranks", "Throughput"} <= set(parsed.values("aria-label"))


def test_marks_are_paths_of_their_event(path):
    _, parsed = drawn(adaptive(path))
    classes = parsed.values("class")
    for event in ("change", "checkpoint", "interrupt", "resume"):
        assert classes.count(f"mark {event}") == 12  # in six charts over steps and time


def test_not_finite_values_are_crosses_and_texts(path):
    Log(path).start().step(1, 1.0).step(2, "nan").step(3, "-inf").step(4, 1.0)
    _, parsed = drawn(path)
    assert "step 2\nbatch: nan" in parsed.texts["title"]
    assert "step 3\nbatch: -inf" in parsed.texts["title"]
    numbers = " ".join(parsed.values("d") + parsed.values("y") + parsed.values("cy"))
    assert "nan" not in numbers and "inf" not in numbers
    assert parsed.values("class").count("invalid c0") == 2


def test_tables_have_epochs_and_changes(path):
    _, parsed = drawn(adaptive(path))
    assert parsed.texts["summary"] == ["Changes and interruptions", "Epochs"]
    cells = parsed.texts["td"]
    assert cells[:6] == ["3", "4.0 s", "batch size 16", "6", "9.0 s", "interrupted"]
    assert parsed.texts["th"][-3:] == ["seconds", "graphs per second", "dev accuracy"]
    assert cells[-1] == "0.5"


def test_long_tables_have_their_last_rows(path):
    log = Log(path).start()
    for epoch in range(1, 301):
        log.epoch(epoch, epoch, 1.0)
    _, parsed = drawn(path)
    assert parsed.texts["summary"] == ["Epochs, the last 200 of 300"]
    assert len(parsed.texts["tr"]) == 201


@pytest.mark.parametrize("over", ["steps", "time"])
def test_the_axis_that_is_shown_first(path, over):
    text, _ = drawn(without_policies(path), over)
    assert re.findall(r'id="over-(\w+)" checked', text) == [over]


def test_texts_of_a_log_cannot_inject_elements(path):
    bad = "<script>alert(1)</script>\"'&\x00\ud800\u202e"
    log = Log(path).write("options", model=bad).start(monitor=bad)
    log.step(1, 1.0, **{bad: 2.0}).write("change", step=1, setting=bad, value=bad)
    log.epoch(1, 1, 1.0, **{f"dev_{bad}": 0.5, bad: 2.0}).write("error", step=1, error=bad)
    text, parsed = drawn(path)
    assert len(parsed.texts["script"]) == 1 and text.count("<script>") == 1
    assert (
        r"<script>alert(1)</script>\"'&\x00\ud800\u202e".replace('\\"', '"')
        in (parsed.texts["dd"][0])
    )
    text.encode()


def test_a_page_of_a_long_run_stays_small(path):
    log = Log(path).start()
    for step in range(1, 2001):
        log.step(step, 1 / step, noise_scale=step)
        if step % 100 < 8:
            log.write("change", step=step, setting="batch_size", value=step)
        log.write("checkpoint", epoch=0, step=step)
    text, parsed = drawn(path)
    assert len(text) < 750_000
    assert any(title.endswith("more") for title in parsed.texts["title"])
