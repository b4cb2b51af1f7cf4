"""`samebits reveal`: the order in which a function adds, for several numbers of rows, in words and as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from samebits.cli.console import VERDICT_STYLES, Json, output, print_json, progress
from samebits.numerics.order import digest, height
from samebits.numerics.picture import describe, svg
from samebits.records.durable import put_in_one_move
from samebits.records.plain_file import refuse_unless_plain
from samebits.records.report import EXIT_CODES, Verdict

if TYPE_CHECKING:
    from samebits.numerics.reveal import OrderGroup, Revelation

SCHEMA = "samebits.reveal/1"
DEVICE_BACKENDS = {"cpu": "cpu", "cuda": "triton", "triton": "triton"}
DEFAULT_ROWS = "1,2,8,64"


def reveal(
    target: Annotated[str, typer.Argument(help="An operator (matmul) or a function (torch.nn.functional.linear).")],
    k: Annotated[int, typer.Option(help="How many terms are added.")] = 64,
    rows: Annotated[str | None, typer.Option(help=f"Batch sizes, joined by commas.  [default: {DEFAULT_ROWS}]")] = None,
    like: Annotated[str | None, typer.Option(help="The operator that the function computes, e.g. linear.")] = None,
    format: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str, typer.Option("--device", "--backend", help="cpu or cuda.")] = "cpu",
    picture: Annotated[Path, typer.Option("--svg", help="Where the picture is written; numbered if several.")] = Path(
        "samebits_reveal.svg"
    ),
    no_svg: Annotated[bool, typer.Option("--no-svg", help="Write no picture.")] = False,
    as_json: Json = False,
) -> None:
    """Find the order in which a function adds, by measurement, and replay it bit for bit on other numbers.

    Example: [bold]samebits reveal torch.nn.functional.linear --k 64 --rows 1,2,8,64[/bold]"""
    # Loaded here: other commands need not wait for it.
    from samebits import checker
    from samebits.numerics.reveal import group_orders

    if device not in DEVICE_BACKENDS:
        raise ValueError(f"unknown device {device!r}; allowed: cpu, cuda")
    sizes = _sizes(target, rows, like)
    with progress(f"revealing {target}"):
        found = checker.reveal(target, k, sizes, like, format=format, backend=DEVICE_BACKENDS[device])
    groups = group_orders({str(size): revelation for size, revelation in found.items()})
    written = [] if no_svg else write_pictures(groups, target, picture)
    verdict = _verdict(groups)
    if as_json:
        print_json(_document(target, k, format, device, groups, found, written, verdict))
    else:
        _print(target, k, format, groups, found, written, verdict)
    raise typer.Exit(EXIT_CODES[verdict])


def _sizes(target: str, rows: str | None, like: str | None) -> tuple[int, ...]:
    """Batch sizes; a plain sum has none, so that there the default is one."""
    from samebits import checker

    if rows is None:
        rows = DEFAULT_ROWS if checker.has_rows(target, like) else "1"
    sizes = rows.split(",")
    if not all(size.strip().isascii() and size.strip().isdigit() and int(size) > 0 for size in sizes):
        raise ValueError(f"rows={rows!r} cannot be read; allowed: sizes of at least 1 joined by commas, like 1,2,8,64")
    return tuple(dict.fromkeys(int(size) for size in sizes))


def _verdict(groups: tuple[OrderGroup, ...]) -> Verdict:
    if any(group.verdict.startswith(Verdict.COULD_NOT_BE_JUDGED) for group in groups):
        return Verdict.COULD_NOT_BE_JUDGED
    one = len(groups) == 1 and groups[0].verdict == Verdict.HOLDS
    return Verdict.HOLDS if one else Verdict.DOES_NOT_HOLD


def write_pictures(groups: tuple[OrderGroup, ...], target: str, path: Path) -> list[Path]:
    """One SVG an order; several are numbered."""
    drawn = [group for group in groups if group.order is not None]
    written = []
    for number, group in enumerate(drawn, 1):
        place = path if len(drawn) == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")
        assert group.order is not None
        refuse_unless_plain(place)
        try:
            put_in_one_move(place, svg(group.order, title=f"{target}, rows {', '.join(group.labels)}").encode())
        except OSError as error:
            raise ValueError(f"--svg {place}: {error.strerror}") from error
        written.append(place)
    return written


def _replays(group: OrderGroup) -> str:
    """What is said of one order: whether it replays. Only all orders together hold or do not."""
    return "replays" if group.verdict == Verdict.HOLDS else group.verdict


def _words(group: OrderGroup) -> str:
    if group.order is None:
        return "no order"
    return f"{describe(group.order)}  [{digest(group.order)[:12]}]"


def _print(
    target: str,
    k: int,
    format: str,
    groups: tuple[OrderGroup, ...],
    found: dict[int, Revelation],
    written: list[Path],
    verdict: Verdict,
) -> None:
    from samebits.checker.special_terms import NOT_ASKED

    console = output()
    count = "one order" if len(groups) == 1 else f"{len(groups)} orders"
    console.print(Text(f"{target}, {k} terms, {format}: {count}", style="bold"))
    for number, group in enumerate(groups, 1):
        first = found[int(group.labels[0])]
        text = Text(f"\n{number}. {_words(group)}\n   rows {', '.join(group.labels)}\n   ")
        text.append(_replays(group), style=VERDICT_STYLES[group.verdict.partition(":")[0]])
        replayed = f"{first.replayed} of {first.replay_total} vectors replayed bit for bit"
        text.append(f"; {first.probes} {first.probe} probes; {replayed}; {first.mutants} close orders told apart")
        console.print(text)
    if any(each.holds for each in found.values()):
        words = f"zeros and subnormal numbers were among the terms, too; not asked: {NOT_ASKED}"
        console.print(Text(f"\n{words}", style="dim"))
    if written:
        console.print(Text(f"\nwritten: {', '.join(map(str, written))}", style="dim"))
    why = f": {len(groups)} orders, one is needed" if len(groups) > 1 and verdict is Verdict.DOES_NOT_HOLD else ""
    console.print(Text(f"\n{verdict}{why}", style=VERDICT_STYLES[str(verdict)]))


def _document(
    target: str,
    k: int,
    format: str,
    device: str,
    groups: tuple[OrderGroup, ...],
    found: dict[int, Revelation],
    written: list[Path],
    verdict: Verdict,
) -> dict[str, Any]:
    def one(group: OrderGroup) -> dict[str, Any]:
        sizes = [int(label) for label in group.labels]
        return {
            "rows": sizes,
            "order": describe(group.order) if group.order else None,
            "digest": digest(group.order) if group.order else None,
            "height": height(group.order) if group.order else None,
            "verdict": _replays(group),
            "probe": found[sizes[0]].probe,
            "probes": sum(found[size].probes for size in sizes),
            "replayed": sum(found[size].replayed for size in sizes),
            "replay_total": sum(found[size].replay_total for size in sizes),
        }

    return {
        "schema": SCHEMA,
        "target": target,
        "terms": k,
        "format": format,
        "device": device,
        "verdict": str(verdict),
        "orders": [one(group) for group in groups],
        "pictures": [str(path) for path in written],
    }
