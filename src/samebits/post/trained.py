"""The model card and the manifest of a model that a run has trained, as the commands here write them beside theirs.

Knows no trainer: what the run was is handed over as plain values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from samebits.model.huggingface import WEIGHTS
from samebits.model.json_file import to_json
from samebits.post.card import card
from samebits.post.folder import CARD, MANIFEST, SCHEMA
from samebits.post.source import Hash, weights_digest


def described(
    folder: Path, weights: Mapping[str, Tensor], facts: Mapping[str, Any], title: str, said: str, tags: Sequence[str]
) -> dict[str, bytes]:
    """Both files by name, for a folder that has its weights already. `facts`: command, settings and sources."""
    with (folder / WEIGHTS).open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    manifest = {
        "schema": SCHEMA,
        **facts,
        "digest": weights_digest(weights),
        "files": {WEIGHTS: {"bytes": (folder / WEIGHTS).stat().st_size, "sha256": digest}},
        "tensors": {name: {"sha256": _digest(weights[name])} for name in sorted(weights)},
    }
    return {CARD: card(title, said, manifest, tags).encode(), MANIFEST: to_json(manifest)}


def _digest(weight: Tensor) -> str:
    whole = Hash()
    whole.add(weight.detach())
    return whole.hex
