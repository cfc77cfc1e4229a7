"""Compressors by name, as strategies and the command line write them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

from cavs.distributed.compression.exchange import Compressor
from cavs.distributed.compression.fewer_numbers import PowerSGD, TopK
from cavs.distributed.compression.quantise import BFloat16, ErrorFeedback, Float16, Identity, OneBit
from cavs.errors import ConfigError

_FORM = re.compile(r"\s*(\w+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_MAKE: dict[str, Callable[..., Compressor]] = {
    "none": Identity,
    "float16": Float16,
    "bfloat16": BFloat16,
    "onebit": lambda: ErrorFeedback(OneBit()),
    "powersgd": PowerSGD,
    "topk": TopK,
}
NAMES = (*_MAKE, "error_feedback")
_FED_BACK = ("float16", "bfloat16")
# Open at the lower end where a value of it makes no sense.
_LIMITS = {
    "rank": (1, 4096, True),
    "ratio": (0.0, 1.0, False),
    "momentum": (0.0, 0.9999, True),
    "clip": (0.0, math.inf, True),
    "warm_up": (0, 10**9, True),
}


def parse(text: str) -> Compressor:
    """Return the compressor called `text`: ``none``, ``float16``, ``bfloat16``, ``onebit``,
    ``powersgd(rank=2)``, ``topk(ratio=0.01, momentum=0.9, clip=5, warm_up=1000)``, or
    ``error_feedback(float16)`` and so on. Raises `ConfigError`.
    """
    if not isinstance(text, str):
        raise ConfigError(
            f"compressor is {text!r}, which is no string", hint=f"use one of {', '.join(NAMES)}"
        )
    return _parsed(text)


@lru_cache(maxsize=256)
def _parsed(text: str) -> Compressor:
    form = _FORM.fullmatch(text)
    name, inside = form.groups("") if form else ("", "")
    if name not in NAMES:
        raise ConfigError(f"unknown compressor {text!r}", hint=f"use one of {', '.join(NAMES)}")
    if name == "error_feedback":
        inner = parse(inside or "none")
        if inner.name not in _FED_BACK:
            raise ConfigError(
                f"{text}: {inner} loses nothing, or feeds its own errors back",
                hint=f"error_feedback takes {' or '.join(_FED_BACK)}",
            )
        return ErrorFeedback(inner)
    make: Any = _MAKE[name]
    known = {f.name: f.type for f in fields(make)} if is_dataclass(make) else {}
    options: dict[str, Any] = {}
    for item in inside.split(",") if inside.strip() else ():
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or key not in known or key in options:
            raise ConfigError(
                f"compressor {text!r}: {item.strip()!r}",
                hint=f"{name} takes {', '.join(f'{k}=...' for k in known) or 'no options'}",
            )
        options[key] = _number(text, key, value, whole=known[key] == "int")
    compressor: Compressor = make(**options)
    return compressor


def _number(text: str, key: str, value: str, *, whole: bool) -> float:
    least, most, closed = _LIMITS[key]
    try:
        number = int(value) if whole else float(value)
    except ValueError:
        number = math.nan
    if not (least <= number <= most and math.isfinite(number)) or (number == least and not closed):
        above = "at least" if closed else "above"
        form = "a whole number" if whole else "a number"
        raise ConfigError(
            f"compressor {text!r}: {key} is {value!r}",
            hint=f"give {form}, {above} {least:g}" + (f", at most {most:g}" * (most < math.inf)),
        )
    return number
