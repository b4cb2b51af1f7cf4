"""`samebits contract validate | scaffold | graph | diff`: what the files alone say; no obligation is run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samebits.cli.commands.contract_components import (
    Components,
    Receipts,
    Trusted,
    known_components,
    store_of,
    trusted_components,
    trusted_folders,
)
from samebits.cli.console import Json, print_json
from samebits.records.durable import put_in_one_move
from samebits.records.plain_file import refuse_unless_plain

if TYPE_CHECKING:
    from samebits.contracts.graph import Graph


def validate(
    paths: Annotated[list[Path] | None, typer.Argument(help="Files or folders. Default: every known contract.")] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also import every object that a contract names, from trusted folders only.")
    ] = False,
    components: Components = None,
    trust: Trusted = None,
    as_json: Json = False,
) -> None:
    """Say what is wrong, by file, line and id. Example: [bold]samebits contract validate --deep[/bold]"""
    # Loaded here: other commands need not wait for it.
    from samebits.contracts.validating import validate as look_through

    known = known_components(components)
    files = paths or [component.folder / "contract.yaml" for component in known.values()]
    trusted = trusted_folders(components, trust)
    problems = look_through(files, deep=deep, known=() if paths is None else known, trusted=trusted)
    if as_json:
        keys = ("line", "id", "message")
        print_json(
            {"problems": [{"path": str(each.path), **{key: getattr(each, key) for key in keys}} for each in problems]}
        )
    else:
        for problem in problems:
            print(problem)
        print(f"{len(problems)} problems" if problems else f"{len(files)} contracts: every line is executed")
    raise typer.Exit(1 if problems else 0)


def scaffold(
    name: Annotated[str, typer.Argument(help="The new component, in small letters: my_kernel.")],
    prefix: Annotated[str, typer.Option(help="Of its ids, in capitals: MK.")],
    folder: Annotated[Path, typer.Option(help="The folder of components it goes to.")] = Path("."),
    package: Annotated[str | None, typer.Option(help="How that folder is imported. Default: its name.")] = None,
) -> None:
    """Make a new component that fails until it is filled. Example: [bold]samebits contract scaffold my_kernel --prefix
    MK[/bold]"""
    from samebits.contracts.scaffold import scaffold as make_component

    component = make_component(name, prefix, folder, package or folder.resolve().name)
    print(f"{component}: fill what `samebits contract validate {component}` names")


class Form(StrEnum):
    TEXT = "text"
    JSON = "json"
    MERMAID = "mermaid"
    DOT = "dot"
    HTML = "html"


def graph(
    form: Annotated[Form, typer.Option("--format", help="text, json, mermaid, dot or html.")] = Form.TEXT,
    write: Annotated[Path | None, typer.Option("--output", help="Write to this file instead of printing.")] = None,
    components: Components = None,
    trust: Trusted = None,
    receipts: Receipts = None,
) -> None:
    """Which contract rests on which. Example: [bold]samebits contract graph --format html --output graph.html[/bold]"""
    from samebits.cli.graph_page import render
    from samebits.contracts.graph_text import as_dot, as_json, as_mermaid, as_text

    drawn = _graph(components, trust, receipts)
    texts = {Form.TEXT: as_text, Form.JSON: as_json, Form.MERMAID: as_mermaid, Form.DOT: as_dot, Form.HTML: render}
    if write is not None:
        refuse_unless_plain(write)
        put_in_one_move(write, texts[form](drawn).encode())
        print(f"written: {write}")
    else:
        print(texts[form](drawn))
    raise typer.Exit(1 if drawn.cycles() or drawn.dangling() else 0)


def _graph(components: Path | None, trust: list[Path] | None, receipts: Path | None) -> Graph:
    from samebits.checker.status import standings
    from samebits.cli.standing_graph import standing_graph

    known = trusted_components(components, trust)
    found = standings(known, store_of(receipts, components))
    return standing_graph(known, found, with_planned=components is None)


def diff(
    old: Annotated[str, typer.Argument(help="A contract, or git:REV for the other one's file at a revision.")],
    new: Annotated[str, typer.Argument(help="A contract, or git:REV.")],
    as_json: Json = False,
) -> None:
    """What changed, and whether it breaks.

    Example: [bold]samebits contract diff git:HEAD src/.../contract.yaml[/bold]"""
    from samebits.contracts import diff as comparing
    from samebits.contracts.revisions import two_sides

    left, right = two_sides(old, new)
    changes = comparing.diff(left, right)
    wrong = comparing.findings(left, right, changes)
    breaking = [each for each in changes if each.kind == "breaking"]
    if as_json:
        print_json(
            {
                "changes": [
                    {key: getattr(each, key) for key in ("kind", "id", "what", "old", "new")} for each in changes
                ],
                "version": wrong,
            }
        )
    else:
        for line in (*changes, *wrong):
            print(line)
        print(f"{len(changes)} changes, {len(breaking)} breaking")
    raise typer.Exit(1 if breaking or wrong else 0)
