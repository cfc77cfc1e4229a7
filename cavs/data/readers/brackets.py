"""Bracketed trees of any kind, as ``(S (NP the cat) (VP sat))`` or ``((a b) c)``."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from cavs.data.features import NO_FEATURES
from cavs.data.graph import Graph
from cavs.data.numbering import Numbering, numbered
from cavs.data.source import data_error, shown
from cavs.data.structure import graph_error

# ASCII blanks only: some tokens of the treebank contain a no-break space.
_TOKEN = re.compile(r"[()]|[^() \t\r\n\f\v]+")
_ESCAPES = {
    "-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}",
}  # fmt: skip
_UNLABELLED = "labelled=False reads brackets without labels, such as ((a b) c)"


Label = TypeVar("Label")


@dataclass(frozen=True, slots=True)
class ParsedTree(Generic[Label]):
    """A tree that was read, children before their parent, the root last.

    ``labels``: one for every vertex; ``words``: the word of a leaf, None above; ``offsets`` and
    ``children``: CSR as in ``Graph``; ``name``: what errors call it.
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


class BracketTree(ParsedTree[str | None]):
    """A bracketed tree; its label is None for a bracket without one and a word beside others."""

    __slots__ = ()


def unescape(word: str) -> str:
    r"""A Penn Treebank token as text: ``-LRB-`` is ``(``, ``\/`` is ``/``, ``\*`` is ``*``."""
    if word in _ESCAPES:
        return _ESCAPES[word]
    return word.replace("\\/", "/").replace("\\*", "*") if "\\" in word else word


class _Malformed(Exception):
    """What is wrong at which token of a text; ``parse_text`` adds name, line and column."""

    def __init__(self, token: int, found: str, needed: str, hint: str = "") -> None:
        super().__init__(found)
        self.token, self.found, self.needed, self.hint = token, found, needed, hint


@dataclass(frozen=True, slots=True)
class Style:
    """What brackets hold.

    ``labelled``: first a label, one of those ``known``, which are ``needed`` in words. ``strict``:
    then one word or trees, all on one line; else any of both, and an outermost bracket without a
    label, around one tree, is left out, as the Penn Treebank has it. ``hint``: how to mend a text
    that is none, where nothing better is known.
    """

    labelled: bool = True
    strict: bool = False
    known: Collection[str] | None = None
    needed: str = "a label"
    hint: str = "brackets hold a label and words or trees, such as (S (NP the cat) (VP sat))"

    @property
    def end(self) -> str:
        """Where the tree ends."""
        return "the end of the line" if self.strict else "the end of the text"


def _parse(tokens: list[str], style: Style, name: str) -> BracketTree:
    labels: list[str | None] = []
    words: list[str | None] = []
    offsets, children = [0], list[int]()
    # Of every open bracket: its label, and where its finished children start.
    open_labels: list[str | None] = []
    open_starts: list[int] = []
    done: list[int] = []  # vertices that still wait for their parent
    alone = -1  # the vertex of a word that is all the innermost bracket holds so far
    labelled, strict, known = style.labelled, style.strict, style.known
    wrapped = labelled and not strict and tokens[:2] == ["(", "("]
    i, end = 0, len(tokens)
    while i < end:
        token = tokens[i]
        if token == "(":
            label = None
            if labelled and not (wrapped and i == 0):
                label = tokens[i + 1] if i + 1 < end else None
                if label is None or (label in "()" if known is None else label not in known):
                    found = style.end if label is None else f"label {shown(label)}"
                    hint = _UNLABELLED if label == "(" and not strict else ""
                    raise _Malformed(i + 1, found, f"{style.needed} after the bracket", hint)
            if not open_starts and labels:
                raise _Malformed(i, "a second tree", style.end)
            if strict and alone >= 0:
                raise _Malformed(i, "a bracket after a word", "')': a leaf has one word")
            if wrapped and len(open_starts) == 1 and done:
                raise _Malformed(
                    i, "a second tree in a bracket without a label", "')'", _UNLABELLED
                )
            open_labels.append(label)
            open_starts.append(len(done))
            i += 1 if label is None else 2
            continue
        if not open_starts and not (not labelled and end == 1 and token != ")"):
            raise _Malformed(i, shown(token), style.end if labels else "'('")
        if token == ")":
            start, label = open_starts.pop(), open_labels.pop()
            if start == len(done):
                after = " after the label" if labelled else ""
                raise _Malformed(i, "')'", f"a word or a tree{after}")
            if alone >= 0:  # the bracket is the leaf
                labels[alone], alone = label, -1
            elif open_starts or not wrapped:
                children += done[start:]
                del done[start:]
                done.append(len(labels))
                labels.append(label)
                words.append(None)
                offsets.append(len(children))
        else:
            first = not open_starts or open_starts[-1] == len(done)
            if strict and alone >= 0:
                raise _Malformed(i, f"a second word {shown(token)}", "')': a leaf has one word")
            if strict and not first:
                raise _Malformed(i, f"word {shown(token)} beside a tree", "'(' or ')'")
            if wrapped and len(open_starts) == 1:
                found = f"word {shown(token)} in a bracket without a label"
                raise _Malformed(i, found, "')'", _UNLABELLED)
            alone = len(labels) if first else -1
            done.append(len(labels))
            labels.append(None)
            words.append(unescape(token))
            offsets.append(len(children))
        i += 1
    if open_starts:
        raise _Malformed(end, f"{len(open_starts)} open brackets at the end", "')' for each")
    return BracketTree(name, labels, words, offsets, children)


