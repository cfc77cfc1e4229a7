"""Checkpoint files: contents, damage, and atomic writing."""

import errno
import json
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cavs.errors import CheckpointError
from cavs.train import load_parameters, read_checkpoint, safetensors, save_checkpoint
from cavs.train.checkpoint import Checkpoint
from tests.train.fake import FakeModel, FakeParameter

ROOT = Path(__file__).parents[2]
DTYPES = [np.float64, np.float32, np.float16, np.int64, np.int32, np.uint8, np.bool_]
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(min_size=1), ARRAYS), st.dictionaries(st.text(), st.text()))
def test_round_trip(tmp_path_factory, tensors, metadata):
    tensors.pop("__metadata__", None)
    metadata.pop("crc32", None)
    path = tmp_path_factory.getbasetemp() / "round.safetensors"
    safetensors.write(path, tensors, metadata)
    read, kept = safetensors.read(path)
    assert kept == metadata
    assert list(read) == list(tensors)
    assert all(same(read[name], tensors[name]) for name in tensors)


def test_transposed_and_big_endian_arrays(tmp_path):
    array = np.arange(12, dtype=">f4").reshape(3, 4).T
    safetensors.write(tmp_path / "x", {"a": array}, {})
    read = safetensors.read(tmp_path / "x")[0]["a"]
    assert read.dtype == np.float32
    assert np.array_equal(read, array)


def test_the_reference_library_reads_ours_and_we_read_its(tmp_path):
    reference = pytest.importorskip("safetensors")
    from safetensors.numpy import load_file, save_file

    rng = np.random.default_rng(0)
    tensors = {f"t{i}": rng.normal(size=(i, 5)).astype(d) for i, d in enumerate(DTYPES)}
    safetensors.write(tmp_path / "ours.safetensors", tensors, {"who": "cavs"})
    read = load_file(tmp_path / "ours.safetensors")
    assert set(read) == set(tensors)
    assert all(same(read[name], tensors[name]) for name in tensors)
    with reference.safe_open(tmp_path / "ours.safetensors", "np") as file:
        assert file.metadata()["who"] == "cavs"
    save_file(tensors, tmp_path / "theirs.safetensors", {"who": "them"})
    read, metadata = safetensors.read(tmp_path / "theirs.safetensors")
    assert metadata == {"who": "them"}
    assert all(same(read[name], tensors[name]) for name in tensors)


