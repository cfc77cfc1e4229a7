"""The parser of trees in Newick."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from cavs.data.source import as_text, data_error, shown
from cavs.errors import DataError

_TOKEN = re.compile(r"\[[^\]]*\]|'(?:[^']|'')*'|[(),:;\[\]']|[^\s(),:;\[\]']+")
_COMMENT = re.compile(r"\[[^\]]*\]")
_PLAIN = re.compile(r"[^\s(),:;\[\]']+")
_FORMAT = "a tree is (subtree,subtree)name:length; such as ((a:1,b:2)ab:0.5,c);"


@dataclass(frozen=True, slots=True)
class NewickTree:
    """A tree of a Newick file: children before their parent, the root last.

    ``names`` and ``lengths``: those of every vertex, None without one; a length is that of the
    branch to the parent. ``comments``: those after a vertex, with their brackets; ``before``: those
    before the tree, such as ``[&R]``. ``offsets`` and ``children``: CSR as in ``Graph``; ``name``:
    the name that errors give the tree, file:line.
    """

    name: str
    names: list[str | None]
    lengths: list[float | None]
    comments: list[list[str]]
    offsets: list[int]
    children: list[int]
    before: list[str] = field(default_factory=list)

    def to_newick(self) -> str:
        """Return the tree in Newick on one line; names with other characters are quoted."""
        last = len(self.names) - 1
        out = [self._comments(self.before)]
        waiting = [(last, False)]
        while waiting:
            vertex, complete = waiting.pop()
            children = self.children[self.offsets[vertex] : self.offsets[vertex + 1]]
            if children and not complete:
                out.append("(")
                waiting.append((vertex, True))
                waiting += ((child, False) for child in reversed(children))
                continue
            out.append(f"{')' if children else ''}{self._text(vertex)}")
            if waiting and not waiting[-1][1]:
                out.append(",")
        return f"{''.join(out)};"

    def _text(self, vertex: int) -> str:
        name, length = self.names[vertex], self.lengths[vertex]
        text = "" if name is None else name
        if name is not None and not _PLAIN.fullmatch(name):
            text = "'" + name.replace("'", "''") + "'"
        if length is not None:
            if not math.isfinite(length):
                raise DataError(f"{self.name or '<tree>'}: vertex {vertex} has length {length}")
            text += f":{float(length)!r}"
        return text + self._comments(self.comments[vertex])

    def _comments(self, comments: list[str]) -> str:
        for comment in comments:
            if not _COMMENT.fullmatch(comment):
                raise DataError(
                    f"{self.name or '<tree>'}: comment {shown(comment)}",
                    hint="a comment is a text in square brackets, without others inside",
                )
        return "".join(comments)


@dataclass
class _Vertex:
    """A vertex whose text is being read."""

    name: str | None = None
    length: float | None = None
    comments: list[str] = field(default_factory=list)
    children: list[int] = field(default_factory=list)
    closed: bool = False  # it had brackets, which are closed


def parse_trees(text: str, path: Path) -> list[NewickTree]:
    """Return the trees of a text; DataError with line and column."""
    text = as_text(text, f"{path}:1", "trees in Newick", _FORMAT)
    trees: list[NewickTree] = []
    parser = _Parser(text, path)
    for match in _TOKEN.finditer(text):
        tree = parser.take(match[0], match.start())
        if tree is not None:
            trees.append(tree)
    if parser.begun:
        raise parser.error(len(text), "the text ends inside a tree", "';'")
    if not trees:
        raise data_error(path, 1, "no tree in the text", "at least one", _FORMAT)
    return trees


class _Parser:
    """Reads trees token by token."""

    def __init__(self, text: str, path: Path) -> None:
        self.text, self.path = text, path
        self._begin()

    def _begin(self) -> None:
        self.begun = False
        self.line = 0
        self.before: list[str] = []
        self.done: list[_Vertex] = []
        self.open: list[_Vertex] = []
        self.current = _Vertex()
        self.colon = False  # a length must follow

    def error(self, at: int, found: str, needed: str) -> DataError:
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        return data_error(self.path, line, f"column {column}: {found}", needed, _FORMAT)

    def take(self, token: str, at: int) -> NewickTree | None:
        """Take the next token; return the tree that it ends."""
        if token[0] == "[" and len(token) > 1:
            (self.current.comments if self.begun else self.before).append(token)
            return None
        if not self.begun:
            self.begun, self.line = True, self.text.count("\n", 0, at) + 1
        if self.colon and (token in "(),:;'[]" or token[0] == "'"):
            raise self.error(at, shown(token), "a length after the colon")
        if token == "(":
            if self.current != _Vertex():
                raise self.error(at, "'('", "',' before another subtree")
            self.open.append(self.current)
            self.current = _Vertex()
        elif token == ",":
            if not self.open:
                raise self.error(at, "',' outside of brackets", "';'")
            self._close()
        elif token == ")":
            if not self.open:
                raise self.error(at, "')' without its '('", "';'")
            self._close()
            self.current = self.open.pop()
            self.current.closed = True
        elif token == ";":
            if self.open:
                raise self.error(at, f"{len(self.open)} open brackets at the end", "')' for each")
            if self.current == _Vertex():
                raise self.error(at, "an empty tree", "a name or a subtree")
            return self._tree()
        elif token == ":":
            if self.current.length is not None:
                raise self.error(at, "a second length", "one length a vertex")
            self.colon = True
        elif token in "[]'":
            ends = {"[": "a comment without its ']'", "'": "a quote without its end"}
            raise self.error(at, ends.get(token, "']' without its '['"), "both ends")
        elif self.colon:
            self.current.length, self.colon = self._length(token, at), False
        else:
            self._name(token, at)
        return None

    def _name(self, token: str, at: int) -> None:
        vertex = self.current
        if vertex.name is not None or vertex.length is not None:
            found = "a name after the length" if vertex.name is None else "a second name"
            raise self.error(at, f"{found}: {shown(token)}", "',' ')' or quotes around a name")
        vertex.name = token[1:-1].replace("''", "'") if token[0] == "'" else token

    def _length(self, token: str, at: int) -> float:
        try:
            length = float(token)
        except ValueError:
            length = math.nan
        if not math.isfinite(length):
            raise self.error(at, f"length {shown(token)}", "a finite number")
        return length

    def _close(self) -> None:
        """End the current vertex, a child of the innermost open one."""
        self.open[-1].children.append(len(self.done))
        self.done.append(self.current)
        self.current = _Vertex()

    def _tree(self) -> NewickTree:
        vertices = [*self.done, self.current]
        offsets, children = [0], list[int]()
        for vertex in vertices:
            children += vertex.children
            offsets.append(len(children))
        tree = NewickTree(
            f"{self.path.name}:{self.line}",
            [vertex.name for vertex in vertices],
            [vertex.length for vertex in vertices],
            [vertex.comments for vertex in vertices],
            offsets,
            children,
            self.before,
        )
        self._begin()
        return tree
