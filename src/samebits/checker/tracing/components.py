"""How the tracer calls each component: small tensors with named rows, through the component's own launch code.

Knows which axis of a tensor is the batch and which launches must not matter; knows no expression. Imports Triton, so
only the tracing process imports this."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from samebits.checker.tracing.memory import SHARED, Memory
from samebits.ops.matmul.launch_table import TABLE

FLOAT32: Final = "float32"
HALVES: Final = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class Output:
    """A result: of which row each element is, and at which place in it."""

    tensor: Tensor
    rows: np.ndarray
    places: np.ndarray


Outputs = dict[str, Output]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One function of a component, traced for every format, batch and launch."""

    words: str
    call: Callable[[Memory, torch.dtype, Any], Outputs]
    batches: Sequence[Any]
    rows: Callable[[Any], int]
    """How many rows of output a batch has, all results together."""
    launches: Callable[[str], Sequence[object]]
    """None among them is what the component chooses by itself."""
    formats: Sequence[str] = HALVES
    finite: bool = False
    branch: bool | None = None
    faults: Sequence[str] = ("twice", "missing", "narrowed", "neighbour")
    """Planted faults that must be refused; `neighbour` only where there are rows."""


def kernels(component: str) -> Any:
    return import_module(f"samebits.ops.{component}.triton_kernel")


def checked_launches(component: str, *more: object) -> Callable[[str], Sequence[object]]:
    """What the component's own checker forces, and what the component chooses."""

    def launches(format: str) -> Sequence[object]:
        forced = import_module(f"samebits.ops.{component}.check").launches("triton", format)
        return [None, *(each["launch"] for each in forced), *more]

    return launches


