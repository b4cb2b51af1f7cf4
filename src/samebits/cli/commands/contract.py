"""`samebits contract`: what contracts say, what was shown for them, and what is missing.

prove makes receipts, status and audit read them, replay runs them again; the files alone are another module's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samebits.cli.commands.contract_components import (
    Backend,
    Components,
    Names,
    Receipts,
    Trusted,
    chosen,
    launch_by_python,
    store_of,
    trusted_components,
)
from samebits.cli.commands.contract_evidence import collect, replay, sign, verify
from samebits.cli.commands.contract_files import diff, graph, scaffold, validate
from samebits.cli.console import Json, print_json, progress
from samebits.cli.contract_tables import print_holes, print_matrix, print_mutants, print_receipts, status_document
from samebits.contracts.receipts import Receipt

if TYPE_CHECKING:
    from samebits.checker.proving import Task
    from samebits.contracts.registry import Component

app = typer.Typer(
    help="Validate contracts, prove them, audit the evidence.", rich_markup_mode="rich", no_args_is_help=True
)
for _command in (validate, scaffold, graph, diff, replay, collect, sign, verify):
    app.command()(_command)


@app.command()
def prove(
    names: Names = None,
    level: Annotated[list[int] | None, typer.Option(help="Only this level; may be given several times.")] = None,
    backend: Backend = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this obligation or proof, by id; several times.")] = None,
    here: Annotated[
        bool, typer.Option("--here", help="Also what was shown elsewhere and not on this machine.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also what is not stale.")] = False,
    jobs: Annotated[int, typer.Option(help="Processes at a time.")] = 1,
    seed: Annotated[int, typer.Option(help="What level 3 draws from.")] = 1,
    components: Components = None,
    trust: Trusted = None,
    receipts: Receipts = None,
    as_json: Json = False,
) -> None:
    """Run what is stale, or --all, and write receipts. Example: [bold]samebits contract prove softmax[/bold]

    Level 3 of a contract that requires less is run only where the contract, or an obligation, is named."""
    from samebits.checker.planning import check_words
    from samebits.checker.present import Present
    from samebits.checker.proving import Task, seconds_of, tasks, together, unproved

    wanted = sorted(set(level or (1, 2, 3, 4)))
    if not set(wanted) <= {1, 2, 3, 4} or jobs < 1:
        raise ValueError(f"prove: level={wanted}, jobs={jobs}; allowed: levels 1 to 4, at least one job")
    check_words(None, backend)
    launch_by_python()
    known, store, made = (
        trusted_components(components, trust),
        store_of(receipts, components, writes=True),
        list[Receipt](),
    )
    work, present = list[Task](), Present(known)
    for name, component in chosen(names, known).items():
        kept = store.read(name)
        listed = [task for task in tasks(component, wanted, backend) if not only or task.name in only]
        # Unless a backend is asked for by name, what cannot run here is another machine's work.
        listed = [task for task in listed if backend is not None or not task.lacks()]
        # Thousands of calls of what a contract asks no level 3 for take hours: only where it is asked for by name.
        asked = bool(names or only or everything)
        listed = [task for task in listed if asked or task.level != 3 or _required(task) >= 3]
        work += [task for task in listed if everything or unproved(task, kept, present, here=here)]
    if only and not work and everything:
        raise ValueError(f"prove: nothing of {', '.join(only)} can be run at these levels")
    # The longest first, so that no process is left alone with one at the end.
    work = sorted(together(work, jobs), key=lambda task: -seconds_of(task, store))
    errors: list[str] = []
    with progress("proving", lines=True) as tell:
        for number, (task, done) in enumerate(_run(work, known, seed, jobs), 1):
            tell(f"{number} of {len(work)}: {task}")
            receipts_made = [each for each in done if isinstance(each, Receipt)]
            errors += [each for each in done if isinstance(each, str)]
            if receipts_made:
                store.write(receipts_made)
                made += receipts_made
    if as_json:
        keys = ("identity", "obligation", "level", "backend", "machine", "method", "holds", "detail", "seconds")
        shown = [{key: getattr(each, key) for key in keys} for each in made]
        print_json({"ran": len(work), "errors": errors, "receipts": shown})
    else:
        print_receipts(made, len(work), errors)
    failed = [each for each in made if not each.holds or len(each.killed) < each.planted]
    raise typer.Exit(1 if failed else 3 if errors else 0)


def _run(
    work: list[Any], known: dict[str, Component], seed: int, jobs: int
) -> Iterator[tuple[Any, list[Receipt | str]]]:
    """Each task with its receipts, and with why something could not be judged."""
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    from samebits.checker.proving import attempt

    if jobs == 1 or len(work) < 2:
        for task in work:
            yield task, attempt(task, known, seed)
        return
    # A fresh interpreter each: threads and a GPU do not survive a fork.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_share_cores, initargs=(jobs,)) as pool:
        running = {pool.submit(attempt, task, known, seed): task for task in work}
        for future in as_completed(running):
            try:
                yield running[future], future.result()
            except BrokenProcessPool as error:
                yield running[future], [f"{running[future]}: could not be judged: its process ended: {error}"]


def _share_cores(jobs: int) -> None:
    """In a job: its part of the cores, and no more for the processes that it starts, unless the user said how many.
    Threads of sixteen jobs that all want sixteen cores wait for each other most of the time."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        threads = max(1, len(os.sched_getaffinity(0)) // jobs)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        torch.set_num_threads(threads)


