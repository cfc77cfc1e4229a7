"""Work in a new process, which may crash or hang without harm to the caller."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def kill(process: multiprocessing.process.BaseProcess) -> None:
    """Kill a process that called ``lead``, with all processes that it has started.

    A process that hangs in a driver remains; do not wait for it.
    """
    if process.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join(1)


def lead() -> None:
    """Make this process the leader of a new process group."""
    os.setpgid(0, 0)


def _answer(connection: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    lead()
    try:
        connection.send((True, work(*arguments)))
    except Exception as error:
        connection.send((False, f"{error}\n{traceback.format_exc()}"))


def in_new_process(work: Callable[..., Any], *arguments: Any, patience: float) -> Any:
    """Run ``work`` in a new process and return its result; function and arguments are pickled.

    Raises RuntimeError with the text of an error of ``work``, or if the process ends without a
    result or gives none within ``patience`` seconds; then it is killed.
    """
    context = multiprocessing.get_context("spawn")
    connection, theirs = context.Pipe()
    process = context.Process(target=_answer, args=(theirs, work, arguments))
    process.start()
    theirs.close()
    try:
        if not connection.poll(patience):
            raise RuntimeError(f"no answer within {patience:g} s")
        good, answer = connection.recv()
        process.join(2)
    except EOFError as error:
        process.join(5)
        raise RuntimeError(f"its process ended with code {process.exitcode}") from error
    finally:
        kill(process)
        connection.close()
    if not good:
        raise RuntimeError(answer)
    return answer
