"""Functions of the Python standard library as syntax trees: data that needs no download.

The task is to name a function. A sample is the tree of one function. Its name is hidden, at its
root and wherever it refers to itself, and the label of the graph is the first word of the name:
``get``, ``is``, ``visit``, ...
"""

from __future__ import annotations

import ast
import functools
import os
import re
import sysconfig
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cavs.config import collection_paused, is_whole, require, require_count
from cavs.data.graph import Graph
from cavs.data.readers.python_ast import ast_postorder, parse_source
from cavs.data.source import as_items, as_path
from cavs.data.vocabulary import Vocabulary, check_names, check_vocabulary
from cavs.errors import DataError

_SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
#: Fields that hold the identifier of a node; a class has one of them at most.
_NAMES = ("id", "attr", "arg", "name", "module", "rest")
SELF = "<self>"
_FUNCTIONS = "functions of read_functions", "read_functions(folder) returns them"


@dataclass(frozen=True, slots=True)
class Function:
    """The syntax tree of a function: children before parents, the root last.

    ``module``: dotted name of its module; ``name``: its own name, which ``values`` does not show;
    ``line``: its first line; ``types``: class of every node; ``values``: identifier or type of
    literal, None where a node has neither; ``children``: child indices of every node.
    """

    module: str
    name: str
    line: int
    types: list[str]
    values: list[str | None]
    children: list[list[int]]

    @property
    def words(self) -> list[str]:
        """The words of the name in lower case: ``getURL_now`` has get, url, now."""
        return words_of(self.name)


def words_of(identifier: str) -> list[str]:
    """Return the lower-case words of a snake_case or camelCase identifier."""
    return [word.lower() for word in _WORD.findall(identifier)]


@functools.cache
def _name_field(fields: tuple[str, ...]) -> str | None:
    return next((field for field in _NAMES if field in fields), None)


def _value(node: ast.AST, hidden: str) -> str | None:
    """Return the identifier or type of literal of a node; ``<self>`` for the hidden name."""
    if isinstance(node, ast.Constant):
        literal = node.value
        if literal is None or literal is Ellipsis or isinstance(literal, bool):
            return str(literal)
        if isinstance(literal, int) and literal in (0, 1):
            return str(literal)
        return f"<{type(literal).__name__}>"
    field = _name_field(node._fields)
    value = getattr(node, field, None) if field else None
    return SELF if value == hidden else value


def _functions(tree: ast.Module) -> Iterator[_FUNCTION]:
    """Yield every def of a file, nested ones too; only statements can hold one."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, _FUNCTION):
            yield node
        inner: list[ast.AST] = []
        for field in ("body", "handlers", "cases", "orelse", "finalbody"):
            value = getattr(node, field, None)
            if isinstance(value, list):
                inner += value
        stack += inner[::-1]


def functions_of(source: bytes | str, module: str, sizes: tuple[int, int]) -> Iterator[Function]:
    """Yield the functions of one file with ``sizes[0]..sizes[1]`` vertices, from top to bottom.

    Raises SyntaxError, ValueError or RecursionError where ``ast.parse`` does.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old escapes in other people's strings
        tree = parse_source(source)
    for root in _functions(tree):
        found = ast_postorder(root, limit=sizes[1])
        if found is None or len(found[0]) < sizes[0] or not words_of(root.name):
            continue
        nodes, children = found
        yield Function(
            module,
            root.name,
            root.lineno,
            [type(node).__name__ for node in nodes],
            [_value(node, root.name) for node in nodes],
            children,
        )


def _modules(root: Path) -> list[tuple[str, Path]]:
    """Return dotted names and paths of all sources, in a fixed order that mixes packages."""
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED]
        for file in files:
            if file.endswith(".py"):
                path = Path(folder, file)
                found.append((".".join(path.relative_to(root).with_suffix("").parts), path))
    found.sort(key=lambda entry: (zlib.crc32(entry[0].encode()), entry[0]))
    return found


