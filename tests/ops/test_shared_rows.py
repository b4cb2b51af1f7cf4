"""Rows of softmax that several programs share: for all sizes each column is one program's, and in one lane once.

Whole numbers by z3. That no address leaves its buffer is train/contracts/launch_indices's to show."""

from __future__ import annotations

import pytest

from samebits.contracts.integer_proofs import Claim, prove
from samebits.contracts.symbolic import Symbols, Truth
from samebits.ops.index_claims import EVERY_SIZE, SIZE_LIMIT
from samebits.ops.softmax.triton_kernel import ALONE, LANES, PARTS, TOGETHER

STEPS = ALONE.steps


def parts_share_the_columns() -> Claim:
    """triton_shared.py: softmax_maxima, softmax_results; triton_kernel.py: the blocks of a part."""

    def state(z: Symbols) -> Truth:
        H, size = z.whole("H", least=1, below=SIZE_LIMIT), ALONE.block
        blocks = z.planted((-(-H // size) + PARTS - 1) // PARTS, -(-H // size) // PARTS)
        column, other = z.whole("column", least=0, below=H), z.whole("other", least=0, below=PARTS)
        block = column // size
        z.assume(blocks >= 1)
        part = block // blocks

        def takes(one: object) -> Truth:
            return z.all_of(one * blocks <= block, block < one * blocks + blocks)

        return z.all_of(part < PARTS, takes(part), z.implies(takes(other), other == part), block < -(-H // size))

    return Claim(name="parts share the columns", state=state, fault="the last blocks are nobody's")


def programs_share_the_lanes(lanes: int) -> Claim:
    """triton_shared.py: softmax_lanes. A column is one program's, turn's and step's, and its lane's steps ascend."""

    def state(z: Symbols) -> Truth:
        H, wide = z.whole("H", least=1, below=SIZE_LIMIT), LANES * STEPS
        column, later = z.whole("column", least=0, below=H), z.whole("later", least=0, below=H)
        turn, rest = z.divide(column, wide)
        step, lane = z.divide(rest, LANES)
        program, place = z.divide(lane, lanes)
        whole = H // wide * wide
        again = turn * wide + step * LANES + program * lanes + place
        in_a_turn = z.any_of(turn * wide < whole, z.all_of(turn * wide == whole, whole < H))
        ends = z.planted(wide, wide + 1)
        unmasked = z.implies(turn * wide < whole, turn * wide + ends <= whole)
        after = z.implies(z.all_of(later % LANES == lane, column < later), column // LANES < later // LANES)
        bounds = z.all_of(step < STEPS, program < LANES // lanes, place < lanes)
        return z.all_of(again == column, in_a_turn, unmasked, bounds, after)

    return Claim(name=f"programs share the lanes, {lanes} each", state=state, fault="a block one column longer")


@pytest.mark.parametrize(
    "claim", [parts_share_the_columns(), *map(programs_share_the_lanes, (ALONE.lanes, 32, TOGETHER.lanes, 256))]
)
def test_every_column_is_added_once(claim: Claim) -> None:
    """With its fault, planted, it is refuted."""
    found = prove([claim], bound=EVERY_SIZE)
    assert found.proved, str(found)
