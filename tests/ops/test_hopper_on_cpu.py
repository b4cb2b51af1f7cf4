"""Attention's kernel for Hopper, run on the CPU by the machine in hopper_on_cpu/: its bits, and faults in its waiting.

The bits are compared with those of the kernels by Triton, run by the same machine: adder, fused multiply-add and
elementary functions are samebits' own in both. Splits have two blocks, so that few keys make several."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from tests.ops.hopper_on_cpu.finding import Finding, Unsupported
from tests.ops.hopper_on_cpu.launching import launches
from tests.ops.hopper_on_cpu.running import Edit, run
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from samebits.numerics.adder import HOPPER, fused_chain
from samebits.numerics.bits import compare
from samebits.ops.attention import (
    triton_hopper,
    triton_hopper_forward,
    triton_hopper_rescale,
    triton_hopper_softmax,
    triton_hopper_tiles,
    triton_kernel,
    triton_uncovered,
)
from samebits.ops.attention.forms import BLOCK_KEYS, Rule, Sequences
from samebits.ops.attention.triton_hopper_rescale import rescaled
from samebits.ops.attention.triton_kernel import Launch

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
HEAD, HEADS, KEY_HEADS = 64, 2, 1
# Queries and keys of every sequence: more than a tile, one query, no query, no key; several splits in two of them.
RAGGED = ((150, 1, 0, 20, 70), (150, 7, 5, 0, 330))
ONE, SHORT = ((200,), (330,)), ((70,), (70,))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks a split, two programs, and no question after a GPU."""
    for module in (triton_hopper, triton_kernel):
        monkeypatch.setattr(module, "SPLIT_KEYS", 2 * BLOCK_KEYS)
    monkeypatch.setattr(triton_hopper, "multiprocessors", lambda device: 2)
    monkeypatch.setattr(triton_hopper, "takes", lambda *_: True)


def operands(pack: Any, dtype: torch.dtype = torch.bfloat16) -> Operands:
    torch.manual_seed(0)
    queries, keys = (sum(lengths) for lengths in pack)
    q, k, v = (torch.randn(n, h, HEAD).to(dtype) for n, h in ((queries, HEADS), *[(keys, KEY_HEADS)] * 2))
    return q, k, v


def sequences_of(pack: Any) -> Sequences:
    queries, keys = (torch.tensor(lengths) for lengths in pack)
    starts = [torch.cumsum(lengths, 0) - lengths for lengths in (queries, keys)]
    return Sequences(
        q_start=starts[0],
        q_length=queries,
        k_start=starts[1],
        k_length=keys,
        longest_query=int(queries.max()),
        longest_key=int(keys.max()),
    )


def rule(causal: bool, window: int) -> Rule:
    return Rule(causal=causal, window=window, scale=HEAD**-0.5, softcap=0.0)


def forward(
    given: Operands, pack: Any, asked: Rule, seed: int, *, specialised: bool = True, edits: Any = ()
) -> tuple[torch.Tensor, torch.Tensor]:
    with launches(triton_hopper, triton_kernel, triton_uncovered, seed=seed, edits=edits):
        return triton_kernel.forward(*given, sequences_of(pack), asked, launch=Launch(specialised=specialised))


@pytest.mark.parametrize(("causal", "window"), [(True, 0), (False, 0), (True, 100), (False, 70)])
def test_the_bits_of_the_kernel_by_triton_whoever_runs_when(causal: bool, window: int) -> None:
    given, asked = operands(RAGGED, torch.float16 if window else torch.bfloat16), rule(causal, window)
    expected = forward(given, RAGGED, asked, 0, specialised=False)
    for seed in range(3):
        for ours, theirs in zip(forward(given, RAGGED, asked, seed), expected, strict=True):
            assert compare(ours, theirs) is None, f"seed {seed}"


def test_what_is_not_finite_is_done_again() -> None:
    given, asked = operands(SHORT), rule(True, 0)
    given[2][[30, 69]] = torch.tensor([torch.inf, torch.nan]).bfloat16()[:, None, None]
    expected = forward(given, SHORT, asked, 0, specialised=False)
    for ours, theirs in zip(forward(given, SHORT, asked, 1), expected, strict=True):
        assert compare(ours, theirs) is None
    assert expected[0].isnan().any() and expected[0].isfinite().any()