@collection_paused()
def read_functions(
    root: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    sizes: tuple[int, int] = (5, 200),
) -> list[Function]:
    """Read the functions of the ``.py`` files below ``root``, by default the standard library.

    The order is fixed. Tests and installed packages are left out, and so are exact repetitions,
    which would leak from training into testing. Files that this Python cannot parse are logged and
    left out. ``limit``: the largest number of functions. ``sizes``: the least and the largest
    number of vertices. DataError if there is no function.
    """
    pair = isinstance(sizes, Sequence) and len(sizes) == 2 and all(map(is_whole, sizes))
    require(pair, "sizes", sizes, "two whole numbers (least, most)")
    if limit is not None:
        require_count("limit", limit)
    folder = as_path(sysconfig.get_paths()["stdlib"] if root is None else root)
    if not folder.is_dir():
        raise DataError(
            f"{folder}: no such folder; expected one with Python sources",
            hint="check the path; the default is Python's own library",
        )
    functions: list[Function] = []
    seen: set[tuple[object, ...]] = set()
    for module, path in _modules(folder):
        try:
            if not path.is_file():  # a named pipe may never have a writer
                raise FileNotFoundError("it is no regular file")
            found = list(functions_of(path.read_bytes(), module, sizes))
        except (SyntaxError, ValueError, RecursionError, MemoryError, OSError) as error:
            import logging  # slow to import, and rarely needed

            logging.getLogger("cavs.data").warning("%s left out: %s", path, error)
            continue
        for function in found:
            content = (
                function.name,
                tuple(function.types),
                tuple(function.values),
                tuple(map(tuple, function.children)),
            )
            if content in seen:
                continue
            seen.add(content)
            functions.append(function)
            if len(functions) == limit:
                return functions
    if not functions:
        raise DataError(
            f"{folder}: no function of {sizes[0]}..{sizes[1]} vertices in its .py files",
            hint="pass another folder, or other sizes=(least, most)",
        )
    return functions


def split_of(module: str) -> str:
    """Return ``train`` (80 %), ``dev`` or ``test`` (10 % each), by a hash of the module's name."""
    return {0: "dev", 1: "test"}.get(zlib.crc32(f"split {module}".encode()) % 10, "train")


@dataclass(frozen=True, slots=True)
class FunctionData:
    """The graphs of each split, the vocabularies of their features, and the classes of labels."""

    train: list[Graph]
    dev: list[Graph]
    test: list[Graph]
    types: Vocabulary
    names: Vocabulary
    classes: tuple[str, ...]


def function_classes(functions: Iterable[Function], num_classes: int) -> tuple[str, ...]:
    """Return the most frequent first words, frequent ones first; ties in alphabetical order."""
    require_count("num_classes", num_classes)
    functions = as_items(functions, Function, *_FUNCTIONS)
    counts = Counter(function.words[0] for function in functions)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return tuple(ranked[:num_classes])


def _name_token(value: str, names: Vocabulary) -> int:
    """Return the index of an identifier; of its last word, the most telling, if it is rare."""
    if value in names:
        return names[value]
    words = words_of(value)
    return names[words[-1]] if words else 0


def function_graphs(
    functions: Iterable[Function],
    types: Vocabulary,
    names: Vocabulary,
    classes: tuple[str, ...],
    keep_other: bool = False,
) -> list[Graph]:
    """Return graphs with int features ``type`` and ``name`` (-1 absent) of their vertices.

    The int feature ``label`` of a graph is its class. Functions whose first word is not in
    ``classes`` are left out; with ``keep_other`` their label is -1.
    """
    functions = as_items(functions, Function, *_FUNCTIONS)
    check_vocabulary("types", types)
    check_vocabulary("names", names)
    check_names("classes", classes)
    class_of = {word: i for i, word in enumerate(classes)}
    graphs = []
    for function in functions:
        label = class_of.get(function.words[0], -1)
        if label < 0 and not keep_other:
            continue
        tokens = [-1 if v is None else _name_token(v, names) for v in function.values]
        graphs.append(
            Graph(
                function.children,
                {"type": types.encode(function.types), "name": np.array(tokens, np.int32)},
                graph_features={"label": label},
                name=f"{function.module}:{function.line}",
            )
        )
    return graphs


def function_vocabularies(
    train: Sequence[Function], num_classes: int, min_count: int
) -> tuple[Vocabulary, Vocabulary, tuple[str, ...]]:
    """Return the types, the identifiers seen ``min_count`` times or more and the classes."""
    values = [v for function in train for v in function.values if v is not None]
    words = (word for v in values if not v.startswith("<") for word in words_of(v)[-1:])
    return (
        Vocabulary.build(t for function in train for t in function.types),
        Vocabulary.build([*values, *words], min_count),
        function_classes(train, num_classes),
    )


@collection_paused()
def load_functions(
    root: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    num_classes: int = 20,
    min_count: int = 3,
) -> FunctionData:
    """Read the naming data set, split by module and indexed by the training split.

    ``root`` and ``limit``: see `read_functions`. ``num_classes``: number of classes, the most
    frequent first words. ``min_count``: the least number of times that an identifier with an index
    of its own occurs. DataError if a split stays empty.
    """
    splits: dict[str, list[Function]] = {"train": [], "dev": [], "test": []}
    for function in read_functions(root, limit):
        splits[split_of(function.module)].append(function)
    train = splits["train"]
    types, names, classes = function_vocabularies(train, num_classes, min_count)
    graphs = {name: function_graphs(part, types, names, classes) for name, part in splits.items()}
    for name, part in graphs.items():
        if not part:
            raise DataError(
                f"no function for the {name} split: {len(train)} functions to train on; "
                "expected more modules, or a larger limit",
                hint="modules are assigned to splits by their names: give more of them",
            )
    return FunctionData(graphs["train"], graphs["dev"], graphs["test"], types, names, classes)
