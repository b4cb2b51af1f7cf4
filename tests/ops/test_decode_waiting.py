"""Kernels of benchmarks/decode_attention, which no launch takes yet, run on the CPU by the machine in hopper_on_cpu/.

Their bits are those of the kernels in use, run by the same machine; on a GPU benchmarks/gpu_decode_attention.py
compares both again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.ops.hopper_on_cpu.launching import launches as on_cpu
from tests.ops.hopper_on_cpu.running import Edit
from tests.ops.test_hopper_kernels import rule_of
from tests.repository.documents import PROJECT

from samebits.numerics.bits import compare
from samebits.ops.attention import triton_kernel, triton_uncovered
from samebits.ops.attention.forms import BLOCK_KEYS, Rule, Sequences

PAGE = 16
Results = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(autouse=True)
def waiting(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The launches, with two blocks a split and four multiprocessors."""
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    from decode_attention import launches

    for module in (triton_kernel, launches):
        monkeypatch.setattr(module, "SPLIT_KEYS", 2 * BLOCK_KEYS)
    monkeypatch.setattr(launches, "multiprocessors", lambda device: 4)
    return launches


def sequences_of(queries: Sequence[int], keys: Sequence[int], paged: bool) -> Sequences:
    lengths = [torch.tensor(each) for each in (queries, keys)]
    starts = [torch.cumsum(each, 0) - each for each in lengths]
    most = -(-max(keys) // PAGE)
    return Sequences(
        q_start=starts[0],
        q_length=lengths[0],
        k_start=starts[1],
        k_length=lengths[1],
        pages=torch.randperm(most * len(keys)).int().reshape(len(keys), most) if paged else None,
        page_size=PAGE if paged else 0,
        longest_query=max(queries),
        longest_key=max(keys),
    )


def both(
    waiting: Any,
    queries: Sequence[int],
    keys: Sequence[int],
    sizes: tuple[int, int, int],
    rule: Rule,
    *,
    paged: bool = False,
    finite: bool = True,
    edits: Sequence[Edit] = (),
) -> tuple[Results, Results]:
    """(out, logarithms) by the kernels in use and by these; rows of no sequence behind the last."""
    torch.manual_seed(sum(keys))
    head, heads, key_heads = sizes
    sequences = sequences_of(queries, keys, paged)
    rows = sequences.pages.numel() * PAGE if sequences.pages is not None else sum(keys) + 1
    dtype = torch.float16 if rule.window else torch.bfloat16
    q, k, v = (torch.randn(n, h, head).to(dtype) for n, h in ((sum(queries) + 2, heads), *[(rows, key_heads)] * 2))
    if not finite:
        v[5, 0, 1], v[rows - 1], k[3, 0, 0] = torch.nan, torch.inf, -torch.inf
    with on_cpu(triton_kernel, triton_uncovered):
        expected = triton_kernel.forward(q, k, v, sequences, rule)
    with on_cpu(waiting, triton_uncovered, edits=edits):
        return expected, waiting.forward(q, k, v, sequences, rule)


@pytest.mark.parametrize(
    ("queries", "keys", "sizes", "causal", "window", "paged", "finite"),
    [
        ((1, 1, 1), (300, 64, 5), (64, 4, 1), True, 0, False, True),
        ((1, 1, 0, 1), (300, 0, 5, 129), (64, 4, 2), True, 0, False, True),
        ((2, 1, 3), (300, 64, 5), (32, 4, 1), True, 100, False, True),
        ((1, 2), (270, 64), (64, 2, 1), True, 0, True, False),
        ((1,), (100,), (128, 4, 1), True, 0, True, True),
        ((1, 1), (70, 64), (64, 4, 4), False, 30, False, False),
        ((4, 1), (2, 200), (16, 4, 2), True, 0, False, False),
    ],
)
def test_the_bits_of_the_kernels_in_use(
    waiting: Any,
    queries: Sequence[int],
    keys: Sequence[int],
    sizes: tuple[int, int, int],
    causal: bool,
    window: int,
    paged: bool,
    finite: bool,
) -> None:
    rule = rule_of(causal, window, sizes[0])
    expected, found = both(waiting, queries, keys, sizes, rule, paged=paged, finite=finite)
    for name, ours, theirs in zip(("out", "lse"), found, expected, strict=True):
        assert compare(ours, theirs) is None, name


def test_scores_that_are_bent_by_a_cap(waiting: Any) -> None:
    rule = Rule(causal=True, window=0, scale=0.125, softcap=5.0)
    expected, found = both(waiting, (1, 2), (200, 70), (64, 4, 2), rule)
    assert [compare(ours, theirs) for ours, theirs in zip(found, expected, strict=True)] == [None, None]


FAULTS = {
    "weights under the largest score of all splits": ("others = block // SPLIT * SPLIT +", "others = 0 * block +"),
    "weights under the block's own largest score": (
        "mask=(others <= block)[None, :]",
        "mask=(others == block)[None, :]",
    ),
    "earlier sums are shrunk by what includes this block": ("(others < block)[None, :]", "(others <= block)[None, :]"),
}


@pytest.mark.parametrize("words", FAULTS)
def test_planted_faults_change_bits(waiting: Any, words: str) -> None:
    from decode_attention.kernels import decode_weights

    edits = [Edit(decode_weights, *FAULTS[words])]
    expected, found = both(waiting, (1, 1), (300, 190), (64, 4, 1), rule_of(True, 0, 64), edits=edits)
    assert any(compare(ours, theirs) is not None for ours, theirs in zip(found, expected, strict=True))
