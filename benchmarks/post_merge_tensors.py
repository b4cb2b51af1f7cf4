"""How far merges are from mergekit's, number by number: `post_merge_tensors.py MERGEKIT FOLDER [--record]`.

MERGEKIT is the program `mergekit-yaml` of an environment of its own. SmolLM2 is merged with neighbours by both,
bfloat16 in and out: one so near that SLERP goes straight, one so far that it does not, and one whose numbers have other
signs, so that some cancel. TIES leaves open which of equal magnitudes it keeps, and mergekit's sort takes any: so it
merges by TIES once more with a sort that keeps the order of equals, else as it is. FOLDER keeps models and merges, so
that what was interrupted goes on."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from post_merge import recipes, versions
from provenance import processor, provenance
from safetensors import safe_open
from safetensors.torch import load_file, save_file

# Beside this file: the records in results/ are ratios of speed.
RECORD = Path(__file__).with_name("post_merge_tensors.json")
WEIGHTS = "model.safetensors"
# mergekit-yaml with a sort that keeps the order of equals.
STABLE = """
import sys, torch
sort = torch.argsort
torch.argsort = lambda x, dim=-1, descending=False: sort(x, dim=dim, descending=descending, stable=True)
from mergekit.scripts.run_yaml import main
sys.exit(main())
"""
# By neighbour: its folder, and the methods that are tried with it.
NEIGHBOURS = {
    "near": ("second", ("linear", "slerp", "ties")),
    "far": ("third", ("linear", "slerp", "ties")),
    "crossing": ("fourth", ("slerp",)),
}


def make(folder: Path) -> None:
    """The first, and the second with a fiftieth of noise, as `post_merge.py` makes them; the third with a fifth of each
    number, the fourth with a fifth of the tensor's root mean square."""
    if not (folder / "second").is_dir():
        subprocess.run([sys.executable, Path(__file__).with_name("post_merge.py"), "--make", folder], check=True)
    make_neighbour(folder, "third", 2, lambda x, noise: x * (1 + 0.2 * noise))
    make_neighbour(folder, "fourth", 3, lambda x, noise: x + 0.2 * x.square().mean().sqrt() * noise)


def make_neighbour(
    folder: Path, name: str, seed: int, change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    if (folder / name).is_dir():
        return
    new, draw = folder / f"{name}.part", torch.Generator().manual_seed(seed)
    shutil.rmtree(new, ignore_errors=True)
    shutil.copytree(folder / "first", new, ignore=shutil.ignore_patterns(WEIGHTS))
    weights = {
        key: change(each.float(), torch.randn(each.shape, generator=draw)).bfloat16()
        for key, each in load_file(folder / "first" / WEIGHTS).items()
    }
    save_file(weights, new / WEIGHTS, metadata={"format": "pt"})
    new.rename(folder / name)


def merged(words: Sequence[str | Path], recipe: Path, out: Path, *option: str) -> Path:
    """What a program makes of a recipe; not again where it is there."""
    if not out.is_dir():
        part = out.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        subprocess.run([*words, recipe, *option, part], check=True, stdout=subprocess.DEVNULL)
        part.rename(out)
    return out / WEIGHTS


def places(tensor: torch.Tensor) -> np.ndarray:
    """Which of bfloat16's numbers each is, counted from zero."""
    bits = tensor.flatten().view(torch.int16).numpy().astype(np.int32)
    return np.where(bits < 0, -(bits & 0x7FFF), bits)


def at_the_threshold(base: torch.Tensor, other: torch.Tensor, density: float) -> np.ndarray:
    """Whether a difference has just the magnitude down to which TIES keeps them."""
    size = (other - base).abs().float().flatten()
    found: np.ndarray = (size == size.sort(descending=True).values[max(1, int(density * len(size))) - 1]).numpy()
    return found


def in_ulps_of_inputs(one: torch.Tensor, two: torch.Tensor, inputs: Sequence[torch.Tensor]) -> float:
    """The largest difference in ulps of the larger input: what is left where inputs cancel has far smaller ones."""
    larger = torch.maximum(*(each.float().abs() for each in inputs)).clamp(min=2.0**-126)
    ulp = torch.ldexp(torch.ones_like(larger), torch.frexp(larger).exponent - 8)
    return float(((one.float() - two.float()).abs() / ulp).max())


def compared(case: str, ours: Path, theirs: Path, models: tuple[Path, Path]) -> dict[str, Any]:
    """Numbers by their distance in ulps; how many of those that part are at TIES' threshold; and how far apart SLERP's
    are beside the inputs."""
    counts, largest, open_choice, beside = np.zeros(3, np.int64), 0, 0, 0.0
    with safe_open(ours, "pt") as one, safe_open(theirs, "pt") as two:
        names = sorted(one.keys())
        assert names == sorted(two.keys())
        for name in names:
            results = one.get_tensor(name), two.get_tensor(name)
            gap = np.abs(places(results[0]) - places(results[1]))
            counts += [int((gap == 0).sum()), int((gap == 1).sum()), int((gap > 1).sum())]
            largest = max(largest, int(gap.max()))
            inputs = [load_one(model / WEIGHTS, name) for model in models] if gap.any() else []
            if case.startswith("ties") and inputs:
                open_choice += int((at_the_threshold(inputs[0], inputs[1], 0.5) & (gap > 0)).sum())
            elif inputs:
                beside = max(beside, in_ulps_of_inputs(*results, inputs))
    equal, next_, further = counts.tolist()
    row = {"case": case, "tensors": len(names), "numbers": equal + next_ + further, "equal": equal}
    row |= {"one_ulp": next_, "further": further, "largest_ulps": largest}
    if case.startswith("ties"):
        return row | {"parted_at_the_threshold": open_choice}
    return row | {"largest_ulps_of_inputs": beside}


def load_one(file: Path, name: str) -> torch.Tensor:
    with safe_open(file, "pt") as opened:
        found: torch.Tensor = opened.get_tensor(name)
        return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("mergekit", help="the program mergekit-yaml")
    options.add_argument("folder", type=Path)
    options.add_argument("--record", action="store_true")
    given = options.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(exist_ok=True)
    make(folder)
    ours: list[str | Path] = [sys.executable, "-m", "samebits.cli", "merge"]
    stable: list[str | Path] = [Path(given.mergekit).with_name("python"), "-c", STABLE]
    rows = []
    for neighbour, (other, methods) in NEIGHBOURS.items():
        models = folder / "first", folder / other
        documents = recipes(*map(str, models))
        for method in methods:
            case, recipe = f"{method} {neighbour}", folder / f"{method}-{neighbour}.yaml"
            recipe.write_text(json.dumps(documents[method]))
            one = merged(ours, recipe, folder / f"ours-{recipe.stem}", "--out")
            sides = {case: [given.mergekit], **({f"{case}, stable sort": stable} if method == "ties" else {})}
            for title, words in sides.items():
                two = merged(words, recipe, folder / f"{title.replace(' ', '-').replace(',', '')}-mergekit")
                rows.append(compared(title, one, two, models))
                print(json.dumps(rows[-1]), flush=True)
    if given.record:
        origin = {**provenance(__file__, processor()), **versions(given.mergekit)}
        RECORD.write_text(json.dumps({**origin, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
