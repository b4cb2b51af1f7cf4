"""Speed of attention, cross-entropy and the row-wise operators on the CPU as ratios to torch, in one interleaved run.

    python benchmarks/cpu_operators.py [--record]

As benchmarks/cpu.py, whose clock this is: bits first, then both sides in turns. Memory is that of a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cpu import BASELINE_ROWS, Case, Result, Sides, main
from provenance import cpu_results
from torch import Tensor
from torch.nn import functional

from samebits import ops

RESULTS = cpu_results("cpu_operators.json")
TWO = (2,)
ENTROPY_SIZES = (2048, 576, 49152)


def both(
    theirs: Callable[..., Tensor],
    ours: Callable[..., Tensor],
    rows: int,
    make: Callable[[int], list[Tensor]],
    gradient: bool,
) -> Sides:
    """Forward, or backward alone, of two functions on the same inputs; row inputs come first from `make(rows)`."""
    inputs = make(rows)
    first = [x[:BASELINE_ROWS] if x.dim() and x.shape[0] == rows else x for x in inputs]
    if not gradient:
        return Sides(theirs=lambda: theirs(*inputs), ours=lambda: (ours(*inputs),), first_rows=lambda: (ours(*first),))

    def backward(function: Callable[..., Tensor], given: list[Tensor], upstream: Tensor) -> Callable[[], Result]:
        leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in given]
        wanted, y = [x for x in leaves if x.requires_grad], function(*leaves)
        return lambda: torch.autograd.grad(y, wanted, upstream[: y.shape[0]], retain_graph=True)

    upstream = torch.randn_like(ours(*inputs))
    sums = backward(ours, first, upstream)
    # Gradients of what all rows share are sums over them: the first rows alone give others.
    return Sides(
        theirs=backward(theirs, inputs, upstream),
        ours=backward(ours, inputs, upstream),
        first_rows=lambda: sums()[: sum(x.shape[0] == BASELINE_ROWS for x in first if x.is_floating_point())],
    )


def rows_of(*widths: int) -> Callable[[int], list[Tensor]]:
    return lambda rows: [torch.randn(rows, width) for width in widths]


def row_wise(theirs: Callable[..., Tensor], ours: Callable[..., Tensor], inputs: int, gradient: bool = False) -> Any:
    def make(M: int, H: int, *, dtype: torch.dtype) -> Sides:
        return both(theirs, ours, M, rows_of(*[H] * inputs), gradient)

    return make


def attention_case(causal: bool, gradient: bool) -> Any:
    """(batch, tokens, heads, head): forward, or forward and backward; of one sequence, so no rows stand for the rest.

    The slow instruction set is left to the component's contract here, and to the first tokens where none sees more."""

    def make(B: int, S: int, H: int, D: int, *, dtype: torch.dtype) -> Sides:
        q, k, v, do = (torch.randn(B, S, H, D) for _ in range(4))
        turned = [x.transpose(1, 2).contiguous() for x in (q, k, v, do)]

        def theirs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out = ops.attention(q, k, v, causal=causal)
            assert isinstance(out, Tensor)
            return out

        if not gradient:
            first = [x[:, :BASELINE_ROWS] for x in (q, k, v)]
            return Sides(
                theirs=lambda: theirs(*turned[:3]),
                ours=lambda: (ours(q, k, v)[0],),
                first_rows=lambda: (ours(*first)[0],) if causal else (),
            )

        def step(function: Callable[..., Tensor], inputs: list[Tensor], upstream: Tensor) -> Result:
            leaves = [x.detach().requires_grad_() for x in inputs]
            return torch.autograd.grad(function(*leaves), leaves, upstream)

        run = partial(step, ours, [q, k, v], do)
        return Sides(theirs=partial(step, theirs, turned[:3], turned[3]), ours=run, first_rows=lambda: ())

    return make


def entropy_step(side: str, M: int, K: int, V: int) -> Callable[[], Result]:
    """Loss and both gradients."""
    torch.manual_seed(1)
    hidden, weight = torch.randn(M, K).requires_grad_(), (torch.randn(V, K) * 0.05).requires_grad_()
    targets = torch.randint(V, (M,))

    def step() -> Result:
        if side == "torch":
            loss = functional.cross_entropy(functional.linear(hidden, weight), targets)
        else:
            loss = ops.linear_cross_entropy(hidden, weight, targets)
        return (loss.detach()[None], *torch.autograd.grad(loss, (hidden, weight)))

    return step


def entropy_case(M: int, K: int, V: int, *, dtype: torch.dtype) -> Sides:
    """A loss over all rows has no first rows: the slow instruction set is left to the component's contract."""
    ours = entropy_step("samebits", M, K, V)
    return Sides(theirs=entropy_step("torch", M, K, V), ours=ours, first_rows=lambda: ())


def embedding_case(gradient: bool) -> Any:
    def make(M: int, V: int, H: int, *, dtype: torch.dtype) -> Sides:
        ids, weight = torch.randint(V, (M,)), torch.randn(V, H)
        return both(functional.embedding, ops.embedding, M, lambda rows: [ids, weight], gradient)

    return make


