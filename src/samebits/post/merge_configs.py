"""Where the configs of models that are merged part, in what their weights mean.

The result has the config of one of them. Tensors of equal shapes can be added whatever their heads or their rotation
are, so a merge of such models is none of its recipe's mistakes, and is worth a word. Knows no tensor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from samebits.model.huggingface import CONFIG, MOST_CONFIG_BYTES
from samebits.model.json_file import read_json
from samebits.post.merge_recipe import Recipe

# What decides a forward pass and shows in no tensor's shape.
DECIDING: Final = ("model_type", "hidden_act", "num_attention_heads", "rms_norm_eps")


def config_differences(recipe: Recipe) -> list[dict[str, Any]]:
    """Setting by setting: its name, and its value in each model; the first model's is the result's."""
    told = {model: _deciding(read_json(Path(model) / CONFIG, MOST_CONFIG_BYTES)) for model in recipe.models}
    first = told[recipe.models[0]]
    return [
        {"setting": name, "models": {model: values[name] for model, values in told.items()}}
        for name, value in first.items()
        if any(values[name] != value for values in told.values())
    ]


def sentence(difference: Mapping[str, Any]) -> str:
    """One line for people."""
    said = ", ".join(f"{value!r:.60} in {model}" for model, value in difference["models"].items())
    return f"{difference['setting']} is {said}; the result has that of the first"


def _deciding(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rotation has two spellings, of which transformers 5 writes the one and older versions the other."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling")
    within = dict(scaling) if isinstance(scaling, Mapping) else {}
    theta = within.pop("rope_theta", config.get("rope_theta"))
    kind = within.pop("rope_type", within.pop("type", "default"))
    within.pop("type", None)
    rotation = {"rope_theta": theta, "rope_scaling": None if kind == "default" else {"rope_type": kind, **within}}
    # What a config leaves out follows from the others; written out it says the same.
    heads, width, size = (config.get(name) for name in ("num_attention_heads", "hidden_size", "head_dim"))
    if size is None and isinstance(heads, int) and isinstance(width, int) and heads > 0:
        size = width // heads
    groups = config.get("num_key_value_heads")
    shared = {"num_key_value_heads": heads if groups is None else groups, "head_dim": size}
    return {**{name: config.get(name) for name in DECIDING}, **shared, **rotation}
