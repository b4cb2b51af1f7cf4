"""Weights in and out of the folder that Hugging Face's models are: config.json and safetensors.

Shapes are held against the config before a number is read. Knows no tokenizer but how to put it beside."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from samebits.model.config import ModelConfig
from samebits.model.json_file import read_json, to_json
from samebits.model.model import Model
from samebits.model.packed import group_of, with_packed
from samebits.model.weights import EMBEDDING, HEAD, count, shapes
from samebits.numerics.bits import same_bits
from samebits.records.durable import put_in_one_move, sync_directory

CONFIG: Final = "config.json"
WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
READABLE: Final = ("F32", "F16", "BF16", "F64")
MOST_CONFIG_BYTES: Final = 2**20
MOST_SHARDS: Final = 1024
# What a header may take: a name, a shape and two offsets for each of 100,000 weights are less.
MOST_HEADER_BYTES: Final = 2**25


class Words(Protocol):
    """What can be put beside the weights."""

    def save(self, path: str | Path) -> None: ...


def load_folder(path: str | Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Model:
    """The model in a folder; names or shapes that are not those of its config are refused before anything is read."""
    folder = Path(path)
    told = read_json(folder / CONFIG, MOST_CONFIG_BYTES)
    config, group = ModelConfig.from_huggingface(told), group_of(told, str(folder / CONFIG))
    check_component(config, dtype, str(folder))
    with ExitStack() as stack:
        found: dict[str, Any] = {}
        for file in weight_files(folder):
            opened = opened_file(file, stack)
            for name in opened.keys():  # noqa: SIM118, the library's object is no mapping
                if name in found:
                    raise ValueError(f"{file}: {name} is in another file too; allowed: once")
                found[name] = opened
        if group is not None:
            found = with_packed(found, group, str(folder))
        tied = _check(folder, config, found)
        weights = {name: _read(found[name], name, dtype, device) for name in shapes(config)}
        if tied and not same_bits(found[HEAD].get_tensor(HEAD), found[EMBEDDING].get_tensor(EMBEDDING)):
            raise ValueError(f"{folder}: {HEAD} and {EMBEDDING} differ, the config ties them; allowed: equal bits")
    return Model(config=config, weights=weights)


def weight_files(folder: Path) -> list[Path]:
    """The files of weights: one, or those that an index names."""
    if not (folder / INDEX).is_file():
        return [_inside(folder, WEIGHTS)]
    named = read_json(folder / INDEX).get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
        raise ValueError(f"{folder / INDEX}: weight_map must map weight names to file names")
    names = sorted({*named.values()})
    if not 1 <= len(names) <= MOST_SHARDS:
        raise ValueError(f"{folder / INDEX}: names {len(names)} files; allowed: 1 to {MOST_SHARDS}")
    return [_inside(folder, name) for name in names]


def _inside(folder: Path, name: str) -> Path:
    """The file, if it lies in the folder, or where the cache of Hugging Face's hub keeps what it links to."""
    home = folder.resolve()
    if name != os.path.basename(name) or not name.endswith(".safetensors") or "\0" in name:
        raise ValueError(f"{folder}: a file of weights is named {name!r:.80}; allowed: NAME.safetensors in the folder")
    file = (home / name).resolve()
    if not file.is_relative_to(home) and not (len(home.parents) > 1 and file.parent == home.parents[1] / "blobs"):
        raise ValueError(f"{folder / name}: links to {file}; allowed: a file in the folder")
    if not file.is_file():
        raise ValueError(f"{folder / name}: no such file; allowed: {WEIGHTS}, or the files that {INDEX} names")
    return folder / name


def opened_file(file: Path, stack: ExitStack) -> Any:
    """The file, opened; the library holds its offsets against its size, the header's size is looked at before."""
    with file.open("rb") as raw:
        size = int.from_bytes(raw.read(8), "little")
    if size > MOST_HEADER_BYTES:
        raise ValueError(f"{file}: its header has {size} bytes; allowed: at most {MOST_HEADER_BYTES}")
    try:
        return stack.enter_context(safe_open(file, "pt"))
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file}: {' '.join(str(error).split())[:200]}; allowed: a whole safetensors file") from None


def _check(folder: Path, config: ModelConfig, found: dict[str, Any]) -> bool:
    """That the files hold what config.json gives; whether they hold a tied head beside it."""
    wanted = shapes(config)
    tied = config.tie_word_embeddings and HEAD in found
    expected = {**wanted, HEAD: wanted[EMBEDDING]} if tied else wanted
    missing, unexpected = expected.keys() - found.keys(), found.keys() - expected.keys()
    if missing or unexpected:
        raise ValueError(
            f"{folder}: lacks {some_names(missing)}, has unexpected {some_names(unexpected)}; allowed: the"
            f" {len(expected)} weights that {CONFIG} asks for"
        )
    for name, shape in expected.items():
        piece = found[name].get_slice(name)
        if tuple(piece.get_shape()) != shape or piece.get_dtype() not in READABLE:
            raise ValueError(
                f"{folder}: {name} is {piece.get_dtype()} {tuple(piece.get_shape())}, config.json gives"
                f" {shape}; allowed: that, in {', '.join(READABLE)}"
            )
    return tied


def check_component(config: ModelConfig, dtype: torch.dtype, name: str) -> None:
    """A file may be as large as its config says and still take no room on the disk: it is held against memory too."""
    needed, there = count(config) * dtype.itemsize, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise ValueError(
            f"{name}: its weights take {needed} bytes; allowed: at most {there}, the memory of this machine"
        )


def some_names(names: Iterable[str]) -> str:
    """Up to three names, and how many more there are."""
    listed = sorted(names)
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return ", ".join(each[:80] for each in listed[:3]) + more or "none"


def _read(opened: Any, name: str, dtype: torch.dtype, device: str) -> Tensor:
    """One weight in memory of its own: what lies in the file may change under a mapping."""
    tensor: Tensor = opened.get_tensor(name)
    return tensor.to(device=device, dtype=dtype, copy=True).contiguous()


def save_folder(model: Model, path: str | Path, tokenizer: Words | None = None) -> None:
    """Writes the folder that `load_folder` and transformers read; all of it is there, or nothing is."""
    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder}: is there already; allowed: a new folder, or an empty one")
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = folder.parent / f".{folder.name}.{secrets.token_hex(4)}.new"
    beside.mkdir()
    try:
        values = {**model.config.to_huggingface(), "dtype": str(model.dtype).removeprefix("torch.")}
        weights = {name: weight.detach().cpu().contiguous() for name, weight in model.weights.items()}
        save_file(weights, beside / WEIGHTS, metadata={"format": "pt"})
        if tokenizer is not None:
            tokenizer.save(beside)
        put_in_one_move(beside / CONFIG, to_json(values))
        _sync(beside / WEIGHTS)
        sync_directory(beside)
        os.rename(beside, folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    sync_directory(folder.parent)


def _sync(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
