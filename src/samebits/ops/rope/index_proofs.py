"""Integer facts of the rotary embedding, for all sizes: every element is in one pair, every pair is turned once.

Models the kernel's loops and the C++ for both layouts."""

from __future__ import annotations

from samebits.contracts.integer_proofs import Claim, prove
from samebits.contracts.proof import Proof
from samebits.contracts.symbolic import Symbols, Truth
from samebits.ops.index_claims import each_once


def every_element_in_one_pair(interleaved: bool) -> Claim:
    """triton_kernel.py:rope_rotate; cpu_kernel.cpp:turn_halves, turn_neighbours. Heads of 2 P elements.

    Pairs (i, i + P) or (2 i, 2 i + 1): an element is the first or the second of one pair with frequency i < P."""

    def state(z: Symbols) -> Truth:
        P = z.whole("P", least=1)
        element = z.whole("element", least=0, below=2 * P)
        pair, other = z.wholes("pair other", least=0, below=P)
        if interleaved:
            own, second = z.divide(element, 2)
            members = [(2 * each, 2 * each + 1) for each in (pair, other)]
        else:
            second, own = z.divide(element, z.planted(P, P + 1))
            members = [(each, each + P) for each in (pair, other)]
        if interleaved and z.faulty:
            members[1] = (2 * other + 1, 2 * other + 2)
        (a, b), (other_a, other_b) = members
        alone = z.implies(pair != other, (a != other_a) & (b != other_b) & (a != other_b) & (b != other_a))
        found = z.implies(pair == own, element == z.choose(second == 0, a, b))
        return alone & found & (own >= 0) & (own < P) & (a >= 0) & (b < 2 * P)

    how, fault = ("interleaved", "pairs one element late") if interleaved else ("half", "halves of P + 1")
    return Claim(name=f"every element in one pair, {how}", state=state, fault=fault, truncating=True)


def every_pair_turned_once() -> Claim:
    """triton_kernel.py:rope_rotate: program -> (token, block of pairs); heads HEADS at a time; offsets in int64."""

    def state(z: Symbols) -> Truth:
        tokens, H, P, pairs_each, heads_each = z.wholes("tokens H P PAIRS HEADS", least=1, below=2**31)
        token, head = z.whole("token", least=0, below=tokens), z.whole("head", least=0, below=H)
        pair = z.whole("pair", least=0, below=P)
        blocks = z.planted(z.ceiling(P, pairs_each), P // pairs_each)
        (block, lane), (turn, within) = z.divide(pair, pairs_each), z.divide(head, heads_each)
        program = token * blocks + block
        z.knows(program, blocks, token, block)
        found = (program // blocks == token) & (program % blocks * pairs_each + lane == pair)
        return found & (program < tokens * blocks) & (turn * heads_each < H) & (turn * heads_each + within == head)

    return Claim(name="every pair turned once", state=state, fault="floor for ceiling", truncating=True)


def offsets_in_bounds() -> Claim:
    """triton_kernel.py:rope_rotate: (token * H + head) * 2 P + pair, and P further for the second of a half layout."""

    def state(z: Symbols) -> Truth:
        tokens, H, P = z.wholes("tokens H P", least=1, below=2**31)
        token, head = z.whole("token", least=0, below=tokens), z.whole("head", least=0, below=H)
        pair = z.whole("pair", least=0, below=P)
        line = z.whole("line")
        z.assume(line == token * H + head)
        offset = line * (2 * P) + pair
        lines = tokens * H
        return (line >= 0) & (line < lines) & (offset >= 0) & (offset + z.planted(P, 2 * P) < lines * (2 * P))

    return Claim(name="offsets in bounds", state=state, fault="the second half twice as far", truncating=True)


def cpu_tokens() -> Claim:
    """cpu_kernel.cpp:rotate: shares of tokens between 2^13 and 2^16 elements, at least one token."""

    def state(z: Symbols) -> Truth:
        tokens, width, threads = z.wholes("tokens width threads", least=1)
        even = (tokens + threads - 1) // threads
        share = z.larger(1, z.smaller(z.larger(even, 2**13 // width), 2**16 // width))
        return each_once(z, tokens, share, name="token")

    return Claim(name="each token has one thread", state=state, fault="floor for ceiling", truncating=True)


def pairs() -> Proof:
    """triton_kernel.py: rope_rotate; cpu_kernel.cpp: rotate, turn_halves, turn_neighbours."""
    claims = [
        every_element_in_one_pair(False),
        every_element_in_one_pair(True),
        every_pair_turned_once(),
        offsets_in_bounds(),
        cpu_tokens(),
    ]
    return prove(claims, bound="all numbers of tokens, heads, pairs and threads >= 1; in Triton axes < 2^31")
