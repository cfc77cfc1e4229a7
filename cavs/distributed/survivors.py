"""Going on when a rank dies: the ranks that are left agree on where they are, and continue.

Every rank holds all parameters and optimiser states, so nothing is lost with one. What a training
does together (a step, an evaluation, a checkpoint) is either finished everywhere or, when a rank
dies in it, finished on some ranks and not on others. Those that finished it give the others their
parameters, states and result; if nobody did, all do it again with the batch divided anew.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from cavs.distributed.communicator.protocol import LostPeerError
from cavs.distributed.session import StepReport

if TYPE_CHECKING:
    from cavs.distributed.trainer import Trainer

T = TypeVar("T")


class Survivors:
    """What the ranks of `trainer` do together, with or without those that die."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.done = 0  # things finished together
        self.last: Any = None  # the result of the last of them, as JSON

    def go(self, work: Callable[[], T]) -> T:
        """`work()`, which all ranks do together; again, or its result from others, if one dies."""
        while True:
            try:
                result = work()
            except LostPeerError as error:
                if not self.trainer.elastic:
                    raise
                if self._recover(error):
                    return _decode(self.last)  # type: ignore[no-any-return]
            else:
                self.done += 1
                self.last = _encode(result)
                return result

    def _recover(self, error: LostPeerError) -> bool:
        """Meets the ranks that are left; whether others had finished what this rank was at."""
        trainer = self.trainer
        while True:
            before = trainer.communicator
            try:
                c = before.shrink()
                trainer.session.move_to(c)
                standing = c.share([self.done, trainer.steps, self.last])
                done, steps, last = max(standing, key=lambda s: int(s[0]))
                source = [s[0] for s in standing].index(done)
                for parameter, states in zip(
                    trainer.parameters.values(), trainer.states, strict=True
                ):
                    for array in (parameter.value, *states):
                        c.broadcast(array, source)
            except LostPeerError:  # another one, while we met
                continue
            break
        trainer.session.invalidate()
        trainer.steps = int(steps)
        if c.rank == 0:
            gone = before.size - c.size
            print(
                f"cavs: {gone} of {before.size} ranks lost at step {steps + 1}, going on with "
                f"{c.size} ({error})",
                file=sys.stderr,
                flush=True,
            )
        behind = self.done < int(done)
        self.done, self.last = int(done), last
        return behind


def _encode(result: Any) -> Any:
    return {"report": asdict(result)} if isinstance(result, StepReport) else {"value": result}


def _decode(stored: Any) -> Any:
    return StepReport(**stored["report"]) if "report" in stored else stored["value"]
