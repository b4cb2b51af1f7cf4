"""Integer facts of attention, for all lengths: every visible pair is visited once and no other counts, whatever tile;
blocks of keys lie at logical positions; heads, pages and rows stay in bounds.

Runs the real `key_range`, `query_range`, `seen` and `Rule.seen` on unknowns; models the loops around and the C++."""

from __future__ import annotations

from itertools import product
from typing import Any, Final

from samebits.contracts.integer_proofs import Claim, prove
from samebits.contracts.proof import Proof
from samebits.contracts.symbolic import Symbols, Truth, Whole
from samebits.ops.attention.cache import PAGE_MULTIPLE
from samebits.ops.attention.forms import BLOCK_KEYS, SPLIT_KEYS, Rule
from samebits.ops.index_claims import SIZE_LIMIT, each_once, equal_parts, fold_of_lanes, lane_of_an_element, row_shares

# (causal, windowed)
RULES: Final = tuple(product((False, True), repeat=2))
BOUND: Final = "all lengths < 2^30, windows and tiles >= 1, causal or not, windowed or not"


def _named(causal: bool, windowed: bool) -> str:
    return f"{'causal' if causal else 'full'}{', windowed' if windowed else ''}"


def _sees(
    z: Symbols, position: Whole, key: Whole, k_length: Whole, window: Whole, causal: bool, windowed: bool
) -> Truth:
    """Who sees whom, in the words of the spec: no later key if causal, none `window` or more away if windowed."""
    visible = (key >= 0) & (key < k_length)
    if causal:
        visible = visible & (key <= position)
    if windowed:
        visible = visible & (position - key < window) & (key - position < window)
    return visible


def mask_is_exact(causal: bool, windowed: bool) -> Claim:
    """triton_blocks.py:seen and forms.py:Rule.seen (cpu_tiles.h:Rule::seen is the same line), run as they stand."""

    def state(z: Symbols) -> Truth:
        from samebits.ops.attention.triton_blocks import seen

        k_length, window = z.wholes("k_length window", least=1, below=2**30)
        position, key = z.whole("position", below=2**30, least=-(2**30)), z.whole("key", least=0, below=2**30)
        right = _sees(z, position, key, k_length, window, causal, windowed)
        masked = z.source(seen)(position, key + z.planted(0, 1), k_length, window, causal, windowed)
        claims = [z.same(masked, right)]
        rule = Rule(causal=causal, window=window if windowed else 0, scale=1.0, softcap=0.0)  # type: ignore[arg-type]
        seen_by_the_rule = z.source(Rule.seen)
        for condition, (first, stop) in z.paths(lambda: seen_by_the_rule(rule, position, k_length)):
            claims.append(z.implies(condition, z.same((key >= first) & (key < stop), right)))
        return z.all_of(*claims)

    return Claim(name=f"mask, {_named(causal, windowed)}", state=state, fault="keys off by one", truncating=True)


def _tile(z: Symbols, q_length: Whole, tile: Whole, queries: Any) -> tuple[Any, Any]:
    """First and last query of a tile, as attention_forward and attention_dq have them."""
    return tile * queries, z.smaller(tile * queries + queries, q_length) - 1


def every_visible_key_once(block: int | None, causal: bool, windowed: bool) -> Claim:
    """triton_blocks.py:key_range as attention_forward (blocks of 64) and attention_dq (of any size) call it.

    start <= full_start <= full_end <= end: the walks follow each other, so no block comes twice; a visible key lies in
    one of their blocks; without a mask only where every query of the tile sees all of the block, and it exists."""

    def state(z: Symbols) -> Truth:
        from samebits.ops.attention.triton_blocks import key_range

        q_length, k_length, window, queries = z.wholes("q_length k_length window QUERIES", least=1, below=2**30)
        wide = z.whole("KEYS", least=1, below=2**30) if block is None else block
        tile = z.whole("tile", least=0)
        z.assume(tile * queries < q_length)
        offset = k_length - q_length
        first, last = _tile(z, q_length, tile, queries)
        start, full_start, full_end, end = z.source(key_range)(
            offset + first, offset + last, z.planted(k_length, k_length - 1), window, wide, causal, windowed
        )
        query = z.whole("query", least=first)
        z.assume(query <= last)
        key = z.whole("key", least=0)
        sees = _sees(z, offset + query, key, k_length, window, causal, windowed)
        within = key // wide
        ordered = (start >= 0) & (start <= full_start) & (full_start <= full_end) & (full_end <= end)
        met = z.implies(sees, (start <= within) & (within < end))
        # Without a window the first walk is left out.
        before = z.implies(sees, full_start <= within) if not windowed else z.all_of(True)
        return z.all_of(ordered, met, before, z.implies((full_start <= within) & (within < full_end), sees))

    size = "any number of" if block is None else block
    return Claim(
        name=f"every visible key once, blocks of {size} keys, {_named(causal, windowed)}",
        state=state,
        fault="the last key left out",
        truncating=True,
    )


