"""Sentences of CoNLL-U."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


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
    rows such as 8.1.
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
        """Return the sentence in CoNLL-U, with the empty line at its end."""
        nothing = ["_"] * len(self.forms)
        columns = (
            [str(i) for i in range(1, len(self.forms) + 1)],
            self.forms,
            self.lemmas or nothing,
            self.upos,
            self.xpos or nothing,
            self.feats or nothing,
            [str(head + 1) for head in self.heads],
            self.deprel,
            self.deps or nothing,
            self.misc or nothing,
        )
        # By the word and, of those of one word, in the order of the format: 1-2, 1, 1.1, 1.2.
        rows = [((i, 1, 0), row) for i, row in enumerate(zip(*columns, strict=True), 1)]
        for start, stop, form, feats, misc in self.multiword:
            row = (f"{start + 1}-{stop}", form, "_", "_", "_", feats, "_", "_", "_", misc)
            rows.append(((start + 1, 0, 0), row))
        for identity, *before, deps, misc in self.empty_nodes:
            word, _, number = identity.partition(".")
            rows.append(((int(word), 2, int(number)), (identity, *before, "_", "_", deps, misc)))
        lines = [*self.comments, *("\t".join(row) for _, row in sorted(rows))]
        return "\n".join([*lines, "", ""])
