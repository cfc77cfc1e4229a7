"""Indices of texts: words, labels, relations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cavs.data.source import shown
from cavs.data.vocabulary import Vocabulary
from cavs.errors import ConfigError, DataError

#: A mapping of texts to numbers; in a list, the number of a text is its index.
Numbering = Vocabulary | Sequence[str] | Mapping[str, int] | Callable[[str], int]


def numbered(
    texts: Sequence[str | None], by: Numbering, what: str, where: str, first: int
) -> NDArray[np.int32]:
    """Return the numbers of texts, int32[n]; -1 for None.

    For errors: ``what`` names one text, ``where`` its owner, counted from ``first``. DataError for
    a text that has no number, ConfigError for anything but a numbering.
    """
    if isinstance(by, Vocabulary):
        return by.encode(texts)
    if isinstance(by, str):
        raise ConfigError(
            f"a {what} is numbered by a list of texts, not the text {by!r:.80}",
            hint="text.split() gives its words, list(text) its characters",
        )
    if isinstance(by, Sequence):
        by = {text: i for i, text in enumerate(by)}
    found = np.full(len(texts), -1, np.int32)
    for i, text in enumerate(texts):
        if text is None:
            continue
        owner = f"{where} {first + i} has {what} {shown(text)}"
        if isinstance(by, Mapping):
            if text not in by:
                raise DataError(
                    f"{owner}; expected one of {' '.join(map(str, by)):.160}",
                    hint=f"number every {what} that occurs; a Vocabulary has a number for the rest",
                )
            number = by[text]
        else:
            number = _called(by, text, what, owner)
        if not isinstance(number, int | np.integer) or not -1 <= number < 2**31:
            raise ConfigError(
                f"{owner}, whose number is {number!r:.80}; numbers are integers of 32 bits, from 0",
                hint=f"-1 says that there is no {what}",
            )
        found[i] = number
    return found


def _called(by: Callable[[str], int], text: str, what: str, owner: str) -> int:
    if not callable(by):
        raise ConfigError(
            f"a {what} is numbered by a Vocabulary, a list of names, a mapping or a function, "
            f"not by {by!r:.80}",
            hint="Vocabulary.build(texts) numbers all of some texts",
        )
    try:
        return by(text)
    except (LookupError, ValueError) as error:
        raise DataError(
            f"{owner}, which has no number: {error}",
            hint=f"the function must number every {what} that occurs",
        ) from None
