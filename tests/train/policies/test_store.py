"""`FollowStore`: the number of ranks from stores that answer, hang, or are broken."""

import threading

import pytest

from cavs.errors import CommunicationError, ConfigError
from cavs.train.configuration import MemoryStore, location
from cavs.train.policies import FollowStore
from cavs.train.policies import store as module
from tests.train.policies.scripted import ScriptedRun, restored, steps

GONE = "the store is gone"


class Slow(MemoryStore):
    """A store that answers once it may; `fails` if it then raises."""

    def __init__(self):
        super().__init__()
        self.may, self.fails, self.reads = threading.Event(), False, 0

    def read(self):
        self.reads += 1
        self.may.wait()
        if self.fails:
            raise CommunicationError(GONE)
        return super().read()


def policy_of(store, **options):
    return FollowStore(store, every=1, seconds=0, **options)


def test_the_first_read_fills_an_empty_store():
    store, run = MemoryStore(), ScriptedRun(size=3)
    policy_of(store).before_train(run)
    assert store.read() == (1, {"size": 3, "committed": 3}) and run.changes == []


def test_ranks_follow_the_store_and_write_what_they_are():
    store, run = MemoryStore(), ScriptedRun(size=2)
    policy = policy_of(store)
    policy.before_train(run)
    assert store.write({"size": 5, "hosts": ["a"]}, 1)
    steps(policy, run, 1)
    assert run.size == 5
    policy.on_resize(run, 2, 5)
    value = store.read().value
    assert value == {"size": 5, "hosts": ["a"], "committed": 5}
    steps(restored(policy, store=store), run, 20)
    assert store.read().value == value and len(run.changes) == 1


def test_a_size_above_the_processes_is_cut(capsys):
    store, run = MemoryStore(), ScriptedRun(size=2)
    store.write({"size": 10**30}, 0)
    policy = policy_of(store)
    steps(policy, run, 3)
    assert run.size == 8 and store.read().value["size"] == 10**30
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "memory wants" in said[0] and "there are 8 processes" in said[0]


def test_other_ranks_read_nothing():
    store = Slow()
    run = ScriptedRun(size=2, rank=1)
    steps(policy_of(store), run, 3, broadcasts=4)
    assert run.size == 4 and store.reads == 0


def test_a_store_that_hangs_delays_one_step_and_changes_nothing(monkeypatch, capsys):
    monkeypatch.setattr(module, "_PATIENCE", 0.05)
    store, run = Slow(), ScriptedRun(size=2)
    policy = policy_of(store)
    steps(policy, run, 5)
    assert store.reads == 1 and run.changes == []
    assert capsys.readouterr().err == "cavs: memory does not answer within 0.05 s; 2 ranks\n"
    store.may.set()
    policy._query.join()
    version, value = store.read()
    assert store.write({**value, "size": 4}, version)
    steps(policy, run, 2)
    assert run.size == 4


def test_a_store_that_fails_is_named_once(capsys):
    store, run = Slow(), ScriptedRun(size=2)
    store.fails = True
    store.may.set()
    policy = policy_of(store)
    steps(policy, run, 5)
    assert store.reads == 5 and run.changes == []
    assert capsys.readouterr().err == f"cavs: going on with 2 ranks: {GONE}\n"
    store.fails = False
    steps(policy, run, 1)
    store.fails = True
    steps(policy, run, 2)
    assert capsys.readouterr().err.count(GONE) == 1


def test_a_size_that_the_training_refuses_leaves_it_as_it_is(capsys):
    class Refusing(ScriptedRun):
        def resize(self, size):
            raise ConfigError("ranks own parameters")

    store, run = MemoryStore(), Refusing(size=2)
    store.write({"size": 4}, 0)
    steps(policy_of(store), run, 3)
    assert capsys.readouterr().err == "cavs: going on with 2 ranks: ranks own parameters\n"


def test_only_the_first_rank_tells_of_a_refused_size(capsys):
    asked = []

    class Refusing(ScriptedRun):
        def resize(self, size):
            asked.append(size)
            raise ConfigError("ranks own parameters")

    store = Slow()  # another rank does not read it
    steps(policy_of(store), Refusing(size=2, rank=1, broadcasts=4.0), 3)
    assert asked == [4] * 3 and store.reads == 0
    assert capsys.readouterr().err == ""


def test_reads_have_a_least_distance():
    store, run = Slow(), ScriptedRun(size=2)
    store.may.set()
    steps(FollowStore(store, every=3, seconds=100), run, 9)
    assert store.reads == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [({"every": 0}, "every is 0"), ({"seconds": -1}, "seconds is -1"), ({}, "no configuration")],
)
def test_invalid_options_are_refused(options, message, monkeypatch):
    monkeypatch.delenv(location.STORE, raising=False)
    with pytest.raises(ConfigError, match=message):
        FollowStore(**options)
