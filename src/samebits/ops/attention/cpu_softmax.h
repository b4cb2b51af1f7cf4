// The forward pass row by row on the CPU: what is kept of a row between blocks of keys, and how scores become weights.
#pragma once

#include "ops/attention/cpu_tiles.h"

namespace samebits {
inline namespace SAMEBITS_ISA {
namespace attention {

template <class T>
struct Forward {
    Layout layout;
    Rule rule;
    Heads<const T> q, k, v;
    Heads<T> out;
    float* lse2;
};

// Row r of a sequence and key head: query r / group, head r % group of the group.
struct RowTile {
    int64_t key_head, first, rows;
    Range seen[TILE_ROWS];
    float *q, *sums, *past;
    alignas(64) float maximum[ROW_PANEL];
    alignas(64) float total[ROW_PANEL];
    alignas(64) float level[ROW_PANEL];
    alignas(64) float shrink[ROW_PANEL];
    alignas(64) float weights[TILE_ROWS][WEIGHT_LANES];
    Range any() const { return {seen[0].first, seen[rows - 1].stop}; }
    Range all() const { return {seen[rows - 1].first, seen[0].stop}; }
};

// 64 weights to 8 sums by halves, added to the rescaled sums of the blocks before.
inline void add_weights(Floats (&weight)[BLOCK_VECTORS], float shrink, float (&sums)[WEIGHT_LANES]) {
#pragma GCC unroll 8
    for (int half = BLOCK_VECTORS / 2; half * WIDTH >= WEIGHT_LANES; half /= 2)
#pragma GCC unroll 8
        for (int j = 0; j < half; ++j) weight[j] = add(weight[j], weight[j + half]);
#if defined(__AVX512F__)
    const __m256 term = _mm512_castps512_ps256(weight[0].v) + _mm512_extractf32x8_ps(weight[0].v, 1);
    _mm256_storeu_ps(sums, _mm256_fmadd_ps(_mm256_loadu_ps(sums), _mm256_set1_ps(shrink), term));
#else
    for (int j = 0; j < WEIGHT_LANES / WIDTH; ++j)
        store(sums + j * WIDTH, fma(load(sums + j * WIDTH), broadcast(shrink), weight[j]));
#endif
}

// Scores become z, unseen ones -inf; gives the row's largest lane by lane.
inline Floats mask_and_cap(const Rule& rule, Range seen, Range columns, float* scores) {
    const Floats nothing = broadcast(-std::numeric_limits<float>::infinity());
    Floats largest = nothing;
    for (int64_t j = columns.first; j < columns.stop; j += WIDTH) {
        Floats z = load(scores + j);
        if (rule.capped) z = mul(elementary::tanh(mul(z, broadcast(rule.score_factor))), broadcast(rule.cap));
        if (j < seen.first || j + WIDTH > seen.stop) z = keep(seen.from(j), z, nothing);
        store(scores + j, z);
        largest = larger(z, largest);
    }
    return largest;
}

// The same where there is nothing to mask and no cap.
inline Floats largest_of(const float* scores) {
    Floats largest = broadcast(-std::numeric_limits<float>::infinity());
#pragma GCC unroll 16
    for (int j = 0; j < BLOCK_VECTORS; ++j) largest = larger(load(scores + j * WIDTH), largest);
    return largest;
}

// What is subtracted from exponents under a maximum.
inline Floats level_of(Floats maximum, Floats factor) {
    const Floats none = broadcast(-std::numeric_limits<float>::infinity());
    return mul(floats(choose(lanes(maximum) == lanes(none), lanes(zeros()), lanes(maximum))), factor);
}

// What is summed under a maximum is multiplied by this under a larger one. Where it stays, nothing shrinks: 1 but for
// levels that overflow.
inline Floats shrink_of(Floats before, Floats now, Floats factor, Floats level) {
    const Floats shrink = quick::exp2(floats(lanes(mul(before, factor)) - lanes(level)));
    return floats(choose(lanes(now) == lanes(before), lanes(broadcast(1.0f)), lanes(shrink)));
}

// New maxima of a tile's rows, the level that is subtracted from exponents, and the factor for what was summed before.
inline void raise(RowTile& tile, const Floats (&largest)[ROW_PANEL], float exponent_factor) {
    const Floats factor = broadcast(exponent_factor), none = broadcast(-std::numeric_limits<float>::infinity());
    for (int first = 0; first < ROW_PANEL; first += WIDTH) {
        Floats turned[WIDTH];
        for (int i = 0; i < WIDTH; ++i) turned[i] = first + i < tile.rows ? largest[first + i] : none;
        transpose(turned);
        const Floats before = load(tile.maximum + first);
        Floats now = before;
        for (int i = 0; i < WIDTH; ++i) now = larger(turned[i], now);
        const Floats level = level_of(now, factor);
        store(tile.shrink + first, shrink_of(before, now, factor, level));
        store(tile.level + first, level);
        store(tile.maximum + first, now);
    }
}

// Scores of a row's columns become weights as the sums take them; the others of the 64 count as zeros.
template <class T, bool WHOLE>
void weigh_row(float factor, float level, float shrink, Range columns, float* scores, float (&sums)[WEIGHT_LANES]) {
    Floats weight[BLOCK_VECTORS];
#pragma GCC unroll 16
    for (int j = 0; j < BLOCK_VECTORS; ++j) {
        float* at = scores + j * WIDTH;
        const bool here = WHOLE || (j * WIDTH >= columns.first && j * WIDTH < columns.stop);
        weight[j] = here ? quick::exp2(fma(load(at), broadcast(factor), broadcast(-level))) : zeros();
        if (here) store(at, rounded_to<T>(weight[j]));
    }
    add_weights(weight, shrink, sums);
}

// The scores of a tile's rows in a block of keys become weights; row r has its 64 at scores + 64 r.
template <class T>
void weigh(const Rule& rule, RowTile& tile, Range block, Range columns, float* scores) {
    const bool whole = tile.all().cut(block).size() == BLOCK_KEYS;
    Floats largest[ROW_PANEL];
    for (int64_t r = 0; r < tile.rows; ++r) {
        float* row = scores + r * BLOCK_KEYS;
        largest[r] = whole && !rule.capped ? largest_of(row)
                                           : mask_and_cap(rule, tile.seen[r].from(block.first), columns, row);
    }
    raise(tile, largest, rule.exponent_factor);
    for (int64_t r = 0; r < tile.rows; ++r) {
        const auto weigh_this = whole ? weigh_row<T, true> : weigh_row<T, false>;
        weigh_this(rule.exponent_factor, tile.level[r], tile.shrink[r], columns, scores + r * BLOCK_KEYS, tile.weights[r]);
    }
}

}  // namespace attention
}  // namespace SAMEBITS_ISA
}  // namespace samebits
