"""Instructions by name, with what the compiler and devices ask of each.

The engine has its own traits of the same names (``csrc/exec/instruction.h``); a test compares the
lists. docs/operators.md shows how to add one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class InstructionTraits:
    """Facts about an instruction.

    fused: reads loads and writes stores, as a generated kernel. sums: sums over all rows of a space
    or of a task, into ``out`` or, if sparse_gradient, into rows of a table. product: inputs side by
    side are one matrix, those before ``split`` another. labels: integer feature ``argument`` labels
    each row. in_place: reads a row before it writes any of it. compares: selects values that
    backward finds by equality. columns: function of cuda/kernels that computes some columns of all
    rows, by which a kernel may walk a loop. cudnn: runs a whole LSTM, on devices only.
    """

    fused: bool = False
    sums: bool = False
    sparse_gradient: bool = False
    product: bool = False
    labels: bool = False
    in_place: bool = False
    compares: bool = False
    columns: str = ""
    cudnn: bool = False

    @property
    def packed_weight(self) -> bool:
        """True if it multiplies rows by a packed weight."""
        return self.product and not self.sums

    @property
    def walked(self) -> bool:
        """True if one kernel may run it for many narrow tasks."""
        return self.fused or self.packed_weight or bool(self.columns)


INSTRUCTIONS = {
    "matmul": InstructionTraits(product=True),
    "map": InstructionTraits(fused=True),
    "segment_max": InstructionTraits(compares=True, columns="max_columns"),
    "segment_product": InstructionTraits(columns="product_columns"),
    "cross_entropy": InstructionTraits(labels=True),
    "cross_entropy_grad": InstructionTraits(labels=True, in_place=True),
    "copy": InstructionTraits(columns="copy_columns"),
    "matmul_tn": InstructionTraits(sums=True, product=True),
    "sum_rows": InstructionTraits(sums=True),
    "lookup_grad": InstructionTraits(sums=True, sparse_gradient=True),
    "lstm": InstructionTraits(cudnn=True),
    "lstm_grad": InstructionTraits(cudnn=True),
    "lstm_weight_grad": InstructionTraits(cudnn=True),
}

FUSED = next(name for name, traits in INSTRUCTIONS.items() if traits.fused)