def _required(task: Task) -> int:
    """The level that a contract asks for where the task runs."""
    return max(task.component.contract().required(each) for each in task.backend.split(", "))


@app.command()
def status(
    names: Names = None,
    backend: Backend = None,
    components: Components = None,
    trust: Trusted = None,
    receipts: Receipts = None,
    mutants: Annotated[bool, typer.Option("--mutants", help="Each mutant and its killer.")] = False,
    obligations: Annotated[bool, typer.Option("--obligations", help="Each obligation.")] = False,
    as_json: Json = False,
) -> None:
    """The level of every contract on every backend, from receipts.

    Example: [bold]samebits contract status softmax[/bold]"""
    from samebits.checker.planning import check_words
    from samebits.checker.status import effective_levels, standings

    check_words(None, backend)
    known, store = trusted_components(components, trust), store_of(receipts, components)
    wanted = chosen(names, known)
    found = standings(known, store, wanted)
    shown = {name: found[name] for name in wanted}
    if mutants:
        raise typer.Exit(print_mutants({name: known[name] for name in shown}, shown, as_json))
    whole = {each: effective_levels(found, known, each) for each in ("cpu", "triton")}
    if as_json:
        print_json({name: status_document(each, whole) for name, each in shown.items()})
    else:
        print_matrix(shown, whole, backend, obligations)
    verdicts = {each.verdict(on) for each in shown.values() for on in each.required if backend in (None, on)}
    raise typer.Exit(1 if "does not hold" in verdicts else 3 if "could not be judged" in verdicts else 0)


@app.command()
def audit(
    names: Names = None,
    components: Components = None,
    trust: Trusted = None,
    receipts: Receipts = None,
    as_json: Json = False,
) -> None:
    """Follow every equation to its receipts and list each hole. Example: [bold]samebits contract audit[/bold]"""
    from samebits.checker.status import holes, standings

    known = trusted_components(components, trust)
    wanted = chosen(names, known)
    found = standings(known, store_of(receipts, components))
    broken = [each for each in holes(known, found) if not names or each.contract in wanted]
    waiting = _planned() if components is None and not names else {}
    if as_json:
        print_json(
            {
                "holes": [{"contract": each.contract, "id": each.identifier, "what": each.what} for each in broken],
                "not_bound_yet": waiting,
            }
        )
    else:
        print_holes(wanted, found, broken, waiting)
    raise typer.Exit(1 if broken else 0)


def _planned() -> dict[str, list[str]]:
    """Contracts that wait for their code, with the ids of what they will oblige: listed, never counted."""
    from samebits.contracts.planned import planned

    return {name: list(each.obligations) for name, each in planned().items()}
