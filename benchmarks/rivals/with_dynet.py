"""Tree-LSTM and LSTM in DyNet: expressions for one vertex at a time, batched by DyNet itself.

A program in DyNet builds the graph of every batch, one expression per operation, and DyNet groups
equal operations as it evaluates them (its automatic batching). That graph holds values, so it
cannot be built before: unlike the schedules of others, it is part of the step.

The program does what DyNet's users can do to be fast: the gates are one product with the
concatenated children, sums have three terms at once, and the output layer and the loss run once
over all vertices. Only a DyNet that is built with MKL uses several threads for its products.
"""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from benchmarks.rivals.dynet_memory import MEMORY
from benchmarks.rivals.gates import inverse, permute_gates
from benchmarks.runner import MissingLibrary, Runner
from benchmarks.samples import Sample, Sequence, Tree
from benchmarks.workloads import Parameters

try:
    import dynet_config

    if dynet_config.get() is None:  # has an effect only before dynet is imported
        dynet_config.set(autobatch=1, random_seed=1, mem=MEMORY)
    import _dynet
    import dynet as dy
except ImportError as error:
    raise MissingLibrary("dynet", str(error), "pip install numpy dyNET38 (Python 3.11)") from error

# The symbol is in a library that DyNet is linked with only if that is MKL.
_set_threads = getattr(ctypes.CDLL(_dynet.__file__), "MKL_Set_Num_Threads", None)

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Plan:
    """Lists, because expressions are built in Python one by one."""

    samples: list[Any]
    chosen: list[int]  # the labelled vertices
    label: list[int]  # their labels


class _DyNet(Runner):
    """DyNet stores matrices transposed. ``gate_order`` as in TorchRunner."""

    gate_order: ClassVar[dict[str, tuple[int, ...]]] = {}

    def load_parameters(self, parameters: Parameters) -> None:
        if self.case.device != "cpu" or self.case.precision != "fp32":
            raise ValueError("the rival dynet runs in fp32 on the CPU only")
        if _set_threads is not None:
            _set_threads(self.case.threads)
        self.collection = dy.ParameterCollection()
        self.p: dict[str, Any] = {}
        for name, value in parameters.items():
            array = self._theirs(name, value)
            add = (
                self.collection.lookup_parameters_from_numpy
                if name == "embedding"
                else self.collection.parameters_from_numpy
            )
            self.p[name] = add(np.ascontiguousarray(array))
        kinds = {"sgd": dy.SimpleSGDTrainer, "adagrad": dy.AdagradTrainer}
        self.trainer = kinds[self.case.optimizer](self.collection, self.case.lr)
        self.trainer.set_clip_threshold(-1)  # the others clip no gradients
        # An update clears the gradients; with a learning rate of 0 it does nothing else.
        self.clear = dy.SimpleSGDTrainer(self.collection, 0.0)

    def _theirs(self, name: str, array: Vector) -> Vector:
        order = self.gate_order.get(name)
        array = permute_gates(array, order) if order else array
        return array.T if array.ndim == 2 and name != "embedding" else array

    def _common(self, name: str, array: Vector) -> Vector:
        array = array.T if array.ndim == 2 and name != "embedding" else array
        order = self.gate_order.get(name)
        return permute_gates(array, inverse(order)) if order else array.copy()

    def parameters(self) -> Parameters:
        return {name: self._common(name, p.as_array()) for name, p in self.p.items()}

    def prepare(self, samples: SequenceOf[Sample]) -> Plan:
        label = np.concatenate([sample.label for sample in samples])
        chosen = np.flatnonzero(label >= 0)
        return Plan(
            [self.listed(sample) for sample in samples], chosen.tolist(), label[chosen].tolist()
        )

    @abstractmethod
    def listed(self, sample: Any) -> Any:
        """Return the arrays of a sample as lists."""

    @abstractmethod
    def states(self, samples: list[Any]) -> list[Any]:
        """Return expressions of h of every vertex, in order."""

    def output(self, plan: Plan) -> Any:
        """Return the expression of the logits of all labelled vertices, concatenated as a batch."""
        dy.renew_cg()
        h = self.states(plan.samples)
        if len(plan.chosen) < len(h):
            h = [h[v] for v in plan.chosen]
        return dy.affine_transform([self.p["b_out"], self.p["W_out"], dy.concatenate_to_batch(h)])

    def backward(self, plan: Plan) -> float:
        each = dy.pickneglogsoftmax_batch(self.output(plan), plan.label)
        mean = dy.sum_batches(each) * (1 / len(plan.label))
        loss: float = mean.scalar_value()
        mean.backward()
        return loss

    def train(self, plan: Plan) -> float:
        loss = self.backward(plan)
        self.trainer.update()
        return loss

    def gradients(self, plan: Plan) -> tuple[float, Parameters]:
        loss = self.backward(plan)
        found = {name: self._common(name, p.grad_as_array()) for name, p in self.p.items()}
        self.clear.update()
        return loss, found

    def construct(self, plan: Plan) -> None:
        self.output(plan)

    def infer(self, plan: Plan) -> Any:
        """Evaluate the expression, without the slow conversion to NumPy."""
        output = self.output(plan)
        output.forward()
        return output

    def logits(self, plan: Plan) -> Vector:
        rows: Vector = self.infer(plan).npvalue()  # vertices last
        return rows.reshape(self.sizes.classes, -1).T.copy()


