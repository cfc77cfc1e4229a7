"""Functions of arrays of NumPy in programs of JAX, as a primitive of JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from cavs.errors import ConfigError
from cavs.runtime.interface import Array

_HOST = Primitive("cavs_host")
_HOST.multiple_results = True


def on_host(
    function: Callable[..., Any], where: str, types: Callable[[], Any], *arguments: Any
) -> Any:
    """Return what ``function`` returns for ``arguments``, which are trees of arrays, as it gets.

    It is called at once where the arrays are known, and otherwise by the compiled program, which
    may leave a call out or repeat it. types: returns the types of the result. where: the line of
    the user, for errors of transformations that it does not have.
    """
    leaves, within = jax.tree.flatten(arguments)
    structure: Any = None

    def flat(*arrays: Array) -> list[Any]:
        nonlocal structure
        leaves, structure = jax.tree.flatten(function(*jax.tree.unflatten(within, arrays)))
        return list(leaves)

    def flat_types() -> list[Any]:
        nonlocal structure
        leaves, structure = jax.tree.flatten(types())
        return list(leaves)

    results = _HOST.bind(*leaves, function=flat, types=flat_types, where=where)
    return jax.tree.unflatten(structure, results)


def _call(*arrays: Any, function: Callable[..., list[Any]], **_: Any) -> list[Any]:
    """Call it now. An array of NumPy is a view here, which keeps the array of JAX."""
    found: list[Any] = jax.device_put(function(*map(np.asarray, arrays)))
    return found


def _types(*_: Any, types: Callable[[], list[Any]], **__: Any) -> list[Any]:
    return [jax.core.ShapedArray(t.shape, t.dtype) for t in types()]


def _lower(ctx: Any, *operands: Any, function: Callable[..., list[Any]], **_: Any) -> Sequence[Any]:
    def called(*arrays: Array) -> tuple[Any, ...]:
        # The memory of a view is the program's, which uses it again after the call.
        return tuple(function(*(x if x.flags.owndata else x.copy() for x in arrays)))

    results: Sequence[Any]
    results, _token, _kept = mlir.emit_python_callback(
        ctx, called, None, list(operands), ctx.avals_in, ctx.avals_out, has_side_effect=False
    )
    return results


def _refuse_axis(_arrays: Any, _axes: Any, *, where: str, **_: Any) -> NoReturn:
    raise ConfigError(
        "jax.vmap of a function of cavs.jax: graphs differ in their form, so there is no axis to "
        "map over",
        where=where,
        hint="all graphs of a batch run together already: put them into one cavs.batch, and call "
        "apply once; jax.lax.map runs it for several parameters or inputs",
    )


def _refuse_tangents(_arrays: Any, _tangents: Any, *, where: str, **_: Any) -> NoReturn:
    raise ConfigError(
        "second derivatives of a function of cavs.jax",
        where=where,
        hint="differentiate once: the engine has no derivatives of its backward run",
    )


_HOST.def_impl(_call)
_HOST.def_abstract_eval(_types)
mlir.register_lowering(_HOST, _lower)
batching.primitive_batchers[_HOST] = _refuse_axis
ad.primitive_jvps[_HOST] = _refuse_tangents
