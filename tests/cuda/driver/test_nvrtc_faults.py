"""NVRTC that is too old or fails, and the source lines of its errors, on a library in C++."""

from __future__ import annotations

import subprocess

import pytest

from cavs.cuda.nvrtc import Nvrtc, excerpts
from cavs.errors import DeviceError
from tests.cuda.driver_stand_ins import CXX, MISSING, strip

FAILING = r"""
extern "C" {
const char* nvrtcGetErrorString(int status) {
  return status == 11 ? "NVRTC_ERROR_INTERNAL_ERROR" : nullptr;
}
int nvrtcVersion(int* major, int* minor) { *major = 12, *minor = 9; return 0; }
#ifndef OLD
int nvrtcGetNumSupportedArchs(int*) { return 11; }
#endif
int nvrtcCreateProgram(void**, const char*, const char*, int, char**, char**) { return 77; }
}
"""


def build(folder, *defines):
    source, path = folder / "nvrtc.cc", folder / "libnvrtc.so.12"
    source.write_text(FAILING)
    subprocess.run([CXX, "-shared", "-fPIC", *defines, "-o", str(path), str(source)], check=True)
    return str(path)


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without CUDA, but with a C++ compiler."""
    if MISSING:
        pytest.skip(MISSING)
    strip(monkeypatch, tmp_path / "prefix")
    return tmp_path


def test_a_call_that_fails_is_named_with_its_status(bare):
    library = build(bare)
    failing = Nvrtc(library)
    assert failing.version() == (12, 9)
    with pytest.raises(DeviceError) as raised:
        failing.architectures()
    found = f"nvrtcGetNumSupportedArchs of {library} failed: NVRTC_ERROR_INTERNAL_ERROR"
    assert raised.value.what == found
    assert raised.value.hint.endswith(" --force-reinstall")
    with pytest.raises(DeviceError, match=r"nvrtcCreateProgram of .* failed: \?"):
        failing.compile("f.cu", "int f;", {}, [])


def test_a_function_of_a_later_version(bare):
    library = build(bare, "-DOLD")
    with pytest.raises(DeviceError) as raised:
        Nvrtc(library).architectures()
    assert raised.value.what == f"{library} has no nvrtcGetNumSupportedArchs, but cavs needs it"
    assert raised.value.hint.endswith(" --force-reinstall")


def test_errors_show_lines_of_known_files():
    text = "\n".join(f"line {i}" for i in range(1, 10))
    log = (
        "a.cu(5): error: expected a ';'\n"
        "absent.cuh(2): error: expected a ';'\n"
        "a.cu(12): error: unexpected end of file\n"
        "a.cu(7): warning: unused variable\n"
    )
    (shown,) = excerpts(log, {"a.cu": text})
    assert shown.splitlines() == [
        "a.cu:",
        "     3 | line 3",
        "     4 | line 4",
        ">    5 | line 5",
        "     6 | line 6",
        "     7 | line 7",
    ]
