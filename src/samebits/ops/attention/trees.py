"""The trees of attention's sums, revealed on the real kernel and compared with the declared ones for every length.

Three sums: the score over the head, the weights over the keys, the values over the keys; each for one query (the way
of decoding) and for several (the way of a prompt). On the CPU."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from samebits.contracts.proof import Proof
from samebits.native.launch_numbers import launching
from samebits.numerics.order import Leaf, Order, chain, fold_by_halves, fold_left, lanes, text
from samebits.numerics.triples import triples
from samebits.ops.attention import HEAD_MULTIPLE, LONGEST_HEAD, attention, attention_with_lse
from samebits.ops.attention.check import launches
from samebits.ops.attention.forms import BLOCK_KEYS, SPLIT_KEYS, WEIGHT_LANES

# One query goes the way of decoding, six the way of a prompt.
QUERIES = (1, 6)
# One that vanishes beside a 1 while two of it do not; as a power of two, it and nothing at all.
SMALL, SMALL_EXPONENT, NOTHING_EXPONENT = 2.0**-24, -24.0, -200.0
# With this scale a score is the exponent of its weight.
SCALE = math.log(2)
# Numbers of keys in two splits and in three.
BEYOND_A_SPLIT = (SPLIT_KEYS + 1, 2 * SPLIT_KEYS + 70)


def _in_splits(keys: int, split: Callable[[range], Order]) -> Order:
    """Each split's own sum, then splits left to right."""
    starts = range(0, keys, SPLIT_KEYS)
    return fold_left([split(range(start, min(start + SPLIT_KEYS, keys))) for start in starts])


def weights_order(keys: int) -> Order:
    """Each block's 64 weights folded by halves to eight lanes, a lane's blocks one after the other, lanes by halves."""
    return _in_splits(keys, _weights_of_a_split)


def values_order(keys: int) -> Order:
    """One after the other in every split."""
    return _in_splits(keys, lambda split: fold_left([Leaf(i) for i in split]))


def _weights_of_a_split(split: range) -> Order:
    sums: list[Order | None] = []
    for lane in range(WEIGHT_LANES):
        blocks = [
            fold_by_halves(
                [Leaf(i) if i < split.stop else None for i in range(start + lane, start + BLOCK_KEYS, WEIGHT_LANES)]
            )
            for start in range(split.start, split.stop, BLOCK_KEYS)
            if start + lane < split.stop
        ]
        sums.append(fold_left(blocks) if blocks else None)
    return fold_by_halves(sums)


def _placed(questions: np.ndarray, length: int, small: float, one: float, nothing: float) -> Tensor:
    """A row a question (a, b, c): small at a and b, one at c."""
    rows = torch.full((len(questions), length), nothing)
    place = torch.arange(len(questions))
    a, b, c = (torch.from_numpy(column) for column in questions.T)
    rows[place, a] = rows[place, b] = small
    rows[place, c] = one
    return rows


def _run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The first number of the last query's output."""
    out = attention(q, k, v, scale=SCALE)
    assert isinstance(out, Tensor)
    return out[:, -1, 0, 0]


def _wide(numbers: Tensor) -> Tensor:
    """(B, S) as (B, S, 1, 8): the first number of a head, and zeros."""
    return torch.nn.functional.pad(numbers[..., None, None], (0, HEAD_MULTIPLE - 1))


def values_meet(questions: np.ndarray, keys: int) -> Tensor:
    """Equal weights: the output is the sum of the values over their number."""
    v = _placed(questions, keys, SMALL, 1.0, 0.0)
    share = torch.tensor(1.0) / keys
    answers = [_run(_wide(torch.zeros(len(v), rows)), _wide(torch.zeros_like(v)), _wide(v)) > share for rows in QUERIES]
    return torch.stack(answers).all(0)


