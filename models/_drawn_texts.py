"""Texts with their targets, drawn for the translator, and the symbols that they consist of."""

from __future__ import annotations

import re
import string

import numpy as np

from cavs.errors import ConfigError, DataError

# The symbols of a task, and the longest source of training: letters, or digits of a number.
TASKS = {
    "reversal": (string.ascii_lowercase, 10),
    "copy": (string.ascii_lowercase, 10),
    "arithmetic": (string.digits + "+", 3),
}
# The form of a source of a task, and its description.
LETTERS = ("[a-z]+", "of letters from a to z")
FORMS = {
    "reversal": LETTERS,
    "copy": LETTERS,
    "arithmetic": (r"[0-9]+\+[0-9]+", "two numbers such as 47+8"),
}


def draw_texts(task: str, count: int, lengths: range, seed: int) -> list[tuple[str, str]]:
    """Return sources of these lengths and their targets; of two numbers, one has the length."""
    rng, letters = np.random.default_rng(seed), list(TASKS[task][0])
    pairs = []
    for n in rng.choice(lengths, count):
        if task == "arithmetic":
            digits = rng.permutation([n, rng.integers(1, n + 1)]).tolist()
            a, b = (int(rng.integers(10 ** (k - 1), 10**k)) for k in digits)
            pairs.append((f"{a}+{b}", str(a + b)))
        else:
            text = "".join(rng.choice(letters, n))
            pairs.append((text, text if task == "copy" else text[::-1]))
    return pairs


def part_lengths(task: str, length: int | None) -> tuple[range, range]:
    """Return the lengths of sources in training, and the longer ones that are held out."""
    longest = TASKS[task][1] if length is None else length
    most = 11 if task == "arithmetic" else 1000  # half as many more can be drawn
    if not 1 <= longest <= most:
        raise ConfigError(f"--length {longest}", hint=f"choose at least 1 and at most {most}")
    return range(1, longest + 1), range(longest + 1, longest + longest // 2 + 2)


def encode(task: str, text: str, *more: int) -> np.ndarray:
    """Return the numbers of the symbols of a text, and some more."""
    return np.array([*map(TASKS[task][0].index, text), *more], np.int32)


def parse_sources(task: str, text: str) -> list[np.ndarray]:
    """Return the numbers of the symbols of each line; DataError for an empty or another line."""
    (form, described), found = FORMS[task], []
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        if re.fullmatch(form, line) is None:
            raise DataError(
                f"<text>:{number}: {line!r:.40} is no source of {task}",
                hint=f"give one source per line, {described}",
            )
        found.append(encode(task, line))
    return found
