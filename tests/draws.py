"""Number of random cells and graphs that a test draws."""

from __future__ import annotations

import os

from hypothesis import settings

#: The least number that every such test draws, where a thorough run asks for it.
EXAMPLES = int(os.environ.get("CAVS_TEST_EXAMPLES", "0"))


def examples(count: int, base: settings | None = None, most: int | None = None) -> settings:
    """Return settings with `count` examples, or as many as CAVS_TEST_EXAMPLES asks for.

    count: enough for the suite as a whole to reach every line and branch of the compiler, in
    Python, that 500 examples reach. most: an upper limit, where an example takes seconds.
    """
    asked = EXAMPLES if most is None else min(EXAMPLES, most)
    return settings(base, max_examples=max(count, asked))
