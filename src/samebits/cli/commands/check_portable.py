"""`samebits check --portable`: one row a group of goldens, with its digest and whether it is the recorded one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from rich.table import Table
from rich.text import Text

from samebits.checker.environment import environment
from samebits.cli.console import VERDICT_STYLES, output, print_json, progress
from samebits.records.report import EXIT_CODES, Verdict

if TYPE_CHECKING:
    from samebits.parity.portable import Replayed

# Names of results that a row shows; --json has them all.
SHOWN = 5


def check_portable(
    backend: str, instruction_set: str | None, record: bool, as_json: bool, others: Sequence[object]
) -> NoReturn:
    """Replays, or records and then replays; exits 0 where all are equal, 1 where one differs, 3 where none can be."""
    # Loaded here: the goldens import every operator, the trainer and the engine.
    from samebits.parity import portable

    if any(other not in (None, False, []) for other in others):
        raise ValueError("check: --portable goes with --backend, --instruction-set, --record and --json alone")
    if backend != "cpu" and (record or instruction_set is not None):
        raise ValueError(f"check: --portable --backend {backend} takes no --record and no --instruction-set")
    groups = portable.groups_of(backend)
    rows: list[Replayed] = []
    try:
        _require(backend)
        with progress("replaying") as tell:
            if record:
                portable.record(instruction_set=instruction_set)
            for group, replayed in zip(groups, portable.replay(backend, instruction_set), strict=True):
                rows.append(replayed)
                tell(group)
    except (portable.UnreadableRecordError, RuntimeError) as error:
        _print(rows, Verdict.COULD_NOT_BE_JUDGED, " ".join(str(error).split()), backend, instruction_set, as_json)
    verdict = Verdict.HOLDS if all(row.equal for row in rows) else Verdict.DOES_NOT_HOLD
    _print(rows, verdict, "", backend, instruction_set, as_json)


def _require(backend: str) -> None:
    """One line where the backend cannot run here."""
    if backend == "triton":
        import torch

        from samebits.ops._triton.device import require_cuda

        require_cuda("portable", torch.device("cuda"))


def _print(
    rows: Sequence[Replayed], verdict: Verdict, reason: str, backend: str, instruction_set: str | None, as_json: bool
) -> NoReturn:
    if as_json:
        told: dict[str, Any] = {
            "verdict": str(verdict),
            "reason": reason,
            "backend": backend,
            "instruction_set": instruction_set,
            "environment": environment(),
            "groups": [{**asdict(row), "equal": row.equal} for row in rows],
        }
        print_json(json.loads(json.dumps(told)))
        raise typer.Exit(EXIT_CODES[verdict])
    console = output()
    if rows:
        console.print(_table(rows))
    for row in rows:
        for name in row.differing[:SHOWN]:
            console.print(Text(f"{row.group}: {name} differs"))
        if len(row.differing) > SHOWN:
            console.print(Text(f"{row.group}: {len(row.differing) - SHOWN} more differ; --json names them"))
    line = f"{verdict}: {reason}" if reason else str(verdict)
    console.print(Text(line, style=VERDICT_STYLES[str(verdict)]))
    raise typer.Exit(EXIT_CODES[verdict])


def _table(rows: Sequence[Replayed]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
    for name in ("group", "digest", "against the record"):
        table.add_column(name, no_wrap=True)
    table.add_column("results", justify="right", no_wrap=True)
    for row in rows:
        style = VERDICT_STYLES["holds" if row.equal else "does not hold"]
        word = "equal" if row.equal else "differs"
        table.add_row(row.group, row.digest, Text(word, style=style), str(row.results))
    return table
