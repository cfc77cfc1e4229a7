"""Word lattices: chains of characters with a vertex for every word that a drawn lexicon has."""

from __future__ import annotations

import numpy as np

import cavs


def lattice(rng, length, density=0.5, longest=4, size=9):
    """Return a chain of `length` characters, and words over some of its parts.

    A word gathers from its first character; its last one gathers from the character before, and
    from all words that end there. ``char`` and ``word`` are each absent at vertices of the other
    kind.
    """
    words = []
    for begin in range(length - 1):
        for end in range(begin + 1, min(length, begin + longest)):
            if rng.random() < density / longest:
                words.append((begin, end))
    children = [[i - 1] if i else [] for i in range(length)]
    for number, (_, end) in enumerate(words):
        children[end].append(length + number)
    children += [[begin] for begin, _ in words]
    n = len(children)
    char, word = np.full(n, -1), np.full(n, -1)
    char[:length] = rng.integers(0, size, length)
    word[length:] = rng.integers(0, size, n - length)
    label = np.where(char >= 0, char % 3, -1)
    return cavs.Graph(children, {"char": char, "word": word, "label": label})


def lattices(count, seed=0, length=(6, 20), **options):
    """Return `count` lattices of drawn lengths."""
    rng = np.random.default_rng(seed)
    return [lattice(rng, int(rng.integers(*length)), **options) for _ in range(count)]
