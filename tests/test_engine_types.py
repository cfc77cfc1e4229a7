"""Test that the stub of the engine agrees with the built module: names, parameters, setters."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import cavs
from cavs import _engine

STUB = Path(cavs.__file__).with_name("_engine.pyi")
Parameters = list[tuple[str, str]]  # name and default, as text; "" where there is none


def parameters(arguments: ast.arguments) -> Parameters:
    """Return the parameters of a function that takes them by position."""
    names = [a.arg for a in arguments.posonlyargs + arguments.args]
    given = [ast.unparse(d) for d in arguments.defaults]
    return list(zip(names, [""] * (len(names) - len(given)) + given, strict=True))


def described(members: list[ast.stmt]) -> dict[str, Any]:
    """Return the declarations of a stub by name: parameters, "property", "variable" or members."""
    found: dict[str, Any] = {}
    for m in members:
        if isinstance(m, ast.ClassDef):
            found[m.name] = described(m.body)
        elif isinstance(m, ast.FunctionDef):
            found[m.name] = "property" if m.decorator_list else parameters(m.args)
        elif isinstance(m, ast.AnnAssign) and isinstance(m.target, ast.Name):
            found[m.target.id] = "variable"
    return found


def signature(function: Any) -> Parameters:
    """Return the parameters in the first line of the docstring that pybind11 writes."""
    line = function.__doc__.strip().partition("\n")[0]
    text = re.sub(r"^\w+", "def f", line)
    (parsed,) = ast.parse(f"{text}: ...").body
    assert isinstance(parsed, ast.FunctionDef)
    return parameters(parsed.args)


def built(owner: Any) -> dict[str, Any]:
    """Return the same for the module or one of its classes."""
    found: dict[str, Any] = {}
    for name, value in vars(owner).items():
        kept = ("__init__", "__getstate__", "__setstate__")
        if name.startswith("_") and (name not in kept or owner is _engine):
            continue
        if isinstance(value, type):
            found[name] = built(value)
        elif isinstance(value, property):
            found[name] = "property" if value.fset is None else "variable"
        elif isinstance(value, ModuleType) or not callable(value):
            found[name] = "variable"
        elif not (value.__doc__ or "").startswith("Initialize self"):  # created by the engine only
            found[name] = signature(value)
    return found


def test_stub_agrees_with_the_module() -> None:
    stub = described(ast.parse(STUB.read_text()).body)
    found = built(_engine)
    assert sorted(stub) == sorted(found)
    for name, members in stub.items():
        if not isinstance(members, dict):
            assert members == found[name], name
            continue
        assert sorted(members) == sorted(found[name]), name
        for member, value in members.items():
            assert bare(value) == bare(found[name][member]), f"{name}.{member}"


def bare(value: Any) -> Any:
    """Name the parameter of __setstate__, which pybind11 cannot."""
    if isinstance(value, list):
        return [("state" if name == "arg0" else name, default) for name, default in value]
    return value


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("f(self: a.B, x: int | None = None, /) -> int", [("self", ""), ("x", "None")]),
        ("f() -> list[str]", []),
    ],
)
def test_signatures_are_read(line: str, expected: Parameters) -> None:
    def f() -> None: ...

    f.__doc__ = line + "\n\nMore."
    assert signature(f) == expected
