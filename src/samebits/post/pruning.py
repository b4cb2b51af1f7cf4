"""A model pruned into a folder: the linear weights of its layers thinned out, embedding, head and norms left alone.

The result is in Hugging Face's layout, in the dtype asked for. What flows in is that of the whole model, before any of
its weights is pruned. Knows no screen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from samebits.model.loading import DTYPES, Loaded
from samebits.model.weights import EMBEDDING, HEAD
from samebits.post.card import card
from samebits.post.folder import Tell, new_folder, silent
from samebits.post.layout import SHARD_BYTES, Entry, Layout, safetensors_layout
from samebits.post.source import digest_of, raw, weights_digest
from samebits.post.sparsity import METHODS, PATTERN, pruned
from samebits.post.threads import in_threads
from samebits.post.words import put_words


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What is to be pruned, and how. `squares` are by weight, for WANDA."""

    source: str
    loaded: Loaded
    method: str = "wanda"
    sparsity: float = 0.5
    pattern: bool = False
    """Two of every four neighbours."""
    dtype: str = "float32"
    squares: Mapping[str, Tensor] | None = None
    calibration: Mapping[str, Any] | None = None
    """What the squares were taken from, for the record."""

    def __post_init__(self) -> None:
        if self.method not in METHODS or self.dtype not in DTYPES:
            raise ValueError(
                f"prune: method is {self.method!r}, dtype {self.dtype!r}; allowed: {', '.join(METHODS)};"
                f" {', '.join(DTYPES)}"
            )
        if not 0.0 <= self.sparsity <= 1.0 or (self.pattern and self.sparsity != 0.5):
            raise ValueError(f"prune: sparsity is {self.sparsity}; allowed: 0 to 1, and 0.5 for 2:4")
        for name, weight in self.loaded.model.weights.items():
            if self.pattern and self.thinned(name) and weight.shape[1] % PATTERN[1]:
                raise ValueError(f"prune: {name} has rows of {weight.shape[1]}; allowed: a multiple of {PATTERN[1]}")

    def thinned(self, name: str) -> bool:
        """Whether weights of this name are pruned."""
        return self.loaded.model.weights[name].dim() == 2 and name not in (EMBEDDING, HEAD)

    def entries(self) -> dict[str, Entry]:
        dtype = DTYPES[self.dtype]
        return {name: Entry(dtype=dtype, shape=tuple(each.shape)) for name, each in self.loaded.model.weights.items()}

    def layout(self, shard_bytes: int = SHARD_BYTES) -> Layout:
        return safetensors_layout(self.entries(), shard_bytes)

    def settings(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "sparsity": self.sparsity,
            "pattern": f"{PATTERN[0]}:{PATTERN[1]}" if self.pattern else None,
            "dtype": self.dtype,
            "calibration": self.calibration,
        }


def prune(job: Job, out: Path, shard_bytes: int = SHARD_BYTES, tell: Tell = silent) -> dict[str, Any]:
    """Writes the pruned model to `out`; what it is, as its manifest says."""
    if job.method == "wanda" and job.squares is None:
        raise ValueError("prune: wanda needs the squares of calibration text, there are none")
    weights = job.loaded.model.weights
    layout, entries, settings, taken = job.layout(shard_bytes), job.entries(), job.settings(), weights_digest(weights)
    with new_folder(out, {"command": "prune", **settings, "source": [job.source, taken]}, layout) as folder:
        tell(sum(layout.regions[name].size for name in folder.finished))

        def work(name: str) -> None:
            found = thin(job, name)
            with folder.writing(name) as region:
                region.facts["zeros"] = int((found == 0).sum())
                region.write(raw(found))
            tell(layout.regions[name].size)

        in_threads(work, folder.missing())
        facts = {
            "command": "prune",
            "settings": settings,
            "digest": digest_of(
                {name: entry.described for name, entry in entries.items()},
                {name: each["sha256"] for name, each in folder.finished.items()},
            ),
            "sources": {job.source: {"digest": taken, "tensors": len(weights)}},
            "zeros": sum(folder.finished[name]["zeros"] for name in weights if job.thinned(name)),
            "pruned_weights": sum(weight.numel() for name, weight in weights.items() if job.thinned(name)),
        }
        put_words(job.source, job.loaded.tokenizer, folder)
        config = {**job.loaded.model.config.to_huggingface(), "dtype": job.dtype}
        folder.finish(config, facts, partial(_card, job))
        return facts


def thin(job: Job, name: str) -> Tensor:
    """One weight as it will be stored. It is stored first and pruned then: what rounds to zero is counted."""
    weight = job.loaded.model.weights[name].detach().to(DTYPES[job.dtype])
    if not bool(weight.isfinite().all()):
        raise ValueError(f"prune: {name} has numbers that are not finite in {job.dtype}; allowed: finite ones")
    if not job.thinned(name):
        return weight
    squares = None
    if job.method == "wanda" and job.squares is not None:
        squares = job.squares[name]
    return pruned(weight, sparsity=job.sparsity, squares=squares, pattern=job.pattern)


def _card(job: Job, manifest: Mapping[str, Any]) -> str:
    pattern = ", two of every four neighbours" if job.pattern else ""
    said = (
        f"The model `{job.source}` with {manifest['zeros']:,} of {manifest['pruned_weights']:,} linear weights set to"
        f" zero by {job.method}{pattern}."
    )
    return card("Pruned model", said, manifest, ["pruned"])
