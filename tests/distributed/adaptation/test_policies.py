"""Policies on ranks: changes that all make together, and errors of one of them."""

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.distributed import Trainer
from cavs.distributed.balance import SpeedBalancer
from cavs.distributed.comm import run_threads
from cavs.errors import CavsError, CommunicationError, ConfigError
from cavs.train import Policy
from cavs.train.checkpoint import read_checkpoint
from tests.distributed.step.test_consensus import outcomes
from tests.distributed.test_trainer import Tree, trees

GRAPHS = trees(60, 2)


class Growing(Policy):
    """Changes batch size and rate after some steps, as an average over ranks says."""

    def __init__(self):
        self.asked = 0

    def after_step(self, run):
        if run.step % 3 == 0:
            size = round(run.all_reduce(4 + run.step, "mean"))
            assert run.set_batch_size(size)
            assert run.set_lr_scale(1 + run.step / 10)
            self.asked += 1

    def state_dict(self):
        return {"asked": self.asked}

    def load_state_dict(self, state):
        self.asked = state["asked"]


def loader():
    return cavs.DataLoader(GRAPHS, 4, shuffle=True, seed=1)


def values(trainer):
    return {n: p.value.copy() for n, p in trainer.parameters.items()}


def alone(**options):
    session = cavs.Session(Tree(), dtype=np.float64)
    trainer = cavs.Trainer(session.model, cavs.optim.Adam(lr=0.02), session=session)
    trainer.fit(loader(), progress=False, **options)
    return values(trainer), trainer.steps


def on_ranks(c, strategy=None, split=None, **options):
    own = {} if split is None else {"split": split()}
    trainer = Trainer(
        Tree(),
        cavs.optim.Adam(lr=0.02),
        communicator=c,
        dtype=np.float64,
        strategy=strategy,
        **own,
    )
    trainer.fit(loader(), progress=False, **options)
    return values(trainer), trainer.steps


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("strategy", [None, "PartitionedPS"])
def test_a_changing_batch_size_gives_the_result_of_one_process(size, strategy):
    expected, steps = alone(epochs=2, policies=[Growing()])
    found = run_threads(size, lambda c: on_ranks(c, strategy, epochs=2, policies=[Growing()]))
    for own, count in found:
        assert count == steps
        for name, value in expected.items():
            np.testing.assert_allclose(own[name], value, rtol=1e-9, atol=1e-11, err_msg=name)


def test_a_balancer_divides_batches_of_changing_sizes():
    found = run_threads(
        2, lambda c: on_ranks(c, split=SpeedBalancer, epochs=2, policies=[Growing()])
    )
    expected, steps = alone(epochs=2, policies=[Growing()])
    for own, count in found:
        assert count == steps
        for name, value in expected.items():
            np.testing.assert_allclose(own[name], value, rtol=1e-8, atol=1e-10, err_msg=name)


class Disagreeing(Policy):
    def __init__(self):
        self.verdicts = []

    def after_step(self, run):
        self.verdicts.append(run.set_batch_size(8 + run.rank))
        self.verdicts.append(run.set_batch_size(run.batch_size))


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_that_ask_for_different_sizes_change_nothing(size, capsys):
    def work(c):
        policy, train = Disagreeing(), loader()
        trainer = Trainer(Tree(), cavs.optim.SGD(lr=0.1), communicator=c)
        trainer.fit(train, epochs=1, progress=False, policies=[policy])
        return policy.verdicts, train.batch_size

    for verdicts, batch_size in run_threads(size, work):
        assert verdicts == [False, True] * 15 and batch_size == 4
    said = capsys.readouterr().err
    assert 'ranks ask for different changes, none is made: rank 0 ["batch_size", 8], rank 1' in said


class Asking(Policy):
    """Calls `ask(run)` after step 3."""

    def __init__(self, ask):
        self.ask = ask

    def after_step(self, run):
        if run.step == 3:
            self.ask(run)


