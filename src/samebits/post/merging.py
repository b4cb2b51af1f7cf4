"""A merge from a recipe to a folder: each tensor read, merged and written in pieces, so that memory stays small.

What a run computes is a function of the recipe, the seed and the tensors. Knows neither YAML nor a screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samebits.model.tokenizer_copy import tokenizer_files
from samebits.post.card import card
from samebits.post.folder import RegionWriter, Tell, new_folder, silent
from samebits.post.layout import SHARD_BYTES, Entry, Layout, safetensors_layout
from samebits.post.merge_methods import (
    Combining,
    Cosine,
    Drop,
    Trim,
    combine,
    kept,
    linear,
    magnitudes,
    slerp,
    slerp_factors,
    threshold,
)
from samebits.post.merge_plan import Plan, Step, described, opened_models, plan_merge
from samebits.post.merge_recipe import Recipe
from samebits.post.source import Hash, Source, digest_of, pieces, raw
from samebits.post.threads import in_threads


def merge(
    recipe: Recipe, out: Path, seed: int = 0, shard_bytes: int = SHARD_BYTES, tell: Tell = silent
) -> dict[str, Any]:
    """Writes the merged model to `out`; what it is, as its manifest says."""
    with ExitStack() as stack:
        sources = opened_models(recipe, stack)
        plan = plan_merge(recipe, sources)
        layout = safetensors_layout(plan.entries, shard_bytes)
        settings = settings_of(recipe, seed)
        # Read before the tensors, so that a file that cannot be copied costs no time.
        words = list(tokenizer_files(plan.tokenizer.folder))
        same = {"command": "merge", **settings, "sources": {name: each.identity() for name, each in sources.items()}}
        with new_folder(out, same, layout) as folder:
            tell(sum(layout.regions[name].size for name in folder.finished))
            missing = {*folder.missing()}

            def work(step: Step) -> None:
                with folder.writing(step.name) as region:
                    _merge_tensor(recipe.method, step, sources, seed, region)
                tell(step.entry.size)

            in_threads(work, [step for step in plan.steps if step.name in missing])
            for name, data in words:
                folder.put(name, data)
            facts = {"command": "merge", "settings": settings, **_digests(plan, sources, folder.finished)}
            folder.finish(plan.config, facts, partial(_card, recipe))
            return facts


def planned(recipe: Recipe, seed: int = 0, shard_bytes: int = SHARD_BYTES) -> tuple[dict[str, Any], Layout]:
    """What `merge` would do, as plain values; no number is read."""
    with ExitStack() as stack:
        plan = plan_merge(recipe, opened_models(recipe, stack))
        layout = safetensors_layout(plan.entries, shard_bytes)
        told = {
            "settings": settings_of(recipe, seed),
            "tokenizer": str(plan.tokenizer.folder),
            "files": layout.sizes,
            "tensors": [described(step) for step in plan.steps],
        }
        return told, layout


def settings_of(recipe: Recipe, seed: int) -> dict[str, Any]:
    return {"recipe": recipe.document, "seed": seed}


def _card(recipe: Recipe, manifest: Mapping[str, Any]) -> str:
    said = f"A merge of {len(recipe.models)} models by the method `{recipe.method}`."
    return card("Merged model", said, manifest, ["merge", "mergekit"])


def _digests(plan: Plan, sources: Mapping[str, Source], finished: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Of the result, and of what was read of each source."""
    read: dict[str, dict[str, str]] = {name: {} for name in sources}
    for facts in finished.values():
        for model, name, digest in facts["inputs"]:
            read[model][name] = digest
    return {
        "digest": digest_of(_described(plan.entries), {name: each["sha256"] for name, each in finished.items()}),
        "sources": {
            model: {
                "digest": digest_of(_described(source.entries, read[model]), read[model]),
                "tensors": len(read[model]),
            }
            for model, source in sources.items()
        },
    }


def _described(
    entries: Mapping[str, Entry], names: Iterable[str] | None = None
) -> dict[str, tuple[str, Sequence[int]]]:
    return {name: entries[name].described for name in (entries if names is None else names)}


