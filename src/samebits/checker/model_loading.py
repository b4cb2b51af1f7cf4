"""A causal language model from a Hugging Face folder, a .gguf file or a known name, in the format asked for.

Loads transformers when called. Knows nothing of what is judged."""

from __future__ import annotations

from contextlib import redirect_stderr
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import nn

from samebits.contracts.registry import nearest
from samebits.invariant.transformers import NAME, register
from samebits.records.packaged_models import KNOWN, packaged_model
from samebits.records.packages import lacking
from samebits.records.report import UnjudgedError


def load_model(source: str, format: str = "float32", device: str = "cpu", stock: bool = False) -> nn.Module:
    """The model in eval mode, with samebits' attention unless `stock`."""
    if find_spec("transformers") is None:
        raise UnjudgedError(str(lacking("a model", "transformers")))
    register()
    path = find_model(source)
    transformers = import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    options = {"dtype": getattr(torch, format), "attn_implementation": "sdpa" if stock else NAME}
    model = (
        _from_gguf(transformers, path, options) if path.suffix == ".gguf" else _from_folder(transformers, path, options)
    )
    return model.eval().to(device)


def find_model(source: str) -> Path:
    """The folder or file that a name or path stands for."""
    if source in KNOWN:
        found = packaged_model(source)
        if isinstance(found, str):
            raise UnjudgedError(found)
        return found
    path = Path(source)
    if path.suffix == ".gguf" and path.is_file():
        return path
    if (path / "config.json").is_file():
        return path
    raise ValueError(
        f"no model at {source!r}; allowed: a folder with config.json, a .gguf file, or a known name;"
        f" {nearest(source, list(KNOWN))}"
    )


def _from_folder(transformers: Any, path: Path, options: dict[str, Any]) -> nn.Module:
    model: nn.Module = transformers.AutoModelForCausalLM.from_pretrained(str(path), **options)
    return model


def _from_gguf(transformers: Any, path: Path, options: dict[str, Any]) -> nn.Module:
    """By transformers' own reader, without the loader around it, which wants a package more."""
    if find_spec("gguf") is None:
        raise UnjudgedError(str(lacking(path.name, "gguf")))
    config = transformers.AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
    model: nn.Module = transformers.AutoModelForCausalLM.from_config(config, **options)
    reader = import_module("transformers.modeling_gguf_pytorch_utils")
    with redirect_stderr(StringIO()):  # its progress bar is drawn where there is no terminal, too
        weights = reader.load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(weights, strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if set(missing) - tied or unexpected:
        raise ValueError(f"{path.name}: weights missing {sorted(set(missing) - tied)}, unexpected {sorted(unexpected)}")
    model.tie_weights()  # type: ignore[operator]
    return model
