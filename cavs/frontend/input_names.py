"""Names of inputs that the code of a cell reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import unwrap
from types import CodeType
from typing import Any

from cavs.errors import FeatureError, user_line


def _constants(code: CodeType) -> tuple[set[str], set[str]]:
    """Return the texts and the names of attributes and globals in code, nested code included."""
    texts: set[str] = set()
    names = set(code.co_names)
    left: list[object] = list(code.co_consts)
    while left:
        item = left.pop()
        if isinstance(item, str):
            texts.add(item)
        elif isinstance(item, CodeType):
            names.update(item.co_names)
            left += item.co_consts
        elif isinstance(item, tuple | frozenset):
            left += item
    return texts, names


def _callable_texts(cell: object, base: type, functions: Iterable[Any]) -> set[str]:
    """Return the texts in code that ``functions`` and ``__init__`` of a cell may call.

    Among them are names of inputs that only some variants of the cell read. An overridden method
    counts where ``super()``, or the base class by its name, is called; where ``getattr`` is called,
    every method counts.
    """
    classes = [c for c in type(cell).__mro__ if c not in base.__mro__]

    def versions(name: str) -> list[Any]:
        return [x for x in (vars(c).get(name) for c in (cell, *classes)) if x is not None]

    found: set[str] = set()
    seen: set[CodeType] = set()
    left = [*functions, *versions("__init__")[:1]]
    while left:
        attribute = left.pop()
        function = unwrap(getattr(attribute, "fget", None) or attribute)
        code = getattr(function, "__code__", None)
        if code is None or code in seen:
            continue
        seen.add(code)
        texts, names = _constants(code)
        found |= texts
        bases = "super" in names or any(function.__globals__.get(n) in classes for n in names)
        for name in names:
            left += versions(name)[: None if bases else 1]
        if "getattr" in names:
            left += [x for c in (cell, *classes) for x in vars(c).values() if callable(x)]
    return found


def check_inputs(
    cell: object,
    base: type,
    functions: Mapping[str, Any],
    given: Iterable[str],
    read: Iterable[str],
) -> None:
    """FeatureError for an input that ``cell`` does not know, as a mistyped name has no effect.

    base: the class of all cells, whose own code reads no input. functions: the vertex functions
    that may read the input, by name.
    """
    unread = [name for name in given if name not in read]
    unknown = [
        name for name in unread if name not in _callable_texts(cell, base, functions.values())
    ]
    if unknown:
        name = type(cell).__name__
        raise FeatureError(
            f"{name} is called with {', '.join(unknown)}, which {' or '.join(functions)} never "
            f"reads; it reads {', '.join(read) or 'no input'}",
            where=user_line(),
            hint=f"correct the name, leave it out, or read it: v.pull({unknown[0]!r}) of a vertex, "
            f"v.edge({unknown[0]!r}) of its edges",
        )
