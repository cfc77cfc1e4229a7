"""``cavs strategy``, and the sizes of gradients that it measures."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest

import cavs
from cavs import nn, ops
from cavs.cli import main
from cavs.cli.measure import measured
from cavs.distributed.cluster.resources import ResourceSpec, load_resources
from cavs.distributed.comm import run_threads
from cavs.distributed.comm.agreement import is_agreed
from cavs.distributed.strategy import load
from cavs.distributed.strategy.variable import measured_variables
from cavs.errors import CavsError, CommunicationError, ConfigError

TREE = str(Path(__file__).with_name("tree_toy.py"))
RESOURCES = """\
nodes:
  - {address: a, chief: true, gpus: 2}
  - {address: b, gpus: 2}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def strategy(*words):
    return main(["strategy", words[0], TREE, *map(str, words[1:])])


def test_show(capsys):
    assert strategy("show", "--strategy", "PSLoadBalancing", "--workers", 3) == 0
    out = capsys.readouterr().out
    assert "strategy   PSLoadBalancing, digest " in out
    assert "replicas   3: localhost:CPU:0, localhost:CPU:1, localhost:CPU:2" in out
    assert re.search(r"float32\[\d+, \d+\].* server localhost:CPU:1", out)
    assert "ms a step" in out
    assert strategy("show", "--workers", 1) == 0
    assert "0.000 ms a step" in capsys.readouterr().out


def test_show_on_a_cluster(capsys):
    Path("r.yaml").write_text(RESOURCES)
    assert (
        strategy("show", "--resources", "r.yaml", "--strategy", "PS(local_replication=True)") == 0
    )
    out = capsys.readouterr().out
    assert "4: a:GPU:0, a:GPU:1, b:GPU:0, b:GPU:1" in out
    assert "server a:CPU:0, two_level, local_replication" in out


def test_show_lists_nodes_that_only_serve(capsys):
    Path("r.yaml").write_text(RESOURCES.replace("{address: b, gpus: 2}", "{address: b}"))
    assert strategy("show", "--resources", "r.yaml", "--strategy", "BytePS") == 0
    out = capsys.readouterr().out
    assert "replicas   2: a:GPU:0, a:GPU:1\n" in out and "servers    1: b:CPU:0\n" in out


@pytest.mark.parametrize("time", ["soon", "-1", "inf", "nan"])
def test_the_time_of_a_step_is_a_number_of_milliseconds(time, capsys):
    with pytest.raises(SystemExit) as stop:
        strategy("show", f"--compute={time}")
    assert stop.value.code == 2
    assert f"--compute: {time!r} is not a time in milliseconds" in capsys.readouterr().err


