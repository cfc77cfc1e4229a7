"""Plain text as chains of tokens, for language models."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from cavs.config import require_count
from cavs.data.features import NO_FEATURES
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
    graphs = []
    for number, tokens in enumerate(_token_lists(sentences, vocabulary)):
        label = vocabulary.encode(tokens)
        token = vocabulary.encode([END, *tokens[:-1]])
        features = {"token": token, "label": label}
        graphs.append(Graph.chain(len(tokens), features=features, name=f"sentence {number}"))
    return graphs


def parallel_chains(
    sentences: Iterable[Sequence[str]],
    vocabulary: Vocabulary,
    count: int,
    length: int,
    graph_features: Mapping[str, ArrayLike] = NO_FEATURES,
) -> list[Graph]:
    """Return chains of ``length`` vertices for truncated backpropagation through a whole text.

    The text is cut into ``count`` equal parts, and each part into chains. The first chains of all
    parts come first, then the second ones, and so on: in batches of ``count`` graphs, without
    shuffling, each graph continues that at the same position of the batch before. The last chains
    may be shorter; fewer than ``count`` tokens at the end are left out. Features are those of
    `chains`, "token" and "label" (int32, one number a vertex), and ``graph_features``, such as
    zeros for the states of the first batch. ConfigError for sentences that are no lists of tokens,
    for numbers below 1, and for a text of fewer than ``count`` tokens.
    """
    require_count("count", count)
    require_count("length", length)
    lists = _token_lists(sentences, vocabulary)
    label = np.concatenate([vocabulary.encode([]), *map(vocabulary.encode, lists)])
    token = np.concatenate([vocabulary.encode([END]), label[:-1]])
    each = len(label) // count
    if each == 0:
        raise ConfigError(
            f"a text of {len(label)} tokens cannot be cut into {count} parts",
            hint=f"count is the number of graphs of a batch: at most {len(label)} here",
        )
    graphs = []
    for begin in range(0, each, length):
        size = min(length, each - begin)
        for part in range(count):
            rows = slice(part * each + begin, part * each + begin + size)
            features = {"token": token[rows], "label": label[rows]}
            name = f"part {part}, token {begin}"
            graphs.append(
                Graph.chain(size, features=features, graph_features=graph_features, name=name)
            )
    return graphs


def _token_lists(
    sentences: Iterable[Sequence[str]], vocabulary: Vocabulary
) -> Iterator[Sequence[str]]:
    """Yield the lists of tokens; ConfigError for anything else."""
    check_vocabulary("vocabulary", vocabulary)
    if isinstance(sentences, str | bytes) or not isinstance(sentences, Iterable):
        raise ConfigError(
            f"sentences are lists of tokens, not {sentences!r:.80}", hint="chains([text.split()])"
        )
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
        yield tokens
