"""Test that code in the documents runs and prints the text below it, and that links work."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from cavs import ops
from cavs.errors import CavsError, DeviceWarning
from cavs.ir import REGISTRY

ROOT = Path(__file__).resolve().parents[1]
# A block of code, and the block of text directly after it, if there is one.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
# Documents whose code continues that of another.
CONTINUED = {
    f"docs/passes/{page}.md": "docs/passes/README.md" for page in ("forward", "backward", "memory")
}
DOCUMENTS = [
    "README.md",
    "docs/tutorial.md",
    "docs/data.md",
    "docs/distributed.md",
    "docs/distributed/balance.md",
    "docs/distributed/communicators.md",
    "docs/distributed/elastic.md",
    "docs/distributed/stale.md",
    "docs/policies.md",
    "docs/scheduling.md",
    "docs/states.md",
    "docs/strategies.md",
    "docs/types.md",
    "docs/structures.md",
    "docs/passes/README.md",
    *CONTINUED,
    "docs/operators.md",
]


def blocks(document: str) -> list[tuple[str, str]]:
    """Return code and expected text (empty if none follows) of a document, in order."""
    return BLOCK.findall((ROOT / document).read_text(encoding="utf-8"))


def matches(shown: str, expected: str) -> bool:
    """Return True if the document shows this output.

    ``...`` in the document stands for any text, also for many lines. Numbers of values of the IR
    (``%12``) are not compared: they change with every change of a pass.
    """
    shown, expected = (re.sub(r"%\d+", "%", text.strip()) for text in (shown, expected))
    parts = re.split(r"(\.\.\.)", expected)
    pattern = "".join(".*" if part == "..." else re.escape(part) for part in parts)
    return re.fullmatch(pattern, shown, re.DOTALL) is not None


@pytest.fixture
def registry():
    """Unregister operators that a document defines."""
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


def test_the_commands_of_the_tutorial_run(tmp_path):
    text = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    (code,) = (code for code, _ in blocks("docs/tutorial.md") if "MODEL_FILE = " in code)
    (commands,) = re.findall(r"^```\n(cavs train sum_model\.py .*?)^```", text, re.M | re.S)
    exec(code.replace('"sum_model.py"', f'"{tmp_path}/sum_model.py"'), {})
    programs = Path(sys.executable).parent
    words = commands.replace("--epochs 6", "--epochs 2").replace("--epochs 8", "--epochs 3")
    words = words.replace("cavs bench sum_model.py", "cavs bench sum_model.py --seconds 0.5")
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", words],
        cwd=tmp_path,
        env={**os.environ, "PATH": os.pathsep.join([str(programs), os.environ["PATH"]])},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(commands.splitlines()) == 10 and (tmp_path / "model.dot").exists()
    assert (tmp_path / "runs/sum_model/report.html").exists()
    assert "</html>" in (tmp_path / "explained.html").read_text(encoding="utf-8")
    for shown in ("best epoch", "accuracy", "== trace", "vertices/s", "of the optimiser"):
        assert shown in done.stdout, shown


def test_the_tutorial_lists_every_operator():
    text = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| (?:of |losses).*\| `(.*)` \|$", text, re.MULTILINE)
    assert sorted(" ".join(tables).split()) == sorted(ops.__all__)


@pytest.mark.slow
@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("document", DOCUMENTS)
def test_code_of_a_document_runs(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "document"}
    monkeypatch.setitem(sys.modules, "document", types.ModuleType("document"))  # for dataclasses
    found = blocks(document)
    assert found
    if document in CONTINUED:
        found = blocks(CONTINUED[document]) + found
    for code, expected in found:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(io.StringIO()):
            exec(compile(code, "example.py", "exec"), names)
        if expected:
            assert matches(shown.getvalue(), expected), (code, shown.getvalue())


def test_errors_are_as_documented(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "document"}
    raised = set()
    for code, expected in blocks("docs/errors.md"):
        if not expected:
            exec(compile(code, "shared.py", "exec"), names)
            continue
        with pytest.raises(CavsError) as caught:
            exec(compile(code, "example.py", "exec"), names)
        assert matches(f"{type(caught.value).__name__}: {caught.value}", expected), code
        raised.add(type(caught.value))

    def classes(base):
        return {base}.union(*(classes(c) for c in base.__subclasses__()))

    missing = {c for c in classes(CavsError) if c.__module__ == "cavs.errors"} - raised
    # Only a GPU raises a DeviceWarning; tests/cuda covers it, the document its subclass.
    assert missing <= {CavsError, DeviceWarning}


PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
FILE = re.compile(r"`((?:benchmarks|cavs|csrc|cuda|docs|models|tests)/[\w./*-]+)`")
# Written by a benchmark, by the wheel, and by a reader of docs/operators.md.
ABSENT = {
    *("benchmarks/results/latest", "cavs/models"),
    *("csrc/exec/instructions/concat.cc", "cuda/executor/instructions/concat.cc"),
}


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(page: Path, root: Path) -> list[str]:
    """Return the links to files and headings, and the names of files, that lead to nothing."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    found = [name for name in FILE.findall(text) if name not in ABSENT and not [*root.glob(name)]]
    for target, anchor in LINK.findall(text):
        file = page.parent / target if target else page
        if "://" in target or (file.exists() and (not anchor or anchor in anchors(file))):
            continue
        found.append(f"{target}#{anchor}" if anchor else target)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_links_and_files_of_a_page_exist(page):
    assert dead_links(ROOT / page, ROOT) == []


def test_a_dead_link_is_noticed(tmp_path):
    (tmp_path / "cavs").mkdir()
    (tmp_path / "a.md").write_text("# A b, `c`\n")
    page = tmp_path / "b.md"
    page.write_text(
        "[a](a.md#a-b-c) [b](#b) `cavs/` `cavs/d*`\n\n## B\n\n[c](https://d.e#f) [d](c.md)"
    )
    assert dead_links(page, tmp_path) == ["cavs/d*", "c.md"]


def test_wrong_output_is_noticed():
    assert matches("a 1\nb\n", "a ...\nb\n")
    assert not matches("a 1\nc\n", "a ...\nb\n")
