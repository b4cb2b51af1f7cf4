"""Compiles kernels for Hopper without a GPU, and prints which of them reach memory one 16-bit number at a time.

Run by test_wide_accesses.py in a process of its own: it stands in for Triton's driver."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

from samebits.checker.artifact_process import Forgetful, stand_in
from samebits.checker.tracing.comparing import without_gpu
from samebits.ops._triton import launch as launching
from samebits.ops.attention import triton_backward, triton_kernel
from samebits.ops.attention.forms import Rule, Sequences
from samebits.ops.embedding import triton_kernel as embedding
from samebits.ops.grouped_matmul import triton_kernel as grouped_matmul
from samebits.ops.layernorm import triton_kernel as layernorm
from samebits.ops.matmul import triton_kernel as matmul
from samebits.ops.rmsnorm import triton_kernel as rmsnorm
from samebits.ops.rope import triton_kernel as rope
from samebits.ops.softmax import triton_kernel as softmax
from samebits.ops.swiglu import triton_kernel as swiglu

# A thread may reach the odd number alone: an edge, a token's own.
FEW = 3
NARROW = re.compile(r"\b(?:ld|st)\.global(?:\.\w+)*\.[bu]16\b")


def zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.bfloat16)


def attention(head: int, queries: int, keys: int) -> Iterator[Callable[[], Any]]:
    starts, lengths = torch.tensor([0, 1]), torch.tensor([1, 1])
    sequences = Sequences(
        q_start=starts * queries,
        q_length=lengths * queries,
        k_start=starts * keys,
        k_length=lengths * keys,
        longest_query=queries,
        longest_key=keys,
    )
    rule = Rule(causal=True, window=0, scale=0.1, softcap=0.0)
    q, k, v = zeros(2 * queries, 8, head), zeros(2 * keys, 2, head), zeros(2 * keys, 2, head)
    yield lambda: triton_kernel.forward(q, k, v, sequences, rule)
    if queries == keys:
        lse = torch.zeros(2 * queries, 8)
        yield lambda: triton_backward.backward(zeros(*q.shape), q, k, v, zeros(*q.shape), lse, sequences, rule)


def calls() -> Iterator[Callable[[], Any]]:
    for head, (queries, keys) in itertools.product((64, 96, 128), ((128, 128), (1, 300), (1, 5000))):
        yield from attention(head, queries, keys)
    x, weight, statistic = zeros(512, 1024), zeros(1024), torch.zeros(512)
    ids = torch.zeros(512, dtype=torch.long)
    yield lambda: matmul.gemm(zeros(300, 256), zeros(512, 256).T)
    yield lambda: matmul.gemm(zeros(2048, 1024).T, zeros(2048, 512), accumulator_MN=torch.zeros(1024, 512))
    yield lambda: rope.rotate(zeros(512, 8, 128), ids, torch.zeros(64), 1.0, False, False)
    yield lambda: swiglu.forward(x, x.clone())
    yield lambda: rmsnorm.forward(x, weight, 1e-5)
    yield lambda: rmsnorm.backward_input(x, x.clone(), weight, statistic)
    yield lambda: layernorm.forward(x, weight, weight.clone(), 1e-5)
    yield lambda: layernorm.backward_input(x, x.clone(), weight, statistic, statistic.clone())
    yield lambda: softmax.forward(x, torch.bfloat16, False)
    yield lambda: embedding.forward(ids, zeros(1000, 1024))
    yield lambda: embedding.backward(x, ids, 1000, -1)
    yield lambda: grouped_matmul.forward(
        zeros(512, 256), zeros(4, 256, 512), None, torch.tensor([128, 256, 384, 512]), zeros(512, 512)
    )


def main() -> None:
    found: dict[str, int] = {}
    original = JITFunction.run

    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        made = original(self, *arguments, grid=grid, warmup=True, **options)
        found[self.__name__] = max(found.get(self.__name__, 0), len(NARROW.findall(made.asm["ptx"])))
        return made

    stand_in()
    JITFunction.run = run
    launching._compiled = Forgetful()
    with without_gpu():
        for call in calls():
            call()
    print(json.dumps({"compiled": sorted(found), "narrow": sorted(name for name in found if found[name] > FEW)}))


if __name__ == "__main__":
    main()
