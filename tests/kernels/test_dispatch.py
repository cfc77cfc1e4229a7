from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cavs import _engine

from .support import KERNELS


def engine_isa(wish: str) -> subprocess.CompletedProcess[str]:
    code = "from cavs import _engine; print(_engine.isa())"
    return subprocess.run(
        [sys.executable, "-c", code],
        text=True,
        capture_output=True,
        env={**os.environ, "CAVS_ISA": wish},
        check=False,
    )


def test_best_isa_is_the_default() -> None:
    assert engine_isa("").stdout.strip() == KERNELS.supported_isas()[-1]
    assert _engine.isa() in KERNELS.supported_isas()


@pytest.mark.parametrize("isa", KERNELS.supported_isas())
def test_environment_selects_the_isa(isa: str) -> None:
    assert engine_isa(isa).stdout.strip() == isa


def test_unknown_isa_is_rejected() -> None:
    done = engine_isa("neon9")
    assert done.returncode != 0
    assert 'ConfigError: instruction set "neon9"' in done.stderr
    assert ", ".join(KERNELS.supported_isas()) in done.stderr


def test_isa_objects_export_their_tables_only() -> None:
    """Anything else could be merged by the linker with code for another instruction set."""
    build = Path(_engine.__file__).parents[3]  # the build folder of an editable installation
    objects = list(build.glob("CMakeFiles/cavs_kernels_*.dir/kernels/*.cc.o"))
    if shutil.which("nm") is None or not objects:
        pytest.skip("needs nm and a build tree")
    for path in objects:
        command = ["nm", "-C", "--defined-only", "--extern-only", str(path)]
        text = subprocess.run(command, text=True, capture_output=True, check=True).stdout
        names = sorted(line.split(maxsplit=2)[2] for line in text.splitlines())
        isa = path.parent.parent.name.removeprefix("cavs_kernels_").removesuffix(".dir")
        if path.name == "strip_products.cc.o":
            assert names == [f"cavs::{isa}::take_products(cavs::IsaTable<float>&)"]
        else:
            assert names == [f"cavs::{isa}::kDouble", f"cavs::{isa}::kFloat"]
