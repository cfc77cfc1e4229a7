"""One program on all ranks of a step: each compiles for what any rank needs, then they compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cavs._engine import Executor
from cavs.distributed.balance.shards import ShardedBatch
from cavs.distributed.comm.interfaces import Communicator
from cavs.distributed.step.context import StepContext
from cavs.distributed.step.devices import join_devices
from cavs.distributed.step.digest import guesses, same_program
from cavs.distributed.step.executors import ServerExecutor
from cavs.errors import CommunicationError


class FailedPeerError(Exception):
    """Another rank cannot compile for its part of a batch."""


@contextmanager
def kinds_union(group: Communicator) -> Iterator[Callable[[Sequence[Any]], list[Any]]]:
    """Yield the union of the kinds of a group of ranks; `Session.compile_for` calls it twice.

    A rank that fails to compile in the block tells the others, which end the block and wait for its
    error at their next consensus.
    """
    calls = 0

    def union(values: Sequence[Any]) -> list[Any]:
        nonlocal calls
        calls += 1
        shared = group.share(list(values))
        if None in shared:
            raise FailedPeerError
        return sorted({v for other in shared for v in other})

    try:
        yield union
    except FailedPeerError:
        return
    except CommunicationError:
        raise
    except Exception:
        if calls == 0 or calls % 2:  # others may wait for the next values
            group.share(None)
        raise


def prepare_together(
    context: StepContext, batch: Any, failed: Exception | None = None
) -> tuple[ShardedBatch, Any, Any]:
    """Return this rank's part, the executor that the ranks of a step have alike, and its inputs.

    failed: an error of this rank, which all raise instead.
    """
    part: ShardedBatch | None = None
    with context.team_agreement.guard("step") as found:
        found.new, found.stop = True, context.wants_stop and not context.asynchronous
        if failed is not None:
            raise failed
        part = context.shard(batch)
        lost = context.group is not None and context.group.lost
        if not (lost or context.exchanging is None or context.session.is_new(part.local)):
            executor, inputs, _ = context.ready(part)
            found.new = executor is not context.exchanging  # the exchanges send its memory
    context.stopping |= found.stop
    assert part is not None
    if found.new:
        executor, inputs = compile_together(context, part)
    return part, executor, inputs


def compile_together(context: StepContext, part: ShardedBatch) -> tuple[Any, Any]:
    """Compile one program on all ranks of a step, and make its exchanges."""
    roles, agreement = context.roles, context.team_agreement
    if not context.asynchronous and (context.group is None or context.group.lost):
        device = context.session.device
        context.group = join_devices(context.collectives, device, roles.replicas, context.group)
        context.exchanging = None
    group = roles.local if context.asynchronous else roles.replicas
    with agreement.guard("step", known=CommunicationError), kinds_union(group) as union:
        context.session.compile_for(part.local, union)
        executor, inputs, compiled = context.ready(part)
    program = compiled.program
    _share_gradients(context, executor)
    with agreement.guard("exchanges", known=CommunicationError):
        context.exchanges_for(executor, program.gradients, program.int_features)
    order = executor.gradient_order()
    same_program(agreement, None if guesses(part.local) else compiled, order)
    if not context.asynchronous and roles.replicas is not context.communicator:  # to the servers
        context.communicator.share([order, program.gradients, program.int_features])
    return executor, inputs


def receive_program(context: StepContext) -> None:
    """Take part in `compile_together` on a rank that only owns parameters."""
    for phase in ("step", "exchanges"):
        context.agreement.consensus(phase)
    same_program(context.agreement, None, ())
    order, *program = context.communicator.share(None)[0]
    context.exchanges_for(ServerExecutor(context.session.parameters, order), *program)


def _share_gradients(context: StepContext, executor: Any) -> None:
    """Move gradients to memory that all replicas map, if they can; the same on all of them."""
    replicas = context.roles.replicas
    if context.asynchronous or replicas.size == 1 or not isinstance(executor, Executor):
        return
    block = executor.gradient_block()
    every = replicas.share([block.nbytes, executor is context.exchanging])
    if all(known for _, known in every) or len({size for size, _ in every}) > 1:
        return
    memory = replicas.common_memory(block.nbytes) if block.nbytes else None
    if memory is not None:
        executor.set_gradient_block(memory.view(block.dtype))
    context.exchanging = None
