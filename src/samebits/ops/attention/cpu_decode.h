// Attention of few rows a head, as in decoding: bound by memory, so keys and values are read once, in the order they lie
// in, and never packed. Heads that lie side by side go over a block together.
#pragma once

#include <vector>

#include "ops/attention/cpu_softmax.h"

namespace samebits {
inline namespace SAMEBITS_ISA {
namespace attention {

// Speed only: rows of a head that are worth no packing, and values added while a sum is in registers.
constexpr int64_t FEW_ROWS = 4;
constexpr int64_t VALUE_STEPS = 8;

// Scores of ROWS rows and the WIDTH keys from `first` on, turned in registers; `q` is packed like a tile's.
template <int ROWS, class T>
void score(const Keys<T>& keys, int64_t first, int64_t count, int64_t width, const float* q, float* scores) {
    const T* row[WIDTH];
    for (int i = 0; i < WIDTH; ++i) row[i] = i < count ? keys.at(first + i) : nullptr;
    Floats sum[ROWS];
    for (Floats& each : sum) each = zeros();
    for (int64_t d = 0; d < width; d += WIDTH) {
        const int steps = static_cast<int>(std::min<int64_t>(WIDTH, width - d));
        Floats block[WIDTH];
        for (int i = 0; i < WIDTH; ++i) block[i] = i < count ? load_part(row[i] + d, steps) : zeros();
        transpose(block);
#pragma GCC unroll 16
        for (int i = 0; i < WIDTH; ++i) {
            if (i >= steps) break;
            for (int r = 0; r < ROWS; ++r) sum[r] = fma(broadcast(q[(d + i) * ROW_PANEL + r]), block[i], sum[r]);
        }
    }
    for (int r = 0; r < ROWS; ++r) store(scores + r * BLOCK_KEYS, sum[r]);
}

template <class T>
void score(int64_t rows, const Keys<T>& keys, int64_t first, int64_t count, int64_t width, const float* q, float* scores) {
    static_assert(FEW_ROWS == 4);
    const auto of_rows = rows == 1 ? score<1, T> : rows == 2 ? score<2, T> : rows == 3 ? score<3, T> : score<4, T>;
    of_rows(keys, first, count, width, q, scores);
}

// sum = sum + weight * value for the keys of a range of at most VALUE_STEPS, ascending.
template <class T>
void add_values(const Keys<T>& values, Range keys, const float* weights, int64_t width, float* sum) {
    const T* row[VALUE_STEPS];
    for (int64_t j = 0; j < keys.size(); ++j) row[j] = values.at(keys.first + j);
    for (int64_t d = 0; d < width; d += WIDTH) {
        const int some = static_cast<int>(std::min<int64_t>(WIDTH, width - d));
        Floats total = load(sum + d);
        for (int64_t j = 0; j < keys.size(); ++j)
            total = fma(broadcast(weights[j]), load_part(row[j] + d, some), total);
        store(sum + d, total);
    }
}

// One block of keys for all tiles, a tile a head: scores of 16 or fewer keys of every head, then the next; so with values.
template <class T>
void attend_few(const Forward<T>& forward, int64_t n, std::vector<RowTile>& tiles, Range block, float* scores) {
    const Layout& layout = forward.layout;
    const int64_t padded = layout.padded();
    const Range keys = tiles.front().any().cut(block).from(block.first);
    if (keys.empty()) return;
    const Range columns = whole_panels(keys);
    const auto scores_of = [&](const RowTile& tile) {
        return scores + (tile.key_head - tiles.front().key_head) * FEW_ROWS * BLOCK_KEYS;
    };
    for (int64_t line = columns.first; line < columns.stop; line += WIDTH)
        for (const RowTile& tile : tiles)
            score(tile.rows, layout.keys(forward.k, n, tile.key_head), block.first + line, block.size() - line, layout.head,
                  tile.q, scores_of(tile) + line);
    for (RowTile& tile : tiles) {
        weigh<T>(forward.rule, tile, block, columns, scores_of(tile));
        for (int64_t r = 0; r < tile.rows; ++r)
            for (int64_t d = 0; d < padded; d += WIDTH) {
                float* sum = tile.sums + r * padded + d;
                store(sum, mul(load(sum), broadcast(tile.shrink[r])));
            }
    }
    // Every row takes the keys that it sees and no other, so nothing unseen can reach it.
    for (int64_t line = keys.first / VALUE_STEPS * VALUE_STEPS; line < keys.stop; line += VALUE_STEPS)
        for (const RowTile& tile : tiles)
            for (int64_t r = 0; r < tile.rows; ++r) {
                const Range own = tile.seen[r].cut({block.first + line, block.first + line + VALUE_STEPS});
                const float* weights = scores_of(tile) + r * BLOCK_KEYS + (own.first - block.first);
                add_values(layout.keys(forward.v, n, tile.key_head), own, weights, layout.head, tile.sums + r * padded);
            }
}

}  // namespace attention
}  // namespace SAMEBITS_ISA
}  // namespace samebits
