// Attention forward on the CPU: a task is a run of rows (queries times the heads of a group) of one sequence and key head.
// It takes block after block of keys, packs each once, and carries every tile of its rows over it.
#pragma once

#include <vector>

#include "ops/attention/cpu_decode.h"
#include "ops/attention/cpu_softmax.h"

namespace samebits {
inline namespace SAMEBITS_ISA {
namespace attention {

// Speed only: tiles of a task, which share the packing of a block of keys.
constexpr int64_t MOST_TILES = 64;

struct ForwardTask {
    int64_t sequence;
    Range key_heads, rows;  // several heads where the rows are few, else one
};

// One block of keys and values of one head, packed.
struct KeyBlock {
    float *keys, *values;
    Range range;
    bool not_finite;
};

template <class T>
void attend(const Forward<T>& forward, RowTile& tile, const KeyBlock& block, float* scores) {
    const int64_t head = forward.layout.head, padded = forward.layout.padded();
    const Range keys = tile.any().cut(block.range).from(block.range.first);
    if (keys.empty()) return;
    const Range columns = whole_panels(keys);
    const Panels turned{block.keys, head}, values{block.values, BLOCK_KEYS};
    product<1, ROW_PANEL>(tile.rows, {0, head}, columns, tile.q, turned, false, nullptr, scores, BLOCK_KEYS);
    weigh<T>(forward.rule, tile, block.range, columns, scores);
    if (!block.not_finite) {
        product<BLOCK_KEYS, 1>(tile.rows, keys, {0, padded}, scores, values, true, tile.shrink, tile.sums, padded);
        return;
    }
    // Zero times infinity: every row takes the keys that it sees and no other.
    for (int64_t r = 0; r < tile.rows; ++r) {
        const Range own = tile.seen[r].cut(block.range).from(block.range.first);
        if (!own.empty())
            product<BLOCK_KEYS, 1>(1, own, {0, padded}, scores + r * BLOCK_KEYS, values, true, tile.shrink + r,
                                   tile.sums + r * padded, padded);
    }
}

template <class T>
void begin(const Forward<T>& forward, int64_t n, RowTile& tile) {
    const Layout& layout = forward.layout;
    const int64_t group = layout.group(), offset = layout.k_length[n] - layout.q_length[n];
    const auto row = [&](int64_t r) {
        return forward.q.at(layout.q_start[n] + (tile.first + r) / group, tile.key_head * group + (tile.first + r) % group);
    };
    const int64_t left = layout.q_length[n] * group - tile.first;
    pack_turned(lines_of(row, tile.rows, layout.head, left), ROW_PANEL, ROW_PANEL, tile.q);
    std::fill_n(tile.sums, tile.rows * layout.padded(), 0.0f);
    std::fill_n(tile.maximum, ROW_PANEL, -std::numeric_limits<float>::infinity());
    std::fill_n(&tile.weights[0][0], TILE_ROWS * WEIGHT_LANES, 0.0f);
    for (int64_t r = 0; r < tile.rows; ++r)
        tile.seen[r] = forward.rule.seen(offset + (tile.first + r) / group, layout.k_length[n]);
}

template <class T>
void finish(const Forward<T>& forward, int64_t n, const RowTile& tile) {
    const Layout& layout = forward.layout;
    constexpr float infinity = std::numeric_limits<float>::infinity(), log2_e = 0x1.715476p+0f;
    for (int64_t r = 0; r < tile.rows; ++r) {
        const int64_t query = layout.q_start[n] + (tile.first + r) / layout.group();
        const int64_t head = tile.key_head * layout.group() + (tile.first + r) % layout.group();
        const float(&w)[WEIGHT_LANES] = tile.weights[r];
        const float total = ((w[0] + w[4]) + (w[2] + w[6])) + ((w[1] + w[5]) + (w[3] + w[7]));
        T* out = forward.out.at(query, head);
        float& lse2 = forward.lse2[query * layout.heads + head];
        if (total == 0.0f) {
            std::memset(out, 0, static_cast<size_t>(layout.head) * sizeof(T));
            lse2 = infinity;
        } else {
            store_scaled(tile.sums + r * layout.padded(), 1.0f / total, layout.head, out);
            const float maximum = tile.maximum[r] == -infinity ? 0.0f : tile.maximum[r];
            lse2 = maximum * forward.rule.exponent_factor + elementary::log(total) * log2_e;
        }
    }
}

// Packs one block; the block after it is fetched on the way.
template <class T>
void pack(const Forward<T>& forward, const ForwardTask& task, KeyBlock& block) {
    const Layout& layout = forward.layout;
    const int64_t n = task.sequence, first = block.range.first, left = layout.k_length[n] - first;
    const Keys<T> k = layout.keys(forward.k, n, task.key_heads.first), v = layout.keys(forward.v, n, task.key_heads.first);
    const auto keys = lines_of([&](int64_t j) { return k.at(first + j); }, block.range.size(), layout.head, left);
    const auto values = lines_of([&](int64_t j) { return v.at(first + j); }, block.range.size(), layout.head, left);
    pack_turned(keys, BLOCK_KEYS, TILE_COLUMNS, block.keys);
    block.not_finite = pack_rows(values, BLOCK_KEYS, block.values);
}

template <class T>
void run_forward(const Forward<T>& forward, const ForwardTask& task) {
    const Layout& layout = forward.layout;
    const int64_t n = task.sequence, padded = layout.padded(), heads = task.key_heads.size();
    const bool few = task.rows.size() <= FEW_ROWS;
    const Parts parts(task.rows.size(), TILE_ROWS);
    const int64_t count = parts.count * heads;
    std::vector<RowTile> tiles(static_cast<size_t>(count));
    KeyBlock block{};
    float* scores = nullptr;
    for (Pieces pieces{nullptr};; pieces = {scratch(0, pieces.used)}) {
        block.keys = pieces.take(few ? 0 : BLOCK_KEYS * layout.head);
        block.values = pieces.take(few ? 0 : BLOCK_KEYS * padded);
        scores = pieces.take((few ? count * FEW_ROWS : TILE_ROWS) * BLOCK_KEYS);
        for (RowTile& tile : tiles) {
            tile.q = pieces.take(layout.head * ROW_PANEL);
            tile.sums = pieces.take(TILE_ROWS * padded);
        }
        if (pieces.memory != nullptr) break;
    }
    Range keys{layout.k_length[n], 0};
    for (int64_t t = 0; t < count; ++t) {
        RowTile& tile = tiles[static_cast<size_t>(t)];
        tile.key_head = task.key_heads.first + t / parts.count;
        tile.first = task.rows.first + parts.start(t % parts.count), tile.rows = parts.size(t % parts.count);
        begin(forward, n, tile);
        keys = {std::min(keys.first, tile.any().first), std::max(keys.stop, tile.any().stop)};
    }
    for (int64_t first = keys.first / BLOCK_KEYS * BLOCK_KEYS; first < keys.stop; first += BLOCK_KEYS) {
        block.range = {first, std::min(first + BLOCK_KEYS, layout.k_length[n])};
        if (few) {
            attend_few(forward, n, tiles, block.range, scores);
            continue;
        }
        pack(forward, task, block);
        for (RowTile& tile : tiles) attend(forward, tile, block, scores);
    }
    for (const RowTile& tile : tiles) finish(forward, n, tile);
}

// Speed only: enough tasks for every thread, rows with the most keys first. Heads with few rows share
// a task, so that keys that lie side by side in memory are read in one stream.
template <class T>
void run_forward(const Forward<T>& forward, int32_t threads) {
    const Layout& layout = forward.layout;
    int64_t tiles = 0;
    for (int64_t n = 0; n < layout.sequences; ++n)
        tiles += (layout.q_length[n] * layout.group() + TILE_ROWS - 1) / TILE_ROWS * layout.key_heads;
    const int64_t most = std::clamp<int64_t>(tiles / (4 * threads), 1, MOST_TILES) * TILE_ROWS;
    std::vector<ForwardTask> tasks;
    for (int64_t n = 0; n < layout.sequences; ++n) {
        const Parts parts(layout.q_length[n] * layout.group(), most);
        const int64_t together = parts.largest() <= FEW_ROWS ? std::max<int64_t>(1, tiles / threads) : 1;
        const Parts heads(layout.key_heads, std::min(together, MOST_TILES));
        for (int64_t part = parts.count - 1; part >= 0; --part)
            for (int64_t h = 0; h < heads.count; ++h)
                tasks.push_back({n, {heads.start(h), heads.start(h + 1)}, {parts.start(part), parts.start(part + 1)}});
    }
    parallel_for(static_cast<int64_t>(tasks.size()), threads,
                 [&](int64_t task) { run_forward(forward, tasks[static_cast<size_t>(task)]); });
}

}  // namespace attention
}  // namespace SAMEBITS_ISA
}  // namespace samebits
