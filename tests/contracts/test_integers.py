"""Proofs about whole numbers: each holds, each twin is refuted, and what is not decided is no proof."""

from __future__ import annotations

import importlib
import random
import sys
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

from samebits.contracts.integer_proofs import Claim, prove, queries
from samebits.contracts.proof import Proof
from samebits.contracts.symbolic import SolverMissingError, Symbols, Truth

COMPONENTS = {
    "adamw": ("elements",),
    "attention": ("visible_pairs", "places", "threads"),
    "cross_entropy": ("vocabulary_blocks",),
    "distill_loss": ("rows",),
    "embedding": ("segments", "rows"),
    "grad_norm": ("pieces",),
    "layernorm": ("rows", "columns"),
    "logprob": ("vocabulary_blocks", "threads"),
    "matmul": ("tiles", "chain", "threads"),
    "rmsnorm": ("rows", "weight"),
    "rope": ("pairs",),
    "softmax": ("rows",),
}


@pytest.mark.parametrize(
    ("component", "name"), [(component, name) for component, names in COMPONENTS.items() for name in names]
)
def test_a_component_is_proved(component: str, name: str) -> None:
    proof: Proof = getattr(importlib.import_module(f"samebits.ops.{component}.index_proofs"), name)()
    assert proof.proved, proof
    assert proof.kind == "integers" and proof.planted == proof.expected and len(proof.digest) == 64


def cover(z: Symbols) -> Truth:
    i, n, b = z.whole("i", least=0), z.whole("n", least=1), z.whole("b", least=1)
    z.assume(i < n)
    return i // b < z.planted((n + b - 1) // b, n // b)


def claim(state: Any, *, truncating: bool = False) -> Claim:
    return Claim(name="it", state=state, fault="planted", truncating=truncating)


def test_a_claim_is_proved_and_its_queries_are_kept() -> None:
    proof = prove([claim(cover)], bound="all")
    assert proof.proved and (proof.cases, proof.expected, proof.planted, proof.caught) == (1, 1, 1, 1)
    text = queries([claim(cover)])
    assert text == queries([claim(cover)]) and text.count("(check-sat)") == 3
    assert proof.digest == prove([claim(cover)], bound="all").digest


def test_the_kept_queries_can_be_asked_again() -> None:
    z3: Any = importlib.import_module("z3")
    for text in queries([claim(cover)]).split("; it")[1:]:
        hoped = text.split("hoped: ")[1].split("\n")[0]
        solver = z3.Solver()
        solver.from_string(text.split("\n", 1)[1])
        assert str(solver.check()) == hoped


def test_something_false_is_not_proved() -> None:
    def state(z: Symbols) -> Truth:
        n = z.whole("n", least=0)
        return n < z.planted(100, 50)

    proof = prove([claim(state)], bound="all")
    assert not proof.proved and proof.cases == 0 and proof.caught == 1
    assert proof.witness.startswith("it: counterexample: z3 found n = ")


def test_a_twin_that_holds_too_is_no_proof() -> None:
    proof = prove([claim(lambda z: z.whole("n", least=0) >= 0)], bound="all")
    assert not proof.proved and proof.cases == 1 and proof.caught == 0
    assert "the twin holds as well" in proof.witness


def test_assumptions_that_contradict_each_other_prove_nothing() -> None:
    def state(z: Symbols) -> Truth:
        n = z.whole("n", least=1)
        z.assume(n < z.planted(1, 5))
        return n == 7

    proof = prove([claim(state)], bound="all")
    assert not proof.proved and "the assumptions contradict each other" in proof.witness


def hard(z: Symbols) -> Truth:
    """Whether 42 is a sum of three cubes: it is, of numbers of 17 digits."""
    x, y, w = z.wholes("x y w")
    return x * x * x + y * y * y + w * w * w != z.planted(42, 3)


def test_unknown_is_neither_a_proof_nor_a_refutation() -> None:
    proof = prove([claim(hard)], bound="all", timeout=0.5)
    assert not proof.proved and proof.cases == 0 and not proof.witness
    assert str(proof).startswith("could not be judged: ") and "z3 answered unknown" in proof.undecided


def test_a_refutation_beside_an_unknown_is_a_refutation() -> None:
    def wrong(z: Symbols) -> Truth:
        return z.whole("n", least=0) > z.planted(3, 4)

    proof = prove([claim(hard), claim(wrong)], bound="all", timeout=0.5)
    assert str(proof).startswith("does not hold: ") and "n = " in proof.witness


def test_no_claims_prove_nothing() -> None:
    assert not prove([], bound="all").proved


def test_a_divisor_that_may_be_zero_is_noticed() -> None:
    """Planted fault: n div b is used where b = 0 is possible."""

    def state(z: Symbols) -> Truth:
        n, b = z.whole("n", least=0), z.whole("b", least=0)
        return n // b * b <= z.planted(n, n - 1)

    proof = prove([claim(state)], bound="all")
    assert not proof.proved and "b = 0" in proof.witness


