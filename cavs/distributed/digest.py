"""What all ranks must have in common before the first step."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import cavs._engine
from cavs.train.checkpoint import model_name, version


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Of every Python file of the package and of the engine."""
    root = Path(__file__).resolve().parents[1]
    engine = Path(str(cavs._engine.__file__))
    files = [*sorted(root.rglob("*.py")), engine]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def facts(
    model: Any, parameters: Mapping[str, Any], optimizer: Any, seed: int, strategy: str, **more: Any
) -> dict[str, str]:
    """Name to value; what differs between ranks is quoted by these names."""
    shapes = {
        name: [str(p.value.dtype), list(p.value.shape), bool(p.trainable)]
        for name, p in parameters.items()
    }
    return {
        "version of cavs": f"{version()} ({code_digest()})",
        "model": model_name(model),
        "parameters": _short(shapes),
        "optimizer": f"{type(optimizer).__name__} {optimizer.hyper(0)}",
        "seed": str(seed),
        "strategy": strategy,
        **{name: str(value) for name, value in more.items()},
    }


def _short(shapes: Mapping[str, Any]) -> str:
    text = "; ".join(f"{name} {kind}{shape}" for name, (kind, shape, _) in shapes.items())
    digest = hashlib.sha256(repr(shapes).encode()).hexdigest()[:16]
    return f"{len(shapes)} ({text if len(text) < 400 else text[:400] + ' ...'}), digest {digest}"
