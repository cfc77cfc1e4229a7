"""Names that a package exports, imported when they are used for the first time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_first_use(package: dict[str, Any], sources: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package with these globals.

    A program that uses a part of the package thus starts without the others. sources: the module
    below the package that each name is imported from; "" for a name that is such a module.
    """
    path = package["__name__"]

    def attribute(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module {path!r} has no attribute {name!r}")
        source = sources[name]
        module = import_module(f"{path}.{source or name}")
        found = package[name] = getattr(module, name) if source else module
        return found

    return attribute
