"""Commands from training to prediction."""

import argparse
import io
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cavs import _engine
from cavs.cli import main, registry
from cavs.cli import train as cli_train
from cavs.compiler.pipeline import default_passes
from cavs.errors import ConfigError
from cavs.train import read_checkpoint, safetensors
from tests.train.fake import FakeSession

TOY = str(Path(__file__).with_name("toy.py"))


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    """Run every test in a working folder of its own; restore `sys.path`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture(autouse=True)
def numpy_engine(monkeypatch, request):
    """Run the commands on the engine in NumPy unless a test uses `real_engine`."""
    if "real_engine" in request.fixturenames:
        return
    monkeypatch.setattr(
        "cavs.train.trainer._new_session", lambda model, **options: FakeSession(model)
    )


@pytest.fixture
def real_engine():
    """Run the commands on `cavs.runtime.Session`."""


def cavs(*words):
    return main([str(word) for word in words])


def train(*words):
    return cavs("train", TOY, "--quiet", *words)


def given(monkeypatch, raw):
    """Let the standard input hold `raw`; as text it would accept bytes that are not UTF-8."""
    text = io.TextIOWrapper(io.BytesIO(raw), "utf-8", "surrogateescape")
    monkeypatch.setattr("sys.stdin", text)


RUN = Path("runs/toy")
LAST, BEST = RUN / "checkpoint.safetensors", RUN / "checkpoint.best.safetensors"


def test_train_evaluate_predict_info(monkeypatch, capsys):
    assert train("--offset", "0.5") == 0
    out = capsys.readouterr().out
    assert "best epoch" in out
    assert f"saved {BEST}" in out
    log = [json.loads(line) for line in (RUN / "log.jsonl").read_text().splitlines()]
    assert (log[0]["event"], log[0]["offset"], log[0]["lr"]) == ("options", 0.5, 0.5)
    assert [r["epoch"] for r in log if r["event"] == "epoch"] == [1, 2, 3]
    config = read_checkpoint(LAST).config
    assert config["options"] == {"offset": 0.5}
    assert config["assets"] == {"classes": ["low", "middle", "high"]}

    assert cavs("evaluate", BEST, "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["graphs"] == 20
    assert values["accuracy"] > 0.7
    assert f"root_accuracy {values['root_accuracy']:.4f}" in out
    assert cavs("evaluate", BEST, "--split", "dev", "--limit", "5") == 0
    assert "dev: 5 graphs" in capsys.readouterr().out

    Path("input").write_text("1 0 0 0 0 0\n0 9 0 0 0 0\n")
    assert cavs("predict", BEST, "input") == 0
    lines = capsys.readouterr().out.split()
    assert len(lines) == 2
    assert set(lines) <= {"low", "middle", "high"}
    Path("input").write_text("1 0\n")
    assert cavs("predict", BEST, "input") == 1
    assert "DataError: input: a line needs 6 numbers" in capsys.readouterr().err
    given(monkeypatch, b"")
    assert cavs("predict", BEST, "-") == 1
    assert "DataError: the standard input has no graphs" in capsys.readouterr().err
    assert cavs("predict", BEST, "--split", "test", "--limit", "7") == 0
    assert len(capsys.readouterr().out.split()) == 7

    assert cavs("info", LAST) == 0
    out = capsys.readouterr().out
    assert "offset=0.5" in out
    assert "3 epochs finished" in out
    assert "float32[6, 3]" in out


def test_the_standard_input_is_read_like_a_file(monkeypatch, capsys):
    assert train("--epochs", "1") == 0
    text = b"1 0 0 0 0 0\r\n0 9 0 0 0 0\r\n"
    for raw in (b"\xef\xbb\xbf" + text, text + b"\n0 \xff", b"\xef\xbb\xbf\xff"):
        Path("input").write_bytes(raw)
        capsys.readouterr()
        done = cavs("predict", BEST, "input")
        of_file = capsys.readouterr()
        given(monkeypatch, raw)
        assert cavs("predict", BEST, "-") == done
        found = capsys.readouterr()
        assert found.out == of_file.out
        assert found.err == of_file.err.replace("input:", "the standard input:")
        if done == 1:
            line = 1 + raw.count(b"\n")
            assert f"DataError: input:{line}: byte 0xff is not UTF-8" in of_file.err
        else:
            assert len(found.out.splitlines()) == 2


def test_a_standard_input_that_cannot_be_read(monkeypatch, capsys):
    class Broken(io.BytesIO):
        def read(self, *size):
            raise OSError(5, "Input/output error")

    assert train("--epochs", "1") == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Broken()))
    assert cavs("predict", BEST, "-") == 1
    told = capsys.readouterr().err
    assert "DataError: cannot read the standard input: Input/output error" in told


def test_ctrl_c_then_resume_equals_an_uninterrupted_run(monkeypatch, capsys):
    assert train("--out", "whole") == 0
    step = FakeSession.step

    def interrupted(self, *args, **kwargs):
        if kwargs["step"] == 11:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(FakeSession, "step", interrupted)
        assert train() == 130
    assert "stopped after step 12; saved runs/toy/checkpoint" in capsys.readouterr().err
    assert train() == 1
    assert "pass --resume, --overwrite" in capsys.readouterr().err
    assert train("--data", "nowhere") == 1
    assert "nowhere is neither a folder" in capsys.readouterr().err
    assert train("--resume") == 0
    for name in (LAST.name, BEST.name):
        ours, theirs = read_checkpoint(RUN / name), read_checkpoint(Path("whole") / name)
        for key, array in ours.parameters.items():
            assert np.array_equal(array, theirs.parameters[key])
    assert train("--overwrite", "--epochs", "1") == 0
    assert read_checkpoint(LAST).progress["fit"]["epoch"] == 1


def test_resume_goes_on_with_the_options_of_the_run():
    words = ("--offset", "0.5", "--lr", "0.3", "--batch-size", "7", "--limit", "50", "--seed", "2")
    words = (*words, "--optimizer", "adam", "--schedule", "plateau")
    assert train(*words, "--epochs", "4", "--out", "whole") == 0
    assert train(*words, "--epochs", "2") == 0
    assert train("--resume", "--epochs", "4") == 0
    ours, theirs = read_checkpoint(LAST), read_checkpoint(Path("whole") / LAST.name)
    assert ours.config == theirs.config
    for key, array in ours.parameters.items():
        assert np.array_equal(array, theirs.parameters[key])


def test_resume_goes_on_with_the_engine_of_the_run(monkeypatch):
    engines, balances = [], []

    def session(model, *, threads, device, precision, cudnn, deterministic, passes, scheduling):
        engines.append((threads, device, precision, cudnn, deterministic, passes, scheduling))
        return FakeSession(model)

    def settled(args):
        balances.append((args.strategy, args.balance, args.predictor, args.save_every))

    monkeypatch.setattr("cavs.train.trainer._new_session", session)
    words = ("--device", "cuda", "--precision", "tf32", "--cudnn", "auto", "--deterministic")
    words = (*words, "--balance", "lb-bsp", "--predictor", "ema", "--save-every", "3")
    words = (*words, "--without", "fuse", "--without", "simplify", "--scheduling", "agenda")
    assert train(*words, "--threads", "2", "--epochs", "1") == 0
    check = cli_train._check_balance
    monkeypatch.setattr(cli_train, "_check_balance", lambda args: (check(args), settled(args)))
    assert train("--resume", "--epochs", "2") == 0
    other = ("--precision", "bfloat16", "--balance", "equal", "--without", "hoist_lazy")
    other = (*other, "--scheduling", "fewest")
    assert train("--resume", *other) == 0
    on = default_passes("cuda")
    run = ("cuda", "tf32", "auto", True, replace(on, fuse=False, simplify=False), "agenda")
    others = ("cuda", "bfloat16", "auto", True, replace(on, hoist_lazy=False), "fewest")
    assert engines == [(2, *run), (None, *run), (None, *others)]
    assert balances == [(None, "lb-bsp", "ema", 3), (None, "equal", None, 3)]


def test_resume_goes_on_with_the_strategy_of_the_run(real_engine, capsys):
    tree = Path(__file__).with_name("tree_toy.py")
    words = ("train", tree, "--quiet", "--out", "run", "--limit", "16")
    assert cavs(*words, "--epochs", "1", "--strategy", "PSLoadBalancing") == 0
    config = read_checkpoint("run/checkpoint.safetensors").config
    assert config["training"]["strategy"] == "PSLoadBalancing"
    assert cavs(*words, "--resume", "--epochs", "2", "--strategy", "Nothing") == 1
    assert "Nothing" in capsys.readouterr().err
    assert cavs(*words, "--resume", "--epochs", "2") == 0
    assert read_checkpoint("run/checkpoint.safetensors").config == config | {
        "training": config["training"] | {"epochs": 2}
    }


def test_a_model_file_that_moved(capsys):
    mine = Path("mine.py")
    mine.write_text(Path(TOY).read_text())
    assert cavs("train", mine, "--quiet", "--out", "run", "--epochs", "1") == 0
    mine.rename("moved.py")
    best = "run/checkpoint.best.safetensors"
    assert cavs("evaluate", best) == 1
    assert "mine.py, but there is no such file" in capsys.readouterr().err
    assert cavs("evaluate", best, "--model", "moved.py") == 0
    capsys.readouterr()
    assert cavs("evaluate", best, "--model", "tree-lstm") == 1
    told = f"ConfigError: --model tree-lstm, but {best} holds the model {mine.absolute()}"
    assert told in capsys.readouterr().err


def test_a_model_file_imports_modules_of_its_folder(capsys):
    folder = Path("elsewhere")
    folder.mkdir()
    (folder / "sibling_sizes.py").write_text("EPOCHS = 1\n")
    (folder / "sibling_late.py").write_text("from tests.cli.toy import build\n")
    (folder / "mine.py").write_text(
        "from sibling_sizes import EPOCHS\n"
        "from tests.cli.toy import add_arguments\nDEFAULTS = {'epochs': EPOCHS}\n"
        "def build(*words):\n    import sibling_late\n    return sibling_late.build(*words)\n"
    )
    assert cavs("train", folder / "mine.py", "--quiet", "--out", "run") == 0
    assert cavs("evaluate", "run/checkpoint.best.safetensors") == 0


def test_splits_may_be_generators(capsys):
    toy = Path(TOY).read_text()
    for old, new in (
        ("train=lambda: make_graphs(60)", "train=(g for g in make_graphs(60))"),
        ("dev=make_graphs(20, seed=1)", "dev=lambda: iter(make_graphs(20, seed=1))"),
        ("test=lambda: make_graphs(20, seed=2)", "test=None"),
    ):
        assert old in toy
        toy = toy.replace(old, new)
    Path("generated.py").write_text(toy)
    assert cavs("train", "generated.py", "--quiet", "--out", "run", "--limit", "40") == 0
    best = "run/checkpoint.best.safetensors"
    assert cavs("evaluate", best, "--split", "dev") == 0
    assert "dev: 20 graphs" in capsys.readouterr().out
    assert cavs("evaluate", best) == 1
    assert (
        "no test graphs\n  hint: pass --data DIR, or one that is there: --split train or dev"
        in (capsys.readouterr().err)
    )


def test_python_dash_m():
    done = subprocess.run(
        [sys.executable, "-m", "cavs", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("cavs ")


def test_a_python_file_that_is_not_the_model_is_not_run():
    Path("other.py").write_text("raise SystemExit('was run')\n")
    assert train("--epochs", "1", "--data", ".", "--out", "other.py/run") == 1
    assert cavs("bench", TOY, "--seconds", "0.05", "--data", "other.py") == 1


def test_ctrl_c_before_the_training(monkeypatch, capsys):
    def stopped(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("cavs.cli.registry.Task.required", stopped)
    assert train() == 130
    assert capsys.readouterr().err == "\ncavs: stopped\n"


@pytest.mark.parametrize("schedule", ["cosine", "step", "exponential", "plateau"])
def test_schedules_and_optimizers(schedule):
    words = ("--schedule", schedule, "--warm-up", "2", "--optimizer", "adamw", "--lr", "0.05")
    assert train(*words, "--max-norm", "1", "--patience", "1", "--weight-decay", "0.1") == 0


@pytest.mark.parametrize(
    ("words", "decay"),
    [
        (("--optimizer", "adamw"), 0.01),
        (("--optimizer", "adamw", "--weight-decay", "0"), 0.0),
        (("--optimizer", "adam"), 0.0),
        ((), 0.0),
    ],
)
def test_weight_decay_is_that_of_the_optimiser_unless_given(words, decay):
    assert train(*words, "--epochs", "1") == 0
    log = [json.loads(line) for line in (RUN / "log.jsonl").read_text().splitlines()]
    (start,) = (record for record in log if record["event"] == "start")
    assert f"weight_decay={decay}," in start["optimizer"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("train", "none.py"), "no file none.py"),
        (("train", TOY, "--quiet", "--data", "nowhere"), "DataError: nowhere is neither a folder"),
        (("train", TOY, "--strategy", "PS", "--resources", "nofile"), "cannot read nofile"),
        (("train", TOY, "--resume"), "nothing to resume"),
        (("train", TOY, "--resume", "--overwrite"), "exclude each other"),
        (("train", TOY, "--momentum", "0.9"), "only sgd has momentum"),
        (("train", TOY, "--lr", "-1"), "lr is -1"),
        (("train", TOY, "--out", "/proc/none"), "cannot write the checkpoint /proc/none"),
        (("evaluate", "nothing"), "No such file"),
        (("predict", "nothing"), "exactly one of them"),
        (("info", "nothing"), "No such file"),
        (("bench", TOY, "--seconds", "0"), "--seconds is 0.0"),
    ],
)
def test_errors_are_one_message_without_a_traceback(words, text, capsys):
    assert cavs(*words) == 1
    err = capsys.readouterr().err
    assert text in err.partition("cavs: ")[2]
    assert "Traceback" not in err
    assert not Path("runs").exists()


def test_a_failed_training_leaves_no_folder():
    Path("badbuild.py").write_text("def build(args, assets=None):\n    return 1 / 0\n")
    Path("badtask.py").write_text("def build(args, assets=None):\n    return 3\n")
    with pytest.raises(ZeroDivisionError):
        cavs("train", "badbuild.py")
    assert cavs("train", "badtask.py") == 1
    Path("runs").mkdir()
    assert cavs("train", "badtask.py", "--out", "runs/deep/down") == 1
    assert not list(Path("runs").iterdir())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "COMMAND"),
        (("fly",), "invalid choice: 'fly'"),
        (("train",), "MODEL"),
        (("train", "no-such-model"), "invalid choice: 'no-such-model'"),
        (("train", TOY, "--epochs", "0"), "'0' is not a whole number of at least 1"),
        (("train", TOY, "--epochs", "many"), "'many' is not a whole number"),
        (("train", TOY, "--optimizer", "lamb"), "invalid choice: 'lamb'"),
    ],
)
def test_bad_usage(words, text, capsys):
    with pytest.raises(SystemExit) as stop:
        cavs(*words)
    assert stop.value.code == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("'--lr'", "--lr which exists already"),
        ("'--help'", "--help which exists already"),
        ("'--rate', dest='lr'", "--rate, args.lr, which exists already"),
        ("'--run'", "--run, args.run, which exists already"),
    ],
)
def test_a_model_may_not_add_an_option_of_cavs(option, text, capsys):
    Path("mine.py").write_text(
        f"def add_arguments(parser):\n    parser.add_argument({option})\nbuild = print\n"
    )
    assert cavs("train", "mine.py") == 1
    assert f"ConfigError: mine.py adds the option {text}" in capsys.readouterr().err


COMMANDS = ["demo", "train", "evaluate", "predict", "report", "bench", "explain", "info"]


@pytest.mark.parametrize("command", [*COMMANDS, "strategy", "launch", "config-server"])
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cavs(command, "--help")
    assert stop.value.code == 0
    assert "usage: cavs " + command in capsys.readouterr().out


def test_help_of_a_model_shows_its_options_and_defaults(capsys):
    with pytest.raises(SystemExit):
        cavs("train", TOY, "--help")
    out = capsys.readouterr().out
    assert "--offset X" in out
    assert "added to every label's score, default: 0.0" in " ".join(out.split())
    assert "Softmax regression on made-up chains." in out
    assert "second line" not in out
    assert "default: 3" in out


def test_bench(capsys):
    assert cavs("bench", TOY, "--seconds", "0.05", "--batches", "3", "--batch-size", "4") == 0
    out = capsys.readouterr().out
    assert "3 batches of 4" in out
    assert cavs("bench", TOY, "--seconds", "0.05", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["train"]["ms_low"] <= record["train"]["ms"] <= record["train"]["ms_high"]
    assert record["infer"]["rounds"] >= 3


def test_info_names_the_version_and_the_models(capsys, monkeypatch):
    monkeypatch.setattr(registry, "PACKAGES", ("tests.cli",))
    assert cavs("info") == 0
    out = capsys.readouterr().out
    assert "numpy" in out
    assert f"instruction set {_engine.isa()}" in out
    assert _engine.isa("bfloat16") in out
    (gpu,) = [line for line in out.splitlines() if line.startswith("gpu ")]
    assert re.search(r"none: .+\(.+\)$|, sm_\d+, ", gpu)
    assert "Softmax regression on made-up chains." in out
    assert registry.find("toy").build is not None
    assert "test-cli" in registry.names()


def test_a_checkpoint_from_python_is_refused_by_name(capsys):
    from cavs.train import save_checkpoint
    from tests.train.fake import FakeModel

    save_checkpoint("m", FakeModel())
    assert cavs("evaluate", "m") == 1
    assert "Trainer.load" in capsys.readouterr().err
    safetensors.write("foreign", {"a": np.zeros(3)}, {})
    assert cavs("evaluate", "foreign") == 1
    assert "cavs_format" in capsys.readouterr().err


def test_the_registry_refuses_files_that_are_no_model(tmp_path):
    with pytest.raises(ConfigError, match="no model is called 'lion'"):
        registry.find("lion")
    (tmp_path / "empty.py").write_text('"""Nothing."""\n')
    with pytest.raises(ConfigError, match="has no function build"):
        registry.find(str(tmp_path / "empty.py"))
    (tmp_path / "odd.py").write_text("def build(args, assets=None):\n    return 3\n")
    entry = registry.find(str(tmp_path / "odd.py"))
    with pytest.raises(ConfigError, match="returned int"):
        entry.build(argparse.Namespace())
    (tmp_path / "keys.py").write_text('DEFAULTS = {"epoch": 1}\n' + "build = print\n")
    assert main(["train", str(tmp_path / "keys.py")]) == 1


@pytest.mark.usefixtures("real_engine")
def test_an_unknown_device_is_refused(capsys):
    tree = Path(__file__).with_name("tree_toy.py")
    for command in ("train", "bench"):
        assert cavs(command, tree, "--device", "gpu") == 1
        err = capsys.readouterr().err
        assert "DeviceError: device is 'gpu', but must be 'cpu', 'cuda'" in err
        assert "Traceback" not in err


@pytest.mark.usefixtures("real_engine")
def test_all_commands_on_the_engine(capsys):
    tree = Path(__file__).with_name("tree_toy.py")
    assert cavs("train", tree, "--quiet", "--threads", "1", "--out", "run") == 0
    assert "test  loss" in capsys.readouterr().out
    best = "run/checkpoint.best.safetensors"
    assert cavs("evaluate", best) == 0
    assert "accuracy" in capsys.readouterr().out
    assert cavs("predict", best, "--split", "dev") == 0
    assert set(capsys.readouterr().out.split()) <= {"0", "1", "2"}
    assert cavs("bench", tree, "--seconds", "0.05", "--batches", "2") == 0
    assert "graphs/s" in capsys.readouterr().out
    assert cavs("explain", tree) == 0
    out = capsys.readouterr().out
    for part in ("== trace", "== differentiate", "== program", "== one step", "tasks", "gather"):
        assert part in out
    assert "states of the optimiser" in out and "update " in out
    assert cavs("explain", tree, "--inference") == 0
    out = capsys.readouterr().out
    assert "== one step" in out and "== differentiate" not in out and "update " not in out
    assert cavs("explain", tree, "--without", "merge_products", "--without", "trim_products") == 0
    out = capsys.readouterr().out
    assert "== specialise" in out
    assert "== trim_products" not in out and "== merge_products" not in out
    assert "passes switched off: trim_products, merge_products" in out
    with pytest.raises(SystemExit):
        cavs("explain", tree, "--without", "trims")
    assert "invalid choice: 'trims' (choose from" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cavs("explain", tree, "--without", "trim")
    assert "trim was renamed: write trim_products" in capsys.readouterr().err
