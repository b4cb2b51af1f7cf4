"""`samebits debug`: some steps of a training run with every check there is, and what is wrong, by place."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from samebits.cli.console import Json, output, print_json, progress
from samebits.cli.devices import check_device
from samebits.cli.errors import between_ranks
from samebits.records.shipped import recipe

SCHEMA = "samebits.debug/1"


def debug(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A training configuration, or a recipe's name.")],
    steps: Annotated[int, typer.Option(min=1, help="Steps to make; nothing is kept of them.")] = 2,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a key.")] = None,
    as_json: Json = False,
) -> None:
    """Check a training run from its configuration to the borders of its kernels. Exit 1 where something is wrong.

    Buffers are placed between guard zones, copies and products are checked, gradients sampled at every block; on ranks
    (samebits launch) the gradient is compared with that of one process. Takes several times as long as the steps.

    Example: [bold]samebits debug tiny --steps 2[/bold]"""
    from samebits.parallel.grid import Grid
    from samebits.parallel.launching import ranks
    from samebits.train.configuration_file import read
    from samebits.train.inspecting import Subject, inspected

    given = read(recipe(Path(config)), settings or [])
    check_device("training.device", given.training.device)
    device = given.training.device.partition(":")[0]
    with ranks(device=device, tell=between_ranks(as_json)) as world, progress(f"checking {config}"):
        found = list(inspected(Subject(config=given, grid=Grid(world=world)), steps=steps))
    # What a rank finds of its own kernels no other rank knows.
    if as_json:
        told = [asdict(each) for each in found]
        print_json({"schema": SCHEMA, "config": config, "rank": world.rank, "findings": told})
    elif found or world.rank == 0:
        for each in found:
            output().print(str(each) if world.size == 1 else f"rank {world.rank}: {each}")
        output().print(f"{len(found)} findings" if found else f"nothing is wrong in {steps} steps")
    raise typer.Exit(1 if found else 0)
