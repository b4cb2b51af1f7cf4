"""A model's random weights, a function of the seed, and transformers' own model of the same configuration with them."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor

from samebits.bench.cases import Setting
from samebits.model.config import FAMILIES, ModelConfig
from samebits.model.weights import DEVIATION, HEAD, shapes
from samebits.records.packages import require

SEED: Final = 0
CONFIGS: Final = {"llama": "LlamaConfig", "qwen3": "Qwen3Config"}


def random_weights(config: ModelConfig, setting: Setting) -> dict[str, Tensor]:
    """Norms of one, all else bell-shaped; drawn on the device, where billions of them take no time."""
    generator = torch.Generator(setting.device).manual_seed(SEED)
    made: dict[str, Any] = {"device": setting.device, "dtype": setting.dtype}
    return {
        name: torch.ones(shape, **made)
        if len(shape) == 1
        else torch.empty(shape, **made).normal_(std=DEVIATION, generator=generator)
        for name, shape in shapes(config).items()
    }


def transformers_model(config: ModelConfig, weights: dict[str, Tensor]) -> Any:
    """The class of transformers that this configuration names, with a copy of these weights, in eval mode."""
    require("the model beside ours", "transformers")
    transformers = import_module("transformers")
    values = config.to_huggingface()
    family = values["model_type"]
    named = getattr(transformers, CONFIGS[family])(**values)
    some = next(iter(weights.values()))
    with torch.device("meta"):
        model = getattr(transformers, FAMILIES[family])(named)
    model = model.to_empty(device=some.device).to(some.dtype).eval()
    missing, _ = model.load_state_dict(weights, strict=False)
    if set(missing) - {HEAD}:
        raise RuntimeError(f"transformers' {type(model).__name__} lacks weights for {', '.join(sorted(missing))}")
    model.tie_weights()
    # Its table of frequencies is no weight and was not made on the meta device.
    model.model.rotary_emb = type(model.model.rotary_emb)(named).to(some.device)
    return model
