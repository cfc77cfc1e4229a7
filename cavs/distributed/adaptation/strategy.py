"""Settings of a running training by which its ranks go on with another strategy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cavs.config import require
from cavs.distributed.elastic.resize import Resizer
from cavs.distributed.planning.auto import is_file
from cavs.distributed.planning.builders import PartialExchange, find
from cavs.distributed.strategy import Strategy
from cavs.errors import ConfigError
from cavs.train.run_table import Setting


def strategy_settings(resizer: Resizer) -> dict[str, Setting]:
    """Return the settings ``"strategy"`` and ``"exchange_budget"``.

    A change takes effect before the next step: replicas that differ are averaged, and the ranks
    build the strategy and its exchanges as at the start. Compressors keep what they have not sent.
    """
    training = resizer.training

    def name() -> str | None:
        requested = training.requested
        return requested.builder if isinstance(requested, Strategy) else requested

    def change(text: str | None) -> None:
        training.requested = text
        resizer.rebuilds = True

    def budget() -> float:
        builder = _partial(name())
        return 1.0 if builder is None else builder.budget

    def change_budget(value: float) -> None:
        change(str(replace(_partial(name()) or PartialExchange(), budget=float(value))))

    def check_budget(value: Any) -> None:
        PartialExchange(budget=value)

    return {
        "strategy": Setting(name, change, _check_name),
        "exchange_budget": Setting(budget, change_budget, check_budget),
    }


def _check_name(text: Any) -> None:
    require(text is None or isinstance(text, str), "strategy", text, "the name of a builder")
    if text is not None and is_file(text):
        raise ConfigError(
            f"strategy is {text!r}, a file of a strategy for one number of ranks",
            hint="name a builder, which builds one for any number",
        )
    if text is not None:
        find(text)


def _partial(text: str | None) -> PartialExchange | None:
    """Return the builder that `text` names if it is of partial exchange."""
    if not text or is_file(text):
        return None
    builder = find(text)
    return builder if isinstance(builder, PartialExchange) else None
