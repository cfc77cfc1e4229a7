"""Dependency trees in CoNLL-U, the format of Universal Dependencies, and in CoNLL-X."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from cavs.data.features import NO_FEATURES
from cavs.data.graph import Graph
from cavs.data.numbering import Numbering, numbered
from cavs.data.readers.conll_parser import CONLLU, CONLLX, parse_sentences
from cavs.data.readers.sentence import Sentence
from cavs.data.source import as_items, as_path, data_error, read_lines, write_text_file
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
_READERS = "read_conllu(path) and parse_conllu(text) return them"


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
    return parse_sentences(lines, as_path(path), CONLLU)


def write_conllu(path: str | os.PathLike[str], sentences: Iterable[Sentence]) -> None:
    """Write sentences to a file, as `Sentence.to_conllu`; `read_conllu` reads them back."""
    found = as_items(sentences, Sentence, "sentences", _READERS)
    write_text_file(path, (sentence.to_conllu() for sentence in found))


def read_conllx(path: str | os.PathLike[str]) -> list[Sentence]:
    """Read all sentences of a file in CoNLL-X, the format of the shared tasks of 2006 and 2007.

    A `Sentence` has CPOSTAG in ``upos``, POSTAG in ``xpos``, and PHEAD and PDEPREL in
    ``projective_heads`` and ``projective_deprel``. DataError with file and line as from
    `read_conllu`; only the last sentence may lack its empty line.
    """
    path = as_path(path)
    return parse_conllx(read_lines(path), path)


def parse_conllx(
    lines: str | Iterable[str], path: str | os.PathLike[str] = "<text>"
) -> list[Sentence]:
    """Parse the sentences of a text in CoNLL-X, or of its lines; see `read_conllx`."""
    return parse_sentences(lines, as_path(path), CONLLX)


def write_conllx(path: str | os.PathLike[str], sentences: Iterable[Sentence]) -> None:
    """Write sentences to a file, as `Sentence.to_conllx`; `read_conllx` reads them back."""
    found = as_items(sentences, Sentence, "sentences", _READERS)
    write_text_file(path, (sentence.to_conllx() for sentence in found))


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
    sentences = as_items(sentences, Sentence, "sentences", _READERS)
    check_names("tags", tags)
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
