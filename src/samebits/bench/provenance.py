"""What a record was made by: the source of the whole package, as one digest, and the versions of what it runs on."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import samebits

PACKAGE: Final = Path(samebits.__file__).parent
SOURCES: Final = frozenset((".py", ".cpp", ".h", ".yaml"))


def source_digest(package: Path = PACKAGE) -> str:
    """SHA-256 of every source file, by place and content: any change is another digest."""
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*")):
        if file.suffix in SOURCES:
            text = file.read_bytes()
            digest.update(f"{file.relative_to(package).as_posix()} {len(text)}\n".encode() + text)
    return digest.hexdigest()


def versions() -> dict[str, str | None]:
    """None: what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "samebits": samebits.__version__}
    for name in ("torch", "triton", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
