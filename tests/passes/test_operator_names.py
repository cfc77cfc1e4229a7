"""Passes ask an operator for its traits: no collection of operator names in their sources."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import cavs
from cavs.ir import REGISTRY

PACKAGE = Path(cavs.__file__).parent
ROOMS = ("passes", "compiler", "frontend")
# The registry of instructions, some of which are named like the operator that they compute.
INSTRUCTIONS = PACKAGE / "compiler/instructions.py"


def collections_of_names(source):
    """The operator names of every collection in ``source`` that holds more than one."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            elements = node.elts
        elif isinstance(node, ast.Dict):
            elements = [x for x in node.keys if x is not None]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "of":
            elements = node.args
        else:
            continue
        names = [x.value for x in elements if isinstance(x, ast.Constant) and x.value in REGISTRY]
        if len(names) > 1:
            found.append(", ".join(names))
    return found


@pytest.mark.parametrize(
    "source",
    [
        "LINEAR = ('mul', 'neg')",
        "LINEAR = frozenset(['add', 'no operator', 'sub'])",
        "LINEAR = {'mul', 'neg'}",
        "DATA = {'matmul': 1, 'matmul_tn': 2}",
        "def f(n):\n    return n.op.name in ('sum_rows', 'sum_axis')",
        "@of('add', 'sub')\ndef rule(node): ...",
        "EXACT = (*COMPARISONS, 'neg', 'abs')",
    ],
)
def test_a_list_of_operator_names_is_found(source):
    assert collections_of_names(source)


@pytest.mark.parametrize(
    "source", ["n.op.name == 'matmul'", "PIECES = ('matmul', 'no operator')", "apply('neg', x)"]
)
def test_a_single_name_is_a_pattern(source):
    assert not collections_of_names(source)


@pytest.mark.parametrize("room", ROOMS)
def test_no_collection_of_operator_names(room):
    files = sorted((PACKAGE / room).rglob("*.py"))
    assert files
    found = {
        f"{path.relative_to(PACKAGE)}: {names}"
        for path in files
        if path != INSTRUCTIONS
        for names in collections_of_names(path.read_text(encoding="utf-8"))
    }
    assert found == set()
