"""Memory and streams of one GPU, through CuPy, which is imported when the first is wanted.

The blocks come from CuPy's current allocator, by default its memory pool, so that arrays of the
user and the engine share what is free.
"""

from __future__ import annotations

from typing import Any, Protocol

from cavs.cuda.libraries import install_line
from cavs.errors import DeviceError


class Memory(Protocol):
    """What the engine needs of an allocator."""

    def allocate(self, nbytes: int) -> int:
        """The address of a new block on the device; DeviceError if there is no room."""
        ...

    def release(self, pointer: int) -> None:
        """Give a block back; all work that uses it is done."""
        ...

    def used(self) -> int:
        """The bytes of the blocks that are not given back."""
        ...

    def stream(self) -> int:
        """The handle of a new stream, which lives as long as this object."""
        ...


def current_gpu(cupy: Any, ordinal: int) -> Any:
    """CuPy's device, to be entered.

    CuPy comes back to the GPU that was current. Where none is that would be the first one, which
    would be set up for nothing: a thread without a GPU stays on this one.
    """
    if not _has_gpu(cupy):
        cupy.cuda.runtime.setDevice(ordinal)
    return cupy.cuda.Device(ordinal)


def _has_gpu(cupy: Any) -> bool:
    try:
        return bool(cupy.cuda.driver.ctxGetCurrent())
    except RuntimeError:  # nobody has initialised the driver yet
        return False


class CupyMemory:
    """`Memory` of the GPU with this ordinal.

    DeviceError, with the line to install, if CuPy is missing or does not run on the driver.
    newest: the CUDA major of the driver, if known; it chooses the line.
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
                f"CuPy {cupy.__version__} sees {count} GPUs, but cuda:{ordinal} is wanted",
                hint=hint,
            )

    def allocate(self, nbytes: int) -> int:
        """The address of a new block of at least `nbytes` bytes, aligned to 512.

        DeviceError with the bytes asked for, free and in all if there is no room.
        """
        try:
            with current_gpu(self._cupy, self.ordinal):
                block = self._cupy.cuda.alloc(max(nbytes, 1))  # blocks of no bytes share address 0
                # The pool orders a block's uses by CuPy's stream; ours do not wait for that one.
                self._cupy.cuda.get_current_stream().synchronize()
        except MemoryError as error:
            free, total = self.free_and_total()
            raise DeviceError(
                f"out of memory on cuda:{self.ordinal}: {nbytes:,} bytes wanted, {free:,} free of "
                f"{total:,}; cavs holds {self.used():,} ({error})",
                hint="a smaller batch_size, or other programs off this GPU",
            ) from error
        except RuntimeError as error:
            raise DeviceError(
                f"cuda:{self.ordinal} cannot give {nbytes:,} bytes: {error}",
                hint="a GPU that has failed needs a new process",
            ) from error
        self._blocks[block.ptr] = block
        return int(block.ptr)

    def release(self, pointer: int) -> None:
        """Give the block at `pointer` back to the pool; DeviceError if it is none of ours.

        The pool may hand it out at once: what uses it must be done.
        """
        if pointer not in self._blocks:
            raise DeviceError(f"cuda:{self.ordinal} has no block at {pointer:#x} to release")
        del self._blocks[pointer]

    def used(self) -> int:
        """The bytes of all blocks that are not given back, as CuPy rounded them up."""
        return sum(int(block.mem.size) for block in self._blocks.values())

    def stream(self) -> int:
        """The handle of a new stream that does not wait for the default stream."""
        try:
            with current_gpu(self._cupy, self.ordinal):
                made = self._cupy.cuda.Stream(non_blocking=True)
        except RuntimeError as error:
            raise DeviceError(
                f"cuda:{self.ordinal} makes no stream: {error}",
                hint="a GPU that has failed needs a new process",
            ) from error
        self._streams.append(made)
        return int(made.ptr)

    def free_and_total(self) -> tuple[int, int]:
        """Bytes that the GPU has free, and in all; blocks that CuPy's pool keeps are not free."""
        try:
            free, total = current_gpu(self._cupy, self.ordinal).mem_info
        except RuntimeError as error:
            raise DeviceError(
                f"cuda:{self.ordinal} does not answer: {error}",
                hint="a GPU that has failed needs a new process",
            ) from error
        return int(free), int(total)

    def kept(self) -> int:
        """The bytes that CuPy's pool keeps for who asks next: nobody uses them."""
        with current_gpu(self._cupy, self.ordinal):
            return int(self._cupy.get_default_memory_pool().free_bytes())