def header(entries, data=b""):
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "0 bytes"),
        (b"abc", "3 bytes"),
        (b"PK\x03\x04" + bytes(200), "header of|header has"),
        (b"\xff" * 100, "header of"),
        ((5000).to_bytes(8, "little") + b"{}", "header has 5000 bytes, the file 10"),
        ((2).to_bytes(8, "little") + b"[]", r"starts with b'\['"),
        ((2).to_bytes(8, "little") + b"{]", "not JSON"),
        ((2).to_bytes(8, "little") + b"{\xff", "not JSON"),
        ((60000).to_bytes(8, "little") + b'{"a":' + b"[" * 59995, "not JSON"),
        (header({"a": 3}), "entry of tensor 'a' is 3"),
        (header({"a": entry(dtype="BF16")}, bytes(8)), "'BF16'"),
        (header({"a": entry(dtype=["F32"])}, bytes(8)), "dtype"),
        (header({"a": entry(shape=[-2])}, bytes(8)), "-2"),
        (header({"a": entry(shape=[True, 2])}, bytes(8)), "True"),
        (header({"a": entry(offsets=(0, 8, 16))}, bytes(8)), "16"),
        (header({"a": entry(offsets=(8, 0))}, bytes(8)), "has -8 bytes"),
        (header({"a": entry(shape=[3])}, bytes(8)), r"shape \[3\] and F32 has 8 bytes"),
        (header({"a": entry(shape=[2**40, 2**40])}, bytes(8)), "has 8 bytes"),
        (header({"a": entry()}, bytes(4)), "ends at byte 8 of 4"),
        (header({"a": entry()}, bytes(9)), "has 9 bytes of arrays, but its header says 8"),
        (header({"a": entry(), "b": entry()}, bytes(8)), "overlap at byte 0"),
        (header({"a": entry(), "b": entry(offsets=(12, 20))}, bytes(20)), "hole .* at byte 12"),
        (header({"__metadata__": {"a": 1}}), "map of strings"),
        (header({"__metadata__": {"crc32": "00000001"}}), "checksum is 00000000, not 00000001"),
    ],
)
def test_damaged_files_are_refused(tmp_path, content, text):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=text) as error:
        safetensors.read(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/urandom", "/dev/null"])
@pytest.mark.parametrize("read", [safetensors.read, safetensors.read_header])
def test_devices_are_refused_after_the_header(path, read):
    with pytest.raises(CheckpointError, match=f"{path} is not a whole safetensors file"):
        read(path)


def test_a_pipe_is_read_no_further_than_its_header_says():
    read, write = os.pipe()
    os.write(write, header({"a": entry()}, bytes(8)))
    os.close(write)
    tensors, _ = safetensors.read(f"/dev/fd/{read}")
    assert tensors["a"].tolist() == [0, 0]
    os.close(read)
    read, write = os.pipe()  # it stays open, so that reading to the end would not return
    os.write(write, header({"a": entry()}, bytes(9)))
    with pytest.raises(CheckpointError, match="has 9 bytes of arrays, but its header says 8"):
        safetensors.read(f"/dev/fd/{read}")
    os.close(read)
    os.close(write)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_cut_or_flipped_byte_is_detected(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "cut.safetensors"
    save_checkpoint(path, FakeModel(), states=[[np.ones(2)], [], []], config={"hidden": 3})
    content = path.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        path.write_bytes(content[:at])
        with pytest.raises(CheckpointError):
            read_checkpoint(path)
        return
    flipped = bytearray(content)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(flipped)
    start = 8 + int.from_bytes(content[:8], "little")
    if at >= start:
        with pytest.raises(CheckpointError, match="checksum"):
            read_checkpoint(path)
        return
    try:
        found = read_checkpoint(path)
    except CheckpointError:
        return
    # If the key of the checksum itself was hit, all else is unchanged.
    path.write_bytes(content)
    stored = read_checkpoint(path)
    assert content[at - 5 : at + 6].find(b"crc32") >= 0
    for name in ("model", "config", "progress", "edge_types"):
        assert getattr(found, name) == getattr(stored, name)
    assert all(same(found.parameters[n], v) for n, v in stored.parameters.items())


@pytest.mark.parametrize(
    ("before", "after"), [(b'\\"step\\": 12', b'\\"step\\": 13'), (b"verb", b"vera")]
)
def test_a_changed_word_of_the_metadata_is_detected(before, after, tmp_path):
    """A run would otherwise resume from another step, or with another vocabulary."""
    path = tmp_path / "m"
    config = {"words": ["noun", "verb"]}
    save_checkpoint(path, FakeModel(), config=config, progress={"step": 12})
    content = path.read_bytes()
    assert content.count(before) == 1
    path.write_bytes(content.replace(before, after))
    with pytest.raises(CheckpointError, match="checksum of its header"):
        read_checkpoint(path)


def test_an_older_file_without_checksum_of_the_header_is_read(tmp_path):
    path = tmp_path / "m"
    save_checkpoint(path, FakeModel(), progress={"step": 12})
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    sums = header["__metadata__"]["crc32"].split()
    header["__metadata__"]["crc32"] = sums[0]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[start:])
    assert read_checkpoint(path).progress == {"step": 12}
    header["__metadata__"]["crc32"] = sums[1]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[start:])
    with pytest.raises(CheckpointError, match="its checksum is"):
        read_checkpoint(path)


def test_checkpoint_round_trip(tmp_path):
    model = FakeModel()
    states = [[np.ones((6, 3)), np.zeros((6, 3))], [np.full(3, 2.0)], []]
    path = tmp_path / "new" / "folder" / "m.safetensors"
    save_checkpoint(path, model, states=states, config={"h": 5}, progress={"step": 7})
    stored = read_checkpoint(path)
    assert (stored.model, stored.config, stored.progress) == ("FakeModel", {"h": 5}, {"step": 7})
    for name, p in model.parameters().items():
        assert same(stored.parameters[name], p.value)
    for arrays, kept in zip(states, stored.states.values(), strict=True):
        assert len(arrays) == len(kept)
        assert all(map(same, arrays, kept))
    assert os.listdir(path.parent) == ["m.safetensors"]


