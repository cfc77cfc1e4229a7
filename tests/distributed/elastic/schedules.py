"""Random schedules of deaths, resizes and stops, and a policy that follows one."""

import random
from dataclasses import dataclass, field

from cavs.train import Policy

STEPS = 30
CALM = 4  # attempts to end a run, before the last


@dataclass(frozen=True)
class Schedule:
    """A part of a run, up to its end or a stop.

    ranks, spares: processes at the begin. sizes: wanted number of ranks after a step. deaths:
    processes that die, with the number of their messages by then, or the step and a delay.
    stop: the step after which a rank is told to stop, if any.
    """

    ranks: int
    spares: int
    sizes: dict[int, int] = field(default_factory=dict)
    deaths: dict[int, object] = field(default_factory=dict)
    stop: int | None = None


def draw(rng: random.Random, begun: int, death, attempt: int) -> Schedule:
    """Return a schedule for the steps from `begun` on; death: draws when a process dies.

    One process at least never dies; none does, and none is stopped, after some attempts.
    """
    ranks, spares = rng.randint(1, 4), rng.randint(0, 2)
    every = ranks + spares
    left = range(begun + 1, STEPS)
    sizes = {step: rng.randint(1, every) for step in rng.sample(left, min(len(left), 3))}
    victims = rng.sample(range(every), rng.randint(0, min(every - 1, 2)))
    stop = rng.choice(left) if left and rng.random() < 0.4 else None
    if attempt == CALM:
        victims, stop = [], None
    return Schedule(ranks, spares, sizes, {p: death(rng) for p in victims}, stop)


class Scheduled(Policy):
    """Resizes after the steps of a schedule, and notes the number of ranks of every step."""

    def __init__(self, sizes):
        self.sizes, self.ranks = sizes, {}

    def after_step(self, run):
        self.ranks[run.step] = run.size
        if run.step in self.sizes:
            run.resize(min(self.sizes[run.step], run.max_size))

    def state_dict(self):
        return {"ranks": self.ranks}

    def load_state_dict(self, state):
        self.ranks = {int(step): size for step, size in state["ranks"].items()}
