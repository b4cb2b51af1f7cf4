// Splits of keys on the CPU: each is a softmax of its own, and what they give is merged left to right, row by row.
#pragma once

#include "ops/attention/cpu_softmax.h"

namespace samebits {
inline namespace SAMEBITS_ISA {
namespace attention {

// What the rows of a tile have after some keys: maxima, sums of weights, and sums of weighted values, `width` a row.
struct RowState {
    float *maximum, *total, *sums;
    static int64_t floats(int64_t width) { return ROW_PANEL * (width + 2); }
    static RowState in(float* memory) { return {memory, memory + ROW_PANEL, memory + 2 * ROW_PANEL}; }
    void start(int64_t rows, int64_t width) const {
        std::fill_n(maximum, ROW_PANEL, -std::numeric_limits<float>::infinity());
        std::fill_n(total, ROW_PANEL, 0.0f);
        std::fill_n(sums, rows * width, 0.0f);
    }
    void copy(RowState from, int64_t rows, int64_t width) const {
        std::copy_n(from.maximum, ROW_PANEL, maximum);
        std::copy_n(from.total, ROW_PANEL, total);
        std::copy_n(from.sums, rows * width, sums);
    }
};

inline void start_split(RowTile& tile, int64_t width) {
    RowState{tile.maximum, tile.total, tile.sums}.start(tile.rows, width);
    std::fill_n(&tile.weights[0][0], TILE_ROWS * WEIGHT_LANES, 0.0f);
}

// The state of a split whose keys are all taken.
inline RowState end_split(RowTile& tile) {
    for (int64_t r = 0; r < tile.rows; ++r) {
        const float(&w)[WEIGHT_LANES] = tile.weights[r];
        tile.total[r] = ((w[0] + w[4]) + (w[2] + w[6])) + ((w[1] + w[5]) + (w[3] + w[7]));
    }
    return {tile.maximum, tile.total, tile.sums};
}

// Adds the next split to those before. A row that sees no key of a split has there what it started with, and the merge
// with that is the other side, bit for bit but for the sign of a zero sum, which is settled at the end.
inline void merge(RowState past, RowState next, int64_t rows, int64_t width, float exponent_factor) {
    const Floats factor = broadcast(exponent_factor);
    alignas(64) float a[ROW_PANEL], b[ROW_PANEL];
    for (int first = 0; first < ROW_PANEL; first += WIDTH) {
        const Floats left = load(past.maximum + first), right = load(next.maximum + first), now = larger(right, left);
        const Floats level = level_of(now, factor);
        const Floats of_left = shrink_of(left, now, factor, level), of_right = shrink_of(right, now, factor, level);
        const Floats total = mul(load(past.total + first), of_left);
        store(past.total + first, fma(load(next.total + first), of_right, total));
        store(past.maximum + first, now);
        store(a + first, of_left);
        store(b + first, of_right);
    }
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t d = r * width; d < (r + 1) * width; d += WIDTH) {
            const Floats scaled = mul(load(past.sums + d), broadcast(a[r]));
            store(past.sums + d, fma(load(next.sums + d), broadcast(b[r]), scaled));
        }
}

}  // namespace attention
}  // namespace SAMEBITS_ISA
}  // namespace samebits
