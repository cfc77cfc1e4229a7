"""Dependency trees in CoNLL-U, the format of Universal Dependencies."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from cavs.data.features import NO_FEATURES
from cavs.data.graph import Graph
from cavs.data.numbering import Numbering, numbered
from cavs.data.source import as_path, data_error, read_lines, shown
from cavs.data.structure import graph_error
from cavs.data.vocabulary import Vocabulary

#: The seventeen universal parts of speech; a label is an index into this tuple.
UPOS = (
    "ADJ",
    "ADP",
    "ADV",
    "AUX",
    "CCONJ",
    "DET",
    "INTJ",
    "NOUN",
    "NUM",
    "PART",
    "PRON",
    "PROPN",
    "PUNCT",
    "SCONJ",
    "SYM",
    "VERB",
    "X",
)
_SEPARATE = "an empty line ends a sentence, comments stand before it"
_FORMAT = "see https://universaldependencies.org/format.html; blanks between columns are tabs"
_COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")


@dataclass(frozen=True, slots=True)
class Sentence:
    """The words of a sentence and their heads.

    ``heads[i]``: the index of the word that word i depends on, -1 for a root; ``upos`` and
    ``deprel``: its part of speech and its relation to its head; ``name``: file:line.
    """

    name: str
    forms: list[str]
    upos: list[str]
    deprel: list[str]
    heads: list[int]


def read_conllu(path: str | os.PathLike[str]) -> list[Sentence]:
    """All sentences of a file. Comments, ranges (1-2) and empty nodes (1.1) are skipped.

    Raises DataError with file and line for rows that have not ten columns, words out of order or
    without a form, heads out of range, heads that run in a circle, a last sentence without its
    empty line (a truncated file) and text that is not UTF-8.
    """
    path = as_path(path)
    return parse_conllu(read_lines(path), path)


def parse_conllu(lines: Sequence[str], path: Path = Path("<text>")) -> list[Sentence]:
    """``read_conllu`` of lines already read; errors name ``path``."""
    sentences: list[Sentence] = []
    rows: list[tuple[int, list[str]]] = []
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            if rows:
                raise data_error(
                    path, number, "a comment inside a sentence", "a word or a blank", _SEPARATE
                )
        elif line.strip():
            rows.append((number, line.split("\t")))
        elif rows:
            sentences.append(_sentence(path, rows))
            rows = []
    if rows:
        raise data_error(
            path,
            len(lines),
            "the file ends inside a sentence",
            "an empty line after each sentence",
            "it may be cut off: fetch it anew, or end it with an empty line",
        )
    if not sentences:
        raise data_error(path, len(lines), "no sentence in the file", "at least one", _FORMAT)
    return sentences


def _sentence(path: Path, rows: list[tuple[int, list[str]]]) -> Sentence:
    words: list[tuple[int, list[str]]] = []
    for number, columns in rows:
        if len(columns) != len(_COLUMNS):
            raise data_error(
                path,
                number,
                f"{len(columns)} columns between tabs",
                f"{len(_COLUMNS)}: {' '.join(_COLUMNS)}",
                hint=_FORMAT if len(columns) > 1 else "tabs stand between columns, not blanks",
            )
        identity = columns[0]
        if identity == str(len(words) + 1):
            if not columns[1]:
                raise data_error(path, number, "an empty FORM", "a word, or _ for none", _FORMAT)
            words.append((number, columns))
        elif not _is_skipped(identity):
            raise data_error(
                path,
                number,
                f"word number {shown(identity)}",
                f"{len(words) + 1}",
                f"words of a sentence count from 1; {_SEPARATE}",
            )
    if not words:
        raise data_error(
            path,
            rows[0][0],
            "a sentence without words",
            "at least one word",
            "ranges (1-2) and empty nodes (1.1) are no words: leave the sentence out",
        )
    heads = [_head(path, number, columns[6], len(words)) for number, columns in words]
    circle = _circle(heads)
    if circle is not None:
        raise data_error(
            path,
            words[circle][0],
            f"word {circle + 1} ({shown(words[circle][1][1])}) heads itself through its heads",
            "heads that end in a root (0)",
            "give one word of the circle the head 0, or a word outside",
        )
    return Sentence(
        f"{path.name}:{words[0][0]}",
        [columns[1] for _, columns in words],
        [columns[3] for _, columns in words],
        [columns[7] for _, columns in words],
        heads,
    )


def _is_skipped(identity: str) -> bool:
    """Whether a row is a range of a multiword token, or an empty node of the enhanced graph."""
    for mark in "-.":
        first, found, last = identity.partition(mark)
        if found:
            return _is_number(first) and _is_number(last)
    return False


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _head(path: Path, number: int, text: str, num_words: int) -> int:
    # The length is bounded first: a head of thousands of digits is no number worth parsing.
    if not _is_number(text) or len(text) > 9 or int(text) > num_words:
        raise data_error(
            path,
            number,
            f"head {shown(text)}",
            f"0 (root) or a word 1..{num_words}",
            "the head is the number of a word of the same sentence",
        )
    return int(text) - 1


def _circle(heads: list[int]) -> int | None:
    """A word on a circle of heads, None if there is none. Follows every word once."""
    seen = [-1] * len(heads)  # the walk that came by
    for start in range(len(heads)):
        word = start
        while word >= 0 and seen[word] == -1:
            seen[word] = start
            word = heads[word]
        if word >= 0 and seen[word] == start:
            return word
    return None


def dependency_graphs(
    sentences: Iterable[Sentence],
    vocabulary: Vocabulary,
    relations: Vocabulary | None = None,
    tags: tuple[str, ...] = UPOS,
) -> list[Graph]:
    """Graphs whose words gather from their dependents, in the order of the sentence.

    Int features: ``token`` (form) and ``label`` (index of the part of speech in ``tags``, -1 for
    ``_``); with ``relations``, the edge feature ``relation`` (deprel of the dependent). DataError
    for a part of speech that ``tags`` does not have.
    """
    numbers = {tag: i for i, tag in enumerate(tags)}
    return [
        from_conllu(sentence, vocabulary=vocabulary, tags=numbers, relations=relations)
        for sentence in sentences
    ]


def from_conllu(
    source: str | Sentence,
    *,
    vocabulary: Numbering | None = None,
    tags: Numbering | None = None,
    relations: Numbering | None = None,
    graph_features: Mapping[str, ArrayLike] = NO_FEATURES,
    name: str = "",
) -> Graph:
    """The graph of one sentence in CoNLL-U: a word gathers from its dependents, in their order.

    ``vocabulary`` numbers the words: the int feature ``token``. ``tags``, such as ``UPOS``, numbers
    their parts of speech: the int feature ``label``, -1 for ``_``. ``relations`` numbers what a
    word is to its head: the int edge feature ``relation``. Each is a ``Vocabulary``, a list of
    names, a mapping or a function; without it the graph lacks the feature. What there is to number,
    ``parse_conllu`` tells: its sentences may be given in the place of the text.
    ``graph_features`` are those of ``Graph``.

    DataError for malformed text, as from ``read_conllu``, for several sentences, and for what has
    no number.
    """
    if isinstance(source, str):
        sentence = _only(source, name)
    elif isinstance(source, Sentence):
        sentence, name = source, name or source.name
    else:
        raise graph_error(
            name, f"from_conllu takes a text or a Sentence of parse_conllu, not {source!r:.80}"
        )
    where = f"{name or '<text>'}: word"
    features, edge_features = {}, {}
    if vocabulary is not None:
        features["token"] = numbered(sentence.forms, vocabulary, "form", where, 1)
    if tags is not None:
        known = [None if tag == "_" else tag for tag in sentence.upos]
        features["label"] = numbered(known, tags, "part of speech", where, 1)
    if relations is not None:
        # Edges stand by (head, dependent), as Graph.from_parents sorts them.
        heads = np.array(sentence.heads)
        order = np.argsort(heads, kind="stable")
        of_edges = order[heads[order] >= 0]
        found = [None if h < 0 else r for h, r in zip(sentence.heads, sentence.deprel, strict=True)]
        edge_features["relation"] = numbered(found, relations, "relation", where, 1)[of_edges]
    return Graph.from_parents(
        sentence.heads,
        features=features,
        edge_features=edge_features,
        graph_features=graph_features,
        name=name,
    )


def _only(text: str, name: str) -> Sentence:
    """The one sentence of a text, whose last line need not be empty."""
    path = Path(name or "<text>")
    if not text.strip():
        raise data_error(path, 1, "an empty text", "a sentence in CoNLL-U")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    first, *others = parse_conllu([*lines, ""], path)
    if others:
        raise data_error(
            path,
            int(others[0].name.rpartition(":")[2]),
            "a second sentence",
            "the end of the text",
            hint="parse_conllu(text.splitlines()) gives all, from_conllu takes each of them",
        )
    return first