def test_a_strategy_is_written_to_a_file_and_read_back(capsys):
    assert strategy("show", "--strategy", "PartitionedPS", "--out", "s.json") == 0
    shown = capsys.readouterr().out
    assert load("s.json").digest[:16] in shown
    assert strategy("show", "--strategy", "s.json", "--json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(Path("s.json").read_text())
    assert strategy("check", "--strategy", "s.json") == 0
    assert "s.json fits" in capsys.readouterr().out
    assert strategy("check", "--strategy", "s.json", "--workers", 2) == 0
    assert "2 of 2 devices" in capsys.readouterr().out
    assert strategy("check", "--strategy", "s.json", "--workers", 3) == 1
    assert "the strategy is for 2 ranks, but --workers is 3" in capsys.readouterr().out


def test_check_shows_every_problem(capsys):
    assert strategy("show", "--strategy", "PSLoadBalancing", "--out", "s.json") == 0
    capsys.readouterr()
    assert strategy("check", "--strategy", "s.json", "--workers", 1) == 1
    out = capsys.readouterr().out
    assert out.count("there is no device localhost:CPU:1") > 1
    assert out.count("  hint: ") == out.count("there is no device")
    assert strategy("compare", "--strategy", "s.json", "--workers", 1) == 1
    assert "s.json: rank 1: there is no device localhost:CPU:1" in capsys.readouterr().err
    Path("s.json").write_text("{}")
    assert strategy("check", "--strategy", "s.json") == 1
    assert "s.json: strategy misses 'format'" in capsys.readouterr().err
    assert strategy("check") == 1
    assert "pass --strategy FILE.json" in capsys.readouterr().err


def test_compare(capsys):
    words = ("--strategy", "PS", "--strategy", "AllReduce", "--compute", "1.5", "--workers", 4)
    assert strategy("compare", *words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[0] == "builder"
    assert [line.split()[0] for line in lines[1:]] == ["AllReduce", "PS"]
    assert float(lines[1].split()[1]) > 1.5
    assert strategy("compare") == 0
    assert len(capsys.readouterr().out.splitlines()) > 6


def test_saved_strategies_and_auto_are_compared(capsys):
    def compared(*names):
        assert strategy("compare", *(word for name in names for word in ("--strategy", name))) == 0
        head, *lines = capsys.readouterr().out.splitlines()
        at = head.index("ms a step") - 1
        return {line[:at].strip(): float(line[at:].split()[0]) for line in lines}

    assert strategy("show", "--strategy", "PartitionedPS", "--out", "s.json") == 0
    capsys.readouterr()
    found = compared("PS", "s.json", "auto")
    auto, best = next(item for item in found.items() if item[0].startswith("auto: "))
    assert set(found) == {auto, "PS", "s.json"} and best == min(found.values())
    taken = auto.removeprefix("auto: ")
    assert compared(taken, "auto") == {f"{taken}, {auto}": best}
    assert list(compared("s.json", "PartitionedPS", "s.json")) == ["s.json, PartitionedPS"]


def test_a_measured_cluster_is_a_resource_specification(capsys):
    texts = run_threads(2, lambda c: measured(c, "cluster.yaml"))
    assert texts[0] == texts[1] == Path("cluster.yaml").read_text()
    spec = load_resources("cluster.yaml")
    assert spec.replicas == ("localhost:CPU:0", "localhost:CPU:1")
    assert spec.network != ResourceSpec.local(2).network
    (gpus, _) = run_threads(2, lambda c: measured(c, gpus=True))
    Path("gpus.yaml").write_text(gpus)
    spec = load_resources("gpus.yaml")
    assert spec.replicas == ("localhost:GPU:0", "localhost:GPU:1")
    assert spec.cpu_devices == () and spec.network.common_bandwidth == 0
    words = ("--strategy", "PSLoadBalancing", "--resources", "cluster.yaml")
    assert strategy("show", *words, "--out", "s.json") == 0
    assert strategy("check", "--strategy", "s.json", *words[2:]) == 0
    assert strategy("compare", *words[2:]) == 0
    assert "s.json fits" in capsys.readouterr().out


def test_a_cluster_that_cannot_be_written_is_an_error_on_all_ranks():
    def work(c):
        with pytest.raises(CavsError) as caught:
            measured(c, "absent/cluster.yaml")
        return type(caught.value), str(caught.value), is_agreed(caught.value)

    (first, text, _), (second, quoted, _) = found = run_threads(2, work)
    assert first is ConfigError and text.startswith("cannot write absent/cluster.yaml: ")
    assert second is CommunicationError and "rank 0: ConfigError: cannot write" in quoted
    assert all(agreed for _, _, agreed in found)


def test_one_rank_cannot_measure(capsys):
    assert main(["strategy", "measure"]) == 1
    assert "cavs launch -n 4 strategy measure" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("show", "--strategy", "Gossip"), "no strategy builder is called 'Gossip'"),
        (("show", "--strategy", "absent.json"), "cannot read absent.json"),
        (("show", "--resources", "absent.yaml"), "cannot read absent.yaml"),
        (("show", "--out", "absent/s.json"), "cannot write absent/s.json"),
        (
            ("show", "--out", "x.txt"),
            "--out x.txt: strategies are read only from files that end in .json",
        ),
        (("compare", "--strategy", "AllReduce(chunk=0)"), "chunk is 0"),
        (("compare", "--strategy", "absent.json"), "cannot read absent.json"),
    ],
)
def test_bad_input(words, text, capsys):
    assert strategy(*words) == 1
    assert not list(Path().glob("**/*part")) and not Path("x.txt").exists()
    assert text in capsys.readouterr().err


def test_a_folder_cannot_be_written_as_a_file(capsys):
    Path("folder.json").mkdir()
    assert strategy("show", "--out", "folder.json") == 1
    assert "cannot write folder.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("show", "--workers", "4097"), "'4097' is not a whole number from 1 to 4096"),
        (("show", "--workers", "0"), "'0' is not a whole number"),
        (("show", "--compute", "-1"), "'-1' is not a time in milliseconds"),
        (("show", "--workers", "2", "--resources", "r"), "not allowed with"),
        (("gossip",), "invalid choice: 'gossip'"),
    ],
)
def test_bad_usage(words, text, capsys):
    with pytest.raises(SystemExit):
        strategy(*words)
    assert text in capsys.readouterr().err


