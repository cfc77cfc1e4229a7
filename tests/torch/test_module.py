"""``cavs.torch.Module``: vertex functions and models in autograd."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given

import cavs
from cavs import nn, ops
from cavs.errors import ConfigError, DTypeError, FeatureError
from tests.draws import examples
from tests.oracle import assert_close, drawn
from tests.random_cells import batches, models, traced_parameters
from tests.runtime.test_input_gradients import CHAIN, ROOTS, SHARED, Encoder, graph_of

torch = pytest.importorskip("torch", reason="cavs.torch needs the package torch")
from torch.utils.checkpoint import checkpoint  # noqa: E402

from cavs.torch import Module  # noqa: E402

torch.set_num_threads(1)
FORMS = (CHAIN, [[]], SHARED, ROOTS)


def batch_of(*forms, seed=0):
    rng = np.random.default_rng(seed)
    return cavs.batch([graph_of(children, rng) for children in forms or FORMS])


def rows_of(batch, size=3, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch.num_vertices, size, dtype=dtype, generator=generator)


@pytest.fixture
def cell():
    found = Encoder(3)
    for i, parameter in enumerate(found.parameters().values()):
        parameter.value = np.random.default_rng(i).normal(size=parameter.shape) / 2
    return found


def reference(module, batch, x):
    """The cell vertex by vertex, in torch."""
    named = dict(module.named_parameters())
    h, first = [], 0
    for graph in batch.graphs:
        own = []
        for v in range(graph.num_vertices):
            below = [own[c] for c in graph.children(v)]
            total = sum(below) if below else torch.zeros_like(x[0])
            own.append(
                torch.tanh(x[first + v] @ named["W.weight"] + named["W.bias"] + total @ named["U"])
            )
        h += own
        first += graph.num_vertices
    return torch.stack(h)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_vertex_function_equals_a_loop_in_torch(cell, dtype):
    module, batch = Module(cell).to(dtype), batch_of()
    x = rows_of(batch, dtype=dtype).requires_grad_()
    found = []
    for function in (lambda: module(batch, x=x), lambda: reference(module, batch, x)):
        module.zero_grad()
        x.grad = None
        h = function()
        assert h.dtype == dtype
        (h * torch.arange(h.numel(), dtype=dtype).reshape(h.shape) / h.numel()).sum().backward()
        found.append([h.detach(), x.grad, *(p.grad.clone() for p in module.parameters())])
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for ours, theirs in zip(*found, strict=True):
        assert_close(ours.numpy(), theirs.numpy(), tolerance, "value")


@examples(8)
@given(models(smooth=True), batches(max_vertices=5, max_graphs=2))
def test_gradcheck_of_random_cells(model, batch):
    batch = traced_parameters(model, batch)
    module = Module(model).double().eval()
    x = torch.tensor(np.asarray(batch["dense"], np.float64), requires_grad=True)

    def function(x, *parameters):
        found = module(batch, dense=x)
        return tuple(found.values()) if isinstance(found, dict) else found

    noise = model.choices["noise"] is not None
    if noise:  # the same numbers in every call
        torch.manual_seed(0)
        state = torch.get_rng_state()
        drawing, inner = function, function

        def function(x, *parameters):
            torch.set_rng_state(state)
            return inner(x, *parameters)

        assert drawing is inner
    parameters = [p for p in module.parameters() if p.numel() <= 12][:3]
    assert torch.autograd.gradcheck(
        function, (x, *parameters), eps=1e-6, atol=1e-5, rtol=1e-4, fast_mode=True
    )


def test_parameters_are_the_memory_of_the_model(cell):
    module = Module(cell)
    names = [name for name, _ in module.named_parameters()]
    assert sorted(names) == ["U", "W.bias", "W.weight"]
    with torch.no_grad():
        module.U.fill_(0.25)
    assert (cell.U.current() == 0.25).all()
    cell.U.value[:] = 0.5
    assert (module.U == 0.5).all()


def test_writes_of_either_side_reach_the_next_run(cell):
    module, batch = Module(cell), batch_of()
    x = rows_of(batch)

    def both():
        return module(batch, x=x), reference(module, batch, x)

    def same():
        with torch.no_grad():
            for mode in (True, False):
                assert_close(*(h.numpy() for h in (module.train(mode) and both())), 1e-5, "h")
        assert_close(*(h.detach().numpy() for h in both()), 1e-5, "h")

    same()
    with torch.no_grad():
        module.U.mul_(0.5)
    same()
    module.U.data.add_(0.1)
    same()
    cell.U.value = np.eye(3)
    same()
    module.load_state_dict({k: v * 0.3 for k, v in module.state_dict().items()})
    same()


def test_training_by_an_optimizer_of_torch(cell):
    """The same steps as a loop over vertices in torch."""
    batch, found = batch_of(), []
    x = rows_of(batch)
    for run in (lambda m: m(batch, x=x), lambda m: reference(m, batch, x)):
        module = Module(copy.deepcopy(cell))
        optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = ((run(module) - 0.5) ** 2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]
        found.append(losses)
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_between_layers_of_torch(cell):
    """Gradients pass through to an embedding before, and come from a loss behind."""
    module, embedding = Module(cell), torch.nn.Embedding(5, 3)
    output, batch = torch.nn.Linear(3, 2), batch_of()
    tokens = torch.arange(batch.num_vertices) % 5
    logits = output(module(batch, x=embedding(tokens)))
    torch.nn.functional.cross_entropy(logits, tokens % 2).backward()
    ours = embedding.weight.grad.clone()
    embedding.weight.grad = None
    logits = output(reference(module, batch, embedding(tokens)))
    torch.nn.functional.cross_entropy(logits, tokens % 2).backward()
    assert_close(ours.numpy(), embedding.weight.grad.numpy(), 1e-5, "embedding")


def test_several_calls_before_one_backward(cell):
    module, batch, other = Module(cell).double(), batch_of(), batch_of(ROOTS, seed=3)
    x = rows_of(batch, dtype=torch.float64).requires_grad_()
    y = rows_of(other, dtype=torch.float64, seed=1).requires_grad_()
    found = []
    for run in (module, lambda b, x: reference(module, b, x)):
        module.zero_grad()
        x.grad = y.grad = None
        first, second, third = run(batch, x=x), run(other, x=y), run(batch, x=2 * x)
        ((first * third).sum() + second.sum()).backward()
        found.append([x.grad, y.grad, *(p.grad.clone() for p in module.parameters())])
    for ours, theirs in zip(*found, strict=True):
        assert_close(ours.numpy(), theirs.numpy(), 1e-11, "gradient")


def test_gradients_add_up_and_outlive_later_runs(cell):
    module, batch = Module(cell), batch_of()
    x = rows_of(batch)
    module(batch, x=x).sum().backward()
    kept = {name: p.grad for name, p in module.named_parameters()}
    once = {name: grad.clone() for name, grad in kept.items()}
    (2 * module(batch, x=x)).sum().backward()
    module.zero_grad()
    module(batch, x=x).sum().backward()
    for name, p in module.named_parameters():
        torch.testing.assert_close(kept[name], 3 * once[name])
        torch.testing.assert_close(p.grad, once[name])


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_of_activations(cell, reentrant):
    """torch runs forward again in backward, by `torch.utils.checkpoint`."""
    module, batch = Module(cell), batch_of()
    x, found = rows_of(batch).requires_grad_(), []
    for run in (lambda x: module(batch, x=x), lambda x: _checkpointed(module, batch, x, reentrant)):
        module.zero_grad()
        x.grad = None
        run(x).sum().backward()
        found.append([x.grad, *(p.grad.clone() for p in module.parameters())])
    assert all(map(torch.equal, *found))


def _checkpointed(module, batch, x, reentrant):
    def run(x):
        return module(batch, x=x)

    return checkpoint(run, x, use_reentrant=reentrant)


class Readout(cavs.Model):
    """Several outputs; reads a feature of graphs, and one that only tensors bring."""

    def __init__(self, size=3):
        self.cell, self.out = Encoder(size), nn.Linear(size, 1)

    def forward(self, batch):
        h = ops.dropout(self.cell(batch.graph, x=batch["rows"]), 0.5)
        return {"h": h, "score": self.out(ops.sum_roots(h)) * batch["scale"]}


def test_a_model_with_several_outputs_and_features():
    module, batch = Module(drawn(Readout(), 0.5)).eval(), batch_of()
    x = rows_of(batch, dtype=torch.float64).requires_grad_()
    scale = torch.tensor(batch["scale"], dtype=torch.float64, requires_grad=True)
    found = module(batch, rows=x, scale=scale)
    assert set(found) == {"h", "score"}
    assert found["score"].shape == (4, 1)
    found["score"].sum().backward()
    assert x.grad.shape == x.shape
    with torch.no_grad():
        unscaled = module(batch, rows=x, scale=torch.ones_like(scale))["score"]
    assert_close(scale.grad.numpy(), unscaled.numpy(), 1e-12, "scale")


def test_dropout_follows_the_mode_and_the_seed_of_torch():
    module, batch = Module(drawn(Readout(), 0.5)), batch_of()
    x = rows_of(batch, dtype=torch.float64)

    def run():
        torch.manual_seed(3)
        return module(batch, rows=x)["h"]

    training = run()
    assert (training == 0).any()
    assert torch.equal(training, run())
    with torch.no_grad():
        assert torch.equal(training, run())
    module.eval()
    assert not (run() == 0).any()


def test_without_gradients_the_program_for_inference_runs(cell):
    module, batch = Module(cell).eval(), batch_of()
    with torch.no_grad():
        h = module(batch, x=rows_of(batch))
    assert not h.requires_grad
    assert module._session.latest(training=True) is None
    assert module._session.latest(training=False) is not None
    for p in module.parameters():
        p.requires_grad_(False)
    assert not module(batch, x=rows_of(batch)).requires_grad


def test_frozen_parameters(cell):
    module, batch = Module(cell), batch_of()
    module.U.requires_grad_(False)
    module(batch, x=rows_of(batch)).sum().backward()
    assert module.U.grad is None
    assert module.W.weight.grad is not None
    module.U.requires_grad_(True)
    module(batch, x=rows_of(batch)).sum().backward()
    assert module.U.grad.abs().sum() > 0


def test_copies_and_pickles_have_memory_of_their_own(cell):
    module, batch = Module(cell), batch_of()
    x = rows_of(batch)
    expected = module(batch, x=x)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        with torch.no_grad():
            assert torch.equal(other.eval()(batch, x=x), module.eval()(batch, x=x))
            other.U.zero_()
        assert not torch.equal(other(batch, x=x), expected)
        assert (module.U != 0).any()
    module.train()
    assert torch.equal(module(batch, x=x), expected)


def test_state_dict_round_trip(cell):
    module, other = Module(cell), Module(Encoder(3))
    other.load_state_dict(module.state_dict())
    batch = batch_of()
    x = rows_of(batch)
    assert torch.equal(module(batch, x=x), other(batch, x=x))
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state_dict({})


def test_edges_and_graphs_by_domain():
    class Weighed(cavs.VertexFunction):
        def __init__(self):
            self.state, self.W = cavs.State(h=2), cavs.Parameter((2, 2))

        def vertex(self, v):
            below = (v.gather().h * v.edge("weight")).sum()
            h = ops.tanh(v.pull("x") @ self.W + below + v.pull("whole"))
            v.scatter(h=h)
            v.push(h)

    module = Module(Weighed(), domains={"weight": "edge", "whole": "graph"}).double()
    batch = batch_of()
    x, weight = rows_of(batch, 2, torch.float64), torch.rand(batch.num_edges, 2).double()
    whole = torch.rand(batch.num_graphs, 2).double()
    inputs = [t.requires_grad_() for t in (x, weight, whole)]

    def function(x, weight, whole):
        return module(batch, x=x, weight=weight, whole=whole)

    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)


def test_a_tensor_that_is_not_contiguous(cell):
    module, batch = Module(cell), batch_of()
    x = rows_of(batch)
    wide = torch.stack([x, x], -1).requires_grad_()
    h = module(batch, x=wide[..., 1])
    assert torch.equal(h, module(batch, x=x))
    h.sum().backward()
    assert wide.grad[..., 0].abs().sum() == 0 < wide.grad[..., 1].abs().sum()


# ---- errors --------------------------------------------------------------------------------------


def test_wrong_inputs(cell):
    module, batch = Module(cell), batch_of()
    x = rows_of(batch)
    with pytest.raises(FeatureError, match=r"'x' has 3 rows, the batch needs 14: one for every"):
        module(batch, x=x[:3])
    with pytest.raises(DTypeError, match=r"'x' is torch\.float64, the module torch\.float32"):
        module(batch, x=x.double())
    with pytest.raises(DTypeError, match="integers belong to the graphs"):
        module(batch, x=torch.zeros(len(x), 3, dtype=torch.int64))
    with pytest.raises(ConfigError, match=r"on the device meta; cavs\.torch runs on the CPU"):
        module(batch, x=x.to("meta"))
    with pytest.raises(ConfigError, match="not a dense torch tensor"):
        module(batch, x=x.numpy())
    with pytest.raises(FeatureError, match="feature 'x' was float"):
        module(batch, x=x)
        module(batch, x=torch.zeros(len(x), 4))
    with pytest.raises(ConfigError, match="inputs y; the first call had x"):
        module(batch, y=x)


def test_wrong_modules(cell):
    with pytest.raises(ConfigError, match=r"give an instance of a cavs\.VertexFunction"):
        Module(Encoder)
    with pytest.raises(ConfigError, match=r"domains\['x'\] is 'node', not one of vertex, edge"):
        Module(cell, domains={"x": "node"})
    module = Module(cell)
    with pytest.raises(ConfigError, match=r"torch\.float16 on the device cpu"):
        module.half()
    with pytest.raises(ConfigError, match="on the device meta"):
        module.to("meta")
    batch = batch_of()
    module(batch, x=rows_of(batch)).sum().backward()  # it is as it was


def test_parameters_that_were_replaced(cell):
    batch = batch_of()
    x = rows_of(batch)
    module = Module(cell)
    module.U = torch.nn.Parameter(torch.zeros(3, 3))
    with pytest.raises(ConfigError, match="'U' no longer uses the memory of the model's own"):
        module(batch, x=x)
    module = Module(cell)
    module.U.data = torch.zeros(3, 3)
    with pytest.raises(ConfigError, match="it was replaced"):
        module(batch, x=x)
    module = Module(cell)
    cell.U.convert(np.float64)
    with pytest.raises(ConfigError, match="it was replaced"):
        module(batch, x=x)


def test_backward_twice(cell):
    module, batch = Module(cell), batch_of()
    loss = module(batch, x=rows_of(batch)).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_backward_through_a_graph_that_is_retained(cell):
    """It runs forward again, with the same random numbers."""
    torch.manual_seed(0)
    module, batch = Module(drawn(Readout(), 0.5)), batch_of()
    x = rows_of(batch, dtype=torch.float64).requires_grad_()
    loss = module(batch, rows=x)["score"].sum()
    first, second = (
        torch.autograd.grad(loss, [x, *module.parameters()], retain_graph=True) for _ in range(2)
    )
    for ours, theirs in zip(first, second, strict=True):
        assert torch.equal(ours, theirs)


def test_double_backward(cell):
    module, batch = Module(cell), batch_of()
    x = rows_of(batch).requires_grad_()
    (g,) = torch.autograd.grad((module(batch, x=x) ** 2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.sum().backward()


def test_writes_between_forward_and_backward(cell):
    module, batch = Module(cell), batch_of()
    x = rows_of(batch).requires_grad_()
    loss = module(batch, x=x).sum()
    with torch.no_grad():
        module.U.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    loss = module(batch, x=x).sum()
    with torch.no_grad():
        x.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_name_that_torch_takes():
    class Taken(cavs.VertexFunction):
        def __init__(self):
            self.state, self.forward = cavs.State(h=1), nn.Linear(1, 1)

        def vertex(self, v):
            v.scatter(h=self.forward(v.pull("x")))
            v.push(v.pull("x"))

    with pytest.raises(ConfigError, match=r"cannot have a parameter 'forward\.weight'"):
        Module(Taken())


def test_cavs_does_not_import_torch():
    code = "import sys, cavs, cavs.train, cavs.runtime.session; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
