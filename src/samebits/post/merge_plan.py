"""What a merge will do, tensor by tensor, before a number is read: from where, with which parameters, into what.

Layers are known by their names (`model.layers.3.`), so any model in Hugging Face's layout can be merged. Shapes, names
and tokenizers are held against each other here. Knows no arithmetic."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import torch

from samebits.model.huggingface import some_names
from samebits.model.json_file import read_json
from samebits.model.tokenizer import FILE
from samebits.post.layout import NAMES, Entry
from samebits.post.merge_recipe import EACH, METHODS, OTHERS, SHARED, Recipe, Slice, resolve
from samebits.post.source import Source

_LAYER: Final = re.compile(r"((?:.*?\.)?(?:layers|h|blocks)\.)([0-9]+)(\..+)")
# Where a config says how many layers there are.
LAYER_KEYS: Final = ("num_hidden_layers", "n_layer", "num_layers")


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One tensor of the new model."""

    name: str
    inputs: tuple[tuple[str, str], ...]
    """Model and the tensor's name in it, in the recipe's order."""
    base: int | None
    """Which of the inputs is the base."""
    entry: Entry
    """Of the result."""
    dtype: torch.dtype
    """In which it is computed."""
    shared: Mapping[str, Any]
    each: tuple[Mapping[str, Any], ...]
    """Parameters of each input."""

    @property
    def base_input(self) -> int:
        assert self.base is not None
        return self.base


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Every step, and what else the new folder needs."""

    steps: tuple[Step, ...]
    config: Mapping[str, Any]
    tokenizer: Source

    @property
    def entries(self) -> dict[str, Entry]:
        return {step.name: step.entry for step in self.steps}


def opened_models(recipe: Recipe, stack: ExitStack) -> dict[str, Source]:
    """Every model of the recipe, its headers read."""
    return {model: stack.enter_context(Source(model)) for model in recipe.models}


def plan_merge(recipe: Recipe, sources: Mapping[str, Source]) -> Plan:
    """The plan; a ValueError says which tensor, model or layer does not fit."""
    for source in sources.values():
        _check_layers(source)
    steps: list[Step] = []
    layer = 0
    for number, part in enumerate(recipe.slices):
        ranges = [each.layers or (0, _layers(sources[each.model])) for each in part.inputs]
        length = ranges[0][1] - ranges[0][0]
        _check_ranges(part, ranges, sources)
        for name in _outside(sources[part.inputs[0].model], number == 0, number == len(recipe.slices) - 1):
            steps.append(_step(recipe, part, sources, name, [name] * len(part.inputs), 0.0))
        for offset in range(length):
            at = offset / (length - 1) if length > 1 else 1.0
            for name in _inside(sources[part.inputs[0].model], ranges[0][0] + offset):
                names = [_renumbered(name, first + offset) for first, _ in ranges]
                steps.append(_step(recipe, part, sources, _renumbered(name, layer + offset), names, at))
        layer += length
    _check_complete(recipe, sources)
    donor = sources[recipe.models[0]]
    words = _tokenizer(recipe, sources)
    return Plan(steps=tuple(sorted(steps, key=_order)), config=_config(donor, steps, layer), tokenizer=words)


def _order(step: Step) -> tuple[int, int, str]:
    """Embeddings, layers by number, the rest: the order in which a decoder uses them."""
    found = _LAYER.fullmatch(step.name)
    return (1, int(found[2]), step.name) if found else (0 if "embed" in step.name else 2, 0, step.name)


def _step(
    recipe: Recipe, part: Slice, sources: Mapping[str, Source], name: str, names: Sequence[str], at: float
) -> Step:
    models = [each.model for each in part.inputs]
    entries = []
    for model, inner in zip(models, names, strict=True):
        if inner not in sources[model].entries:
            raise ValueError(f"{model}: has no {inner}, {models[0]} has; allowed: the same tensors in every model")
        entries.append(sources[model].entries[inner])
        if entries[-1].shape != entries[0].shape:
            raise ValueError(
                f"{inner}: is {entries[-1].shape} in {model} and {entries[0].shape} in {models[0]};"
                " allowed: the same shape in every model"
            )
    dtype = recipe.dtype or _promoted(entries)
    base = part.base or recipe.base if METHODS[recipe.method].base else None
    levels = [part.parameters, recipe.parameters]
    known = METHODS[recipe.method].parameters
    shared = {key: resolve(recipe.method, key, levels, name, at) for key, each in known.items() if each.scope == SHARED}
    own = tuple(
        {
            key: resolve(recipe.method, key, [each.parameters, *levels], inner, at, each.model)
            for key, parameter in known.items()
            if parameter.scope == EACH or (parameter.scope == OTHERS and each.model != base)
        }
        for each, inner in zip(part.inputs, names, strict=True)
    )
    _check_sum(recipe, name, shared, own)
    return Step(
        name=name,
        inputs=tuple(zip(models, names, strict=True)),
        base=models.index(base) if base in models else None,
        entry=Entry(dtype=recipe.out_dtype or dtype, shape=entries[0].shape),
        dtype=dtype,
        shared=shared,
        each=own,
    )


def _check_sum(recipe: Recipe, name: str, shared: Mapping[str, Any], own: Sequence[Mapping[str, Any]]) -> None:
    if recipe.method == "linear" and shared["normalize"] and sum(each["weight"] for each in own) == 0:
        raise ValueError(f"linear: the weights of {name} add up to 0; allowed: another sum, or normalize: false")


def _promoted(entries: Sequence[Entry]) -> torch.dtype:
    found = entries[0].dtype
    for entry in entries[1:]:
        found = torch.promote_types(found, entry.dtype)
    return found


def _layers(source: Source) -> int:
    return 1 + max((int(found[2]) for name in source.entries if (found := _LAYER.fullmatch(name))), default=-1)


def _check_layers(source: Source) -> None:
    """A layer that is missing would move those behind it, or make a shorter model, without a word."""
    there = {int(found[2]) for name in source.entries if (found := _LAYER.fullmatch(name))}
    if gaps := sorted({*range(max(there, default=-1))} - there):
        raise ValueError(f"{source.folder}: lacks layer {gaps[0]} of {max(there) + 1}; allowed: every layer")
    key = next((key for key in LAYER_KEYS if key in source.config), None)
    if key is not None and source.config[key] != len(there):
        raise ValueError(
            f"{source.folder}: has {len(there)} layers, its config gives {key} {source.config[key]!r:.40};"
            " allowed: equally many"
        )


def _inside(source: Source, layer: int) -> list[str]:
    return [name for name in source.entries if (found := _LAYER.fullmatch(name)) and int(found[2]) == layer]


def _outside(source: Source, first: bool, last: bool) -> list[str]:
    """Tensors of no layer: embeddings belong to the first slice, all others to the last."""
    names = [name for name in source.entries if not _LAYER.fullmatch(name)]
    return [name for name in names if (first if "embed" in name else last)]


def _renumbered(name: str, layer: int) -> str:
    found = _LAYER.fullmatch(name)
    assert found is not None
    return f"{found[1]}{layer}{found[3]}"


def _check_ranges(part: Slice, ranges: Sequence[tuple[int, int]], sources: Mapping[str, Source]) -> None:
    for each, (first, end) in zip(part.inputs, ranges, strict=True):
        there = _layers(sources[each.model])
        if end > there or end - first != ranges[0][1] - ranges[0][0]:
            raise ValueError(
                f"{each.model}: layers {first} to {end} of {there}; allowed: layers that it has,"
                f" {ranges[0][1] - ranges[0][0]} of them as of {part.inputs[0].model}"
            )


def _check_complete(recipe: Recipe, sources: Mapping[str, Source]) -> None:
    """A tensor of another model that the first lacks would be lost without a word."""
    wanted = {_LAYER.sub(r"\1*\3", name) for name in sources[recipe.slices[0].inputs[0].model].entries}
    for model, source in sources.items():
        more = {name for name in source.entries if _LAYER.sub(r"\1*\3", name) not in wanted}
        if more:
            first = recipe.slices[0].inputs[0].model
            raise ValueError(f"{model}: has {some_names(more)}, {first} lacks them; allowed: the same tensors")


def _config(donor: Source, steps: Sequence[Step], layers: int) -> dict[str, Any]:
    """The donor's config with the dtype of the result, and as many layers as it has."""
    config = dict(donor.config)
    kinds = {step.entry.dtype for step in steps}
    # transformers calls it dtype since its version 5, torch_dtype before.
    config.pop("torch_dtype", None)
    if len(kinds) == 1:
        config["dtype"] = str(kinds.pop()).removeprefix("torch.")
    key = next((key for key in LAYER_KEYS if key in config), None)
    if key is not None and config[key] != layers:
        config[key] = layers
        for name, value in config.items():
            # Lists with an entry a layer (layer_types of Qwen3) cannot be guessed.
            if isinstance(value, list) and len(value) == donor.config[key]:
                raise ValueError(f"{donor.folder}: {name} in its config has an entry a layer; allowed: all its layers")
    return config


