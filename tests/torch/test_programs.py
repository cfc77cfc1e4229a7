"""The programs of docs/torch_dynamic.md: few changed lines, and equal losses and parameters."""

from __future__ import annotations

import contextlib
import difflib
import io
import re
import runpy
from typing import Any

import pytest

from benchmarks import torch_programs
from tests.tracked import ROOT

torch = pytest.importorskip("torch", reason="cavs.torch needs the package torch")

torch.set_num_threads(1)
FOLDER = ROOT / "tests/torch/programs"
PAGE = ROOT / "docs/torch_dynamic.md"
NAMES = ("tree", "circuit", "clip")
MAX_CHANGED = 10
MAX_CODE = 60  # lines that are neither empty nor a docstring


def lines(name: str, version: str) -> list[str]:
    """Return the lines of a program; version: "before" or "after"."""
    return (FOLDER / f"{name}_{version}.py").read_text(encoding="utf-8").splitlines()


def changed(before: list[str], after: list[str]) -> int:
    """Return the number of lines of ``after`` that difflib calls inserted or replaced.

    Empty lines do not count, nor do lines that are only removed.
    """
    a, b = ([line for line in text if line.strip()] for text in (before, after))
    blocks = difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return sum(end - begin for tag, _, _, begin, end in blocks if tag != "equal")


def test_lines_that_are_added_or_replaced_count():
    before = ["a", "b", "", "c", "d", "e"]
    assert changed(before, ["a", "b", "c", "", "d", "e"]) == 0
    assert changed(before, ["a", "d", "e"]) == 0
    assert changed(before, ["a", "x", "y", "d", "e", "z"]) == 3


@pytest.mark.parametrize("name", NAMES)
def test_few_lines_change(name):
    before, after = lines(name, "before"), lines(name, "after")
    assert 0 < changed(before, after) <= MAX_CHANGED
    for text in (before, after):
        code = [line for line in text if line.strip() and not line.strip().startswith('"""')]
        assert 25 <= len(code) <= MAX_CODE


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_the_change(name):
    text = PAGE.read_text(encoding="utf-8")
    files = f"{name}_before.py", f"{name}_after.py"
    diff = difflib.unified_diff(lines(name, "before"), lines(name, "after"), *files, lineterm="")
    assert "```diff\n" + "\n".join(diff) + "\n```\n" in text
    count = changed(lines(name, "before"), lines(name, "after"))
    (row,) = re.findall(rf"^\| `{name}_after\.py` .*$", text, re.MULTILINE)
    assert f"| {count} |" in row


def run(name: str, version: str) -> tuple[list[float], dict[str, Any]]:
    """Run a program; return the losses that it prints, and its parameters at the end."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        names = runpy.run_path(str(FOLDER / f"{name}_{version}.py"), run_name="__main__")
    losses = re.findall(r"^loss (\S+)$", shown.getvalue(), re.MULTILINE)
    return [float(loss) for loss in losses], names["model"].state_dict()


@pytest.mark.parametrize("name", NAMES)
def test_programs_begin_from_equal_parameters(name):
    found = []
    for version in ("before", "after"):
        names = runpy.run_path(str(FOLDER / f"{name}_{version}.py"))
        torch.manual_seed(3)
        found.append(names["Classifier"](8).state_dict())
    assert list(found[0]) == list(found[1])
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])


@pytest.mark.parametrize("name", NAMES)
def test_programs_give_equal_losses_and_parameters(name):
    (losses, before), (others, after) = run(name, "before"), run(name, "after")
    assert len(losses) == len(others) == 6
    assert losses[-1] < losses[0]
    assert others == pytest.approx(losses, rel=0, abs=1e-4)
    assert before.keys() == after.keys()
    for key, values in before.items():
        torch.testing.assert_close(after[key], values, rtol=0, atol=1e-4)


def test_the_benchmark_compares_all_versions(monkeypatch, capsys):
    """Losses of the first step must be equal, also that of packed sequences."""
    monkeypatch.setattr(torch_programs, "SIZES", dict.fromkeys(NAMES, (3, 2, 5)))
    assert torch_programs.main(["--hidden", "8", "--rounds", "1"]) == 0
    shown = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    versions = [[name, version] for name in NAMES for version in ("after", "before")]
    assert shown == [*versions, ["clip", "packed"]]
