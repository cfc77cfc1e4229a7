"""An instruction and a fused primitive are added by the files that docs/operators.md names."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from cavs import _engine
from cavs.compiler.instructions import INSTRUCTIONS
from cavs.ops.primitives import PRIMITIVES, operands_of

ROOT = Path(__file__).resolve().parents[2]
DRIVERS = Path(__file__).with_name("additions")
FLAGS = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-fvisibility=hidden"]
MOST_FILES = 6
# Kernels have names of their own, and some instructions are called like their kernel.
KERNELS = (
    "csrc/kernels/",
    "csrc/bindings/kernels.cc",
    "cuda/kernels/",
    "cuda/launch/kernel_library",
    "cuda/lstm/",  # constants of cuDNN
)


def additions(section: str) -> dict[str, str]:
    """The code that a section of the page adds, by file."""
    page = (ROOT / "docs/operators.md").read_text(encoding="utf-8")
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    block = re.compile(r"^\*\*`(.*?)`\*\*.*?\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return dict(block.findall(text))


def apply(added: dict[str, str], to: Path) -> None:
    """Create new files; add a line to a list behind its first entry."""
    for name, code in added.items():
        path = to / name
        if not path.exists():
            path.write_text(code, encoding="utf-8")
            continue
        text = path.read_text(encoding="utf-8")
        first = re.search(r"^  X\(.*$" if path.suffix == ".h" else r"^    \"\w+\": .*$", text, re.M)
        assert first is not None
        end = " \\\n" if path.suffix == ".h" else "\n"
        at = first.end() + 1
        path.write_text(text[:at] + code.rstrip("\n") + end + text[at:], encoding="utf-8")


def copy_sources(to: Path) -> None:
    for name in ("csrc", "cuda"):
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("*.cu"))
    for name in ("ops/primitives.py", "compiler/instructions.py"):
        (to / "cavs" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "cavs" / name, to / "cavs" / name)


def compile_and_run(directory: Path, *arguments: str) -> str:
    program = str(directory / "program")
    command = ["g++", *FLAGS, f"-I{directory / 'csrc'}", *arguments, "-pthread", "-o", program]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    return done.stdout


def module(path: Path) -> ModuleType:
    found = ModuleType("added")
    sys.modules["added"] = found  # dataclasses look their module up
    try:
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(found))
    finally:
        del sys.modules["added"]
    return found


def engine_library() -> Path:
    """The static library of the engine, if this is a build from source."""
    found = sorted(Path(sysconfig.get_path("data")).glob("engine/**/libcavs_core.a"))
    if not found:
        pytest.skip("the engine was not built in this environment")
    return found[0]


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_an_instruction_is_added_by_the_files_of_the_page(tmp_path):
    library = engine_library()
    added = additions("An instruction")
    copy_sources(tmp_path)
    apply(added, tmp_path)
    assert sorted(added) == [
        "cavs/compiler/instructions.py",
        "csrc/exec/instruction_types.h",
        "csrc/exec/instructions/concat.cc",
        "cuda/executor/instructions/concat.cc",
    ]
    sources = [tmp_path / "csrc/exec/instruction.cc", tmp_path / "csrc/exec/instructions/concat.cc"]
    shown = compile_and_run(
        tmp_path, str(DRIVERS / "run_instruction.cc"), *map(str, sources), str(library)
    )
    assert shown == "1 2 3 4 5 [concat] widths of inputs and output differ: 5 != 4"
    launcher = tmp_path / "cuda/executor/instructions/concat.cc"
    includes = [f"-I{tmp_path / 'csrc'}", f"-I{tmp_path}"]
    command = ["g++", *FLAGS, "-fsyntax-only", *includes, str(launcher)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "concat" in module(tmp_path / "cavs/compiler/instructions.py").INSTRUCTIONS


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_a_primitive_is_added_by_the_files_of_the_page(tmp_path):
    added = additions("A primitive of fused kernels")
    assert sorted(added) == ["cavs/ops/primitives.py", "csrc/kernels/map_operations.h"]
    copy_sources(tmp_path)
    apply(added, tmp_path)
    isa = ["-DCAVS_ISA=base", "-DCAVS_VECTOR_BYTES=16"]
    shown = compile_and_run(tmp_path, *isa, str(DRIVERS / "run_primitive.cc"))
    assert shown == "1 -8 27 cube 1"
    primitives = module(tmp_path / "cavs/ops/primitives.py")
    assert primitives.NUMPY.cube(np.float64(3)) == 27 and primitives.operands_of("cube") == 1


def test_lists_of_the_engine_and_of_python_agree():
    assert list(INSTRUCTIONS) == list(_engine.INSTRUCTIONS)
    assert {code: operands_of(code) for code in _engine.MAP_OPERATIONS} == _engine.MAP_OPERATIONS
    assert {*PRIMITIVES, "constant", "column", "uniform"} == set(_engine.MAP_OPERATIONS)


@pytest.mark.parametrize("name", _engine.INSTRUCTIONS)
def test_few_files_name_an_instruction(name):
    types = (ROOT / "csrc/exec/instruction_types.h").read_text(encoding="utf-8")
    (enumerator,) = re.findall(rf"X\((\w+), {name}\)", types)
    engine = rf"\b{enumerator}\b|(?:Traits |Launchers<T>::|instructions::){name}\b|\"{name}\""
    found = []
    for folder in ("csrc", "cuda"):
        for path in (ROOT / folder).rglob("*.[ch]*"):
            place = path.relative_to(ROOT).as_posix()
            if place.startswith(KERNELS) or path.suffix not in (".h", ".cc"):
                continue
            code = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
            if re.search(engine, code):
                found.append(place)
    for folder in ("compiler", "cuda", "runtime", "codegen"):
        for path in (ROOT / "cavs" / folder).rglob("*.py"):
            code = re.sub(
                r'"""(.*?)"""|#[^\n]*', "", path.read_text(encoding="utf-8"), flags=re.DOTALL
            )
            if f'"{name}"' in code:
                found.append(path.relative_to(ROOT).as_posix())
    assert len(found) <= MOST_FILES, found