def test_loading_is_in_place(tmp_path):
    model, other = FakeModel(), FakeModel()
    for p in model.parameters().values():
        p.value[...] = 3
    save_checkpoint(tmp_path / "m", model, states=[[np.ones(1)], [], []])
    addresses = [p.value.ctypes.data for p in other.parameters().values()]
    load_parameters(other, tmp_path / "m")
    assert [p.value.ctypes.data for p in other.parameters().values()] == addresses
    assert all((p.value == 3).all() for p in other.parameters().values())
    plain = {name: p.value * 2 for name, p in model.parameters().items()}
    safetensors.write(tmp_path / "plain", plain, {})
    load_parameters(other, tmp_path / "plain")
    assert all((p.value == 6).all() for p in other.parameters().values())


class Other(FakeModel):
    def __init__(self, **changed):
        super().__init__()
        for name, array in changed.items():
            dotted = name.replace("_", ".", 1)
            if array is None:
                del self._parameters[dotted]
            else:
                self._parameters[dotted] = FakeParameter(dotted, array)


@pytest.mark.parametrize(
    ("other", "texts"),
    [
        (Other(output_W=np.zeros((6, 4), np.float32)), ("float32[6, 3]", "float32[6, 4]")),
        (Other(output_b=np.zeros(3)), ("float32[3]", "float64[3]")),
        (Other(output_b=None), ("1 unknown", "'output.b'")),
        (Other(output_c=np.zeros(3)), ("1 missing", "'output.c'")),
    ],
)
def test_a_checkpoint_of_another_model_leaves_the_model_untouched(tmp_path, other, texts):
    save_checkpoint(tmp_path / "m", FakeModel())
    before = {n: p.value.copy() for n, p in other.parameters().items()}
    with pytest.raises(CheckpointError) as error:
        load_parameters(other, tmp_path / "m")
    assert all(text in str(error.value) for text in texts)
    assert all(same(p.value, before[n]) for n, p in other.parameters().items())


def test_foreign_files_and_missing_files(tmp_path):
    safetensors.write(tmp_path / "foreign", {"a": np.zeros(3)}, {"format": "pt"})
    with pytest.raises(CheckpointError, match="cavs_format None, not '1'"):
        read_checkpoint(tmp_path / "foreign")
    with pytest.raises(CheckpointError, match="No such file"):
        read_checkpoint(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="directory"):
        read_checkpoint(tmp_path)


def test_names_and_values_that_cannot_be_stored(tmp_path):
    clash = Other(**{"optimizer_output.b.0": np.zeros(3)})
    with pytest.raises(CheckpointError, match=r"'optimizer.output.b.0'.*optimiser state"):
        save_checkpoint(tmp_path / "m", clash, states=[[], [np.ones(3)], [], []])
    with pytest.raises(CheckpointError, match="not JSON"):
        save_checkpoint(tmp_path / "m", FakeModel(), config={"x": object()})
    with pytest.raises(CheckpointError, match="complex128"):
        safetensors.write(tmp_path / "m", {"a": np.zeros(2, complex)}, {})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_a_failing_disk_leaves_the_old_file(tmp_path, monkeypatch, code, call):
    path = tmp_path / "m.safetensors"
    save_checkpoint(path, FakeModel())
    old = path.read_bytes()

    def fail(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    model = FakeModel()
    model.parameters()["output.b"].value[...] = 9
    with monkeypatch.context() as patch:
        patch.setattr(f"cavs.train.safetensors.os.{call}", fail)
        with pytest.raises(CheckpointError, match="untouched") as error:
            save_checkpoint(path, model)
    assert str(path) in str(error.value)
    assert os.strerror(code) in str(error.value)
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_temporary_files_of_a_killed_writer_are_removed(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    old = {
        f".m.{gone.pid}.0123abcd.tmp": 4000,
        f".m.{gone.pid}.1123abcd.tmp": 100,  # possibly of another machine
        f".m.{os.getpid()}.2123abcd.tmp": 4000,
        f".n.{gone.pid}.3123abcd.tmp": 4000,
        f".m.{10**30}.4123abcd.tmp": 4000,
        "m.tmp": 4000,
    }
    for name, age in old.items():
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    save_checkpoint(tmp_path / "m", FakeModel())
    assert set(os.listdir(tmp_path)) == {"m", *list(old)[1:]}


def test_temporary_files_of_this_machine_are_removed_at_once(tmp_path):
    code = """
import os, signal, sys
from cavs.data import whole_file
def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)
os.replace = kill
whole_file.replace_whole(sys.argv[1], [b"half"])
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "m")], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = os.listdir(tmp_path)
    other = re.sub(r"[0-9a-f]{16}(?=\.tmp)", "0" * 16, left)
    (tmp_path / other).touch()  # written by another machine, where the process may be alive
    save_checkpoint(tmp_path / "m", FakeModel())
    assert left != other and set(os.listdir(tmp_path)) == {"m", other}


def test_a_file_size_limit_acts_like_a_full_disk(tmp_path):
    path = tmp_path / "m.safetensors"
    save_checkpoint(path, FakeModel())
    old = path.read_bytes()
    code = f"""
import resource, numpy as np
from cavs.errors import CheckpointError
from cavs.train import safetensors
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, {resource.RLIM_INFINITY}))
try:
    safetensors.write({str(path)!r}, {{"a": np.zeros(100000)}}, {{}})
