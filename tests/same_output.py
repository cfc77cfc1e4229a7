"""A launcher of compilers and linkers that copies outputs of another build of the same sources.

``python same_output.py COMMANDS COMMAND...`` prefixes a command of a build of a copy of a tree.
COMMANDS is a file by ``record``, of the tree's own build. If that build ran the same command, up
to the folders of the two trees, on files of the same bytes, its output is copied; otherwise the
command runs. The caller guarantees that headers and included sources are the same.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path


def cached(build: Path, name: str) -> str:
    """Return a variable of CMake."""
    lines = (build / "CMakeCache.txt").read_text(encoding="utf-8").splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith(f"{name}:"))


def record(build: Path, sources: Iterable[Path], file: Path) -> bool:
    """Write the commands of a build by Ninja; return False if it is not one, or outdated."""
    log = build / ".ninja_log"  # Ninja touches it after each check of all sources
    if not log.exists() or any(s.stat().st_mtime > log.stat().st_mtime for s in sources):
        return False
    command = [cached(build, "CMAKE_MAKE_PROGRAM"), "-C", str(build), "-t", "commands"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    steps = [shlex.split(step) for line in listed.splitlines() for step in line.split(" && ")]
    found = {key(words, build): words for words in steps if "-o" in words}
    file.write_text(json.dumps({"build": str(build), "commands": found}), encoding="utf-8")
    return True


def without_folders(text: str, build: Path) -> str:
    """Return a text that does not depend on the folders of the build and its sources."""
    tree = Path(cached(build, "cavs_SOURCE_DIR")).parent
    # The environment with its headers may be in the tree, too, in the same folder for both.
    sources = [(tree / folder, f"TREE/{folder}") for folder in ("csrc", "cuda")]
    for folder, name in ((build, "BUILD"), *sources):
        # CMake stores the object of a source outside of its own folder under the complete path.
        text = text.replace(str(folder), f"/{name}").replace(str(folder)[1:], name)
    return text


def key(words: list[str], build: Path) -> str:
    """Return a command as text, the same for both builds."""
    return without_folders(shlex.join(words), build)


def equal(file: Path, build: Path, same: Path, own: Path) -> bool:
    """True if two files have the same bytes, or include the same sources of the two trees."""
    if not same.is_file():
        return False
    if file.suffix != ".cxx":  # CMake lists the sources that are compiled as one by their paths
        return file.read_bytes() == same.read_bytes()
    texts = (without_folders(of.read_text("utf-8"), at) for of, at in ((file, build), (same, own)))
    return len(set(texts)) == 1


def output(words: list[str]) -> Path:
    return Path(words[words.index("-o") + 1])


def equal_output(words: list[str], build: Path, own: Path, own_words: list[str]) -> Path | None:
    """Return the file that equals the output of `words`; None if the inputs differ."""
    for word, other in zip(words, own_words, strict=True):
        file, same = build / word, own / other
        if not file.is_file() or file == build / output(words):
            continue
        if not equal(file, build, same, own):
            return None
    return own / output(own_words)


def main() -> None:
    recorded, *words = sys.argv[1:]
    known = json.loads(Path(recorded).read_text(encoding="utf-8"))
    build, own = Path.cwd(), Path(known["build"])
    own_words = known["commands"].get(key(words, build)) if "-o" in words else None
    found = equal_output(words, build, own, own_words) if own_words else None
    if found is None:
        os.execvp(words[0], words)
    shutil.copy(found, output(words))


if __name__ == "__main__":
    main()