def test_a_known_quotient_must_be_right() -> None:
    """Planted fault: the hint says that 7 = 2 * 2 + 3."""

    def state(z: Symbols) -> Truth:
        n, q, r = z.whole("n", least=7, below=8), z.whole("q", least=2, below=3), z.whole("r", least=3, below=4)
        z.knows(n, 2, q, r)
        return z.planted(n // 2, n) == 2

    assert not prove([claim(state)], bound="all").proved


def test_an_overflow_is_noticed() -> None:
    def state(z: Symbols) -> Truth:
        below = z.planted(2**15, 2**16)
        row, stride = z.wholes("row stride", least=0, below=below, bits=32)
        return (row * stride >= 0) & z.fits()

    proof = prove([claim(state)], bound="2^15")
    assert proof.proved, proof


@pytest.mark.parametrize("truncating", [False, True])
def test_division_is_that_of_the_language(truncating: bool) -> None:
    """Python's // rounds down, C's and Triton's towards zero."""

    def state(z: Symbols) -> Truth:
        n = z.whole("n", least=-7, below=-6)
        q, r = z.divide(n, 2)
        right = (-3, -1) if truncating else (-4, 1)
        return (q == z.planted(right[0], 5)) & (r == right[1])

    assert prove([claim(state, truncating=truncating)], bound="-7").proved


def test_a_missing_solver_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "z3", None)
    with pytest.raises(SolverMissingError) as caught:
        prove([claim(cover)], bound="all")
    assert str(caught.value) == (
        "level 4 of kind integers needs the package 'z3', which is not installed; pip install samebits[contracts]"
    )
    assert isinstance(caught.value, RuntimeError)


def test_a_solver_that_is_too_old_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "z3", SimpleNamespace(get_version_string=lambda: "4.12.2"))  # type: ignore[arg-type]
    said = r"^level 4 of kind integers: z3 is 4.12.2; allowed: 4.15 and later; pip install samebits\[contracts\]$"
    with pytest.raises(SolverMissingError, match=said):
        prove([claim(cover)], bound="all")


@pytest.mark.parametrize("version", ["4.15.0", "4.16.1", "5.4.0"])
def test_any_later_solver_will_do(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("z3"), "get_version_string", lambda: version)
    assert prove([claim(cover)], bound="all").proved


def plainly(function: Any) -> Any:
    """A Triton function's source, to be called with plain numbers."""

    def toward_zero(n: int, b: int) -> int:
        return (n + b - 1) // b if n + b - 1 >= 0 else -(-(n + b - 1) // b)

    return FunctionType(function.fn.__code__, {"tl": SimpleNamespace(cdiv=toward_zero), "min": min, "max": max})


def test_key_range_visits_what_is_seen() -> None:
    """The proof's statement on plain numbers: the same source, every pair counted."""
    from samebits.ops.attention.triton_blocks import key_range

    draw, ranges, pairs = random.Random(1), plainly(key_range), 0
    for _ in range(300):
        q_length, k_length = draw.randint(1, 60), draw.randint(1, 60)
        window, causal, windowed = draw.randint(1, 30), draw.random() < 0.5, draw.random() < 0.5
        block, queries_each = draw.choice((4, 16)), draw.randint(1, 20)
        offset = k_length - q_length
        for first in range(0, q_length, queries_each):
            last = min(first + queries_each, q_length) - 1
            start, full_start, full_end, end = ranges(
                offset + first, offset + last, k_length, window, block, causal, windowed
            )
            visited = [*range(start, full_start), *range(full_start, full_end), *range(full_end, end)]
            assert visited == list(range(start, end))
            for query in range(first, last + 1):
                position = offset + query
                seen = {
                    key
                    for key in range(k_length)
                    if (not causal or key <= position) and (not windowed or abs(position - key) < window)
                }
                assert {key // block for key in seen} <= set(visited)
                assert set(range(full_start * block, full_end * block)) <= seen
                pairs += len(seen)
    assert pairs > 10_000


def test_tiles_are_a_permutation() -> None:
    """`tile_at` on plain numbers."""
    from samebits.ops.matmul.triton_tiles import tile_at

    draw, place = random.Random(2), plainly(tile_at)
    for _ in range(100):
        tiles_m, tiles_n, group = draw.randint(1, 40), draw.randint(1, 12), draw.choice((1, 8, 32))
        found = [place(index, tiles_m, tiles_n, group) for index in range(tiles_m * tiles_n)]
        assert sorted(found) == [(m, n) for m in range(tiles_m) for n in range(tiles_n)]


def test_paths_find_every_row_that_random_sizes_find() -> None:
    """`Symbols.paths` against the real `select`: no size leads to a row that no path leads to."""
    from samebits.ops.matmul.launch_table import select

    z, draw = Symbols(), random.Random(3)
    M, N, K = z.wholes("M N K", least=1)
    ways = z.paths(lambda: select(M, N, K, dtype="bfloat16", described=True, wide=False))  # type: ignore[arg-type]
    reached = {str(launch) for _, launch in ways}
    sizes = [[round(2 ** draw.uniform(0, 14)) for _ in range(3)] for _ in range(2000)]
    chosen = {str(select(*size, dtype="bfloat16", described=True, wide=False)) for size in sizes}
    assert len(chosen) > 3 and chosen <= reached
