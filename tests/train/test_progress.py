"""Progress on a terminal and elsewhere."""

import io

import pytest

from cavs.train.progress import Progress, duration, short_number


class Terminal(io.StringIO):
    def __init__(self, tty):
        super().__init__()
        self.tty = tty

    def isatty(self):
        return self.tty


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def run(tty, seconds, **options):
    stream, clock = Terminal(tty), Clock()
    with Progress("epoch 1/3", 40, stream=stream, clock=clock, **options) as bar:
        for _ in range(40):
            clock.now += seconds
            bar.advance(64, loss=0.5)
        bar.finish("loss 0.5")
    return stream.getvalue()


def test_a_bar_on_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = run(True, 1.0)
    draws = text.split("\r")
    assert "epoch 1/3  [" in draws[10]
    assert "10/40  loss 0.5  64 graphs/s  0:30 left" in draws[10]
    assert all(len(draw) <= 99 for draw in draws[:-1])
    assert draws[-1] == "epoch 1/3  loss 0.5\n"


def test_a_narrow_terminal_is_not_overrun(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    assert all(len(draw) <= 29 for draw in run(True, 1.0).split("\r")[:-1])


def test_lines_without_a_terminal():
    text = run(False, 1.0)
    lines = text.splitlines()
    assert "\r" not in text
    assert len(lines) == 5
    assert lines[0] == "epoch 1/3  10/40  loss 0.5  64 graphs/s  0:30 left"
    assert run(False, 0.01) == "epoch 1/3  loss 0.5\n"
    assert run(False, 1.0, enabled=False) == ""


@pytest.mark.parametrize("tty", [True, False])
def test_a_line_of_80_columns_drops_the_rate_then_the_last_values(tty, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    stream, clock = Terminal(tty), Clock()
    bar = Progress("epoch 2/10", 400, stream=stream, clock=clock)
    values = {"loss": 0.123456, "batch": 256.0, "ranks": 8, "noise": 1201.4}
    for others in ({}, {"rank speed": 0.5}, {"rank speed": 0.5, "gradient variance": 1.5}):
        clock.now += 20.0
        bar.advance(16384, **dict(list(values.items())[: 3 + len(others)]), **others)
    lines = stream.getvalue().replace("\r", "\n").strip("\n").splitlines()
    assert [len(line) <= 80 - tty for line in lines] == [True] * 3
    assert [line.rstrip() for line in lines] == [
        "epoch 2/10  1/400  loss 0.1235  batch 256  ranks 8  819 graphs/s  2:13:00 left",
        "epoch 2/10  2/400  loss 0.1235  batch 256  ranks 8  noise 1201  2:12:40 left",
        "epoch 2/10  3/400  loss 0.1235  batch 256  ranks 8  noise 1201  2:12:20 left",
    ]


def test_the_loss_stays_on_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    stream, clock = Terminal(True), Clock()
    bar = Progress("epoch 1/3", 40, stream=stream, clock=clock)
    clock.now = 1.0
    bar.advance(64, loss=0.5, batch=64)
    assert stream.getvalue() == "\repoch 1/3  1/40  loss 0.5  0:39 left".ljust(40)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (16.0, "16"),
        (12345, "12345"),
        (12345.678, "12346"),
        (999.96, "1000"),
        (0.43217, "0.4322"),
        (-2.5, "-2.5"),
        (1234567890123.0, "1.235e+12"),
        (1e-7, "1e-07"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_short_numbers(value, text):
    assert short_number(value) == text


def test_a_resumed_pass_estimates_from_its_own_batches():
    stream, clock = Terminal(False), Clock()
    bar = Progress("epoch", 40, done=30, stream=stream, clock=clock)
    clock.now = 20.0
    bar.advance(1)
    assert "31/40" in stream.getvalue()
    assert "3:00 left" in stream.getvalue()


def test_a_closed_stream_does_not_stop_training():
    stream = Terminal(False)
    stream.close = None
    bar = Progress("epoch", 2, stream=stream)
    io.StringIO.close(stream)
    bar.finish("done")
    assert not bar.enabled


@pytest.mark.parametrize("closed", [False, True])
def test_a_missing_stream_does_not_stop_training(closed, monkeypatch):
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr("sys.stderr", stream if closed else None)
    with Progress("epoch", 2) as bar:
        bar.advance(1)
        bar.finish("done")
    assert bar.done == 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.21, "4.2s"), (65, "1:05"), (7384, "2:03:04"), (float("inf"), "?")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize("tty", [True, False])
def test_a_pass_of_unknown_length_shows_the_batches_that_were_made(tty, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    stream, clock = Terminal(tty), Clock()
    with Progress("epoch 1/3", 0, stream=stream, clock=clock) as bar:
        for _ in range(10):
            clock.now += 1
            bar.advance(64, loss=0.5)
    last = stream.getvalue().strip().splitlines()[-1]
    assert "epoch 1/3  10  loss 0.5  64 graphs/s" in last
    assert "/0" not in last and "left" not in last and "[" not in last
