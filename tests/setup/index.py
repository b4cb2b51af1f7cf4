"""Which files a package index offers for a pinned version, and whether one is a wheel that a fresh machine can install.

Reads the index that pip is told to use, by its pages alone: no package is downloaded or installed."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urldefrag, urljoin

import httpx
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

# Debian 12, the oldest that is set up by tests; a wheel for an older glibc runs on it.
GLIBC = 36
PAGE = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
SECONDS = 30


@dataclass(frozen=True)
class Platform:
    machine: str
    python: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.machine}, Python {'.'.join(map(str, self.python))}"


@cache
def tags(platform: Platform) -> frozenset[Tag]:
    """What pip would take there."""
    names = [f"manylinux_2_{minor}_{platform.machine}" for minor in range(GLIBC, 4, -1)]
    names += [f"manylinux{year}_{platform.machine}" for year in (2014, 2010, 1)]
    interpreter = f"cp{''.join(map(str, platform.python))}"
    return frozenset(
        [
            *cpython_tags(platform.python, abis=[interpreter], platforms=names),
            *compatible_tags(platform.python, interpreter, names),
        ]
    )


PLATFORMS = tuple(Platform(machine, python) for machine in ("x86_64", "aarch64") for python in ((3, 11), (3, 12)))


@dataclass(frozen=True)
class File:
    name: str
    python: str = ""
    """The versions it says it is for."""
    address: str = ""
    """Where it can be had."""


def pins(path: Path) -> dict[str, str]:
    """Name to version; a line that pins nothing is an error."""
    lines = [line.partition("#")[0].strip() for line in path.read_text().splitlines()]
    pairs = [re.fullmatch(r"([\w.-]+)==([\w.!+]+)", line) for line in lines if line]
    assert all(pairs), f"{path}: allowed: NAME==VERSION"
    return {pair[1]: pair[2] for pair in pairs if pair}


def index() -> str:
    """What pip is told, or its default."""
    told = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    return os.environ.get("PIP_INDEX_URL") or told.stdout.strip() or "https://pypi.org/simple"


@cache
def client() -> httpx.Client:
    """Few connections for many questions."""
    trusted = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    return httpx.Client(verify=trusted, timeout=SECONDS, follow_redirects=True, limits=httpx.Limits(max_connections=8))


def files(names: Iterable[str]) -> dict[str, list[File]]:
    """Every file of each package; an httpx.TransportError where the index cannot be reached."""
    base = index().rstrip("/")

    def page(name: str) -> list[File]:
        answer = client().get(f"{base}/{canonicalize_name(name)}/", headers={"Accept": PAGE})
        if answer.status_code == httpx.codes.NOT_FOUND:
            return []
        answer.raise_for_status()
        return listed(answer.text, answer.headers["Content-Type"].partition(";")[0], str(answer.url))

    names = list(names)
    with ThreadPoolExecutor(8) as pool:
        return dict(zip(names, pool.map(page, names), strict=True))


class Anchors(HTMLParser):
    """The links of an older page: the text is the file's name."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.found: list[File] = []
        self.base = address
        self.link: dict[str, str | None] | None = None

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.link = dict(attributes) if tag == "a" else None

    def handle_data(self, data: str) -> None:
        if self.link is not None and data.strip():
            address = urljoin(self.base, urldefrag(self.link["href"] or "").url)
            self.found.append(File(data.strip(), self.link.get("data-requires-python") or "", address))

    def handle_endtag(self, tag: str) -> None:
        self.link = None


def listed(text: str, kind: str, address: str) -> list[File]:
    """The files on a page, which an index gives in one of two forms."""
    if kind.endswith("json"):
        return [
            File(each["filename"], each.get("requires-python") or "", urljoin(address, each["url"]))
            for each in json.loads(text)["files"]
        ]
    page = Anchors(address)
    page.feed(text)
    return page.found


def wheel(offered: Iterable[File], version: str, platform: Platform) -> File | None:
    """One that a platform can install, or None."""
    python = ".".join(map(str, platform.python))
    for file in offered:
        try:
            _, found, _, names = parse_wheel_filename(file.name)
        except InvalidWheelFilename:
            continue
        if found == Version(version) and names & tags(platform) and SpecifierSet(file.python).contains(f"{python}.99"):
            return file
    return None


def without_wheel(wanted: dict[str, str], offered: dict[str, list[File]], platform: Platform) -> list[str]:
    """The pins that a fresh machine would have to build from source, or does not find."""
    return [f"{name}=={version}" for name, version in wanted.items() if wheel(offered[name], version, platform) is None]
