"""Under which names a server may be asked: a page of another site can make its own name mean this machine.

That is DNS rebinding; the browser then takes the server for a part of that site, and only `Host` tells the truth."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from functools import lru_cache
from typing import Final

LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]@/\s]+))(?::[0-9]{1,5})?")


def name_of(header: str) -> str | None:
    """The name or address in a Host header, without its port; None where it is neither."""
    found = _HOST.fullmatch(header)
    return None if found is None else _plain(found[1] or found[2])


def is_allowed(header: str, bound: str | None, named: Collection[str]) -> bool:
    """By the names of this machine, the address at which the connection came in, and those that were allowed."""
    name = name_of(header)
    if name is None:
        return False
    if name in LOCAL or name.endswith(".localhost") or (bound is not None and name == _plain(bound)):
        return True
    return any(name == _plain(each) for each in named)


@lru_cache(1024)
def _plain(name: str) -> str:
    """One spelling for each name and address."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name.lower().removesuffix(".")
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
