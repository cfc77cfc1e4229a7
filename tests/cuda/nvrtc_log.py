"""Logs of NVRTC, kept by a hash of the text and the compiler."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from cavs.cuda.nvrtc import Nvrtc
from tests.cuda.twin.build import kept

# NVRTC takes minutes for all kernels on all architectures: each kernel is compiled for one
# architecture, unless all examples are requested.
ALL = "CAVS_TEST_EXAMPLES" in os.environ


def log_of(
    compiler: Nvrtc, name: str, source: str, headers: Mapping[str, str], options: Sequence[str]
) -> str:
    """Return the log of a compilation to a cubin, see ``Nvrtc.compile_with_log``."""

    def make(directory: Path, file: Path) -> None:
        cubin, log = compiler.compile_with_log(name, source, headers, options)
        assert cubin.startswith(b"\x7fELF")
        file.write_text(log, encoding="utf-8")

    library = Path(compiler.path).resolve().stat()
    identity = repr((compiler.version(), library.st_size, library.st_mtime_ns)).encode()
    parts = [name, source, *options, *(x for item in sorted(headers.items()) for x in item)]
    return kept(parts, ".nvrtc.log", make, identity).read_text(encoding="utf-8")
