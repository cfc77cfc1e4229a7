"""Test that public methods are documented, by themselves or by a base; ruff checks the rest."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tracked import ROOT, tracked_files


def public_names(body: list[ast.stmt]) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    """Return the public classes and functions that some statements define."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node
        elif isinstance(node, ast.If | ast.Try):
            yield from public_names(node.body)


def undocumented(source: str, module: str) -> list[str]:
    """Return the public methods of a module without a docstring, own or inherited."""
    found = []
    for node in public_names(ast.parse(source).body):
        if not isinstance(node, ast.ClassDef):
            continue
        missing = [m.name for m in public_names(node.body) if not ast.get_docstring(m)]
        if missing:
            owner = getattr(importlib.import_module(module), node.name)
            found += [
                f"{module}.{node.name}.{name}"
                for name in missing
                if not inspect.getdoc(getattr(owner, name))
            ]
    return found


def test_public_methods_have_a_docstring_of_their_own_or_of_a_base() -> None:
    found = []
    for path in tracked_files():
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[0] == "cavs" and path.suffix == ".py":
            module = ".".join(parts).removesuffix(".__init__")
            found += undocumented(path.read_text(), module)
    assert found == []


def test_a_method_without_a_docstring_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "class Base:\n    def run(self):\n        '''Run.'''\n\n"
        "class Child(Base):\n    def run(self):\n        pass\n\n"
        "    def stop(self):\n        pass\n"
    )
    (tmp_path / "with_a_gap.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert undocumented(source, "with_a_gap") == ["with_a_gap.Child.stop"]