def every_visible_query_once(causal: bool, windowed: bool) -> Claim:
    """triton_blocks.py:query_range as attention_dk_dv calls it, for blocks of any number of queries."""

    def state(z: Symbols) -> Truth:
        from samebits.ops.attention.triton_blocks import query_range

        q_length, k_length, window, keys, queries = z.wholes(
            "q_length k_length window KEYS QUERIES", least=1, below=2**30
        )
        tile = z.whole("tile", least=0)
        z.assume(tile * keys < k_length)
        offset = k_length - q_length
        first_key, last_key = tile * keys, z.smaller(tile * keys + keys, k_length) - 1
        start, full_start, full_end, end = z.source(query_range)(
            first_key, last_key, offset, z.planted(q_length, q_length - 1), window, queries, causal, windowed
        )
        key, query = z.whole("key", least=first_key), z.whole("query", least=0)
        z.assume(key <= last_key)
        sees = (query < q_length) & _sees(z, offset + query, key, k_length, window, causal, windowed)
        within = query // queries
        ordered = (start >= 0) & (start <= full_start) & (full_start <= full_end) & (full_end <= end)
        met = z.implies(sees, (start <= within) & (within < end))
        return z.all_of(ordered, met, z.implies((full_start <= within) & (within < full_end), sees))

    return Claim(
        name=f"every visible query once, {_named(causal, windowed)}",
        state=state,
        fault="the last query left out",
        truncating=True,
    )


def blocks_at_logical_positions(size: int) -> Claim:
    """triton_forward_walk.py:walk and cpu_forward.h:walk: a key's block is key div 64, its place key mod 64.

    Neither the first key nor the tile of a query appears: two tiles meet a key in the same block. So it is
    with splits (cpu_forward.h:run_forward), whose borders are borders of blocks."""

    def state(z: Symbols) -> Truth:
        key, visible_from, other_from = z.wholes("key visible_from other_from", least=0)
        z.assume(visible_from <= key, other_from <= key)
        places = []
        for first in (visible_from, other_from):
            begin = first // size * size if not z.faulty else first
            turn, place = z.divide(key - begin, size)
            places.append((begin + turn * size, place))
        (block, place), (other_block, other_place) = places
        return (block == other_block) & (place == other_place) & (place == key % size)

    return Claim(
        name=f"blocks of {size} at logical positions",
        state=state,
        fault="blocks counted from the first visible key",
        truncating=True,
    )


