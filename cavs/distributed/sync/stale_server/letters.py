"""Letters between workers and owners of stale parameters.

The first word of a letter is one of these numbers, the second the phase, which increases when all
parameters are written (a checkpoint is loaded), so that no earlier letter is applied after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cavs.distributed.comm.interfaces import Array

PUSH = 1  # attempt, unit numbers; values of each, of tables row numbers and values
COMMIT = 2  # attempt, clock; [scale, learning rate]. The step is whole: apply what was pushed
VALUES = 3  # clock, group; dense values side by side, then rows and values of each table
SETTLE = 4  # clock. This worker makes no more steps until all have settled
FINAL = 5  # clock, group, round, updates; as VALUES, after all was applied; nothing if known
ASK = 6  # how far are your workers?
ANSWER = 7  # for each worker its clock, or -1 if no rank waits for it
FAIL = 8  # the text of an error
STOP = 9  # the number of steps that the sender has promised to make
WAKE = 10  # to oneself: a new phase has begun

ALWAYS = (ASK, ANSWER, FAIL, STOP, WAKE)  # valid in any phase

Post = Callable[[int, Sequence[int], Sequence[Array]], None]
