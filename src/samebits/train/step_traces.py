"""Some steps of a run recorded whole, a file each: its kernels, its blocks and the step itself.

Recording takes time at every kernel, so a long run records one step in many. It decides no bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from samebits.records.durable import PART
from samebits.trace import JsonLines, active, recording
from samebits.trace.modules import modules_as_spans

FOLDER: Final = "traces"


class StepTraces:
    """The recordings of one process in a run's folder."""

    def __init__(self, folder: Path, every: int) -> None:
        """`every`: each step that is a multiple of it is recorded; 0: none."""
        if every < 0:
            raise ValueError(f"trace_steps is {every}; allowed: 1 for every step, n for every n-th, 0 for none")
        if every and active():
            raise ValueError(f"trace_steps is {every}, and a recording is under way already; allowed: one of the two")
        self.folder, self.every = folder / FOLDER, every

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Around a step, which is recorded where it is its turn; a step that fails is kept, too."""
        if not self.every or number % self.every:
            yield
            return
        self.folder.mkdir(exist_ok=True)
        path = self.folder / f"step_{number:08d}.jsonl"
        beside = path.with_name(path.name + PART)
        try:
            with recording(JsonLines(beside)), modules_as_spans():
                yield
        finally:
            beside.replace(path)


def newest(folder: Path) -> Path | None:
    """The last step that was recorded in a run's folder."""
    return max((folder / FOLDER).glob("step_*.jsonl"), default=None)