except CheckpointError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert "File too large" in done.stdout, done.stderr
    assert "free some space" in done.stdout
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_paths_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "m", tmp_path / "folder", Path("/proc/none/m")):
        with pytest.raises(CheckpointError, match="cannot write the checkpoint") as error:
            save_checkpoint(path, FakeModel())
        assert str(path) in str(error.value)


def test_read_only_folder_and_file(tmp_path):
    path = tmp_path / "m"
    save_checkpoint(path, FakeModel())
    old = path.read_bytes()
    path.chmod(0o444)
    if os.access(path, os.W_OK):
        pytest.skip("this user may write anywhere")
    with pytest.raises(CheckpointError, match="may be written"):
        save_checkpoint(path, FakeModel())
    tmp_path.chmod(0o555)
    with pytest.raises(CheckpointError, match="Permission denied"):
        save_checkpoint(tmp_path / "other", FakeModel())
    tmp_path.chmod(0o755)
    assert path.read_bytes() == old


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "m")
    save_checkpoint(tmp_path / "link", FakeModel())
    assert (tmp_path / "link").is_symlink()
    assert read_checkpoint(tmp_path / "real" / "m").model == "FakeModel"


def _write_many(path, value):
    for _ in range(15):
        safetensors.write(path, {"a": np.full(20_000, value)}, {"who": str(value)})


def test_two_processes_writing_one_checkpoint_leave_complete_files(tmp_path):
    path = tmp_path / "m"
    _write_many(path, 0)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(path, v)) for v in (1, 2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        tensors, metadata = safetensors.read(path)
        assert set(np.unique(tensors["a"])) == {int(metadata["who"])}
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert os.listdir(tmp_path) == ["m"]


def test_loading_some_parameters(tmp_path):
    model, path = FakeModel(), tmp_path / "some.safetensors"
    own = {name: p.value.copy() for name, p in model.parameters().items()}
    tensors = {name: value + 1 for name, value in own.items() if name != "output.b"}
    safetensors.write(path, {**tensors, "other.W": np.ones(3, np.float32)}, {})
    with pytest.raises(CheckpointError, match=r"1 missing, such as 'output\.b'; 1 unknown"):
        load_parameters(model, path)
    assert all((p.value == own[n]).all() for n, p in model.parameters().items())
    assert load_parameters(model, path, strict=False) == ["other.W", "output.b"]
    for name, p in model.parameters().items():
        assert (p.value == tensors.get(name, own[name])).all()


def test_a_file_without_any_parameter_of_the_model_is_refused(tmp_path):
    path = tmp_path / "none.safetensors"
    safetensors.write(path, {"other.W": np.ones(3, np.float32)}, {})
    with pytest.raises(CheckpointError, match="3 missing"):
        load_parameters(FakeModel(), path, strict=False)


def test_partial_loading_checks_the_loaded_parameters(tmp_path):
    path = tmp_path / "wrong.safetensors"
    safetensors.write(path, {"output.b": np.ones(1, np.float32)}, {})
    with pytest.raises(CheckpointError, match=r"'output.b' is float32\[1\]"):
        load_parameters(FakeModel(), path, strict=False)


def test_the_former_name_of_feature_types_says_the_new_one():
    with pytest.raises(AttributeError, match=r"edge_types was renamed[\s\S]*use feature_types"):
        _ = Checkpoint({}).edge_types
