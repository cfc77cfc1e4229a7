"""The exceptions of cavs.

A message says what was found, what was expected, the line of the user's own code and, where one is
known, the cure. An error that is given no line finds it by itself.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, NoReturn, Self, TypeVar

T = TypeVar("T")
_PACKAGE = os.path.dirname(os.path.abspath(__file__))
# Callers of the command line, such as a console script, are not the cause of an error.
_COMMAND_LINE = os.path.join(_PACKAGE, "cli", "command.py")
_MODELS = os.path.join(os.path.dirname(_PACKAGE), "models")  # outside of the package in a checkout
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__))  # the standard library


@lru_cache(maxsize=4096)
def _is_users(filename: str, module: str) -> bool:
    """True if code is the user's; code from a prompt has a name such as ``<stdin>``."""
    if filename.startswith("<"):  # constructors of dataclasses of cavs have such names too
        return not filename.startswith("<frozen ") and module.partition(".")[0] != "cavs"
    path = os.path.abspath(filename)
    if path.startswith(_LIBRARY + os.sep):
        return f"-packages{os.sep}" in path and not path.startswith(_PACKAGE + os.sep)
    return not path.startswith(_PACKAGE + os.sep)


def user_line(models: bool = True) -> str:
    """Return the innermost calling line outside the package, as ``file.py:12``, or "".

    There is none in a background thread, and in the command line. models: True if a line of the
    models that come with cavs counts as the user's, who may change them.
    """
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name == _COMMAND_LINE:
            return ""
        if _is_users(name, str(frame.f_globals.get("__name__", ""))) and (
            models or os.path.dirname(os.path.abspath(name)) != _MODELS
        ):
            return f"{os.path.basename(name)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def raised_at(error: BaseException) -> str:
    """Return the innermost line of the user that `error` passed through, as ``file.py:12``.

    Lines of libraries do not count; "" if there is none.
    """
    line = ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        if f"-packages{os.sep}" not in name and _is_users(
            name, str(frame.f_globals.get("__name__", ""))
        ):
            line = f"{os.path.basename(name)}:{number}"
    return line


def line_of(function: object) -> str:
    """Return where a function of the user is defined, as ``file.py:12``; "" for those of cavs."""
    code = getattr(function, "__code__", None)
    if code is None or not _is_users(code.co_filename, str(getattr(function, "__module__", ""))):
        return ""
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"


#: The hint of an error that no model should be able to cause.
FAULT = "this is a fault of cavs, not of the model: please report it with the lines of the model"


def _again(cls: type[CavsError], args: tuple[Any, ...], state: dict[str, Any]) -> CavsError:
    """Rebuild a copied or pickled error with its text and line."""
    error = cls.__new__(cls, *args)
    vars(error).update(state)
    return error


class CavsError(Exception):
    """Base of all errors of cavs.

    ``what`` says what was found and what was expected, ``where`` the user's line, ``hint`` the
    cure. Without ``where``, it is the user's line that led to the error, if there is one.
    """

    _has_line = True

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        if not where and self._has_line:
            where = user_line(models=False)
        self.what, self.where, self.hint = what, where, hint
        text = what
        if where:
            text += f"\n  from {where}"
        if hint:
            text += f"\n  hint: {hint}"
        super().__init__(text)

    def reworded(self, what: str) -> Self:
        """Return the same error with the text `what`; line, cure and other attributes stay."""
        copy = type(self)(what, where=self.where, hint=self.hint)
        vars(copy).update({k: v for k, v in vars(self).items() if k not in vars(copy)})
        return copy

    def __reduce__(self) -> tuple[Callable[..., CavsError], tuple[Any, ...]]:
        return _again, (type(self), self.args, vars(self))


class TraceError(CavsError):
    """A vertex function or model that cannot be traced: no scatter, an unread state, a bad call."""


class ShapeError(TraceError):
    """Operands whose shapes do not fit."""


class DTypeError(TraceError):
    """Operands whose dtypes do not fit."""