def _merge_tensor(method: str, step: Step, sources: Mapping[str, Source], seed: int, region: RegionWriter) -> None:
    """One tensor, piece by piece."""

    def read(number: int, start: int, stop: int) -> Tensor:
        model, name = step.inputs[number]
        return sources[model].read(name, start, stop)

    def stored(number: int, start: int, stop: int) -> Tensor:
        return cast(number, read(number, start, stop))

    def cast(number: int, piece: Tensor) -> Tensor:
        return _finite(piece.to(step.dtype), "{1} of {0}".format(*step.inputs[number]))

    merged = _METHODS[method](step, stored, seed)
    hashes = [Hash() for _ in step.inputs]
    for start, stop in pieces(step.entry.count):
        inputs = [read(number, start, stop) for number in range(len(step.inputs))]
        for piece, each in zip(inputs, hashes, strict=True):
            each.add(piece)
        made = merged([cast(number, piece) for number, piece in enumerate(inputs)])
        region.write(raw(_finite(made.to(step.entry.dtype), f"the merged {step.name}")))
    region.facts["inputs"] = [[*named, each.hex] for named, each in zip(step.inputs, hashes, strict=True)]


def _finite(piece: Tensor, said: str) -> Tensor:
    """The piece; of numbers that are not finite no norm, no rank and no sum says anything."""
    if not bool(piece.isfinite().all()):
        kind = str(piece.dtype).removeprefix("torch.")
        raise ValueError(f"merge: {said} has numbers that are not finite in {kind}; allowed: finite ones")
    return piece


Read = Callable[[int, int, int], Tensor]
Merged = Callable[[list[Tensor]], Tensor]


def _linear(step: Step, read: Read, seed: int) -> Merged:
    weights = [each["weight"] for each in step.each]
    return lambda inputs: linear(inputs, weights, step.shared["normalize"])


def _slerp(step: Step, read: Read, seed: int) -> Merged:
    first, second = step.base_input, 1 - step.base_input
    angle = Cosine()
    for start, stop in pieces(step.entry.count):
        angle.add(read(first, start, stop), read(second, start, stop))
    try:
        factors = slerp_factors(angle.value(), step.shared["t"])
    except ValueError as error:
        raise ValueError(f"{step.name}: {error}") from None
    return lambda inputs: slerp(inputs[first], inputs[second], factors)


def _task(step: Step, read: Read, seed: int, *, trims: bool = False, drops: bool = False, elects: bool) -> Merged:
    """Differences to the base, each thinned out in its own way, put together."""
    others = [number for number in range(len(step.inputs)) if number != step.base]
    if not others:
        return lambda inputs: inputs[step.base_input]
    thin: dict[int, Callable[[Tensor], Tensor]] = {}
    for number in others:
        density = step.each[number].get("density", 1.0)
        if trims and density < 1:
            thin[number] = _trim(step, read, number, density)
        elif drops and density < 1:
            thin[number] = Drop(seed, f"{number} {step.name}", density, step.shared["rescale"])
    weights = [step.each[number]["weight"] for number in others]
    how = Combining(elect=elects, normalize=step.shared["normalize"], scale=step.shared["lambda"])

    def merged(inputs: list[Tensor]) -> Tensor:
        base = inputs[step.base_input]
        deltas = [(number, inputs[number] - base) for number in others]
        return combine(base, [thin[n](delta) if n in thin else delta for n, delta in deltas], weights, how)

    return merged


def _trim(step: Step, read: Read, number: int, density: float) -> Trim:
    def passes() -> Iterable[Tensor]:
        for start, stop in pieces(step.entry.count):
            yield magnitudes(read(number, start, stop) - read(step.base_input, start, stop))

    bits = 64 if step.dtype == torch.float64 else 32
    return Trim(threshold(passes, kept(density, step.entry.count), bits))


_METHODS: dict[str, Callable[[Step, Read, int], Merged]] = {
    "linear": _linear,
    "slerp": _slerp,
    "task_arithmetic": partial(_task, elects=False),
    "ties": partial(_task, trims=True, elects=True),
    "dare_linear": partial(_task, drops=True, elects=False),
    "dare_ties": partial(_task, drops=True, elects=True),
}
