"""The kernel of `invariant/triton_rotation.py` in Triton's interpreter, on the CPU: bits beside torch's operations.

Run by `test_rotation` in a process of its own, for which TRITON_INTERPRET is set before Triton is loaded. Prints, for
each case, how many numbers differ: forward, back, and, planted, the one in the other's place.

In float16: the interpreter cuts numbers off where it should round to bfloat16, which only a GPU tries."""

from __future__ import annotations

import json

import torch
from torch import Tensor

from samebits.invariant.rotation import written
from samebits.invariant.triton_rotation import rotate

CASES = [(2, 3, 5, 16, 1), (1, 4, 7, 64, 1), (2, 2, 3, 20, 2), (3, 1, 4, 6, 3)]
"""Batch, heads, tokens, head size, batch of the angles."""


def launched(x: Tensor, cos: Tensor, sin: Tensor, *, back: bool, heads: int) -> Tensor:
    (B, H, S, D), y = x.shape, torch.empty_like(x)
    half = D // 2
    angle_batch = cos.stride(0) if cos.shape[0] > 1 else 0
    columns = 1 << (half - 1).bit_length()
    rotate[(B * S * -(-H // heads),)](
        *(x, cos, sin, y, S, H, half, *x.stride()[:3], *y.stride()[:3], angle_batch, cos.stride(1)),
        BACK=back,
        ALIGNED=half % 8 == 0,
        HEADS=heads,
        HALF=columns,
    )
    return y


def differing(B: int, H: int, S: int, D: int, angles: int) -> list[int]:
    drawn, dtype = torch.Generator().manual_seed(D), torch.float16
    x, dy = (torch.randn(B, S, H, D, generator=drawn).to(dtype).transpose(1, 2) for _ in range(2))
    cos, sin = (torch.randn(angles, S, D, generator=drawn).to(dtype) for _ in range(2))
    leaf = x.detach().requires_grad_()
    wanted = written(leaf, leaf, cos, sin)[0]
    (gradient,) = torch.autograd.grad(wanted, leaf, dy)
    ways = ((x, False), (dy, True), (x, True))
    found = [launched(each, cos, sin, back=back, heads=2) for each, back in ways]
    return [
        int((a.view(torch.int16) != b.view(torch.int16)).sum())
        for a, b in zip(found, (wanted, gradient, wanted), strict=True)
    ]


if __name__ == "__main__":
    print(json.dumps([differing(*case) for case in CASES]))
