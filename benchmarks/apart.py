"""Work in a process of its own, which may crash or hang without harm to the one that asks."""

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
    """Ends a process that called ``lead`` with all that it has started.

    One that a driver holds stays; nobody waits for it.
    """
    if process.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join(1)


def lead() -> None:
    """Makes this process the first of a group of its own."""
    os.setpgid(0, 0)


def _answer(connection: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    lead()
    try:
        connection.send((True, work(*arguments)))
    except Exception as error:
        connection.send((False, f"{error}\n{traceback.format_exc()}"))


def apart(work: Callable[..., Any], *arguments: Any, patience: float) -> Any:
    """What ``work`` returns, run in a new process; it and its arguments must be picklable.

    Raises RuntimeError with the text of what it raised, or where it ends without an answer or gives
    none within ``patience`` seconds; then it is killed.
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
