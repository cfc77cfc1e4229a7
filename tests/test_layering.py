"""Test which file may include or import which, beyond the contracts of import-linter."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# A folder of csrc/ may include itself and the folders named here. Only bindings/ includes Python.
ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "graph": {"base"},
    "kernels": {"base"},
    "schedule": {"base", "graph", "kernels"},
    "exec": {"base", "graph", "kernels", "schedule"},
    "bindings": {"base", "graph", "kernels", "schedule", "exec"},
}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.MULTILINE)
PYTHON_HEADER = re.compile(r"^(pybind11/|Python\.h$|numpy/)")
CUDA_HEADER = re.compile(r"(^|/)(cuda|cupy|cublas|cudnn|nccl|nvrtc)[\w.]*(/|$)")
CPP_SUFFIXES = {".cc", ".cpp", ".h", ".hpp", ".inc"}


def include_violations(csrc: Path) -> list[str]:
    """Return every include below ``csrc`` that breaks the layering, as ``file: reason``."""
    found = []
    for path in sorted(p for p in csrc.rglob("*") if p.suffix in CPP_SUFFIXES):
        file = path.relative_to(csrc)
        folder = file.parts[0]
        if folder not in ALLOWED or len(file.parts) < 2:
            found.append(f"{file}: no layer; the layers are {', '.join(ALLOWED)}")
            continue
        for delimiter, header in INCLUDE.findall(path.read_text(encoding="utf-8")):
            reason = _broken_rule(csrc, path, folder, delimiter, header)
            if reason:
                found.append(f"{file}: {reason}")
    return found


def _broken_rule(csrc: Path, path: Path, folder: str, delimiter: str, header: str) -> str:
    """Return why ``path`` of layer ``folder`` may not include ``header``; empty if it may."""
    if PYTHON_HEADER.search(header):
        return "" if folder == "bindings" else f"{header} belongs to bindings/ alone"
    if CUDA_HEADER.search(header):
        return f"{header}: csrc never includes cuda"
    if delimiter == "<":
        return f"<{header}> is a header of csrc, quote it" if (csrc / header).exists() else ""
    local = (path.parent / header).resolve()
    target = local if local.exists() else (csrc / header).resolve()
    if not target.is_relative_to(csrc.resolve()):
        return f"{header} is outside csrc"
    if not target.exists():
        return f"{header} does not exist"
    layer = target.relative_to(csrc.resolve()).parts[0]
    return "" if layer == folder or layer in ALLOWED[folder] else f"{folder} includes {header}"


def python_violations(root: Path) -> list[str]:
    """Return forbidden imports that import-linter does not see, as ``file:line: reason``."""
    found = []
    for path in sorted((root / "cavs").rglob("*.py")):
        if path == root / "cavs" / "__init__.py":
            continue
        for line, module, names in _imports(path, root):
            if module.split(".")[0] in {"models", "benchmarks", "tests"}:
                found.append(f"{path.relative_to(root)}:{line}: cavs imports {module}")
            if module != "cavs":
                continue
            found += [
                f"{path.relative_to(root)}:{line}: {name} is read from the package root; "
                "import it from its module"
                for name in names
                if name not in {"_engine", "_cuda"} and not _is_module(root / "cavs" / name)
            ]
    for path in sorted((root / "models").rglob("*.py")):
        for line, module, names in _imports(path, root):
            parts = module.split(".")
            if parts[0] in {"benchmarks", "tests"}:
                found.append(f"{path.relative_to(root)}:{line}: a model imports {module}")
            if parts[0] == "cavs" and any(p.startswith("_") for p in [*parts, *names]):
                found.append(f"{path.relative_to(root)}:{line}: a model imports private {module}")
    return found


def _is_module(stem: Path) -> bool:
    return stem.with_suffix(".py").exists() or (stem / "__init__.py").exists()


def _imports(path: Path, root: Path) -> list[tuple[int, str, list[str]]]:
    """Return line, absolute module and imported names of every import of a file."""
    found: list[tuple[int, str, list[str]]] = []
    package = path.relative_to(root).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            found.append((node.lineno, module, [alias.name for alias in node.names]))
    return found


def test_includes_of_the_engine() -> None:
    assert include_violations(ROOT / "csrc") == []


def test_imports_of_the_package() -> None:
    assert python_violations(ROOT) == []


@pytest.mark.parametrize(
    ("file", "line", "reason"),
    [
        ("graph/a.cc", '#include "kernels/k.h"', "graph includes kernels/k.h"),
        ("kernels/a.cc", '  #  include "graph/g.h"', "kernels includes graph/g.h"),
        ("kernels/a.cc", '#include "../graph/g.h"', "kernels includes ../graph/g.h"),
        ("base/a.h", '#include "graph/g.h"', "base includes graph/g.h"),
        ("schedule/a.h", '#include "exec/e.h"', "schedule includes exec/e.h"),
        ("exec/a.h", "#include <pybind11/pybind11.h>", "belongs to bindings/ alone"),
        ("exec/a.h", "#include <Python.h>", "belongs to bindings/ alone"),
        ("exec/a.h", "#include <cuda_runtime.h>", "csrc never includes cuda"),
        ("exec/a.h", '#include "../../cuda/gemm.cuh"', "csrc never includes cuda"),
        ("exec/a.h", '#include "../../other.h"', "is outside csrc"),
        ("exec/a.h", '#include "graph/absent.h"', "does not exist"),
        ("exec/a.h", "#include <graph/g.h>", "quote it"),
        ("stray/a.h", "", "no layer"),
        ("a.h", "", "no layer"),
    ],
)
def test_include_scan_finds_a_planted_violation(
    tmp_path: Path, file: str, line: str, reason: str
) -> None:
    csrc = tmp_path / "csrc"
    for header in ["graph/g.h", "kernels/k.h", "exec/e.h"]:
        (csrc / header).parent.mkdir(parents=True, exist_ok=True)
        (csrc / header).write_text("#pragma once\n")
    (tmp_path / "other.h").write_text("")
    assert include_violations(csrc) == []
    (csrc / file).parent.mkdir(exist_ok=True)
    (csrc / file).write_text(f"// comment\n{line}\n")
    (found,) = include_violations(csrc)
    assert found.startswith(file) and reason in found


def test_include_scan_allows_what_the_layers_allow(tmp_path: Path) -> None:
    csrc = tmp_path / "csrc"
    for folder, below in ALLOWED.items():
        (csrc / folder).mkdir(parents=True)
        (csrc / folder / "a.h").write_text("#pragma once\n#include <vector>\n")
        lines = [f'#include "{name}/a.h"\n' for name in sorted(below | {folder})]
        (csrc / folder / "a.cc").write_text('#include "a.h"\n' + "".join(lines))
    (csrc / "bindings" / "b.cc").write_text("#include <pybind11/pybind11.h>\n")
    assert include_violations(csrc) == []


@pytest.mark.parametrize(
    ("file", "line", "reason"),
    [
        ("cavs/ops/a.py", "import benchmarks.run", "cavs imports benchmarks.run"),
        ("cavs/ops/a.py", "def f():\n    from models import m", "cavs imports models"),
        ("cavs/ops/a.py", "from cavs import Parameter", "read from the package root"),
        ("cavs/ops/a.py", "from .. import Parameter", "read from the package root"),
        ("models/m.py", "from cavs import _engine", "private cavs"),
        ("models/m.py", "import cavs.ir._nodes", "private cavs.ir._nodes"),
        ("models/m.py", "import benchmarks", "a model imports benchmarks"),
    ],
)
def test_import_scan_finds_a_planted_violation(
    tmp_path: Path, file: str, line: str, reason: str
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "cavs" / "ops").mkdir(parents=True)
    (tmp_path / "cavs" / "__init__.py").write_text("from cavs.errors import CavsError\n")
    (tmp_path / "cavs" / "errors.py").write_text("class CavsError(Exception): ...\n")
    (tmp_path / "cavs" / "ops" / "b.py").write_text(
        "from cavs import _engine, errors\nfrom .. import errors\nimport cavs._engine\n"
    )
    assert python_violations(tmp_path) == []
    (tmp_path / file).write_text(line + "\n")
    (found,) = python_violations(tmp_path)
    assert found.startswith(file) and reason in found
