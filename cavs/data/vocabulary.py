"""Tokens and their indices."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from cavs.config import is_whole, require_count
from cavs.data.source import as_path
from cavs.data.whole_file import replace_whole
from cavs.errors import ConfigError, DataError

UNKNOWN = "<unk>"
_SAVED = "give a file that Vocabulary.save wrote"


@final
class Vocabulary:
    """A fixed list of tokens; index 0 is ``<unk>``, which every other token is read as.

    ``tokens``: all tokens but ``<unk>``, without repetition.
    """

    __slots__ = ("_index", "_tokens")

    def __init__(self, tokens: Iterable[str]) -> None:
        _check_listed(tokens)
        self._tokens = (UNKNOWN, *(token for token in tokens if token != UNKNOWN))
        for token in self._tokens:
            _check_text(token)
        self._index = {token: i for i, token in enumerate(self._tokens)}
        if len(self._index) != len(self._tokens):
            twice = next(t for t, n in Counter(self._tokens).items() if n > 1)
            raise ConfigError(
                f"a vocabulary holds each token once, found {twice!r} twice",
                hint="Vocabulary.build(tokens) counts the tokens of a text",
            )

    @classmethod
    def build(
        cls, tokens: Iterable[str], min_count: int = 1, max_size: int | None = None
    ) -> Vocabulary:
        """Counts tokens and keeps those seen ``min_count`` times or more, frequent ones first.

        ``max_size`` counts ``<unk>``; ties are broken by the token, so equal data gives equal
        vocabularies.
        """
        _check_listed(tokens)
        require_count("min_count", min_count, 0)
        if max_size is not None:
            require_count("max_size", max_size)
        try:
            counts = Counter(tokens)
        except TypeError as error:  # which may come from what gives the tokens, too
            if "unhashable" not in str(error):
                raise
            raise _no_text(error) from None
        for token in counts:
            _check_text(token)
        del counts[UNKNOWN]
        kept = [token for token, n in counts.items() if n >= min_count]
        kept.sort(key=lambda token: (-counts[token], token))
        return cls(kept if max_size is None else kept[: max_size - 1])

    def __len__(self) -> int:
        return len(self._tokens)

    def __contains__(self, token: object) -> bool:
        return token in self._index

    def __getitem__(self, token: str) -> int:
        return self._index.get(token, 0)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tokens)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self._tokens == other._tokens

    def __hash__(self) -> int:
        return hash(self._tokens)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} tokens)"

    def encode(self, tokens: Iterable[str | None]) -> NDArray[np.int32]:
        """Indices of tokens, int32[n]: 0 for unknown ones, -1 for None (no token here)."""
        _check_listed(tokens)
        get, listed = self._index.get, list(tokens)
        try:
            return np.array([-1 if t is None else get(t, 0) for t in listed], np.int32)
        except TypeError as error:
            raise _no_text(error) from None

    def decode(self, indices: Iterable[int]) -> list[str | None]:
        """Tokens of indices, None for -1. ConfigError for an index outside the vocabulary."""
        out: list[str | None] = []
        if not _is_listed(indices):
            raise ConfigError(
                f"indices are a list of numbers, not {indices!r:.80}",
                hint="vocabulary.decode([index]) of one",
            )
        for index in indices:
            if not is_whole(index):
                raise ConfigError(
                    f"an index is a whole number, not {index!r:.80}",
                    hint=f"indices are 0 to {len(self) - 1}, or -1 for no token; "
                    "vocabulary.encode(tokens) gives those of tokens",
                )
            if not -1 <= index < len(self._tokens):
                raise ConfigError(
                    f"index {index} is outside a vocabulary of {len(self)} tokens",
                    hint=f"indices are 0 to {len(self) - 1}, or -1 for no token",
                )
            out.append(None if index == -1 else self._tokens[index])
        return out

    def to_json(self) -> list[str]:
        """All tokens but ``<unk>``, for a checkpoint; ``Vocabulary(...)`` takes them back."""
        return list(self._tokens[1:])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the tokens as JSON; a reader sees the old file or the new one, never a part."""
        target = as_path(path)
        text = json.dumps(self.to_json(), ensure_ascii=False)
        try:
            # Half of a surrogate pair is no UTF-8, but can be said in JSON.
            replace_whole(target, [text.encode(errors="backslashreplace")])
        except OSError as error:
            raise DataError(
                f"{target}: cannot be written: {error.strerror or error}",
                hint="choose a folder and file that you may write to",
            ) from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Vocabulary:
        """Reads what ``save`` wrote. DataError for anything else."""
        source = as_path(path)
        try:
            tokens = json.loads(source.read_text(encoding="utf-8"))
        except OSError as error:
            raise DataError(
                f"{path}: cannot be read: {error.strerror or error}",
                hint="check the path, and that the file may be read",
            ) from None
        except (RecursionError, ValueError) as error:
            raise DataError(f"{path}: no vocabulary: {error}", hint=_SAVED) from None
        if not _is_token_list(tokens):
            raise DataError(
                f"{path}: no vocabulary; expected a JSON list of distinct strings", hint=_SAVED
            )
        return cls(tokens)


def _is_listed(values: object) -> bool:
    """Whether there is something to go through; of an array of no axis there is not."""
    try:
        iter(values)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def _check_listed(tokens: object) -> None:
    """ConfigError for a text, which would be taken for its characters, and for what holds none."""
    if isinstance(tokens, str | bytes):
        raise ConfigError(
            f"tokens are a list of texts, not the text {tokens!r:.80}",
            hint="text.split() gives its words, list(text) its characters",
        )
    if not _is_listed(tokens):
        raise ConfigError(
            f"tokens are a list of texts, not {tokens!r:.80}", hint='give a list: ["a", "b"]'
        )


def _check_text(token: object) -> None:
    if not isinstance(token, str):
        raise ConfigError(f"a vocabulary holds texts, found {token!r:.80}", hint="str(token)")


def _no_text(error: TypeError) -> ConfigError:
    return ConfigError(
        f"a token is a text: {error}", hint="give the tokens of one sequence, not lists of tokens"
    )


def _is_token_list(tokens: object) -> bool:
    return (
        isinstance(tokens, Sequence)
        and not isinstance(tokens, str)
        and all(isinstance(token, str) for token in tokens)
        and len(set(tokens)) == len(tokens)
    )
