"""Attention of one query at a time by Gluon, run on the CPU by the machine in hopper_on_cpu/.

Its bits are those of the kernels by Triton, run by the same machine; faults in its waiting and its masks are found. On
a GPU tests/gpu/test_decode_attention.py compares both again; infer/hopper_step's launch of it is in
tests/infer/test_hopper_step_kernels.py."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.ops.hopper_on_cpu.finding import Finding
from tests.ops.hopper_on_cpu.launching import launches
from tests.ops.hopper_on_cpu.running import Edit

from samebits.numerics.bits import compare
from samebits.ops.attention import (
    triton_decode,
    triton_decode_kernel,
    triton_decode_places,
    triton_decode_softmax,
    triton_decode_values,
    triton_kernel,
    triton_uncovered,
)
from samebits.ops.attention.forms import BLOCK_KEYS, Rule, Sequences
from samebits.ops.attention.triton_kernel import Launch

LAUNCHES = (triton_decode, triton_kernel, triton_uncovered)
# Queries and keys of every sequence: parts of a block, borders of blocks and of splits, no query, no key.
LENGTHS = ([1, 1, 0, 1, 1], [70, 1, 5, 0, 330])
BORDERS = ([1, 1, 1, 1], [64, 128, 129, 65])
FEW = ([2, 3, 1], [150, 2, 64])
LONG = ([1], [700])
Results = tuple[torch.Tensor, ...]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks a split; the kernel for Hopper takes tensors in main memory."""
    for module in (triton_decode, triton_kernel):
        monkeypatch.setattr(module, "SPLIT_KEYS", 2 * BLOCK_KEYS)
    monkeypatch.setattr(triton_decode, "missing", lambda device: None)
    set_multiprocessors(monkeypatch, 1000)