class DyNetTreeLSTM(_DyNet):
    def listed(self, sample: Tree) -> list[tuple[int, int, int]]:
        """Return left child, right child and token of every vertex."""
        arrays = (sample.left, sample.right, sample.token)
        return list(zip(*(array.tolist() for array in arrays), strict=True))

    def states(self, samples: list[list[tuple[int, int, int]]]) -> list[Any]:
        embedding, w, u_all, b_all = (self.p[name] for name in ("embedding", "W", "U", "b"))
        n = self.sizes.hidden
        b_leaf = dy.pick_range(b_all, 0, 3 * n)
        affine, part, add = dy.affine_transform, dy.pick_range, dy.esum
        logistic, tanh, times, concatenate = dy.logistic, dy.tanh, dy.cmult, dy.concatenate
        result = []
        for sample in samples:
            h: list[Any] = []
            c: list[Any] = []
            for left, right, token in sample:
                if left < 0:
                    gates = affine([b_leaf, w, embedding[token]])
                else:
                    gates = affine([b_all, u_all, concatenate([h[left], h[right]])])
                i = logistic(part(gates, 0, n))
                o = logistic(part(gates, n, 2 * n))
                u = tanh(part(gates, 2 * n, 3 * n))
                cell = times(i, u)
                if left >= 0:
                    f_l = logistic(part(gates, 3 * n, 4 * n))
                    f_r = logistic(part(gates, 4 * n, 5 * n))
                    cell = add([cell, times(f_l, c[left]), times(f_r, c[right])])
                c.append(cell)
                h.append(times(o, tanh(cell)))
            result += h
        return result


class DyNetTreeFC(_DyNet):
    def listed(self, sample: Tree) -> list[tuple[int, int, int]]:
        """Return left child, right child and token of every vertex."""
        arrays = (sample.left, sample.right, sample.token)
        return list(zip(*(array.tolist() for array in arrays), strict=True))

    def states(self, samples: list[list[tuple[int, int, int]]]) -> list[Any]:
        embedding, w, b = (self.p[name] for name in ("embedding", "W", "b"))
        result = []
        for sample in samples:
            h: list[Any] = []
            for left, right, token in sample:
                below = [w, dy.concatenate([h[left], h[right]])] if left >= 0 else []
                before = dy.affine_transform([b, *below]) if below else embedding[token] + b
                h.append(dy.tanh(before))
            result += h
        return result


class DyNetLSTM(_DyNet):
    """DyNet's operations for an LSTM. The order of its gates is i, f, o, g; it adds 1 to f."""

    gate_order: ClassVar = {"W": (0, 1, 3, 2), "U": (0, 1, 3, 2), "b": (0, 1, 3, 2)}

    def _theirs(self, name: str, array: Vector) -> Vector:
        result = super()._theirs(name, array)
        return result - self._added() if name == "b" else result

    def parameters(self) -> Parameters:
        found = super().parameters()
        return found | {"b": found["b"] + self._added()}

    def _added(self) -> Vector:
        """Return the addend of DyNet's bias: 1 for f, the second gate in both orders."""
        return np.repeat(np.array([0, 1, 0, 0], np.float32), self.sizes.hidden)

    def listed(self, sample: Sequence) -> list[int]:
        tokens: list[int] = sample.token.tolist()
        return tokens

    def states(self, samples: list[list[int]]) -> list[Any]:
        embedding, w, u, b = (self.p[name] for name in ("embedding", "W", "U", "b"))
        gates_of, cell, state = dy.vanilla_lstm_gates, dy.vanilla_lstm_c, dy.vanilla_lstm_h
        zero = dy.zeros(self.sizes.hidden)
        result = []
        for sample in samples:
            h = c = zero
            for token in sample:
                gates = gates_of(embedding[token], h, w, u, b)
                c = cell(c, gates)
                h = state(c, gates)
                result.append(h)
        return result
