"""Kernels of benchmarks/decode_step, which no launch takes yet, run on the CPU by the machine in hopper_on_cpu/.

Their bits are those of the kernels in use, run by the same machine. What a step writes may not be touched before the
wait for the kernel before: a watch holds every access, and what comes from that kernel is NaN until the wait. On a GPU
benchmarks/gpu_decode_step.py compares bits again."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from tests.ops.decode_step_on_cpu import Watch, umulhi, watched
from tests.ops.hopper_on_cpu.finding import Finding
from tests.ops.hopper_on_cpu.language import Language
from tests.ops.hopper_on_cpu.launching import launches
from tests.ops.hopper_on_cpu.running import Edit
from tests.repository.documents import PROJECT
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from samebits.numerics.bits import compare
from samebits.ops._triton import elements
from samebits.ops.attention import triton_kernel as attention
from samebits.ops.attention import triton_uncovered
from samebits.ops.attention.forms import BLOCK_KEYS, Rule, Sequences
from samebits.ops.matmul import triton_kernel as matmul
from samebits.ops.matmul.launch_table import Launch
from samebits.ops.rmsnorm import triton_kernel as rmsnorm
from samebits.ops.rope import triton_kernel as rope
from samebits.ops.swiglu import triton_kernel as swiglu

IN_USE = (matmul, elements, rmsnorm, rope, attention, triton_uncovered)
SMALL = Launch(tile_m=64, tile_n=16, tile_k=64, warps=4, stages=2, swap=True)
PAGE = 16


@pytest.fixture(autouse=True)
def decode_step(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package; two multiprocessors, so that a program has several tiles, and two blocks a split."""
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    import decode_step.launches
    import decode_step.products

    monkeypatch.setattr(decode_step.products, "multiprocessors", lambda device: 2)
    monkeypatch.setattr(Language, "umulhi", umulhi, raising=False)
    for module in (attention, decode_step.launches):
        monkeypatch.setattr(module, "SPLIT_KEYS", 2 * BLOCK_KEYS)
    return decode_step


def late(*tensors: torch.Tensor) -> Callable[[], None]:
    """They hold NaN until the kernel before has ended."""
    values = [each.clone() for each in tensors]
    for each in tensors:
        each.fill_(torch.nan)

    def arrive() -> None:
        for each, value in zip(tensors, values, strict=True):
            each.copy_(value)

    return arrive