def on_rank_1(call):
    return lambda run: call(run) if run.rank == 1 else None


def divide(run):
    raise ZeroDivisionError("of the policy")


def refuse(run):
    raise ConfigError("no", hint="of the policy")


@pytest.mark.parametrize(("call", "error"), [(divide, ZeroDivisionError), (refuse, ConfigError)])
@pytest.mark.parametrize("reducing", [False, True])
@pytest.mark.parametrize("strategy", [None, "PartitionedPS"])
def test_an_error_in_a_hook_of_one_rank_is_raised_on_all(call, error, reducing, strategy, tmp_path):
    """The others are in a call of a policy, or in the next step. All save the last step."""

    def ask(run):
        if run.rank == 1:
            call(run)
        if reducing:
            run.all_reduce(1.0)

    def work(c):
        try:
            on_ranks(c, strategy, epochs=1, policies=[Asking(ask)], checkpoint=tmp_path / "m")
        except Exception as raised:
            return raised
        return None

    found = run_threads(2, work)
    assert type(found[1]) is error
    assert isinstance(found[0], CommunicationError) and "of the policy" in str(found[0])
    assert read_checkpoint(tmp_path / "m").progress["step"] == 3


@pytest.mark.parametrize(
    "call",
    [
        lambda run: run.set_batch_size(8),
        lambda run: run.all_reduce(1.0),
        lambda run: run.stop(),
    ],
)
def test_a_call_on_one_rank_alone_names_both_places(call):
    found = outcomes(2, lambda c: on_ranks(c, epochs=1, policies=[Asking(on_rank_1(call))]))
    for error in found:
        assert isinstance(error, CommunicationError)
        assert "rank 0 in step, rank 1 in policy" in str(error)


def test_different_calls_of_two_ranks_are_an_error_on_both():
    def ask(run):
        return run.all_reduce(np.ones(4)) if run.rank else run.set_batch_size(8)

    for error in outcomes(2, lambda c: on_ranks(c, epochs=1, policies=[Asking(ask)])):
        assert isinstance(error, CavsError)


@pytest.mark.parametrize("value", [0, -4, 2.5])
def test_an_invalid_size_is_refused_on_all_ranks(value):
    def ask(run):
        run.set_batch_size(value)

    for error in outcomes(3, lambda c: on_ranks(c, epochs=1, policies=[Asking(ask)])):
        assert isinstance(error, ConfigError) and f"batch_size is {value}" in str(error)


def test_ranks_with_different_policies_are_refused():
    def work(c):
        return on_ranks(c, epochs=1, policies=[Growing()] if c.rank else [Growing(), Policy()])

    for error in outcomes(2, work):
        assert isinstance(error, ConfigError)
        assert "policies: rank 0 has ['Growing', 'Policy'], rank 1 has ['Growing']" in str(error)


