"""The project's own launches, with the machine in the place of the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

from tests.ops.hopper_on_cpu.running import Edit, run

from samebits.checker.tracing.comparing import without_gpu


@contextmanager
def launches(*modules: ModuleType, seed: int = 0, edits: Sequence[Edit] = ()) -> Iterator[None]:
    """Whatever these modules launch by `run` runs on the machine, on tensors in main memory."""

    def here(kernel: Any, programs: int, given: tuple[Any, ...], *, warps: int, stages: int, **constants: Any) -> None:
        run(kernel, programs, given, constants, seed=seed, warps=warps, edits=edits)

    with without_gpu(), ExitStack() as patches:
        for module in modules:
            patches.enter_context(patch.object(module, "run", here))
        yield
