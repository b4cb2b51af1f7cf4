"""What the wheels of pinned versions ask of each other, read from the wheels in the index, and where two pins disagree.

A wheel is a zip file with the list of its members at the end: a read or two give its metadata, whatever its size."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.parser import HeaderParser
from zipfile import ZipFile

import httpx
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.setup.index import File, Platform, client, wheel

TAIL = 1 << 18


class Remote(io.RawIOBase):
    """A file in the index, read in ranges; its end is read once and kept."""

    def __init__(self, address: str) -> None:
        self.address, self.place = address, 0
        self.tail, extent = self._range(f"-{TAIL}")
        self.length = int(extent.rpartition("/")[2])

    def _range(self, asked: str) -> tuple[bytes, str]:
        answer = client().get(self.address, headers={"Range": f"bytes={asked}"}).raise_for_status()
        if answer.status_code != httpx.codes.PARTIAL_CONTENT:
            raise ValueError(f"{self.address} is not served in ranges")
        return answer.content, answer.headers["Content-Range"]

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.place = {io.SEEK_SET: 0, io.SEEK_CUR: self.place, io.SEEK_END: self.length}[whence] + offset
        return self.place

    def read(self, size: int = -1) -> bytes:
        end = self.length if size < 0 else min(self.place + size, self.length)
        kept = self.length - len(self.tail)
        if self.place >= kept:
            data = self.tail[self.place - kept : end - kept]
        else:
            data, _ = self._range(f"{self.place}-{end - 1}")
        self.place += len(data)
        return data


def required_by(file: File) -> list[str]:
    """What a wheel in the index asks for, line by line."""
    with ZipFile(Remote(file.address)) as members:
        path = next(name for name in members.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        headers = HeaderParser().parsestr(members.read(path).decode())
    return headers.get_all("Requires-Dist", [])


def asked(wanted: dict[str, str], offered: dict[str, list[File]], platform: Platform) -> dict[str, list[Requirement]]:
    """By pin, what it asks for on a platform, extras apart."""
    chosen = {name: wheel(offered[name], version, platform) for name, version in wanted.items()}
    found = {name: file for name, file in chosen.items() if file is not None}
    # Threads wait for the network alone: Python 3.11's parser, which reads a marker's texts, is not safe in several.
    with ThreadPoolExecutor(8) as pool:
        all_of = dict(zip(found, pool.map(required_by, found.values()), strict=True))
    return {name: list(_here(map(Requirement, lines), platform)) for name, lines in all_of.items()}


def _here(requirements: Iterable[Requirement], platform: Platform) -> Iterator[Requirement]:
    python = ".".join(map(str, platform.python))
    environment = {
        "platform_machine": platform.machine,
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "python_version": python,
        "python_full_version": f"{python}.0",
        "extra": "",
    }
    for requirement in requirements:
        if requirement.marker is None or requirement.marker.evaluate(environment):
            yield requirement


def disagreements(wanted: dict[str, str], asked_for: dict[str, list[Requirement]]) -> list[str]:
    """Where a pin is not what another pin asks for: pip then refuses to install either."""
    pinned = {canonicalize_name(name): version for name, version in wanted.items()}
    return [
        f"{name}=={wanted[name]} asks for {requirement.name}{requirement.specifier}, pinned is {pinned[other]}"
        for name, requirements in asked_for.items()
        for requirement in requirements
        if (other := canonicalize_name(requirement.name)) in pinned
        and not requirement.specifier.contains(pinned[other], prereleases=True)
    ]


def unpinned(wanted: dict[str, str], asked_for: dict[str, list[Requirement]]) -> set[str]:
    """What pip would choose by itself, from day to day another version."""
    pinned = {canonicalize_name(name) for name in wanted}
    return {canonicalize_name(each.name) for requirements in asked_for.values() for each in requirements} - pinned