@pytest.mark.parametrize("op", ["sum", "min", "max", "mean"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_collectives_reduce_numbers_and_arrays(op, size):
    seen = {}

    class Calling(Policy):
        def before_train(self, run):
            array = np.arange(6, dtype=np.float32).reshape(2, 3) + run.rank
            seen[run.rank] = (
                run.all_reduce(run.rank + 1, op),
                run.all_reduce(array, op),
                run.broadcast(run.rank + 5, run.size - 1),
                run.all_gather(np.full(run.rank, 7)),
            )

    run_threads(size, lambda c: on_ranks(c, epochs=1, policies=[Calling()]))
    reduce = getattr(np, op)
    ranks = np.arange(size)
    for number, array, sent, gathered in seen.values():
        assert number == reduce(ranks + 1.0)
        expected = np.arange(6).reshape(2, 3) + ranks[:, None, None]
        np.testing.assert_array_equal(array, reduce(expected, axis=0))
        assert sent == size + 4
        assert [len(part) for part in gathered] == list(range(size))


def test_a_run_resumed_on_other_ranks_has_the_policies_states(tmp_path):
    class Stopping(Policy):
        def after_step(self, run):
            if run.step == 5:
                run.stop()

    expected, steps = alone(epochs=2, policies=[Growing()])
    path = tmp_path / "m"
    policies = [Growing, Stopping]
    run_threads(
        3, lambda c: on_ranks(c, epochs=2, policies=[p() for p in policies], checkpoint=path)
    )

    def work(c):
        trainer = Trainer(Tree(), cavs.optim.Adam(lr=0.02), communicator=c, dtype=np.float64)
        trainer.resume(path)
        policy = Growing()
        trainer.fit(loader(), epochs=2, progress=False, policies=[policy])
        return values(trainer), trainer.steps, policy.asked

    for own, count, asked in run_threads(2, work):
        assert count == steps and asked == steps // 3
        for name, value in expected.items():
            np.testing.assert_allclose(own[name], value, rtol=1e-9, atol=1e-11, err_msg=name)


class Wide(cavs.Model):
    """A Tree-LSTM whose gradients are larger than what goes along a tree anyway."""

    def __init__(self):
        self.embedding = nn.Embedding(40, 32)
        self.cell = nn.ChildSumTreeLSTM(32, 64)
        self.output = nn.Linear(64, 3)
        rng = np.random.default_rng(0)
        for p in self.parameters().values():
            p.value[...] = rng.normal(size=p.shape) * 0.1

    def loss(self, batch):
        h = self.cell(batch.graph, x=self.embedding(batch["token"]))
        return ops.cross_entropy(self.output(h), batch["label"])


@pytest.mark.parametrize("tree", [[0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 2], [2, 0, 2, 0]])
def test_sums_along_a_tree_are_those_of_one_process(tree, monkeypatch):
    monkeypatch.setattr("cavs.distributed.comm.collectives.TREE_CHUNK", 1 << 13)  # several chunks
    seen = []

    def ask(run):
        assert run.set_tree(tree)
        seen.append(run.table["tree"])

    def work(c):
        trainer = Trainer(Wide(), cavs.optim.SGD(lr=0.1), communicator=c, dtype=np.float64)
        trainer.fit(loader(), epochs=1, progress=False, policies=[Asking(ask)])
        return values(trainer)

    expected = run_threads(1, lambda c: work_alone())[0]
    for found in run_threads(4, work):
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-12, err_msg=name)
    assert seen == [tree] * 4


def work_alone():
    session = cavs.Session(Wide(), dtype=np.float64)
    trainer = cavs.Trainer(session.model, cavs.optim.SGD(lr=0.1), session=session)
    trainer.fit(loader(), epochs=1, progress=False)
    return values(trainer)


@pytest.mark.parametrize(
    ("tree", "message"),
    [([0, 1, 0], "both roots"), ([1, 2, 0], "cycle"), ([0, 0], "2 ranks does not fit 3")],
)
def test_an_array_that_is_no_tree_is_refused_on_all_ranks(tree, message):
    def ask(run):
        run.set_tree(tree)

    for error in outcomes(3, lambda c: on_ranks(c, epochs=1, policies=[Asking(ask)])):
        assert isinstance(error, ConfigError) and message in str(error)


def test_the_latency_tree_is_one_tree_and_arrays_are_kept_for_requests():
    seen = {}

    def ask(run):
        tree = run.latency_tree()
        assert run.set_tree(tree)
        run.keep("rank", np.full(3, run.rank))
        seen[run.rank] = tree, run.request((run.rank + 1) % run.size, "rank").tolist()

    run_threads(3, lambda c: on_ranks(c, epochs=1, policies=[Asking(ask)]))
    trees_of = [tree for tree, _ in seen.values()]
    assert trees_of == [trees_of[0]] * 3 and trees_of[0][0] == 0
    assert [seen[rank][1] for rank in range(3)] == [[1] * 3, [2] * 3, [0] * 3]
