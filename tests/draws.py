"""Number of random cells and graphs that a test draws, and how."""

from __future__ import annotations

import os

from hypothesis import settings
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

#: The least number that every such test draws, where a thorough run asks for it.
EXAMPLES = int(os.environ.get("CAVS_TEST_EXAMPLES", "0"))


class IndependentDraws(HypothesisProvider):
    """Draws of Hypothesis, without its search for neighbours of earlier examples.

    By default, behind the first ten, five of six examples repeat the one before them with some of
    its choices made equal, so that 160 cells hold about 50 that were drawn. Failures are found
    again and shrunk as usual.
    """


AVAILABLE_PROVIDERS["independent"] = IndependentDraws


def examples(count: int, base: settings | None = None, most: int | None = None) -> settings:
    """Return settings with `count` examples, or as many as CAVS_TEST_EXAMPLES asks for.

    count: in the suite; docs/decisions/054 compares the lines that such numbers reach. base:
    settings to begin with, in place of those of the suite. most: an upper limit, where an example
    takes seconds. More than ten are drawn independently.
    """
    asked = EXAMPLES if most is None else min(EXAMPLES, most)
    drawn = max(count, asked)
    backend = {"backend": "independent"} if drawn > 10 else {}
    return settings(base, max_examples=drawn, **backend)
