"""How a checker drives `sample`: a way of drawing for every request, inputs, the exact tokens, launch numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded, OperatorSpec
from samebits.native.launch_numbers import cpu_launches
from samebits.numerics.recipes import make
from samebits.ops.sample import sample

CPU_THREADS = (1, 2, 7)
# Columns whose loads are under way together, warps.
TRITON_LAUNCHES = ((256, 1), (1024, 4), (4096, 16))
SEED = 0x5EED_0F_A_1000_B175
# Temperature, top_k, top_p of request r: number r mod 6. The first is greedy, the last two use everything.
WAYS = ((0.0, 0, 1.0), (1.0, 0, 1.0), (0.7, 20, 1.0), (1.5, 0, 0.9), (1.0, 50, 0.8), (0.3, 5, 0.5))


def draw_by_request(
    logits: Tensor, requests: Tensor, positions: Tensor, *, seed: int = SEED, backend: str | None = None
) -> Tensor:
    """`sample` with the way of drawing that a request's number stands for."""
    way = requests % len(WAYS)
    temperature, top_p = (torch.tensor([each[i] for each in WAYS], device=logits.device)[way] for i in (0, 2))
    top_k = torch.tensor([each[1] for each in WAYS], device=logits.device)[way]
    return sample(
        logits,
        seed=seed,
        requests=requests,
        positions=positions,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        backend=backend,
    )


def exact_tokens(logits: Tensor, requests: Tensor, positions: Tensor) -> Tensor:
    """The tokens of the definition, as numbers of float64."""
    return draw_by_request(logits, requests, positions, backend="reference").double()


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    rows, vocabulary = shape
    number = torch.arange(rows)
    return {
        "logits": torch.from_numpy(make(recipe, (rows, vocabulary), seed, format)).to(getattr(torch, format)),
        # Both halves of a request's number are in use.
        "requests": number * (2**33 + 1) + seed,
        "positions": number * 5 % 17,
    }


def _exact(arguments: Arguments, _: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    tokens = exact_tokens(*arguments.values())
    return {"output": Bounded(exact=tokens, allowed=torch.zeros_like(tokens))}


def launches(backend: str, format: str) -> Sequence[Mapping[str, object]]:
    """Threads times instruction sets on the CPU; columns and warps of a program by Triton."""
    if backend == "cpu":
        return cpu_launches(CPU_THREADS)
    from samebits.ops._triton.rows import RowLaunch

    return [{"launch": RowLaunch(rows=1, columns=columns, warps=warps)} for columns, warps in TRITON_LAUNCHES]


SPECS = {
    "sample": OperatorSpec(
        name="sample",
        row_arguments=("logits", "requests", "positions"),
        shared_arguments=(),
        shape_axes="MV",
        make=_make,
        exact=_exact,
        launches=launches,
        differentiable=False,
        without_gradient=("requests", "positions"),
    )
}
