"""Objects made from a text: ``NAME``, ``NAME(option=value)`` or ``FILE.py:CLASS(option=value)``."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from cavs.errors import CavsError, ConfigError, raised_at

T = TypeVar("T")


@dataclass(frozen=True)
class NamedTypes(Generic[T]):
    """Classes derived from `base` that a text can name.

    noun, word: their name in errors, in full and in short. known: the built-in ones by name.
    module: where users find `base`, if not in the package of its module.
    """

    base: type[T]
    noun: str
    word: str
    known: dict[str, type[T]] = field(default_factory=dict)
    module: str = ""

    def find(self, text: str, **given: Any) -> T:
        """Return the object that `text` describes: ``A``, ``A(x=64)``, ``my.py:Mine(x=1)``.

        given: options that the text need not name.
        Raises `ConfigError`, with the line of the user's file where that fails.
        """
        where, _, call = text.rpartition(".py:")
        name, options = self._call(call, text)
        options = {**given, **options}
        cls = self._from_file(Path(where + ".py"), name) if where else self.known.get(name)
        if cls is None:
            raise ConfigError(
                f"no {self.noun} is called {name!r}",
                hint=f"there are {', '.join(self.known)}, or FILE.py:CLASS",
            )
        try:
            inspect.signature(cls).bind(**options)
        except TypeError as error:
            raise ConfigError(f"{self.word} {text}: {error}", hint=_signature(cls)) from None
        if missing := ", ".join(sorted(getattr(cls, "__abstractmethods__", ()))):
            what = f"{self.word} {text} has no method {missing}"
            raise ConfigError(what, hint=f"add it to {name}")
        with own_line(f"{self.word} {text}", cls.__module__, _signature(cls)):
            return cls(**options)

    def _call(self, call: str, text: str) -> tuple[str, dict[str, Any]]:
        """Return name and options of ``NAME`` or ``NAME(option=literal, ...)``."""
        try:
            match ast.parse(call.strip(), mode="eval").body:
                case ast.Name(id=name):
                    return name, {}
                case ast.Call(func=ast.Name(id=name), args=[], keywords=given):
                    options = {k.arg: ast.literal_eval(k.value) for k in given if k.arg}
                    if len(options) == len(given):
                        return name, options
        except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
            pass
        raise ConfigError(
            f"{text!r} names no {self.noun}",
            hint="write NAME, NAME(option=value) or FILE.py:NAME",
        )

    def _from_file(self, path: Path, name: str) -> type[T]:
        if not path.is_file():
            raise ConfigError(f"there is no file {path}", hint="check the path")
        module_name = f"cavs_{self.word}_{path.stem}"
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        with own_line(f"{path} cannot be loaded", spec.name, "fix the file"):
            spec.loader.exec_module(module)
        cls = getattr(module, name, None)
        if not (isinstance(cls, type) and issubclass(cls, self.base)):
            base = self.base
            package = self.module or base.__module__.rpartition(".")[0]
            raise ConfigError(
                f"{path} has no class {name} that is a {base.__name__}",
                hint=f"subclass {package}.{base.__name__}",
            )
        return cls


def _signature(cls: type) -> str:
    return f"it is {cls.__name__}{str(inspect.signature(cls)).partition(' ->')[0]}"


@contextmanager
def own_line(what: str, module: str, hint: str) -> Iterator[None]:
    """Turn errors of the user's `module` into a `ConfigError` that names its line there."""
    try:
        yield
    except Exception as error:
        # The user cannot fix an error of cavs.
        if isinstance(error, CavsError) or module.partition(".")[0] == "cavs":
            raise
        said, where = str(error), raised_at(error)
        if isinstance(error, SyntaxError) and error.filename:
            said, where = error.msg, f"{os.path.basename(error.filename)}:{error.lineno}"
        said = f"{what}: {type(error).__name__}: {said}"
        raise ConfigError(said, where=where, hint=hint) from error
