"""Kernels of infer/hopper_step, run on the CPU by the machine in tests/ops/hopper_on_cpu.

Their bits are those of the operators' kernels, run by the same machine. What a step writes may not be touched before
the wait for the kernel before: a watch holds every access, and what comes from that kernel is NaN until the wait. On a
GPU tests/gpu/test_decoding.py compares whole steps."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import pytest
import torch
import triton
import triton.language as tl
from tests.infer.hopper_step_on_cpu import Watch, umulhi, watched
from tests.ops.hopper_on_cpu.finding import Finding
from tests.ops.hopper_on_cpu.language import Language
from tests.ops.hopper_on_cpu.launching import launches
from tests.ops.hopper_on_cpu.running import Edit
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from samebits.infer.hopper_step import launches as step_launches
from samebits.infer.hopper_step import launching, products
from samebits.infer.hopper_step.choices import ProductLaunch
from samebits.numerics.bits import compare
from samebits.ops._triton import elements
from samebits.ops.attention import triton_decode, triton_uncovered
from samebits.ops.attention import triton_kernel as attention
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
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two multiprocessors, so that a program has several tiles, and two blocks a split."""
    for module in (products, triton_decode):
        monkeypatch.setattr(module, "multiprocessors", lambda device: 2)
    monkeypatch.setattr(Language, "umulhi", umulhi, raising=False)
    for module in (attention, triton_decode, step_launches):
        monkeypatch.setattr(module, "SPLIT_KEYS", 2 * BLOCK_KEYS)


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
    ("features", "rows", "depth", "gated", "overlapped", "finite"),
    [
        (200, 1, 328, False, True, True),
        (160, 3, 200, False, False, False),
        (400, 2, 192, True, True, False),
        (128, 17, 128, True, False, True),
        (96, 9, 328, True, True, True),
    ],
)
def test_a_product_has_the_bits_of_the_operators(
    features: int, rows: int, depth: int, gated: bool, overlapped: bool, finite: bool
) -> None:
    x, weight = operands(rows, features, depth, finite)
    with launches(*IN_USE):
        expected = matmul.gemm(x, weight.T, launch=SMALL)
        if gated:
            gate, up = (each.contiguous() for each in expected.chunk(2, 1))
            expected = swiglu.forward(gate, up)
    launch = ProductLaunch(depth=128 if gated else 64, stages=2, overlapped=overlapped)
    for seed in range(2):
        with watched(Watch(late(x)), seed):
            found = products.product(x, weight, launch, gated=gated)
        assert compare(found, expected) is None


def unrotated(
    whole: torch.Tensor, sizes: list[int], tables: tuple[torch.Tensor, ...], factor: float
) -> step_launches.Unrotated:
    """Rows of one product side by side, with positions, rows of the cache and frequencies."""
    positions, written, frequencies = tables
    q, k, v = whole.split(sizes, 1)
    return step_launches.Unrotated((q, k, v), positions, written, (frequencies, factor))


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
def test_rotation_and_the_caches_writes_have_their_bits(head: int, heads: int, key_heads: int) -> None:
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
            found = step_launches.rotate(unrotated(whole, sizes, tables, 1.25), head, kept)
        for ours, theirs in zip((found, *kept), (expected, *expected_kept), strict=True):
            assert compare(ours, theirs) is None


@pytest.mark.parametrize(("width", "finite"), [(520, True), (520, False), (2056, True)])
def test_a_norm_has_the_bits_of_the_operator(width: int, finite: bool) -> None:
    """The longer one by a launch of its own: all of a row at once."""
    x, weight = operands(3, 5, width)
    residual = weight[:3].clone()
    if not finite:
        x[1, 3], residual[2, 4] = torch.nan, torch.inf
    with launches(*IN_USE):
        normed, _, stream = rmsnorm.forward(x, weight[4].contiguous(), 1e-5, residual)
    watch = Watch(late(x, residual))
    with watched(watch):
        found = step_launches.norm(x, residual, weight[4].contiguous(), 1e-5)
    assert watch.prefetched > 0
    assert [compare(*each) for each in zip(found, (stream, normed), strict=True)] == [None, None]


