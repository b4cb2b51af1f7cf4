"""Operators that compute every element alone, declared once: what torch registers and what a checker drives.

Knows no operator. Kernels of such an operator are `forward(tensors, options)` and `backward(dy, tensors, options)`, one
gradient a tensor; tensors come contiguous, of one shape, and never empty. On the CPU they are the C++ functions
`<name>_forward` and `<name>_backward`; the other backends have a module each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded, OperatorSpec
from samebits.native.launch_numbers import cpu_launches
from samebits.numerics.recipes import make
from samebits.ops._cpu.elements import ElementKernels
from samebits.ops.backends import kernel_module
from samebits.ops.cuts import by_element
from samebits.ops.registering import call, contiguous_like, register

TRITON_BLOCKS_AND_WARPS: Final = ((128, 1), (256, 2), (1024, 8), (2048, 4))


def register_elementwise(package: str, *tensors: str, options: Sequence[str] = ()) -> None:
    """`name(tensors, options, backend)` and `name_backward(dy, ...)`, with fakes, autograd and cuts.

    The name is the package's; `options` are as in a schema, "bool by_tanh"."""
    name = package.rpartition(".")[2]
    count = len(tensors)
    on_cpu = ElementKernels(name, count, len(options))

    def kernel(backend: str, device: torch.device) -> Any:
        return on_cpu if backend == "cpu" else kernel_module(package, name, backend, device)

    def run(*given: Any) -> Tensor:
        first, backend = given[0], given[-1]
        if first.numel() == 0:
            return contiguous_like(first)
        ready = [each.contiguous() for each in given[:count]]
        y: Tensor = kernel(backend, first.device).forward(*ready, *given[count:-1])
        return y

    def run_backward(dy: Tensor, *given: Any) -> Any:
        if dy.numel() == 0:
            return fake_backward(dy, *given)
        ready = [each.contiguous() for each in given[:count]]
        return kernel(given[-1], dy.device).backward(dy.contiguous(), *ready, *given[count:-1])

    def fake(*given: Any) -> Tensor:
        return contiguous_like(given[0])

    def fake_backward(dy: Tensor, *given: Any) -> Any:
        made = tuple(contiguous_like(each) for each in given[:count])
        return made if count > 1 else made[0]

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:count])
        ctx.others = inputs[count:]

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        found = call(f"{name}_backward", dy, *ctx.saved_tensors, *ctx.others)
        return (*(found if count > 1 else (found,)), *(None for _ in ctx.others))

    takes = ", ".join([*(f"Tensor {each}" for each in tensors), *options, "str backend"])
    gives = f"({', '.join(['Tensor'] * count)})" if count > 1 else "Tensor"
    register(
        f"{name}({takes}) -> Tensor",
        run=run,
        fake=fake,
        setup_context=setup_context,
        backward=backward,
        cuts=by_element(1, *tensors),
    )
    register(
        f"{name}_backward(Tensor dy, {takes}) -> {gives}",
        run=run_backward,
        fake=fake_backward,
        cuts=by_element(count, "dy", *tensors),
    )


def element_spec(
    name: str,
    tensors: Sequence[str],
    exact: Callable[[Arguments, Tensor, Callable[[int], float]], Mapping[str, Bounded]],
) -> OperatorSpec:
    """How a checker drives one: rows of tensors of one shape, drawn apart from each other."""

    def made(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
        dtype = getattr(torch, format)
        seeds = (len(tensors) * seed + number for number in range(len(tensors)))
        drawn = (torch.from_numpy(make(recipe, shape, each, format)).to(dtype) for each in seeds)
        return dict(zip(tensors, drawn, strict=True))

    return OperatorSpec(
        name=name,
        row_arguments=tuple(tensors),
        shared_arguments=(),
        shape_axes="MH",
        make=made,
        exact=exact,
        launches=element_launches,
    )


def element_launches(backend: str, format: str) -> Sequence[Mapping[str, object]]:
    """Threads times instruction sets on the CPU; block times warps by Triton."""
    if backend == "cpu":
        return cpu_launches()
    from samebits.ops._triton.elements import ElementLaunch

    return [{"launch": ElementLaunch(block=block, warps=warps)} for block, warps in TRITON_BLOCKS_AND_WARPS]
