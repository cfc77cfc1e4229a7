"""Ranks that compute on devices train like ranks on CPUs."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import cavs
from cavs.compiler.pipeline import Passes
from cavs.cuda.device import Device
from cavs.distributed import Trainer
from cavs.distributed.cluster.resources import Node, ResourceSpec
from cavs.distributed.comm import run_threads
from cavs.distributed.planning.builders import build
from cavs.distributed.strategy import GraphConfig, NodeConfig, Strategy, to_text, variables_of
from cavs.distributed.strategy.text import from_text
from cavs.distributed.sync import AllReduce, ParameterServer, SufficientFactors
from cavs.errors import CommunicationError, DeviceError, FeatureError, NumericsError
from tests.cuda.allocators import DriverMemory, Pool
from tests.cuda.executor.test_engine import gpu
from tests.cuda.tagger import graphs, tagger
from tests.cuda.twin import Twin
from tests.distributed.mpirun import needs_mpi, run_ranks
from tests.distributed.step.test_consensus import outcomes
from tests.distributed.test_train_command import TOY, cavs_command
from tests.distributed.test_trainer import BATCHES, Tree, trees
from tests.patience import patience

ADAM = cavs.optim.Adam(lr=0.05, weight_decay=0.01)


def device_on(twin, memory=None):
    """A device for one rank, which shares no streams or locks with other ranks."""
    return Device(twin.library, 0, "sm_90", twin.compiler, memory or Pool(twin))


def trainer(c, twin, model=None, optimizer=ADAM, **options):
    """Return a trainer, on the CPU without a twin. model: a function that builds one."""
    on = options.pop("device", "cpu" if twin is None else device_on(twin))
    if on != "cpu" and isinstance(options.get("strategy"), Strategy):
        options["strategy"] = on_gpus(options["strategy"])
    options = {"dtype": np.float64, "communicator": c, "device": on} | options
    return Trainer(model() if model else Tree(seed=c.rank), optimizer, **options)


def on_gpus(strategy):
    """Return the strategy for ranks on devices that equals one for ranks on CPUs."""
    if ":GPU:" in strategy.graph.replicas[0]:
        return strategy
    return from_text(to_text(strategy).replace(":CPU:", ":GPU:"))


def values_of(t):
    return {name: p.value.copy() for name, p in t.parameters.items()}


def states_of(t):
    t.session.session.download()
    return [s.copy() for states in t.states for s in states]


def trained(size, twin, *, settles=False, parts=BATCHES, **options):
    """Return parameters and reports of every rank after a step on each of `parts`."""

    def work(c):
        with trainer(c, twin, **options) as t:
            reports = []
            for part in parts:
                reports.append(t.advance(cavs.batch(part)))
                if settles:
                    t.settle()
        return values_of(t), reports

    return run_threads(size, work)


def assert_close(found, expected, what="", limit=1e-12):
    assert np.linalg.norm(found - expected) <= limit * np.linalg.norm(expected), what


def assert_same(found, expected):
    """Return the result of `trained`, with the bytes that were sent."""
    for (values, reports), (wanted, others) in zip(found, expected, strict=True):
        for name, value in wanted.items():
            assert_close(values[name], value, name)
            assert values[name].tobytes() == found[0][0][name].tobytes()
        for i, (a, b) in enumerate(zip(reports, others, strict=True)):
            assert a.loss == pytest.approx(b.loss, rel=1e-12)
            assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-12)
            # Before the first step, ranks with devices exchange the names of these.
            assert a.sent_bytes == b.sent_bytes or i == 0


@pytest.mark.parametrize("strategy", [None, "PSLoadBalancing"])
def test_parameters_frozen_and_thawed_in_mid_training(twin, strategy):
    def flipped(twin):
        def work(c):
            with trainer(c, twin, model=Tree, strategy=strategy) as t:
                if strategy is None:  # a strategy is made for its parameters
                    t.parameters["output.weight"].trainable = False
                for i, part in enumerate(BATCHES[:4]):
                    t.parameters["cell.U"].trainable = i % 2 == 0
                    t.parameters["output.weight"].trainable |= i == 2
                    t.advance(cavs.batch(part))
            return values_of(t)

        return run_threads(2, work)

    for found, expected in zip(flipped(twin), flipped(None), strict=True):
        for name, value in expected.items():
            assert_close(found[name], value, name)


def factors(size):
    """A strategy with sufficient factors for matrices; biases are reduced, tables gathered."""
    nodes = tuple(
        NodeConfig(
            name=name,
            synchroniser=AllReduce() if p.sparse or len(p.shape) < 2 else SufficientFactors(),
        )
        for name, p in Tree().parameters().items()
    )
    return Strategy(graph=GraphConfig(replicas=ResourceSpec.local(size).cpu_devices), nodes=nodes)


STRATEGIES = [
    (1, None),
    (2, None),
    (3, None),
    (3, "AllReduce(chunk=2)"),
    (2, "RandomAxisPartitionAR"),
    (1, "PartitionedPS"),
    (3, "PartitionedPS"),
    (3, "PSLoadBalancing(servers=1)"),
    (2, "Parallax"),
    (3, "Poseidon(batch_size=1)"),
    (2, "factors"),
    (3, "AllReduce(compressor='powersgd(rank=2)')"),
]


@pytest.mark.parametrize(("size", "strategy"), STRATEGIES)
def test_ranks_on_devices_equal_ranks_on_cpus(twin, size, strategy):
    """Shards are unequal, and some batches have fewer graphs than ranks."""
    assert min(map(len, BATCHES)) < 2
    options = {"strategy": factors(size) if strategy == "factors" else strategy, "max_norm": 0.5}
    options["passes"] = Passes()  # equal numbers of rows to send
    expected = trained(size, None, **options)
    if strategy is None:
        alone = Tree()
        one = cavs.Trainer(alone, ADAM, session=cavs.Session(alone, dtype=np.float64), max_norm=0.5)
        for part in BATCHES:
            one.advance(cavs.batch(part))
        for name, value in values_of(one).items():
            assert_close(expected[0][0][name], value, name)
    for seed in (0, 3):
        twin.adversarial(seed)
        assert_same(trained(size, twin, **options), expected)


def mixed(size):
    """Parameters that all ranks update next to owned ones, some of which are asynchronous."""
    spec = ResourceSpec.local(size)
    owner = spec.cpu_devices[-1]
    kinds = [
        AllReduce(),
        ParameterServer(destination=owner),
        ParameterServer(destination=owner, staleness=1),
        ParameterServer(destination=spec.cpu_devices[0], sync=False),
    ]
    nodes = tuple(
        NodeConfig(name=name, synchroniser=kinds[(i + 1) % len(kinds)])
        for i, name in enumerate(Tree().parameters())
    )
    return Strategy(graph=GraphConfig(replicas=spec.replicas), nodes=nodes)


@pytest.mark.parametrize("strategy", ["PSLoadBalancing(staleness=2)", "Parallax(staleness=1)", ""])
def test_stale_parameters_are_those_of_ranks_on_cpus(twin, strategy):
    """Ranks that settle after each step take the same steps, with sums in another order."""
    twin.adversarial(4)
    options = {"strategy": strategy or mixed(2), "settles": True}
    options["optimizer"] = cavs.optim.SGD(lr=0.1)
    expected, found = trained(2, None, **options), trained(2, twin, **options)
    for values, _ in found:
        for name, value in expected[0][0].items():
            assert_close(values[name], value, name)
            assert values[name].tobytes() == found[0][0][name].tobytes()


def test_dropout_masks_are_those_of_the_same_rank_on_a_cpu(twin):
    options = {"parts": [graphs()] * 3, "seed": 7}
    found = trained(2, twin, model=lambda: tagger(0.4), **options)
    expected = trained(2, None, model=lambda: tagger(0.4), **options)
    assert_same(found, expected)
    plain = trained(2, None, model=tagger, **options)
    assert expected[0][1][0].loss != pytest.approx(plain[0][1][0].loss, rel=1e-3)


class Halves(Tree):
    """A model so wide that values between kernels are stored in two bytes."""

    def __init__(self, seed=0):
        self.embedding = cavs.nn.Embedding(40, 24)
        self.cell = cavs.nn.ChildSumTreeLSTM(24, 16)
        self.output = cavs.nn.Linear(16, 8)
        self.value = cavs.nn.Linear(16, 1)
        rng = np.random.default_rng(seed)
        for p in self.parameters().values():
            p.value[...] = rng.normal(size=p.shape) * 0.3


@pytest.mark.parametrize("strategy", [None, "factors"])
def test_gradients_are_as_precise_as_those_of_one_process(twin, strategy):
    """Operands that are stored in bfloat16 are sent as float32."""
    options = {"optimizer": cavs.optim.SGD(lr=0.1), "dtype": np.float32, "model": Halves}
    options["strategy"] = factors(2) if strategy else None
    expected, start = trained(2, None, **options)[0][0], Halves().parameters()
    for precision, limit in (("float32", 1e-5), ("bfloat16", 1e-2)):
        found = trained(2, twin, precision=precision, **options)[0][0]
        for name, value in expected.items():
            moved = np.linalg.norm(value - start[name].value)
            assert np.linalg.norm(found[name] - value) <= limit * moved, (precision, name)


@pytest.mark.parametrize(
    ("size", "strategy"), [(2, None), (2, "Parallax"), (1, "PartitionedPS(staleness=1)")]
)
def test_checkpoints_move_between_devices_and_cpus(twin, size, strategy, tmp_path):
    """The file has every state, whatever holds it; the rest of the run is the same anywhere."""
    optimizer = cavs.optim.SGD(lr=0.1, momentum=0.9)

    def part(c, where, parts, path, resumed):
        with trainer(c, where, optimizer=optimizer, strategy=strategy) as t:
            if resumed:
                t.resume(path)
            for one in parts:
                t.advance(cavs.batch(one))
                t.settle()
            t.save(path)
            return values_of(t), states_of(t)

    def run(order, path):
        for i, where in enumerate(order):
            parts = BATCHES[2 * i : 2 * i + 2]
            result = run_threads(size, lambda c: part(c, where, parts, path, i > 0))  # noqa: B023
        return result

    expected = run([None, None, None], tmp_path / "cpu.safetensors")
    found = run([twin, None, twin], tmp_path / "both.safetensors")
    for (values, states), (wanted, others) in zip(found, expected, strict=True):
        for name, value in wanted.items():
            assert_close(values[name], value, name)
        for a, b in zip(states, others, strict=True):
            assert_close(a, b)


def test_fit_on_devices_equals_fit_on_cpus(twin, tmp_path):
    def work(c, where):
        with trainer(c, where, tagger, seed=3) as t:
            loader = cavs.DataLoader(graphs(), 3, shuffle=True, seed=1)
            dev = cavs.DataLoader(graphs((3, 12)), 1)
            path = tmp_path / f"{where is None}.safetensors"
            result = t.fit(loader, epochs=2, dev=dev, progress=False, checkpoint=path)
        return [[e["train_loss"], e["dev_loss"], e["step"]] for e in result.epochs]

    expected = run_threads(2, lambda c: work(c, None))
    np.testing.assert_allclose(run_threads(2, lambda c: work(c, twin)), expected, rtol=1e-12)


# ---- traffic between host and device -----------------------------------------------------------


class Wide(cavs.Model):
    """A table and a matrix, much larger than all other traffic of a step."""

    def __init__(self):
        self.embedding = cavs.nn.Embedding(3000, 6)
        self.cell = cavs.nn.ChildSumTreeLSTM(6, 5)
        self.output = cavs.nn.Linear(5, 700)

    def loss(self, batch):
        h = self.cell(batch.graph, x=self.embedding(batch["token"]))
        return cavs.ops.cross_entropy(self.output(h), batch["label"])


def test_a_later_step_copies_only_gradients_and_does_not_allocate(twin):
    part, found = cavs.batch(trees(6, 1)), {}

    def work(c):
        t = trainer(c, twin, Wide, cavs.optim.SGD(lr=0.1, momentum=0.9))
        for _ in range(3):
            t.advance(part)
        gc.collect()  # objects of earlier tests must not be freed later
        before = twin.live()
        twin.calls.twin_reset()
        t.advance(part)
        found["log"], found["live"] = twin.operations(), (before, twin.live())
        found["sizes"] = {n: p.value.nbytes for n, p in t.parameters.items()}
        return t.session.ready(t.session.shard(part))

    ((executor, _, compiled),) = run_threads(1, work)
    kinds, sizes = compiled.program.gradients, found["sizes"]
    dense = {n: size for n, size in sizes.items() if kinds[n] == "dense"}
    rows, values = executor.gradient_view(list(kinds).index("embedding.weight"))
    log, (before, after) = found["log"], found["live"]
    down = [o.bytes for o in log if o.kind == "copy" and o.name == "to host"]
    assert sorted(down) == sorted([*dense.values(), values.nbytes, 8])  # with the loss
    up = sum(o.bytes for o in log if o.kind == "copy" and o.name == "to device")
    gaps = 128 * len(dense)
    assert sum(dense.values()) <= up < sum(dense.values()) + gaps + 16_000  # the batch, pieces
    assert sizes["embedding.weight"] > up and len(rows) > 3
    assert before == after
    first = next(o for o in log if o.kind == "copy" and o.name == "to host")
    last = [o for o in log if o.kind == "launch" and o.name != "update"][-1]
    assert first.issued < last.issued, "gradients left only after backward"
    assert len({first.stream, last.stream}) == 2


def test_only_changed_rows_of_an_owned_table_are_uploaded(twin):
    part, found = cavs.batch(trees(6, 1)), {}

    def work(c):
        t = trainer(c, twin, Wide, cavs.optim.SGD(lr=0.1, momentum=0.9), strategy="Parallax")
        for _ in range(3):
            t.advance(part)
        gc.collect()  # objects of earlier tests must not be freed later
        before = twin.live()
        twin.reset()
        t.advance(part)
        found["log"], found["live"] = twin.operations(), (before, twin.live())
        return t.parameters["embedding.weight"].value.nbytes, t.parameters["output.weight"].value

    ((table, _),) = run_threads(1, work)
    up = sum(o.bytes for o in found["log"] if o.kind == "copy" and o.name == "to device")
    down = [o.bytes for o in found["log"] if o.kind == "copy" and o.name == "to host"]
    assert up < table / 2 and max(down) < table / 2
    assert found["live"][0] == found["live"][1]


# ---- faults ------------------------------------------------------------------------------------


def test_training_goes_on_after_an_error_of_one_rank(twin):
    """First its graphs have a token outside of the table, then its loss is not finite."""
    twin.adversarial(2)
    bad = [*trees(2, 3), cavs.Graph([[]], {"token": [99], "label": [0]})]

    def work(c):
        t = trainer(c, twin)
        t.advance(cavs.batch(BATCHES[0]))
        before = values_of(t)
        with pytest.raises((FeatureError, CommunicationError)) as caught:
            t.advance(cavs.batch(bad))
        assert "'token' is 99" in str(caught.value)
        assert all((values_of(t)[name] == value).all() for name, value in before.items())
        loss = t.advance(cavs.batch(BATCHES[1])).loss
        if c.rank == 1:
            t.parameters["output.weight"].value[0, 0] = np.nan
            t.session.invalidate()
        with pytest.raises(NumericsError, match="step 3: the loss is nan"):
            t.advance(cavs.batch(BATCHES[4]))
        assert t.steps == 2
        return type(caught.value), loss

    (first, loss), (second, other) = run_threads(2, work)
    assert (first, second) == (CommunicationError, FeatureError) and loss == other


@pytest.mark.parametrize("place", [1, 8, 12, 14])
def test_a_device_without_memory_is_an_error_on_all_ranks(twin, place):
    def work(c):
        full = DeviceError("out of memory on cuda:1")
        memory = DriverMemory(twin, place, full) if c.rank else Pool(twin)
        with trainer(c, twin, device=device_on(twin, memory)) as t:
            for part in BATCHES:
                t.advance(cavs.batch(part))

    first, second = outcomes(2, work)
    assert isinstance(second, DeviceError) and "out of memory on cuda:1" in str(second)
    assert isinstance(first, CommunicationError)
    assert "rank 1: DeviceError: out of memory on cuda:1" in str(first)


def test_a_kernel_fault_is_an_error_on_all_ranks(twin):
    """All ranks of this process share the failed device; none of them hangs."""

    def work(c):
        t = trainer(c, twin)
        t.advance(cavs.batch(BATCHES[0]))
        c.barrier()
        if c.rank == 0:
            twin.fail_launch(10)
        t.advance(cavs.batch(BATCHES[1]))

    for error in outcomes(2, work):
        assert isinstance(error, DeviceError)


OWNERS = [("BytePS", False), ("given", False), ("BytePS(staleness=1)", True)]


@pytest.mark.parametrize(("strategy", "settles"), OWNERS)
def test_ranks_that_only_own_parameters_have_no_device(twin, strategy, settles, tmp_path):
    """Two replicas on devices and a server on a host without any, compared with CPUs."""
    nodes = (Node(address="a", gpus=(0, 1), chief=True), Node(address="b"))
    mixed, path = ResourceSpec(nodes=nodes), tmp_path / "c.safetensors"
    strategy = build("BytePS", variables_of(Tree()), mixed) if strategy == "given" else strategy

    def work(c, twin):
        stale = ", staleness=1" if settles else ""
        where = {"strategy": f"PSLoadBalancing(servers=1{stale})"}
        if twin is not None:
            where = {"strategy": strategy, "resources": mixed}
            if c.rank == 2:
                where["device"] = "cuda" if settles else "cpu"  # it must not open one
        with trainer(c, twin, optimizer=cavs.optim.SGD(lr=0.1), **where) as t:
            for part in BATCHES:
                t.advance(cavs.batch(part))
                t.settle()
            t.save(path)
            loss = t.evaluate([cavs.batch(part) for part in BATCHES])["loss"]
        assert (t.session.session.device is None) == (twin is None or c.rank == 2)
        return values_of(t), loss

    expected, found = (
        run_threads(3, lambda c: work(c, None)),
        run_threads(3, lambda c: work(c, twin)),
    )
    for (values, loss), (wanted, other) in zip(found[:2], expected[:2], strict=True):
        assert loss == pytest.approx(other, rel=1e-12)
        for name, value in wanted.items():
            assert_close(values[name], value, name)
            assert values[name].tobytes() == found[0][0][name].tobytes()


@pytest.mark.cuda
@pytest.mark.parametrize(("size", "collectives"), [(2, "mpi"), (1, "nccl")])
def test_ranks_on_the_gpu_of_this_machine(size, collectives):
    """Two ranks that share it, and one that sums by NCCL."""
    gpu()  # skips the test without one
    options = {"max_norm": 0.5}
    expected = trained(size, None, **options)
    found = trained(size, None, device="cuda", collectives=collectives, **options)
    for (values, reports), (wanted, others) in zip(found, expected, strict=True):
        for name, value in wanted.items():
            assert_close(values[name], value, name, 1e-9)
        for a, b in zip(reports, others, strict=True):
            assert a.loss == pytest.approx(b.loss, rel=1e-9)


# ---- processes ---------------------------------------------------------------------------------


def trained_by_mpi(c, strategy):
    """Return parameters and states of rank 0; each process has a twin of its own."""
    twin = Twin()
    t = trainer(c, twin, strategy=strategy, max_norm=0.5)
    for part in BATCHES:
        t.advance(cavs.batch(part))
    t.session.collect(t.states)
    return [x.ravel().tolist() for x in (*values_of(t).values(), *states_of(t))]


@pytest.mark.mpi
class TestProcesses:
    pytestmark = needs_mpi

    def test_ranks_without_a_gpu_report_it_once(self, tmp_path):
        process = cavs_command(
            *("launch", "-n", 2, "train", TOY, "--out", tmp_path, "--device", "cuda", "--quiet"),
            CUDA_VISIBLE_DEVICES="",
        )
        _, errors = process.communicate(timeout=patience(60))
        assert process.returncode != 0
        assert errors.count("device='cpu'") == 1, errors

    @pytest.mark.parametrize("strategy", [None, "Parallax"])
    def test_processes_train_as_threads_on_cpus(self, twin, strategy):
        found = run_ranks(2, __name__, "trained_by_mpi", strategy, timeout=120)

        def work(c):
            t = trainer(c, None, strategy=strategy, max_norm=0.5)
            for part in BATCHES:
                t.advance(cavs.batch(part))
            t.session.collect(t.states)
            return [x.ravel() for x in (*values_of(t).values(), *states_of(t))]

        for a, b in zip(found, run_threads(2, work)[0], strict=True):
            assert_close(np.array(a), b)
