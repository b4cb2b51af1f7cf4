"""A model and its words from wherever they lie: a Hugging Face folder, a .gguf file, a known name, a preset.

Knows no file format; huggingface.py and gguf.py do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch

from samebits.contracts.registry import nearest
from samebits.model.gguf import read_gguf, read_words
from samebits.model.huggingface import load_folder
from samebits.model.model import Model
from samebits.model.presets import PRESETS
from samebits.model.tokenizer import FILE, Tokenizer
from samebits.records.packaged_models import KNOWN, packaged_model

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LARGEST_SEED: Final = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A model and the tokenizer that belongs to it; their ends of a text are the same."""

    model: Model
    tokenizer: Tokenizer


def load(source: str, dtype: str = "float32", device: str = "cpu") -> Loaded:
    """What `source` names: a folder, a .gguf file, a known name, or a preset with its seed, as in tiny@0."""
    if dtype not in DTYPES:
        raise ValueError(f"model: dtype is {dtype!r}; allowed: {', '.join(DTYPES)}")
    name, _, seed = source.partition("@")
    path = Path(source)
    if name in PRESETS and seed:
        loaded = Loaded(model=_first(name, seed).to(device=device, dtype=DTYPES[dtype]), tokenizer=Tokenizer.of_bytes())
    elif source in KNOWN or (path.suffix == ".gguf" and path.is_file()):
        model, words = read_gguf(_in_package(source) if source in KNOWN else path, DTYPES[dtype], device)
        loaded = Loaded(model=model, tokenizer=words)
    elif (path / "config.json").is_file():
        if not (path / FILE).is_file():
            raise ValueError(f"{path}: has no {FILE}; allowed: a folder with config.json, weights and {FILE}")
        loaded = Loaded(model=load_folder(path, DTYPES[dtype], device), tokenizer=Tokenizer.load(path))
    else:
        raise ValueError(
            f"no model at {source!r}; allowed: a folder with config.json, a .gguf file, a preset with its seed as in"
            f" tiny@0, or a known name; {nearest(source, [*KNOWN, *(f'{each}@0' for each in PRESETS)])}"
        )
    return _agreeing(loaded)


def load_tokenizer(source: str) -> Tokenizer:
    """The words alone: of a tokenizer.json, of a folder that has one, or of what `load` reads besides."""
    path = Path(source)
    if source in KNOWN or (path.suffix == ".gguf" and path.is_file()):
        return read_words(_in_package(source) if source in KNOWN else path)
    if (path.suffix == ".json" and path.is_file()) or (path / FILE).is_file():
        return Tokenizer.load(path)
    raise ValueError(
        f"no tokenizer at {source!r}; allowed: a {FILE}, a folder with one, a .gguf file, or a known name;"
        f" {nearest(source, list(KNOWN))}"
    )


def _first(name: str, seed: str) -> Model:
    if not seed.isascii() or not seed.isdigit() or len(seed) > 10 or int(seed) > LARGEST_SEED:
        raise ValueError(f"model: the seed of {name!r} is {seed!r:.40}; allowed: 0 to {LARGEST_SEED}, as in {name}@0")
    return Model.new(PRESETS[name], int(seed))


def _in_package(source: str) -> Path:
    found = packaged_model(source)
    if isinstance(found, str):
        raise ValueError(found)
    return found


def _agreeing(loaded: Loaded) -> Loaded:
    """Ends of a text that either side knows hold for both; a model must have a row for every token."""
    model, words = loaded.model, loaded.tokenizer
    if words.vocabulary > model.config.vocab_size:
        raise ValueError(
            f"model: has {model.config.vocab_size} rows, its tokenizer {words.vocabulary} tokens; allowed: a row each"
        )
    eos = tuple(each for each in dict.fromkeys((*words.eos, *model.config.eos_token_id)))
    bos = model.config.bos_token_id if words.bos is None else words.bos
    known = tuple(each for each in eos if each < words.vocabulary)
    heard = bos if bos is not None and bos < words.vocabulary else None
    return Loaded(
        model=replace(model, config=replace(model.config, bos_token_id=bos, eos_token_id=eos)),
        tokenizer=replace(words, bos=heard, eos=known),
    )
