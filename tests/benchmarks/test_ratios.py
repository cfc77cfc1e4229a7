"""Turns of runners, their ratios and quartiles."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks.bounds import missed, rivals
from benchmarks.harness import speed_table
from benchmarks.ratios import Pass, quartiles, take_turns, timed


def runner(calls: list[str], name: str, loss: float, seconds: list[float]) -> Pass:
    left = iter(seconds)

    def run() -> tuple[float, float]:
        calls.append(name)
        return next(left), loss

    return run


def test_the_order_alternates_and_the_first_pass_is_not_measured() -> None:
    calls: list[str] = []
    runners = {
        "ours": runner(calls, "ours", 2.0, [99.0, 1.0, 2.0, 4.0]),
        "theirs": runner(calls, "theirs", 2.0, [99.0, 3.0, 4.0, 20.0]),
    }
    found = take_turns(runners, 3, 0.0)
    first, *rounds = [calls[i : i + 2] for i in range(0, len(calls), 2)]
    assert first == ["ours", "theirs"]
    assert rounds == [["theirs", "ours"], ["ours", "theirs"], ["theirs", "ours"]]
    assert found["loss"] == 2.0
    assert found["seconds"]["ours"]["median"] == 2.0 and found["seconds"]["ours"]["rounds"] == 3
    assert found["ratios"]["ours"]["median"] == 1.0
    theirs = found["ratios"]["theirs"]  # 3, 2 and 5 in the three rounds
    assert (theirs["least"], theirs["median"], theirs["q75"]) == (2.0, 3.0, 4.0)
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("loss", [2.1, 1.9, math.nan])
def test_differing_losses_are_refused(loss: float) -> None:
    def runners() -> dict[str, Pass]:
        return {
            "ours": runner([], "ours", 2.0, [1.0, 1.0]),
            "theirs": runner([], "theirs", loss, [1.0, 1.0]),
        }

    with pytest.raises(SystemExit, match=rf"differ: .*'ours': 2.0, 'theirs': {loss}"):
        take_turns(runners(), 1, 1e-3)
    assert take_turns(runners(), 1, None)["loss"] == 2.0
    if math.isfinite(loss):
        take_turns(runners(), 1, 0.1)


def test_timed_returns_seconds_and_the_loss() -> None:
    seconds, loss = timed(lambda: 3.0)()
    assert 0 <= seconds < 1 and loss == 3.0


def test_tables_and_bounds_of_rivals() -> None:
    runners = {
        "cavs": runner([], "cavs", 1.0, [0.0, 2.0, 2.0, 2.0]),
        "rival": runner([], "rival", 1.0, [0.0, 3.0, 4.0, 5.0]),
    }
    case = {"hidden": 7, "words": 3000, **take_turns(runners, 3, 0.0)}
    row = speed_table("h", "words", [case]).splitlines()[-1]
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "7", "rival", "750", "2.00 (1.75-2.25)",
    ]  # fmt: skip
    assert missed(rivals([case], {"rival": 2.0, "absent": 9.0})) == []
    assert missed(rivals([case], {"rival": 2.1})) == ["h 7: time of rival over ours"]


def test_quartiles_of_rates_are_in_order() -> None:
    found = take_turns({"a": runner([], "a", 1.0, [0.0, 1.0, 2.0, 4.0])}, 3, None)["seconds"]["a"]
    assert quartiles(found, "{:.1f}") == "2.0 (1.5-3.0)"
    assert quartiles(found, "{:.0f}", lambda t: 12 / t) == "6 (4-8)"
