"""`samebits merge`: one model out of several, by a recipe in mergekit's YAML."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samebits.cli.console import Json, output, print_json, progress_bar, size_text
from samebits.cli.errors import one_line

if TYPE_CHECKING:
    from samebits.post.merge_recipe import Recipe

SCHEMA = "samebits.merge/1"
Out = Annotated[Path, typer.Option("--out", help="The folder to write: new, or empty.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan; compute and write nothing.")]
ShardSize = Annotated[
    int, typer.Option("--shard-size", metavar="BYTES", help="The most bytes of weights in one file.", min=1)
]


def merge(
    recipe: Annotated[
        Path, typer.Argument(help="A YAML file: models or slices, merge_method, base_model, parameters.")
    ],
    out: Out,
    seed: Annotated[int, typer.Option(help="Of the numbers that DARE drops.", min=0, max=2**63 - 1)] = 0,
    shard_size: ShardSize = 5 * 10**9,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Merge models: linear, slerp, task_arithmetic, ties, dare_linear, dare_ties; in Hugging Face's layout.

    The result is a function of the recipe, the seed and the tensors: shards, threads and restarts change no bit. After
    a kill it goes on when it is run again; the folder is there once it is whole.

    Example: [bold]samebits merge recipe.yaml --out merged[/bold]"""
    from samebits.post.merge_configs import config_differences, sentence
    from samebits.post.merge_recipe import read_recipe
    from samebits.post.merging import merge as run
    from samebits.post.merging import planned
    from samebits.records.new_place import refuse_if_taken

    refuse_if_taken(out)
    chosen = read_recipe(recipe)
    plan, layout = planned(chosen, seed, shard_size)
    differences = config_differences(chosen)
    for difference in differences:
        print(f"samebits: {one_line(sentence(difference))}", file=sys.stderr, flush=True)
    plan["config_differences"] = differences
    if dry_run:
        _print_plan(chosen, out, plan, as_json)
        return
    with progress_bar(f"merging into {out}", sum(region.size for region in layout.regions.values())) as tell:
        facts = run(chosen, out, seed, shard_size, tell)
    if as_json:
        print_json({"schema": SCHEMA, "out": str(out), "config_differences": differences, **facts})
    else:
        output().print(f"{out}: {len(plan['tensors'])} tensors by {chosen.method}, {facts['digest']}")


def _print_plan(recipe: Recipe, out: Path, plan: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json({"schema": SCHEMA, "out": str(out), "dry_run": True, **plan})
        return
    console = output()
    console.print(f"{recipe.method} of {', '.join(recipe.models)}")
    if recipe.base:
        console.print(f"base: {recipe.base}")
    for step in plan["tensors"]:
        told = "; ".join(_parameters(step["parameters"]))
        console.print(f"  {step['name']}  {step['dtype']} {step['shape']}  {told}")
    console.print(f"tokenizer: from {plan['tokenizer']}")
    for name, size in plan["files"].items():
        console.print(f"{out / name}: {size_text(size)}")


def _parameters(values: dict[str, Any]) -> list[str]:
    """Shared ones as they are, those of each model in the models' order."""
    shared = [f"{name} {value:g}" for name, value in values.items() if name != "models"]
    names = dict.fromkeys(name for each in values["models"] for name in each)
    own = [f"{name} {', '.join(f'{each[name]:g}' for each in values['models'] if name in each)}" for name in names]
    return shared + own
