"""`samebits rl`: GRPO whose trainer sees what its engine sampled, to the last bit, and the same loop on stock torch."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from samebits.cli.commands.train import Tensor
from samebits.cli.console import VERDICT_STYLES, Json, output, print_json, progress
from samebits.cli.errors import between_ranks
from samebits.records.report import EXIT_CODES, Verdict

if TYPE_CHECKING:
    from samebits.parity.rl import BatchRecord

SCHEMA = "samebits.rl/1"
NAMES = {False: "samebits", True: "stock torch"}
# As many batches as are averaged at the start and at the end, to say whether the reward rose.
AVERAGED = 5
MOST_STEPS = 10**6


@dataclass(frozen=True, slots=True)
class Run:
    """What is shown of one of the two."""

    settings: dict[str, Any]
    digest: str
    """Of all weights at the end."""
    batches: list[BatchRecord]


def rl(
    steps: Annotated[int, typer.Option(help="Batches: one sampling, then the updates on it.")] = 30,
    seed: Annotated[int, typer.Option(help="Of weights, questions and sampling.")] = 0,
    task: Annotated[str, typer.Option(help="addition or sorting, over bytes.")] = "addition",
    model: Annotated[str, typer.Option(help="The shape: tiny, small, 50m, ...; its weights are random.")] = "tiny",
    prompts: Annotated[int, typer.Option(help="Questions in a batch.")] = 8,
    num_generations: Annotated[int, typer.Option(help="Completions of each question.")] = 16,
    num_iterations: Annotated[int, typer.Option(help="Optimizer steps on each batch.")] = 1,
    lanes: Annotated[int, typer.Option(help="Chains into which the gradient is cut; copies on ranks share them.")] = 1,
    micro_batch_size: Annotated[
        int, typer.Option(help="Completions in one forward of the trainer. Changes no bit.")
    ] = 32,
    learning_rate: Annotated[float, typer.Option(help="Of AdamW.")] = 3e-3,
    epsilon: Annotated[float, typer.Option(help="How far from 1 a ratio still counts.")] = 0.2,
    beta: Annotated[float, typer.Option(help="Weight of the divergence from the first policy.")] = 0.0,
    stock: Annotated[
        bool | None,
        typer.Option("--stock/--no-stock", help="Stock torch alone, or samebits alone. Default: both, on one rank."),
    ] = None,
    tensor: Tensor = 1,
    as_json: Json = False,
) -> None:
    """Train a random model on questions with checkable answers, and compare engine and trainer before every update.

    Holds if on every batch's first update no token's logprob differs, each importance ratio is 1 and KL is 0, exactly.
    With both, stock torch is a control and not judged. Under `samebits launch` or torchrun the ranks share sampling and
    training, with the bits of one.

    Example: [bold]samebits rl --steps 10[/bold]"""
    # Loaded here: the loop imports every operator, which other commands need not wait for.
    from samebits.parallel.agreeing import agree
    from samebits.parallel.grid import Grid
    from samebits.parallel.launching import ranks
    from samebits.parity.rl import Loop, RLConfig, byte_config

    if not 1 <= steps <= MOST_STEPS:
        raise ValueError(f"rl: steps is {steps}; allowed: 1 to {MOST_STEPS}")
    config = byte_config(model)
    asked = {
        "--model": model,
        "--steps": steps,
        "--seed": seed,
        "--task": task,
        "--prompts": prompts,
        "--num-generations": num_generations,
        "--num-iterations": num_iterations,
        "--learning-rate": learning_rate,
        "--epsilon": epsilon,
        "--beta": beta,
        "--lanes": lanes,
        "--micro-batch-size": micro_batch_size,
        "--tensor": tensor,
        "--stock": stock,
    }
    with ranks(device="cpu", tell=between_ranks(as_json)) as world:
        agree(world, "settings", asked)
        grid = Grid(world=world, tensor=tensor)
        # The control runs on one rank only.
        both = (False, True) if world.size == 1 else (False,)
        wanted = both if stock is None else (stock,)
        loops = {
            each: Loop(
                RLConfig(
                    seed=seed,
                    task=task,
                    prompts=prompts,
                    num_generations=num_generations,
                    num_iterations=num_iterations,
                    micro_batch_size=micro_batch_size,
                    lanes=lanes,
                    learning_rate=learning_rate,
                    epsilon=epsilon,
                    beta=beta,
                    stock=each,
                ),
                config,
                grid,
            )
            for each in wanted
        }
        records: dict[bool, list[BatchRecord]] = {each: [] for each in wanted}
        with progress("sampling") if world.rank == 0 else nullcontext(lambda _: None) as tell:
            for batch in range(1, steps + 1):
                for each, loop in loops.items():
                    tell(f"batch {batch} of {steps}, {NAMES[each]}")
                    records[each].append(loop.step())
        # Every rank has a part of the weights.
        digests = {each: loop.digest() for each, loop in loops.items()}
        runs = {each: Run(loops[each].settings.as_dict(), digests[each], records[each]) for each in wanted}
        holds = all(record.first.exact for record in records[wanted[0]])
        verdict = Verdict.HOLDS if holds else Verdict.DOES_NOT_HOLD
        if world.rank == 0 and as_json:
            print_json(_document(runs, verdict))
        elif world.rank == 0:
            _print(runs, verdict)
    raise typer.Exit(EXIT_CODES[verdict])


def _print(runs: dict[bool, Run], verdict: Verdict) -> None:
    console = output()
    console.print(_table({each: run.batches for each, run in runs.items()}))
    console.print()
    for each, run in runs.items():
        console.print(Text(f"{NAMES[each]}: {_summary(run.batches)}"))
        console.print(Text(f"  weights {run.digest}", style="dim"))
        first = next((record for record in run.batches if not record.first.exact), None)
        if first is not None:
            console.print(Text(f"  first in batch {first.batch}: {first.first}", style="dim"))
    judged = NAMES[next(iter(runs))]
    console.print(Text(f"on-policy to the last bit, {judged}: {verdict}", style=VERDICT_STYLES[str(verdict)]))


def _summary(found: list[BatchRecord]) -> str:
    tokens, wrong = sum(each.first.tokens for each in found), sum(each.first.mismatched for each in found)
    count = min(AVERAGED, len(found))
    start, end = (sum(each.reward for each in part) / count for part in (found[:count], found[-count:]))
    rewards = f"mean reward of {count} batches {start:.4f} at the start, {end:.4f} at the end"
    return f"{wrong} of {tokens} tokens differ between engine and trainer; {rewards}"


def _table(records: dict[bool, list[BatchRecord]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
    table.add_column("batch", justify="right")
    for each in records:
        for name in (f"{NAMES[each]}: reward", "tokens that differ", "ratio", "KL"):
            table.add_column(name, justify="right", no_wrap=True)
    for rows in zip(*records.values(), strict=True):
        table.add_row(str(rows[0].batch), *(cell for row in rows for cell in _cells(row)))
    return table


def _cells(record: BatchRecord) -> tuple[Text, ...]:
    first = record.first
    style = "green" if first.exact else "red"
    one = first.least_ratio == first.most_ratio
    ratio = f"{first.least_ratio:.9g}" if one else f"{first.least_ratio:.9g} to {first.most_ratio:.9g}"
    cells = (f"{first.mismatched} of {first.tokens}", ratio, f"{first.divergence:.3g}")
    return (Text(f"{record.reward:.4f}"), *(Text(cell, style=style) for cell in cells))


def _document(runs: dict[bool, Run], verdict: Verdict) -> dict[str, Any]:
    documents = {
        NAMES[each]: {
            "weights_sha256": run.digest,
            "settings": run.settings,
            "batches": [record.as_dict() for record in run.batches],
        }
        for each, run in runs.items()
    }
    return {"schema": SCHEMA, "verdict": str(verdict), "judged": NAMES[next(iter(runs))], "runs": documents}
