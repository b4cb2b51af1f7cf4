"""Kernels of benchmarks/hopper_attention, which no launch takes yet, run on the CPU by the machine in hopper_on_cpu/.

Their bits are those of the kernels by Triton, run by the same machine; faults in their waiting are found. On a GPU
benchmarks/gpu_attention.py compares both again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.ops.hopper_on_cpu.finding import Finding
from tests.ops.hopper_on_cpu.launching import launches as on_cpu
from tests.ops.hopper_on_cpu.running import Edit

from samebits.numerics.bits import compare
from samebits.ops.attention import triton_backward, triton_hopper, triton_kernel
from samebits.ops.attention.forms import BLOCK_KEYS, Rule, Sequences
from samebits.ops.attention.triton_kernel import Launch

BENCHMARKS = str(Path(__file__).resolve().parents[2] / "benchmarks")
# Queries and keys of every sequence, and rows behind the last: tiles and parts of one, no query, no key, some splits.
RAGGED = ((150, 1, 0, 20, 70), (150, 7, 5, 0, 330), 3)
UNSEEN = ((200, 64), (100, 0), 70)
SHORT = ((70,), (150,), 0)
NAMES = ("out", "lse", "dq", "dk", "dv")
Results = tuple[torch.Tensor, ...]


@pytest.fixture(autouse=True)
def waiting(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The launches, with two blocks a split and two programs."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    from hopper_attention import launches

    for module in (triton_hopper, triton_kernel, launches):
        monkeypatch.setattr(module, "SPLIT_KEYS", 2 * BLOCK_KEYS)
    monkeypatch.setattr(launches, "multiprocessors", lambda device: 2)
    return launches


def rule_of(causal: bool, window: int, head: int) -> Rule:
    return Rule(causal=causal, window=window, scale=head**-0.5, softcap=0.0)


def operands(pack: Any, head: int, heads: int, key_heads: int, dtype: torch.dtype, finite: bool) -> Results:
    torch.manual_seed(sum(pack[0]) + head)
    queries, keys = (sum(lengths) + pack[2] for lengths in pack[:2])
    shapes = ((queries, heads), (queries, heads), (keys, key_heads), (keys, key_heads))
    do, q, k, v = (torch.randn(*shape, head).to(dtype) for shape in shapes)
    if not finite:
        v[pack[1][0] - 1, 0], do[pack[0][0] // 2, 0, 3], k[0, 0, 5] = torch.nan, torch.inf, -torch.inf
    return do, q, k, v


def sequences_of(pack: Any) -> Sequences:
    queries, keys = (torch.tensor(lengths) for lengths in pack[:2])
    starts = [torch.cumsum(lengths, 0) - lengths for lengths in (queries, keys)]
    longest = {"longest_query": int(queries.max()), "longest_key": int(keys.max())}
    return Sequences(q_start=starts[0], q_length=queries, k_start=starts[1], k_length=keys, **longest)


def by_triton(given: Results, pack: Any, rule: Rule) -> Results:
    do, q, k, v = given
    with on_cpu(triton_kernel, triton_backward):
        out, lse = triton_kernel.forward(q, k, v, sequences_of(pack), rule, launch=Launch(specialised=False))
        return out, lse, *triton_backward.backward(do, q, k, v, out, lse, sequences_of(pack), rule)


def by_these(launches: Any, given: Results, pack: Any, rule: Rule, kept: Results, **how: Any) -> Results:
    """Forward and backward; `depth` is the backward pass's, `seed` and `edits` the machine's."""
    depth = how.pop("depth", None)
    do, q, k, v = given
    with on_cpu(launches, **how):
        forward = launches.forward(q, k, v, sequences_of(pack), rule)
        return *forward, *launches.backward(do, q, k, v, *kept, sequences_of(pack), rule, depth=depth)


@pytest.mark.parametrize(
    ("pack", "head", "key_heads", "causal", "window", "finite"),
    [
        (RAGGED, 64, 1, True, 0, True),
        (SHORT, 128, 2, True, 100, False),
        pytest.param(RAGGED, 64, 2, False, 70, False, marks=pytest.mark.long),
        pytest.param(RAGGED, 64, 2, False, 0, True, marks=pytest.mark.long),
        pytest.param(RAGGED, 64, 1, True, 0, False, marks=pytest.mark.long),
        pytest.param(RAGGED, 128, 1, True, 100, True, marks=pytest.mark.long),
        pytest.param(UNSEEN, 128, 1, True, 0, True, marks=pytest.mark.long),
        pytest.param(UNSEEN, 64, 1, False, 70, False, marks=pytest.mark.long),
    ],
)
def test_the_bits_of_the_kernels_by_triton_whoever_runs_when(
    waiting: Any, pack: Any, head: int, key_heads: int, causal: bool, window: int, finite: bool
) -> None:
    rule, dtype = rule_of(causal, window, head), torch.float16 if window else torch.bfloat16
    given = operands(pack, head, 2, key_heads, dtype, finite)
    expected = by_triton(given, pack, rule)
    for seed, depth in enumerate((waiting.BACKWARD[head], waiting.SHORT_BACKWARD[head], waiting.Depth(2))):
        found = by_these(waiting, given, pack, rule, expected[:2], seed=seed, depth=depth)
        for name, ours, theirs in zip(NAMES, found, expected, strict=True):
            assert compare(ours, theirs) is None, f"{name}, seed {seed}, {depth}"


# Function, text, what stands there instead, and what is found.
FAULTS = {
    "a block of keys is free while dQ's product reads it": (
        "dq.walk",
        "sums = warpgroup_mma_wait(0, deps=[sums])\n        mbarrier.arrive(free.index(before))",
        "mbarrier.arrive(free.index(before))\n        sums = warpgroup_mma_wait(0, deps=[sums])",
        {"race"},
    ),
    "the next tile's queries over those in use": (
        "dq.load",
        "mbarrier.wait(q_free.index(buffer), turns // BUFFERS & 1 ^ 1)",
        "pass",
        {"race", "arrivals"},
    ),
    "weights made of scores that are not done": (
        "dk_dv.add_block",
        "scores = warpgroup_mma_wait(1, deps=[scores])",
        "scores = warpgroup_mma_wait(2, deps=[scores])",
        {"accumulator"},
    ),
    "a block of queries is free while dK's product reads it": (
        "dk_dv.add_block",
        "dv, dk = warpgroup_mma_wait(0, deps=[dv, dk])\n    mbarrier.arrive(free.index(stage))",
        "mbarrier.arrive(free.index(stage))\n    dv, dk = warpgroup_mma_wait(0, deps=[dv, dk])",
        {"race"},
    ),
    "keys are never given back": ("dk_dv.compute", "mbarrier.arrive(k_free.index(buffer))", "pass", {"deadlock"}),
    "the forward pass takes the other buffer's queries": (
        "forward.compute",
        "q_shared.index(buffer * GROUPS + group)",
        "q_shared.index((BUFFERS - 1 - buffer) * GROUPS + group)",
        {"poison", "race"},
    ),
}


@pytest.mark.parametrize("words", FAULTS)
def test_planted_faults_are_found(waiting: Any, words: str) -> None:
    import hopper_attention

    place, old, new, kinds = FAULTS[words]
    module, _, name = place.partition(".")
    function = getattr(getattr(hopper_attention, module), name)
    pack, rule = ((260, 150), (260, 150), 0), rule_of(True, 0, 64)
    given = operands(pack, 64, 1, 1, torch.bfloat16, True)
    kept = torch.zeros_like(given[0]), torch.zeros(given[0].shape[:2])
    with pytest.raises(Finding) as found:
        for seed in range(4):
            by_these(waiting, given, pack, rule, kept, seed=seed, edits=[Edit(function, old, new)])
    assert found.value.kind in kinds, str(found.value)


def test_a_block_that_waits_for_its_own_place_is_a_deadlock(waiting: Any) -> None:
    """dQ holds a block until the next one is there: with one stage nobody can go on."""
    given = operands(SHORT, 64, 1, 1, torch.bfloat16, True)
    kept = torch.zeros_like(given[0]), torch.zeros(given[0].shape[:2])
    with pytest.raises(Finding, match="nobody can go on"):
        by_these(waiting, given, SHORT, rule_of(False, 0, 64), kept, depth=waiting.Depth(1))
