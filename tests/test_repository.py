"""Test rules for every tracked file: length, no machine paths, no registries, working --help."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cavs.cli import main
from tests.patience import patience
from tests.tracked import ROOT, tracked_files

MAX_LINES = 500
SOURCE_SUFFIXES = {".py", ".pyi", ".cc", ".h", ".inc", ".cu", ".cuh", ".cmake"}
# Character classes keep this file from matching itself.
FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w./~$}-])/(?:wor[k]|tm[p]|roo[t])(?![\w-])"),
    "a package registry": re.compile(
        r"pypi[.]org|pythonhosted[.]org|download[.]pytorch[.]org|anaconda[.]org|--index-ur[l]"
        r"|--extra-index-ur[l]|--find-link[s]"
    ),
}


def too_long(path: Path) -> str:
    """Return a message if a source file has more than ``MAX_LINES`` lines; else empty."""
    if path.suffix not in SOURCE_SUFFIXES:
        return ""
    lines = len(path.read_text(encoding="utf-8").splitlines())
    return f"{path}: {lines} lines, at most {MAX_LINES}" if lines > MAX_LINES else ""


def forbidden_text(path: Path) -> list[str]:
    """Return each line of a text file with a machine path or a registry, as ``file:line: what``."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:  # a picture
        return []
    return [
        f"{path}:{number}: {what}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), start=1)
        for what, pattern in FORBIDDEN.items()
        if pattern.search(line)
    ]


def test_source_files_are_short() -> None:
    assert [message for path in tracked_files() if (message := too_long(path))] == []


def test_no_machine_path_and_no_registry() -> None:
    assert [message for path in tracked_files() for message in forbidden_text(path)] == []


@pytest.mark.parametrize(
    "line",
    [
        "see /wor" + "k/data for it",
        '"/tm' + 'p/x"',
        "cd /roo" + "t",
        "--index-ur" + "l x",
        "https://pypi" + ".org/simple",
    ],
)
def test_scan_finds_planted_text(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.md"
    path.write_text(f"fine: a/{'tm' + 'p'}/b, /workers, ./{'roo' + 't'}\n{line}\n")
    (found,) = forbidden_text(path)
    assert "a.md:2" in found


def test_scan_finds_a_long_file(tmp_path: Path) -> None:
    path = tmp_path / "a.cc"
    path.write_text("int x;\n" * MAX_LINES)
    assert not too_long(path)
    path.write_text("int x;\n" * (MAX_LINES + 1))
    assert too_long(path)


def make_targets() -> set[str]:
    """Return the targets of the Makefile, without its variables and stamps."""
    return set(re.findall(r"^([a-z][a-z-]*):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))


CODE = re.compile(r"^```[^\n]*\n(.*?)^```|`([^`\n]+)`", re.MULTILINE | re.DOTALL)


def make_commands(text: str) -> set[str]:
    """Return the targets that the code of a document, in blocks or backticks, passes to make."""
    return {
        target
        for block, phrase in CODE.findall(text)
        for target in re.findall(r"^make ([a-z][a-z-]*)", block or phrase, re.MULTILINE)
    }


def test_make_commands_are_read_from_code_alone() -> None:
    text = "`make a`, `cmake b`, `x`\nmake c of it\n```bash\nmake d  # e\nmake f\n```\n`make g`"
    assert make_commands(text) == {"a", "d", "f", "g"}


def test_make_commands_of_the_documents_exist() -> None:
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    commands = {target for document in documents for target in make_commands(document.read_text())}
    assert {"demo", "test"} <= commands
    assert commands <= make_targets()


def test_make_help_lists_the_targets() -> None:
    command = ["make", "--no-print-directory", "help"]
    shown = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    listed = {line.split()[0] for line in shown.stdout.splitlines()} - {"Variables:"}
    wanted = {"help", "demo", "test", "lint", "format", "bench", "sanitize", "build", "clean"}
    assert listed == wanted | {"sanitize-cuda", "wheel"}


# Run each module named with --help, as ``python -m`` does, in a fork of a process that has imported
# the parts of the package that most of them need; print its status and output.
SHOW_HELP = """
import gc, json, os, runpy, sys, tempfile, traceback
import benchmarks.harness, cavs.cli.train, cavs.nn

gc.freeze()
gc.disable()
for module in sys.argv[1:]:
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.argv, status = [module, "--help"], 0
            try:
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            except SystemExit as end:
                status = int(end.code or 0)
            except BaseException:
                traceback.print_exc()
                status = 1
            sys.stdout.flush()
            os._exit(status)  # the end of an interpreter takes longer than these imports
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        print(json.dumps([module, status, output.read().decode()]), flush=True)
"""


def programs() -> list[str]:
    """Return the modules below benchmarks/ and models/ that run as a program."""
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for folder in ("benchmarks", "models")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if re.search(r"^if __name__ == ", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]


def test_every_program_shows_help() -> None:
    """Rivals of the bench group are not installed: programs import them inside functions."""
    modules = [*programs(), "cavs.cli"]
    done = subprocess.run(
        [sys.executable, "-c", SHOW_HELP, *modules],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=patience(240),
    )
    found = {module: rest for module, *rest in map(json.loads, done.stdout.splitlines())}
    assert list(found) == modules
    failed = {m: text for m, (status, text) in found.items() if status or "usage:" not in text}
    assert failed == {}


def test_every_command_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*command: str) -> str:
        with pytest.raises(SystemExit) as end:
            main([*command, "--help"])
        assert end.value.code == 0
        return capsys.readouterr().out

    commands = re.findall(r"^ {4}([a-z][a-z-]*)(?: |$)", shown(), re.MULTILINE)
    assert {"train", "evaluate", "predict", "bench", "explain", "info"} <= set(commands)
    for command in commands:
        assert "usage:" in shown(command)
