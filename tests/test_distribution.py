"""Test that the source archive is complete, and that its wheel works on other machines."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import cavs._engine
from tests import same_output, try_wheel

ROOT = Path(__file__).resolve().parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
# Recompiling the engine under a preloaded sanitizer tests nothing of the engine.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="a sanitized run"),
]


def run(command: list[str], cwd: Path, **environment: str) -> str:
    """Return the standard output of a command that must succeed."""
    done = subprocess.run(
        command,
        cwd=cwd,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source archive of this tree."""
    folder = tmp_path_factory.mktemp("sdist")
    build = "import sys, scikit_build_core.build as b; b.build_sdist(sys.argv[1])"
    run([sys.executable, "-c", build, str(folder)], ROOT)
    (archive,) = folder.iterdir()
    return archive


def contents(archive: Path) -> dict[str, bytes]:
    """Return the files of a source archive, by their path in the tree."""
    with tarfile.open(archive) as tar:
        files = {m.name.partition("/")[2]: tar.extractfile(m) for m in tar if m.isfile()}
        return {name: file.read() for name, file in files.items() if file is not None}


def sources() -> dict[str, bytes]:
    """Return the sources of the engines of this tree."""
    files = (p for folder in ("csrc", "cuda") for p in (ROOT / folder).rglob("*") if p.is_file())
    return {str(path.relative_to(ROOT)): path.read_bytes() for path in files}


def test_sdist_holds_sources_and_nothing_built(sdist: Path) -> None:
    found = contents(sdist)
    assert {"pyproject.toml", "README.md", "csrc/CMakeLists.txt", "cavs/__init__.py"} <= set(found)
    assert sources().items() <= found.items()
    built = [
        name
        for name in found
        if name.split("/")[0] in {"build", "dist", ".git", ".ci"}
        or name.startswith(".venv")
        or name.endswith((".so", ".o", ".pyc"))
    ]
    assert built == []


def quick(recorded: Path, sdist: Path) -> list[str]:
    """Return options of a build that copies outputs of this tree's own build, if it is current."""
    # .../build/NAME/install/platlib/cavs/_engine.so in an editable installation.
    own = Path(cavs._engine.__file__).parents[3]
    folders = ("csrc/", "cuda/")
    unpacked = {n: data for n, data in contents(sdist).items() if n.startswith(folders)}
    tree = sources()
    if unpacked != tree or not same_output.record(own, map(ROOT.joinpath, tree), recorded):
        return []
    launcher = ";".join([sys.executable, "-IS", same_output.__file__, str(recorded)])
    kinds = ("COMPILER", "LINKER")
    return [f"-Ccmake.define.CMAKE_CXX_{kind}_LAUNCHER={launcher}" for kind in kinds]


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of the source archive, for machines other than this one."""
    folder = tmp_path_factory.mktemp("wheels")
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder / "own")]
    run([*build, *quick(folder / "commands.json", sdist), str(sdist)], ROOT)
    (own,) = (folder / "own").iterdir()
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(folder / "other")]
    run([*repair, str(own)], folder, PATH=search)
    (other,) = (folder / "other").iterdir()
    return other


def test_a_wheel_trains_where_there_is_no_compiler(wheel: Path, tmp_path: Path) -> None:
    assert "-manylinux_2_" in wheel.name
    programs = try_wheel.install(wheel, tmp_path / "environment", index=False)
    files = try_wheel.train(programs, tmp_path).split()
    assert len(files) == 3
    assert all(Path(file).is_relative_to(tmp_path / "environment") for file in files)
    site = Path(files[0]).parents[1]
    assert {path.name.partition("-")[0] for path in site.glob("*.dist-info")} == {"cavs", "numpy"}
    assert not list(site.glob("cavs*/**/*.cc"))
    assert {"py.typed", "_engine.pyi"} <= {path.name for path in (site / "cavs").iterdir()}
    assert (site / "cavs" / "models" / "data" / "plans.json.gz").is_file()


def test_outputs_are_copied_only_for_the_same_command_and_bytes(tmp_path: Path) -> None:
    words = {}
    for name in ("own", "copy"):
        build = tmp_path / name / "build"
        build.mkdir(parents=True)
        source = tmp_path / name / "csrc" / "a.cc"
        source.parent.mkdir()
        source.write_text("int a;")
        (build / "CMakeCache.txt").write_text(f"cavs_SOURCE_DIR:STATIC={source.parent}\n")
        words[name] = ["g++", f"-I{source.parent}", "-o", "a.o", "-c", str(source)]
    own, copy = (tmp_path / name / "build" for name in words)
    assert same_output.key(words["own"], own) == same_output.key(words["copy"], copy)
    assert same_output.key([*words["own"], "-O3"], own) != same_output.key(words["copy"], copy)
    arguments = (words["copy"], copy, own, words["own"])
    assert same_output.equal_output(*arguments) == own / "a.o"
    (tmp_path / "copy" / "csrc" / "a.cc").write_text("int b;")
    assert same_output.equal_output(*arguments) is None


def test_files_that_include_the_same_sources_of_two_trees_are_equal(tmp_path: Path) -> None:
    own, copy, other = (tmp_path / name / "build" for name in ("own", "copy", "other"))
    for build, file in ((own, "a.cc"), (copy, "a.cc"), (other, "b.cc")):
        build.mkdir(parents=True)
        source = build.parent / "csrc"
        (build / "CMakeCache.txt").write_text(f"cavs_SOURCE_DIR:STATIC={source}\n")
        (build / "unit.cxx").write_text(f'#include "{source / file}"\n')
    units = [(build / "unit.cxx", build) for build in (own, copy, other)]
    assert same_output.equal(*units[1], *units[0])
    assert not same_output.equal(*units[2], *units[0])
