"""Charts of a log: which there are, their lines, points and marks."""

import math

import pytest

from cavs.inspect.report.charts import axis_of, charts_of
from cavs.inspect.report.run_log import read_log
from tests.inspect.report.logs import Log, adaptive, without_policies


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.jsonl"


def charts(path, over="steps"):
    log = read_log(path)
    return {chart.title: chart for chart in charts_of(log, axis_of(log, over))}


def values(line):
    return [[(point.x, point.y) for point in run] for run in line.runs]


def test_a_run_without_policies_has_charts_of_its_epochs(path):
    found = charts(without_policies(path))
    assert list(found) == ["Loss", "Accuracy on dev", "Throughput"]
    assert [line.label for line in found["Loss"].lines] == ["training, mean of an epoch", "dev"]
    assert values(found["Loss"].lines[0]) == [[(10, 2.0), (20, 1.0), (30, 2 / 3)]]
    assert found["Accuracy on dev"].best == (20, 0.75)
    assert found["Loss"].best is None


def test_an_adaptive_run_has_charts_of_settings_and_monitors(path):
    found = charts(adaptive(path))
    assert list(found) == [
        "Loss",
        "Accuracy on dev",
        "Batch size and gradient noise scale",
        "Ranks",
        "Throughput",
        "Gradient norm",
    ]
    size, noise = found["Batch size and gradient noise scale"].lines
    assert values(size) == [[(0, 8), (3, 16), (10, 16)]] and size.steps
    assert values(noise)[0][-1] == (6, 24.0) and values(noise)[1][0] == (7, 28.0)
    assert values(found["Ranks"].lines[0]) == [[(0, 1), (6, 4), (10, 4)]]
    assert [line.label for line in found["Throughput"].lines] == ["steps", "epochs"]


def test_marks_are_on_the_axis_in_order(path):
    log = read_log(adaptive(path))
    assert [(x, event) for x, event, _ in axis_of(log, "steps").marks] == [
        (3, "change"),
        (6, "checkpoint"),
        (6, "interrupt"),
        (6, "resume"),
    ]
    axis = axis_of(log, "time")
    assert (axis.unit, axis.low, axis.high) == ("s", 0, log.seconds)
    assert axis.marks[0][0] == 4.0


@pytest.mark.parametrize(
    ("seconds", "unit", "high"), [(100, "s", 100), (600, "min", 10), (7200 * 2, "h", 4)]
)
def test_time_has_a_unit_that_fits(path, seconds, unit, high):
    Log(path).start()
    Log(path, seconds=seconds).step(1, 1.0)
    axis = axis_of(read_log(path), "time")
    assert (axis.unit, axis.high) == (unit, high)


def test_several_metrics_between_0_and_1_share_a_chart(path):
    dev = {"dev_accuracy": 0.5, "dev_root_accuracy": 0.25, "dev_perplexity": 4.0}
    Log(path).start(monitor="perplexity").epoch(1, 10, 1.0, **dev)
    found = charts(path)
    assert [line.label for line in found["Metrics on dev"].lines] == ["accuracy", "root accuracy"]
    assert found["Perplexity on dev"].best == (10, 4.0)


def test_other_monitors_settings_and_rates_have_their_own_charts(path):
    log = Log(path).start()
    for step in (1, 2):
        log.step(step, 1.0, rank_speed=0.5, my_monitor=step)
    log.write("change", step=2, setting="lr_scale", value=0.5)
    log.write("change", step=2, setting="servers", value=[0, 1])
    for epoch in (1, 2):
        log.epoch(epoch, 2 * epoch, 1.0, lr=0.1 / epoch)
    found = charts(path)
    assert {
        "Speed of the slowest rank over the fastest",
        "My monitor",
        "Scale of the learning rate",
        "Learning rate of the schedule",
    } <= set(found)
    assert values(found["Scale of the learning rate"].lines[0]) == [[(2, 0.5), (4, 0.5)]]


def test_values_that_are_not_finite_break_a_line(path):
    log = Log(path).start()
    for step, loss in enumerate([1.0, "nan", 0.5, 0.4, "inf", 1e305, 1e-310], start=1):
        log.step(step, loss)
    (line,) = charts(path)["Loss"].lines
    assert values(line) == [[(1, 1.0)], [(3, 0.5), (4, 0.4)], [(7, 0.0)]]
    assert line.invalid == [(2, "nan"), (5, "inf"), (6, "1e+305")]


@pytest.mark.parametrize("best", ["inf", "nan", 1e305])
def test_a_best_value_that_cannot_be_drawn_has_no_mark(path, best):
    log = Log(path).start(monitor="loss")
    log.epoch(1, 10, 1.0, dev_loss=0.5).epoch(2, 20, 1.0, dev_loss=best)
    chart = charts(path)["Loss"]
    assert chart.best is None
    assert values(chart.lines[1]) == [[(10, 0.5)]]
    log.epoch(3, 30, 1.0, dev_loss=0.25)
    assert charts(path)["Loss"].best == (30, 0.25)


def test_a_chart_of_nothing_but_nan_has_a_range(path):
    Log(path).start().step(1, "nan")
    chart = charts(path)["Loss"]
    assert chart.y_range() == (0.0, 0.0) and chart.lines[0].points == []


def test_many_points_are_averaged_with_their_range(path):
    log = Log(path).start()
    losses = [math.sin(step) for step in range(1, 1001)]
    for step, loss in enumerate(losses, start=1):
        log.step(step, loss)
    (line,) = charts(path)["Loss"].lines
    assert 150 <= len(line.points) <= 161
    assert min(p.low for p in line.points) == min(losses)
    assert max(p.high for p in line.points) == max(losses)
    assert all(p.low <= p.y <= p.high for p in line.points)
    assert [p.x for p in line.points] == sorted(p.x for p in line.points)
