"""Options of the programs, checked before anything is measured."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Any

from benchmarks.workloads import Case, load
from cavs.cli.numbers import count as at_least
from cavs.config import MAX_THREADS
from cavs.errors import CavsError

__all__ = [
    "THREADS",
    "OptionParser",
    "at_least",
    "builder_name",
    "compressor_name",
    "not_negative",
    "positive",
    "power_of_two",
    "refuse_too_few_samples",
    "strategy_name",
]
THREADS = at_least(1, MAX_THREADS)


class OptionParser(argparse.ArgumentParser):
    """The options of one program; a list of values may not repeat one."""

    def __init__(self, program: str, description: str) -> None:
        super().__init__(
            prog=f"python -m {program}",
            description=description,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )

    def parse_args(  # type: ignore[override]
        self, args: SequenceOf[str] | None = None, namespace: Any = None
    ) -> argparse.Namespace:
        given: argparse.Namespace = super().parse_args(args, namespace)
        for action in self._actions:
            values = getattr(given, action.dest, None)
            if isinstance(values, list) and len(set(values)) < len(values):
                twice = next(value for value in values if values.count(value) > 1)
                name = action.option_strings[0] if action.option_strings else "the arguments"
                self.error(f"{name}: {twice} is there twice; leave one of them out")
        return given


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def positive(text: str) -> float:
    """Return a number above 0: an argparse type."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def power_of_two(text: str) -> int:
    """Return a power of two: an argparse type."""
    value = at_least(1)(text)
    if value & (value - 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a power of two")
    return value


def not_negative(text: str) -> float:
    """Return a number of at least 0: an argparse type."""
    value = _number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def _checked(text: str, check: Callable[[str], object]) -> str:
    """Return `text`; an error of argparse if `check` raises one of cavs."""
    try:
        check(text)
    except CavsError as error:
        raise argparse.ArgumentTypeError(f"{error.what}; {error.hint}") from None
    return text


def builder_name(text: str) -> str:
    """Return the name of a strategy builder: an argparse type."""
    from cavs.distributed.planning.builders import find

    return _checked(text, find)


def strategy_name(*built_in: str) -> Callable[[str], str]:
    """Return an argparse type: a builder, a strategy file, or one of `built_in`."""

    def parse(text: str) -> str:
        from cavs.distributed.planning.auto import is_file
        from cavs.distributed.strategy import load

        if text in built_in:
            return text
        return _checked(text, load) if is_file(text) else builder_name(text)

    return parse


def compressor_name(text: str) -> str:
    """Return the name of a compressor: an argparse type."""
    from cavs.distributed.compression.parse import parse

    return _checked(text, parse)


def refuse_too_few_samples(parser: argparse.ArgumentParser, case: Case) -> None:
    """End the program if the data has fewer samples than a case takes."""
    try:
        load(case)
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