def every_row_has_one_tile() -> Claim:
    """triton_forward.py:attention_forward: PACK heads times TILE // PACK queries a tile; rows past QUERIES * PACK rest.

    Query and head of every (query, head) come up in one tile and one row of it; the key head is that of the group."""

    def state(z: Symbols) -> Truth:
        group, key_heads, q_length = z.wholes("GROUP key_heads q_length", least=1)
        tile_rows, pack = z.wholes("TILE PACK", least=1)
        z.assume(z.any_of(pack == 1, pack == group), pack <= tile_rows)
        queries = tile_rows // pack
        query = z.whole("query", least=0, below=q_length)
        key_head, member = z.whole("key_head", least=0, below=key_heads), z.whole("member", least=0, below=group)
        head = key_head * group + member
        line, lane = z.divide(head, pack)
        tile, within = z.divide(query, queries)
        row = within * pack + lane
        tiles = z.planted((q_length + queries - 1) // queries, q_length // queries)
        z.knows(row, pack, within, lane)
        z.knows(head, group, key_head, member)
        back = (tile * queries + row // pack == query) & (line * pack + row % pack == head)
        shared = z.implies(pack == group, line == key_head) & z.implies(pack == 1, head // group == key_head)
        return back & shared & (row < tile_rows) & (row < queries * pack) & (tile < tiles)

    return Claim(name="every query and head in one tile", state=state, fault="floor for ceiling", truncating=True)


def programs_cover() -> Claim:
    """triton_forward.py, triton_dq.py, triton_dk_dv.py: program -> (sequence, line, tile), tiles backwards."""

    def state(z: Symbols) -> Truth:
        sequences, lines, tiles = z.wholes("sequences lines tiles", least=1)
        sequence, line = z.whole("sequence", least=0, below=sequences), z.whole("line", least=0, below=lines)
        tile = z.whole("tile", least=0, below=tiles)
        both = sequence * lines + line
        turned = tiles - z.planted(1, 0) - tile
        program = both * tiles + turned
        z.knows(program, tiles, both, turned)
        z.knows(both, lines, sequence, line)
        found = (tiles - 1 - program % tiles == tile) & (program // tiles // lines == sequence)
        return found & (program // tiles % lines == line) & (program >= 0) & (program < sequences * lines * tiles)

    return Claim(
        name="programs cover sequences, lines and tiles", state=state, fault="tiles counted from one", truncating=True
    )


def shared_splits_cover() -> Claim:
    """triton_forward.py where splits have programs of their own: program -> (sequence, line, tile) and split; a state
    is stored at (split, token, head), where triton_merge.py reads it: no two at one place, and all in memory."""

    def state(z: Symbols) -> Truth:
        places, splits, tokens, heads = z.wholes("places splits tokens heads", least=1)
        place, split = z.whole("place", least=0, below=places), z.whole("split", least=0, below=splits)
        program = place * splits + split
        z.knows(program, splits, place, split)
        token, head = z.whole("token", least=0, below=tokens), z.whole("head", least=0, below=heads)
        row = token * heads + head
        states = tokens * z.planted(heads, heads - 1)
        z.knows(row, heads, token, head)
        z.knows(split * states + row, states, split, row)
        found = (program // splits == place) & (program % splits == split) & (program < places * splits)
        kept = (row < states) & ((split * states + row) // states == split) & ((split * states + row) % states == row)
        return found & kept & (row // heads == token) & (row % heads == head)

    return Claim(
        name="programs cover splits, states lie apart", state=state, fault="a state one head short", truncating=True
    )


def heads_in_range() -> Claim:
    """triton_forward.py, triton_dq.py, triton_dk_dv.py, cpu_tiles.h:Layout: query head h reads key head
    h div (Hq / Hk)."""

    def state(z: Symbols) -> Truth:
        key_heads, group = z.wholes("key_heads group", least=1)
        head = z.whole("head", least=0, below=key_heads * group)
        key_head, member = z.divide(head, z.planted(group, group + 1))
        return (key_head >= 0) & (key_head < key_heads) & (key_head * group + member == head) & (member < group)

    return Claim(name="key heads in range", state=state, fault="groups one head too large", truncating=True)


def pages_in_bounds() -> Claim:
    """triton_blocks.py:key_rows, run as it stands: the table is read within its row, the row lies in the storage.

    Pages are multiples of 16; cache.py:PagedCache has checked tables and lengths; 16 keys at a time lie in one."""

    def state(z: Symbols) -> Truth:
        from samebits.ops.attention.triton_blocks import key_rows

        pages, in_table = z.wholes("pages in_table", least=1, below=2**31)
        units = z.whole("units", least=1, below=2**16, bits=32)
        page_size = units * PAGE_MULTIPLE
        k_length = z.whole("k_length", least=1, below=in_table * page_size.to(64) + 1)
        key = z.whole("key", least=0, bits=32)
        known = key < k_length
        page = z.whole("page", least=0, below=pages, bits=32)
        run, within = z.divide(key, PAGE_MULTIPLE)
        start = run * PAGE_MULTIPLE
        # Dividing whole runs by whole runs first keeps every product of unknowns the same one.
        turn, rest = z.divide(run, units)
        for offset in (within, 0, PAGE_MULTIPLE - 1):
            z.knows(key if offset is within else start + offset, page_size, turn, rest * PAGE_MULTIPLE + offset)
        read: list[Any] = []

        def load(pointer: Any, *, mask: Truth, other: int) -> Whole:
            read.append(pointer)
            return page

        row = z.source(key_rows, load=load)(key, 0, 0, z.planted(page_size, page_size + 1), known, True)
        inside = (read[0] >= 0) & (read[0] < in_table) & (row >= 0) & (row < pages * page_size.to(64))
        return z.implies(known, inside) & (start // page_size == (start + (PAGE_MULTIPLE - 1)) // page_size)

    return Claim(name="pages in bounds", state=state, fault="pages one row too long", truncating=True)


def numbers_fit() -> Claim:
    """triton_blocks.py:key_range in int32, lengths and window below 2^30; rows of memory are int64."""

    def state(z: Symbols) -> Truth:
        from samebits.ops.attention.triton_blocks import key_range, key_rows

        below = z.planted(2**30, 2**31)
        q_length, k_length, window = z.wholes("q_length k_length window", least=1, below=below, bits=32)
        tile, queries = z.whole("tile", least=0, bits=32), z.whole("QUERIES", least=1, below=2**12)
        z.assume(tile * queries < q_length)
        offset = k_length - q_length
        first, last = _tile(z, q_length, tile, queries)
        z.source(key_range)(offset + first, offset + last, k_length, window, BLOCK_KEYS, False, True)
        key = z.whole("key", least=0, below=k_length, bits=32)
        start = z.whole("k_start", least=0, below=SIZE_LIMIT, bits=64)
        row = z.source(key_rows)(key, start, 0, 0, key < k_length, False)
        token = row * z.whole("k_token", least=0, below=2**31, bits=64)
        return z.all_of(z.fits(), token >= 0)

    return Claim(name="numbers fit", state=state, fault="lengths and windows up to 2^31 - 1", truncating=True)


def cpu_block_ranges() -> Claim:
    """cpu_softmax.h:RowTile and cpu_forward.h:attend: any() spans all that rows of a tile see, all() what each sees.

    Rows ascend, so positions do not fall; that the ends of what a position sees do not fall either is shown here."""

    def state(z: Symbols) -> Truth:
        k_length = z.whole("k_length", least=1)
        position, later = z.wholes("position later")
        z.assume(position <= later)
        claims: list[Truth] = []
        for causal, windowed in RULES:
            window = z.whole("window", least=1) if windowed else 0
            rule = Rule(causal=causal, window=window, scale=1.0, softcap=0.0)  # type: ignore[arg-type]
            seen_by_the_rule = z.source(Rule.seen)
            ways = z.paths(lambda r=rule, s=seen_by_the_rule: (s(r, position, k_length), s(r, later, k_length)))  # type: ignore[misc]
            for condition, ((first, stop), (later_first, later_stop)) in ways:
                rising = (later_first >= first) & (later_stop >= z.planted(stop, stop + 1))
                claims.append(z.implies(condition, rising))
        return z.all_of(*claims)

    return Claim(name="what rows see rises with them", state=state, fault="ends rise strictly", truncating=True)


def cpu_shares_of_keys() -> Claim:
    """cpu_backward.h:backward_tasks: keys in shares of whole blocks of 64, so that blocks stay at logical positions."""

    def state(z: Symbols) -> Truth:
        keys, threads = z.wholes("keys threads", least=1)
        share = (z.larger(keys // (4 * threads), 1) + BLOCK_KEYS - 1) // BLOCK_KEYS * BLOCK_KEYS
        return (share % BLOCK_KEYS == 0) & each_once(z, keys, share, name="key")

    return Claim(name="each key has one thread", state=state, fault="floor for ceiling", truncating=True)


def visible_pairs() -> Proof:
    """triton_blocks.py: seen, key_range, query_range; forms.py: Rule.seen."""
    claims = [claim(*rule) for claim in (mask_is_exact, every_visible_query_once) for rule in RULES]
    claims += [every_visible_key_once(block, *rule) for rule in RULES for block in (BLOCK_KEYS, None)]
    return prove(claims, bound=BOUND)


def places() -> Proof:
    """triton_forward.py, triton_forward_walk.py, triton_dq.py, triton_dk_dv.py, triton_blocks.py:key_rows; cache.py."""
    claims = [
        blocks_at_logical_positions(BLOCK_KEYS),
        blocks_at_logical_positions(SPLIT_KEYS),
        every_row_has_one_tile(),
        programs_cover(),
        shared_splits_cover(),
        heads_in_range(),
        pages_in_bounds(),
        numbers_fit(),
        fold_of_lanes(BLOCK_KEYS),
    ]
    return prove(claims, bound="all lengths < 2^30, all numbers of heads, sequences, pages and rows of a tile")


def threads() -> Proof:
    """cpu_forward.h, cpu_softmax.h, cpu_backward.h: runs of rows, ranges of keys, shares of threads."""
    claims = [
        cpu_block_ranges(),
        cpu_shares_of_keys(),
        row_shares(),
        lane_of_an_element(),
        equal_parts(),
        equal_parts(64),
    ]
    return prove(claims, bound="all lengths, tiles and numbers of threads >= 1")
