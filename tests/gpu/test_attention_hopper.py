"""Attention's kernel for Hopper against the kernel by Triton, bit for bit: masks, lengths, splits, infinities, NaNs."""

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
    ((200,), (100,)),
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
    queries: Sequence[int], keys: Sequence[int], head: int, dtype: torch.dtype, finite: bool
) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(sum(queries) + head)
    q, k, v = (
        torch.randn(n, heads, head, device="cuda").to(dtype) for n, heads in ((sum(queries), 4), *[(sum(keys), 2)] * 2)
    )
    if not finite:
        v[keys[0] - 1, 0], v[keys[0] // 2, 0, 3] = float("nan"), float("inf")
    return q, k, v


def differs(given: tuple[torch.Tensor, ...], sequences: Sequences, rule: Rule) -> str | None:
    """Where the two kernels part, in the output or in the logarithms."""
    from samebits.ops.attention import triton_hopper
    from samebits.ops.attention.triton_kernel import Launch, forward

    q, k, v = given
    assert triton_hopper.takes(q, k, v, sequences, rule)
    ours = forward(q, k, v, sequences, rule, launch=Launch())
    theirs = forward(q, k, v, sequences, rule, launch=Launch(specialised=False))
    found = [compare(left.cpu(), right.cpu()) for left, right in zip(ours, theirs, strict=True)]
    return next((str(each) for each in found if each is not None), None)


@pytest.mark.parametrize(("causal", "window"), MASKS)
@pytest.mark.parametrize(("head", "dtype"), [(128, torch.bfloat16), (64, torch.float16)])
def test_the_same_bits_as_the_kernel_by_triton(head: int, dtype: torch.dtype, causal: bool, window: int) -> None:
    rule = Rule(causal=causal, window=window, scale=head**-0.5, softcap=0.0)
    for (queries, keys), finite in itertools.product(PACKS, (True, False)):
        found = differs(operands(queries, keys, head, dtype, finite), sequences_of(queries, keys), rule)
        assert found is None, f"queries {queries}, keys {keys}, finite {finite}: {found}"


def test_splits_of_another_length_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the kernel for Hopper merges after 1,024 keys."""
    from samebits.ops.attention import triton_hopper

    monkeypatch.setattr(triton_hopper, "SPLIT_KEYS", 1024)
    given, sequences = operands((5000,), (5000,), 128, torch.bfloat16, True), sequences_of((5000,), (5000,))
    rule = Rule(causal=True, window=0, scale=128**-0.5, softcap=0.0)
    assert differs(given, sequences, rule) is not None
