"""Slow links between the ranks of one machine: a network namespace for each, with a rate.

Each rank lives in a namespace of its own, whose only way out is a virtual card that the kernel's
token bucket (``tc ... tbf``) holds to so many megabits a second in each direction. Ranks believe
that they are on different hosts. That needs root, `ip`, `tc` and a kernel with these features;
`refusal` says what is missing.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

_BURST = "64kb"
_RANK = "PMIX_RANK"


class LinkError(Exception):
    """The machine cannot make slow links."""


def _run(*words: str) -> None:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        raise LinkError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")


def refusal() -> str:
    """Return why this machine cannot make slow links; empty if it can."""
    if os.geteuid() != 0:
        return "it needs root"
    for tool in ("ip", "tc", "unshare", "hostname"):
        if shutil.which(tool) is None:
            return f"there is no {tool}"
    try:
        with slow_links(1, 100):
            return ""
    except LinkError as error:
        return str(error)


@dataclass(frozen=True)
class Links:
    """The links of ranks. inside: prefix of a rank's command. name: begins those of its cards."""

    inside: list[str]
    name: str

    def limit(self, rank: int, megabits: float) -> None:
        """Let the link of a rank have another rate, while ranks run. Raises `LinkError`."""
        space = ["ip", "netns", "exec", f"{self.name}n{rank}"]
        _run(*space, "tc", "qdisc", "change", "dev", "eth0", "root", *_rate(megabits))
        outside = f"{self.name}v{rank}"
        _run("tc", "qdisc", "change", "dev", outside, "root", *_rate(megabits))


def _rate(megabits: float) -> list[str]:
    return ["tbf", "rate", f"{megabits}mbit", "burst", _BURST, "latency", "20ms"]


@contextmanager
def slow_links(ranks: int, megabits: float) -> Iterator[Links]:
    """Create namespaces with links of so many Mbit/s in each direction.

    Raises `LinkError`. Everything is removed, also when SIGTERM ends the program.
    """
    name, net = f"cv{os.getpid() % 100000}", _network()
    bridge, made = f"{name}b", list[list[str]]()
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        _run("ip", "link", "add", bridge, "type", "bridge")
        made.append(["ip", "link", "del", bridge])
        _run("ip", "addr", "add", f"{net}.1/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for rank in range(ranks):
            space, outside = f"{name}n{rank}", f"{name}v{rank}"
            _run("ip", "netns", "add", space)
            made.append(["ip", "netns", "del", space])
            peer = ["peer", "name", "eth0", "netns", space]
            _run("ip", "link", "add", outside, "type", "veth", *peer)
            made.append(["ip", "link", "del", outside])  # the kernel does it, but later
            _run("ip", "link", "set", outside, "master", bridge, "up")
            _run("ip", "-n", space, "addr", "add", f"{net}.{rank + 2}/24", "dev", "eth0")
            _run("ip", "-n", space, "link", "set", "eth0", "up")
            _run("ip", "-n", space, "link", "set", "lo", "up")
            limit = _rate(megabits)
            _run("ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", "eth0", "root", *limit)
            _run("tc", "qdisc", "add", "dev", outside, "root", *limit)
        inside = f'hostname {name}n${_RANK}; exec "$@"'
        script = f"exec ip netns exec {name}n${_RANK} unshare --uts sh -c '{inside}' sh \"$@\""
        yield Links(["sh", "-c", script, "sh"], name)
    finally:
        for words in reversed(made):
            with suppress(LinkError):  # another process was faster
                _run(*words)
        signal.signal(signal.SIGTERM, before)


def _network() -> str:
    """Return a network for this process, from the addresses for benchmarks (RFC 2544)."""
    return f"198.{18 + os.getpid() // 250 % 2}.{os.getpid() % 250}"


def linked(command: list[str], links: Links) -> list[str]:
    """Return an mpirun command whose ranks are behind links."""
    at = command.index(sys.executable)
    return over_tcp([*command[:at], *links.inside, *command[at:]])


def over_tcp(command: list[str]) -> list[str]:
    """Return an mpirun command whose ranks use TCP over these links alone."""
    only = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]
    only += ["--mca", "btl_tcp_if_include", f"{_network()}.0/24"]
    return [
        command[0],
        *only,
        "--pmixmca",
        "ptl_base_if_include",
        f"{_network()}.0/24",
        *command[1:],
    ]
