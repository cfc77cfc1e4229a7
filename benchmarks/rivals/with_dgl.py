"""Tree-LSTM in DGL: messages from children to parents, level after level of the batch's one graph.

As DGL's own Tree-LSTM example: the trees of a batch are one graph, and ``prop_nodes`` goes through
its vertices in topological order, all of one level at once; a user's functions say what a child
sends and what a parent makes of its mailbox. Better than that example, leaves alone meet the input
weights, one product has all gates, and the levels are found beforehand. The rest is PyTorch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from benchmarks.runner import MissingLibrary
from benchmarks.samples import Sample
from benchmarks.workloads import Parameters

INSTALL = "pip install --no-deps dgl==2.1.0; pip install torch scipy networkx requests tqdm psutil"
INSTALL += " packaging pandas (Python 3.11)"
try:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    os.environ.setdefault("DGLBACKEND", "pytorch")  # else it writes a file in the home folder
    if tuple(map(int, torch.__version__.split(".")[:2])) > (2, 2):
        # Importing DGL loads GraphBolt, its loader of sampled neighbours, which is built for each
        # PyTorch up to 2.2. No message passes through it, so an empty module replaces it, and
        # the rest of DGL computes with the PyTorch of the other rivals.
        sys.modules.setdefault("dgl.graphbolt", ModuleType("dgl.graphbolt"))
    import dgl

    from benchmarks.rivals.base import TorchRunner
except (ImportError, FileNotFoundError) as error:
    raise MissingLibrary("dgl", str(error), INSTALL) from error


@dataclass(frozen=True)
class GraphPlan:
    graph: Any  # edges from children to parents; the left child's edge is the first
    levels: list[Tensor]  # vertices, without the leaves
    leaf: Tensor  # vertices
    unique: Tensor  # distinct tokens
    token: Tensor  # leaf -> index in `unique`
    label: Tensor  # one per vertex


def _send(edges: Any) -> dict[str, Tensor]:
    return {"h": edges.src["h"], "c": edges.src["c"]}


class DGLTreeLSTM(TorchRunner):
    """The order of gates is u, i, o, f_l, f_r: one tanh slice, one sigmoid slice."""

    gate_order: ClassVar = {"W": (2, 0, 1), "U": (2, 0, 1, 3, 4), "b": (2, 0, 1, 3, 4)}

    def load_parameters(self, parameters: Parameters) -> None:
        super().load_parameters(parameters)
        if self.device.type != "cpu":
            raise ValueError("the rival dgl runs on the CPU only")
        dgl.utils.set_num_threads(self.case.threads)  # a thread pool of its own

    def prepare(self, samples: SequenceOf[Sample]) -> GraphPlan:
        sizes = np.array([len(sample) for sample in samples])
        shift = np.repeat(np.cumsum(sizes) - sizes, sizes)
        left, right, token, label = (
            np.concatenate([getattr(sample, name) for sample in samples]).astype(np.int64)
            for name in ("left", "right", "token", "label")
        )
        inner, leaf = np.flatnonzero(left >= 0), np.flatnonzero(left < 0)
        child = np.stack([left[inner], right[inner]], 1) + shift[inner, None]
        edges = torch.from_numpy(child.ravel()), torch.from_numpy(np.repeat(inner, 2))
        graph = dgl.graph(edges, num_nodes=len(left))
        graph.create_formats_()
        unique, place = np.unique(token[leaf], return_inverse=True)
        return GraphPlan(
            graph,
            list(dgl.topological_nodes_generator(graph))[1:],
            torch.from_numpy(leaf),
            torch.from_numpy(unique),
            torch.from_numpy(place),
            torch.from_numpy(label),
        )

    def forward(self, plan: GraphPlan, embedding_rows: Tensor) -> Tensor:
        """Return logits of every vertex [n, classes]."""
        n, p = self.sizes.hidden, self.p

        def receive(nodes: Any) -> dict[str, Tensor]:
            children_h, children_c = nodes.mailbox["h"], nodes.mailbox["c"]  # [k, 2, n]
            gates = torch.addmm(p["b"], children_h.reshape(-1, 2 * n), p["U"])
            u, rest = gates.split([n, 4 * n], 1)
            i, o, f_l, f_r = torch.sigmoid(rest).split(n, 1)
            c_l, c_r = children_c.unbind(1)
            c = torch.addcmul(torch.addcmul(i * torch.tanh(u), f_l, c_l), f_r, c_r)
            return {"h": o * torch.tanh(c), "c": c}

        x = self.rows_of(embedding_rows, plan.token)
        u, io = torch.addmm(p["b"][: 3 * n], x, p["W"]).split([n, 2 * n], 1)
        i, o = torch.sigmoid(io).split(n, 1)
        c = i * torch.tanh(u)
        with plan.graph.local_scope():  # its values must not outlive the step
            data = plan.graph.ndata
            vertices = x.new_zeros(len(plan.label), n)
            data["h"] = vertices.index_copy(0, plan.leaf, o * torch.tanh(c))
            data["c"] = vertices.index_copy(0, plan.leaf, c)
            dgl.prop_nodes(plan.graph, plan.levels, _send, receive, None)
            return torch.addmm(p["b_out"], data["h"], p["W_out"])

    def compute_gradients(self, plan: GraphPlan) -> tuple[Tensor, Tensor]:
        self.clear_gradients()
        rows = self.p["embedding"].index_select(0, plan.unique).requires_grad_()
        loss = F.cross_entropy(self.forward(plan, rows), plan.label, ignore_index=-1)
        loss.backward()
        assert rows.grad is not None
        return loss.detach(), rows.grad

    @torch.no_grad()  # DGL writes in place, which inference tensors forbid
    def infer(self, plan: GraphPlan) -> Tensor:
        return self.forward(plan, self.p["embedding"].index_select(0, plan.unique))

    def logits(self, plan: GraphPlan) -> npt.NDArray[np.float32]:
        return self.infer(plan).numpy()[plan.label.numpy() >= 0]
