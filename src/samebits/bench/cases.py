"""What is measured: an operator or a whole model on one set of sizes, what stands beside it, how bits are looked at.

A case is made when its turn comes, so that the tensors of one are gone before the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from samebits.bench.cuda_timing import Calls
from samebits.numerics.bits import compare

Function = Callable[..., Tensor]
Unit = Literal["TFLOP/s", "GB/s", "tokens/s"]
Side = Callable[[], float]
"""One step of a whole model: first what is not timed, then the step; its seconds."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and in which format."""

    device: torch.device
    dtype: torch.dtype

    def random(self, *shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, device=self.device) * scale).to(self.dtype)

    def ids(self, count: int, vocabulary: int) -> Tensor:
        return torch.randint(vocabulary, (count,), device=self.device)


@dataclass(frozen=True, slots=True)
class Case:
    """Ours and theirs, each as calls that rotate over sets of inputs. `work`: operations, or bytes moved at least."""

    ours: Calls
    theirs: Mapping[str, Calls]
    parts: Callable[[], tuple[Tensor, Tensor]]
    """A part of the result computed by itself, and the same part of the whole: equal, or nothing is timed."""
    work: float
    unit: Unit
    captured: bool = True
    """Whether a GPU's kernels are timed from a CUDA graph. A backward pass runs on its forward pass's stream, which
    no graph captures: it is timed by its calls."""

    def difference(self) -> str | None:
        alone, among = self.parts()
        found = compare(alone.detach().cpu(), among.detach().cpu())
        return None if found is None else f"a part alone against the whole: {found}"


@dataclass(frozen=True, slots=True)
class EndToEnd:
    """A step of a whole model, ours and the alternatives'. Each side is made when bits have been looked at."""

    ours: Callable[[], Side]
    theirs: Mapping[str, Callable[[], Side]]
    difference: Callable[[], str | None]
    """What differs and may not; None where bits are equal."""
    tokens: int
    """Of one step."""
    bytes_read: int | None = None
    """By one step at least: on a GPU its speed is told as a share of what a copy of them allows."""
    peaks: bool = False
    """Whether each side has memory of its own, of which the most is told on a GPU."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A case to be made: `size` is the number that a plot is drawn over, rows or tokens."""

    operator: str
    model: str
    sizes: str
    size: int
    make: Callable[[Setting], Case | EndToEnd] = field(repr=False)

    def __str__(self) -> str:
        return f"{self.operator} {self.model} {self.sizes}"


def compiled(function: Function, setting: Setting) -> dict[str, Function]:
    """The function by torch.compile, on a GPU alone: on a CPU each would compile for half a minute."""
    if setting.device.type != "cuda":
        return {}
    made: Any = torch.compile(function)
    return {"torch.compile": made}


def gradients(function: Function, inputs: tuple[Tensor, ...], upstream: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """The backward pass alone of the function on these inputs."""
    leaves = [each.detach().requires_grad_() if each.is_floating_point() else each for each in inputs]
    result = function(*leaves)
    wanted = [each for each in leaves if each.requires_grad]
    return lambda: torch.autograd.grad(result, wanted, upstream, retain_graph=True)
