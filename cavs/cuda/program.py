"""The generated kernels of a compiled program: one module text, and the work of each kernel."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from cavs.codegen.cuda import kernel_text, shape_of
from cavs.codegen.cuda_prelude import HALF_PRELUDE, PRELUDE
from cavs.compiler.program import Program
from cavs.compiler.text import cuda_operands


@dataclass(frozen=True)
class MapKernels:
    """The fused elementwise kernels of a program.

    text: of a module. kernels: for every instruction the name of its kernel and the number of
    threads that a row occupies; ("", 0) if it is no map. A launch over ``rows`` rows should have
    ceil(rows * threads / BLOCK) blocks of ``BLOCK`` threads (see ``cavs.codegen.cuda``); any other
    number of blocks gives the same bits.
    """

    text: str
    kernels: tuple[tuple[str, int], ...]


def map_kernels(program: Program, real: str = "float", half: Collection[int] = ()) -> MapKernels:
    """Generate a kernel ``map_<i>`` for every fused instruction i.

    Instructions of the same text share the kernel of the first. real: "float" or "double". half:
    buffers that are stored in bfloat16; the text then includes bfloat16.cuh.
    """
    texts = [PRELUDE, HALF_PRELUDE] if half else [PRELUDE]
    names: dict[str, str] = {}
    kernels = []
    for n, i in enumerate(program.instructions):
        if not i.traits.fused:
            kernels.append(("", 0))
            continue
        loads, stores = cuda_operands(program, i, half)
        body = (loads, i.ops, stores, i.outer, i.inner, real)
        name = names.setdefault(kernel_text("", *body), f"map_{n}")
        if name == f"map_{n}":
            texts.append(kernel_text(name, *body))
        kernels.append((name, shape_of(loads, stores, i.outer, i.inner, real).threads))
    return MapKernels("\n".join(texts), tuple(kernels))


def program_text(program: Program, real: str = "float") -> str:
    """Return the module text of ``map_kernels``."""
    return map_kernels(program, real).text
