"""Install a wheel of cavs in a new environment without a compiler, and train a model there.

``python tests/try_wheel.py FOLDER`` takes the newest wheel of a folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from importlib.metadata import distribution
from pathlib import Path

FILES = (
    "import cavs, cavs._engine as e, cavs._cuda as c; print(cavs.__file__, e.__file__, c.__file__)"
)
SMALL = ["--trees", "64", "--hidden-size", "8", "--epochs", "1", "--quiet"]


def install(wheel: Path, folder: Path, *, index: bool = True) -> Path:
    """Create an environment of the wheel and its dependencies; return its folder of programs.

    index: fetch dependencies from the index of packages; otherwise copy NumPy, and nothing else,
    from the environment of this process.
    """
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    command += ["--python", str(python), "install", "--only-binary", ":all:"]
    if not index:
        copy_numpy(next((folder / "lib").glob("python*/site-packages")))
        command += ["--no-index"]
    subprocess.run([*command, str(wheel)], check=True)
    return python.parent


def copy_numpy(site: Path) -> None:
    """Copy the files of the installed NumPy to a folder of packages."""
    of = distribution("numpy")
    tops = {file.parts[0] for file in of.files or () if file.parts[0] != ".."}
    for name in tops:
        shutil.copytree(of.locate_file(name), site / name)


def train(programs: Path, runs: Path) -> str:
    """Train with nothing but the environment to be found; return the files of the package."""
    environment = {
        "PATH": str(programs),
        "HOME": os.environ.get("HOME", str(runs)),
        "LANG": "C.UTF-8",
    }
    found = ""
    for command in (
        [str(programs / "python"), "-c", FILES],
        [str(programs / "cavs"), "info"],
        [str(programs / "cavs"), "train", "tree-fc", *SMALL, "--out", str(runs / "run")],
    ):
        done = subprocess.run(
            command, cwd=runs, env=environment, check=True, capture_output=True, text=True
        )
        found = found or done.stdout
    return found


def main() -> None:
    """Print the size and name of the wheel, after it has been tried."""
    wheel = max(Path(sys.argv[1]).glob("cavs-*.whl"), key=lambda path: path.stat().st_mtime)
    with tempfile.TemporaryDirectory() as folder:
        train(install(wheel, Path(folder) / "environment"), Path(folder))
    print(f"{wheel}: {wheel.stat().st_size / 2**20:.1f} MB, installed with NumPy alone, trains")


if __name__ == "__main__":
    main()
