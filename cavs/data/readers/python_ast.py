"""Syntax trees of Python code."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from cavs.data.features import NO_FEATURES
from cavs.data.graph import Graph
from cavs.data.source import BYTE_ORDER_MARK
from cavs.data.structure import graph_error


def _subclasses(base: type[ast.AST]) -> list[type[ast.AST]]:
    """Return all classes below ``base`` but the deprecated ones below Constant."""
    found, stack = [], [base]
    while stack:
        cls = stack.pop()
        if cls is not ast.Constant:
            stack += cls.__subclasses__()
        if cls.__module__ in ("ast", "_ast"):
            found.append(cls)
    return found


#: Names of the classes of ``ast``, sorted; the feature ``type`` of ``from_ast`` is an index here.
AST_TYPES: tuple[str, ...] = tuple(sorted({cls.__name__ for cls in _subclasses(ast.AST)}))
_TYPE_INDEX = {name: i for i, name in enumerate(AST_TYPES)}


def parse_source(source: str | bytes) -> ast.Module:
    """``ast.parse``, which takes a byte-order mark in bytes alone."""
    return ast.parse(source.removeprefix(BYTE_ORDER_MARK) if isinstance(source, str) else source)


def ast_children(node: ast.AST) -> list[ast.AST]:
    """Return the child nodes in the order of the fields, without Load and Store."""
    children: list[ast.AST] = []
    for field in node._fields:
        value = getattr(node, field, None)
        if type(value) is list:
            children += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
            children.append(value)
    return children


def ast_postorder(
    root: ast.AST, limit: int | None = None
) -> tuple[list[ast.AST], list[list[int]]] | None:
    """Return nodes, children before parents, and the child indices of each; None beyond ``limit``.

    There is no recursion: generated code nests deeper than Python's stack.
    """
    stack: list[tuple[ast.AST, int]] = [(root, -1)]  # node, index of its parent in `visited`
    visited: list[ast.AST] = []
    parents: list[int] = []
    while stack:
        node, parent = stack.pop()
        index = len(visited)
        visited.append(node)
        parents.append(parent)
        stack += [(child, index) for child in ast_children(node)]
        if limit is not None and len(visited) + len(stack) > limit:
            return None
    # The root is visited first and last children before first ones: reversed, it is the order.
    last = len(visited) - 1
    children: list[list[int]] = [[] for _ in visited]
    for index in range(last, 0, -1):
        children[last - parents[index]].append(last - index)
    return visited[::-1], children


def from_ast(
    source: ast.AST | str | bytes,
    *,
    graph_features: Mapping[str, ArrayLike] = NO_FEATURES,
    name: str = "",
) -> Graph:
    """Return the syntax tree of Python code, children first, with an int feature ``type``.

    ``type`` is an index into ``AST_TYPES``, which depends on the version of Python.
    ``graph_features`` are those of ``Graph``. GraphError if a string is no Python, or nests deeper
    than Python's own parser can follow.
    """
    if isinstance(source, str | bytes):
        try:
            source = parse_source(source)
        except (SyntaxError, ValueError) as error:
            raise graph_error(
                name,
                f"the source is not Python: {error}",
                hint="give code that this version of Python can parse",
            ) from None
        except (RecursionError, MemoryError):
            raise graph_error(
                name, "the source nests too deep for Python's parser", hint="leave it out"
            ) from None
    if not isinstance(source, ast.AST):
        raise graph_error(
            name,
            f"from_ast takes Python code or a node of ast, not {source!r:.80}",
            hint='Graph.from_ast("x = 1"), or the result of ast.parse',
        )
    found = ast_postorder(source)
    assert found is not None  # no limit was given
    nodes, children = found
    try:
        types = [_TYPE_INDEX[type(node).__name__] for node in nodes]
    except KeyError as error:
        raise graph_error(
            name, f"{error} is no class of the module ast", hint="convert it to nodes of ast"
        ) from None
    features = {"type": np.array(types, np.int32)}
    return Graph(children, features, graph_features=graph_features, name=name)
