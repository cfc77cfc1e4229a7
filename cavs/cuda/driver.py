"""Queries to the NVIDIA driver about itself and its GPUs, by ctypes and without a context."""

from __future__ import annotations

import ctypes
from typing import Any

from cavs.errors import DeviceError

_NO_DEVICE, _INVALID_DEVICE = 100, 101  # CUresult in cuda.h
_CPU = "the CPU needs no driver: device='cpu'"
_CURES = {
    2: "free memory of the GPU: nvidia-smi lists the processes that use it",
    3: "a process forked from one that used the GPU cannot use it: start processes by spawn",
    46: "another process uses the GPU exclusively: nvidia-smi lists it",
    800: "ask the administrator for access to the GPU",
    802: "start NVIDIA's Fabric Manager, which this machine needs, or wait until it runs",
    803: "restart the machine: its driver was updated, but the old one is still loaded",
    804: "remove the compatibility libcuda of a CUDA toolkit from LD_LIBRARY_PATH",
    999: "run nvidia-modprobe -u, or restart the machine; start a container with --gpus all",
}
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CUdevice_attribute in cuda.h


def newest_cuda(path: str | None) -> int | None:
    """Return the CUDA major version of the driver at `path`; None if it is unknown."""
    try:
        return None if path is None else Driver(path).version() // 1000
    except DeviceError:
        return None


class Driver:
    """The driver at `path`, opened by dlopen; DeviceError if that fails."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise DeviceError(
                f"the NVIDIA driver {path} cannot be opened: {error}",
                hint=f"reinstall the driver, not by pip; {_CPU}",
            ) from error

    def version(self) -> int:
        """Return the newest CUDA version that it supports, as 1000 * major + 10 * minor."""
        version = ctypes.c_int()
        self._check("cuDriverGetVersion", self._call("cuDriverGetVersion", ctypes.byref(version)))
        return version.value

    def count(self) -> int:
        """Return the number of GPUs that ``CUDA_VISIBLE_DEVICES`` shows."""
        status = self._call("cuInit", 0)
        if status == _NO_DEVICE:
            return 0
        self._check("cuInit", status)
        number, device = 0, ctypes.c_int()
        while not (status := self._call("cuDeviceGet", ctypes.byref(device), number)):
            number += 1
        if status != _INVALID_DEVICE:
            self._check("cuDeviceGet", status)
        return number

    def capability(self, ordinal: int) -> int:
        """Return the compute capability of a GPU times ten: 90 for 9.0."""
        major, minor = (self._attribute(ordinal, a) for a in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR))
        return 10 * major + minor

    def name(self, ordinal: int) -> str:
        """Return NVIDIA's name of the GPU."""
        text = ctypes.create_string_buffer(256)
        device = self._device(ordinal)
        self._check("cuDeviceGetName", self._call("cuDeviceGetName", text, 256, device))
        return text.value.decode(errors="replace")

    def uuid(self, ordinal: int) -> str:
        """Return the GPU's UUID, which does not depend on its number in a process."""
        self._check("cuInit", self._call("cuInit", 0))
        found, device = (ctypes.c_ubyte * 16)(), self._device(ordinal)
        self._check("cuDeviceGetUuid_v2", self._call("cuDeviceGetUuid_v2", found, device))
        return bytes(found).hex()

    def memory(self, ordinal: int) -> int:
        """Return the size of its memory in bytes."""
        size, device = ctypes.c_size_t(), self._device(ordinal)
        status = self._call("cuDeviceTotalMem_v2", ctypes.byref(size), device)
        self._check("cuDeviceTotalMem_v2", status)
        return size.value

    def _device(self, ordinal: int) -> int:
        device = ctypes.c_int()
        self._check("cuDeviceGet", self._call("cuDeviceGet", ctypes.byref(device), ordinal))
        return device.value

    def _attribute(self, ordinal: int, attribute: int) -> int:
        value, device = ctypes.c_int(), self._device(ordinal)
        status = self._call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
        self._check("cuDeviceGetAttribute", status)
        return value.value

    def _call(self, function: str, *arguments: Any) -> int:
        try:
            return int(getattr(self._library, function)(*arguments))
        except AttributeError as error:
            raise DeviceError(
                f"the NVIDIA driver {self.path} has no {function}, but cavs needs it",
                hint=f"update the driver; {_CPU}",
            ) from error

    def _check(self, function: str, status: int) -> None:
        if not status:
            return
        text = ctypes.c_char_p()
        self._call("cuGetErrorName", status, ctypes.byref(text))
        name = text.value.decode() if text.value else f"error {status}"
        raise DeviceError(
            f"{function} of the NVIDIA driver {self.path} failed: {name}",
            hint=f"{_CURES.get(status, 'look at what nvidia-smi prints')}; {_CPU}",
        )
