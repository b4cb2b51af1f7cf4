"""`samebits contract`: what contracts say, what was shown for them, and what is missing.

prove makes receipts, status and audit read them; validate, scaffold, graph and diff look at the files alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samebits.cli.commands.contract_files import diff, graph, scaffold, validate
from samebits.cli.commands.contract_rooms import (
    Backend,
    Names,
    Receipts,
    Rooms,
    Trusted,
    chosen,
    known_rooms,
    store_of,
    trusted_rooms,
)
from samebits.cli.console import Json, print_json, progress
from samebits.cli.contract_tables import print_holes, print_matrix, print_mutants, print_receipts
from samebits.contracts.receipts import Receipt, Store

if TYPE_CHECKING:
    from samebits.contracts.registry import Room

app = typer.Typer(
    help="Contracts: validate, prove, audit, show, compare.", rich_markup_mode="rich", no_args_is_help=True
)
for _command in (validate, scaffold, graph, diff):
    app.command()(_command)


@app.command()
def prove(
    names: Names = None,
    level: Annotated[list[int] | None, typer.Option(help="Only this level; may be given several times.")] = None,
    backend: Backend = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this obligation or proof, by id; several times.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also what is not stale.")] = False,
    jobs: Annotated[int, typer.Option(help="Processes at a time.")] = 1,
    seed: Annotated[int, typer.Option(help="What level 3 draws from.")] = 1,
    rooms: Rooms = None,
    trust: Trusted = None,
    receipts: Receipts = None,
    as_json: Json = False,
) -> None:
    """Run what is stale, or --all, and write receipts. Example: [bold]samebits contract prove softmax[/bold]"""
    from samebits.checker.proving import Task, present, stale, tasks

    wanted = sorted(set(level or (1, 2, 3, 4)))
    if not set(wanted) <= {1, 2, 3, 4} or jobs < 1:
        raise ValueError(f"prove: level={wanted}, jobs={jobs}; allowed: levels 1 to 4, at least one job")
    known, store, made = trusted_rooms(rooms, trust), store_of(receipts, rooms, writes=True), list[Receipt]()
    work: list[Task] = []
    for name, room in chosen(names, known).items():
        kept, facts = store.read(name), present(room, known)
        listed = tasks(room, wanted, backend or "cpu")
        listed = [task for task in listed if not only or (task.proof or task.obligation) in only]
        work += [task for task in listed if everything or stale(task, kept, facts)]
    if only and not work and everything:
        raise ValueError(f"prove: nothing of {', '.join(only)} can be run at these levels")
    # Proofs first: some take minutes, and the rest fills the gaps between processes.
    work.sort(key=lambda task: task.level != 4)
    errors: list[str] = []
    with progress("proving") as tell:
        for number, (task, done) in enumerate(_run(work, known, seed, jobs), 1):
            tell(f"{number} of {len(work)}: {task}")
            if isinstance(done, str):
                errors.append(done)
                continue
            store.write(done)
            made += done
    if as_json:
        keys = ("identity", "obligation", "level", "backend", "method", "holds", "detail", "seconds")
        shown = [{key: getattr(each, key) for key in keys} for each in made]
        print_json({"ran": len(work), "errors": errors, "receipts": shown})
    else:
        print_receipts(made, len(work), errors)
    failed = [each for each in made if not each.holds or len(each.killed) < each.planted]
    raise typer.Exit(3 if errors else 1 if failed else 0)


def _run(work: list[Any], known: dict[str, Room], seed: int, jobs: int) -> Iterator[tuple[Any, list[Receipt] | str]]:
    """Each task with its receipts, or with why it could not be judged."""
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    from samebits.checker.proving import attempt

    if jobs == 1:
        for task in work:
            yield task, attempt(task, known, seed)
        return
    # A fresh interpreter each: threads and a GPU do not survive a fork.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(attempt, task, known, seed): task for task in work}
        for future in as_completed(running):
            yield running[future], future.result()


@app.command()
def status(names: Names = None, backend: Backend = None, rooms: Rooms = None, trust: Trusted = None,
           receipts: Receipts = None,
           mutants: Annotated[bool, typer.Option("--mutants", help="Each mutant and its killer.")] = False,
           obligations: Annotated[bool, typer.Option("--obligations", help="Each obligation.")] = False,
           as_json: Json = False) -> None:  # fmt: skip
    """The level of every contract, computed from receipts. Example: [bold]samebits contract status softmax[/bold]"""
    from samebits.checker.standing import effective_levels, standings

    known, store = trusted_rooms(rooms, trust), store_of(receipts, rooms)
    found = standings(known, store)
    whole = {each: effective_levels(found, known, each) for each in ("cpu", "triton")}
    shown = {name: found[name] for name in chosen(names, known)}
    if mutants:
        raise typer.Exit(print_mutants({name: known[name] for name in shown}, store, as_json))
    if as_json:
        print_json({name: {"required": each.required, "levels": each.levels,
                    "with_dependencies": {key: levels[name] for key, levels in whole.items()},
                    "obligations": [{"id": one.obligation, "asks": one.word, "backend": one.backend, "level": one.level,
                                     "lacks": one.lacks, "failed": one.failed, "stale": list(one.stale),
                                     "proofs": list(one.proofs), "inputs": one.inputs} for one in each.standings]}
                    for name, each in shown.items()})  # fmt: skip
    else:
        print_matrix(shown, whole, obligations)
    reached = all(_reaches(each.levels[backend or "cpu"], each.required) for each in shown.values())
    failed = any(one.failed for each in shown.values() for one in each.standings)
    raise typer.Exit(1 if failed else 0 if reached else 3)


def _reaches(level: int | None, required: int) -> bool:
    return level is not None and level >= required


@app.command()
def collect(folder: Annotated[Path, typer.Argument(help="A folder of receipts made elsewhere.")],
            rooms: Rooms = None, receipts: Receipts = None) -> None:  # fmt: skip
    """Take over receipts of another machine; edited ones are refused. Example: [bold]contract collect h200[/bold]"""
    if not folder.is_dir():
        raise ValueError(f"collect: {folder} is no folder; a folder of receipts is needed")
    theirs, store = Store(folder), store_of(receipts, rooms, writes=True)
    taken = [receipt for name in known_rooms(rooms) for receipt in theirs.read(name)]
    if not taken:
        raise ValueError(f"collect: {folder} has no receipt of a known contract")
    store.write(taken)
    print(f"{len(taken)} receipts taken over into {store.folder}")


@app.command()
def audit(
    names: Names = None, rooms: Rooms = None, trust: Trusted = None, receipts: Receipts = None, as_json: Json = False
) -> None:
    """Follow every equation to its receipts and list each hole. Example: [bold]samebits contract audit[/bold]"""
    from samebits.checker.standing import holes, standings

    known = trusted_rooms(rooms, trust)
    found = standings(known, store_of(receipts, rooms))
    broken = [each for each in holes(known, found) if not names or each.contract in chosen(names, known)]
    waiting = _planned() if rooms is None and not names else {}
    if as_json:
        print_json({"holes": [{"contract": each.contract, "id": each.identifier, "what": each.what} for each in broken],
                    "not_bound_yet": waiting})  # fmt: skip
    else:
        print_holes(chosen(names, known), found, broken, waiting)
    raise typer.Exit(1 if broken else 0)


def _planned() -> dict[str, list[str]]:
    """Contracts that wait for their code, with the ids of what they will oblige: listed, never counted."""
    from samebits.contracts.planned import planned

    return {name: list(each.obligations) for name, each in planned().items()}
