"""Sink eager or lazy nodes into loops, as batching without eager or lazy operators does.

With the switch ``hoist_eager`` off, products of inputs run task by task in the loop that reads
them; with ``hoist_lazy`` off, products of states and parameter gradients run in the loop that
computes their operands. This is slower on purpose and shows what hoisting is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cavs.ir import BatchRule, Domain, Graph, Node
from cavs.passes.access import LOCAL_ARRAYS, TO_CHILDREN, TO_PARENTS, Accesses, behind
from cavs.passes.loops import Loop

# Row maps that read a slot, in a loop that runs from the leaves up, and from the roots down.
_RECURRENT = {False: TO_CHILDREN, True: TO_PARENTS}


@dataclass
class SinkIntoLoops:
    """Move nodes into loops. loop: the loop of every node that has one, changed in place. reads,
    readers: edges between computed nodes. space: the rows that a node runs over. movable: nodes
    that may run in a body of rows. roots: values of slots and outputs."""

    graph: Graph
    accesses: Accesses
    loop: dict[Node, Loop]
    reads: dict[Node, list[Node]]
    readers: dict[Node, list[Node]]
    space: Callable[[Node], Domain]
    movable: set[Node]
    roots: set[Node]

    def sink_eager(self) -> None:
        """Move eager nodes into the only loop that reads them, readers first."""
        for n in reversed(list(self.reads)):
            loops = {self.loop.get(r) for r in self.readers[n]}
            if self._may_move(n) and len(loops) == 1 and None not in loops:
                (loop,) = loops
                if loop is not None and all(
                    self._finds_computed(n, r, loop) for r in self.readers[n]
                ):
                    self.loop[n] = loop

    def sink_lazy(self) -> None:
        """Move lazy nodes into the loop that computes their operands, inputs first."""
        terms = self._gradient_terms()
        self._join(n for n in self.reads if n in terms or self._may_move(n))

    def sink_sums(self) -> None:
        """Move only gradients of values that loops compute."""
        terms = self._gradient_terms()
        self._join(n for n in self.reads if n in terms)

    def _join(self, nodes: Iterable[Node]) -> None:
        """Move nodes into the loop that computes their operands."""
        for n in nodes:
            for loop in dict.fromkeys(self.loop[x] for x in self.reads[n] if x in self.loop):
                wanted = loop.gradient or n.op.name == "matmul"
                if wanted and all(self._available(x, n, loop) for x in self.reads[n]):
                    self.loop[n] = loop
                    break

    def _may_move(self, n: Node) -> bool:
        return (
            n not in self.loop
            and n in self.movable
            and n.type.domain.by_structure
            and n not in self.roots
        )

    def _gradient_terms(self) -> set[Node]:
        """Return the sums over rows that are a term of one gradient and nothing else."""
        terms = [n for key, n in self.graph.outputs.items() if key.startswith("grad:")]
        return {
            n
            for n in terms
            if n.op.rule is BatchRule.REDUCE and terms.count(n) == 1 and not self.readers.get(n)
        }

    def _finds_computed(self, x: Node, reader: Node, loop: Loop) -> bool:
        """True if ``reader`` in ``loop`` finds ``x`` computed by its own task or an earlier one."""
        for _, pieces in self.accesses.operands(reader):
            for p in pieces:
                if x not in behind(p.source) or p.array in _RECURRENT[loop.backward]:
                    continue
                if p.source is not x or p.array not in LOCAL_ARRAYS:
                    return False
                if self.space(x) != self.space(reader):
                    return False
        return True

    def _available(self, x: Node, reader: Node, loop: Loop) -> bool:
        if self.loop.get(x) is loop:
            return self._finds_computed(x, reader, loop)
        return not self._depends(x, loop)

    def _depends(self, x: Node, loop: Loop) -> bool:
        """True if ``x`` depends on a result of ``loop``."""
        stack, seen, expanded = [x], {x}, set[Loop]()
        while stack:
            n = stack.pop()
            at = self.loop.get(n)
            if at is loop:
                return True
            together = [n]
            if at is not None:
                if at in expanded:
                    continue
                expanded.add(at)
                together = [m for m, of in self.loop.items() if of is at]
            for y in (y for m in together for y in self.reads.get(m, ())):
                if y not in seen:
                    seen.add(y)
                    stack.append(y)
        return False
