"""The model card beside a new model: how it was made, from what, and the digests by which each part is known again.

Markdown with Hugging Face's front matter. Knows no command."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import samebits


def front_matter(tags: Sequence[str], bases: Sequence[str]) -> str:
    """What the hub reads; JSON strings are YAML strings."""
    lines = ["---", "library_name: transformers", "tags:", *(f"- {tag}" for tag in tags)]
    if bases:
        lines += ["base_model:", *(f"- {json.dumps(base)}" for base in bases)]
    return "\n".join([*lines, "---"])


def card(title: str, said: str, manifest: Mapping[str, Any], tags: Sequence[str]) -> str:
    """The page: `said` in words, then settings, sources and digests from the manifest."""
    sources: Mapping[str, Mapping[str, Any]] = manifest["sources"]
    parts = [
        front_matter(["samebits", *tags], list(sources)),
        f"# {title}",
        said,
        f"Made by `samebits {manifest['command']}` (samebits {samebits.__version__}).",
        "## Digests",
        "Of the tensors of a model: names, dtypes, shapes and bytes, however files cut or order them. Of a file: its"
        " bytes, as `sha256sum` prints them. `samebits.json` has the digest of every tensor.",
        _table([("this model", manifest["digest"]), *((name, each["digest"]) for name, each in sources.items())]),
        _table([(name, f"sha256:{each['sha256']}") for name, each in manifest["files"].items()]),
        "## Settings",
        "```json\n" + json.dumps(manifest["settings"], indent=2, ensure_ascii=False) + "\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _table(rows: Sequence[tuple[str, str]]) -> str:
    def cell(text: str) -> str:
        return text.replace("|", "\\|").replace("\n", " ")

    return "\n".join(["| what | digest |", "|---|---|", *(f"| {cell(name)} | `{value}` |" for name, value in rows)])
