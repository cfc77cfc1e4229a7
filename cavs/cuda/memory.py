"""Memory and streams of one GPU through CuPy, which is imported on first use.

Blocks come from CuPy's current allocator, by default its memory pool, so that arrays of the user
and of the engine share the free memory.
"""

from __future__ import annotations

from typing import Any, Protocol

from cavs.cuda.libraries import install_line
from cavs.errors import DeviceError


class Memory(Protocol):
    """The allocator interface of the engine."""

    def allocate(self, nbytes: int) -> int:
        """Return the address of a new block on the device; DeviceError if there is no room."""
        ...

    def release(self, pointer: int) -> None:
        """Release a block; all work that uses it has finished."""
        ...

    def used(self) -> int:
        """Return the number of bytes in blocks that were not released."""
        ...

    def stream(self) -> int:
        """Return the handle of a new stream, which lives as long as this object."""
        ...


def current_gpu(cupy: Any, ordinal: int) -> Any:
    """Return CuPy's device as a context manager.

    At its end CuPy restores the previous GPU. Without one it would set up the first GPU, so a
    thread without a GPU stays on this one.
    """
    if not _has_gpu(cupy):
        cupy.cuda.runtime.setDevice(ordinal)
    return cupy.cuda.Device(ordinal)


def _has_gpu(cupy: Any) -> bool:
    try:
        return bool(cupy.cuda.driver.ctxGetCurrent())
    except RuntimeError:  # the driver is not initialised yet
        return False


class CupyMemory:
    """`Memory` of the GPU with this ordinal.

    DeviceError, with the install command, if CuPy is missing or does not run on the driver. newest:
    the CUDA major of the driver, if known, for that command.
    """

    def __init__(self, ordinal: int, newest: int | None = None) -> None:
        self.ordinal = ordinal
        self._blocks: dict[int, Any] = {}
        self._streams: list[Any] = []
        hint = install_line(newest)
        try:
            import cupy
        except Exception as error:  # an import may fail in any way; CuPy's are of several classes
            raise DeviceError(
                f"CuPy cannot be imported, but device='cuda' needs it: {error}", hint=hint
            ) from error
        self._cupy = cupy
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except RuntimeError as error:
            found = f"CuPy {cupy.__version__} finds no GPU: {error}"
            raise DeviceError(found, hint=hint) from error
        if ordinal >= count:
            raise DeviceError(
                f"CuPy {cupy.__version__} sees {count} GPUs, but the device is cuda:{ordinal}",
                hint=hint,
            )

    def allocate(self, nbytes: int) -> int:
        """Return the address of a new block of at least `nbytes` bytes, aligned to 512.

        DeviceError with the requested, free and total bytes if there is no room.
        """
        try:
            with current_gpu(self._cupy, self.ordinal):
                block = self._cupy.cuda.alloc(max(nbytes, 1))  # empty blocks would share address 0
                # The pool orders uses of a block by CuPy's stream; our streams do not wait for that
                # one.
                self._cupy.cuda.get_current_stream().synchronize()
        except MemoryError as error:
            free, total = self.free_and_total()
            raise DeviceError(
                f"out of memory on cuda:{self.ordinal}: {nbytes:,} bytes requested, {free:,} free "
                f"of {total:,}; cavs holds {self.used():,} ({error})",
                hint="use a smaller batch_size, or stop other programs on this GPU",
            ) from error
        except RuntimeError as error:
            raise DeviceError(
                f"cuda:{self.ordinal} cannot allocate {nbytes:,} bytes: {error}",
                hint="after a failure of the GPU, start a new process",
            ) from error
        self._blocks[block.ptr] = block
        return int(block.ptr)

    def release(self, pointer: int) -> None:
        """Return the block at `pointer` to the pool; DeviceError if it was not allocated here.

        The pool may reuse it at once, so all work on it must have finished.
        """
        if pointer not in self._blocks:
            raise DeviceError(f"cuda:{self.ordinal} has no block at {pointer:#x} to release")
        del self._blocks[pointer]

    def used(self) -> int:
        """Return the number of bytes in blocks that were not released, as CuPy rounded them."""
        return sum(int(block.mem.size) for block in self._blocks.values())

    def stream(self) -> int:
        """Return the handle of a new stream that does not wait for the default stream."""
        try:
            with current_gpu(self._cupy, self.ordinal):
                made = self._cupy.cuda.Stream(non_blocking=True)
        except RuntimeError as error:
            raise DeviceError(
                f"cuda:{self.ordinal} cannot create a stream: {error}",
                hint="after a failure of the GPU, start a new process",
            ) from error
        self._streams.append(made)
        return int(made.ptr)

    def free_and_total(self) -> tuple[int, int]:
        """Return the free and total bytes of the GPU; blocks that CuPy caches are not free."""
        try:
            free, total = current_gpu(self._cupy, self.ordinal).mem_info
        except RuntimeError as error:
            raise DeviceError(
                f"cuda:{self.ordinal} does not answer: {error}",
                hint="after a failure of the GPU, start a new process",
            ) from error
        return int(free), int(total)

    def kept(self) -> int:
        """Return the number of bytes that CuPy's pool caches for later allocations."""
        with current_gpu(self._cupy, self.ordinal):
            return int(self._cupy.get_default_memory_pool().free_bytes())
