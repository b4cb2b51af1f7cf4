"""A model quantised into a folder: a .gguf file, or safetensors as compressed-tensors packs them.

Linear weights get the format asked for; in a .gguf file embedding and head get Q8_0, beside safetensors they and the
norms keep 16 bits. Weights are quantised a few rows at a time. Knows neither a screen nor a perplexity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from samebits.model.loading import Loaded
from samebits.model.packed import FORMAT
from samebits.model.weights import EMBEDDING, HEAD
from samebits.post.card import card
from samebits.post.feedback import Feedback, round_with_feedback
from samebits.post.folder import NewFolder, Tell, new_folder, silent
from samebits.post.gguf_layout import gguf_layout, in_gguf_order
from samebits.post.grouped import FORMATS, Format, Grouped, packed_format, round_to_nearest, search
from samebits.post.grouped_bytes import gguf_bytes, packed_tensors
from samebits.post.layout import SHARD_BYTES, Entry, Layout, safetensors_layout
from samebits.post.source import PIECE, digest_of, raw, weights_digest
from samebits.post.threads import in_threads
from samebits.post.words import put_words

METHODS: Final = ("rtn", "search", "gptq")
OUTPUTS: Final = (*FORMATS, "int4")
GROUPS: Final = (32, 64, 128)
_HOW: Final = {
    "rtn": "rounding to nearest",
    "search": "a search for the scale with the least weighted error",
    "gptq": "rounding with feedback, each column taking on what the ones before it lost",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What is to be quantised, and how. `importance` is by weight, for the search; `feedback` likewise, for gptq, where
    what has none is searched."""

    source: str
    loaded: Loaded
    output: str
    """q4_0, q4_1, q8_0 (a .gguf file), or int4 (safetensors)."""
    method: str = "search"
    group: int = 32
    """Of int4 alone."""
    importance: Mapping[str, Tensor] | None = None
    feedback: Mapping[str, Feedback] | None = None
    calibration: Mapping[str, Any] | None = None
    """What importance and feedback were taken from, for the record."""

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("format", self.output, OUTPUTS),
            ("method", self.method, METHODS),
            ("group", self.group, GROUPS),
        ):
            if value not in allowed:
                raise ValueError(f"quantize: {name} is {value!r}; allowed: {', '.join(map(str, allowed))}")
        for name, weight in self.loaded.model.weights.items():
            format = self.format(name)
            if format is not None and weight.shape[1] % format.group:
                raise ValueError(
                    f"quantize: {name} has rows of {weight.shape[1]}; allowed: a multiple of {format.group}"
                )

    @property
    def gguf(self) -> bool:
        return self.output in FORMATS

    def format(self, name: str) -> Format | None:
        """How a weight is stored; None: as it is."""
        if self.loaded.model.weights[name].dim() == 1:
            return None
        if name in (EMBEDDING, HEAD):
            return FORMATS["q8_0"] if self.gguf else None
        return FORMATS[self.output] if self.gguf else packed_format(self.group)

    def layout(self, shard_bytes: int = SHARD_BYTES) -> Layout:
        weights = {name: tuple(weight.shape) for name, weight in self.loaded.model.weights.items()}
        if self.gguf:
            kinds = {name: "f32" if (each := self.format(name)) is None else each.name for name in weights}
            return gguf_layout(self.loaded.model.config, self.loaded.tokenizer, weights, kinds, self.output)
        return safetensors_layout(_packed_entries(self), shard_bytes)

    def settings(self) -> dict[str, Any]:
        told = {"format": self.output, "method": self.method}
        return told | ({} if self.gguf else {"group": self.group}) | {"calibration": self.calibration}


def quantize(job: Job, out: Path, shard_bytes: int = SHARD_BYTES, tell: Tell = silent) -> dict[str, Any]:
    """Writes the quantised model to `out`; what it is, as its manifest says."""
    weights = job.loaded.model.weights
    layout = job.layout(shard_bytes)
    taken = weights_digest(weights)
    settings = job.settings()
    with new_folder(out, {"command": "quantize", **settings, "source": [job.source, taken]}, layout) as folder:
        missing = {*folder.missing()}
        tell(sum(layout.regions[name].size for name in folder.finished))

        def work(name: str) -> None:
            try:
                parts = _parts(job, name)
            except ValueError as error:
                raise ValueError(f"quantize: {name}: {error}") from None
            for part, data in parts.items():
                if part in missing:
                    _write(folder, part, data)
                    tell(layout.regions[part].size)

        in_threads(work, [name for name in weights if any(part in missing for part in _part_names(job, name))])
        facts = {
            "command": "quantize",
            "settings": settings,
            "digest": digest_of(_described(job), {name: each["sha256"] for name, each in folder.finished.items()}),
            "sources": {job.source: {"digest": taken, "tensors": len(weights)}},
        }
        if not job.gguf:
            put_words(job.source, job.loaded.tokenizer, folder)
        folder.finish(None if job.gguf else _config(job), facts, partial(_card, job))
        return facts


