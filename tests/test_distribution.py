"""The source archive is complete and clean, and the wheel built from it works outside the tree."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
# What is in a wheel does not depend on how fast it is: the quickest build there is.
QUICK = [
    "-Ccmake.build-type=Debug",
    "-Ccmake.define.CMAKE_CXX_FLAGS_DEBUG=-O0",
    "-Ccmake.define.CMAKE_UNITY_BUILD=ON",
    "-Ccmake.define.CAVS_ISAS=",
    "-Ccmake.define.CMAKE_CXX_FLAGS=-Wno-subobject-linkage",
]
# Compiling the engine anew under a preloaded sanitizer says nothing about the engine.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="a sanitized run"),
]


def run(command: list[str], cwd: Path, **environment: str) -> str:
    """Standard output of a command that must succeed."""
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
    """The source archive of this tree."""
    folder = tmp_path_factory.mktemp("sdist")
    build = "import sys, scikit_build_core.build as b; b.build_sdist(sys.argv[1])"
    run([sys.executable, "-c", build, str(folder)], ROOT)
    (archive,) = folder.iterdir()
    return archive


def test_sdist_holds_sources_and_nothing_built(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "csrc/CMakeLists.txt", "cavs/__init__.py"} <= names
    sources = {str(p.relative_to(ROOT)) for p in (ROOT / "csrc").rglob("*") if p.is_file()}
    assert sources <= names
    built = [
        name
        for name in names
        if name.split("/")[0] in {"build", "dist", ".git", ".ci"}
        or name.startswith(".venv")
        or name.endswith((".so", ".o", ".pyc"))
    ]
    assert built == []


def test_wheel_of_the_sdist_imports_outside_the_tree(sdist: Path, tmp_path: Path) -> None:
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    wheel = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels)]
    run([*wheel, *QUICK, str(sdist)], ROOT)
    (wheel,) = wheels.iterdir()
    run([*PIP, "install", "--no-deps", "--target", str(site), str(wheel)], tmp_path)
    # Without site (-S) the editable installation's hook is not there to answer for cavs.
    program = "import cavs, cavs._engine as e; print(cavs.__file__); print(e.__file__)"
    search = os.pathsep.join([str(site), sysconfig.get_path("purelib")])
    files = run([sys.executable, "-S", "-c", program], tmp_path, PYTHONPATH=search).split()
    assert len(files) == 2
    assert all(Path(file).is_relative_to(site) for file in files)
    assert not list(site.rglob("*.cc"))
    assert {"py.typed", "_engine.pyi"} <= {path.name for path in (site / "cavs").iterdir()}
