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
    options = {"dtype": getattr(torch, format), **_attention(transformers, _config(transformers, path), stock)}
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


def _config(transformers: Any, path: Path) -> Any:
    if path.suffix == ".gguf":
        _need_gguf(path)
        return transformers.AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
    return transformers.AutoConfig.from_pretrained(str(path))


def _need_gguf(path: Path) -> None:
    if find_spec("gguf") is None:
        raise UnjudgedError(str(lacking(path.name, "gguf")))


def _attention(transformers: Any, config: Any, stock: bool) -> dict[str, str]:
    """The attention to ask for: none where the model's code has its own alone, which invariant mode keeps as well."""
    names = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if config.model_type not in names:
        raise ValueError(f"model_type={config.model_type!r} is no causal language model that transformers knows")
    model_class = getattr(transformers, names[config.model_type])
    if stock:
        return {"attn_implementation": "sdpa"} if model_class._supports_sdpa else {}
    chosen = model_class._supports_attention_backend and model_class._supports_sdpa
    return {"attn_implementation": NAME} if chosen else {}


def _from_folder(transformers: Any, path: Path, options: dict[str, Any]) -> nn.Module:
    model: nn.Module = transformers.AutoModelForCausalLM.from_pretrained(str(path), **options)
    return model


def _from_gguf(transformers: Any, path: Path, options: dict[str, Any]) -> nn.Module:
    """By transformers' own reader, without the loader around it, which wants a package more."""
    config = _config(transformers, path)
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
