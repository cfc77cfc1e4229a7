"""The cache of compiled kernels: an entry is whole or absent, whatever happens to its files."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cavs.cuda.cache import CachedCompiler, CubinCache, cubin_key, default_folder
from cavs.errors import CacheWarning, DeviceError
from tests.patience import patience

KEY = "0" * 64
CUBIN = bytes(range(256)) * 8


@pytest.fixture
def cache(tmp_path):
    return CubinCache(tmp_path / "cavs")


class Counting:
    """A compiler that counts its calls."""

    def __init__(self, version=(12, 9)):
        self.compiled, self._version = [], version

    def version(self):
        return self._version

    def compile(self, name, source, headers, options):
        self.compiled.append(name)
        return f"{source} {sorted(headers.items())} {options}".encode()


def test_get_returns_what_was_put(cache):
    assert cache.get(KEY) is None
    cache.put(KEY, CUBIN)
    assert cache.get(KEY) == CUBIN
    assert cache.get("1" * 64) is None
    assert CubinCache(cache.folder).get(KEY) == CUBIN
    cache.put(KEY, b"")
    assert cache.get(KEY) == b""
    assert [file.name for file in cache.folder.iterdir()] == [f"{KEY}.cubin"]
    assert stat.S_IMODE(cache.folder.stat().st_mode) & 0o077 == 0


def test_a_kernel_is_compiled_once(cache):
    compiler = Counting()
    asked = ("f.cu", "source", {"a.cuh": "a", "b.cuh": "b"}, ["-DREAL=float"])
    cubin = CachedCompiler(compiler, cache).compile(*asked)
    assert CachedCompiler(compiler, CubinCache(cache.folder)).compile(*asked) == cubin
    reordered = ("f.cu", "source", {"b.cuh": "b", "a.cuh": "a"}, ["-DREAL=float"])
    assert CachedCompiler(compiler, cache).compile(*reordered) == cubin
    assert compiler.compiled == ["f.cu"]


@pytest.mark.parametrize(
    "other",
    [
        ("source!", {"a.cuh": "a"}, ["-DREAL=float"], (12, 9)),
        ("source", {"a.cuh": "a!"}, ["-DREAL=float"], (12, 9)),
        ("source", {"b.cuh": "a"}, ["-DREAL=float"], (12, 9)),
        ("source", {}, ["-DREAL=float"], (12, 9)),
        ("source", {"a.cuh": "a"}, ["-DREAL=double"], (12, 9)),
        ("source", {"a.cuh": "a"}, [], (12, 9)),
        ("source", {"a.cuh": "a"}, ["-DREAL=float"], (12, 10)),
        ("source", {"a.cuh": "a"}, ["-DREAL=float"], (13, 9)),
    ],
)
def test_the_key_depends_on_everything_that_the_cubin_does(cache, other):
    source, headers, options, version = other
    first, second = Counting(), Counting(version)
    CachedCompiler(first, cache).compile("f.cu", "source", {"a.cuh": "a"}, ["-DREAL=float"])
    CachedCompiler(second, cache).compile("f.cu", source, headers, options)
    assert second.compiled == ["f.cu"]


texts = st.text(st.sampled_from("ab\0"), max_size=3)
made_from = st.tuples(
    texts, st.dictionaries(texts, texts, max_size=2), st.lists(texts, max_size=3), texts
)


@given(made_from, made_from)
def test_keys_are_equal_only_for_equal_parts(one, other):
    assert (cubin_key(*one) == cubin_key(*other)) == (one == other)


# ---- damage --------------------------------------------------------------------------------------


def damage(path: Path, kind: str) -> None:
    content = path.read_bytes()
    half = len(content) // 2
    changed = {
        "empty": b"",
        "truncated": content[:-1],
        "half": content[:half],
        "longer": content + b"\0",
        "flipped": content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :],
        "header": bytes([content[0] ^ 1]) + content[1:],
        "checksum": content[:20] + bytes([content[20] ^ 1]) + content[21:],
        "zeros": bytes(len(content)),
    }
    path.write_bytes(changed[kind])


@pytest.mark.parametrize(
    "kind", ["empty", "truncated", "half", "longer", "flipped", "header", "checksum", "zeros"]
)
def test_a_damaged_file_is_replaced(cache, kind):
    compiler = CachedCompiler(Counting(), cache)
    cubin = compiler.compile("f.cu", "source", {}, [])
    (entry,) = cache.folder.iterdir()
    damage(entry, kind)
    with pytest.warns(CacheWarning, match="is damaged: its checksum differs") as caught:
        assert compiler.compile("f.cu", "source", {}, []) == cubin
    assert str(entry) in str(caught[0].message)
    assert caught[0].filename == __file__
    assert compiler.compiler.compiled == ["f.cu"] * 2
    assert compiler.compile("f.cu", "source", {}, []) == cubin  # the file is whole again
    assert compiler.compiler.compiled == ["f.cu"] * 2
    damage(entry, kind)  # warned once, but found again
    assert compiler.compile("f.cu", "source", {}, []) == cubin
    assert compiler.compiler.compiled == ["f.cu"] * 3


@given(st.integers(0), st.integers(1, 255))
def test_any_changed_byte_is_found(place, change):
    with tempfile.TemporaryDirectory() as folder:
        cache = CubinCache(folder)
        cache.put(KEY, b"some cubin")
        path = Path(folder, f"{KEY}.cubin")
        content = bytearray(path.read_bytes())
        content[place % len(content)] ^= change
        path.write_bytes(content)
        with pytest.warns(CacheWarning):
            assert cache.get(KEY) is None


def test_a_warning_raised_as_an_error_is_a_device_error(cache):
    cache.put(KEY, CUBIN)
    damage(cache.folder / f"{KEY}.cubin", "half")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DeviceError) as error:
            cache.get(KEY)
    assert "is damaged" in error.value.what
    assert "compiled and written again" in error.value.hint


# ---- folders that cannot be read or written ------------------------------------------------------


def unusable(cache: CubinCache, reason: str) -> None:
    """Check that everything works without the cache, with one warning."""
    compiler = CachedCompiler(Counting(), cache)
    with pytest.warns(CacheWarning, match=reason) as caught:
        cubin = compiler.compile("f.cu", "source", {}, [])
    assert len(caught) == 1
    assert "CAVS_CACHE" in caught[0].message.hint
    assert compiler.compile("f.cu", "source", {}, []) == cubin
    assert compiler.compiler.compiled == ["f.cu"] * 2


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    unusable(CubinCache(tmp_path / "file"), "file cannot be written: ")
    unusable(CubinCache(tmp_path / "file" / "below"), "below cannot be written: ")
    assert (tmp_path / "file").read_text() == ""


def test_a_folder_that_cannot_be_created():
    unusable(CubinCache("/proc/cavs"), "/proc/cavs cannot be written: ")


@pytest.fixture
def locked():
    """A cache folder that this process can read but not write; root becomes another user."""
    folder = Path(tempfile.mkdtemp(prefix="cavs-"))
    CubinCache(folder).put(KEY, CUBIN)
    os.chmod(folder / f"{KEY}.cubin", 0o644)
    os.chmod(folder, 0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield folder
    if user == 0:
        os.seteuid(0)
    os.chmod(folder, 0o755)
    shutil.rmtree(folder)


def test_a_read_only_cache_is_read(locked):
    cache = CubinCache(locked)
    assert cache.get(KEY) == CUBIN  # without a warning
    unusable(cache, "cannot be written: Permission denied")
    assert [file.name for file in locked.iterdir()] == [f"{KEY}.cubin"]


def test_a_cache_that_cannot_be_read(locked):
    user = os.geteuid()
    os.seteuid(0) if os.getuid() == 0 else None
    os.chmod(locked / f"{KEY}.cubin", 0)
    os.seteuid(user)
    cache = CubinCache(locked)
    with pytest.warns(CacheWarning, match="cannot be read: Permission denied"):
        assert cache.get(KEY) is None
    assert cache.get(KEY) is None


def test_a_full_disk_leaves_no_partial_file(tmp_path):
    cache, kept = CubinCache(tmp_path), b"small"
    cache.put(KEY, kept)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.warns(CacheWarning, match="cannot be written: File too large") as caught:
            cache.put("1" * 64, bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(caught) == 1
    assert [file.name for file in tmp_path.iterdir()] == [f"{KEY}.cubin"]
    assert cache.get("1" * 64) is None
    assert cache.get(KEY) == kept


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/me")
    for variable in ("CAVS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    assert default_folder() == Path("/home/me/.cache/cavs")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # ignored according to XDG
    assert default_folder() == Path("/home/me/.cache/cavs")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    assert default_folder() == CubinCache().folder == Path("/var/cache/me/cavs")
    monkeypatch.setenv("CAVS_CACHE", "")
    assert default_folder() == Path("/var/cache/me/cavs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CAVS_CACHE", "here")
    assert default_folder() == tmp_path / "here"
    monkeypatch.delenv("CAVS_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # a user without a home
    assert default_folder() == Path("/.cache/cavs")


# ---- size ----------------------------------------------------------------------------------------


def names(cache: CubinCache) -> set[str]:
    return {file.stem for file in cache.folder.iterdir()}


def test_the_least_recently_used_are_evicted(tmp_path):
    cache = CubinCache(tmp_path)
    cache.put("a", bytes(1000))
    size = (tmp_path / "a.cubin").stat().st_size
    cache.limit = 3 * size
    for age, name in enumerate("cba"):
        cache.put(name, bytes(1000))
        os.utime(tmp_path / f"{name}.cubin", (1000 + age, 1000 + age))
    assert names(cache) == {"a", "b", "c"}
    assert cache.get("c") is not None  # used now: b is the oldest
    cache.put("d", bytes(1000))
    assert names(cache) == {"a", "c", "d"}
    cache.put("e", bytes(1000))
    assert names(cache) == {"c", "d", "e"}
    cache.put("f", bytes(10_000))  # the newest stays, even if it is too large
    assert names(cache) == {"f"}
    cache.put("g", b"")
    assert names(cache) == {"g"}


def test_files_of_dead_writers_are_removed(tmp_path):
    cache = CubinCache(tmp_path)
    for name, age in ((".old.1.tmp", 4000), (".new.2.tmp", 10), ("notes.txt", 4000)):
        (tmp_path / name).write_bytes(b"part")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    cache.put(KEY, CUBIN)
    assert {f.name for f in tmp_path.iterdir()} == {".new.2.tmp", "notes.txt", f"{KEY}.cubin"}


# ---- processes -----------------------------------------------------------------------------------

WRITER = """
import random, sys, time
from pathlib import Path
from cavs.cuda.cache import CubinCache
folder, seed, rounds, limit = sys.argv[1], *map(int, sys.argv[2:])
cache, rng = CubinCache(folder, limit), random.Random(seed)
Path(folder + f".{seed}.ready").touch()
while not Path(folder + ".go").exists():
    time.sleep(0.001)
