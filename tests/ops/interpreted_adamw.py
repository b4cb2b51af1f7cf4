"""AdamW's Triton kernel run by Triton's interpreter, beside AdamW on the CPU.

Run with TRITON_INTERPRET=1, in a process of its own. Prints a line of JSON: by case, the
first difference or null."""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import torch
from tests.ops.interpreted_attention import install
from torch import Tensor

from samebits.checker.tracing.comparing import without_gpu
from samebits.numerics.bits import compare
from samebits.ops._triton.rows import RowLaunch
from samebits.ops.adamw import cpu_kernel, triton_kernel
from samebits.ops.adamw.reference import Numbers

# Less than a block, whole blocks, and neither a multiple of a block nor of what is read at once.
SIZES = (3, 512, 1000, 40, 257)
# Not bfloat16: the interpreter cuts where a GPU rounds.
FORMS = (
    (torch.float32, torch.float32, False),
    (torch.float32, torch.float32, True),
    (torch.float16, torch.float16, True),
    (torch.float16, torch.float32, False),
)
LAUNCHES = (RowLaunch(columns=128, warps=4), RowLaunch(columns=512, warps=4))
NAMES = ("param", "grad", "exp_avg", "exp_avg_sq", "master")
NUMBERS = Numbers.of(3, 0.01, 0.9, 0.95, 1e-8, 0.1)


def given(param: torch.dtype, grad: torch.dtype, master: bool) -> list[list[Tensor]]:
    """Params, gradients, both moments, masters; one tensor begins where memory is not aligned, one has a NaN."""
    made = torch.Generator().manual_seed(1)
    drawn: list[list[Tensor]] = [[] for _ in range(5)]
    for number, size in enumerate(SIZES):
        start = number == 3
        one, two, three, four, five = (
            torch.randn(size + start, generator=made).to(dtype)[start:]
            for dtype in (param, grad, torch.float32, torch.float32, torch.float32)
        )
        two[size // 2] = torch.nan if number == 2 else torch.inf if number == 4 else -0.0
        for each, tensor in zip(drawn, (one, two, three, four.abs(), five), strict=True):
            each.append(tensor)
    return drawn if master else [*drawn[:4], []]


def differences() -> dict[str, str | None]:
    found = {}
    for form, (number, launch) in itertools.product(FORMS, enumerate(LAUNCHES)):
        ours, expected = given(*form), given(*form)
        cpu_kernel.update(*expected, NUMBERS)
        with without_gpu():
            triton_kernel.update(*ours, NUMBERS, launch=launch)
        for name, mine, theirs in zip(NAMES, ours, expected, strict=True):
            wrong = [compare(one, other) for one, other in zip(mine, theirs, strict=True)]
            case = f"{name} of {form} launch {number}"
            found[case] = next((str(each) for each in wrong if each is not None), None)
    return found


def shorter(tables: Any) -> Any:
    """Planted: every tensor but the first is said to have an element less."""

    def cut(*arguments: Any) -> tuple[Tensor, ...]:
        *columns, firsts, owners = tables(*arguments)
        columns[-1][1:] -= 1
        return *columns, firsts, owners

    return cut


if __name__ == "__main__":
    install()
    if "planted" in sys.argv:
        triton_kernel.__dict__["tables"] = shorter(triton_kernel.tables)
    print(json.dumps(differences()))