LOAD, BLOCKS = triton_hopper_forward.load, triton_hopper_tiles.load_blocks
ATTEND, NEXT = triton_hopper_softmax.attend, triton_hopper_softmax.next_block
FAULTS = {
    "a stage is free before the product that reads it is done": (
        NEXT,
        "sums = warpgroup_mma_wait(0, deps=[sums])\n    mbarrier.arrive(free.index(before))",
        "mbarrier.arrive(free.index(before))\n    sums = warpgroup_mma_wait(0, deps=[sums])",
        {"race"},
    ),
    # Where the copies before are still under way, it says too early what it expects.
    "a stage is loaded that nobody freed": (
        BLOCKS,
        "mbarrier.wait(free.index(stage), loaded // CONSTANTS.STAGES & 1 ^ 1)",
        "pass",
        {"race", "arrivals"},
    ),
    # The copy may not even have begun, or two phases may have passed.
    "a wait for the wrong phase": (
        NEXT,
        "loaded // CONSTANTS.STAGES & 1)",
        "loaded // CONSTANTS.STAGES & 1 ^ 1)",
        {"race", "poison", "deadlock"},
    ),
    "a stage is never freed": (ATTEND, "mbarrier.arrive(free.index(last))", "pass", {"deadlock"}),
    "scores are read before the wait": (
        NEXT,
        "warpgroup_mma_wait(1, deps=[scores])",
        "warpgroup_mma_wait(2, deps=[scores])",
        {"accumulator"},
    ),
    "the bytes of one copy of two are expected": (
        BLOCKS,
        "2 * k_described.block_type.nbytes",
        "k_described.block_type.nbytes",
        {"race"},
    ),
    "queries are loaded over those in use": (
        LOAD,
        "mbarrier.wait(q_free.index(group), turns & 1 ^ 1)",
        "pass",
        {"race", "arrivals"},
    ),
    "queries are given back before their last scores": (
        ATTEND,
        "weights, lanes = weigh(scores, lanes, level, shrink, c)",
        "weights, lanes = weigh(scores, lanes, level, shrink, c)\n    mbarrier.arrive(q_free)",
        {"race", "arrivals", "deadlock"},
    ),
}


@pytest.mark.parametrize("words", FAULTS)
def test_planted_faults_are_found(words: str) -> None:
    function, old, new, kinds = FAULTS[words]
    given, asked = operands(ONE), rule(True, 0)
    for seed in range(4):
        with pytest.raises(Finding) as found:
            forward(given, ONE, asked, seed, edits=[Edit(function, old, new)])
        assert found.value.kind in kinds, f"seed {seed}: {found.value}"


def test_seeds_are_other_interleavings() -> None:
    function, old, new, kinds = FAULTS["a stage is loaded that nobody freed"]
    found = set()
    for seed in range(8):
        with pytest.raises(Finding) as finding:
            forward(operands(ONE), ONE, rule(True, 0), seed, edits=[Edit(function, old, new)])
        found.add(finding.value.kind)
    assert found == kinds


def test_a_finding_says_who_and_where() -> None:
    function, old, new, _ = FAULTS["a stage is free before the product that reads it is done"]
    with pytest.raises(Finding) as race:
        forward(operands(ONE), ONE, rule(True, 0), 0, edits=[Edit(function, old, new)])
    assert re.search(
        r"race: a copy to shared memory by partition 3 \(load\) of program \d in load_blocks at", str(race.value)
    )
    assert re.search(r"a product reads by partition \d \(compute\) .* in next_block at triton_hopper_", str(race.value))
    function, old, new, _ = FAULTS["a stage is never freed"]
    with pytest.raises(Finding) as deadlock:
        forward(operands(ONE), ONE, rule(True, 0), 0, edits=[Edit(function, old, new)])
    assert "(load) of program 0 waits for parity" in str(deadlock.value)
    assert "triton_hopper_tiles.py" in str(deadlock.value) and "mbarrier.wait(free.index(stage)" in str(deadlock.value)


