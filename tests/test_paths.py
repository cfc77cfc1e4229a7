"""Test that functions named by docs/architecture/paths.md exist and run in the page's order."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import cavs
from cavs import nn, ops
from cavs.distributed import Trainer
from cavs.distributed.comm.threads import ThreadCommunicator, run_threads
from tests.tracked import ROOT

PAGE = ROOT / "docs/architecture/paths.md"
FUNCTION = re.compile(r"`((?:cavs|csrc)/[\w/]+\.\w+):([\w.:]+)`")
MAX_ROWS = 24
MAX_FILES = 16, 12  # one number for each table
PACKAGE = Path(cavs.__file__).parent


def tables() -> list[list[str]]:
    """Return the numbered rows of the two tables of the page."""
    sections = PAGE.read_text(encoding="utf-8").split("\n## ")[1:3]
    return [re.findall(r"^\| \d+ \|.*$", section, re.MULTILINE) for section in sections]


def python_functions(tree: ast.AST, prefix: str = "") -> set[str]:
    """Return the dotted names of the functions and methods of a module."""
    found = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            found.add(prefix + node.name)
        elif isinstance(node, ast.ClassDef):
            found |= python_functions(node, f"{prefix}{node.name}.")
    return found


def is_defined(text: str, suffix: str, name: str) -> bool:
    """True if a source file defines the function `name`; in C++, outside of a class."""
    if suffix == ".py":
        return name in python_functions(ast.parse(text))
    qualified = re.escape(name).replace("::", r"(?:<\w+>)?::")
    return (
        re.search(rf"^(?:\w[^\n;=]*[\s*&])?{qualified}\([^;{{]*\{{", text, re.MULTILINE) is not None
    )


@cache
def source(path: str) -> str:
    """Return the text of a file; empty if there is none."""
    file = ROOT / path
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def test_every_function_of_the_page_exists() -> None:
    missing = [
        f"{path}:{name} in {line}"
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        for path, name in FUNCTION.findall(line)
        if not is_defined(source(path), Path(path).suffix, name)
    ]
    assert missing == []


@pytest.mark.parametrize("number", [0, 1])
def test_each_row_of_a_table_names_one_function(number: int) -> None:
    rows = tables()[number]
    assert [row for row in rows if not FUNCTION.fullmatch(row.split(" | ")[1])] == []
    assert 0 < len(rows) <= MAX_ROWS
    assert [int(row.split(" ")[1]) for row in rows] == list(range(1, len(rows) + 1))


@pytest.mark.parametrize("number", [0, 1])
def test_a_reader_of_a_table_opens_few_files(number: int) -> None:
    files = {FUNCTION.findall(row)[0][0] for row in tables()[number]}
    assert len(files) <= MAX_FILES[number]


@pytest.mark.parametrize(
    ("suffix", "text", "name"),
    [
        (".py", "class A:\n    def f(self): ...\n", "A.g"),
        (".py", "def f():\n    def g(): ...\n", "g"),
        (".cc", "template <class T>\nint A<T>::f(int x) {\n  if (g(x)) {\n", "A::g"),
        (".cc", "int f(int x);\nint g(int x) {\n", "f"),
        (".cc", "const int x = g(1);\nvoid f() {\n  g(x);\n  return g(x);\n}\n", "g"),
    ],
)
def test_a_missing_function_is_noticed(suffix: str, text: str, name: str) -> None:
    assert not is_defined(text, suffix, name)
    other = {"A.g": "A.f", "g": "f", "A::g": "A::f", "f": "g"}[name]
    assert is_defined(text, suffix, other)


class Chain(cavs.Model):
    """The model of the page."""

    def __init__(self) -> None:
        self.embedding = nn.Embedding(10, 4)
        self.cell = nn.ChildSumTreeLSTM(4, 4)
        self.output = nn.Linear(4, 2)

    def loss(self, batch: Any) -> Any:
        h = self.cell(batch.graph, x=self.embedding(batch["token"]))
        return ops.cross_entropy(self.output(h), batch["label"])


def make_batch() -> cavs.GraphBatch:
    """Return chains of 3 and 5 vertices."""
    features = ({"token": range(n), "label": [0] * n} for n in (3, 5))
    return cavs.batch([cavs.Graph.chain(len(f["label"]), features=f) for f in features])


def functions_called(work: Callable[[], object]) -> list[str]:
    """Return the functions of the package that `work` calls on this thread, as the page does.

    Each is listed once, in the order of first calls.
    """
    codes: dict[int, Any] = {}  # a hash of code takes longer than that of its address

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call":
            codes.setdefault(id(frame.f_code), frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    root = f"{PACKAGE.parent}/"
    own = [c for c in codes.values() if c.co_filename.startswith(f"{PACKAGE}/")]
    return [f"{c.co_filename.removeprefix(root)}:{c.co_qualname}" for c in own]


def in_order(rows: list[str], called: list[str]) -> list[str]:
    """Return the rows whose Python function is not called after those above it."""
    wrong, last = [], -1
    for row in rows:
        path, name = FUNCTION.findall(row)[0]
        if not path.endswith(".py"):
            continue
        function = f"{path}:{name}"
        at = called.index(function) if function in called else -1
        if at < last or at < 0:
            wrong.append(row)
        last = max(last, at)
    return wrong


def test_a_step_calls_the_functions_of_the_first_table_in_order() -> None:
    trainer = cavs.Trainer(Chain(), cavs.optim.SGD(lr=0.1))
    assert in_order(tables()[0], functions_called(lambda: trainer.step(make_batch()))) == []


def test_a_step_on_two_ranks_calls_the_functions_of_the_second_table_in_order() -> None:
    def work(communicator: ThreadCommunicator) -> list[str]:
        communicator.overlaps = False  # exchanges then run on this thread
        trainer = Trainer(Chain(), cavs.optim.SGD(lr=0.1), communicator=communicator)
        return functions_called(lambda: trainer.step(make_batch()))

    for called in run_threads(2, work):
        assert in_order(tables()[1], called) == []
