"""`samebits sim run | explore | predict | validate`: programs on the virtual cluster, and what they would cost."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from samebits.cli.commands.sim_predict import predict
from samebits.cli.commands.sim_validate import validate
from samebits.cli.console import VERDICT_STYLES, Json, output, print_json, progress
from samebits.records.report import EXIT_CODES, Verdict

if TYPE_CHECKING:
    from samebits.sim.choices import Policy
    from samebits.sim.explore import Exploration, Finding, Program, Seen

app = typer.Typer(
    help="The virtual cluster: run a distributed program in one process, and try schedules that could move its bits.",
    rich_markup_mode="rich",
    no_args_is_help=True,
)
app.command()(predict)
app.command()(validate)
SCHEMA: Final = "samebits.sim/1"
MOST_SEEDS: Final = 1_000_000

Target = Annotated[str, typer.Argument(help="A file.py, or module:function that takes the rank.")]
Words = Annotated[list[str] | None, typer.Argument(help="What the program finds in sys.argv; behind --.")]
Ranks = Annotated[int, typer.Option("--ranks", min=1, max=1024, help="How many ranks, each one virtual device.")]
FaultPlan = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        help="crash@RANK:WAIT, late@RANK:WAIT:SECONDS, slow@RANK:WAIT:FACTOR,"
        " skip@RANK:COLLECTIVE or swap@RANK:COLLECTIVE; may be repeated.",
    ),
]


@app.command()
def run(
    target: Target,
    words: Words = None,
    ranks: Ranks = 2,
    seed: Annotated[int | None, typer.Option(help="A schedule drawn from this seed; without it, FIFO.")] = None,
    policy: Annotated[
        str | None, typer.Option(help="With --seed: uniform, priority or starve; uniform if left out.")
    ] = None,
    trace: Annotated[str | None, typer.Option(help="The schedule of a trace, as `explore` prints it.")] = None,
    fault: FaultPlan = None,
    as_json: Json = False,
) -> None:
    """Run a program on virtual ranks, with the bits of gloo.

    Example: [bold]samebits sim run examples/tensor_parallel.py --ranks 3[/bold]"""
    from samebits.sim.choices import Fifo, Replayed, picks_of, policy_of
    from samebits.sim.explore import run_once

    if seed is not None and trace is not None:
        raise ValueError("sim run: --seed and --trace are both given; allowed: one of them")
    if policy is not None and seed is None:
        raise ValueError(f"sim run: --policy is {policy!r} and there is no --seed; allowed: with --seed")
    chosen: Policy = Fifo()
    if trace is not None:
        chosen = Replayed(picks_of(trace))
    elif seed is not None:
        chosen = policy_of(policy or "uniform", seed, ranks)
    program, settings = _program(target, ranks), _settings(fault)
    start = time.monotonic()
    with progress(f"running {target} on {ranks} ranks"), _spoken(target, words, as_json):
        seen = run_once(program, chosen, settings)
    missed = [f"fault {each}" for each in seen.missed]
    if isinstance(chosen, Replayed):
        missed += [f"choice {number}:{index} of the trace" for number, index in chosen.unmet.items()]
    if missed and not seen.error:
        verdict = Verdict.COULD_NOT_BE_JUDGED
    else:
        verdict = Verdict.DOES_NOT_HOLD if seen.error else Verdict.HOLDS
    document = {
        "schema": SCHEMA,
        "command": "run",
        "program": target,
        "ranks": ranks,
        "verdict": str(verdict),
        "seconds": round(time.monotonic() - start, 3),
        **_schedule(seen),
        "missed": missed,
    }
    if as_json:
        print_json(document)
    else:
        _print_run(target, ranks, seen, missed, verdict)
    raise typer.Exit(EXIT_CODES[verdict])


@app.command()
def explore(
    target: Target,
    words: Words = None,
    ranks: Ranks = 2,
    seeds: Annotated[int, typer.Option(min=1, max=MOST_SEEDS, help="How many seeds.")] = 100,
    first: Annotated[int, typer.Option("--first-seed", min=0, help="The first of them: processes share a range.")] = 0,
    policy: Annotated[str, typer.Option(help="uniform, priority, starve, or several joined by commas.")] = "uniform",
    fault: FaultPlan = None,
    as_json: Json = False,
) -> None:
    """Run a program under many seeded schedules: all must give the bits of the first, collective by collective.

    Example: [bold]samebits sim explore examples/tensor_parallel.py --ranks 3 --seeds 20[/bold]"""
    from samebits.sim.choices import policy_of
    from samebits.sim.explore import explore as explored

    names = [name.strip() for name in policy.split(",")]
    for name in names:
        policy_of(name, 0, ranks)
    program, settings = _program(target, ranks), _settings(fault)
    start = time.monotonic()
    with progress(f"exploring {target}") as tell, _spoken(target, words, as_json):

        def told(found: Exploration) -> None:
            tell(f"{found.runs} of {seeds * len(names)} schedules of {target}, {len(found.schedules)} distinct")

        found = explored(program, range(first, first + seeds), names, settings=settings, told=told)
    verdict = _verdict(found)
    if as_json:
        print_json(_document(target, ranks, found, verdict, time.monotonic() - start))
    else:
        _print_exploration(target, ranks, found, verdict)
    raise typer.Exit(EXIT_CODES[verdict])


def _program(target: str, ranks: int) -> Program:
    from samebits.sim.explore import Program
    from samebits.sim.programs import program_of

    return Program(program_of(target), ranks)


def _settings(faults: list[str] | None) -> Any:
    from samebits.sim.cluster import Settings
    from samebits.sim.faults import Fault

    return Settings(faults=tuple(Fault.read(text) for text in faults or ()))


@contextlib.contextmanager
def _spoken(target: str, words: list[str] | None, as_json: bool) -> Any:
    """What the program prints goes to stderr where stdout is a document."""
    from samebits.sim.programs import command_line

    where = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    with command_line(target.partition(":")[0], words or []), where:
        yield


def _verdict(found: Exploration) -> Verdict:
    """A program that fails under FIFO, or does not repeat itself, has no bits that could move; a fault that never came
    shows nothing."""
    if found.reference.error or found.unsteady or (found.holds and found.missed):
        return Verdict.COULD_NOT_BE_JUDGED
    return Verdict.HOLDS if found.holds else Verdict.DOES_NOT_HOLD


def _schedule(seen: Seen) -> dict[str, Any]:
    return {
        "hand_offs": seen.trace.hand_offs,
        "collectives": len(seen.journal.entries),
        "trace": seen.trace.text,
        "results": list(seen.digests),
        "simulated_seconds": list(seen.clocks),
        "error": seen.error,
    }


def _print_missed(missed: Sequence[str]) -> None:
    if missed:
        output().print(Text(f"asked for, and the program came to no such place: {', '.join(missed)}"))


def _print_run(target: str, ranks: int, seen: Seen, missed: Sequence[str], verdict: Verdict) -> None:
    console = output()
    console.print(
        Text(
            f"{target} on {ranks} ranks: {seen.trace.hand_offs} hand-offs,"
            f" {len(seen.journal.entries)} results of collectives and messages"
        )
    )
    if seen.error:
        console.print(Text(f"error: {seen.error}\ntrace: {seen.trace.text}"))
    _print_missed(missed)
    console.print(Text(str(verdict), style=VERDICT_STYLES[str(verdict)]))


def _document(target: str, ranks: int, found: Exploration, verdict: Verdict, seconds: float) -> dict[str, Any]:
    finding = found.finding
    return {
        "schema": SCHEMA,
        "command": "explore",
        "program": target,
        "ranks": ranks,
        "verdict": str(verdict),
        "seconds": round(seconds, 3),
        "schedules": found.runs,
        "distinct": len(found.schedules),
        "hashes": len(found.hashes),
        "hand_offs": found.hand_offs,
        "error": found.reference.error,
        "unsteady": found.unsteady,
        "missed": [f"fault {each}" for each in found.missed],
        "finding": None if finding is None else _finding(finding),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "seed": finding.seed,
        "policy": finding.policy,
        "why": finding.why,
        "trace": finding.trace,
        "smallest": finding.smallest,
        "choices": [str(choice) for choice in finding.choices],
        "races": finding.races,
        "shrink_runs": finding.runs,
    }


def _print_exploration(target: str, ranks: int, found: Exploration, verdict: Verdict) -> None:
    console = output()
    console.print(
        Text(
            f"{target} on {ranks} ranks: {found.runs} schedules, {len(found.schedules)} of them distinct,"
            f" {len(found.hashes)} result{'s' if len(found.hashes) != 1 else ''}"
        )
    )
    if found.reference.error:
        console.print(Text(f"FIFO itself ends with an error: {found.reference.error}"))
    elif found.unsteady:
        console.print(Text(found.unsteady))
    elif (finding := found.finding) is not None:
        console.print(Text(f"seed {finding.seed}, {finding.policy}: {finding.why}"))
        if finding.races:
            console.print(Text(finding.races))
        console.print(Text(f"smallest trace ({finding.runs} runs): {finding.smallest}"))
        for choice in finding.choices:
            console.print(Text(f"  {choice}"))
        console.print(Text(f'again: samebits sim run {target} --ranks {ranks} --trace "{finding.smallest}"'))
    else:
        console.print(Text("sampled schedules, not all of them", style="dim"))
    _print_missed([f"fault {each}" for each in found.missed])
    console.print(Text(str(verdict), style=VERDICT_STYLES[str(verdict)]))