@gluon.jit
def multiply(a_described, b_described, out_described, sums_ptr, SIZE: gl.constexpr):
    """a @ b^T: the left operand in registers, the right one transposed; rounded sums by a copy, sums by pointers."""
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIZE, 16])
    LAYOUT: gl.constexpr = a_described.layout
    a_shared = gl.allocate_shared_memory(a_described.dtype, [SIZE, SIZE], LAYOUT)
    b_shared = gl.allocate_shared_memory(a_described.dtype, [SIZE, SIZE], LAYOUT)
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    mbarrier.expect(ready, 2 * a_described.block_type.nbytes)
    tma.async_copy_global_to_shared(a_described, [0, 0], ready, a_shared)
    tma.async_copy_global_to_shared(b_described, [0, 0], ready, b_shared)
    mbarrier.wait(ready, 0)
    left = a_shared.load(gl.DotOperandLayout(0, SUMS, 2))
    nothing = gl.zeros((SIZE, SIZE), gl.float32, SUMS)
    sums = warpgroup_mma(left, b_shared.permute((1, 0)), nothing, is_async=True)
    sums = warpgroup_mma_wait(0, deps=[sums])
    a_shared.store(sums.to(a_described.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(out_described, [0, 0], a_shared)
    tma.store_wait(0)
    rows, columns = gl.arange(0, SIZE, gl.SliceLayout(1, SUMS)), gl.arange(0, SIZE, gl.SliceLayout(0, SUMS))
    gl.store(sums_ptr + (rows * SIZE)[:, None] + columns[None, :], sums)


def multiplied(*edits: Edit) -> tuple[torch.Tensor, ...]:
    """a, b, rounded sums and sums; a has 50 rows of the block's 64."""
    torch.manual_seed(0)
    a, b = torch.randn(50, 64).bfloat16(), torch.randn(64, 64).bfloat16()
    out, sums = torch.full((50, 64), torch.nan).bfloat16(), torch.full((64, 64), torch.nan)
    layout = gl.NVMMASharedLayout.get_default_for([64, 64], gl.bfloat16)
    described = [TensorDescriptor.from_tensor(x, [64, 64], layout) for x in (a, b, out)]
    run(multiply, 1, [*described, sums], {"SIZE": 64}, edits=edits)
    return a, b, out, sums


def test_another_kernel_with_copies_both_ways() -> None:
    a, b, out, sums = multiplied()
    expected = torch.from_numpy(fused_chain(a, b.T.contiguous(), HOPPER))
    assert compare(sums[:50], expected) is None and compare(out, expected.bfloat16()) is None
    assert (sums[50:] == 0).all()


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("fence_async_shared()", "pass", "fence"),
        ("tma.store_wait(0)", "pass", "unfinished"),
        ("mbarrier.init(ready, count=1)", "pass", "barrier"),
        ("count=1", "count=2", "deadlock"),
        ("mbarrier.wait(ready, 0)", "mbarrier.wait(ready, 2)", "phase"),
        ("mbarrier.wait(ready, 0)", "mbarrier.arrive(ready)", "arrivals"),
        ("sums_ptr + ", "sums_ptr + 1 + ", "bounds"),
        ("a_shared.load(", "gl.allocate_shared_memory(gl.bfloat16, [64, 64], LAYOUT).load(", "poison"),
    ],
)
def test_faults_of_other_kinds_are_found(old: str, new: str, kind: str) -> None:
    with pytest.raises(Finding) as found:
        multiplied(Edit(multiply, old, new))
    assert found.value.kind == kind, found.value


@gluon.jit
def rescale(sums_ptr, shrink_ptr, out_ptr):
    """rescaled, of 64 rows of 64."""
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    rows, columns = gl.arange(0, 64, gl.SliceLayout(1, SUMS)), gl.arange(0, 64, gl.SliceLayout(0, SUMS))
    places = (rows * 64)[:, None] + columns[None, :]
    shrink = gl.load(shrink_ptr + rows)
    gl.store(out_ptr + places, rescaled(gl.load(sums_ptr + places), shrink, 64, 64))


def rescaled_by(factors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums, and what is made of them."""
    torch.manual_seed(0)
    sums, out = torch.randn(64, 64), torch.zeros(64, 64)
    run(rescale, 1, [sums, factors, out], {})
    return sums, out


def test_assembly_runs_for_the_rows_of_a_warp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first warp's rows one changes, of the second's all, of the third's one becomes NaN, of the fourth's
    none."""
    factors = torch.ones(64)
    factors[13], factors[16:32], factors[40] = 0.25, 0.5, torch.nan
    sums, out = rescaled_by(factors)
    assert compare(out, sums * factors[:, None]) is None
    some, vote = triton_hopper_rescale.SOME_CHANGE.value, "vote.sync.any.pred changes, changes, 0xffffffff;"
    assert vote in some
    monkeypatch.setattr(triton_hopper_rescale, "SOME_CHANGE", gl.constexpr(some.replace("sync.any", "sync.all")))
    sums[16:32] *= 0.5
    assert compare(rescaled_by(factors)[1], sums) is None
    monkeypatch.setattr(triton_hopper_rescale, "SOME_CHANGE", gl.constexpr(some.replace(vote, "")))
    with pytest.raises(Finding, match="branch: threads of a warp part"):
        rescaled_by(factors)


def test_what_is_not_supported_is_named() -> None:
    with pytest.raises(Unsupported, match=r"language\.histogram"):
        multiplied(Edit(multiply, "sums.to(a_described.dtype)", "gl.histogram(sums, 2)"))
