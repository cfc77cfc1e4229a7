"""The operators. Importing a family registers it; each operator is defined in one place."""

from cavs.ops.elementwise import (
    absolute,
    clip,
    elu,
    equal,
    exp,
    gelu,
    leaky_relu,
    log,
    maximum,
    minimum,
    relu,
    sigmoid,
    silu,
    softplus,
    sqrt,
    square,
    stop_gradient,
    tanh,
    where,
)
from cavs.ops.graph import mean_graph, sum_graph, sum_leaves, sum_roots
from cavs.ops.leaves import lookup
from cavs.ops.linalg import bilinear, dot, matmul
from cavs.ops.loss import (
    binary_cross_entropy,
    cross_entropy,
    mean_rows,
    mean_squared_error,
    sum_rows,
)
from cavs.ops.random import dropout
from cavs.ops.reduce import log_softmax, softmax
from cavs.ops.shape import concat, reshape, split

__all__ = [
    "absolute",
    "bilinear",
    "binary_cross_entropy",
    "clip",
    "concat",
    "cross_entropy",
    "dot",
    "dropout",
    "elu",
    "equal",
    "exp",
    "gelu",
    "leaky_relu",
    "log",
    "log_softmax",
    "lookup",
    "matmul",
    "maximum",
    "mean_graph",
    "mean_rows",
    "mean_squared_error",
    "minimum",
    "relu",
    "reshape",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "split",
    "sqrt",
    "square",
    "stop_gradient",
    "sum_graph",
    "sum_leaves",
    "sum_roots",
    "sum_rows",
    "tanh",
    "where",
]
