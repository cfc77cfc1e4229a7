"""Plain text as chains of tokens, for language models."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from cavs.config import require_count
from cavs.data.graph import Graph
from cavs.data.source import as_path, data_error, read_lines
from cavs.data.vocabulary import Vocabulary, check_vocabulary
from cavs.errors import ConfigError

END = "<eos>"


def read_text(
    path: str | os.PathLike[str], max_length: int | None = None, headings: bool = True
) -> list[list[str]]:
    """Read the tokens of every line that has any, split at blanks; each list ends in ``<eos>``.

    ``max_length``: longer lines are cut into several lists of at most so many tokens, of which the
    last has the ``<eos>``. ``headings=False`` leaves out lines such as ``= Title =``. DataError for
    a file that is missing, not UTF-8, or without a token.
    """
    if max_length is not None:
        require_count("max_length", max_length, 2)
    found: list[list[str]] = []
    words: dict[str, str] = {}  # one object for all equal words
    for line in read_lines(as_path(path)):
        tokens = [words.setdefault(word, word) for word in line.split()]
        if not tokens or (not headings and tokens[0] == "=" and tokens[-1] == "="):
            continue
        tokens.append(END)
        step = max_length or len(tokens)
        found += (tokens[begin : begin + step] for begin in range(0, len(tokens), step))
    if not found:
        raise data_error(
            Path(path),
            1,
            "no token in the file",
            "at least one line of text",
            "headings=True keeps lines such as = Title =" if not headings else "",
        )
    return found


def chains(sentences: Iterable[Sequence[str]], vocabulary: Vocabulary) -> list[Graph]:
    """Return chains with int features ``token`` and ``label``, the token that follows.

    The first vertex reads ``<eos>`` (the end of the text before) and predicts the first token, so
    that every token is predicted once. The vocabulary should hold ``<eos>``.
    """
    check_vocabulary("vocabulary", vocabulary)
    if isinstance(sentences, str | bytes) or not isinstance(sentences, Iterable):
        raise ConfigError(
            f"sentences are lists of tokens, not {sentences!r:.80}", hint="chains([text.split()])"
        )
    graphs = []
    for number, tokens in enumerate(sentences):
        if isinstance(tokens, str | bytes):
            raise ConfigError(
                f"sentence {number} is a list of tokens, not the text {tokens!r:.80}",
                hint="text.split() gives its words, list(text) its characters",
            )
        if not (hasattr(tokens, "__len__") and hasattr(tokens, "__getitem__")):
            raise ConfigError(
                f"sentence {number} is a list of tokens, not {tokens!r:.80}", hint="list(tokens)"
            )
        label = vocabulary.encode(tokens)
        token = vocabulary.encode([END, *tokens[:-1]])
        features = {"token": token, "label": label}
        graphs.append(Graph.chain(len(tokens), features=features, name=f"sentence {number}"))
    return graphs