def batch_axis(tensor: Tensor, axis: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows along an axis; the place is the element's number without it."""
    shape = tuple(tensor.shape)
    rows = np.broadcast_to(np.arange(shape[axis]).reshape([-1 if at == axis else 1 for at in range(len(shape))]), shape)
    rest = int(np.prod(shape)) // max(1, shape[axis])
    places = np.moveaxis(
        np.broadcast_to(
            np.arange(rest).reshape(shape[:axis] + shape[axis + 1 :]), (shape[axis], *shape[:axis], *shape[axis + 1 :])
        ),
        0,
        axis,
    )
    return np.ascontiguousarray(rows), np.ascontiguousarray(places)


def by_rows(memory: Memory, dtype: torch.dtype, **shapes: tuple[int, ...]) -> list[Tensor]:
    """Inputs whose first axis is the batch."""
    made = []
    for name, shape in shapes.items():
        tensor = torch.zeros(shape, dtype=dtype)
        memory.add(name, tensor, *batch_axis(tensor))
        made.append(tensor)
    return made


def shared(memory: Memory, dtype: torch.dtype, **shapes: tuple[int, ...]) -> list[Tensor]:
    """Inputs that every row meets."""
    made = []
    for name, shape in shapes.items():
        tensor = torch.zeros(shape, dtype=dtype)
        memory.add(name, tensor)
        made.append(tensor)
    return made


def result(tensor: Tensor, axis: int = 0) -> Output:
    return Output(tensor, *batch_axis(tensor, axis))


def one_row(tensor: Tensor) -> Output:
    """A result that belongs to no row: a sum over the batch."""
    return Output(tensor, np.full(tuple(tensor.shape), SHARED), np.arange(tensor.numel()).reshape(tuple(tensor.shape)))


# Softmax: three blocks of lanes, the last of them ragged.
WIDTH: Final = 600
BATCHES: Final = (1, 2, 3, 5, 17)


def softmax_forward(logarithm: bool) -> Callable[[Memory, torch.dtype, int], Outputs]:
    def call(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
        (x,) = by_rows(memory, dtype, x=(m, WIDTH))
        return {"y": result(kernels("softmax").forward(x, dtype, logarithm))}

    return call


def softmax_backward(logarithm: bool) -> Callable[[Memory, torch.dtype, int], Outputs]:
    def call(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
        dy, y = by_rows(memory, dtype, dy=(m, WIDTH), y=(m, WIDTH))
        return {"dx": result(kernels("softmax").backward(dy, y, dtype, logarithm))}

    return call


def rmsnorm_forward(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
    x, residual = by_rows(memory, dtype, x=(m, WIDTH), residual=(m, WIDTH))
    (weight,) = shared(memory, dtype, weight=(WIDTH,))
    y, rstd, hidden = kernels("rmsnorm").forward(x, weight, 1e-6, residual)
    return {"y": result(y), "rstd": result(rstd), "hidden": result(hidden)}


def rmsnorm_backward(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
    dy, hidden, more = by_rows(memory, dtype, dy=(m, WIDTH), hidden=(m, WIDTH), dhidden=(m, WIDTH))
    (rstd,) = by_rows(memory, torch.float32, rstd=(m,))
    (weight,) = shared(memory, dtype, weight=(WIDTH,))
    return {"dx": result(kernels("rmsnorm").backward_input(dy, hidden, weight, rstd, more))}


def rmsnorm_weight(memory: Memory, dtype: torch.dtype, cuts: tuple[int, ...]) -> Outputs:
    """The gradient of the weight over 40 rows, in one launch or resumed at the cuts."""
    width, bounds = 24, (0, *cuts, 40)
    (accumulator,) = shared(memory, torch.float32, accumulator=(width,))
    for first, last in pairwise(bounds):
        dy, hidden = (torch.zeros(last - first, width, dtype=dtype) for _ in range(2))
        rstd = torch.zeros(last - first)
        for name, tensor in (("dy", dy), ("hidden", hidden), ("rstd", rstd)):
            numbers = first * tensor[0].numel() + np.arange(tensor.numel())
            memory.add(name, tensor, np.full(tensor.numel(), SHARED), numbers)
        kernels("rmsnorm").backward_weight(dy, hidden, rstd, accumulator)
    return {"dweight": one_row(accumulator)}


def layernorm_forward(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
    (x,) = by_rows(memory, dtype, x=(m, WIDTH))
    weight, bias = shared(memory, dtype, weight=(WIDTH,), bias=(WIDTH,))
    y, mean, rstd = kernels("layernorm").forward(x, weight, bias, 1e-5)
    return {"y": result(y), "mean": result(mean), "rstd": result(rstd)}


def layernorm_backward(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
    dy, x = by_rows(memory, dtype, dy=(m, WIDTH), x=(m, WIDTH))
    mean, rstd = by_rows(memory, torch.float32, mean=(m,), rstd=(m,))
    (weight,) = shared(memory, dtype, weight=(WIDTH,))
    return {"dx": result(kernels("layernorm").backward_input(dy, x, weight, mean, rstd))}


def layernorm_columns(memory: Memory, dtype: torch.dtype, cuts: tuple[int, ...]) -> Outputs:
    """The gradients of weight and bias over 40 rows, in one launch each or resumed at the cuts."""
    width, bounds = 24, (0, *cuts, 40)
    dweight, dbias = shared(memory, torch.float32, dweight=(width,), dbias=(width,))
    for first, last in pairwise(bounds):
        dy, x = (torch.zeros(last - first, width, dtype=dtype) for _ in range(2))
        mean, rstd = (torch.zeros(last - first) for _ in range(2))
        for name, tensor in (("dy", dy), ("x", x), ("mean", mean), ("rstd", rstd)):
            numbers = first * tensor[0].numel() + np.arange(tensor.numel())
            memory.add(name, tensor, np.full(tensor.numel(), SHARED), numbers)
        kernels("layernorm").backward_weight(dy, x, mean, rstd, dweight)
        kernels("layernorm").backward_bias(dy, dbias)
    return {"dweight": one_row(dweight), "dbias": one_row(dbias)}


def swiglu_forward(memory: Memory, dtype: torch.dtype, n: int) -> Outputs:
    return {"y": result(kernels("swiglu").forward(*by_rows(memory, dtype, gate=(n,), up=(n,))))}


def swiglu_backward(memory: Memory, dtype: torch.dtype, n: int) -> Outputs:
    dgate, dup = kernels("swiglu").backward(*by_rows(memory, dtype, dy=(n,), gate=(n,), up=(n,)))
    return {"dgate": result(dgate), "dup": result(dup)}


def gelu(by_tanh: bool) -> Callable[[Memory, torch.dtype, int], Outputs]:
    def call(memory: Memory, dtype: torch.dtype, n: int) -> Outputs:
        dy, x = by_rows(memory, dtype, dy=(n,), x=(n,))
        kernel = kernels("gelu")
        return {"y": result(kernel.forward(x, by_tanh)), "dx": result(kernel.backward(dy, x, by_tanh))}

    return call


def rope(interleaved: bool, opposite: bool) -> Callable[[Memory, torch.dtype, int], Outputs]:
    def call(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
        (x,) = by_rows(memory, dtype, x=(m, 5, 48))
        positions = torch.zeros(m, dtype=torch.int64)
        memory.add("positions", positions, *batch_axis(positions), traced=True)
        (frequencies,) = shared(memory, torch.float32, frequencies=(24,))
        return {"y": result(kernels("rope").rotate(x, positions, frequencies, 1.5, interleaved, opposite))}

    return call


def matmul(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
    (a,) = by_rows(memory, dtype, a=(m, 256))
    b, bias = shared(memory, dtype, b=(256, 24), bias=(24,))
    return {"out": result(kernels("matmul").gemm(a, b, bias_N=bias))}


def matmul_launches(format: str) -> Sequence[object]:
    return [None, *TABLE[format]]


def grouped_matmul(depth: int, *, mixed: bool) -> Callable[[Memory, torch.dtype, int], Outputs]:
    """Rows of four experts, in turn or by expert; compared with rows of the same expert."""

    def call(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
        (x,) = by_rows(memory, dtype, x=(m, depth))
        (weight,) = shared(memory, dtype, weight=(4, depth, 24))
        expert = torch.arange(m) * 3 % 4 if mixed else torch.sort(torch.arange(m) * 3 % 4)[0]
        ends, y = torch.bincount(expert, minlength=4).cumsum(0), torch.zeros(m, 24, dtype=dtype)
        rows = torch.argsort(expert, stable=True) if mixed else None
        kernels("grouped_matmul").forward(x, weight, rows, ends, y)
        return {"y": Output(y, batch_axis(y)[0], expert.numpy()[:, None] * 24 + np.arange(24))}

    return call


def grouped_dweight(memory: Memory, dtype: torch.dtype, cuts: tuple[int, ...]) -> Outputs:
    """The gradients of two experts' weights over 40 rows each, in one launch or resumed at the cuts."""
    experts, sizes = 2, {"x": 24, "dy": 8}
    (accumulator,) = shared(memory, torch.float32, accumulator=(experts, *sizes.values()))
    for first, last in pairwise((0, *cuts, 40)):
        own = np.concatenate([expert * 40 + np.arange(first, last) for expert in range(experts)])
        given = []
        for name, width in sizes.items():
            tensor = torch.zeros(len(own), width, dtype=dtype)
            memory.add(name, tensor, np.full(tensor.numel(), SHARED), own[:, None] * width + np.arange(width))
            given.append(tensor)
        ends = torch.arange(1, experts + 1) * (last - first)
        kernels("grouped_matmul").dweight(*given, None, ends, accumulator, resumed=True)
    return {"dweight": one_row(accumulator)}


# Tokens in the first and in the second block of the vocabulary, and one that is ignored.
IDS: Final = (3, 299, -100)
VOCABULARY: Final = 304


def classes(m: int, *, per: int = 1) -> np.ndarray:
    """Which token a row has; rows are compared with rows of the same one."""
    return np.broadcast_to((np.arange(m) % len(IDS))[:, None], (m, per))


def tokens(m: int) -> Tensor:
    return torch.tensor([IDS[row % len(IDS)] for row in range(m)])


def with_class(output: Output, m: int) -> Output:
    per = output.places.size // m
    return Output(
        output.tensor,
        output.rows,
        (output.places.reshape(m, per) + per * classes(m, per=per)).reshape(output.places.shape),
    )


def logprob(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
    (hidden,) = by_rows(memory, dtype, hidden=(m, 64))
    (weight,) = shared(memory, dtype, weight=(VOCABULARY, 64))
    value, lse = kernels("logprob").forward(hidden, weight, tokens(m), -100)
    return {"logprob": with_class(result(value), m), "lse": result(lse)}


def logprob_gradient(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
    (hidden,) = by_rows(memory, dtype, hidden=(m, 64))
    (weight,) = shared(memory, dtype, weight=(VOCABULARY, 64))
    g, lse = by_rows(memory, torch.float32, g=(m,), lse=(m,))
    dz = torch.zeros(m, VOCABULARY, dtype=dtype)
    kernels("logprob").logit_gradient(g, hidden, weight, tokens(m), lse, -100, 0, dz)
    return {"dz": with_class(result(dz), m)}


def distill_forward(alpha: float) -> Callable[[Memory, torch.dtype, int], Outputs]:
    def call(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
        student, teacher = by_rows(memory, dtype, student=(m, VOCABULARY), teacher=(m, VOCABULARY))
        loss, statistics = kernels("distill_loss").forward(student, teacher, tokens(m), 2.0, alpha, -100)
        outputs = {"loss": with_class(result(loss), m)}
        return {**outputs, "statistics": result(statistics, 1)} if 0.0 < alpha < 1.0 else outputs

    return call


def distill_backward(alpha: float) -> Callable[[Memory, torch.dtype, int], Outputs]:
    def call(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
        student, teacher = by_rows(memory, dtype, student=(m, VOCABULARY), teacher=(m, VOCABULARY))
        (upstream,) = by_rows(memory, torch.float32, upstream=(m,))
        statistics = torch.zeros(5, m)
        memory.add("statistics", statistics, *batch_axis(statistics, 1))
        made = kernels("distill_loss").backward(upstream, student, teacher, tokens(m), statistics, 2.0, alpha, -100)
        return {"dstudent": with_class(result(made), m)}

    return call


def adamw(memory: Memory, dtype: torch.dtype, n: int) -> Outputs:
    from samebits.ops.adamw.reference import Numbers

    param, grad = by_rows(memory, dtype, param=(n,), grad=(n,))
    average, squares, master = by_rows(memory, torch.float32, exp_avg=(n,), exp_avg_sq=(n,), master=(n,))
    numbers = Numbers.of(3, 0.01, 0.9, 0.95, 1e-8, 0.1)
    kernels("adamw").update([param], [grad], [average], [squares], [master], numbers)
    return {"param": result(param), "exp_avg": result(average), "exp_avg_sq": result(squares), "master": result(master)}


def grad_squares(memory: Memory, dtype: torch.dtype, sizes: tuple[int, ...]) -> Outputs:
    tensors = [shared(memory, dtype, **{f"x{number}": (size,)})[0] for number, size in enumerate(sizes)]
    return {"total": one_row(kernels("grad_norm").square_sum(tensors))}


def grad_clip(memory: Memory, dtype: torch.dtype, n: int) -> Outputs:
    (grad,) = by_rows(memory, dtype, grad=(n,))
    (norm,) = shared(memory, torch.float32, norm=())
    kernels("grad_norm").clip([grad], norm, 1.0)
    return {"grad": result(grad)}


def embedding(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
    (weight,) = shared(memory, dtype, weight=(7, 40))
    ids = torch.arange(m) % 3
    y = kernels("embedding").forward(ids, weight)
    return {"y": Output(y, np.repeat(np.arange(m), 40).reshape(m, 40), ids.numpy()[:, None] * 40 + np.arange(40))}
