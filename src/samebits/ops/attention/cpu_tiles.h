// What attention's two passes share on the CPU: who sees whom, packed operands, tiles of products, the weights' arithmetic.
//
// A tile says which rows are computed together and when. It reaches no bit: a pair that a tile visits and that does not
// see one another adds an exact zero, and the sign of a zero sum is settled at its end by fma(sum, factor, +0).
#pragma once

#include <limits>

#include "numerics/elementary/quick.h"
#include "ops/_cpu/chain.h"
#include "ops/_cpu/rows.h"

namespace samebits {
inline namespace SAMEBITS_ISA {
namespace attention {

// Decides bits: keys of a block and of a split, and the partial sums that a row's weights are folded to.
constexpr int BLOCK_KEYS = 64;
constexpr int64_t SPLIT_KEYS = 32 * BLOCK_KEYS;
constexpr int WEIGHT_LANES = 8;
constexpr int BLOCK_VECTORS = BLOCK_KEYS / WIDTH;
constexpr int KEY_PANELS = BLOCK_KEYS / TILE_COLUMNS;

using elementary::choose;
using elementary::floats;
using elementary::lanes;

// Keys, queries or rows [first, stop).
struct Range {
    int64_t first, stop;
    int64_t size() const { return stop - first; }
    bool empty() const { return first >= stop; }
    Range cut(Range other) const { return {std::max(first, other.first), std::min(stop, other.stop)}; }
    Range from(int64_t place) const { return {first - place, stop - place}; }
};

struct Rule {
    bool causal;
    int64_t window;         // 0: any distance
    bool capped;
    float score_factor, cap, exponent_factor;
    Range seen(int64_t position, int64_t k_length) const {
        const int64_t ahead = causal ? 1 : window != 0 ? window : k_length - position;
        return {window != 0 ? std::max<int64_t>(0, position - window + 1) : 0, std::min(k_length, position + ahead)};
    }
};

// Tensors (tokens, heads, head size): strides count elements, the last axis is contiguous.
template <class T>
struct Heads {
    T* data;
    int64_t token, head;
    T* at(int64_t row, int64_t which) const { return data + row * token + which * head; }
};

// The keys of one sequence and head, by logical position.
template <class T>
struct Keys {
    const T* data;
    int64_t token;
    const int32_t* pages;
    int64_t page_size;
    const T* at(int64_t key) const {
        return data + (pages == nullptr ? key : pages[key / page_size] * page_size + key % page_size) * token;
    }
};

struct Layout {
    int64_t sequences, heads, key_heads, head;
    const int64_t *q_start, *q_length, *k_start, *k_length;
    const int32_t* pages;
    int64_t pages_row, page_size;
    int64_t group() const { return heads / key_heads; }
    int64_t padded() const { return (head + TILE_COLUMNS - 1) / TILE_COLUMNS * TILE_COLUMNS; }
    template <class T>
    Keys<T> keys(Heads<const T> of, int64_t sequence, int64_t key_head) const {
        if (pages == nullptr) return {of.at(k_start[sequence], key_head), of.token, nullptr, 0};
        return {of.at(0, key_head), of.token, pages + sequence * pages_row, page_size};
    }
};

inline int64_t rounded_up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

// Hands out pieces of one thread's scratch memory; measured first, with no memory, then cut.
struct Pieces {
    float* memory;
    int64_t used = 0;
    float* take(int64_t count) {
        float* piece = memory == nullptr ? nullptr : memory + used;
        used += rounded_up(count, 16);
        return piece;
    }
};

// A right operand: panels of TILE_COLUMNS columns, in each one line of TILE_COLUMNS numbers a step.
struct Panels {
    const float* data;
    int64_t steps;
    const float* at(int64_t step, int64_t column) const {
        return data + (column / TILE_COLUMNS * steps + step) * TILE_COLUMNS;
    }
};

// Speed only: the columns of `wanted` that whole tiles must compute.
inline Range whole_panels(Range wanted) {
    return {wanted.first / TILE_COLUMNS * TILE_COLUMNS, rounded_up(wanted.stop, TILE_COLUMNS)};
}

// Rows of memory: `row(line)` is where one begins. Those past `count` are zeros; those up to `ahead` are fetched early.
template <class Row>
struct Lines {
    Row row;
    int64_t count, width, ahead;
    SAMEBITS_FETCH fetch(int64_t line, int64_t d) const {
        if (line < ahead) __builtin_prefetch(row(line) + d, 0, SECOND_CACHE);
    }
};
template <class Row>
Lines<Row> lines_of(Row row, int64_t count, int64_t width, int64_t ahead = 0) {
    return {row, count, width, ahead};
}

// out[step][line] for `all` lines in panels, turned so that steps are elements of the row.
template <class Row>
void pack_turned(const Lines<Row>& lines, int64_t all, int64_t panel, float* out) {
    for (int64_t line = 0; line < all; line += WIDTH) {
        const int64_t here = std::min<int64_t>(WIDTH, lines.count - line);
        decltype(lines.row(0)) row[WIDTH];
        for (int i = 0; i < WIDTH; ++i) row[i] = i < here ? lines.row(line + i) : nullptr;
        float* to = out + line / panel * panel * lines.width + line % panel;
        for (int64_t d = 0; d < lines.width; d += WIDTH) {
            const int steps = static_cast<int>(std::min<int64_t>(WIDTH, lines.width - d));
            Floats block[WIDTH];
            for (int i = 0; i < WIDTH; ++i) {
                block[i] = i < here ? load_part(row[i] + d, steps) : zeros();
                lines.fetch(all + line + i, d);
            }
            transpose(block);
            for (int i = 0; i < steps; ++i) store(to + (d + i) * panel, block[i]);
        }
    }
}

// Panels over the elements of rows, a row a step; zero past the count and past the width. False where all is finite.
template <class Row>
bool pack_rows(const Lines<Row>& lines, int64_t all, float* out) {
    Floats zero_or_nan = zeros();
    const int64_t padded = rounded_up(lines.width, TILE_COLUMNS);
    for (int64_t line = 0; line < all; ++line) {
        const auto* row = lines.row(std::min(line, lines.count - 1));
        const int64_t width = line < lines.count ? lines.width : 0;
        float* to = out + line * TILE_COLUMNS;
        for (int64_t d = 0; d < padded; d += WIDTH) {
            const int some = static_cast<int>(std::clamp<int64_t>(width - d, 0, WIDTH));
            const Floats value = some > 0 ? load_part(row + d, some) : zeros();
            lines.fetch(all + line, d);
            zero_or_nan = fma(value, zeros(), zero_or_nan);
            store(to + d / TILE_COLUMNS * all * TILE_COLUMNS + d % TILE_COLUMNS, value);
        }
    }
    alignas(64) float each[WIDTH];
    store(static_cast<float*>(each), zero_or_nan);
    return !std::all_of(each, each + WIDTH, [](float x) { return x == 0.0f; });
}

// ROWS x TILE_COLUMNS sums in registers: c = (c * factor or c or +0) + left right, one fused multiply-add a step, in order.
// Element (row, step) of the left operand lies at left[row * LEFT_ROW + step * LEFT_STEP].
template <int ROWS, int LEFT_ROW, int LEFT_STEP>
void product_tile(int64_t steps, const float* left, const float* right, bool resume, const float* factors, float* c,
                  int64_t stride) {
    Floats sum[ROWS][TILE_VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) {
#pragma GCC unroll 4
        for (int j = 0; j < TILE_VECTORS; ++j) {
            sum[i][j] = resume ? load(c + i * stride + j * WIDTH) : zeros();
            if (factors != nullptr) sum[i][j] = mul(sum[i][j], broadcast(factors[i]));
        }
    }
    int64_t step = 0;
#if defined(SAMEBITS_NEON)
    if constexpr (LEFT_STEP == 1)
        for (; step + 4 <= steps; step += 4) four_steps<LEFT_ROW>(left + step, right + step * TILE_COLUMNS, sum);
#endif
#pragma GCC unroll 2
    for (; step < steps; ++step) {
        Floats line[TILE_VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < TILE_VECTORS; ++j) line[j] = load(right + step * TILE_COLUMNS + j * WIDTH);
        if constexpr (LEFT_ROW == 1) tile_step(left + step * LEFT_STEP, line, sum);
        else broadcast_step<LEFT_ROW>(left + step * LEFT_STEP, line, sum);
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) {
#pragma GCC unroll 4
        for (int j = 0; j < TILE_VECTORS; ++j) store(c + i * stride + j * WIDTH, sum[i][j]);
    }
}

using ProductTile = void (*)(int64_t, const float*, const float*, bool, const float*, float*, int64_t);
template <int LEFT_ROW, int LEFT_STEP, int... ROWS>
constexpr std::array<ProductTile, sizeof...(ROWS)> product_tiles(std::integer_sequence<int, ROWS...>) {
    return {product_tile<ROWS + 1, LEFT_ROW, LEFT_STEP>...};
}
template <int LEFT_ROW, int LEFT_STEP>
constexpr auto PRODUCT_TILES = product_tiles<LEFT_ROW, LEFT_STEP>(std::make_integer_sequence<int, TILE_ROWS>{});

// Speed only: rows of one tile. Where NEON keeps a vector of every left row, there are registers for half of them.
#if defined(SAMEBITS_NEON)
template <int LEFT_STEP>
constexpr int64_t MOST_ROWS = LEFT_STEP == 1 ? TILE_ROWS / 2 : TILE_ROWS;
#else
template <int LEFT_STEP>
constexpr int64_t MOST_ROWS = TILE_ROWS;
#endif

// Up to TILE_ROWS rows, the steps and columns of the two ranges; c and left point at row 0 and step or column 0.
template <int LEFT_ROW, int LEFT_STEP>
void product(int64_t rows, Range steps, Range columns, const float* left, Panels right, bool resume, const float* factors,
             float* c, int64_t stride) {
    if (rows > MOST_ROWS<LEFT_STEP>) {
        product<LEFT_ROW, LEFT_STEP>(rows / 2, steps, columns, left, right, resume, factors, c, stride);
        product<LEFT_ROW, LEFT_STEP>(rows - rows / 2, steps, columns, left + rows / 2 * LEFT_ROW, right, resume,
                                     factors == nullptr ? nullptr : factors + rows / 2, c + rows / 2 * stride, stride);
        return;
    }
    const ProductTile tile = PRODUCT_TILES<LEFT_ROW, LEFT_STEP>[static_cast<size_t>(rows - 1)];
    for (int64_t column = columns.first; column < columns.stop; column += TILE_COLUMNS)
        tile(steps.size(), left + steps.first * LEFT_STEP, right.at(steps.first, column), resume, factors, c + column,
             stride);
}

// The lanes of `a` whose place lies in the range, else `other`.
inline Floats keep(Range range, Floats a, Floats other) {
    using elementary::SignedLanes;
    SignedLanes place;
    for (int lane = 0; lane < WIDTH; ++lane) place[lane] = lane;
    const int32_t first = static_cast<int32_t>(std::clamp<int64_t>(range.first, 0, WIDTH));
    const int32_t stop = static_cast<int32_t>(std::clamp<int64_t>(range.stop, 0, WIDTH));
    const SignedLanes inside = (place >= first) & (place < stop);
    return floats(choose(inside, lanes(a), lanes(other)));
}

template <class T>
inline Floats rounded_to(Floats value) {
    if constexpr (std::is_same_v<T, float>) {
        return value;
    } else {
        T stored[WIDTH];
        store(static_cast<T*>(stored), value);
        return load(static_cast<const T*>(stored));
    }
}

// A finished sum: round(sum * factor), a zero of either sign as +0.
template <class T>
void store_scaled(const float* sum, float factor, int64_t width, T* out) {
    for (int64_t d = 0; d < width; d += WIDTH) {
        const int count = static_cast<int>(std::min<int64_t>(WIDTH, width - d));
        store_part(out + d, fma(load_part(sum + d, count), broadcast(factor), zeros()), count);
    }
}

}  // namespace attention
}  // namespace SAMEBITS_ISA
}  // namespace samebits
