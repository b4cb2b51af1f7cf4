"""Where the ranks of a run meet: the address that a launcher's environment names, and the store that listens there.

A store at a loopback address listens there and nowhere else, and so do the messages of ranks that meet at one. Knows
no tensor."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from torch.distributed import TCPStore  # type: ignore[attr-defined]

LOOPBACK: Final = "127.0.0.1"
LOOPBACK_INTERFACE: Final = "lo"
# Which interface torch's transports listen on; without these, that of the machine's name.
INTERFACE_VARIABLES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
NEEDED: Final = ("RANK", "MASTER_ADDR", "MASTER_PORT")
MOST_RANKS: Final = 2**20
MOST_PORT: Final = 2**16 - 1
_BACKLOG: Final = 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """Who this process is among how many, and where they meet."""

    rank: int
    size: int
    address: str
    port: int
    serves: bool
    """Whether it opens the store for all: rank 0, where the launcher has none."""

    @classmethod
    def described(cls, environment: Mapping[str, str]) -> Meeting | None:
        """As a launcher sets it; None where nothing is set."""
        if "WORLD_SIZE" not in environment:
            return None
        if missing := [name for name in NEEDED if name not in environment]:
            raise ValueError(
                f"ranks: WORLD_SIZE is set, {', '.join(missing)} not; allowed: what a launcher sets, or none"
            )
        size = _number(environment, "WORLD_SIZE", 1, MOST_RANKS)
        rank = _number(environment, "RANK", 0, size - 1)
        return cls(
            rank=rank,
            size=size,
            address=environment["MASTER_ADDR"],
            port=_number(environment, "MASTER_PORT", 0, MOST_PORT),
            serves=rank == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        )

    def open_store(self, seconds: float) -> Any:
        return open_store(self.address, self.port, seconds, serves=self.serves)

    @property
    def where(self) -> str:
        return f"{self.address}:{self.port}"


def _number(environment: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = environment[name]
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise ValueError(f"ranks: {name} is {text!r:.40}; allowed: a whole number, {least} to {most}")
    return int(text)


def is_loopback(host: str) -> bool:
    """Whether a host can only mean this machine, by what is written: no name but localhost is looked up."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def stay_on_loopback(address: str) -> None:
    """Ranks that meet at a loopback address are all on this machine: their messages too listen nowhere else."""
    if is_loopback(address):
        for name in INTERFACE_VARIABLES:
            os.environ.setdefault(name, LOOPBACK_INTERFACE)


def open_store(host: str, port: int, seconds: float, *, serves: bool) -> Any:
    """A store at an address: the one that serves it, or one that asks it. Port 0: any that is free."""
    options: dict[str, Any] = {"wait_for_workers": False, "multi_tenant": True, "timeout": timedelta(seconds=seconds)}
    if serves and (own := _listening(host, port)) is not None:
        return TCPStore(host, own.getsockname()[1], is_master=True, master_listen_fd=own.detach(), **options)
    return TCPStore(host, port, is_master=serves, **options)


def _listening(host: str, port: int) -> socket.socket | None:
    """A socket that listens at this address alone; None where that is not one of this machine's, or only a name of it:
    others may know the name by another address."""
    try:
        address = ipaddress.ip_address(LOOPBACK if host == "localhost" else host)
    except ValueError:
        address = None
    family = socket.AF_INET6 if address is not None and address.version == 6 else socket.AF_INET
    own = socket.socket(family, socket.SOCK_STREAM)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        own.bind((str(address) if address is not None else "", port))
        own.listen(_BACKLOG)
    except OSError as error:
        own.close()
        if error.errno == errno.EADDRINUSE:
            raise ValueError(
                f"ranks: port {port} of {host} is in use by another program; allowed: a free one, in MASTER_PORT"
                f" (`ss -ltnp 'sport = :{port}'` shows whose it is)"
            ) from error
        if error.errno == errno.EADDRNOTAVAIL and port:
            # Ranks may know this machine by an address that is somebody else's on the way here.
            return None
        message = f"cannot listen at {host}, port {port}: {error.strerror}; allowed: an address of this machine"
        raise ValueError(f"ranks: {message}") from error
    return own
