"""Models of the command line: how they are found, and the interface of their modules.

A model is a module, in the `models` package or in a file of the user's own (which imports modules
of its folder as a Python program does), with

* a docstring: its first line is the summary shown by ``--help``;
* ``DEFAULTS``: values for options of ``cavs train``, such as ``{"epochs": 10}``, optional;
* ``add_arguments(parser)``: options of its own, each with a default, optional;
* ``build(args, assets=None) -> Task``: the model and its data. `args` holds its own options,
  ``args.data`` (a path or None) and ``args.seed``. `assets` is None in training; later it is the
  ``Task.assets`` of the training (vocabularies, class names), so that the same model is built.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from cavs.errors import ConfigError, DataError, line_of
from cavs.train import DataLoader, StreamLoader
from cavs.train.metrics import AnyMetric

SPLITS = ("train", "dev", "test")
PACKAGES = ("cavs.models", "models")  # installed; a checkout that is not
Graphs = Sequence[Any]


def data_file(folder: str, name: str, layout: str) -> Path:
    """Return the file `name` of a data set in `folder`; DataError with its layout if missing."""
    path = Path(folder, name)
    if not os.path.exists(path):
        hint = f"--data is the folder that holds {layout}"
        below = next(Path(folder).glob(f"*/{name}"), None) if Path(folder).is_dir() else None
        hint += f": pass --data {below.parent}" if below is not None else ""
        raise DataError(f"cannot read {path}: there is no such file", hint=hint)
    return path


def require_least(args: argparse.Namespace, **least: int) -> None:
    """Require options of at least these values, such as ``rounds=1``; an option may be None.

    ConfigError with the option and its value for the first one that is less.
    """
    for name, value in least.items():
        given = getattr(args, name)
        if given is not None and given < value:
            option = f"--{name.replace('_', '-')} {given}"
            raise ConfigError(option, hint=f"choose at least {value}")


def require_data(args: argparse.Namespace, assets: Mapping[str, Any] | None, model: str) -> None:
    """Require ``--data`` in training; DataError with the name of the model without it."""
    if args.data is None and assets is None:
        raise DataError(f"{model} has no data of its own", hint="pass --data DIR: see --help")


def listed(values: Any, name: str, needed: str) -> Sequence[Any]:
    """Return `values` as a sequence, a generator as a list; ConfigError if not iterable."""
    try:
        iterator = iter(values)
    except TypeError:
        iterator = None
    if iterator is None or isinstance(values, str | bytes):
        raise ConfigError(f"{name} is {values!r:.80}", hint=f"it is {needed}")
    counted = hasattr(values, "__len__") and hasattr(values, "__getitem__")
    found: Sequence[Any] = values if counted else list(iterator)
    return found


@dataclass
class Task:
    """A model with its data, as ``build`` returns it.

    A split is a sequence of graphs, a generator, or a function that returns one (called when it is
    needed); None if there is none. `train` may be a `cavs.train.StreamLoader`, whose source is read
    one graph after the other; batch size and seed are those of the command. `predict` turns the
    outputs of a batch into one line of text per graph; `read` turns text (a file passed to ``cavs
    predict``) into graphs. `assets` is JSON that every checkpoint stores. The command line sets
    `limit` and `data` from its options.
    """

    model: Any
    train: Graphs | StreamLoader | Callable[[], Graphs] | None = None
    dev: Graphs | Callable[[], Graphs] | None = None
    test: Graphs | Callable[[], Graphs] | None = None
    metrics: Sequence[AnyMetric] = ()
    monitor: str | None = None
    assets: Mapping[str, Any] = field(default_factory=dict)
    predict: Callable[[Mapping[str, Any], Any], Iterable[str]] | None = None
    read: Callable[[str], Graphs] | None = None
    limit: int | None = None
    data: str | None = None

    def graphs(self, split: str, most: int | None = None) -> Graphs | None:
        """Return the first `most` graphs of ``"train"``, ``"dev"`` or ``"test"``, or None.

        There are `limit` at most. DataError for all graphs of a stream.
        """
        most = min((n for n in (most, self.limit) if n is not None), default=None)
        value: Graphs | StreamLoader | Callable[[], Graphs] | None = getattr(self, split)
        if isinstance(value, StreamLoader):
            if most is None:
                raise DataError(
                    f"the {split} graphs of the task are a stream, which may have no end",
                    hint="pass --limit N: the first N of them",
                )
            return list(islice(value.items(0), most))
        if callable(value):
            value = value()
        if value is not None:
            value = listed(value, f"{split} of the task", "a sequence of graphs")
        setattr(self, split, value)
        return value if value is None or most is None else value[:most]

    def loader(self, batch_size: int, seed: int, bucket: str) -> DataLoader | StreamLoader:
        """Return the loader of the training graphs. bucket: "none", or as for `DataLoader`."""
        stream = self.train
        if not isinstance(stream, StreamLoader):
            how: Any = None if bucket == "none" else bucket
            graphs = self.required("train")
            return DataLoader(graphs, batch_size, shuffle=True, seed=seed, bucket=how)
        if bucket != "none":
            raise ConfigError(
                f"--bucket {bucket}, but the training graphs are a stream, of which none is known "
                "ahead",
                hint="leave --bucket out; StreamLoader(source, shuffle=n) has a buffer of n graphs",
            )
        return stream.copied(batch_size, seed, self.limit)

    def required(self, split: str, most: int | None = None) -> Graphs:
        """Return `graphs`; DataError if there are none."""
        graphs = self.graphs(split, most)
        if graphs is None or len(graphs) == 0:
            others = [name for name in SPLITS if name != split and getattr(self, name) is not None]
            hint = "pass --data DIR"
            if self.data is not None:
                hint = f"pass another --data: the model found none in {self.data}"
            if others and split != "train":
                hint += f", or one that is there: --split {' or '.join(others)}"
            raise DataError(f"there are no {split} graphs", hint=hint)
        return graphs


@dataclass(frozen=True)
class Entry:
    """A model of the command line: its name and its module."""

    name: str
    module: ModuleType

    @property
    def summary(self) -> str:
        """First line of the module's docstring."""
        lines = (self.module.__doc__ or "").strip().splitlines()
        return lines[0] if lines else ""

    @property
    def defaults(self) -> dict[str, Any]:
        """``DEFAULTS`` of the module; ConfigError unless it is a dict of options."""
        found = getattr(self.module, "DEFAULTS", {})
        if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
            raise ConfigError(
                f"DEFAULTS of {self.name} is {found!r:.80}",
                hint='it is a dict of options of cavs train, such as {"epochs": 10}',
            )
        return dict(found)

    def add_arguments(self, parser: argparse._ActionsContainer) -> None:
        """Add the model's own options; ConfigError for a required one.

        A checkpoint opens its model again without a command line, from the options it stores.
        """
        add, before = getattr(self.module, "add_arguments", None), len(parser._actions)
        if add is not None:
            add(parser)
        for action in parser._actions[before:]:
            if action.required:
                name = "/".join(action.option_strings) or action.dest
                raise ConfigError(
                    f"{self.name} adds {name}, which is required",
                    where=line_of(add),
                    hint=f"give it a default: parser.add_argument('--{action.dest}', default=...)",
                )

    def options(self) -> dict[str, Any]:
        """Return the model's own options and their defaults."""
        parser = argparse.ArgumentParser(add_help=False)
        self.add_arguments(parser)
        return vars(parser.parse_args([]))

    def build(self, args: argparse.Namespace, assets: Mapping[str, Any] | None = None) -> Task:
        """Build the task; ConfigError if the module returns something else."""
        build = self.module.build
        _check_takes(build, (args, assets), self.name)
        task = build(args, assets)
        if not isinstance(task, Task):
            raise ConfigError(
                f"build() of {self.name} returned {type(task).__name__}, not cavs.cli.Task",
                where=line_of(build),
                hint="return cavs.cli.Task(model, train=graphs)",
            )
        if not isinstance(task.assets, Mapping):
            raise ConfigError(
                f"assets of the task are {task.assets!r:.80}",
                where=line_of(build),
                hint='they are a dict of JSON values, such as {"words": vocabulary.to_json()}',
            )
        task.limit, task.data = getattr(args, "limit", None), getattr(args, "data", None)
        return task


