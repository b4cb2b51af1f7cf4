"""Two ranks on two machines, for tests: network namespaces with one wire between them, which can be cut."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


def ip(*words: str) -> None:
    ran = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert ran.returncode == 0, f"this test makes network namespaces: ip {' '.join(words)}: {ran.stderr}"


@contextmanager
def wired() -> Iterator[tuple[str, str]]:
    """Two network namespaces and a wire between them: 10.77.0.1 and 10.77.0.2."""
    names = (f"samebits{os.getpid()}a", f"samebits{os.getpid()}b")
    for name in names:
        ip("netns", "add", name)
    try:
        ip("link", "add", "wire0", "netns", names[0], "type", "veth", "peer", "name", "wire0", "netns", names[1])
        for number, name in enumerate(names):
            ip("-n", name, "address", "add", f"10.77.0.{number + 1}/24", "dev", "wire0")
            ip("-n", name, "link", "set", "wire0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            ip("netns", "delete", name)


def on_both_sides(wire: tuple[str, str], command: Sequence[str], timeout: float) -> list[subprocess.Popen[str]]:
    """The command as rank 0 and rank 1."""
    environment = os.environ | {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "10.77.0.1",
        "MASTER_PORT": "29400",
        "GLOO_SOCKET_IFNAME": "wire0",
        "SAMEBITS_TIMEOUT": str(timeout),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    return [
        subprocess.Popen(
            ["ip", "netns", "exec", name, *command],
            env=environment | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, name in enumerate(wire)
    ]


def cut(wire: tuple[str, str]) -> None:
    ip("-n", wire[0], "link", "set", "wire0", "down")
