"""Choose, from the first batch with several kinds, the order in which their tasks run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cavs import _engine
from cavs.data.vertex_types import number_of_bits

SCHEDULING = ("auto", "level", "agenda", "learned", "fewest")
_SEED = 0  # learning from the same batch gives the same policy in every run


@dataclass(frozen=True)
class Scheduling:
    """The policy of batching that a program runs with.

    name: "level" runs the vertices of each level, kind by kind; "agenda" the kind whose remaining
    vertices have the least mean level; "learned" what a table says. policy: None of "level".
    tasks: of each policy that was tried on the batch it was chosen from, of vertices with children.
    bound: no policy needs fewer.
    """

    name: str
    policy: _engine.SchedulingPolicy | None = None
    tasks: Mapping[str, int] = field(default_factory=dict)
    bound: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        table = None
        if self.policy is not None:
            choices = sorted(self.policy.choices.items())
            table = {"kinds": self.policy.kinds, "choices": [list(c) for c in choices]}
        return {"name": self.name, "table": table, "tasks": dict(self.tasks), "bound": self.bound}

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> Scheduling:
        """Return the inverse of `to_json`. KeyError, TypeError or ValueError for anything else."""
        name, table, policy = stored["name"], stored["table"], None
        if name not in ("level", "agenda", "learned") or (table is None) != (name == "level"):
            raise ValueError(f"no policy {name!r} with the table {table!r:.80}")
        if table is not None:
            choices = {int(ready): int(kind) for ready, kind in table["choices"]}
            policy = _engine.SchedulingPolicy([int(k) for k in table["kinds"]], choices)
        tasks = {str(n): int(count) for n, count in dict(stored["tasks"]).items()}
        return Scheduling(name, policy, tasks, int(stored["bound"]))


#: Returns the schedule of a batch by ``policy=``.
Order = Callable[..., _engine.Schedule]
#: A batch and the presence mask of every vertex, which make its kinds.
Sampled = tuple[_engine.GraphBatch, NDArray[np.uint32] | None]


def chooses(wanted: str, schedule: _engine.Schedule, types: Sequence[str]) -> bool:
    """True if another order than that of levels may run the batch of ``schedule`` in fewer tasks.

    wanted: one of SCHEDULING. With "auto", vertices with children must be of several ``types``.
    """
    if wanted == "level" or (wanted == "auto" and not types):
        return False
    inner = {key >> 1 for key, _, _ in schedule.kinds if key & 1}
    if wanted == "auto":
        inner = {presence % 2 ** number_of_bits(types) for presence in inner}
    return len(inner) > 1


def choose(wanted: str, order: Order, sampled: Sampled) -> Scheduling:
    """Return the wanted policy for batches like that of ``order``, or one with the fewest tasks."""
    found: _Policies = {"level": None, "agenda": _engine.SchedulingPolicy()}
    if wanted != "agenda":
        found["learned"] = _learned(sampled)
    tasks, bound = _tasks(found, order)
    name = wanted if wanted in found else min(found, key=lambda n: tasks[n])
    return Scheduling(name, found[name], tasks, bound)


def compare(chosen: Scheduling | None, order: Order, sampled: Sampled) -> Scheduling:
    """Return the ``chosen`` policy with the tasks that each one needs for the batch of ``order``.

    None: the order of levels. No tasks are counted where vertices with children are of one kind.
    """
    chosen = chosen or Scheduling("level")
    if sum(key & 1 for key, _, _ in order(policy=chosen.policy).kinds) < 2:
        return Scheduling(chosen.name, chosen.policy)
    learned = chosen.policy if chosen.name == "learned" else _learned(sampled)
    found = {"level": None, "agenda": _engine.SchedulingPolicy(), "learned": learned}
    return Scheduling(chosen.name, chosen.policy, *_tasks(found, order))


_Policies = dict[str, _engine.SchedulingPolicy | None]


def _learned(sampled: Sampled) -> _engine.SchedulingPolicy:
    return _engine.learn_policy(*sampled, _SEED)[0]


def _tasks(policies: _Policies, order: Order) -> tuple[dict[str, int], int]:
    """Return how many tasks of vertices with children each policy needs, and the lower bound."""
    level = order(policy=None)
    inner = {i for i, (key, _, _) in enumerate(level.kinds) if key & 1}
    tasks = {
        name: sum(kind in inner for kind, *_ in order(policy=policy).tasks)
        for name, policy in policies.items()
    }
    return tasks, level.fewest_tasks(inner)
