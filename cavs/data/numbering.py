"""Numbers for texts: words, labels, relations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cavs.data.source import shown
from cavs.data.vocabulary import Vocabulary
from cavs.errors import ConfigError, DataError

#: What gives texts their numbers; of a list, a text has the number of its place.
Numbering = Vocabulary | Sequence[str] | Mapping[str, int] | Callable[[str], int]


def numbered(
    texts: Sequence[str | None], by: Numbering, what: str, where: str, first: int
) -> NDArray[np.int32]:
    """The numbers of texts, int32[n]; -1 for None.

    ``what`` the texts are, and ``where``, the first at number ``first``, is for errors: DataError
    for a text that has no number, ConfigError for what is no numbering.
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
        told = f"{where} {first + i} has {what} {shown(text)}"
        if isinstance(by, Mapping):
            if text not in by:
                raise DataError(
                    f"{told}; expected one of {' '.join(map(str, by)):.160}",
                    hint=f"number every {what} that occurs; a Vocabulary has a number for the rest",
                )
            number = by[text]
        else:
            number = _called(by, text, what, told)
        if not isinstance(number, int | np.integer) or not -1 <= number < 2**31:
            raise ConfigError(
                f"{told}, whose number is {number!r:.80}; numbers are integers of 32 bits, from 0",
                hint=f"-1 says that there is no {what}",
            )
        found[i] = number
    return found


def _called(by: Callable[[str], int], text: str, what: str, told: str) -> int:
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
            f"{told}, which has no number: {error}",
            hint=f"the function is to number every {what} that occurs",
        ) from None