def set_multiprocessors(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Of which depends how many blocks are on their way and how many are taken at once."""
    monkeypatch.setattr(triton_decode, "multiprocessors", lambda device: number)


def sequences_of(lengths: tuple[Sequence[int], Sequence[int]], page_size: int) -> Sequences:
    """Pages lie anywhere; rows of q and of keys that lie side by side begin behind some of no sequence."""
    queries, keys = (torch.tensor(each) for each in lengths)
    count, most = len(keys), -(-max(1, *lengths[1]) // max(1, page_size))
    return Sequences(
        q_start=torch.cumsum(queries, 0) - queries + 2,
        q_length=queries,
        k_start=torch.cumsum(keys, 0) - keys + 1,
        k_length=keys,
        pages=torch.randperm(most * count).int().reshape(count, most) if page_size else None,
        page_size=page_size,
        longest_query=int(queries.max()),
        longest_key=int(keys.max()),
    )


def operands(
    sequences: Sequences, head: int, group: int, dtype: torch.dtype, finite: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of two key heads. Keys that no sequence has are no numbers, as are some that a window leaves out."""
    rows = int(sequences.k_length.sum()) + 3
    held = torch.zeros(rows, dtype=torch.bool)
    held[1 : rows - 2] = True
    if sequences.pages is not None:
        size = sequences.page_size
        held = torch.zeros(sequences.pages.numel() * size, dtype=torch.bool)
        for table, count in zip(sequences.pages, sequences.k_length.tolist(), strict=True):
            held[[int(table[key // size]) * size + key % size for key in range(count)]] = True
    shapes = ((int(sequences.q_length.sum()) + 70, 2 * group), (len(held), 2), (len(held), 2))
    q, k, v = (torch.randn(*shape, head).to(dtype) for shape in shapes)
    if not finite:
        v[::97, 1, 3], k[5::131, 0, 5], v[40::89, 0, 0] = torch.nan, -torch.inf, torch.inf
    k[~held], v[~held] = torch.nan, torch.inf
    return q, k, v


def given(lengths: Any, head: int, group: int, rule: Rule, page_size: int, finite: bool = True) -> tuple[Any, ...]:
    torch.manual_seed(head + group)
    sequences = sequences_of(lengths, page_size)
    dtype = torch.float16 if rule.window else torch.bfloat16
    return *operands(sequences, head, group, dtype, finite), sequences, rule


def by_triton(*given: Any) -> Results:
    with launches(*LAUNCHES):
        return triton_kernel.forward(*given, launch=Launch(specialised=False, shared=True))


def by_gluon(*given: Any, **how: Any) -> Results:
    """`seed` and `edits`: the machine's."""
    with launches(*LAUNCHES, **how), pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_decode, "takes", lambda *given: True)
        # Memory that nobody clears holds no number.
        patch.setattr(torch, "empty", of_no_number)
        return triton_kernel.forward(*given, launch=Launch(decoded=True))


EMPTY = torch.empty


def of_no_number(*sizes: Any, **more: Any) -> torch.Tensor:
    made = EMPTY(*sizes, **more)
    return made.fill_(torch.nan) if made.is_floating_point() else made


def rule_of(causal: bool = True, window: int = 0) -> Rule:
    return Rule(causal=causal, window=window, scale=0.25, softcap=0.0)


CASES = [
    (LENGTHS, 128, 4, True, 0, 0, True),
    (LENGTHS, 64, 1, True, 0, 16, False),
    (BORDERS, 64, 7, True, 100, 48, False),
    (FEW, 64, 3, True, 0, 0, False),
    (FEW, 128, 16, False, 70, 64, True),
    (LONG, 64, 2, True, 0, 32, True),
]


@pytest.mark.parametrize("many", [False, True], ids=["few programs", "many programs"])
@pytest.mark.parametrize(
    ("lengths", "head", "group", "causal", "window", "page_size", "finite"),
    [
        *CASES,
        *(
            pytest.param(lengths, head, group, causal, window, page_size, False, marks=pytest.mark.long)
            for lengths in (LENGTHS, BORDERS, FEW, LONG)
            for head, group in ((64, 5), (128, 9), (128, 1))
            for causal, window in ((True, 0), (False, 0), (True, 70), (False, 100))
            for page_size in (0, 16)
        ),
    ],
)
def test_the_bits_of_the_kernels_by_triton(
    monkeypatch: pytest.MonkeyPatch,
    lengths: Any,
    head: int,
    group: int,
    causal: bool,
    window: int,
    page_size: int,
    finite: bool,
    many: bool,
) -> None:
    if many:
        set_multiprocessors(monkeypatch, 1)
    asked = given(lengths, head, group, rule_of(causal, window), page_size, finite)
    for name, ours, theirs in zip(("out", "lse"), by_gluon(*asked, seed=group), by_triton(*asked), strict=True):
        assert compare(ours, theirs) is None, name


def test_who_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One query of a sequence always; some where multiprocessors are left; what it cannot take goes elsewhere."""
    q, k = torch.zeros(4, 8, 128).bfloat16(), torch.zeros(9, 2, 128).bfloat16()
    one, some, more = (sequences_of(([n], [9]), 0) for n in (1, 3, 5))

    class OnGpu(torch.Tensor):
        is_cuda = True

    q, k = (each.as_subclass(OnGpu) for each in (q, k))
    choose = triton_kernel.choose
    assert [choose(q, 4, each, 1).decoded for each in (one, some, more)] == [True, True, False]
    set_multiprocessors(monkeypatch, 5)
    assert [choose(q, 4, each, 1).decoded for each in (one, some, more)] == [True, False, False]
    takes = triton_decode.takes
    assert takes(q, k, k, one, rule_of())
    capped = Rule(causal=True, window=0, scale=1.0, softcap=30.0)
    assert not takes(q, k, k, one, capped)
    assert not takes(q.float(), k.float(), k.float(), one, rule_of())
    assert not takes(q[..., :96], k[..., :96], k[..., :96], one, rule_of())
    assert not takes(q.repeat(1, 5, 1), k, k, one, rule_of())
    assert not takes(q, k.transpose(0, 1), k, one, rule_of())
    assert not takes(q, k, k, sequences_of(([1], [0]), 0), rule_of())
    assert not takes(q, k, k, sequences_of(([0], [9]), 0), rule_of())


# Module, function, text, what stands there instead, and what is found; nothing where bits differ instead.
FAULTS: dict[str, tuple[ModuleType, str, str, str, set[str]]] = {
    "values are free while products read them": (
        triton_decode_values,
        "sum_values",
        "wait_for(turn, ready, CONSTANTS)",
        "wait_for(turn, ready, CONSTANTS); give_back(turn, free, True, CONSTANTS)",
        {"race"},
    ),
    "weights are taken while products read them": (
        triton_decode_values,
        "sum_values",
        "wait_for(turn, ready, CONSTANTS)",
        "wait_for(turn, ready, CONSTANTS); mbarrier.arrive(taken.index(turn % 2))",
        {"race"},
    ),
    "keys are free while their scores are computed": (
        triton_decode_softmax,
        "attend",
        "scores = done(following, STEP)\n        give_back(turn + 1, free, block + STEP < end, CONSTANTS)",
        "give_back(turn + 1, free, block + STEP < end, CONSTANTS)\n        scores = done(following, STEP)",
        {"race"},
    ),
    "scores that are not done": (
        triton_decode_softmax,
        "attend",
        "scores = done(following, STEP)",
        "scores = following",
        {"accumulator", "race"},
    ),
    "nothing is given back": (triton_decode_places, "give_back", "pred=given", "pred=turn < 0", {"deadlock"}),
    "a last step of fewer blocks is never there": (
        triton_decode_kernel,
        "load_block",
        "number == count - 1",
        "number == count",
        {"deadlock"},
    ),
    "weights that products may not see yet": (
        triton_decode_softmax,
        "hand_over",
        "    fence_async_shared()\n",
        "    pass\n",
        {"fence"},
    ),
    "queries that products may not see yet": (
        triton_decode_kernel,
        "load_queries",
        "    fence_async_shared()\n",
        "    pass\n",
        {"fence"},
    ),
    "values are not waited for": (
        triton_decode_values,
        "sum_values",
        "wait_for(turn, ready, CONSTANTS)",
        "pass",
        {"race", "poison"},
    ),
    "weights are not waited for": (
        triton_decode_values,
        "sum_values",
        "mbarrier.wait(handed_over.index(turn % 2), turn // 2 & 1)",
        "pass",
        {"race", "poison"},
    ),
    "weights over those in use": (
        triton_decode_softmax,
        "hand_over",
        "mbarrier.wait(free.index(turn % 2), turn // 2 & 1 ^ 1)",
        "pass",
        {"race", "arrivals"},
    ),
    "the sum of weights is not waited for": (
        triton_decode_kernel,
        "add_up",
        "mbarrier.wait(total_ready, 0)",
        "pass",
        {"race", "poison"},
    ),
    "a block of the next split": (
        triton_decode_places,
        "seen_of",
        "gl.minimum(k_length, end * BLOCK)",
        "k_length",
        set(),
    ),
    "unseen values stay as they are": (triton_decode_values, "settle", "kept[:, None]", "kept[:, None] | True", set()),
    "rows of no sequence are left": (triton_decode_kernel, "add_up", "if filling >= 0:", "if filling >= 10:", set()),
    "a query without keys is left": (triton_decode_kernel, "weigh", "elif covered:", "elif end > start:", set()),
    "a window is one key too long": (
        triton_decode_places,
        "seen_of",
        "keys > position - window",
        "keys >= position - window",
        set(),
    ),
    "all splits are the first": (triton_decode_places, "place_of", "= line % splits,", "= line % splits * 0,", set()),
}


@pytest.mark.parametrize("words", FAULTS)
def test_planted_faults_are_found(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    module, name, old, new, kinds = FAULTS[words]
    # A step of four blocks ends behind a split of ten, and needs every stage.
    for each in (triton_decode, triton_kernel):
        monkeypatch.setattr(each, "SPLIT_KEYS", 10 * BLOCK_KEYS)
    monkeypatch.setattr(triton_decode, "stages_of", lambda *given: 4)
    # A window that leaves out a split, or begins in the last block of one.
    window = 0 if kinds else 700 if "next split" in words else 300
    asked = given(([1, 1, 0], [1300, 0, 3]), 64, 2, rule_of(window=window), 16)
    edits = [Edit(getattr(module, name), old, new)]
    if kinds:
        with pytest.raises(Finding) as found:
            for seed in range(4):
                by_gluon(*asked, seed=seed, edits=edits)
        assert found.value.kind in kinds, str(found.value)
    else:
        right, spoiled = by_gluon(*asked), by_gluon(*asked, edits=edits)
        assert any(compare(*each) is not None for each in zip(spoiled, right, strict=True))
