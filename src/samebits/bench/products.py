"""Cases of the products of a model's weights with some rows: forward, and the two gradients."""

from __future__ import annotations

from functools import partial

import torch
from torch.nn import functional

from samebits.bench.cases import Case, Planned, Setting
from samebits.bench.shapes import Weight
from samebits.bench.timing import rotated
from samebits.ops import linear, matmul


def forward(model: str, weight: Weight, rows: int) -> Planned:
    def make(setting: Setting) -> Case:
        sets = rotated(setting.device, weight.n * weight.k * setting.dtype.itemsize)
        inputs = [(setting.random(rows, weight.k), setting.random(weight.n, weight.k)) for _ in range(sets)]
        x, w = inputs[0]
        return Case(
            ours=[partial(linear, *each) for each in inputs],
            theirs={"torch": [partial(functional.linear, *each) for each in inputs]},
            parts=lambda: (linear(x[-1:], w), linear(x, w)[-1:]),
            work=2.0 * rows * weight.n * weight.k,
            unit="TFLOP/s",
        )

    return Planned("linear", model, f"{weight.name} {rows}x{weight.k}x{weight.n}", rows, make)


def gradient_of_rows(model: str, weight: Weight, rows: int) -> Planned:
    """dX = dY W."""

    def make(setting: Setting) -> Case:
        sets = rotated(setting.device, weight.n * weight.k * setting.dtype.itemsize)
        inputs = [(setting.random(rows, weight.n), setting.random(weight.n, weight.k)) for _ in range(sets)]
        dy, w = inputs[0]
        return Case(
            ours=[partial(matmul, *each) for each in inputs],
            theirs={"torch": [partial(torch.matmul, *each) for each in inputs]},
            parts=lambda: (matmul(dy[-1:], w), matmul(dy, w)[-1:]),
            work=2.0 * rows * weight.n * weight.k,
            unit="TFLOP/s",
        )

    return Planned("linear-dx", model, f"{weight.name} {rows}x{weight.k}x{weight.n}", rows, make)


def gradient_of_weight(model: str, weight: Weight, rows: int) -> Planned:
    """dW = dY^T X: a sum over rows, of which a line belongs to one column of dY."""

    def make(setting: Setting) -> Case:
        sets = rotated(setting.device, rows * (weight.n + weight.k) * setting.dtype.itemsize)
        inputs = [(setting.random(rows, weight.n), setting.random(rows, weight.k)) for _ in range(sets)]
        dy, x = inputs[0]
        return Case(
            ours=[partial(matmul, each[0].T, each[1]) for each in inputs],
            theirs={"torch": [partial(torch.matmul, each[0].T, each[1]) for each in inputs]},
            parts=lambda: (matmul(dy[:, -1:].T, x), matmul(dy.T, x)[-1:]),
            work=2.0 * rows * weight.n * weight.k,
            unit="TFLOP/s",
        )

    return Planned("linear-dw", model, f"{weight.name} {rows}x{weight.k}x{weight.n}", rows, make)