def parse_text(text: str, style: Style, where: str, line: int, name: str) -> BracketTree:
    """The tree of a text that starts at ``where:line``; DataError with the column, too."""
    tokens: list[str] = _TOKEN.findall(text)
    if not tokens:
        empty = f"an empty {'line' if style.strict else 'text'}"
        raise data_error(where, line, empty, "a tree", style.hint)
    try:
        return _parse(tokens, style, name)
    except _Malformed as error:
        starts = [match.start() for match in _TOKEN.finditer(text)]
        at = starts[error.token] if error.token < len(starts) else len(text)
        column = at - text.rfind("\n", 0, at)
        line += text.count("\n", 0, at)
        found = f"column {column}: {error.found}"
        raise data_error(where, line, found, error.needed, error.hint or style.hint) from None


def parse_brackets(text: str, *, labelled: bool = True, name: str = "") -> BracketTree:
    """One bracketed tree, on one line or several, as ``(S (NP the cat) (VP sat))``.

    A bracket around one word is a leaf; of words beside other words or brackets each is a leaf of
    its own. ``labelled``: the first thing in a bracket is its label; without, as in ``((a b) c)``,
    it is a word, and a single word needs no bracket. The outermost bracket of
    ``( (S (NP it) (VP works)) )``, which the Penn Treebank puts around each tree, is left out.

    Raises DataError with ``name``, line and column for unbalanced brackets, a bracket that is empty
    or lacks its label, and text beside the tree.
    """
    return parse_text(text, Style(labelled), name or "<text>", 1, name)


def from_brackets(
    source: str | BracketTree,
    *,
    vocabulary: Numbering | None = None,
    labels: Numbering | None = None,
    labelled: bool = True,
    graph_features: Mapping[str, ArrayLike] = NO_FEATURES,
    name: str = "",
) -> Graph:
    """The graph of a bracketed tree, children first, the root last; see ``parse_brackets``.

    ``vocabulary`` numbers the words: the int feature ``token``, -1 above the leaves. ``labels``
    numbers the labels: the int feature ``label``, -1 where a vertex has none. Each is a
    ``Vocabulary``, a list of names, a mapping, or a function such as ``int``; without it the graph
    lacks the feature. What there is to number, ``parse_brackets`` tells: its tree may be given in
    the place of the text. ``graph_features`` are those of ``Graph``.

    DataError for malformed text, and for words and labels that have no number.
    """
    if isinstance(source, str):
        source = parse_brackets(source, labelled=labelled, name=name)
    if not isinstance(source, BracketTree):
        raise graph_error(
            name,
            f"from_brackets takes a text or what parse_brackets gives, not {source!r:.80}",
            hint="decode bytes first: source.decode()" if isinstance(source, bytes) else "",
        )
    name = name or source.name
    features = {}
    for feature, what, texts, by in (
        ("token", "word", source.words, vocabulary),
        ("label", "label", source.labels, labels),
    ):
        if by is not None:
            features[feature] = numbered(texts, by, what, f"{name or '<text>'}: vertex", 0)
    structure = np.array(source.offsets, np.int32), np.array(source.children, np.int32)
    return Graph(structure, features, graph_features=graph_features, name=name)
