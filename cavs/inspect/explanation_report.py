"""The fields of an explanation: how a model is compiled, and what one run of a batch did."""

from __future__ import annotations

from dataclasses import dataclass

from cavs.inspect.explained_model import FunctionReport, KindReport, TaskReport
from cavs.inspect.measure import RunReport


@dataclass(frozen=True)
class BodyReport:
    """Nodes that run together. when: eager, loop or lazy; why: the reason."""

    when: str
    where: str
    why: str
    stage: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class StageReport:
    """A stage of the program. backward: it runs in the first stage of backward or later."""

    label: str
    type: str
    backward: bool


@dataclass(frozen=True)
class BufferReport:
    """A buffer of the program; it is alive from stage ``first`` to stage ``last``, inclusive.

    bytes: of its rows in this batch; 0 where it has no storage of its own in the arena.
    """

    name: str
    value: str
    role: str
    space: str
    width: int
    first: int
    last: int
    bytes: int


@dataclass(frozen=True)
class ExplanationReport:
    """The pipeline of a model for batches like one batch.

    stages: name and text after every pass. kernels: number of the instruction and its lines.
    cuda: the same kernels as CUDA C, from which the engine for GPUs compiles its own.
    not_batched: work that ran in more or smaller pieces than it might, and why. persistent: on a
    device, the loops whose narrow tasks one kernel can walk, and the resources of each. functions:
    the vertex functions of the model. kinds and tasks: of the batch. order: the stages that run.
    """

    stages: tuple[tuple[str, str], ...]
    bodies: tuple[BodyReport, ...]
    program: str
    kernels: dict[int, tuple[str, ...]]
    cuda: dict[int, str]
    buffers: tuple[BufferReport, ...]
    not_batched: tuple[str, ...] = ()
    run: RunReport | None = None
    persistent: tuple[str, ...] = ()
    model: str = ""
    training: bool = True
    functions: tuple[FunctionReport, ...] = ()
    kinds: tuple[KindReport, ...] = ()
    tasks: tuple[TaskReport, ...] = ()
    order: tuple[StageReport, ...] = ()