def weights_meet(questions: np.ndarray, keys: int) -> Tensor:
    """Scores are exponents of weights; the value 1 under the weight 1 comes out as 1 over the sum of weights."""
    k = _placed(questions, keys, SMALL_EXPONENT, 0.0, NOTHING_EXPONENT)
    v = _placed(questions, keys, 0.0, 1.0, 0.0)
    answers = [_run(_wide(torch.ones(len(v), rows)), _wide(k), _wide(v)) < 1 for rows in QUERIES]
    return torch.stack(answers).all(0)


def scores_meet(questions: np.ndarray, head: int) -> Tensor:
    """One key: the logarithm of the sum of weights is the score."""
    k = _placed(questions, head, SMALL, 1.0, 0.0)[:, None, None]
    answers = []
    for rows in QUERIES:
        _, lse = attention_with_lse(torch.ones(len(k), rows, 1, head), k, torch.zeros_like(k), scale=SCALE)
        answers.append(lse[:, -1, 0] > torch.tensor(1.0) * SCALE)
    return torch.stack(answers).all(0)


# What is summed, its declared order, and one that it is not.
SUMS: dict[str, tuple[Callable[[np.ndarray, int], Tensor], Callable[[int], Order], Callable[[int], Order]]] = {
    "values": (values_meet, values_order, weights_order),
    "weights": (weights_meet, weights_order, chain),
    "scores": (scores_meet, chain, lambda n: lanes(n, 256)),
}


def _wrong(name: str, length: int, order: Order) -> str:
    """The first question of the order that the kernel does not answer with yes.

    Beyond a split, of the questions within one only some: all that name a key beside a border, and every hundredth."""
    questions = triples(order) if length > 2 else np.zeros((0, 3), np.int64)
    if length > SPLIT_KEYS:
        near = ((questions + 1) % SPLIT_KEYS < 2).any(1) & (questions.max(1) >= SPLIT_KEYS - 1)
        near[::100] = True
        questions = questions[near]
    if not len(questions):
        return ""
    met = SUMS[name][0](questions, length)
    if bool(met.all()):
        return ""
    a, b, c = questions[int((~met).nonzero()[0])]
    return f"{name} over {length}: {a} and {b} do not meet before {c}"


def every_tree(longest: int = 512, launched: int = 128) -> Proof:
    """The revealed tree of each sum is the declared one, for every number of keys, two beyond a split, every head size.

    `launched`: up to so many keys on every instruction set too."""
    lengths: dict[str, Sequence[int]] = {
        "values": (*range(1, longest + 1), *BEYOND_A_SPLIT),
        "weights": (*range(1, longest + 1), *BEYOND_A_SPLIT),
        "scores": range(HEAD_MULTIPLE, LONGEST_HEAD + 1, HEAD_MULTIPLE),
    }
    decided, trees, witness = hashlib.sha256(), 0, ""
    for name, sizes in lengths.items():
        for length in sizes:
            order = SUMS[name][1](length)
            decided.update(f"{name} {text(order)}\n".encode())
            witness = witness or _wrong(name, length, order)
            if length <= launched:
                witness = witness or _launched(name, length, order)
            trees += not witness
    caught = sum(bool(_wrong(name, 24, other(24))) for name, (_, _, other) in SUMS.items())
    # No splits at all: a chain over more keys than one has.
    caught += bool(_wrong("values", BEYOND_A_SPLIT[1], chain(BEYOND_A_SPLIT[1])))
    return Proof(
        kind="order",
        cases=trees,
        expected=2 * (longest + len(BEYOND_A_SPLIT)) + LONGEST_HEAD // HEAD_MULTIPLE,
        planted=len(SUMS) + 1,
        caught=caught,
        witness=witness,
        digest=decided.hexdigest(),
        bound=f"S <= {longest}, in part S in {BEYOND_A_SPLIT}, all head sizes, float32, 1 and 6 queries; "
        f"every instruction set for S <= {launched}",
    )


def _launched(name: str, length: int, order: Order) -> str:
    for numbers in launches("cpu", "float32"):
        if numbers["threads"] == 1:
            with launching(**numbers):
                wrong = _wrong(name, length, order)
            if wrong:
                return f"{numbers['instruction_set']}: {wrong}"
    return ""
