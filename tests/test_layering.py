"""Test which file may include or import which, beyond the contracts of import-linter."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
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


def module_imports(root: Path) -> dict[str, set[str]]:
    """Return the modules of ``cavs`` that each of them imports.

    Imports under ``TYPE_CHECKING`` and inside of functions count. A package is the module of its
    ``__init__.py``; a compiled module imports nothing.
    """
    paths = {}
    for path in sorted((root / "cavs").rglob("*.py*")):
        if path.suffix in (".py", ".pyi"):
            parts = path.relative_to(root).with_suffix("").parts
            paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found: dict[str, set[str]] = {}
    for module, path in paths.items():
        imported: set[str] = set()
        for _, base, names in _imports(path, root):
            members = {f"{base}.{name}" for name in names}
            imported |= {m if m in paths else base for m in members} or {base}
        found[module] = imported & paths.keys() - {module} if path.suffix == ".py" else set()
    return found


def import_cycles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module, by Tarjan's algorithm."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    cycles: list[list[str]] = []

    def enter(module: str) -> tuple[str, Iterator[str]]:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        return module, iter(sorted(imports[module]))

    for start in imports:
        path = [] if start in number else [enter(start)]
        while path:
            module, left = path[-1]
            following = next(left, None)
            if following is None:
                path.pop()
                if path:
                    parent = path[-1][0]
                    lowest[parent] = min(lowest[parent], lowest[module])
                if lowest[module] == number[module]:
                    at = stack.index(module)
                    if len(stack) - at > 1:
                        cycles.append(sorted(stack[at:]))
                    del stack[at:]
            elif following not in number:
                path.append(enter(following))
            elif following in stack:
                lowest[module] = min(lowest[module], number[following])
    return cycles


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


def test_no_import_cycle() -> None:
    """Neither of types alone, nor of imports inside of functions."""
    assert import_cycles(module_imports(ROOT)) == []


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


CYCLES = {
    "two modules": {
        "cavs/ops/a.py": "from cavs.ops import b",
        "cavs/ops/b.py": "from cavs.ops.a import name",
    },
    "types alone": {
        "cavs/ops/a.py": "if TYPE_CHECKING:\n    from cavs.ops.b import B",
        "cavs/ops/b.py": "import cavs.ops.a",
    },
    "inside of a function": {
        "cavs/ops/a.py": "def f():\n    from cavs.ops.b import B",
        "cavs/ops/b.py": "from .a import name",
    },
    "three modules of two packages": {
        "cavs/ops/a.py": "from cavs.ir.c import C",
        "cavs/ir/c.py": "from ..ops import b",
        "cavs/ops/b.py": "from cavs.ops import a",
    },
    "a package and its module": {
        "cavs/ops/__init__.py": "from cavs.ops.a import name",
        "cavs/ops/a.py": "from cavs.ops import name",
    },
    "the root": {
        "cavs/__init__.py": "from cavs.ops.a import name",
        "cavs/ops/a.py": "from cavs import name",
    },
}


def planted(root: Path, files: Mapping[str, str]) -> list[list[str]]:
    """Cycles of a package with ``files``."""
    around = {
        "cavs/__init__.py": "import cavs.ops",
        "cavs/_engine.pyi": "from cavs.ops import a",
        "cavs/ops/__init__.py": "",
        "cavs/ops/top.py": "from cavs import _engine\nfrom cavs.ops.a import name",
        "cavs/ops/a.py": "from cavs import _engine",
        "cavs/ops/b.py": "import numpy",
        "cavs/ir/c.py": "",
    }
    for file, text in (around | dict(files)).items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(text + "\n")
    return import_cycles(module_imports(root))


@pytest.mark.parametrize("name", CYCLES)
def test_cycle_scan_finds_a_planted_cycle(tmp_path: Path, name: str) -> None:
    assert planted(tmp_path, {}) == []
    (found,) = planted(tmp_path, CYCLES[name])
    files = (file.removesuffix(".py").removesuffix("/__init__") for file in CYCLES[name])
    assert set(found) == {file.replace("/", ".") for file in files}


def test_cycle_scan_finds_every_cycle(tmp_path: Path) -> None:
    two = {"cavs/ir/c.py": "from cavs.ir import d", "cavs/ir/d.py": "from cavs.ir import c"}
    found = planted(tmp_path, CYCLES["two modules"] | two)
    assert sorted(found) == [["cavs.ir.c", "cavs.ir.d"], ["cavs.ops.a", "cavs.ops.b"]]
