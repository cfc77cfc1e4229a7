"""The parser of bracketed trees."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from cavs.data.readers.parsed_tree import TOKEN, BracketTree, unescape
from cavs.data.source import as_text, data_error, shown

_LABEL_IT = "give the bracket a label, such as (ROOT (S ...) (. .))"
_UNLABELLED = "labelled=False reads brackets without labels, such as ((a b) c)"
_ONE_EACH = (
    "give parse_brackets one tree at a time; parse_ptb(text) and read_ptb(path) read several"
)


class _Malformed(Exception):
    """A fault at one token of a text; `_located` adds name, line and column."""

    def __init__(self, token: int, found: str, needed: str, hint: str = "") -> None:
        super().__init__(found)
        self.token, self.found, self.needed, self.hint = token, found, needed, hint


@dataclass(frozen=True, slots=True)
class Style:
    """The rules of a bracketed text.

    ``labelled``: a bracket begins with a label, one of ``known``, which errors call ``needed``.
    ``strict``: after it comes one word or trees, all on one line. Otherwise words and trees may
    follow, and an outermost bracket without a label is left out if it holds one tree, as in the
    Penn Treebank; with ``joined`` it may hold several, and is then a root without a label.
    ``hint``: the cure for a malformed text where no better one is known.
    """

    labelled: bool = True
    strict: bool = False
    joined: bool = False
    known: Collection[str] | None = None
    needed: str = "a label"
    hint: str = "brackets hold a label and words or trees, such as (S (NP the cat) (VP sat))"

    @property
    def end(self) -> str:
        """The end of the text in words."""
        return "the end of the line" if self.strict else "the end of the text"


def _label_hint(tokens: Sequence[str]) -> str:
    """Return the cure for a bracket that lacks a label in a text that should have labels.

    Labels of treebanks, such as ``NP`` or ``-LRB-``, have no small letters. Where there are some,
    the brackets may have no labels at all.
    """
    labels = (b for a, b in pairwise(tokens) if a == "(" and b not in "()")
    has_labels = all(label == label.upper() for label in labels)
    return _LABEL_IT if has_labels else f"{_UNLABELLED}; with labels, {_LABEL_IT}"


def _parse(tokens: Sequence[str], style: Style, name: str) -> BracketTree:
    labels: list[str | None] = []
    words: list[str | None] = []
    offsets, children = [0], list[int]()
    # The label of every open bracket, and the index in `done` of its first child.
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
            if not open_starts and labels:
                raise _Malformed(i, "a second tree", style.end, "" if strict else _ONE_EACH)
            label = None
            if labelled and not (wrapped and i == 0):
                label = tokens[i + 1] if i + 1 < end else None
                if label is None or (label in "()" if known is None else label not in known):
                    found = style.end if label is None else f"label {shown(label)}"
                    hint = _label_hint(tokens) if label == "(" and not strict else ""
                    raise _Malformed(i + 1, found, f"{style.needed} after the bracket", hint)
            if strict and alone >= 0:
                raise _Malformed(i, "a bracket after a word", "')': a leaf has one word")
            if wrapped and not style.joined and len(open_starts) == 1 and done:
                found = "a second tree in a bracket without a label"
                hint = f"{_label_hint(tokens)}; parse_ptb(text) needs none there"
                raise _Malformed(i, found, "')'", hint)
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
            elif open_starts or not wrapped or len(done) > 1:
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
                raise _Malformed(i, f"word {shown(token)} next to a tree", "'(' or ')'")
            if wrapped and len(open_starts) == 1:
                found = f"word {shown(token)} in a bracket without a label"
                raise _Malformed(i, found, "')'", _label_hint(tokens))
            alone = len(labels) if first else -1
            done.append(len(labels))
            labels.append(None)
            words.append(unescape(token))
            offsets.append(len(children))
        i += 1
    if open_starts:
        raise _Malformed(end, f"{len(open_starts)} open brackets at the end", "')' for each")
    return BracketTree(name, labels, words, offsets, children)


def _located(error: _Malformed, text: str, style: Style, where: str, line: int) -> Exception:
    """Return the DataError of a fault in a text that starts at ``where:line``."""
    starts = [match.start() for match in TOKEN.finditer(text)]
    at = starts[error.token] if error.token < len(starts) else len(text)
    column = at - text.rfind("\n", 0, at)
    line += text.count("\n", 0, at)
    found = f"column {column}: {error.found}"
    return data_error(where, line, found, error.needed, error.hint or style.hint)


def parse_text(text: str, style: Style, where: str, line: int, name: str) -> BracketTree:
    """Return the tree of a text that starts at ``where:line``; DataError with line and column."""
    text = as_text(text, f"{where}:{line}", "a tree", style.hint)
    tokens: list[str] = TOKEN.findall(text)
    if not tokens:
        empty = f"an empty {'line' if style.strict else 'text'}"
        raise data_error(where, line, empty, "a tree", style.hint)
    try:
        return _parse(tokens, style, name)
    except _Malformed as error:
        raise _located(error, text, style, where, line) from None


def parse_several(text: str, style: Style, path: Path) -> list[BracketTree]:
    """Return the trees of a text, named ``path:line``; DataError with line and column."""
    text = as_text(text, f"{path}:1", "trees", style.hint)
    tokens: list[str] = TOKEN.findall(text)
    if not tokens:
        raise data_error(path, 1, "no tree in the text", "at least one", style.hint)
    lines = _lines_of_tokens(text)
    trees = []
    for begin, end in _trees(tokens):
        line = lines[begin]
        try:
            trees.append(_parse(tokens[begin:end], style, f"{path.name}:{line}"))
        except _Malformed as error:
            error.token += begin
            if error.token >= len(tokens):
                error.found += f" of the tree that begins in line {line}"
            raise _located(error, text, style, str(path), 1) from None
    return trees


def _lines_of_tokens(text: str) -> list[int]:
    """Return the line of every token."""
    lines, line, before = [], 1, 0
    for match in TOKEN.finditer(text):
        line += text.count("\n", before, match.start())
        before = match.start()
        lines.append(line)
    return lines


def _trees(tokens: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of every outermost bracket; text between two of them has its own."""
    depth = begin = 0
    for i, token in enumerate(tokens):
        depth += (token == "(") - (token == ")")
        if depth <= 0:
            yield begin, i + 1
            depth, begin = 0, i + 1
    if begin < len(tokens):
        yield begin, len(tokens)
