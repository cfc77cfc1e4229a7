"""Sentences of CoNLL-U and CoNLL-X."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cavs.data.source import shown
from cavs.errors import DataError


class Multiword(NamedTuple):
    """A token of the text that several words make up, such as *can't* of *ca* and *n't*.

    ``start`` and ``stop``: its words are ``forms[start:stop]``; ``feats`` and ``misc``: as in
    `Sentence`.
    """

    start: int
    stop: int
    form: str
    feats: str = "_"
    misc: str = "_"


class EmptyNode(NamedTuple):
    """A node of the enhanced graph that no word of the text stands for, such as an elided verb.

    ``identity``: its number in the file, such as ``8.1``, the first after word 8; the others are
    the columns of its row.
    """

    identity: str
    form: str
    lemma: str
    upos: str
    xpos: str
    feats: str
    deps: str
    misc: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """The words of a sentence and their heads, with all else that CoNLL-U says of them.

    ``heads[i]``: the index of the word that word i depends on, -1 for a root; ``upos`` and
    ``deprel``: its part of speech and its relation to its head; ``name``: file:line.

    ``lemmas``, ``xpos``, ``feats``, ``deps`` and ``misc``: the other columns, as they are in the
    file, ``_`` for nothing; empty lists in a sentence that was made without them. ``comments``: the
    lines above it, with their ``#``. ``multiword``: the ranges, such as 2-3. ``empty_nodes``: the
    rows such as 8.1. ``projective_heads`` and ``projective_deprel``: columns of CoNLL-X alone.
    """

    name: str
    forms: list[str]
    upos: list[str]
    deprel: list[str]
    heads: list[int]
    lemmas: list[str] = field(default_factory=list)
    xpos: list[str] = field(default_factory=list)
    feats: list[str] = field(default_factory=list)
    deps: list[str] = field(default_factory=list)
    misc: list[str] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    multiword: list[Multiword] = field(default_factory=list)
    empty_nodes: list[EmptyNode] = field(default_factory=list)
    projective_heads: list[str] = field(default_factory=list)
    projective_deprel: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> list[str]:
        """The words of the text: *can't* where ``forms`` has *ca* and *n't*."""
        by_start = {token.start: token for token in self.multiword}
        found, word = [], 0
        while word < len(self.forms):
            token = by_start.get(word)
            found.append(self.forms[word] if token is None else token.form)
            word = word + 1 if token is None else token.stop
        return found

    @property
    def metadata(self) -> dict[str, str]:
        """Keys and values of the comments ``# key = value``."""
        pairs = (comment[1:].partition("=") for comment in self.comments)
        return {key.strip(): value.strip() for key, found, value in pairs if found}

    @property
    def sent_id(self) -> str | None:
        """The name that the treebank gives the sentence; None without one."""
        return self.metadata.get("sent_id")

    @property
    def text(self) -> str | None:
        """The text of the sentence as its comment has it; None without one."""
        return self.metadata.get("text")

    def to_conllu(self) -> str:
        """Return the sentence in CoNLL-U, with the empty line at its end.

        DataError for a column that lacks a word, and for a text with a tab or a line end.
        """
        # By the word and, of those of one word, in the order of the format: 1-2, 1, 1.1, 1.2.
        rows = [((i, 1, 0), row) for i, row in enumerate(self._rows("deps", "misc"), 1)]
        for start, stop, form, feats, misc in self.multiword:
            row = (f"{start + 1}-{stop}", form, "_", "_", "_", feats, "_", "_", "_", misc)
            rows.append(((start + 1, 0, 0), row))
        for identity, *before, deps, misc in self.empty_nodes:
            word, _, number = identity.partition(".")
            rows.append(((int(word), 2, int(number)), (identity, *before, "_", "_", deps, misc)))
        return self._text([row for _, row in sorted(rows)], self.comments)

    def to_conllx(self) -> str:
        """Return the words in CoNLL-X, with an empty line at the end.

        That format has nothing of ``deps``, ``misc``, ``comments``, ``multiword`` and
        ``empty_nodes``. DataError as from `to_conllu`.
        """
        return self._text(self._rows("projective_heads", "projective_deprel"))

    def _rows(self, *last: str) -> list[tuple[str, ...]]:
        """Return the columns of every word; last: the fields of those in which formats differ."""
        count = len(self.forms)
        columns: list[list[str]] = [[str(i) for i in range(1, count + 1)], self.forms]
        for name in ("lemmas", "upos", "xpos", "feats", "heads", "deprel", *last):
            column = getattr(self, name)
            if not column and name not in ("upos", "heads", "deprel"):
                column = ["_"] * count
            if len(column) != count:
                raise DataError(
                    f"{self.name}: {len(column)} {name} for {count} words",
                    hint="give one for each word; columns other than upos, heads and deprel may be "
                    "empty lists",
                )
            columns.append([str(head + 1) for head in column] if name == "heads" else column)
        return list(zip(*columns, strict=True))

    def _text(self, rows: list[tuple[str, ...]], comments: Sequence[str] = ()) -> str:
        """Return the lines of a sentence; DataError for a text that breaks them."""
        lines = [*comments, *("\t".join(row) for row in rows)]
        for row in rows:
            if not row[1] or any("\t" in text or "\n" in text for text in row):
                raise DataError(
                    f"{self.name}: word {row[0]} has the columns {row!r:.160}",
                    hint="columns hold texts without tabs and line ends, _ for nothing",
                )
        for comment in comments:
            if not comment.startswith("#") or "\n" in comment:
                raise DataError(
                    f"{self.name}: comment {shown(comment)}",
                    hint="a comment is a line with # first",
                )
        return "\n".join([*lines, "", ""])
