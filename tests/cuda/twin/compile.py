"""Compilation of kernel sources for the host, in place of NVRTC."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.cuda.twin.build import COMPILER, HERE, LIBRARY, kept, run

SANITIZE = "-fsanitize=alignment,bounds,signed-integer-overflow,shift,integer-divide-by-zero"
CHECKED = ["-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0"]
FLAGS = ["-std=c++17", "-march=native", "-ffp-contract=off", "-fno-exceptions", "-fno-rtti"]
FLAGS += ["-fno-strict-aliasing", "-fPIC", "-shared", "-fvisibility=hidden", "-DCAVS_TWIN"]
# No start files, whose variables would be among the shared ones, and no library of a sanitizer.
FLAGS += ["-g1", "-nostdlib", SANITIZE]
# For one program only: compiling takes longer than running.
BRIEF = ("maps.cu", "persistent.cu")
# Warnings that NVRTC lacks: unsigned threadIdx compared with int, unused functions of headers.
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-sign-compare"]
WARNINGS += ["-Wno-unused-function", "-Wno-unused-parameter", "-Wno-unused-variable"]
WARNINGS += ["-Wno-unused-but-set-variable", "-Wno-unused-const-variable"]

LANGUAGE = ("device.h", "checks.h", "module.h")
MOST_DYNAMIC = 232448  # largest dynamic shared memory of a block in bytes
ARCHITECTURE = re.compile(r"--gpu-architecture=sm_(\d+)")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
KERNEL = re.compile(
    r"__global__\s+(?:void\s+)?(?:__launch_bounds__\s*\(\s*([^(),]*)[^()]*\)\s*)?(?:void\s+)?(\w+)\s*\("
)
DYNAMIC = re.compile(
    r"\bextern\s+__shared__\s+(?:(?:__align__|alignas)\(\w+\)\s*)?([\w ]+?)\s+(\w+)\s*\[\s*\]\s*;"
)


class TwinCompiler:
    """Compiles sources to host libraries, whose paths are the cubins of the twin's driver.

    checked: kernels call the driver at every access to memory, which finds accesses outside of
    allocations and races between threads; they run many times slower. None: by the environment
    variable CAVS_TWIN_CHECKED, 0 or 1.
    """

    def __init__(self, checked: bool | None = None):
        default = os.environ.get("CAVS_TWIN_CHECKED", "0") == "1"
        self.checked = default if checked is None else checked

    def compile(self, name: str, source: str, headers: dict[str, str], options: list[str]) -> bytes:
        """Return the path of a module with every ``__global__`` function of ``source``.

        name: the source file in messages. headers: texts of the files that it may include, by name.
        options: those of NVRTC, of which architecture and macros are used. Raises CompileError with
        g++'s errors and warnings, by line of the source.
        """
        flags = [*FLAGS, f"-DTWIN_CHECKED={int(self.checked)}", *definitions(options)]
        flags += ["-O0" if name in BRIEF else "-O2"]
        flags += CHECKED if self.checked else []
        flags += [f"-DTWIN_ARCHITECTURE={architecture(options)}"]
        language = [(HERE / header).read_text() for header in LANGUAGE]
        file = Path(name).name
        file = file if file.endswith((".cu", ".cuh")) else f"{file}.cu"

        def make(directory: Path, library: Path) -> None:
            for header, text in headers.items():
                (directory / header).parent.mkdir(parents=True, exist_ok=True)
                (directory / header).write_text(static_dynamic(text))
            (directory / file).write_text(static_dynamic(source))
            whole = COMMENT.sub("", source)
            if re.search(r"#\s*define(?:[^\n]|\\\n)*__global__", whole):  # defined by a macro
                whole = preprocessed(directory, file, definitions(options))
            dynamic = any(DYNAMIC.search(text) for text in (source, *headers.values()))
            (directory / "module.cc").write_text(module_text(file, whole, dynamic))
            command = [COMPILER, *flags, *WARNINGS, f"-I{HERE}", "-o", str(library)]
            run([*command, "module.cc", "-lm", "-lc"], directory)

        parts = [file, source, *(x for item in sorted(headers.items()) for x in item)]
        return bytes(kept([*parts, *flags, *WARNINGS, *language, RECIPE], LIBRARY, make))


RECIPE = Path(__file__).read_bytes()


def architecture(options: list[str]) -> int:
    """Return 90 for --gpu-architecture=sm_90, whose code runs on 9.x only; 0 without the option."""
    found = [ARCHITECTURE.fullmatch(word) for word in options]
    return next((int(match[1]) for match in found if match), 0)


def definitions(options: list[str]) -> list[str]:
    """Return the -D and -U options of NVRTC, which may be two words or in long form."""
    found = []
    words = iter(options)
    for word in words:
        if word in ("-D", "-U"):
            found.append(word + next(words))
        elif word.startswith(("-D", "-U")):
            found.append(word)
        elif word.startswith("--define-macro"):
            found.append("-D" + (word.partition("=")[2] or next(words)))
    return found


def static_dynamic(text: str) -> str:
    """Replace ``extern __shared__ T name[];`` by a pointer to the module's largest array."""
    return DYNAMIC.sub(r"\1* const \2 = reinterpret_cast<\1*>(twin_dynamic);", text)


def preprocessed(directory: Path, file: str, defines: list[str]) -> str:
    """Return the preprocessed source, with ``__global__`` and launch bounds unchanged."""
    out = directory / "preprocessed"
    run(
        [COMPILER, "-DCAVS_TWIN", *defines, "-E", "-P", "-x", "c++", "-o", str(out), file],
        directory,
    )
    return out.read_text()


def module_text(file: str, source: str, dynamic: bool) -> str:
    """Return the translation unit; an unnamed namespace keeps everything local."""
    kernels = {match[2]: match[1] for match in KERNEL.finditer(source)}
    entries = "".join(
        f'    twin::Entry<{name}>::describe("{name}", {bounds or 0}),\n'
        for name, bounds in kernels.items()
    )
    memory = f"alignas(16) char twin_dynamic[{MOST_DYNAMIC}] TWIN_ELSEWHERE;" if dynamic else ""
    place = f"twin_dynamic, {MOST_DYNAMIC}" if dynamic else "nullptr, 0"
    return f"""#include "device.h"
namespace {{
{memory}
#include "{file}"
const twin::Kernel kKernels[] = {{
{entries}    {{nullptr, nullptr, nullptr, 0, 0}}}};
}}  // namespace
extern "C" __attribute__((visibility("default"))) const twin::Module twin_module;
const twin::Module twin_module = {{
    kKernels, {len(kernels)}, &threadIdx, &blockIdx, &blockDim, &gridDim, &twin_hooks,
    TWIN_CHECKED, __ehdr_start, __bss_start, _end, {place}, TWIN_ARCHITECTURE}};
"""
