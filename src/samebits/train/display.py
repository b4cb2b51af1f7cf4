"""What a run shows while it goes on, on stderr: a live table on a terminal, else a line every few steps.

Knows no file. Nothing that it does reaches the run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from samebits.train.trainer import StepRecord

# Losses of the small picture.
SHOWN: Final = 48
BARS: Final = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """A step and how fast it was."""

    record: StepRecord
    steps: int
    tokens_per_second: float
    utilisation: float


class Screen(Protocol):
    """Where a run is shown."""

    def step(self, shown: Shown) -> None: ...

    def note(self, text: str) -> None: ...


class Silent:
    """Shows nothing."""

    def step(self, shown: Shown) -> None:
        return

    def note(self, text: str) -> None:
        return


class Lines:
    """A line every few steps, and one for the first and the last."""

    def __init__(self, every: int) -> None:
        self.every = every

    def step(self, shown: Shown) -> None:
        number = shown.record.step
        if number == 1 or number % self.every == 0 or number == shown.steps:
            print(line(shown), file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def line(shown: Shown) -> str:
    record = shown.record
    return (
        f"step {record.step}/{shown.steps}  loss {record.loss:.4f}  norm {record.norm:.3f}  rate {record.rate:.3e}"
        f"  {shown.tokens_per_second:,.0f} tokens/s  MFU {shown.utilisation:.1%}"
    )


class LiveTable:
    """A live table with the losses as a small picture."""

    def __init__(self, live: Live) -> None:
        self.live, self.losses = live, list[float]()

    def step(self, shown: Shown) -> None:
        self.losses = [*self.losses, shown.record.loss][-SHOWN:]
        self.live.update(picture(shown, self.losses))

    def note(self, text: str) -> None:
        self.live.console.print(text, markup=False, highlight=False)


def picture(shown: Shown, losses: list[float]) -> Table:
    record, table = shown.record, Table(box=None, show_header=False, padding=(0, 3, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_row(f"step {record.step}", ProgressBar(total=shown.steps, completed=record.step, width=SHOWN))
    table.add_row("loss", Text(f"{record.loss:.4f}  ").append(bars(losses), style="cyan"))
    table.add_row("gradient norm", f"{record.norm:.4f}, clipped {record.norm_after:.4f}")
    table.add_row("learning rate", f"{record.rate:.4e}")
    table.add_row("tokens/s", f"{shown.tokens_per_second:,.0f}, MFU {shown.utilisation:.1%}")
    return table


def bars(losses: list[float]) -> str:
    """One bar a loss, the lowest and the highest of them at the ends of the scale."""
    low, high = min(losses), max(losses)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((loss - low) * scale)] for loss in losses)


@contextmanager
def on_stderr(every: int) -> Iterator[Screen]:
    """A live table where stderr is a terminal, lines where it is not."""
    console = Console(stderr=True, markup=False)
    if not console.is_terminal:
        yield Lines(every)
        return
    with Live(console=console, refresh_per_second=8) as live:
        yield LiveTable(live)
