"""Attention's kernels for Hopper against those by Triton, bit for bit: masks, lengths, splits, infinities, NaNs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch

from samebits.numerics.bits import compare
from samebits.ops.attention.forms import Rule, Sequences

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, none is visible")

# Queries and keys of each sequence: whole prompts, chunks behind earlier keys, none at all, several splits of keys.
PACKS = (
    ((128,), (128,)),
    ((64, 1, 200, 129), (64, 7, 200, 500)),
    ((130, 0, 77), (2100, 5, 77)),
    ((5000,), (5000,)),
    ((1000,), (4500,)),
    ((200, 64), (100, 0)),
)
MASKS = ((True, 0), (False, 0), (True, 100), (False, 70))


def sequences_of(queries: Sequence[int], keys: Sequence[int]) -> Sequences:
    def table(numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device="cuda")

    starts = [list(itertools.accumulate(lengths, initial=0))[:-1] for lengths in (queries, keys)]
    return Sequences(
        q_start=table(starts[0]),
        q_length=table(queries),
        k_start=table(starts[1]),
        k_length=table(keys),
        longest_query=max(queries),
        longest_key=max(keys),
    )


def operands(
    queries: Sequence[int], keys: Sequence[int], head: int, dtype: torch.dtype, finite: bool, group: int = 2
) -> tuple[torch.Tensor, ...]:
    """do, q, k and v, with rows behind the last that belong to no sequence."""
    torch.manual_seed(sum(queries) + head)
    rows, heads = [sum(queries) + 3] * 2 + [sum(keys) + 3] * 2, [4, 4, 4 // group, 4 // group]
    do, q, k, v = (torch.randn(n, h, head, device="cuda").to(dtype) for n, h in zip(rows, heads, strict=True))
    if not finite:
        v[keys[0] - 1, 0], do[queries[0] // 2, 0, 3], k[0, 0, 5] = float("nan"), float("inf"), float("-inf")
    return do, q, k, v


def differs(given: tuple[torch.Tensor, ...], sequences: Sequences, rule: Rule) -> str | None:
    """Where they part, in the output, in the logarithms or in a gradient."""
    from samebits.ops.attention import triton_hopper_backward
    from samebits.ops.attention.triton_backward import BackwardLaunch, backward
    from samebits.ops.attention.triton_kernel import Launch, forward

    do, q, k, v = given
    assert triton_hopper_backward.takes(do, q, k, v, sequences, rule)
    ours = forward(q, k, v, sequences, rule, launch=Launch())
    theirs = forward(q, k, v, sequences, rule, launch=Launch(specialised=False))
    gradient = (do, q, k, v, *theirs, sequences, rule)
    ours += backward(*gradient, dq_launch=BackwardLaunch())
    theirs += backward(*gradient, dq_launch=BackwardLaunch(specialised=False))
    for name, left, right in zip(("out", "lse", "dq", "dk", "dv"), ours, theirs, strict=True):
        found = compare(left.cpu(), right.cpu())
        if found is not None:
            return f"{name}: {found}"
    return None


@pytest.mark.parametrize(("causal", "window"), MASKS)
@pytest.mark.parametrize(("head", "dtype"), [(128, torch.bfloat16), (64, torch.float16)])
@pytest.mark.parametrize("group", [2, 1])
def test_the_same_bits_as_the_kernels_by_triton(
    group: int, head: int, dtype: torch.dtype, causal: bool, window: int
) -> None:
    rule = Rule(causal=causal, window=window, scale=head**-0.5, softcap=0.0)
    for (queries, keys), finite in itertools.product(PACKS, (True, False)):
        found = differs(operands(queries, keys, head, dtype, finite, group), sequences_of(queries, keys), rule)
        assert found is None, f"queries {queries}, keys {keys}, finite {finite}: {found}"


def planted() -> str | None:
    """What is found of one long prompt."""
    given, sequences = operands((5000,), (5000,), 128, torch.bfloat16, True), sequences_of((5000,), (5000,))
    return differs(given, sequences, Rule(causal=True, window=0, scale=128**-0.5, softcap=0.0))


def test_splits_of_another_length_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the forward kernel for Hopper merges after 1,024 keys."""
    from samebits.ops.attention import triton_hopper

    monkeypatch.setattr(triton_hopper, "SPLIT_KEYS", 1024)
    found = planted()
    assert found is not None and found.startswith(("out", "lse"))


def test_gradients_without_row_sums_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: nothing is taken off what the values gain."""
    from samebits.ops.attention import triton_hopper_backward

    monkeypatch.setattr(triton_hopper_backward, "row_sums", lambda *_: None)
    found = planted()
    assert found is not None and found.startswith("dq")


def test_many_queries_take_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who names no launch has these kernels for prompts of 4,096 tokens, and those by Triton for one query."""
    from samebits.ops.attention import triton_backward, triton_hopper, triton_hopper_backward, triton_kernel

    taken = []
    for module, name in ((triton_hopper, "forward"), (triton_hopper_backward, "backward")):
        run = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, run=run, name=name: taken.append(name) or run(*given))
    rule = Rule(causal=True, window=0, scale=128**-0.5, softcap=0.0)
    for queries in (1, 4096):
        do, q, k, v = (torch.randn(4096 if n else queries, 8, 128, device="cuda").half() for n in (0, 0, 1, 1))
        sequences = sequences_of((queries,), (4096,))
        out, lse = triton_kernel.forward(q, k, v, sequences, rule)
        triton_backward.backward(do, q, k, v, out, lse, sequences, rule)
        assert taken == ([] if queries == 1 else ["forward", "backward"])