def operands(rows: int, features: int, depth: int, finite: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(features)
    x, weight = (torch.randn(*shape).bfloat16() for shape in ((rows, depth), (features, depth)))
    if not finite:
        x[0, 5], weight[3, 7], weight[features // 2 + 1, 2] = torch.nan, torch.inf, -torch.inf
    return x, weight


@pytest.mark.parametrize(
    ("features", "rows", "depth", "tile", "gated", "early", "finite"),
    [
        (200, 1, 328, 64, False, True, True),
        (160, 3, 200, 32, False, False, False),
        (400, 2, 192, 64, True, True, False),
        (128, 17, 128, 32, True, False, True),
    ],
)
def test_a_product_has_the_bits_of_the_one_in_use(
    decode_step: Any, features: int, rows: int, depth: int, tile: int, gated: bool, early: bool, finite: bool
) -> None:
    x, weight = operands(rows, features, depth, finite)
    with launches(*IN_USE):
        expected = matmul.gemm(x, weight.T, launch=SMALL)
        if gated:
            gate, up = (each.contiguous() for each in expected.chunk(2, 1))
            expected = swiglu.forward(gate, up)
    products = decode_step.products
    form = products.Form(features=tile, depth=128 if gated else 64, stages=2, ahead=1, early=early)
    for seed in range(2):
        watch = Watch(late(x))
        with watched(watch, seed):
            found = products.product(x, weight, form, programmatic=True, gated=gated)
        assert compare(found, expected) is None
        assert (watch.prefetched > 0) == (depth > 128)


def rotated_in_use(
    products: tuple[torch.Tensor, ...], head: int, kept: tuple[torch.Tensor, ...], tables: tuple[torch.Tensor, ...]
) -> torch.Tensor:
    """By the launches in use: two rotations, and two copies into the cache."""
    positions, written, frequencies = tables
    q, k, v = (each.reshape(len(each), -1, head).contiguous() for each in products)
    with launches(*IN_USE):
        q, k = (rope.rotate(each, positions, frequencies, 1.25, False, False) for each in (q, k))
    for cache, each in zip(kept, (k, v), strict=True):
        cache.index_copy_(0, written, each)
    return q


@pytest.mark.parametrize(("head", "heads", "key_heads"), [(16, 8, 2), (24, 3, 1)])
def test_rotation_and_the_caches_writes_have_their_bits(
    decode_step: Any, head: int, heads: int, key_heads: int
) -> None:
    torch.manual_seed(head)
    # Rows of one product side by side, with zeros of both signs and what is not finite.
    whole = torch.randn(3, (heads + 2 * key_heads) * head).bfloat16()
    whole[:, ::7], whole[1, 3], whole[2, -1], whole[0, -2] = -0.0, torch.nan, torch.inf, -0.0
    tables = torch.tensor([5, 0, 4099]), torch.tensor([9, 2, 30]), torch.rand(head // 2)
    before = torch.randn(2, 40, key_heads, head).bfloat16()
    kept, expected_kept = before.clone().unbind(0), before.clone().unbind(0)
    sizes = [heads * head, key_heads * head, key_heads * head]
    expected = rotated_in_use(whole.split(sizes, 1), head, expected_kept, tables)
    for seed in range(2):
        with watched(Watch(late(whole)), seed):
            found = decode_step.launches.rotate(
                whole.split(sizes, 1), head, kept, *tables[:2], (tables[2], 1.25), programmatic=True
            )
        for ours, theirs in zip((found, *kept), (expected, *expected_kept), strict=True):
            assert compare(ours, theirs) is None


@pytest.mark.parametrize("finite", [True, False])
def test_a_norm_has_the_bits_of_the_one_in_use(decode_step: Any, finite: bool) -> None:
    x, weight = operands(3, 520, 520)
    residual = weight[:3].clone()
    if not finite:
        x[1, 3], residual[2, 4] = torch.nan, torch.inf
    with launches(*IN_USE):
        normed, _, stream = rmsnorm.forward(x, weight[4].contiguous(), 1e-5, residual)
    with watched(Watch(late(x, residual))):
        found = decode_step.launches.norm(x, residual, weight[4].contiguous(), 1e-5, programmatic=True)
    assert [compare(*each) for each in zip(found, (stream, normed), strict=True)] == [None, None]


def sequences_of(keys: list[int]) -> Sequences:
    """One query of each, keys in pages that lie anywhere."""
    count, most = len(keys), -(-max(keys) // PAGE)
    return Sequences(
        q_start=torch.arange(count),
        q_length=torch.ones(count, dtype=torch.int64),
        k_start=torch.zeros(count, dtype=torch.int64),
        k_length=torch.tensor(keys),
        pages=torch.randperm(most * count).int().reshape(count, most),
        page_size=PAGE,
        longest_query=1,
        longest_key=max(keys),
    )


@pytest.mark.parametrize("keys", [[70, 1], [150, 300, 128]], ids=["one split", "some splits"])
def test_attention_without_fills_has_the_bits_of_the_one_in_use(decode_step: Any, keys: list[int]) -> None:
    torch.manual_seed(len(keys))
    sequences, rule = sequences_of(keys), Rule(causal=True, window=0, scale=0.25, softcap=0.0)
    assert sequences.pages is not None
    rows = sequences.pages.numel() * PAGE
    q, k, v = (torch.randn(n, heads, 16).bfloat16() for n, heads in ((len(keys), 4), (rows, 2), (rows, 2)))
    v[int(sequences.pages[0, 0]) * PAGE, 1, 3] = torch.nan
    with launches(*IN_USE):
        expected, _ = attention.forward(q, k, v, sequences, rule)
    with watched(Watch(late(q, k, v))):
        found = decode_step.launches.attend(q, k, v, sequences, rule, programmatic=True)
    assert compare(found, expected) is None


def edit(module: str, function: str, old: str, new: str) -> Edit:
    return Edit(getattr(import_module(f"decode_step.{module}"), function), old, new)


WAIT = "gdc_wait()\n"
AFTER_ROWS = (
    "    for number in range(first):\n        load_rows(number, described[1], rows_shared, ready, sizes, CONSTANTS)\n"
)
FAULTS = {
    "rows are loaded before the wait": (
        "product",
        ("product_kernel", "load", f"    {WAIT}{AFTER_ROWS}", f"{AFTER_ROWS}    {WAIT}"),
        "early",
    ),
    "the warps that store have not waited": ("product", ("product_kernel", "compute", "gdc_wait()", "pass"), "early"),
    "queries are read before the wait": (
        "rotation",
        ("rotation_kernel", "rotate_and_keep", "    gdc_wait()\n    q_a,", "    q_a,"),
        "early",
    ),
    "a norm does not wait": ("norm", ("waiting", "begin", "gdc_wait()", "pass"), "early"),
}


def launched(decode_step: Any, kind: str) -> None:
    """One launch of a kind, of no matter which numbers."""
    x, weight = operands(2, 128, 64)
    if kind == "product":
        form = decode_step.products.Form(depth=64, stages=2)
        decode_step.products.product(x, weight, form, programmatic=True)
    elif kind == "rotation":
        tables = torch.tensor([5, 0]), torch.tensor([9, 2])
        kept = torch.zeros(10, 1, 16).bfloat16(), torch.zeros(10, 1, 16).bfloat16()
        q, k, v = x.split([32, 16, 16], 1)
        decode_step.launches.rotate((q, k, v), 16, kept, *tables, (torch.rand(8), 1.0), programmatic=True)
    else:
        decode_step.launches.norm(x, x.clone(), weight[0].contiguous(), 1e-5, programmatic=True)


@pytest.mark.parametrize("words", FAULTS)
def test_what_is_touched_before_the_wait_is_found(decode_step: Any, words: str) -> None:
    kind, (module, function, old, new), found_as = FAULTS[words]
    with watched(Watch()):
        launched(decode_step, kind)
    with pytest.raises(Finding) as found, watched(Watch(), edits=[edit(module, function, old, new)]):
        launched(decode_step, kind)
    assert found.value.kind == found_as, str(found.value)


@triton.jit
def waits_at_times(x_ptr, SOME: tl.constexpr):
    """Program 0 goes on without a wait, where it has nothing to do."""
    gdc_launch_dependents()
    if (tl.program_id(0) > 0) | (not SOME):
        gdc_wait()


def test_a_program_that_ends_without_a_wait_is_found(decode_step: Any) -> None:
    """Its end would be taken for the end of the kernels before it, by the kernel after it."""
    given, how = (torch.zeros(1),), {"warps": 1, "programmatic": True}
    with watched(Watch()):
        decode_step.launching.run(waits_at_times, 2, given, **how, SOME=False)
        with pytest.raises(Finding) as found:
            decode_step.launching.run(waits_at_times, 2, given, **how, SOME=True)
    assert found.value.kind == "unwaited"
