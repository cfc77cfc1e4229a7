"""Options of the benchmark programs: values out of range are refused before any measurement."""

from __future__ import annotations

import argparse
import importlib
import shutil
from pathlib import Path
from typing import Any

import pytest

import benchmarks
from benchmarks import distributed
from benchmarks.options import OptionParser
from cavs.distributed.planning.builders import REGISTRY

INTERNAL = {"serve", "result_paths", "options"}  # no programs that a user starts


def programs() -> list[str]:
    """Return the names of modules with options."""
    files = sorted(Path(benchmarks.__path__[0]).glob("*.py"))
    with_options = (file.stem for file in files if ".parse_args(" in file.read_text())
    return [name for name in with_options if name not in INTERNAL]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a program, which has to refuse its options with status 2; return what it writes."""

    def run(program: str, *options: str) -> str:
        main = importlib.import_module(f"benchmarks.{program}").main
        with pytest.raises(SystemExit) as error:
            main(list(options))
        assert error.value.code == 2
        return capsys.readouterr().err

    return run


def test_every_number_has_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    class Parsed(Exception):
        pass

    def parse(self: argparse.ArgumentParser, *_: Any) -> None:
        raise Parsed(self)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    names = programs()
    assert len(names) > 20
    for name in names:
        with pytest.raises(Parsed) as caught:
            importlib.import_module(f"benchmarks.{name}").main()
        parser = caught.value.args[0]
        assert isinstance(parser, OptionParser), name
        assert [a.dest for a in parser._actions if a.type in (int, float)] == [], name


@pytest.mark.parametrize(
    ("program", "options", "said"),
    [
        ("distributed", "--rounds 0", "--rounds: '0' is not a whole number of at least 1"),
        ("distributed", "--batches 0", "--batches: '0' is not a whole number of at least 1"),
        ("distributed", "--ranks 0", "--ranks: '0' is not a whole number of at least 1"),
        ("distributed", "--megabits nan", "--megabits: 'nan' is not a number of at least 0"),
        ("distributed", "--strategies PS PS", "--strategies: PS is there twice"),
        ("distributed", "--strategies Nothing", "no strategy builder is called 'Nothing'"),
        ("distributed", "--strategies no.json", "cannot read no.json"),
        ("distributed", "--ranks 1 --strategies PS", "--ranks 1 measures the strategy buckets"),
        ("distributed", "--data nowhere", "cannot read nowhere/sst/"),
        ("choices", "--builders PS auto", "auto is always measured"),
        ("choices", "--ranks 1", "--ranks: '1' is not a whole number of at least 2"),
        ("faults", "--runs 0", "--runs: '0' is not a whole number of at least 1"),
        ("faults", "--ranks 13", "a global batch has 12 graphs"),
        ("faults", "--timeout 0", "--timeout: '0' is not a number above 0"),
        ("matrix", "--compressors float8", "unknown compressor 'float8'"),
        ("matrix", "--ranks 17", "a global batch has 16 graphs"),
        ("matrix", "--data nowhere", "there is no nowhere/sst"),
        ("stragglers", "--batch-sizes 1", "a graph for every rank"),
        ("stragglers", "--steps 1", "--steps: the bounds are on steps after the first"),
        ("balance", "--ranks 32", "a graph for every rank"),
        ("clusters", "--workers 6", "'6' workers do not fill nodes of four GPUs"),
        ("sst", "--hidden 8 8", "--hidden: 8 is there twice"),
        ("sst", "--threads 0", "--threads: '0' is not a whole number from 1 to"),
        ("tree_fc", "--leaves 3", "'3' is not a power of two"),
        ("first_step", "--case {", "Expecting property name"),
        ("first_step", '--case {"workload":"tree-lstm","hidden":0,"batch_size":1}', "at least 1"),
        ("__main__", "sst sst", "sst is there twice"),
    ],
)
def test_options_out_of_range(refused: Any, program: str, options: str, said: str) -> None:
    if "--data" not in options and program in ("distributed", "choices"):
        options += " --data D"
    assert said in refused(program, *options.split())


def test_an_unknown_reference(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks import sst

    assert sst.main(["--reference", "hand", "--runners", "cavs", "--data", "random"]) == 2
    assert "no reference 'hand' among cavs" in capsys.readouterr().err


def test_more_graphs_than_the_treebank_has(refused: Any, data: str, tmp_path: Any) -> None:
    (tmp_path / "sst").mkdir()
    for name in ("train", "dev", "test"):
        shutil.copy(f"{data}/sst/train.txt", tmp_path / "sst" / f"{name}.txt")
    said = refused("distributed", "--batch-size", "6000", "--data", str(tmp_path))
    assert (
        "--batches 6 of 6000 graphs for each of 4 ranks are 144000 graphs, but the treebank" in said
    )


def test_names_of_strategies_are_accepted() -> None:
    from benchmarks.options import strategy_name

    parse = strategy_name(*distributed.BUILT_IN)
    names = (*distributed.STRATEGIES, *REGISTRY, "PSLoadBalancing(staleness=2)")
    assert [parse(name) for name in names] == list(names)
