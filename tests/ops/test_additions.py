"""docs/operators.md names every file of a new operator: the additions that it shows are enough."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cavs import _cuda, _engine

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/operators.md"
# A file, where in it, and the code that is added.
ADDITION = re.compile(r"^\*\*`([\w./]+)`\*\*(.*?):$\n\n```\w*\n(.*?)^```$", re.M | re.S)


def additions(page):
    """Return the files that the section on elementwise operators names, each with its code."""
    (section,) = re.findall(r"^## An elementwise operator$.*?^## ", page, re.M | re.S)
    return {file: code for file, _, code in ADDITION.findall(section)}


def insert(text, anchor, code):
    """Return ``text`` with ``code`` after a line that occurs once."""
    assert text.count(anchor) == 1, anchor
    return text.replace(anchor, anchor + code)


def add(root, found):
    """Make the additions to a copy of the sources."""
    path = root / "cavs/ops/elementwise.py"
    path.write_text(
        path.read_text() + "\n\n" + found["cavs/ops/elementwise.py"].split("\n\n", 1)[1]
    )
    path, code = root / "cavs/ops/__init__.py", found["cavs/ops/__init__.py"]
    text = insert(path.read_text(), "__all__ = [\n", code)
    name = code.replace('"', "")
    path.write_text(insert(text, "from cavs.ops.elementwise import (\n", name))
    path = root / "docs/tutorial.md"
    name = found["docs/tutorial.md"].strip()
    path.write_text(insert(path.read_text(), "| of each element | `", f"{name} "))
    path = root / "tests/ops/test_registry.py"
    path.write_text(insert(path.read_text(), "INSIDE = {\n", found["tests/ops/test_registry.py"]))


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the sources with the built engines."""
    root = tmp_path_factory.mktemp("sources")
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for folder in ("cavs", "models", "docs"):
        shutil.copytree(ROOT / folder, root / folder, ignore=ignored)
    shutil.copytree(ROOT / "tests/ops", root / "tests/ops", ignore=ignored)
    for path in ROOT.glob("tests/*.py"):
        shutil.copy(path, root / "tests")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, root)
    for module in (_engine, _cuda):
        shutil.copy(module.__file__, root / "cavs")
    return root


def run(root, *arguments):
    """Run Python on the copy, without the finder of an editable installation."""
    site = [p for p in sys.path if p.endswith("site-packages")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *site])}
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        cwd=root,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )


def test_the_page_names_the_files_of_an_elementwise_operator():
    assert set(additions(PAGE.read_text(encoding="utf-8"))) == {
        "cavs/ops/elementwise.py",
        "cavs/ops/__init__.py",
        "docs/tutorial.md",
        "tests/ops/test_registry.py",
    }


@pytest.mark.slow
def test_an_operator_is_added_by_the_files_of_the_page(copy):
    add(copy, additions(PAGE.read_text(encoding="utf-8")))
    code = "from cavs import ops; import cavs; print(cavs.__file__, ops.hypotenuse.__name__)"
    done = run(copy, "-c", code)
    assert done.stdout == f"{copy / 'cavs/__init__.py'} hypotenuse\n", done.stderr
    tests = [f"tests/ops/test_{name}.py" for name in ("registry", "traits", "branches")]
    names = "hypotenuse or has_a_case or tutorial_lists"
    options = ["-q", "-p", "no:cacheprovider", "-k", names]
    done = run(copy, "-m", "pytest", *options, *tests, "tests/test_documents.py")
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(re.findall(r"(\d+) passed", done.stdout)[0])
    assert passed >= 5
