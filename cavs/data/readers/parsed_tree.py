"""Trees with labels and words, and how they are written in brackets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from cavs.data.source import shown
from cavs.errors import DataError

# ASCII blanks only: some tokens of the treebank contain a no-break space.
TOKEN = re.compile(r"[()]|[^() \t\r\n\f\v]+")
_ESCAPES = {
    "-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}",
}  # fmt: skip
_ESCAPED = {word: token for token, word in _ESCAPES.items()}
_TRACE = "-NONE-"  # label of an empty element, in whose word * is no escaped asterisk

Label = TypeVar("Label")


@dataclass(frozen=True, slots=True)
class ParsedTree(Generic[Label]):
    """A parsed tree: children before their parent, the root last.

    ``labels``: one for every vertex; ``words``: the word of a leaf, None above; ``offsets`` and
    ``children``: CSR as in ``Graph``; ``name``: the name that errors give the tree.
    """

    name: str
    labels: list[Label]
    words: list[str | None]
    offsets: list[int]
    children: list[int]

    @property
    def tokens(self) -> list[str]:
        """The words of the leaves from left to right."""
        return [word for word in self.words if word is not None]

    def children_of(self, vertex: int) -> list[int]:
        """Return the children of a vertex, in order."""
        return self.children[self.offsets[vertex] : self.offsets[vertex + 1]]

    def to_brackets(self) -> str:
        """Return the tree in brackets on one line, words escaped as in the Penn Treebank.

        The parser that returned the tree reads it back. DataError for a label or a word that
        brackets cannot hold, such as one with a blank.
        """
        out: list[str] = []
        labelled = any(label is not None for label in self.labels)
        waiting: list[tuple[int, bool]] = [(len(self.labels) - 1, False)]
        while waiting:
            vertex, only = waiting.pop()
            if vertex < 0:
                out.append(")")
                continue
            word, label = self.words[vertex], self.labels[vertex]
            before = "" if not out or out[-1].endswith("(") else " "
            if word is not None and label is None:
                if only and labelled:
                    found = f"word {shown(word)} without a label, alone below its parent"
                    raise self._unwritable(vertex, found)
                text = self._token(vertex, word)
                out.append(f"{before}({text})" if only else f"{before}{text}")
                continue
            text = "" if label is None else self._checked(vertex, str(label))
            out.append(f"{before}({text}")
            waiting.append((-1, False))
            if word is not None:
                out.append(f" {self._token(vertex, word)}")
            children = self.children_of(vertex)
            waiting += ((child, len(children) == 1) for child in reversed(children))
        return "".join(out)

    def _token(self, vertex: int, word: str) -> str:
        return self._checked(vertex, escape(word, trace=self.labels[vertex] == _TRACE))

    def _checked(self, vertex: int, text: str) -> str:
        match = TOKEN.match(text)
        if match is None or match[0] != text or text in "()":
            raise self._unwritable(vertex, shown(text))
        return text

    def _unwritable(self, vertex: int, found: str) -> DataError:
        return DataError(
            f"{self.name or '<tree>'}: vertex {vertex}: {found} cannot be written in brackets",
            hint="labels and words are texts without blanks and brackets",
        )


class BracketTree(ParsedTree[str | None]):
    """A bracketed tree; labels are None for a bracket without one and for a word among others."""

    __slots__ = ()


def unescape(word: str) -> str:
    r"""Return a Penn Treebank token as text: ``-LRB-`` is ``(``, ``\/`` is ``/``."""
    if word in _ESCAPES:
        return _ESCAPES[word]
    return word.replace("\\/", "/").replace("\\*", "*") if "\\" in word else word


def escape(word: str, *, trace: bool = False) -> str:
    """Return the Penn Treebank token of a word, which `unescape` reads back.

    trace: the word is that of an empty element, such as ``*T*-1``.
    """
    if word in _ESCAPED:
        return _ESCAPED[word]
    return word if trace else word.replace("/", "\\/").replace("*", "\\*")


def in_order(
    name: str,
    labels: Sequence[str | None],
    words: Sequence[str | None],
    children: Sequence[Sequence[int]],
    root: int,
) -> BracketTree:
    """Return the tree below ``root``, its vertices in the order in which a parser finds them."""
    found: list[int] = []
    number: dict[int, int] = {}
    waiting = [(root, False)]
    while waiting:
        vertex, complete = waiting.pop()
        if complete:
            number[vertex] = len(found)
            found.append(vertex)
        else:
            waiting.append((vertex, True))
            waiting += ((child, False) for child in reversed(children[vertex]))
    offsets, flat = [0], list[int]()
    for vertex in found:
        flat += (number[child] for child in children[vertex])
        offsets.append(len(flat))
    return BracketTree(name, [labels[v] for v in found], [words[v] for v in found], offsets, flat)
