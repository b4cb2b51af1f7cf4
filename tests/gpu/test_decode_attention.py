"""Attention of one query at a time by Gluon against the kernel by Triton, bit for bit, on the H200.

Masks, groups, pages, lengths around the borders of blocks and splits, some queries of a sequence, infinities and NaNs,
rows of no sequence; and again and again, for what runs beside each other."""

from __future__ import annotations

import itertools
import multiprocessing
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from samebits.numerics.bits import compare
from samebits.ops.attention.forms import Rule, Sequences

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, none is visible")

Config = tuple[int, int, int, bool, int, int, torch.dtype]
"""Head, query heads, key heads, causal, window, page size, dtype."""
CONFIGS: tuple[Config, ...] = (
    (128, 32, 8, True, 0, 0, torch.bfloat16),
    (128, 32, 8, True, 0, 16, torch.bfloat16),
    (64, 9, 3, True, 100, 64, torch.float16),
    (128, 16, 1, True, 0, 0, torch.float16),
    (64, 4, 4, False, 0, 48, torch.bfloat16),
    (64, 14, 2, False, 300, 16, torch.float16),
    (128, 24, 2, True, 2500, 32, torch.bfloat16),
)
ONE_SPLIT = tuple(([1], [keys]) for keys in (1, 63, 64, 65, 128, 257, 1000, 1024, 2047, 2048))
SPLITS = tuple(([1], [keys]) for keys in (2049, 2112, 4096, 4100, 6000, 32768))
RAGGED = (
    ([1, 1, 0, 1, 1], [70, 2048, 5, 0, 1]),
    ([1, 1, 0, 1], [500, 4097, 0, 2049]),
    ([2, 3, 1], [300, 3000, 64]),
    ([4], [4100]),
    ([3, 2], [2, 1]),
)
REPEATED = 200


def many(longest: int) -> tuple[list[int], list[int]]:
    """More programs than multiprocessors."""
    drawn = random.Random(longest)
    return [1] * 96, [drawn.randrange(1, longest) for _ in range(96)]


LENGTHS = (*ONE_SPLIT, *SPLITS, *RAGGED, many(2048), many(5000))


def sequences_of(lengths: tuple[Sequence[int], Sequence[int]], page_size: int) -> Sequences:
    """Rows begin behind some of no sequence; pages lie anywhere."""
    queries, keys = (torch.tensor(each, device="cuda") for each in lengths)
    count, most = len(keys), -(-max(1, *lengths[1]) // max(1, page_size))
    pages = torch.randperm(most * count, device="cuda").int().reshape(count, most) if page_size else None
    return Sequences(
        q_start=torch.cumsum(queries, 0) - queries + 2,
        q_length=queries,
        k_start=torch.cumsum(keys, 0) - keys + 1,
        k_length=keys,
        pages=pages,
        page_size=page_size,
        longest_query=max(lengths[0]),
        longest_key=max(lengths[1]),
    )


def operands(
    sequences: Sequences, head: int, heads: int, key_heads: int, dtype: torch.dtype, finite: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = int(sequences.k_length.sum()) + 3
    if sequences.pages is not None:
        rows = sequences.pages.numel() * sequences.page_size
    tokens = int(sequences.q_length.sum()) + 70
    shapes = ((tokens, heads), (rows, key_heads), (rows, key_heads))
    q, k, v = (torch.randn(*shape, head, device="cuda").to(dtype) for shape in shapes)
    if not finite:
        v[::397, -1, 3], k[5::1131, 0, 5], v[40::889, 0, 0] = torch.nan, -torch.inf, torch.inf
        q[2, 0, 1] = torch.inf
    return q, k, v


def differing(config: Config) -> list[str]:
    """Every comparison with the kernel by Triton that does not hold."""
    from samebits.ops._triton.launch import launch_count
    from samebits.ops.attention import triton_kernel

    head, heads, key_heads, causal, window, page_size, dtype = config
    rule = Rule(causal=causal, window=window, scale=head**-0.5, softcap=0.0)
    other = triton_kernel.Launch(tile=16, packed=True, described=False, shared=True, specialised=False)
    found = []
    for lengths, finite in itertools.product(LENGTHS, (True, False)):
        torch.manual_seed(sum(lengths[1]))
        sequences = sequences_of(lengths, page_size)
        q, k, v = operands(sequences, head, heads, key_heads, dtype, finite)
        expected = triton_kernel.forward(q, k, v, sequences, rule, launch=other)
        before = launch_count("attention_of_one_query")
        given = triton_kernel.forward(q, k, v, sequences, rule, launch=triton_kernel.Launch(decoded=True))
        assert launch_count("attention_of_one_query") == before + 1
        for name, ours, theirs in zip(("out", "lse"), given, expected, strict=True):
            parting = compare(ours.cpu(), theirs.cpu())
            if parting is not None:
                found.append(f"{config}: {name} of {lengths}, finite {finite}: {parting}")
    return found


def test_the_bits_of_the_kernel_by_triton() -> None:
    """Each kind in a process of its own: compiling takes longer than running."""
    with ProcessPoolExecutor(len(CONFIGS), mp_context=multiprocessing.get_context("spawn")) as pool:
        found = [words for each in pool.map(differing, CONFIGS) for words in each]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("lengths", [([1], [1024]), ([1], [4096]), ([1] * 8, [4096] * 8), many(5000)], ids=str)
def test_it_is_chosen_and_gives_the_same_again_and_again(lengths: tuple[list[int], list[int]]) -> None:
    from samebits.ops._triton.launch import launch_count
    from samebits.ops.attention import triton_kernel

    rule = Rule(causal=True, window=0, scale=0.1, softcap=0.0)
    sequences = sequences_of(lengths, 0)
    q, k, v = operands(sequences, 128, 32, 8, torch.bfloat16, True)
    before = launch_count("attention_of_one_query")
    first = triton_kernel.forward(q, k, v, sequences, rule)
    again = [triton_kernel.forward(q, k, v, sequences, rule) for _ in range(REPEATED)]
    assert launch_count("attention_of_one_query") == before + 1 + REPEATED
    for each in again:
        assert torch.equal(each[0].view(torch.int16), first[0].view(torch.int16))
        assert torch.equal(each[1].view(torch.int32), first[1].view(torch.int32))


def test_splits_of_another_length_have_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a border of splits elsewhere."""
    from samebits.ops.attention import triton_decode, triton_kernel

    rule = Rule(causal=True, window=0, scale=0.1, softcap=0.0)
    sequences = sequences_of(([1], [4096]), 0)
    given = (*operands(sequences, 128, 32, 8, torch.bfloat16, True), sequences, rule)
    expected, _ = triton_kernel.forward(*given)
    for module in (triton_decode, triton_kernel):
        monkeypatch.setattr(module, "SPLIT_KEYS", 1024)
    spoiled, _ = triton_kernel.forward(*given)
    assert compare(spoiled.cpu(), expected.cpu()) is not None