def _check_takes(build: Callable[..., Any], values: tuple[Any, ...], name: str) -> None:
    try:
        found = inspect.signature(build)
    except (TypeError, ValueError):  # a function of C without a signature
        return
    try:
        found.bind(*values)
    except TypeError as error:
        raise ConfigError(
            f"build() of {name} takes {found}: {error}",
            where=line_of(build),
            hint="write def build(args, assets=None)",
        ) from None


def names() -> list[str]:
    """Return the names of the models that come with cavs."""
    for package in PACKAGES:
        found = _package(package)
        if found is not None:
            modules = pkgutil.iter_modules(found.__path__)
            return sorted(
                m.name.replace("_", "-") for m in modules if not m.ispkg and m.name[0] != "_"
            )
    return []


def summary(name: str) -> str:
    """Return the first line of the docstring of the model `name` without importing it."""
    package = next(p for p in PACKAGES if _package(p) is not None)
    spec = importlib.util.find_spec(f"{package}.{name.replace('-', '_')}")
    if spec is None or spec.origin is None:
        return ""
    try:
        text = ast.get_docstring(ast.parse(Path(spec.origin).read_bytes(), spec.origin))
    except (OSError, SyntaxError) as error:
        return f"cannot be read: {error}"
    return (text or "").partition("\n")[0]


