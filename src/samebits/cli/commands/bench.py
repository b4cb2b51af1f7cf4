"""`samebits bench`: the speed of operators and whole models beside the best alternative in the same run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from samebits.cli.console import Json, output, print_json, progress_bar
from samebits.cli.errors import INTERRUPTED

if TYPE_CHECKING:
    import torch

    from samebits.bench.cases import Planned
    from samebits.bench.measuring import Line

SCHEMA = "samebits.bench/1"
Operators = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME]...",
        help="Operators; or end to end: training, decode, invariant. Default: all operators, nothing end to end,"
        " which takes minutes.",
    ),
]
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="NAME|PATH",
        help="llama-3-8b, qwen3-8b, qwen3-1.7b, smollm2-135m, 350m, tiny, a config.json. Weights are random.",
    ),
]
Rows = Annotated[
    list[int] | None,
    typer.Option(
        "--rows", help="Rows of a batch; end to end sequences or requests. May be given several times.", min=1
    ),
]
Tokens = Annotated[
    list[int] | None,
    typer.Option("--tokens", help="Tokens of a sequence, of decode's prompts. May be given several times.", min=1),
]


def bench(
    operators: Operators = None,
    model: Models = None,
    rows: Rows = None,
    tokens: Tokens = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: the GPU, where one can be used.")] = None,
    seconds: Annotated[
        float, typer.Option(help="Of one measurement of one side; end to end it is one step.", min=0.001)
    ] = 0.05,
    all_sizes: Annotated[bool, typer.Option("--all-sizes", help="On a GPU: every model and size; long.")] = False,
    rounds: Annotated[int, typer.Option(help="Turns of ours and theirs; a figure is their median.", min=1)] = 5,
    record: Annotated[Path | None, typer.Option(help="A JSON file to write.")] = None,
    plot: Annotated[Path | None, typer.Option(help="An SVG to write: ratios by size.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be measured, and end.")] = False,
    as_json: Json = False,
) -> None:
    """Measure operators beside the best alternative: cuBLAS, cuDNN, flash attention, torch.compile, or torch on a CPU;
    whole models beside transformers, compiled on a GPU.

    Bits come first: a part computed alone must equal the same part of the whole, or nothing is timed (exit 1).
    A ratio above 1: samebits is faster. Interrupted, it shows and records what was measured until then.

    Example: [bold]samebits bench linear rmsnorm --model smollm2-135m --rows 1 --rows 64[/bold]

    End to end: [bold]samebits bench training decode invariant[/bold]"""

    from samebits.bench import end_to_end
    from samebits.bench.cases import Setting
    from samebits.bench.measuring import measured
    from samebits.bench.planning import ALL_SIZES, DEFAULTS, TOKENS_AT_ONCE, Sizes, planned
    from samebits.bench.shapes import read_model
    from samebits.records.durable import put_in_one_move

    for each in (record, plot):
        if each is not None and not each.resolve().parent.is_dir():
            raise ValueError(f"bench: {each}: no such folder; allowed: a file in a folder that exists")
    place = _device(device)
    if all_sizes and place.type != "cuda":
        raise ValueError(f"bench: --all-sizes on {place}: these are sizes of a GPU; allowed here: --rows, --tokens")
    usual = ALL_SIZES if all_sizes else DEFAULTS[place.type]
    models = dict(map(read_model, model or usual.models))
    sizes = Sizes(
        rows=tuple(rows or usual.rows),
        tokens=tuple(tokens or usual.tokens),
        decoded=usual.decoded,
        at_once=TOKENS_AT_ONCE if place.type == "cuda" else 1,
    )
    cases = planned(operators or [], models, sizes)
    whole = end_to_end.DEFAULTS["all sizes" if all_sizes else place.type]
    cases += end_to_end.planned(operators or [], whole, read_model, model or (), rows or (), tokens or ())
    setting = Setting(place, usual.dtype if dtype is None else _dtype(dtype))
    if dry_run:
        _print_plan(cases, setting, seconds * rounds, as_json)
        return
    load = os.getloadavg()[0]
    lines = _until_interrupted(measured(cases, setting, seconds, rounds), len(cases), f"measuring on {place}")
    document = _document(lines, setting) | {"planned": len(cases), "load": load, "cores": os.cpu_count() or 1}
    if record is not None:
        put_in_one_move(record, (json.dumps(document, indent=1) + "\n").encode())
    if plot is not None:
        from samebits.bench.plot import svg

        title = f"time of the best alternative over ours, {document['machine']}, {document['dtype']}"
        put_in_one_move(plot, svg(lines, title).encode())
    if as_json:
        print_json(document)
    else:
        _print_table(lines, document)
    if code := _exit_code(lines, len(cases)):
        raise typer.Exit(code)


def _until_interrupted(found: Iterator[Line], planned: int, label: str) -> list[Line]:
    """What was measured; all that is lost by an interruption is the case under way."""
    lines: list[Line] = []
    try:
        with progress_bar(label, planned) as tell:
            for line in found:
                lines.append(line)
                tell(1)
    except KeyboardInterrupt:
        if not lines:
            raise
    return lines


def _device(name: str | None) -> torch.device:
    import torch

    from samebits.ops._triton.device import missing

    lack = missing()
    if name is None:
        return torch.device("cpu" if lack else "cuda")
    if name not in ("cpu", "cuda"):
        raise ValueError(f"bench: --device is {name!r:.60}; allowed: cpu, cuda")
    if name == "cuda" and lack:
        raise ValueError(f"bench: --device cuda needs {lack}; allowed here: cpu")
    return torch.device(name)


def _dtype(name: str) -> torch.dtype:
    import torch

    allowed = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in allowed:
        raise ValueError(f"bench: --dtype is {name!r:.60}; allowed: {', '.join(allowed)}")
    return allowed[name]


def _print_plan(cases: list[Planned], setting: Any, each_seconds: float, as_json: bool) -> None:
    """Two sides and their first calls: a case of an operator takes at least twice its measurements."""
    from samebits.bench.end_to_end import PLANNERS

    whole = sum(each.operator in PLANNERS for each in cases)
    least = 2 * each_seconds * (len(cases) - whole)
    if as_json:
        print_json({"schema": SCHEMA, "cases": [str(each) for each in cases], "least_seconds": least})
        return
    for each in cases:
        output().print(str(each))
    beside = f", without the {whole} end to end" if whole else ""
    output().print(f"{len(cases)} cases on {setting.device}, at least {least:.0f} s{beside}")


def _document(lines: list[Line], setting: Any) -> dict[str, Any]:
    from dataclasses import asdict
    from datetime import date

    import torch

    from samebits.bench.measuring import summaries
    from samebits.bench.provenance import source_digest, versions
    from samebits.checker import environment

    gpu = setting.device.type == "cuda"
    return {
        "schema": SCHEMA,
        "date": date.today().isoformat(),
        "machine": torch.cuda.get_device_name(setting.device) if gpu else environment.processor(),
        **versions(),
        "sources": source_digest(),
        "dtype": str(setting.dtype).removeprefix("torch."),
        "summaries": [asdict(each) for each in summaries(lines)],
        "cases": [each.document() for each in lines],
    }


def _print_table(lines: list[Line], document: dict[str, Any]) -> None:
    table = Table(box=None, header_style="bold")
    for name in ("operator", "model", "sizes"):
        table.add_column(name, no_wrap=True)
    for name in ("ours", "speed", "best other", "ratio", "by calls"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for each in lines:
        if each.ratio is None or each.best is None:
            table.add_row(each.operator, each.model, each.sizes, each.bits)
            continue
        ours, beside = (f"{each.seconds[name] * 1e3:.3f} ms" for name in ("samebits", each.best))
        calls = "" if each.call_ratio is None else f"{each.call_ratio:.2f}"
        row = (ours, _speed(each), f"{each.best} {beside}", f"{each.ratio:.2f}", calls)
        table.add_row(each.operator, each.model, each.sizes, *row, _beside(each))
    output().print(table)
    for each in lines:
        if each.detail:
            output().print(f"{each.operator} {each.model} {each.sizes}: {each.bits}: {each.detail}", soft_wrap=True)
    for found in document["summaries"]:
        by_calls = "" if found["call_mean"] is None else f"; by calls {found['call_mean']:.2f}"
        mean = f"geometric mean {found['mean']:.2f} over {found['cases']} cases"
        output().print(f"{found['operator']}: {mean}, lowest {found['lowest']:.2f} ({found['where']}){by_calls}")
    output().print(
        f"{document['machine']}, {document['dtype']}, torch {document['torch']}; above 1: samebits is faster"
    )
    if len(lines) < document["planned"]:
        output().print(f"interrupted: {len(lines)} of {document['planned']} cases were measured")
    if document["load"] > document["cores"] / 2:
        output().print(f"other programs kept {document['load']:.1f} of {document['cores']} cores busy: measure again")


def _beside(line: Line) -> str:
    """What a GPU's line of a whole model says beside its time."""
    told = [f"{line.of_bandwidth:.2f} of a copy's bandwidth"] if line.of_bandwidth is not None else []
    if line.peak_bytes and line.best in line.peak_bytes:
        ours, theirs = (line.peak_bytes[name] / 1e9 for name in ("samebits", line.best))
        told.append(f"{ours:.1f} GB, {line.best} {theirs:.1f} GB")
    return "; ".join(told)


def _speed(line: Line) -> str:
    speed, unit = line.speed or 0.0, line.unit
    if unit == "TFLOP/s" and speed < 1:
        speed, unit = speed * 1e3, "GFLOP/s"
    return f"{speed:.3g} {unit}" if speed < 1000 else f"{speed:.0f} {unit}"


def _exit_code(lines: list[Line], planned: int) -> int:
    """1 where bits differ, 3 where nothing could be measured, 130 where the run was interrupted."""
    from samebits.bench.measuring import DIFFERS, HOLDS

    if any(each.bits == DIFFERS for each in lines):
        return 1
    if len(lines) < planned:
        return INTERRUPTED
    return 0 if any(each.bits == HOLDS for each in lines) else 3
