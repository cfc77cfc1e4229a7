"""Strategy builders, found by name or in a file of the user."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import Field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from cavs.distributed.cluster.resources import ResourceSpec
from cavs.distributed.planning.compute import Compute
from cavs.distributed.strategy import Strategy, Variable
from cavs.distributed.strategy.verify import verify
from cavs.distributed.sync.operation import Load
from cavs.errors import CavsError, ConfigError, raised_at


class Builder(ABC):
    """Makes a strategy for any model and cluster by a rule.

    A builder of your own is a subclass in a Python file, named ``FILE.py:CLASS`` or
    ``FILE.py:CLASS(option=value)`` wherever a builder is named. Its options are the arguments of
    its constructor.
    """

    measures: ClassVar[bool] = False  # True if it decides by measurements of the machines

    def informed(self, compute: Compute, load: Load) -> Builder:
        """Return the builder that knows the computation and load of a step."""
        return self

    @abstractmethod
    def build(self, variables: Sequence[Variable], resources: ResourceSpec) -> Strategy:
        """Return a strategy that has one node for each of `variables`, in order."""

    def __str__(self) -> str:
        known: Sequence[Field[Any]] = fields(self) if is_dataclass(self) else ()
        changed = [x.name for x in known if getattr(self, x.name) != x.default]
        options = ", ".join(f"{name}={getattr(self, name)!r}" for name in changed)
        return type(self).__name__ + (f"({options})" if options else "")


REGISTRY: dict[str, type[Builder]] = {}
B = TypeVar("B", bound=type[Builder])


def register(builder: B, name: str = "") -> B:
    """Class decorator: the builder is found by the name of its class, or another one."""
    name = name or builder.__name__
    if name in REGISTRY:
        raise ConfigError(f"there is already a builder {name}", hint="rename one")
    REGISTRY[name] = builder
    return builder


def find(text: str) -> Builder:
    """Return the builder that `text` names: ``PS``, ``AllReduce(chunk=64)``, ``my.py:Mine(x=1)``.

    Raises `ConfigError`.
    """
    where, _, call = text.rpartition(".py:")
    name, options = _call(call, text)
    cls = _from_file(Path(where + ".py"), name) if where else REGISTRY.get(name)
    if cls is None:
        raise ConfigError(
            f"no strategy builder is called {name!r}",
            hint=f"there are {', '.join(REGISTRY)}, or FILE.py:CLASS",
        )
    try:
        inspect.signature(cls).bind(**options)
    except TypeError as error:
        raise ConfigError(f"builder {text}: {error}", hint=_signature(cls)) from None
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise ConfigError(f"builder {text} has no method {missing}", hint=f"add it to {name}")
    with _own_line(f"builder {text}", cls.__module__, _signature(cls)):
        return cls(**options)


def _signature(cls: type[Builder]) -> str:
    return f"it is {cls.__name__}{str(inspect.signature(cls)).partition(' ->')[0]}"


def _call(call: str, text: str) -> tuple[str, dict[str, Any]]:
    """Return name and options of ``NAME`` or ``NAME(option=literal, ...)``."""
    try:
        tree = ast.parse(call.strip(), mode="eval").body
        if isinstance(tree, ast.Name):
            return tree.id, {}
        assert isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.args
        names = [keyword.arg for keyword in tree.keywords]
        assert None not in names and len(set(names)) == len(names)
        return tree.func.id, {str(k.arg): ast.literal_eval(k.value) for k in tree.keywords}
    except (SyntaxError, TypeError, ValueError, AssertionError, RecursionError, MemoryError):
        raise ConfigError(
            f"{text!r} names no strategy builder",
            hint="write NAME, NAME(option=value) or FILE.py:NAME",
        ) from None


def _from_file(path: Path, name: str) -> type[Builder]:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", hint="check the path")
    spec = importlib.util.spec_from_file_location(f"cavs_strategy_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with _own_line(f"{path} cannot be loaded", spec.name, "fix the file"):
        spec.loader.exec_module(module)
    cls = getattr(module, name, None)
    if not (isinstance(cls, type) and issubclass(cls, Builder)):
        raise ConfigError(
            f"{path} has no class {name} that is a Builder",
            hint="subclass cavs.distributed.planning.builders.Builder",
        )
    return cls


@contextmanager
def _own_line(what: str, module: str, hint: str) -> Iterator[None]:
    """Turn errors of the user's `module` into a `ConfigError` that names its line there."""
    try:
        yield
    except CavsError:
        raise
    except Exception as error:
        if module.partition(".")[0] == "cavs":
            raise  # an error of cavs, which the user cannot fix
        said, where = str(error), raised_at(error)
        if isinstance(error, SyntaxError) and error.filename:
            said, where = error.msg, f"{os.path.basename(error.filename)}:{error.lineno}"
        said = f"{what}: {type(error).__name__}: {said}"
        raise ConfigError(said, where=where, hint=hint) from error


def build(
    builder: Builder | str, variables: Sequence[Variable], resources: ResourceSpec
) -> Strategy:
    """Return the strategy of a builder, verified, with the builder's name in it."""
    chosen = find(builder) if isinstance(builder, str) else builder
    if not variables:
        raise ConfigError("the model has no trainable parameter", hint="there is nothing to share")
    with _own_line(f"builder {chosen}", type(chosen).__module__, "fix its method build"):
        strategy = chosen.build(variables, resources)
    if not isinstance(strategy, Strategy):
        what = f"builder {chosen} returned {type(strategy).__name__}"
        raise ConfigError(what, hint="return a Strategy")
    verify(strategy, variables, resources)
    if chosen.measures:  # it took a strategy of another builder, whose name stays
        return strategy
    return replace(strategy, builder=str(chosen))
