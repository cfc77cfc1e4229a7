"""A folder of cuda/ includes only itself and the folders before it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("kernels", "driver", "memory", "launch", "replay", "lstm", "executor", "bindings")


def violations(cuda: Path) -> list[str]:
    """Return forbidden includes as ``file includes header``."""
    found = []
    for path in sorted(p for p in cuda.rglob("*") if p.suffix in (".h", ".cc")):
        file = path.relative_to(cuda)
        allowed = LAYERS[: LAYERS.index(file.parts[0]) + 1]
        for header in re.findall(r'#include "cuda/([^"]+)"', path.read_text(encoding="utf-8")):
            if header.split("/")[0] not in allowed:
                found.append(f"{file} includes {header}")
    return found


def test_folders_include_only_folders_before_them():
    assert violations(ROOT / "cuda") == []
    folders = {path.name for path in (ROOT / "cuda").iterdir() if path.is_dir()}
    assert folders == set(LAYERS)


def test_a_planted_violation_is_found(tmp_path):
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver/a.cc").write_text('#include "cuda/memory/staging.h"\n')
    assert violations(tmp_path) == ["driver/a.cc includes memory/staging.h"]