def _package(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            return None
        raise


def find(name: str) -> Entry:
    """Return the model called `name`, or the one in the file `name` if that ends in ``.py``.

    Raises ConfigError if there is none, or if it has no ``build``.
    """
    if name.endswith(".py"):
        module = _from_file(Path(name))
    else:
        known = names()
        if name not in known:
            raise ConfigError(
                f"no model is called {name!r}; there are {', '.join(known) or 'none'}",
                hint="pass one of them, or the path of a .py file with a build() function",
            )
        package = next(p for p in PACKAGES if _package(p) is not None)
        module = importlib.import_module(f"{package}.{name.replace('-', '_')}")
    if not callable(getattr(module, "build", None)):
        raise ConfigError(
            f"{name} has no function build(args, assets)", hint="see cavs.cli.registry"
        )
    return Entry(name, module)


def _from_file(path: Path) -> ModuleType:
    name = f"cavs_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"there is no file {path}", hint="check the path")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.resolve().parent)  # as for `python my_model.py`, also when build() imports
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except (SyntaxError, ImportError) as error:
        del sys.modules[name]
        if isinstance(error, SyntaxError) and not Path(error.filename or "").is_file():
            raise  # the file itself parses text
        raise _unreadable(path, error) from error
    return module


def _unreadable(path: Path, error: SyntaxError | ImportError) -> ConfigError:
    """Return the error of a file of the user's own, or of one that it imports, with its line."""
    if isinstance(error, SyntaxError):
        where = f"{error.filename or path}:{error.lineno or 1}"
        return ConfigError(
            f"{path} is no Python: {error.msg}", where=where, hint="correct that line"
        )
    frames = traceback.extract_tb(error.__traceback__)
    files = [f for f in frames if not f.filename.startswith("<frozen ")]
    folder = path.resolve().parent  # the user's line, not that of a library
    own = [f for f in files if Path(f.filename).resolve().parent == folder] or files
    name = (error.name or "").partition(".")[0]
    hint = f"install {name} in this environment, or put its file next to {path.name}"
    if "attempted relative import" in str(error):
        hint = "write import x for from . import x: modules of its folder are found by their name"
    elif not isinstance(error, ModuleNotFoundError):
        hint = "correct that import: the module is there, the name in it is not"
    return ConfigError(
        f"{path} cannot be imported: {error}",
        where=f"{own[-1].filename}:{own[-1].lineno}",
        hint=hint,
    )