RULE = Rule(causal=True, window=0, scale=0.25, softcap=0.0)


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


def rows_of(sequences: Sequences, keys: list[int]) -> torch.Tensor:
    """Where the last key of each sequence lies."""
    assert sequences.pages is not None
    last = torch.tensor(keys) - 1
    return sequences.pages[torch.arange(len(keys)), last // PAGE] * PAGE + last % PAGE


def keys_and_queries(sequences: Sequences, keys: list[int], head: int, group: int) -> tuple[torch.Tensor, ...]:
    """Of two key heads. What nobody holds is whatever was left there, and no number."""
    assert sequences.pages is not None
    rows = sequences.pages.numel() * PAGE
    shapes = ((sequences.count, 2 * group), (rows, 2), (rows, 2))
    q, k, v = (torch.randn(*shape, head).bfloat16() for shape in shapes)
    held = torch.zeros(rows, dtype=torch.bool)
    for table, count in zip(sequences.pages, keys, strict=True):
        held[[int(table[key // PAGE]) * PAGE + key % PAGE for key in range(count)]] = True
    k[~held], v[~held] = torch.nan, torch.inf
    return q, k, v


def attended(q: torch.Tensor, kept: tuple[torch.Tensor, torch.Tensor], sequences: Sequences) -> torch.Tensor:
    return step_launches.attend(q, kept, sequences, RULE, sequences.k_length - 1)


# Heads, and queries that share a key.
SHARED = [(64, 3), (128, 4), (64, 12), (128, 1), (64, 17)]
# With numbers that are not finite: these at every change, the others in the long tests.
OFTEN = [(64, 3), (128, 1)]


@pytest.mark.parametrize("keys", [[70, 1], [150, 300, 64, 65, 128]], ids=["one split", "some splits"])
@pytest.mark.parametrize(
    ("head", "group", "finite"),
    [
        *((*each, True) for each in SHARED),
        *(pytest.param(*each, False, marks=[] if each in OFTEN else [pytest.mark.long]) for each in SHARED),
    ],
)
def test_attention_over_pages_has_the_bits_of_the_operator(
    monkeypatch: pytest.MonkeyPatch, keys: list[int], head: int, group: int, finite: bool
) -> None:
    """Keys of earlier steps may come before the wait; the last one is written until then, as queries are. With one
    split by the launch of few programs."""
    if len(keys) == 2:
        monkeypatch.setattr(triton_decode, "multiprocessors", lambda device: 132)
    torch.manual_seed(len(keys))
    sequences = sequences_of(keys)
    q, k, v = keys_and_queries(sequences, keys, head, group)
    assert sequences.pages is not None
    if not finite:
        v[int(sequences.pages[0, 0]) * PAGE, 1, 3], k[int(sequences.pages[1, 0]) * PAGE, 0, 5] = torch.nan, -torch.inf
    with launches(*IN_USE):
        expected, _ = attention.forward(q, k, v, sequences, RULE)
    written = rows_of(sequences, keys)
    last = [(each, written, each[written].clone()) for each in (k, v)]
    queries = late(q)
    for each, rows, _ in last:
        each[rows] = torch.nan

    def arrive() -> None:
        queries()
        for each, rows, values in last:
            each[rows] = values

    with watched(Watch(arrive, written=frozenset(written.tolist())), seed=group):
        found = attended(q, (k, v), sequences)
    assert compare(found, expected) is None


def edit(module: str, function: str, old: str, new: str) -> Edit:
    return Edit(getattr(import_module(f"samebits.{module}"), function), old, new)


WAIT = "gdc_wait()\n"
AFTER_ROWS = (
    "    for number in range(first):\n        load_rows(number, described[1], rows_shared, ready, sizes, CONSTANTS)\n"
)
FAULTS = {
    "rows are loaded before the wait": (
        "product",
        ("infer.hopper_step.product_kernel", "load", f"    {WAIT}{AFTER_ROWS}", f"{AFTER_ROWS}    {WAIT}"),
        "early",
    ),
    "the warps that store have not waited": (
        "product",
        ("infer.hopper_step.product_kernel", "compute", "gdc_wait()", "pass"),
        "early",
    ),
    "queries are read before the wait": (
        "rotation",
        ("infer.hopper_step.rotation_kernel", "rotate_and_keep", "    gdc_wait()\n    q_a,", "    q_a,"),
        "early",
    ),
    "the last key is read before the wait": (
        "attention",
        ("ops.attention.triton_decode_kernel", "load", "gl.minimum((k_length - 1) // BLOCK, end)", "end"),
        "early",
    ),
    "blocks with keys of this step are read before it": (
        "attention",
        ("ops.attention.triton_decode_kernel", "load", "        gdc_wait()\n", "        pass\n"),
        "early",
    ),
    "attention's queries are read before it": (
        "attention",
        ("ops.attention.triton_decode_kernel", "weigh", "        gdc_wait()\n", "        pass\n"),
        "early",
    ),
    "attention's results are stored before it": (
        "attention",
        ("ops.attention.triton_decode_kernel", "add_up", "        gdc_wait()\n", "        pass\n"),
        "early",
    ),
    "a norm does not wait": (
        "norm",
        (
            "infer.hopper_step.waiting",
            "rmsnorm_waiting",
            "    gdc_wait()\n    rmsnorm_forward(",
            "    rmsnorm_forward(",
        ),
        "early",
    ),
}


def launched(kind: str) -> None:
    """One launch of a kind, of no matter which numbers."""
    x, weight = operands(2, 128, 64)
    rows = unrotated(x, [32, 16, 16], (torch.tensor([5, 0]), torch.tensor([9, 2]), torch.rand(8)), 1.0)
    kept = torch.zeros(32, 1, 16).bfloat16(), torch.zeros(32, 1, 16).bfloat16()
    if kind == "product":
        products.product(x, weight, ProductLaunch(depth=64, stages=2))
    elif kind == "rotation":
        step_launches.rotate(rows, 16, kept)
    elif kind == "attention":
        sequences = sequences_of([6, 1])
        q, k, v = keys_and_queries(sequences, [6, 1], 64, 2)
        attended(q, (k, v), sequences)
    else:
        step_launches.norm(x, x.clone(), weight[0].contiguous(), 1e-5)


@pytest.mark.parametrize("words", FAULTS)
def test_what_is_touched_before_the_wait_is_found(words: str) -> None:
    kind, (module, function, old, new), found_as = FAULTS[words]
    written = frozenset(range(64))
    with watched(Watch(written=written)):
        launched(kind)
    with pytest.raises(Finding) as found, watched(Watch(written=written), edits=[edit(module, function, old, new)]):
        launched(kind)
    assert found.value.kind == found_as, str(found.value)


@triton.jit
def waits_at_times(x_ptr, SOME: tl.constexpr):
    """Program 0 goes on without a wait, where it has nothing to do."""
    gdc_launch_dependents()
    if (tl.program_id(0) > 0) | (not SOME):
        gdc_wait()


def test_a_program_that_ends_without_a_wait_is_found() -> None:
    """Its end would be taken for the end of the kernels before it, by the kernel after it."""
    given = (torch.zeros(1),)
    with watched(Watch()):
        launching.run(waits_at_times, 2, given, warps=1, SOME=False)
        with pytest.raises(Finding) as found:
            launching.run(waits_at_times, 2, given, warps=1, SOME=True)
    assert found.value.kind == "unwaited"
