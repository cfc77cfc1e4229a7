"""``torch.compile`` around programs with modules: no graph break, values as without it."""

from __future__ import annotations

import copy
import gc

import numpy as np
import pytest

import cavs
from cavs import ops
from cavs.errors import ConfigError, FeatureError
from tests.oracle import assert_close, drawn
from tests.runtime.test_input_gradients import CHAIN, ROOTS, SHARED, Encoder, graph_of
from tests.torch.test_module import Readout

torch = pytest.importorskip("torch", reason="cavs.torch needs the package torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

from cavs.torch import Module, operator  # noqa: E402

FORMS = (CHAIN, [[]], SHARED, ROOTS)


def batch_of(*forms, seed=0):
    rng = np.random.default_rng(seed)
    return cavs.batch([graph_of(children, rng) for children in forms or FORMS])


BATCHES = [batch_of(), batch_of(ROOTS, seed=1), batch_of(SHARED, CHAIN, seed=2), batch_of(CHAIN)]


@pytest.fixture(autouse=True)
def no_program_before():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Program(torch.nn.Module):
    """A layer of torch, a module, a layer; with a residual connection."""

    def __init__(self, **options):
        super().__init__()
        self.before, self.after = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)
        self.cell = Module(drawn(Encoder(3), 0.5), **options)

    def forward(self, batch, x):
        below = torch.tanh(self.before(x))
        return self.after(self.cell(batch, x=below) + below)


def compiled(program):
    return torch.compile(program, backend="aot_eager", fullgraph=True)


def rows_of(batch, dtype=torch.float64):
    generator = torch.Generator().manual_seed(batch.num_vertices)
    return torch.randn(batch.num_vertices, 3, dtype=dtype, generator=generator, requires_grad=True)


def results(run, module, batch, *inputs):
    """Return values and all gradients of a weighted sum."""
    module.zero_grad()
    for tensor in inputs:
        tensor.grad = None
    found = run(batch, *inputs)
    found = [found] if isinstance(found, torch.Tensor) else list(found.values())
    sum((h * torch.arange(h.numel()).reshape(h.shape)).sum() for h in found).backward()
    given = [*(t.grad for t in inputs), *(p.grad for p in module.parameters())]
    return [h.detach() for h in found] + [g.clone() for g in given if g is not None]


def same(run, module, batch, *inputs):
    ours, theirs = (results(f, module, batch, *inputs) for f in (run, module))
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one.numpy(), other.numpy(), 1e-12, "value")


def test_there_is_no_graph_break():
    module, batch = Program().double(), BATCHES[0]
    found = torch._dynamo.explain(module)(batch, rows_of(batch))
    assert (found.graph_break_count, found.graph_count) == (0, 1)


@pytest.mark.parametrize("dynamic", [None, True])
def test_values_and_gradients_of_many_batches(dynamic):
    """Two programs, the second for any batch."""
    module = Program().double()
    counter = CompileCounterWithBackend("aot_eager")
    run = torch.compile(module, backend=counter, fullgraph=True, dynamic=dynamic)
    for batch in BATCHES * 2:
        same(run, module, batch, rows_of(batch))
    assert counter.frame_count <= 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_the_compiler_of_c_plus_plus():
    module = Program().float()
    run = torch.compile(module, fullgraph=True)
    for batch in BATCHES[:3]:
        x = rows_of(batch, torch.float32)
        ours, theirs = (results(f, module, batch, x) for f in (run, module))
        for one, other in zip(ours, theirs, strict=True):
            assert_close(one.numpy(), other.numpy(), 1e-5, "value")


def test_several_outputs_graphs_and_dropout():
    """The random numbers are those of the call without a compiler."""
    module = Module(drawn(Readout(), 0.5))
    run = compiled(module.forward)

    for batch in BATCHES:
        x = rows_of(batch)
        scale = torch.tensor(batch["scale"], dtype=torch.float64, requires_grad=True)
        found = []
        for function in (run, module.forward):

            def named(batch, x, scale, function=function):
                torch.manual_seed(3)
                return function(batch, rows=x, scale=scale)

            found.append(results(named, module, batch, x, scale))
        for one, other in zip(*found, strict=True):
            assert_close(one.numpy(), other.numpy(), 1e-12, "value")
    module.eval()
    assert run(BATCHES[0], rows=rows_of(BATCHES[0]), scale=torch.ones(4, 1).double())