def quantized(job: Job, name: str) -> Tensor | Grouped:
    """One weight as it will be stored: numbers, or groups."""
    weight, format = job.loaded.model.weights[name].detach(), job.format(name)
    if format is None:
        return _plain(weight.float() if job.gguf else weight.bfloat16())
    rows = max(1, PIECE // weight.shape[1])
    pieces = [_quantized_rows(job, name, piece, format) for piece in torch.split(weight, rows)]
    minimum = (
        None if pieces[0].minimum is None else torch.cat([each.minimum for each in pieces if each.minimum is not None])
    )
    found = Grouped(
        format=format,
        codes=torch.cat([each.codes for each in pieces]),
        scale=torch.cat([each.scale for each in pieces]),
        minimum=minimum,
    )
    feedback = (job.feedback or {}).get(name)
    return found if feedback is None else round_with_feedback(weight, found, feedback)


def _plain(stored: Tensor) -> Tensor:
    """A weight that keeps 16 or 32 bits; of a norm or an embedding, too, nothing infinite is stored."""
    if not bool(stored.isfinite().all()):
        kind = str(stored.dtype).removeprefix("torch.")
        raise ValueError(f"has numbers that are not finite in {kind}; allowed: finite ones")
    return stored


def _quantized_rows(job: Job, name: str, rows: Tensor, format: Format) -> Grouped:
    feedback = (job.feedback or {}).get(name)
    importance = (job.importance or {}).get(name) if feedback is None else feedback.importance
    if job.method == "rtn" or importance is None:
        return round_to_nearest(rows, format)
    return search(rows, format, importance)


def _part_names(job: Job, name: str) -> list[str]:
    if job.gguf or job.format(name) is None:
        return [name]
    return [f"{name.removesuffix('.weight')}.{part}" for part in ("weight_packed", "weight_scale", "weight_shape")]


def _parts(job: Job, name: str) -> dict[str, bytes | memoryview]:
    """The bytes of each region that a weight fills."""
    found = quantized(job, name)
    if isinstance(found, Tensor):
        return {name: raw(found)}
    if job.gguf:
        order = in_gguf_order(torch.arange(len(found.codes)), name, job.loaded.model.config)
        return {name: gguf_bytes(found.rows(order))}
    return {f"{name.removesuffix('.weight')}.{part}": raw(each) for part, each in packed_tensors(found).items()}


def _write(folder: NewFolder, name: str, data: bytes | memoryview) -> None:
    with folder.writing(name) as region:
        region.write(data)
        # Blocks of a .gguf file end where the next tensor may begin.
        region.write(bytes(folder.layout.regions[name].size - len(data)))


def _packed_entries(job: Job) -> dict[str, Entry]:
    found = {}
    for name, weight in job.loaded.model.weights.items():
        shape, format = tuple(weight.shape), job.format(name)
        if format is None:
            found[name] = Entry(dtype=torch.bfloat16, shape=shape)
            continue
        kinds: Sequence[tuple[torch.dtype, tuple[int, ...]]] = (
            (torch.int32, (shape[0], shape[1] // 8)),
            (format.store, (shape[0], shape[1] // format.group)),
            (torch.int64, (2,)),
        )
        for part, (dtype, sizes) in zip(_part_names(job, name), kinds, strict=True):
            found[part] = Entry(dtype=dtype, shape=sizes)
    return found


def _described(job: Job) -> dict[str, tuple[str, Sequence[int]]]:
    if not job.gguf:
        return {name: entry.described for name, entry in _packed_entries(job).items()}
    weights = job.loaded.model.weights
    return {name: ("f32" if (f := job.format(name)) is None else f.name, tuple(w.shape)) for name, w in weights.items()}


def _config(job: Job) -> dict[str, Any]:
    """config.json as compressed-tensors, and with it transformers and vLLM, read it."""
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": job.group}
    told = {
        "quant_method": "compressed-tensors",
        "format": FORMAT,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }
    return {**job.loaded.model.config.to_huggingface(), "dtype": "bfloat16", "quantization_config": told}


def _card(job: Job, manifest: Mapping[str, Any]) -> str:
    said = f"The model `{job.source}` with linear weights in `{job.output}`, by {_HOW[job.method]}."
    return card("Quantised model", said, manifest, ["quantized", job.output])
