"""`samebits sim predict`: what a training configuration would cost on so many GPUs, with which layout and promises."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from samebits.cli.commands.plan import Settings, Source
from samebits.cli.console import Json, output, print_json, progress

if TYPE_CHECKING:
    from samebits.sim.layouts import Training
    from samebits.sim.predict import Prediction, Refused

SCHEMA: Final = "samebits.sim_predict/1"
MODEL: Final = "a model's word, not a measurement: `samebits sim validate` says how far off such words are"

Gpus = Annotated[list[int], typer.Option("--gpus", min=1, max=1 << 20, help="How many GPUs; may be repeated.")]
Preset = Annotated[str, typer.Option("--preset", help="The nodes: h100-node, h200-node or a100-node.")]
Layouts = Annotated[
    list[str] | None,
    typer.Option("--layout", help="Copies and ranks of a copy, like dp8xtp4; else the fastest is looked for."),
]
Batch = Annotated[
    int | None, typer.Option("--batch", min=1, help="Sequences an update, where not those of the recipe.")
]
Measured = Annotated[
    float | None,
    typer.Option("--measured", help="Tokens a second of one GPU on this recipe: kernels are taken to be that fast."),
]
TraceFile = Annotated[Path | None, typer.Option("--trace", help="Write the timelines for Perfetto, as JSON.")]
PictureFile = Annotated[Path | None, typer.Option("--picture", help="Write the timelines as an SVG picture.")]


def predict(
    config: Source,
    gpus: Gpus,
    preset: Preset = "h100-node",
    layout: Layouts = None,
    batch: Batch = None,
    measured: Measured = None,
    settings: Settings = None,
    trace: TraceFile = None,
    picture: PictureFile = None,
    as_json: Json = False,
) -> None:
    """Predict a training step on many GPUs: time, layout, and what each promise adds. Exit 1 where none is allowed.

    Example: [bold]samebits sim predict recipes/8b.yaml --gpus 64 --gpus 1024[/bold]"""
    from samebits.cli.sim_workload import training_of
    from samebits.sim.gpus import preset as preset_of
    from samebits.sim.layouts import Layout
    from samebits.sim.predict import Refused, as_fast_as, predict_all

    begun = time.perf_counter()
    for option, path in (("--trace", trace), ("--picture", picture)):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise ValueError(f"sim predict: {option} is {path}; allowed: a file in a folder that is there")
    cluster = preset_of(preset)
    layouts = [Layout.parse(text) for text in layout or []]
    with progress(f"reading {config}") as tell:
        training = training_of(config, settings or [], batch)
        if measured is not None:
            cluster = as_fast_as(cluster, training, measured)
        tell("predicting")
        found = predict_all(training, list(dict.fromkeys(gpus)), cluster, layouts)
    _write(found, training, trace, picture)
    seconds = time.perf_counter() - begun
    if as_json:
        print_json(
            {
                "schema": SCHEMA,
                "config": str(config),
                "preset": preset,
                "sequences": training.sequences,
                "tokens": training.tokens,
                "weights": training.decoder.weights,
                "note": MODEL,
                "predictions": [each.as_dict() for each in found],
                "seconds": round(seconds, 3),
            }
        )
    else:
        _print(found, training, preset, seconds)
    raise typer.Exit(1 if any(isinstance(each, Refused) for each in found) else 0)


def _write(found: list[Prediction | Refused], training: Training, trace: Path | None, picture: Path | None) -> None:
    """Timelines of the largest number of GPUs that can be predicted both ways: nothing promised, and everything."""
    from samebits.sim.predict import Prediction
    from samebits.sim.timeline import chrome_trace
    from samebits.sim.timeline_picture import picture_of

    if trace is None and picture is None:
        return
    both: dict[int, list[Prediction]] = {}
    for each in found:
        if isinstance(each, Prediction) and each.promises in ((), ALL):
            both.setdefault(each.gpus, []).append(each)
    drawn = [pair for _, pair in sorted(both.items()) if len(pair) == 2]
    if not drawn:
        raise ValueError("--trace, --picture: nothing to draw: no number of GPUs is allowed with and without promises")
    if trace is not None:
        trace.write_text(json.dumps(chrome_trace({title_of(each): each.events for each in drawn[-1]})))
    if picture is not None:
        picture.write_text(picture_of(drawn[-1], training))


ALL: Final = ("data", "tensor")


def title_of(prediction: Prediction) -> str:
    return f"{prediction.gpus:,} GPUs, {prediction.layout}, {' and '.join(prediction.promises) or 'no'} promise kept"


def _print(found: list[Prediction | Refused], training: Training, preset: str, seconds: float) -> None:
    from samebits.sim.predict import Prediction

    console = output()
    console.print(
        Text(
            f"{training.decoder.weights / 1e9:,.2f} billion weights, {training.sequences:,} sequences of"
            f" {training.length:,} tokens an update, {training.dtype}, on {preset}s"
        )
    )
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    names = (
        "GPUs",
        "promises",
        "layout",
        "step",
        "tokens/s",
        "MFU",
        "memory",
        "waiting",
        "same layout",
        "against none",
    )
    for name in names:
        table.add_column(name, justify="left" if name in ("promises", "layout") else "right", no_wrap=True)
    native: dict[int, float] = {}
    for each in found:
        if isinstance(each, Prediction):
            native.setdefault(each.gpus, each.seconds if not each.promises else float("nan"))
            table.add_row(*_row(each, native[each.gpus]))
        else:
            table.add_row(f"{each.gpus:,}", ", ".join(each.promises) or "none", "refused", *["-"] * 7)
    console.print(table)
    for each in found:
        if not isinstance(each, Prediction):
            console.print(Text(f"refused, {', '.join(each.promises) or 'no promise'}: {each}", style="bold red"))
    console.print(Text(f"predicted in {seconds:.1f} s; {MODEL}", style="dim"))


def _row(each: Prediction, native: float) -> tuple[str, ...]:
    added = (f"{each.beside_native:.2f} x", f"{each.seconds / native:.2f} x") if each.promises else ("-", "-")
    return (
        f"{each.gpus:,}",
        ", ".join(each.promises) or "none",
        str(each.layout),
        _time(each.seconds),
        f"{each.tokens_per_s:,.0f}",
        f"{each.utilisation:.1%}",
        f"{each.memory / 1e9:,.1f} GB",
        f"{each.waiting:.0%}",
        *added,
    )


def _time(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{seconds * 1e3:,.1f} ms"