TREES = str(Path(__file__).with_name("tree_toy.py"))


@pytest.mark.parametrize("name", ["auto", "PSLoadBalancing", None])
def test_a_training_logs_its_strategy(name, capsys):
    words = () if name is None else ("--strategy", name)
    assert main(["train", TREES, "--out", "run", "--epochs", "1", *words]) == 0
    events = map(json.loads, Path("run/log.jsonl").read_text().splitlines())
    told = [event for event in events if event["event"] == "strategy"]
    lines = [line for line in capsys.readouterr().err.splitlines() if "strategy" in line]
    assert len(told) == (name is not None) and len(lines) == (name == "auto")
    if name == "auto":
        words = f"strategy auto: {told[0]['builder']}, predicted "
        assert re.fullmatch(re.escape(words) + r"[\d.]+ ms a step( besides .*)?", lines[0])
    elif name is not None:
        assert told[0]["builder"] == name and len(told[0]["digest"]) == 64


def test_options_without_a_strategy_are_refused(capsys):
    assert main(["train", TREES, "--out", "run", "--resources", "r.yaml"]) == 1
    assert "--resources r.yaml without --strategy" in capsys.readouterr().err
    assert not Path("run").exists()


class Cell(cavs.VertexFunction):
    def __init__(self, size):
        self.state = cavs.State(h=size)
        self.W = cavs.Parameter((size, size))
        self.twice = cavs.Parameter((size, size))
        self.other = cavs.Parameter((size, size))
        self.b = cavs.Parameter((size,))

    def vertex(self, v):
        child = v.gather()
        x = v.pull("x") @ self.W + (child.h @ self.twice).sum() + self.b
        h = ops.tanh(x @ self.twice + v.pull("x") @ self.other.T)
        v.scatter(h=h)
        v.push(h)


class Classifier(cavs.Model):
    def __init__(self):
        self.embedding = nn.Embedding(30, 4)
        self.cell = Cell(4)
        self.output = nn.Linear(4, 2)
        self.fixed = cavs.Parameter((3,), trainable=False)

    def loss(self, batch):
        h = self.cell(batch.graph, x=self.embedding(batch["token"]))
        return ops.cross_entropy(self.output(h), batch["label"])


def variables_as_run(model, batch):
    """Return the variables with the factors that the engine leaves after a run."""
    session = cavs.Session(model, replicated=True)
    executor, names = session.ready(batch)[0], list(session.parameters)
    factored = {name for i, name in enumerate(names) if executor.set_factored(i)}
    session.gradients(batch)
    for v in measured_variables(model, batch):
        pairs = len(executor.factors(names.index(v.name))[0]) if v.name in factored else None
        yield dataclasses.replace(v, factors=pairs)


def test_a_batch_tells_the_sizes_of_gradients():
    tokens = np.array([7, 7, -1, 9], np.int32)
    features = {"token": tokens, "label": np.zeros(4, np.int32)}
    graph = cavs.Graph.from_children([[], [], [0, 1], [2]], features=features)
    model = Classifier()
    found = {v.name: v for v in measured_variables(model, cavs.batch([graph, graph]))}
    assert found["embedding.weight"].rows == 2
    assert (
        found["embedding.weight"].once == 0 and found["embedding.weight"].twice == 1
    )  # token 7 occurs four times
    assert found["embedding.weight"].sparse
    # The engine multiplies one row for equal vertices, and none for vertices without a token.
    assert found["cell.W"].factors == found["cell.other"].factors == 2
    assert found["cell.twice"].factors == 3 + 3  # vertices, and those with parents
    assert found["output.weight"].factors == 3
    assert found["cell.b"].factors is None and found["cell.b"].rows is None
    assert "fixed" not in found
    few = graph.with_features({**features, "label": [-1, -1, 1, 0]})
    found = {v.name: v for v in measured_variables(model, cavs.batch([graph, few]))}
    assert found["output.weight"].factors == 3 + 2  # vertices with a label
    assert found["cell.W"].factors == 4
    assert found == {v.name: v for v in variables_as_run(model, cavs.batch([graph, few]))}
    unknown = measured_variables(model, None)
    assert [v.name for v in unknown] == list(found)
    assert all(v.rows is None and v.factors is None for v in unknown)
