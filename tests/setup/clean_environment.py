"""An environment with samebits' wheel and only what the wheel declares, made of links to what is installed here.

No network: a package that is not declared cannot be imported, although it lies on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 300


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Environment:
    """A folder made by venv, and the wheel's own metadata."""

    folder: Path
    samebits: Distribution

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def variables(self, *extras: Path) -> dict[str, str]:
        """Nothing of this process's that could lead Python elsewhere."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SAMEBITS"))}
        return {**kept, "PYTHONPATH": os.pathsep.join(map(str, extras))}

    def run(self, *words: str, where: Path, extras: tuple[Path, ...] = ()) -> Ran:
        """`samebits ...` in a folder that holds nothing of the checkout."""
        done = subprocess.run(
            [str(self.folder / "bin" / "samebits"), *words],
            cwd=where,
            env=self.variables(*extras),
            text=True,
            capture_output=True,
            timeout=LIMIT,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def extra(self, name: str) -> Path:
        """A folder with what one extra brings, for PYTHONPATH."""
        place = self.folder / "extras" / name
        link(closure(self.samebits, frozenset({name})), place)
        return place


def build_wheel(folder: Path) -> Path:
    """As `pip wheel .` does, with the build tools installed here; compiled before, it is quick."""
    tools = Path(sys.executable).parent
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
            "--wheel-dir",
            str(folder),
            str(ROOT),
        ],
        env={**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"},
        check=True,
        timeout=3 * LIMIT,
    )
    (wheel,) = folder.glob("samebits-*.whl")
    return wheel


def make(folder: Path, wheel: Path) -> Environment:
    """The wheel installed by pip, its dependencies linked."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=LIMIT)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(folder / "bin" / "python"),
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            str(wheel),
        ],
        check=True,
        timeout=LIMIT,
    )
    (packages,) = folder.glob("lib/python*/site-packages")
    (metadata,) = packages.glob("samebits-*.dist-info")
    found = PathDistribution(metadata)
    link(closure(found, frozenset()), packages)
    return Environment(folder, found)


def closure(root: Distribution, extras: frozenset[str]) -> set[str]:
    """Names of all that a distribution asks for, and what that asks for in turn."""
    names: set[str] = set()
    waiting = list(wanted(root, extras))
    while waiting:
        need = waiting.pop()
        if need.name not in names:
            names.add(need.name)
            waiting += wanted(distribution(need.name), frozenset(need.extras))
    return names


def wanted(one: Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    for text in one.requires or ():
        need = Requirement(text)
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield need


def link(names: set[str], folder: Path) -> None:
    """Each distribution's own files and folders, by their first part."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        found = distribution(name)
        for first in {path.parts[0] for path in found.files or () if path.parts[0] not in ("..", "__pycache__")}:
            place, source = folder / first, Path(str(found.locate_file(first)))
            if not place.exists() and source.exists():
                place.symlink_to(source)
