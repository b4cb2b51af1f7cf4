"""Attention's kernels for Hopper, forward and backward, run on the CPU by the machine in hopper_on_cpu/.

Their bits are those of the kernels by Triton, run by the same machine; faults in their waiting are found. On a GPU
tests/gpu/test_attention_hopper.py compares both again."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from tests.ops.hopper_on_cpu.finding import Finding
from tests.ops.hopper_on_cpu.launching import launches
from tests.ops.hopper_on_cpu.running import Edit
from triton.experimental.gluon import language as gl

from samebits.numerics.bits import compare
from samebits.ops.attention import (
    triton_backward,
    triton_delta,
    triton_hopper,
    triton_hopper_backward,
    triton_hopper_dk_dv,
    triton_hopper_dq,
    triton_hopper_forward,
    triton_hopper_rescale,
    triton_kernel,
    triton_uncovered,
)
from samebits.ops.attention.forms import BLOCK_KEYS, Rule, Sequences
from samebits.ops.attention.triton_backward import BackwardLaunch
from samebits.ops.attention.triton_kernel import Launch

# Queries and keys of every sequence, and rows behind the last: tiles and parts of one, no query, no key, some splits.
RAGGED = ((150, 1, 0, 20, 70), (150, 7, 5, 0, 330), 3)
UNSEEN = ((200, 64), (100, 0), 70)
SHORT = ((70,), (150,), 0)
TILES = ((260, 150), (260, 150), 0)
NAMES = ("out", "lse", "dq", "dk", "dv")
FEWEST = {64: 2, 128: 2}
"""Stages with which somebody can always go on."""
LAUNCHES = (triton_hopper, triton_hopper_backward, triton_kernel, triton_backward, triton_uncovered, triton_delta)
Results = tuple[torch.Tensor, ...]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks a split and two programs."""
    for module in (triton_hopper, triton_kernel):
        monkeypatch.setattr(module, "SPLIT_KEYS", 2 * BLOCK_KEYS)
    monkeypatch.setattr(triton_hopper, "multiprocessors", lambda device: 2)


def set_stages(monkeypatch: pytest.MonkeyPatch, stages: dict[int, int]) -> None:
    for module in (triton_hopper, triton_hopper_backward):
        monkeypatch.setattr(module, "STAGES", stages)


def rule_of(causal: bool, window: int, head: int) -> Rule:
    return Rule(causal=causal, window=window, scale=head**-0.5, softcap=0.0)


def operands(pack: Any, head: int, heads: int, key_heads: int, dtype: torch.dtype, finite: bool = True) -> Results:
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
    sequences, launch = sequences_of(pack), BackwardLaunch(specialised=False)
    with launches(*LAUNCHES):
        out, lse = triton_kernel.forward(q, k, v, sequences, rule, launch=Launch(specialised=False))
        gradients = triton_backward.backward(
            do, q, k, v, out, lse, sequences, rule, dq_launch=launch, dk_dv_launch=launch
        )
    return out, lse, *gradients


def forward(given: Results, pack: Any, rule: Rule, **how: Any) -> Results:
    """`seed` and `edits`: the machine's."""
    with launches(*LAUNCHES, **how):
        return triton_hopper.forward(*given[1:], sequences_of(pack), rule)


def backward(given: Results, pack: Any, rule: Rule, kept: Results, **how: Any) -> Results:
    with launches(*LAUNCHES, **how):
        return triton_hopper_backward.backward(*given, *kept, sequences_of(pack), rule)


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
    monkeypatch: pytest.MonkeyPatch, pack: Any, head: int, key_heads: int, causal: bool, window: int, finite: bool
) -> None:
    rule, dtype = rule_of(causal, window, head), torch.float16 if window else torch.bfloat16
    given = operands(pack, head, 2, key_heads, dtype, finite)
    expected = by_triton(given, pack, rule)
    for seed in range(3):
        if seed == 2:
            set_stages(monkeypatch, FEWEST)
        found = (*forward(given, pack, rule, seed=seed), *backward(given, pack, rule, expected[:2], seed=seed))
        for name, ours, theirs in zip(NAMES, found, expected, strict=True):
            assert compare(ours, theirs) is None, f"{name}, seed {seed}"


