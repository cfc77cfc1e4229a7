"""Test that packages import what they export when it is used for the first time."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import cavs
import cavs.data
import cavs.distributed
import cavs.train


@pytest.mark.parametrize("package", [cavs, cavs.distributed, cavs.train])
def test_every_exported_name_is_found(package: ModuleType) -> None:
    for name in package.__all__:
        if not name.startswith("__"):
            assert package.__getattr__(name) is getattr(package, name)


def test_every_reader_is_found() -> None:
    for name in cavs.data._READERS:
        assert name in cavs.data.__all__
        assert cavs.data.__getattr__(name) is getattr(cavs.data, name)


@pytest.mark.parametrize("package", [cavs, cavs.data, cavs.distributed, cavs.train])
def test_another_name_is_an_attribute_error(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'Tr'"):
        package.Tr  # noqa: B018


def test_a_part_of_a_package_is_imported_without_the_others() -> None:
    code = (
        "import sys, cavs; print(*sys.modules); cavs.Graph; print(*sys.modules)\n"
        "from cavs.distributed.strategy import load; print(*sys.modules)\n"
        "from cavs import Trainer; import cavs.train.trainer as t; assert Trainer is t.Trainer"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    bare, with_data, with_strategies = (set(line.split()) for line in done.stdout.splitlines())
    assert not {"numpy", "cavs.data", "cavs.ir"} & bare
    assert "cavs.data" in with_data and not {"cavs.ir", "cavs.runtime"} & with_data
    assert not any(name.startswith("cavs.data.readers") for name in with_data)
    assert "cavs.distributed" in with_strategies
    assert not {"cavs.distributed.trainer", "cavs.distributed.sync"} & with_strategies


def test_a_command_of_one_process_starts_without_what_ranks_need() -> None:
    code = "import sys; from cavs.cli import main; main(['info']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = done.stdout.splitlines()[-1].split()
    assert {"cavs.cli.info", "cavs.train"} <= set(modules)
    assert not {"cavs.cli.train", "cavs.distributed"} & set(modules)