def rope_case(M: int, heads: int, D: int, *, dtype: torch.dtype) -> Sides:
    """Against rotate-half with its tables made beforehand, as models do."""
    positions = torch.arange(M)
    angles = positions[:, None].float() * (10000.0 ** (-torch.arange(0, D, 2) / D))
    cos, sin = (torch.cat([f(angles)] * 2, -1)[:, None] for f in (torch.cos, torch.sin))

    def theirs(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * cos[: len(x)] + torch.cat([-second, first], -1) * sin[: len(x)]

    def ours(x: Tensor) -> Tensor:
        return ops.rope(x, positions[: len(x)])

    return both(theirs, ours, M, lambda rows: [torch.randn(rows, heads, D)], False)


def adamw_case(M: int, H: int, *, dtype: torch.dtype) -> Sides:
    """One step of one tensor against torch's fused AdamW."""
    kinds: dict[str, Any] = {"torch": partial(torch.optim.AdamW, fused=True), "samebits": ops.AdamW}
    steps: dict[str, Callable[[], Any]] = {}
    for name, kind in kinds.items():
        parameter = torch.nn.Parameter(torch.zeros(M, H))
        parameter.grad = torch.ones(M, H)
        optimizer = kind([parameter], lr=1e-3)
        steps[name] = optimizer.step

    def fresh() -> Result:
        parameter = torch.nn.Parameter(torch.linspace(-1, 1, M * H).reshape(M, H))
        parameter.grad = torch.linspace(1, -2, M * H).reshape(M, H)
        ops.AdamW([parameter], lr=1e-3).step()
        return (parameter.detach(),)

    return Sides(theirs=steps["torch"], ours=lambda: steps["samebits"]() or (), first_rows=fresh)


def norm_case(M: int, H: int, *, dtype: torch.dtype) -> Sides:
    tensors = [torch.randn(M, H) for _ in range(4)]
    return Sides(
        theirs=lambda: torch.nn.utils.get_total_norm(tensors),
        ours=lambda: (ops.grad_norm(tensors)[None],),
        first_rows=lambda: (ops.grad_norm(tensors)[None],),
    )


def silu_times(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate) * up


CASES = (
    Case(name="attention causal", shape=(1, 1024, 8, 64), target=1.0, make=attention_case(True, False), threads=TWO),
    Case(name="attention full", shape=(1, 1024, 8, 64), target=1.0, make=attention_case(False, False), threads=TWO),
    Case(name="attention causal fb", shape=(1, 1024, 8, 64), target=1.0, make=attention_case(True, True), threads=TWO),
    Case(name="attention full fb", shape=(1, 1024, 8, 64), target=1.0, make=attention_case(False, True), threads=TWO),
    Case(name="cross-entropy fb", shape=ENTROPY_SIZES, target=1.0, make=entropy_case, threads=TWO),
    Case(name="swiglu", shape=(2048, 1536), target=1.0, make=row_wise(silu_times, ops.swiglu, 2), threads=TWO),
    Case(
        name="swiglu backward",
        shape=(2048, 1536),
        target=1.0,
        make=row_wise(silu_times, ops.swiglu, 2, True),
        threads=TWO,
    ),
    Case(name="gelu", shape=(2048, 1536), target=1.0, make=row_wise(functional.gelu, ops.gelu, 1), threads=TWO),
    Case(
        name="gelu backward",
        shape=(2048, 1536),
        target=1.0,
        make=row_wise(functional.gelu, ops.gelu, 1, True),
        threads=TWO,
    ),
    Case(
        name="gelu tanh",
        shape=(2048, 1536),
        target=1.0,
        threads=TWO,
        make=row_wise(partial(functional.gelu, approximate="tanh"), partial(ops.gelu, approximate="tanh"), 1),
    ),
    Case(
        name="softmax",
        shape=(2048, 576),
        target=1.0,
        make=row_wise(partial(torch.softmax, dim=-1), ops.softmax, 1),
        threads=TWO,
    ),
    Case(
        name="softmax backward",
        shape=(2048, 576),
        target=1.0,
        threads=TWO,
        make=row_wise(partial(torch.softmax, dim=-1), ops.softmax, 1, True),
    ),
    Case(
        name="log_softmax",
        shape=(256, 32000),
        target=1.0,
        threads=TWO,
        make=row_wise(partial(torch.log_softmax, dim=-1), ops.log_softmax, 1),
    ),
    Case(name="embedding", shape=(2048, 49152, 576), target=1.0, make=embedding_case(False), threads=TWO),
    Case(name="embedding backward", shape=(2048, 49152, 576), target=1.0, make=embedding_case(True), threads=TWO),
    Case(name="rope", shape=(2048, 9, 64), target=1.0, make=rope_case, threads=TWO),
    Case(name="adamw", shape=(1024, 1024), target=1.0, make=adamw_case, threads=TWO),
    Case(name="grad_norm", shape=(1024, 1024), target=1.0, make=norm_case, threads=TWO),
)


def peak_memory() -> int:
    """Bytes this process has had in memory at most. Not from getrusage, which remembers the parent's."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def entropy_memory() -> dict[str, Any]:
    """Peak memory of one cross-entropy step beyond its inputs, each side in a process of its own."""
    program = (
        "import sys; sys.path.insert(0, {folder!r}); import cpu_operators as c;"
        "step = c.entropy_step({side!r}, *c.ENTROPY_SIZES); before = c.peak_memory(); step();"
        "print(c.peak_memory() - before)"
    )
    found = {}
    for side in ("torch", "samebits"):
        code = program.format(folder=str(Path(__file__).parent), side=side)
        found[side] = int(
            subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        )
    share = found["samebits"] / found["torch"]
    print(
        f"cross-entropy's memory: {found['samebits'] / 2**20:.0f} MiB, torch {found['torch'] / 2**20:.0f}: {share:.3f}"
    )
    return {"cross_entropy_peak_bytes": found, "cross_entropy_memory_share": round(share, 3)}


if __name__ == "__main__":
    main(CASES, RESULTS, __doc__, entropy_memory)