def test_a_loss_of_graphs_inside_of_the_program():
    class Roots(cavs.Model):
        def __init__(self):
            self.cell = Encoder(3)

        def forward(self, batch):
            return ops.sum_roots(self.cell(batch.graph, x=batch["rows"]))

    module = Module(drawn(Roots(), 0.5))

    def loss(batch, x, labels):
        return torch.nn.functional.cross_entropy(module(batch, rows=x), labels)

    run = compiled(loss)
    for batch in BATCHES:
        x, labels, found = rows_of(batch), torch.arange(batch.num_graphs) % 3, []
        for function in (run, loss):
            x.grad = None
            value = function(batch, x, labels)
            value.backward()
            found.append((value.item(), x.grad.clone()))
        assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
        assert_close(found[0][1].numpy(), found[1][1].numpy(), 1e-12, "x")


def test_two_equal_calls_are_two():
    module, batch = Module(drawn(Readout(), 0.5)), BATCHES[0]
    scale = torch.ones(4, 1, dtype=torch.float64)

    def both(batch, x):
        return module(batch, rows=x, scale=scale)["h"] - module(batch, rows=x, scale=scale)["h"]

    assert (compiled(both)(batch, rows_of(batch)) != 0).any()  # dropout differs


def test_samples_of_several_structures():
    """Their rows are known when the program runs."""

    class Two(cavs.Model):
        def __init__(self):
            self.words, self.letters = Encoder(3), Encoder(3)

        def forward(self, batch):
            words = self.words(batch.graphs["words"], x=batch["words.rows"])
            letters = self.letters(batch.graphs["letters"], x=batch["letters.rows"])
            return {"words": words, "letters": ops.sum_roots(letters)}

    module, rng = Module(drawn(Two(), 0.5)), np.random.default_rng(0)

    def run(batch, x, y):
        found = module(batch, **{"words.rows": x, "letters.rows": y})
        return (found["words"] ** 2).sum() + found["letters"].sum()

    for forms in ((CHAIN, ROOTS), (SHARED, CHAIN, ROOTS)):
        samples = [
            cavs.Sample(words=graph_of(form, rng), letters=graph_of(CHAIN, rng)) for form in forms
        ]
        batch, found = cavs.batch(samples), []
        x, y = (rows_of(batch.graphs[name]) for name in ("words", "letters"))
        for function in (compiled(run), run):
            x.grad = y.grad = None
            function(batch, x, y).backward()
            found.append((x.grad, y.grad))
        for ours, theirs in zip(*found, strict=True):
            assert_close(ours.numpy(), theirs.numpy(), 1e-12, "gradient")


def test_training_without_and_with_gradients():
    module = Program().double()
    run = compiled(module)
    for batch in BATCHES:
        with torch.no_grad():
            assert_close(run(batch, rows_of(batch)), module(batch, rows_of(batch)), 1e-12, "h")
    module.cell.U.requires_grad_(False)
    same(run, module, BATCHES[0], rows_of(BATCHES[0]))
    for p in module.parameters():
        p.requires_grad_(False)
    assert not run(BATCHES[0], rows_of(BATCHES[0]).detach()).requires_grad


def test_an_optimizer_around_a_compiled_program():
    program, found = Program().double(), []
    for compiling in (True, False):
        module = copy.deepcopy(program)
        run = compiled(module) if compiling else module
        optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
        losses = []
        for batch in BATCHES * 2:
            optimizer.zero_grad()
            loss = (run(batch, rows_of(batch)) ** 2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found.append(losses)
    assert found[0] == pytest.approx(found[1], rel=1e-11)


def test_runs_end_with_their_graph():
    """Memory of a run that no backward run follows returns."""
    module = Program().double()
    run = compiled(module)
    before = len(operator._RUNS)
    for batch in BATCHES:
        h = run(batch, rows_of(batch))
        assert len(operator._RUNS) == before + 1
        del h
        gc.collect()
        assert len(operator._RUNS) == before


def test_errors_inside_of_compiled_programs():
    module, batch = Module(drawn(Encoder(3), 0.5)), BATCHES[0]

    def run(batch, x):
        return module(batch, x=x)

    compiled(run)(batch, rows_of(batch)).sum().backward()
    with pytest.raises(FeatureError, match=r"'x' has 3 rows, the batch needs 14"):
        compiled(run)(batch, rows_of(batch)[:3].detach())
    with pytest.raises(ConfigError, match="a batch 1 that is no more"):
        torch.ops.cavs.run(1, module._number, [1, 1, 1], "[]", "", [], [], False, False, 0)
    given = [p.detach().clone() for p in module.parameters()]
    call = (batch.number, module._number, batch.sizes, "[]", "x", [rows_of(batch)], given)
    with pytest.raises(ConfigError, match="no longer uses the memory of the model's own"):
        torch.ops.cavs.run(*call, False, False, 0)
