"""Slow links of the benchmarks, which are removed when the block ends."""

import os
import subprocess

import pytest

from benchmarks import links


def made():
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    cards = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True)
    words = [*spaces.stdout.split(), *(line.split()[1] for line in cards.stdout.splitlines())]
    return [word for word in words if word.startswith(f"cv{os.getpid() % 100000}")]


@pytest.mark.skipif(bool(links.refusal()), reason=f"no slow links: {links.refusal()}")
def test_links_are_removed():
    with pytest.raises(KeyboardInterrupt), links.slow_links(2, 100) as made_links:
        inside = made_links.inside
        script = inside[2]
        assert len(made()) == 5
        done = subprocess.run(
            [*inside, "cat", "/proc/sys/kernel/hostname"],
            capture_output=True,
            text=True,
            check=True,
            env={"PMIX_RANK": "1", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )
        assert done.stdout.strip().endswith("n1") and "ip netns exec" in script
        made_links.limit(1, 10)
        space = ["ip", "netns", "exec", f"{made_links.name}n1"]
        shown = subprocess.run(
            [*space, "tc", "qdisc", "show", "dev", "eth0"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "rate 10Mbit" in shown.stdout
        raise KeyboardInterrupt
    assert made() == []


def test_a_machine_without_links_says_why(monkeypatch):
    monkeypatch.setattr(links.os, "geteuid", lambda: 1000)
    assert links.refusal() == "it needs root"
    monkeypatch.setattr(links.os, "geteuid", lambda: 0)
    monkeypatch.setattr(links.shutil, "which", lambda name: None if name == "tc" else name)
    assert links.refusal() == "there is no tc"
    monkeypatch.setattr(links.shutil, "which", lambda name: name)

    def refuse(*words):
        raise links.LinkError("ip link add: Operation not permitted")

    monkeypatch.setattr(links, "_run", refuse)
    assert links.refusal() == "ip link add: Operation not permitted"


def test_mpirun_uses_tcp_over_the_links_alone():
    command = links.over_tcp(["mpirun", "-n", "2", "python"])
    assert command[0] == "mpirun" and command[-3:] == ["-n", "2", "python"]
    assert command[command.index("btl_tcp_if_include") + 1] == f"{links._network()}.0/24"
