"""Integer facts of the matrix product, for all sizes: tiles cover the output once, indices stay in bounds, the chain
over K is cut at multiples of 16 whatever tile is chosen.

Runs the real `tile_at`, `offsets_of` and `select` on unknowns; models the loops of the kernels and the C++."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

from samebits.contracts.integer_proofs import Claim, prove
from samebits.contracts.proof import Proof
from samebits.contracts.symbolic import Symbols, Truth
from samebits.ops.index_claims import EVERY_SIZE, SIZE_LIMIT, each_once, equal_parts, vector_share
from samebits.ops.matmul.launch_table import CHAIN_WIDTH, TABLE, select

# Outputs that a device can hold: 2^36 numbers of two bytes fill 128 GiB.
OUTPUT_LIMIT = 2**36


def every_tile_once() -> Claim:
    """triton_tiles.py:tile_at, run as it stands: every tile has an index below tiles_m * tiles_n.

    There are as many indices as tiles, so no tile has two. `logprob` numbers its tiles by the same function."""

    def state(z: Symbols) -> Truth:
        from samebits.ops.matmul.triton_kernel import tile_at

        tiles_m, tiles_n, group = z.wholes("tiles_m tiles_n GROUP", least=1)
        band, column, within = z.wholes("band column within", least=0)
        z.assume(band * group + within < tiles_m, within < group, column < tiles_n)
        height = z.smaller(tiles_m - band * group, group)
        inside = column * height + within
        index = band * (group * tiles_n) + inside
        z.knows(index, group * tiles_n, band, inside)
        z.knows(inside, height, column, within)
        tile_m, tile_n = z.source(tile_at)(index, tiles_m, tiles_n, group)
        found = (tile_m == band * group + within) & (tile_n == z.planted(column, tiles_n - 1 - column))
        return z.all_of(found, index >= 0, index < tiles_m * tiles_n)

    return Claim(name="every tile has an index", state=state, fault="columns of tiles run backwards", truncating=True)


def every_output_in_one_tile() -> Claim:
    """triton_products.py:matmul_described and matmul_addressed: rows tile_m * TILE_M + lane; columns are cut alike."""

    def state(z: Symbols) -> Truth:
        return each_once(z, z.whole("M", least=1), z.whole("TILE_M", least=1), name="row")

    return Claim(name="every row in one tile", state=state, fault="floor for ceiling", truncating=True)


def resident_programs() -> Claim:
    """triton_products.py:matmul_described: program p walks p, p + programs, ...; the counter of the stores keeps up."""

    def state(z: Symbols) -> Truth:
        tiles, programs = z.wholes("tiles programs", least=1)
        z.assume(programs <= tiles)
        tile = z.whole("tile", least=0, below=tiles)
        turn, program = z.divide(tile, programs)
        other, other_turn = z.whole("other", least=0, below=programs), z.whole("other_turn", least=0)
        stored = (program - programs) + (turn + z.planted(1, 0)) * programs
        again = z.implies(other + other_turn * programs == tile, (other == program) & (other_turn == turn))
        return (program + turn * programs == tile) & again & (stored == tile)

    return Claim(name="each tile has one program", state=state, fault="stores lag one tile behind", truncating=True)


def stored_in_bounds(transposed: bool) -> Claim:
    """triton_tiles.py:offsets_of, run as it stands: inside the output, and no two outputs in one place."""

    def state(z: Symbols) -> Truth:
        from samebits.ops.matmul.triton_kernel import offsets_of

        M, N = z.wholes("M N", least=1, below=SIZE_LIMIT, bits=32)
        row, column, row_2, column_2 = z.wholes("row column row_2 column_2", least=0, bits=32)
        place = z.source(offsets_of)
        sizes = z.planted((M, N), (N, M))
        offset, _ = place(row, column, *sizes, transposed)
        offset_2, _ = place(row_2, column_2, *sizes, transposed)
        inside = (row < M) & (column < N)
        inside_2 = (row_2 < M) & (column_2 < N)
        apart = z.implies(inside & inside_2 & (offset == offset_2), (row == row_2) & (column == column_2))
        return z.implies(inside, (offset >= 0) & (offset < M * N)) & apart

    how = "transposed" if transposed else "as it is"
    return Claim(name=f"stores in bounds, {how}", state=state, fault="M and N swapped", truncating=True)


def mask_is_exact() -> Claim:
    """triton_tiles.py:offsets_of: its mask is true of outputs that exist, and of no others."""

    def state(z: Symbols) -> Truth:
        from samebits.ops.matmul.triton_kernel import offsets_of

        M, N, row, column = z.wholes("M N row column", least=0, bits=32)
        _, inside = z.source(offsets_of)(row, column, z.planted(M, M + 1), N, False)
        return z.same(inside, (row < M) & (column < N))

    return Claim(name="mask of the stores", state=state, fault="one row more", truncating=True)


def loads_in_bounds() -> Claim:
    """triton_tiles.py:load_lines as matmul_addressed calls it: unmasked in whole steps, masked in the last one.

    Strides are those of a torch tensor, not negative; (lines - 1) * stride_line + (K - 1) * stride_k is its end."""

    def state(z: Symbols) -> Truth:
        lines, K, tile_k = z.wholes("lines K TILE_K", least=1)
        stride_line, stride_k, line, lane = z.wholes("stride_line stride_k line lane", least=0)
        z.assume(lane < tile_k)
        whole = K // tile_k * tile_k
        first = z.whole("first", least=0) * tile_k
        line = z.choose(line < lines, line, 0)
        unmasked, masked = first + lane, whole + lane
        last = (lines - 1) * stride_line + (K - 1) * stride_k

        def reached(k: Any) -> Truth:
            return z.all_of(k >= 0, k < K, line * stride_line + k * stride_k <= last)

        in_whole = z.implies(first < z.planted(whole, K), reached(unmasked))
        return in_whole & z.implies((whole < K) & (masked < K), reached(masked))

    return Claim(name="loads in bounds", state=state, fault="the last step unmasked", truncating=True)


def every_product_once() -> Claim:
    """triton_products.py: the steps of matmul_described (cdiv(K, TILE_K)) and of matmul_addressed (whole and a rest).

    Each k < K belongs to one step and one place in it, the same in both kernels, steps ascending with k."""

    def state(z: Symbols) -> Truth:
        K, tile_k = z.wholes("K TILE_K", least=1)
        k, later = z.wholes("k later", least=0, below=K)
        z.assume(k < later)
        steps, whole = z.planted((K + (tile_k - 1)) // tile_k, K // tile_k), K // tile_k * tile_k
        step, lane = z.divide(k, tile_k)
        addressed = z.any_of(step * tile_k < whole, (step * tile_k == whole) & (whole < K))
        next_step, next_lane = z.divide(later, tile_k)
        ascending = z.any_of(step < next_step, (step == next_step) & (lane < next_lane))
        return (step < steps) & addressed & (step * tile_k + lane == k) & ascending

    return Claim(name="every product once, in order", state=state, fault="the last, short step is left out")


def groups_of_sixteen() -> Claim:
    """The tensor core adds 16 products at a time: with steps of a multiple of 16 the group of a k is k div 16.

    TILE_K is any two of the real launch table's rows: neither step nor place in it moves a k to another group."""

    def state(z: Symbols) -> Truth:
        widths = sorted({launch.tile_k for rows in TABLE.values() for launch in rows})
        if z.faulty:
            widths.append(24)
        k, claims = z.whole("k", least=0), []
        for tile_k in widths:
            step, lane = z.divide(k, tile_k)
            group = step * (tile_k // CHAIN_WIDTH) + lane // CHAIN_WIDTH
            claims.append((group == k // CHAIN_WIDTH) & (lane % CHAIN_WIDTH == k % CHAIN_WIDTH))
        return z.all_of(*claims)

    return Claim(name="groups of 16 never shift", state=state, fault="a row of the table with a step of 24")


def every_launch_keeps_the_groups(dtype: str) -> Claim:
    """launch_table.py:select, run as it stands along every path: whatever M, N, K are, steps are multiples of 16."""

    def state(z: Symbols) -> Truth:
        sizes: list[Any] = z.wholes("M N K", least=1)
        claims: list[Truth] = []
        for described, wide in product((False, True), repeat=2):
            ways = z.paths(partial(select, *sizes, dtype=dtype, described=described, wide=wide))
            for condition, launch in ways:
                held = launch in TABLE[dtype] and launch.tile_k % z.planted(CHAIN_WIDTH, 256) == 0
                claims.append(z.implies(condition, held))
        return z.all_of(*claims)

    return Claim(name=f"every launch for {dtype}", state=state, fault="groups of 256")


def numbers_fit() -> Claim:
    """triton_products.py: int32 tiles, rows and columns; int64 wherever a row is multiplied by a length.

    Tiles have at least 16 rows and 16 columns, groups at most 32 tile rows (logprob), outputs fit a device."""

    def state(z: Symbols) -> Truth:
        from samebits.ops.matmul.triton_kernel import offsets_of

        M, N = z.wholes("M N", least=1, below=z.planted(SIZE_LIMIT, 2**31), bits=32)
        z.assume(M.to(64) * N <= OUTPUT_LIMIT)
        tile_m, tile_n = z.wholes("TILE_M TILE_N", least=16, below=257)
        tiles_m, tiles_n = z.ceiling(M, tile_m), z.ceiling(N, tile_n)
        at_m, at_n = (
            z.whole("tile_m", least=0, below=tiles_m, bits=32),
            z.whole("tile_n", least=0, below=tiles_n, bits=32),
        )
        lane_m, lane_n = z.unknown(least=0, below=tile_m, bits=32), z.unknown(least=0, below=tile_n, bits=32)
        z.source(offsets_of)(at_m * tile_m + lane_m, at_n * tile_n + lane_n, M, N, False)
        return z.fits()

    return Claim(name="numbers fit", state=state, fault="axes up to 2^31 - 1", truncating=True)


def number_of_tiles_fits() -> Claim:
    """triton_products.py: tiles_m * tiles_n, the counter that walks over them, and GROUP * tiles_n in `tile_at`.

    The numbers of tiles are bounded by (M + 15) / 16 and (N + 15) / 16, the most that any row of the table makes."""

    def state(z: Symbols) -> Truth:
        M, N = z.wholes("M N", least=1, below=SIZE_LIMIT)
        most = z.planted(OUTPUT_LIMIT, 2**40)
        z.assume(most >= M * N)
        tiles_m, tiles_n = z.wholes("tiles_m tiles_n", least=1)
        z.assume(16 * tiles_m <= M + 15, 16 * tiles_n <= N + 15)
        tiles = tiles_m * tiles_n
        largest = max(launch.group for rows in TABLE.values() for launch in rows)
        return (tiles + 2**16 < 2**31) & (largest * tiles_n < 2**31)

    return Claim(name="number of tiles fits", state=state, fault="outputs of 2^40 numbers")


def cpu_tiles() -> Claim:
    """cpu_kernel.cpp:product: task t computes tile (t mod row_tiles, t div row_tiles), whatever Tiling was chosen."""

    def state(z: Symbols) -> Truth:
        m, n, rows, columns = z.wholes("m n rows columns", least=1)
        i, j = z.whole("i", least=0, below=m), z.whole("j", least=0, below=n)
        row_tiles, column_tiles = (m + rows - 1) // rows, (n + columns - 1) // columns
        (down, y), (across, x) = z.divide(i, rows), z.divide(j, columns)
        task = across * z.planted(row_tiles, column_tiles) + down
        z.knows(task, row_tiles, across, down)
        row, column = task % row_tiles * rows, task // row_tiles * columns
        held = (y < z.smaller(rows, m - row)) & (x < z.smaller(columns, n - column))
        return held & (row + y == i) & (column + x == j) & (task >= 0) & (task < row_tiles * column_tiles)

    return Claim(
        name="each output has one thread",
        state=state,
        fault="columns of tiles counted by the other number",
        truncating=True,
    )


def cpu_single_row() -> Claim:
    """_cpu/single_row.h:single_row: shares of whole vectors, at most 2048 columns (streamed) or 16 vectors (turned)."""

    def state(z: Symbols) -> Truth:
        n, most = z.wholes("n most", least=1)
        return each_once(z, n, z.smaller(vector_share(z, n), most), name="column")

    return Claim(name="each column of a single row has one thread", state=state, fault="floor for ceiling")


def tiles() -> Proof:
    """triton_tiles.py: tile_at, offsets_of, load_lines; triton_products.py: matmul_described, matmul_addressed."""
    claims = [
        every_tile_once(),
        every_output_in_one_tile(),
        resident_programs(),
        stored_in_bounds(False),
        stored_in_bounds(True),
        mask_is_exact(),
        loads_in_bounds(),
        numbers_fit(),
        number_of_tiles_fits(),
    ]
    return prove(claims, bound=f"{EVERY_SIZE}, outputs of at most 2^36 numbers")


def chain() -> Proof:
    """triton_products.py: the steps over K; launch_table.py: TABLE and select."""
    claims = [every_product_once(), groups_of_sixteen(), *map(every_launch_keeps_the_groups, TABLE)]
    return prove(claims, bound="all sizes >= 1, every row of the launch table")


def threads() -> Proof:
    """cpu_kernel.cpp:product, _cpu/chain.h:Parts (rows of a micro tile, blocks of K), _cpu/single_row.h:single_row."""
    claims = [cpu_tiles(), cpu_single_row(), equal_parts(), *map(equal_parts, (4, 6, 14, 512))]
    return prove(claims, bound="all sizes, tilings and numbers of threads >= 1")
