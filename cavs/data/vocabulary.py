"""Tokens and their indices."""

from __future__ import annotations

import codecs
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from cavs.config import is_whole, require_count
from cavs.data.source import as_path, read_bytes, write_file
from cavs.errors import ConfigError, DataError

UNKNOWN = "<unk>"
_SAVED = "give a file that Vocabulary.save wrote"


@final
class Vocabulary:
    """A fixed list of tokens; index 0 is ``<unk>``, the index of every token that is not listed.

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
        """Count tokens and keep those seen ``min_count`` times or more, frequent ones first.

        ``max_size`` counts ``<unk>``; ties are broken by the token, so equal data gives equal
        vocabularies.
        """
        _check_listed(tokens)
        require_count("min_count", min_count, 0)
        if max_size is not None:
            require_count("max_size", max_size)
        try:
            counts = Counter(tokens)
        except TypeError as error:  # which may be an error of the user's generator, too
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
        """Return the indices of tokens, int32[n]: 0 for unknown ones, -1 for None (no token)."""
        _check_listed(tokens)
        get, listed = self._index.get, list(tokens)
        try:
            return np.array([-1 if t is None else get(t, 0) for t in listed], np.int32)
        except TypeError as error:
            raise _no_text(error) from None

    def decode(self, indices: Iterable[int]) -> list[str | None]:
        """Return the tokens of indices, None for -1. ConfigError for an index out of range."""
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
        """Return all tokens but ``<unk>``, as a checkpoint stores them for ``Vocabulary(...)``."""
        return list(self._tokens[1:])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tokens as JSON; a reader sees the old file or the new one, never a part."""
        text = json.dumps(self.to_json(), ensure_ascii=False)
        # Half of a surrogate pair is no UTF-8, but JSON can escape it.
        write_file(path, [text.encode(errors="backslashreplace")])

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Vocabulary:
        """Read a file of ``save``. DataError for any other."""
        raw = read_bytes(as_path(path)).removeprefix(codecs.BOM_UTF8)
        try:
            tokens = json.loads(raw.decode())
        except (RecursionError, ValueError) as error:
            raise DataError(f"{path}: no vocabulary: {error}", hint=_SAVED) from None
        if not _is_token_list(tokens):
            raise DataError(
                f"{path}: no vocabulary; expected a JSON list of distinct strings", hint=_SAVED
            )
        return cls(tokens)


def _is_listed(values: object) -> bool:
    """True if there is something to iterate over, which an array without axes lacks."""
    try:
        iter(values)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def _check_listed(tokens: object) -> None:
    """ConfigError for a text, whose characters would be the tokens, and for what has no items."""
    if isinstance(tokens, str | bytes):
        raise ConfigError(
            f"tokens are a list of texts, not the text {tokens!r:.80}",
            hint="text.split() gives its words, list(text) its characters",
        )
    if not _is_listed(tokens):
        raise ConfigError(
            f"tokens are a list of texts, not {tokens!r:.80}", hint='give a list: ["a", "b"]'
        )


def check_vocabulary(name: str, value: object) -> None:
    """ConfigError unless the argument ``name`` is a `Vocabulary`."""
    if not isinstance(value, Vocabulary):
        raise ConfigError(
            f"{name} is {value!r:.80}, but must be a cavs.data.Vocabulary",
            hint="Vocabulary.build(tokens) makes one of the tokens of a text",
        )


def check_names(name: str, value: object) -> None:
    """ConfigError unless the argument ``name`` is a list of texts, such as labels."""
    if isinstance(value, str):
        raise ConfigError(f"{name} are a list, not the text {value!r:.80}", hint=f"{name}.split()")
    if not _is_listed(value) or not all(isinstance(item, str) for item in value):  # type: ignore[attr-defined]
        raise ConfigError(
            f"{name} are a list of texts, not {value!r:.80}", hint=f'{name}=["NP", "VP"]'
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
