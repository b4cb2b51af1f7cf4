"""Ten bugs of the field, each planted into a real part of a real run: what is inspected is the trainer itself.

Kernels that are told wrong sizes are the native ones; what they write beside their memory is written. Only streams,
of which there are none without a GPU, are a plan: `transfers_of_a_step` says what of it is real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from tests.train.small_run import small, trainer_of
from torch import Tensor

from samebits.model import Model
from samebits.nn.strategy import Operators
from samebits.ops._cpu import FORMATS, elements, pointer, run
from samebits.ops.accumulation import Sums, linear_into
from samebits.ops.adamw import AdamW
from samebits.ops.matmul import cpu_kernel, linear, matmul
from samebits.parallel.grid import Grid
from samebits.parallel.world import World
from samebits.trace.stream_recording import recorded_streams
from samebits.trace.streams import Done, HostRead, HostWait
from samebits.train import lanes
from samebits.train.assessment import model_of
from samebits.train.configuration import OptimizerSection, TrainConfig
from samebits.train.inspecting import Subject, inspected
from samebits.train.trainer import Parts, made, zero_moment

# One update of two sequences, so that a run under inspection takes seconds.
QUICK = ("training.gradient_accumulation_steps=1", "data.max_length=16", "training.max_steps=10")
UP = "model.layers.1.mlp.up_proj.weight"
# Of a layer's seven products, in order, the first is that of q_proj and the sixth that of up_proj.
PRODUCTS, Q, UP_PLACE = 7, 1, 6
COMPUTE, DEFAULT = 7, 0


def quick(*settings: str) -> TrainConfig:
    return small(*QUICK, *settings)


def with_linear(config: TrainConfig, layer: int, place: int, fault: Callable[..., Tensor]) -> Model:
    """The model of a run, one product of which is computed by `fault`."""
    model = model_of(config)
    products, seen = PRODUCTS * model.config.num_hidden_layers, [0]

    def chosen(x: Tensor, weight: Tensor, sums: Sums) -> Tensor:
        seen[0] += 1
        faulty = seen[0] % products == (PRODUCTS * layer + place) % products
        return fault(x, weight, sums) if faulty else linear_into(x, weight, sums)

    return replace(model, operators=Operators(linear=chosen))


@contextmanager
def overflowing_gate() -> Iterator[None]:
    """The gate's gradient, [tokens, intermediate], is written into memory of [tokens, hidden] first, in layer 0."""
    real, calls, hidden = elements.ElementKernels.backward, [0], 48

    def backward(self: elements.ElementKernels, dy: Tensor, *given: Any) -> Any:
        calls[0] += self.name == "swiglu"
        if self.name == "swiglu" and calls[0] % 2 == 0:
            narrow, beside = torch.empty(dy.shape[:-1].numel(), hidden), torch.empty_like(dy)
            addresses = [each.data_ptr() for each in (dy, *given[: self.tensors], narrow, beside)]
            run("swiglu_backward", "iqppppp", FORMATS[dy.dtype], dy.numel(), *addresses)
        return real(self, dy, *given)

    with patch.object(elements.ElementKernels, "backward", backward):
        yield


def mismatched_copy(model: Model, examples: list[lanes.Example], cut: lanes.Cut) -> lanes.Backward:
    """A gradient is staged from its first row; torch spreads it over all rows without a word."""
    found = lanes.backward(model, examples, cut)
    staged = torch.empty_like(found.gradients[UP])
    staged.copy_(found.gradients[UP][:1])
    return replace(found, gradients={**found.gradients, UP: staged})


class Amplified(torch.autograd.Function):
    """A product whose activation gradient comes back far too large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> Tensor:
        return dx * 1e35


def amplifying(x: Tensor, weight: Tensor, sums: Sums) -> Tensor:
    return linear_into(Amplified.apply(x), weight, sums)  # type: ignore[no-untyped-call]


def unclipped(gradients: list[Tensor], norm: Tensor, max_norm: float) -> None:
    """Nothing is clipped."""


def by_default(weights: dict[str, Tensor], section: OptimizerSection) -> AdamW:
    """The constructor's own beta2."""
    return AdamW([{**group, "betas": (section.beta1, 0.999)} for group in made(weights, section).param_groups])


def swapped_gemm(a_MK: Tensor, b_KN: Tensor, *, bias_N: Tensor | None = None) -> Tensor:
    """(m, k, n) where the native kernel takes (m, n, k)."""
    (rows, depth), columns = a_MK.shape, b_KN.shape[1]
    out, format = torch.empty(rows, columns, dtype=a_MK.dtype), FORMATS[a_MK.dtype]
    sizes = (rows, depth, columns)
    left, right = (a_MK.data_ptr(), *a_MK.stride()), (b_KN.data_ptr(), *b_KN.stride())
    run("matmul", "iiqqqpqqpqqppp", format, format, *sizes, *left, *right, pointer(bias_N), None, out.data_ptr())
    return out


class SwappedBackward(torch.autograd.Function):
    """A product whose activation gradient is computed by a kernel that is told its sizes in another order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, sums: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sums = sums
        return linear(x, weight)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        x, weight = ctx.saved_tensors
        torch.ops.samebits.gemm_accumulate_(ctx.sums, dy.T, x, "cpu")
        with patch.object(cpu_kernel, "gemm", swapped_gemm):
            return matmul(dy, weight), None, None


def swapping(x: Tensor, weight: Tensor, sums: Sums) -> Tensor:
    found: Tensor = SwappedBackward.apply(x, weight, sums)  # type: ignore[no-untyped-call]
    return found


def uninitialised(weight: Tensor) -> Tensor:
    """Moments of the key projections are memory as it was found."""
    return torch.empty(weight.shape) if tuple(weight.shape) == (32, 48) else zero_moment(weight)


def detached(x: Tensor, weight: Tensor, sums: Sums) -> Tensor:
    """The product does not know the way back to its weight."""
    return linear(x, weight.detach())


class Dropping:
    """Ranks of which one brings no gradient of a weight."""

    def __init__(self, ranks: Any) -> None:
        self._ranks = ranks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ranks, name)

    def reduced(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self._ranks.reduced({**gradients, UP: torch.zeros_like(gradients[UP])})
        return found


def dropping(model: Model, examples: list[lanes.Example], cut: lanes.Cut) -> lanes.Backward:
    return lanes.backward(model, examples, replace(cut, ranks=Dropping(cut.ranks)))


def on_a_rank(world: World, bad_rank: int | None) -> list[Any]:
    """A run on real ranks under inspection; what rank 0 found."""
    config = quick("training.lanes=2")
    parts = Parts(backward=dropping) if world.rank == bad_rank else Parts()
    return list(inspected(Subject(config=config, parts=parts, grid=Grid(world=world)), steps=1))


def transfers_of_a_step(*, waits: bool) -> list[Done]:
    """Real: a step of the trainer, every kernel and every number that the host took, with what each read and wrote.
    Planned: that kernels ran on a stream of their own and the host read through the default one, and, with `waits`,
    that it waited for that stream before each read. On a GPU `recorded_streams()` takes both from torch."""
    trainer = trainer_of(quick())
    with recorded_streams(stream_of={"kernel": COMPUTE, "read": DEFAULT}.__getitem__, device="cpu") as log:
        trainer.step()
    if not waits:
        return log
    return [each for done in log for each in ((HostWait(stream=COMPUTE), done) if type(done) is HostRead else (done,))]
