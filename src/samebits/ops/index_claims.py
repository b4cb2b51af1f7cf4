"""Claims about whole numbers that operators share: lanes, rows, elements, tiles, and the shares that threads take.

Knows no operator. Triton's address functions are not modelled but run as they stand, on unknowns; loops, and everything
that is C++, are modelled here, and every claim names what it models. Each operator picks those that its kernels rest
on."""

from __future__ import annotations

from typing import Any, Final

from samebits.contracts.integer_proofs import Claim
from samebits.contracts.symbolic import Symbols, Truth, Whole

LANES: Final = 256
# Sizes of one axis that the Triton kernels take: a counter passes the end by up to one step before its loop stops.
SIZE_LIMIT: Final = 2**31 - 2**12
EVERY_SIZE: Final = "all sizes and launch numbers >= 1; in Triton axes < 2^31 - 2^12"


def each_once(z: Symbols, count: Whole, share: Any, *, name: str = "item") -> Truth:
    """Tasks 0, 1, ... take [task * share, min(count, (task + 1) * share)): each item is in one task, and in no second.

    The fault: as many tasks as whole shares."""
    item, other = z.whole(name, least=0, below=count), z.whole(f"other_task_of_{name}", least=0)
    tasks = z.planted((count + share - 1) // share, count // share)
    task = item // share

    def takes(one: Whole) -> Truth:
        return z.all_of(one < tasks, one * share <= item, item < z.smaller(count, (one + 1) * share))

    return takes(task) & z.implies(takes(other), other == task)


def vector_share(z: Symbols, count: Whole) -> Whole:
    """An even share of a thread, in whole vectors of 4, 8 or 16: columns in rmsnorm, embedding, _cpu/single_row.h."""
    threads, vector = z.wholes("threads WIDTH", least=1)
    z.assume(z.any_of(vector == 4, vector == 8, vector == 16))
    return ((count + threads - 1) // threads + vector - 1) // vector * vector


def row_shares() -> Claim:
    """_cpu/rows.h:each_row."""

    def state(z: Symbols) -> Truth:
        rows, width, threads = z.wholes("rows width threads", least=1)
        share = z.larger(1, z.smaller(2**16 // width, (rows + threads - 1) // threads))
        return (share >= 1) & each_once(z, rows, share, name="row")

    return Claim(name="each row has one thread", state=state, fault="the last, short share gets no task")


def element_shares() -> Claim:
    """_cpu/elements.h:each_element."""

    def state(z: Symbols) -> Truth:
        elements, threads = z.wholes("elements threads", least=1)
        even = ((elements + threads - 1) // threads + LANES - 1) // LANES * LANES
        share = z.smaller(z.larger(even, 2**13), 2**16)
        return each_once(z, elements, share, name="element")

    return Claim(name="each element has one thread", state=state, fault="the last, short share gets no task")


def equal_parts(most: int | None = None) -> Claim:
    """_cpu/chain.h:Parts. Consecutive ranges from 0 to the whole, none empty, none over `most`: each place in one."""

    def state(z: Symbols) -> Truth:
        length = z.whole("length", least=1)
        largest = z.whole("most", least=1) if most is None else most
        count = (length + largest - 1) // largest
        part = z.whole("part", least=0, below=count)
        start, stop = part * length // count, (part + 1) * length // count
        return z.all_of(
            start >= 0,
            start < stop,
            stop <= length,
            stop - start <= z.planted(largest, largest - 1),
            z.implies(part == 0, start == 0),
            z.implies(part + 1 == count, stop == length),
        )

    words = "any size" if most is None else f"at most {most}"
    return Claim(name=f"parts of {words} follow each other", state=state, fault="parts hold one less", truncating=True)


def lane_of_a_column() -> Claim:
    """_triton/rows.py:block_of in the loops over a row: STEPS blocks of 256 columns at a time.

    Whatever STEPS is, column h meets lane h mod 256 in block h div 256, once, and nothing else meets it there."""

    def state(z: Symbols) -> Truth:
        from samebits.ops._triton.rows import block_of

        H, steps = z.whole("H", least=1, below=SIZE_LIMIT, bits=32), z.whole("STEPS", least=1, below=16)
        turn, step = z.whole("turn", least=0), z.whole("step", least=0)
        start = z.planted(LANES, LANES - 1) * steps * turn
        z.assume(start < H, step < steps)
        place = start + step * LANES
        _, inside, columns = z.source(block_of)(z.whole("row", least=0), place, 1, H, LANES, False)
        lane = columns - place
        met = (columns // LANES == turn * steps + step) & (columns % LANES == lane)
        column = z.whole("column", least=0, below=H)
        its_turn = column // (LANES * steps)
        its_step = column % (LANES * steps) // LANES
        reached = (its_turn * (LANES * steps) < H) & (its_step < steps) & (its_step >= 0)
        return z.implies(inside, met) & reached

    return Claim(
        name="lane of a column", state=state, fault="turns are 255 columns apart for each block", truncating=True
    )


def lane_of_an_element() -> Claim:
    """_cpu/lane_sum.h:lane_sum, for vectors of 4, 8 or 16: element e goes to lane e mod 256, in blocks or the rest."""

    def state(z: Symbols) -> Truth:
        width, vector = z.whole("width", least=1), z.whole("WIDTH")
        z.assume(z.any_of(vector == 4, vector == 8, vector == 16))
        element = z.whole("element", least=0, below=width)
        block, lane = z.divide(element, LANES)
        whole = (block + 1) * LANES <= width
        register, within = z.divide(lane, vector)
        rest = width // LANES * LANES
        # each_vector over the rest: vectors start at multiples of WIDTH, the last one holds what is left.
        at = (element - rest) // vector * vector
        held = z.smaller(vector, width - rest - at)
        in_registers = (register < z.planted(LANES, LANES - 1) // vector) & (register * vector + within == lane)
        in_the_rest = (element >= rest) & (element - rest == lane) & (element - rest - at < held)
        return z.implies(whole, in_registers) & z.implies(~whole, in_the_rest)

    return Claim(name="lane of an element", state=state, fault="one register too few", truncating=True)


def fold_of_lanes(count: int = LANES) -> Claim:
    """_triton/rows.py:fold_by_halves and _cpu/lane_sum.h:fold_by_halves: every step adds two lanes, half of them apart.

    On the CPU whole registers are added first, then the lanes of one: the same pairs for any WIDTH up to 16."""

    def state(z: Symbols) -> Truth:
        claims: list[Truth] = []
        half = count // 2
        while half:
            lane = z.whole(f"lane_{half}", least=0, below=2 * half)
            row, into = z.divide(lane, half)  # reshape to (2, half), reduced over the first axis
            partner = z.choose(row == 0, lane + half, lane - half)
            claims += [into == lane % half, into < half, partner >= 0, partner < 2 * half, partner % half == into]
            for vector in (4, 8, 16):
                if half >= vector:
                    register, within = z.divide(lane, vector)
                    taken = register % (half // vector) * vector + within
                    claims.append(taken == z.planted(into, lane - into))
            half //= 2
        return z.all_of(*claims)

    return Claim(name=f"{count} lanes fold by halves", state=state, fault="the upper half is kept", truncating=True)


def block_in_bounds(aligned: bool) -> Claim:
    """_triton/rows.py:block_of: what is read and written lies in the matrix; different places have different ones."""

    def state(z: Symbols) -> Truth:
        from samebits.ops._triton.rows import block_of

        M, H = z.wholes("M H", least=1, below=SIZE_LIMIT, bits=32)
        if aligned:
            z.assume(H % 8 == 0)
        places = []
        for name in ("one", "other"):
            row, start = z.wholes(f"{name}_row {name}_start", least=0, bits=32)
            wide = z.whole(f"{name}_WIDTH", least=1)
            offset, inside, column = z.source(block_of)(row, start, M, z.planted(H, H + 8), wide, aligned)
            places.append((row, column, offset, inside))
        (row, column, offset, inside), (row_2, column_2, offset_2, inside_2) = places
        apart = z.implies(inside & inside_2 & (offset == offset_2), (row == row_2) & (column == column_2))
        return z.implies(inside, (offset >= 0) & (offset < M * H)) & apart

    how = "aligned" if aligned else "not aligned"
    return Claim(
        name=f"blocks of rows in bounds, {how}", state=state, fault="rows lie 8 further apart", truncating=True
    )


def row_numbers_fit() -> Claim:
    """_triton/rows.py:block_of and the loops around it: int32 where rows and columns are counted, int64 for offsets."""

    def state(z: Symbols) -> Truth:
        from samebits.ops._triton.rows import block_of

        limit = z.planted(SIZE_LIMIT, 2**31)
        M, H = z.wholes("M H", least=1, below=limit, bits=32)
        program, start = z.wholes("program start", least=0, bits=32)
        rows_each, wide = z.wholes("ROWS WIDTH", least=1, below=2049)
        z.assume(program * rows_each < M, start < H)
        lane = z.unknown(least=0, below=rows_each, bits=32)
        z.source(block_of)(program * rows_each + lane, start, M, H, wide, True)
        past_the_end = start + wide
        return z.fits() & (past_the_end > start)

    return Claim(name="row numbers fit", state=state, fault="axes up to 2^31 - 1", truncating=True)


def program_rows() -> Claim:
    """The first line of kernels of rows: program p takes rows p * ROWS + (0 .. ROWS - 1), for cdiv(M, ROWS) of p."""

    def state(z: Symbols) -> Truth:
        return each_once(z, z.whole("M", least=1), z.whole("ROWS", least=1), name="row")

    return Claim(
        name="each row has one program", state=state, fault="as many programs as whole blocks", truncating=True
    )


def program_elements(aligned: bool) -> Claim:
    """_triton/elements.py:elements_of (adamw_step and grad_norm_scale have the same lines): each element once."""

    def state(z: Symbols) -> Truth:
        from samebits.ops._triton.elements import elements_of

        N, block = z.whole("N", least=1, below=2**62), z.whole("BLOCK", least=1, below=2**16)
        if aligned:
            z.assume(N % 8 == 0)
        programs = z.planted(z.ceiling(N, block), N // block)
        program = z.whole("program", least=0, below=z.smaller(programs, 2**31), bits=32)
        offsets, inside = z.source(elements_of, program_id=lambda axis: program)(N, block, aligned)
        element = z.whole("element", least=0, below=N)
        met = z.implies(inside, (offsets >= 0) & (offsets < N) & (offsets // block == program))
        return met & (element // block < programs) & z.fits()

    how = "aligned" if aligned else "not aligned"
    return Claim(
        name=f"each element has one program, {how}",
        state=state,
        fault="as many programs as whole blocks",
        truncating=True,
    )


def row_claims() -> list[Claim]:
    """All that an operator of independent rows, summed in lanes, rests on."""
    return [
        program_rows(),
        row_shares(),
        block_in_bounds(False),
        block_in_bounds(True),
        row_numbers_fit(),
        lane_of_a_column(),
        lane_of_an_element(),
        fold_of_lanes(),
    ]
