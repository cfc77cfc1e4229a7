"""Dependency trees in CoNLL-U, the format of Universal Dependencies."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from cavs.data.features import NO_FEATURES
from cavs.data.graph import Graph, graph_constructor
from cavs.data.numbering import Numbering, numbered
from cavs.data.readers.sentence import EmptyNode, Multiword, Sentence
from cavs.data.source import as_items, as_path, as_text, data_error, read_lines, shown, split_lines
from cavs.data.structure import graph_error
from cavs.data.vocabulary import Vocabulary, check_names

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
_CUT = (
    'cut a text into lines by text.split("\\n"), or pass the text: splitlines() cuts inside words'
)
_TABS = "tabs stand between columns, not blanks"
_COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")


def read_conllu(path: str | os.PathLike[str]) -> list[Sentence]:
    """Read all sentences of a file.

    Raises DataError with file and line for rows that have not ten columns, words out of order or
    without a form, heads out of range, heads that run in a circle, ranges (1-2) of other words than
    those of the sentence, a last sentence without its empty line (a truncated file) and text that
    is not UTF-8.
    """
    path = as_path(path)
    return parse_conllu(read_lines(path), path)


def parse_conllu(
    lines: str | Iterable[str], path: str | os.PathLike[str] = "<text>"
) -> list[Sentence]:
    """Parse the sentences of a text, or of its lines; errors are those of `read_conllu`."""
    path, sentences = as_path(path), list[Sentence]()
    comments: list[str] = []
    rows: list[tuple[int, list[str]]] = []
    number = 1
    for number, line in enumerate(_lines(lines, path), 1):
        if line.startswith("#"):
            if rows:
                raise data_error(
                    path, number, "a comment inside a sentence", "a word or a blank", _SEPARATE
                )
            comments.append(line)
        elif line.strip():
            rows.append((number, line.split("\t")))
        elif rows:
            sentences.append(_sentence(path, rows, comments))
            rows, comments = [], []
    if rows:
        raise data_error(
            path,
            number,
            "the file ends inside a sentence",
            "an empty line after each sentence",
            "it may be cut off: fetch it again, or end it with an empty line",
        )
    if not sentences:
        raise data_error(path, number, "no sentence in the file", "at least one", _FORMAT)
    return sentences


def _lines(lines: str | Iterable[str], path: Path) -> Iterator[str]:
    """Yield the lines of a text or a list, without their ends and without a byte-order mark."""
    if isinstance(lines, str | bytes | bytearray) or not isinstance(lines, Iterable):
        lines = split_lines(as_text(lines, f"{path}:1", "CoNLL-U, a text or its lines", _FORMAT))
    for number, given in enumerate(lines, 1):
        line = given
        if number == 1 or not isinstance(line, str):
            line = as_text(line, f"{path}:{number}", "a line of CoNLL-U", _FORMAT)
        if line.endswith(("\n", "\r")):
            line = line.removesuffix("\n").removesuffix("\r")
        if "\n" in line:
            raise data_error(path, number, "several lines in one", "one line each", _CUT)
        yield line


def _sentence(path: Path, rows: list[tuple[int, list[str]]], comments: list[str]) -> Sentence:
    words: list[tuple[int, list[str]]] = []
    ranges: list[tuple[int, list[str]]] = []
    empty_nodes: list[EmptyNode] = []
    for number, columns in rows:
        if len(columns) != len(_COLUMNS):
            raise data_error(
                path,
                number,
                f"{len(columns)} columns between tabs",
                f"{len(_COLUMNS)}: {' '.join(_COLUMNS)}",
                hint=f"{_FORMAT}; {_CUT}" if len(columns) > 1 else _TABS,
            )
        identity = columns[0]
        if identity == str(len(words) + 1):
            if not columns[1]:
                raise data_error(path, number, "an empty FORM", "a word, or _ for none", _FORMAT)
            words.append((number, columns))
        elif _is_pair(identity, "-"):
            ranges.append((number, columns))
        elif _is_pair(identity, "."):
            empty_nodes.append(EmptyNode(identity, *columns[1:6], *columns[8:]))
        else:
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
    _, forms, lemmas, upos, xpos, feats, _, deprel, deps, misc = (
        list(column) for column in zip(*(columns for _, columns in words), strict=True)
    )
    return Sentence(
        f"{path.name}:{words[0][0]}",
        forms,
        upos,
        deprel,
        heads,
        lemmas,
        xpos,
        feats,
        deps,
        misc,
        comments,
        _multiword(path, ranges, len(words)),
        empty_nodes,
    )


def _multiword(path: Path, rows: list[tuple[int, list[str]]], num_words: int) -> list[Multiword]:
    """Return the ranges of a sentence; DataError for one of other words, or of those of another."""
    found: list[Multiword] = []
    stop = 0
    for number, columns in rows:
        first, last = map(int, columns[0].split("-"))
        if not stop < first <= last <= num_words:
            raise data_error(
                path,
                number,
                f"range {shown(columns[0])}",
                f"first and last of words {stop + 1}..{num_words}",
                "a range holds words of its sentence that no range before it holds",
            )
        stop = last
        found.append(Multiword(first - 1, last, columns[1], columns[5], columns[9]))
    return found


def _is_pair(identity: str, mark: str) -> bool:
    """True for two numbers with ``mark`` between them: the range 1-2, the empty node 1.1."""
    first, _, last = identity.partition(mark)
    return _is_number(first) and _is_number(last)


def _is_number(text: str) -> bool:
    # The length is bounded: thousands of digits are no number worth parsing.
    return text.isascii() and text.isdigit() and len(text) < 10


def _head(path: Path, number: int, text: str, num_words: int) -> int:
    if not _is_number(text) or int(text) > num_words:
        raise data_error(
            path,
            number,
            f"head {shown(text)}",
            f"0 (root) or a word 1..{num_words}",
            "the head is the number of a word of the same sentence",
        )
    return int(text) - 1


def _circle(heads: list[int]) -> int | None:
    """Return a word on a circle of heads, None without a circle. Follows every word once."""
    seen = [-1] * len(heads)  # the start of the walk that visited the word
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
    """Return graphs whose words gather from their dependents, in the order of the sentence.

    Int features: ``token`` (form) and ``label`` (index of the part of speech in ``tags``, -1 for
    ``_``); with ``relations``, the edge feature ``relation`` (deprel of the dependent). DataError
    for a part of speech that ``tags`` lacks, and for anything but sentences.
    """
    sentences = as_items(
        sentences, Sentence, "sentences", "read_conllu(path) and parse_conllu(text) return them"
    )
    check_names("tags", tags)
    numbers = {tag: i for i, tag in enumerate(tags)}
    return [
        from_conllu(sentence, vocabulary=vocabulary, tags=numbers, relations=relations)
        for sentence in sentences
    ]


@graph_constructor
def from_conllu(
    source: str | Sentence,
    *,
    vocabulary: Numbering | None = None,
    tags: Numbering | None = None,
    relations: Numbering | None = None,
    graph_features: Mapping[str, ArrayLike] = NO_FEATURES,
    name: str = "",
) -> Graph:
    """Return the graph of one sentence: a word gathers from its dependents, in their order.

    ``source`` is a text in CoNLL-U, or a sentence that a reader returned, whose words, tags and
    relations can be numbered first.

    ``vocabulary`` numbers the words: the int feature ``token``. ``tags``, such as ``UPOS``, numbers
    their parts of speech: the int feature ``label``, -1 for ``_``. ``relations`` numbers the
    relation of a word to its head: the int edge feature ``relation``. Each is a ``Vocabulary``, a
    list of names, a mapping or a function; without it the graph lacks the feature.
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
            name,
            f"from_conllu takes a text or a Sentence of parse_conllu, not {source!r:.80}",
            hint="decode bytes first: source.decode()"
            if isinstance(source, bytes)
            else "parse_conllu(text) and read_conllu(path) return sentences",
        )
    where = f"{name or '<text>'}: word"
    features, edge_features = {}, {}
    if vocabulary is not None:
        features["token"] = numbered(sentence.forms, vocabulary, "form", where, 1)
    if tags is not None:
        known = [None if tag == "_" else tag for tag in sentence.upos]
        features["label"] = numbered(known, tags, "part of speech", where, 1)
    if relations is not None:
        # Edges are sorted by (head, dependent), as Graph.from_parents does.
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
    """Return the one sentence of a text, whose last line need not be empty."""
    path = Path(name or "<text>")
    if not text.strip():
        raise data_error(path, 1, "an empty text", "a sentence in CoNLL-U")
    first, *others = parse_conllu([*text.split("\n"), ""], path)
    if others:
        raise data_error(
            path,
            int(others[0].name.rpartition(":")[2]),
            "a second sentence",
            "the end of the text",
            hint="parse_conllu(text) returns all, from_conllu takes each of them",
        )
    return first