hits = 0
for _ in range(rounds):
    n = rng.randrange(12)
    made, found = bytes([n]) * (20_000 + n), cache.get(str(n))
    assert found in (None, made), n
    hits += found is not None
    if found is None or rng.random() < 0.5:
        cache.put(str(n), made)
print(hits)
"""


def start(folder: Path, count: int, rounds: int, limit: int) -> list[subprocess.Popen[str]]:
    """Run processes that fill one cache at once; a warning ends them."""
    command = [sys.executable, "-W", "error", "-c", WRITER, str(folder)]
    writers = [
        subprocess.Popen(
            [*command, str(seed), str(rounds), str(limit)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(count)
    ]
    ready = [folder.with_name(f"{folder.name}.{seed}.ready") for seed in range(count)]
    end = time.monotonic() + patience(60)
    while not all(path.exists() for path in ready):
        assert time.monotonic() < end, [w.poll() for w in writers]
        time.sleep(0.01)
    folder.with_name(folder.name + ".go").touch()
    return writers


@pytest.mark.parametrize("limit", [1 << 20, 100_000])
def test_processes_fill_one_cache_at_once(tmp_path, limit):
    folder = tmp_path / "cache"
    for writer in start(folder, 4, 300, limit):
        out, err = writer.communicate(timeout=patience(60))
        assert (writer.returncode, err) == (0, "")
        assert int(out) > 0
    files = list(folder.iterdir())
    assert all(file.suffix == ".cubin" for file in files)
    # Entries written while other processes measured the size may exceed the limit.
    assert 0 < sum(file.stat().st_size for file in files) <= limit + 4 * 20_100


def test_processes_killed_while_they_write_leave_no_partial_cubin(tmp_path):
    folder = tmp_path / "cache"
    writers = start(folder, 3, 10**9, 1 << 20)
    time.sleep(0.3)
    for writer in writers:
        assert writer.poll() is None, writer.communicate()
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    cache = CubinCache(folder)
    kept = [n for n in range(12) if (folder / f"{n}.cubin").exists()]
    assert kept
    assert all(cache.get(str(n)) == bytes([n]) * (20_000 + n) for n in kept)