# Module, function, text, what stands there instead, and what is found. Those of the forward pass are in
# test_hopper_on_cpu.py.
FAULTS: dict[str, tuple[ModuleType, str, str, str, set[str]]] = {
    "a block of keys is free while dQ's product reads it": (
        triton_hopper_dq,
        "walk",
        "sums = warpgroup_mma_wait(0, deps=[sums])\n        mbarrier.arrive(free.index(before))",
        "mbarrier.arrive(free.index(before))\n        sums = warpgroup_mma_wait(0, deps=[sums])",
        {"race"},
    ),
    "the next tile's queries over those in use": (
        triton_hopper_dq,
        "load",
        "mbarrier.wait(q_free.index(group), turns & 1 ^ 1)",
        "pass",
        {"race", "arrivals"},
    ),
    "weights made of scores that are not done": (
        triton_hopper_dk_dv,
        "add_block",
        "scores = warpgroup_mma_wait(1, deps=[scores])",
        "scores = warpgroup_mma_wait(2, deps=[scores])",
        {"accumulator"},
    ),
    "a block of queries is free while dK's product reads it": (
        triton_hopper_dk_dv,
        "add_block",
        "dv, dk = warpgroup_mma_wait(0, deps=[dv, dk])\n    mbarrier.arrive(free.index(stage))",
        "mbarrier.arrive(free.index(stage))\n    dv, dk = warpgroup_mma_wait(0, deps=[dv, dk])",
        {"race"},
    ),
    "the next tile's keys over those in use": (
        triton_hopper_dk_dv,
        "load",
        "mbarrier.wait(k_free.index(group), turns & 1 ^ 1)",
        "pass",
        {"race", "arrivals"},
    ),
    "queries are given back before their last scores": (
        triton_hopper_dq,
        "walk",
        "scores = product(q_shared, k_shared.index(stage), SCORES)\n    gained",
        "mbarrier.arrive(q_free)\n    scores = product(q_shared, k_shared.index(stage), SCORES)\n    gained",
        {"race", "arrivals", "deadlock"},
    ),
    "keys are never given back": (
        triton_hopper_dk_dv,
        "compute",
        "mbarrier.arrive(k_free.index(group))",
        "pass",
        {"deadlock"},
    ),
}


@pytest.mark.parametrize("words", FAULTS)
def test_planted_faults_are_found(words: str) -> None:
    module, name, old, new, kinds = FAULTS[words]
    given, rule = operands(TILES, 64, 1, 1, torch.bfloat16), rule_of(True, 0, 64)
    kept = torch.zeros_like(given[0]), torch.zeros(given[0].shape[:2])
    edits = [Edit(getattr(module, name), old, new)]
    with pytest.raises(Finding) as found:
        for seed in range(4):
            backward(given, TILES, rule, kept, seed=seed, edits=edits)
    assert found.value.kind in kinds, str(found.value)


@pytest.mark.parametrize(
    "module", [triton_hopper_forward, triton_hopper_dq, triton_hopper_dk_dv], ids=["forward", "dq", "dk and dv"]
)
def test_a_group_that_takes_anothers_rows_has_other_bits(module: ModuleType) -> None:
    """Planted: the warp that loads and those that compute disagree about who has which part of a tile."""
    given, rule = operands(TILES, 64, 1, 1, torch.bfloat16), rule_of(True, 0, 64)
    edits = [Edit(module.load, "group_of(part, turns, CONSTANTS)", "group_of(part, turns + 1, CONSTANTS)")]
    kept = forward(given, TILES, rule)
    expected = (*kept, *backward(given, TILES, rule, kept))
    found = (*forward(given, TILES, rule, edits=edits), *backward(given, TILES, rule, kept, edits=edits))
    assert any(compare(ours, theirs) is not None for ours, theirs in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("vote.sync.any", "vote.sync.all"),
        ("setp.neu.or.f32 changes, $3, 0f3F800000, changes;", ""),
        ("selp.b32 $0, 1, 0, changes;", "selp.b32 $0, 0, 0, changes;"),
    ],
    ids=["some rows' factor is 1", "of a thread's rows one is looked at", "always"],
)
def test_sums_that_are_not_rescaled_have_other_bits(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """Planted: rescaling is left out though a factor is not 1."""
    given, rule = operands(TILES, 64, 1, 1, torch.bfloat16), rule_of(True, 0, 64)
    expected = forward(given, TILES, rule)
    some = triton_hopper_rescale.SOME_CHANGE.value
    assert some.count(old) == 1
    monkeypatch.setattr(triton_hopper_rescale, "SOME_CHANGE", gl.constexpr(some.replace(old, new)))
    found = forward(given, TILES, rule)
    assert compare(found[0], expected[0]) is not None
    assert compare(found[1], expected[1]) is None


def test_a_block_that_waits_for_its_own_place_is_a_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """dQ holds a block until the next one is there, and so does the forward pass: with one stage nobody can go on."""
    set_stages(monkeypatch, {64: 1})
    given, rule = operands(SHORT, 64, 1, 1, torch.bfloat16), rule_of(False, 0, 64)
    kept = torch.zeros_like(given[0]), torch.zeros(given[0].shape[:2])
    with pytest.raises(Finding, match="nobody can go on"):
        forward(given, SHORT, rule)
    with pytest.raises(Finding, match="nobody can go on"):
        backward(given, SHORT, rule, kept)