class NoAttributeError(TraceError, AttributeError):
    """An attribute that symbols of a trace lack, such as a method of tensors; names another."""


class FeatureError(CavsError):
    """A feature that is unknown, of the wrong length, dtype or range."""


class GraphError(CavsError, ValueError):
    """An input graph that is not a DAG or has dangling indices; names graph and vertex."""

    vertex: int = -1


class DataError(CavsError, ValueError):
    """Input text that cannot be read; names file, line and text."""


class CheckpointError(CavsError):
    """A checkpoint that is truncated, foreign, or does not fit the model."""


class NumericsError(CavsError):
    """A loss or value that is not finite; names step and graphs."""


class CompileError(CavsError):
    """The compiler cannot lower a model, or a pass broke a rule of the IR."""


class ConfigError(CavsError, ValueError):
    """An option with an invalid value."""


class DeviceError(CavsError):
    """A device that is missing, too old, or failed; says what to install."""


class DeviceWarning(DeviceError, RuntimeWarning):
    """A warning that a device lacks something, or has lost it; work continues.

    Where warnings are errors, it is raised as the `DeviceError` that it is.
    """

    _has_line = False  # Python shows the line of a warning


class CacheWarning(DeviceWarning):
    """A cache of compiled kernels that is damaged or cannot be written."""


class CommunicationError(CavsError):
    """A peer in data-parallel training that failed, hangs or is gone; names its rank."""


class PicklingError(CavsError, pickle.PicklingError, TypeError):
    """An object that cannot leave its process by pickling, nor be copied."""


class ProcessLocal:
    """Base of objects that hold threads, locks or device memory: they cannot leave their process.

    Pickling or copying one raises `PicklingError`.
    """

    _pickling_hint: ClassVar[str] = (
        "models, graphs and batches can be pickled and copied: build another one from them"
    )

    def __reduce__(self) -> NoReturn:
        raise PicklingError(
            f"a {type(self).__name__} cannot be pickled or copied: it holds threads, locks or "
            "device memory of its process",
            hint=self._pickling_hint,
        )


class MovedError(CavsError, ImportError):
    """A name that has moved; says where it is now."""


class MovedAttributeError(CavsError, AttributeError):
    """An attribute that has another name now."""


class _MovedAttribute:
    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        raise MovedAttributeError(f"{self.old} was renamed", hint=f"use {self.new}")

    def __set__(self, instance: object, value: object) -> NoReturn:
        self.__get__(instance)


def renamed(names: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """Return a class decorator: each of ``names``, renamed attributes, says its new name.

    A subclass that defines a former name raises MovedAttributeError: nothing would read it.
    """

    def decorate(owner: type[T]) -> type[T]:
        own = owner.__dict__.get("__init_subclass__")

        def refuse_former_names(cls: type[T], /, **options: Any) -> None:
            if own is None:
                super(owner, cls).__init_subclass__(**options)  # type: ignore[misc]
            else:
                own.__func__(cls, **options)
            for old, new in names.items():
                if old in vars(cls):
                    raise MovedAttributeError(
                        f"{cls.__name__} defines {old}, which {owner.__name__} calls {new} now",
                        hint=f"rename {cls.__name__}.{old} to {new}",
                    )

        for old, new in names.items():
            setattr(owner, old, _MovedAttribute(f"{owner.__name__}.{old}", new))
        owner.__init_subclass__ = classmethod(refuse_former_names)  # type: ignore[assignment]
        return owner

    return decorate


def moved(module: str, names: Mapping[str, str]) -> Callable[[str], NoReturn]:
    """Return a ``__getattr__`` for ``module`` whose ``names`` have moved, each with its new name.

    An ``AttributeError`` would lose the new name: ``from module import name`` replaces its text.
    """

    def attribute(name: str) -> NoReturn:
        if name in names:
            raise MovedError(f"{module}.{name} has moved", hint=f"use {names[name]}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return attribute