def _tokenizer(recipe: Recipe, sources: Mapping[str, Source]) -> Source:
    """The model whose tokenizer is copied. Where one is chosen, all others must number their tokens as it does."""
    wanted = recipe.tokenizer_source
    name = recipe.models[0] if wanted in (None, "base") else wanted
    if name not in sources or (wanted == "base" and recipe.base is None):
        raise ValueError(f"tokenizer_source is {wanted!r:.80}; allowed: base, or one of {', '.join(sources)}")
    if wanted is not None:
        tokens = {model: _tokens(source) for model, source in sources.items()}
        for model, found in tokens.items():
            if found != tokens[name]:
                raise ValueError(
                    f"{model}: numbers its tokens otherwise than {name}; allowed: equal tokenizers, rows of the"
                    " embedding are not moved"
                )
    return sources[name]


def _tokens(source: Source) -> Any:
    """Every token with its number."""
    found = read_json(source.folder / FILE) if (source.folder / FILE).is_file() else {}
    model = found.get("model")
    added = found.get("added_tokens")
    return (
        model.get("vocab") if isinstance(model, dict) else None,
        [(each.get("content"), each.get("id")) if isinstance(each, dict) else each for each in added]
        if isinstance(added, list)
        else None,
    )


def described(step: Step) -> dict[str, Any]:
    """A step as plain values, for the plan that is printed and kept."""
    return {
        "name": step.name,
        "from": [list(each) for each in step.inputs],
        "shape": list(step.entry.shape),
        "dtype": NAMES[step.entry.dtype],
        "parameters": {**step.shared, "models": [dict(each) for each in step.each]},
    }
