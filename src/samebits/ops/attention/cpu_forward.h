// Attention forward on the CPU: a task is a run of rows (queries times the heads of a group) of one sequence and key head.
// It takes split after split of keys and in each block after block, packs it once, and carries every tile of its rows
// over it. Where there are fewer tasks than threads, threads share the splits of a task.
#pragma once

#include <vector>

#include "ops/attention/cpu_decode.h"
#include "ops/attention/cpu_splits.h"

namespace samebits {
inline namespace SAMEBITS_ISA {
namespace attention {

// Speed only: tiles of a task, which share the packing of a block of keys.
constexpr int64_t MOST_TILES = 64;

struct ForwardTask {
    int64_t sequence;
    Range key_heads, rows;  // several heads where the rows are few, else one
    bool few() const { return rows.size() <= FEW_ROWS; }
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
    start_split(tile, layout.padded());
    if (tile.past != nullptr) RowState::in(tile.past).start(tile.rows, layout.padded());
    for (int64_t r = 0; r < tile.rows; ++r)
        tile.seen[r] = forward.rule.seen(offset + (tile.first + r) / group, layout.k_length[n]);
}

template <class T>
void finish(const Forward<T>& forward, int64_t n, const RowTile& tile, RowState state) {
    const Layout& layout = forward.layout;
    constexpr float infinity = std::numeric_limits<float>::infinity(), log2_e = 0x1.715476p+0f;
    for (int64_t r = 0; r < tile.rows; ++r) {
        const int64_t query = layout.q_start[n] + (tile.first + r) / layout.group();
        const int64_t head = tile.key_head * layout.group() + (tile.first + r) % layout.group();
        const float total = state.total[r];
        T* out = forward.out.at(query, head);
        float& lse2 = forward.lse2[query * layout.heads + head];
        if (total == 0.0f) {
            std::memset(out, 0, static_cast<size_t>(layout.head) * sizeof(T));
            lse2 = infinity;
        } else {
            store_scaled(state.sums + r * layout.padded(), 1.0f / total, layout.head, out);
            const float maximum = state.maximum[r] == -infinity ? 0.0f : state.maximum[r];
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

// A task's tiles at their start, all keys that they see, and memory for one block of them.
struct ForwardWork {
    std::vector<RowTile> tiles;
    KeyBlock block;
    float* scores;
    Range keys;
};

template <class T>
ForwardWork prepare(const Forward<T>& forward, const ForwardTask& task) {
    const Layout& layout = forward.layout;
    const int64_t n = task.sequence, padded = layout.padded();
    const bool few = task.few(), several = layout.k_length[n] > SPLIT_KEYS;
    const Parts parts(task.rows.size(), TILE_ROWS);
    const int64_t count = parts.count * task.key_heads.size();
    ForwardWork work{std::vector<RowTile>(static_cast<size_t>(count)), {}, nullptr, {layout.k_length[n], 0}};
    for (Pieces pieces{nullptr};; pieces = {scratch(0, pieces.used)}) {
        work.block.keys = pieces.take(few ? 0 : BLOCK_KEYS * layout.head);
        work.block.values = pieces.take(few ? 0 : BLOCK_KEYS * padded);
        work.scores = pieces.take((few ? count * FEW_ROWS : TILE_ROWS) * BLOCK_KEYS);
        for (RowTile& tile : work.tiles) {
            tile.q = pieces.take(layout.head * ROW_PANEL);
            tile.sums = pieces.take(TILE_ROWS * padded);
            tile.past = several ? pieces.take(RowState::floats(padded)) : nullptr;
        }
        if (pieces.memory != nullptr) break;
    }
    for (int64_t t = 0; t < count; ++t) {
        RowTile& tile = work.tiles[static_cast<size_t>(t)];
        tile.key_head = task.key_heads.first + t / parts.count;
        tile.first = task.rows.first + parts.start(t % parts.count), tile.rows = parts.size(t % parts.count);
        begin(forward, n, tile);
        work.keys = {std::min(work.keys.first, tile.any().first), std::max(work.keys.stop, tile.any().stop)};
    }
    return work;
}

// Keys of one split, block by block, into the tiles' own sums.
template <class T>
void walk(const Forward<T>& forward, const ForwardTask& task, ForwardWork& work, Range keys) {
    const int64_t n = task.sequence;
    for (int64_t first = keys.first / BLOCK_KEYS * BLOCK_KEYS; first < keys.stop; first += BLOCK_KEYS) {
        work.block.range = {first, std::min(first + BLOCK_KEYS, forward.layout.k_length[n])};
        if (task.few()) {
            attend_few(forward, n, work.tiles, work.block.range, work.scores);
            continue;
        }
        pack(forward, task, work.block);
        for (RowTile& tile : work.tiles) attend(forward, tile, work.block, work.scores);
    }
}

template <class T>
void run_forward(const Forward<T>& forward, const ForwardTask& task) {
    const int64_t padded = forward.layout.padded();
    ForwardWork work = prepare(forward, task);
    for (int64_t first = work.keys.first / SPLIT_KEYS * SPLIT_KEYS; first < work.keys.stop; first += SPLIT_KEYS) {
        const Range split{first, first + SPLIT_KEYS};
        walk(forward, task, work, work.keys.cut(split));
        for (RowTile& tile : work.tiles) {
            if (tile.past == nullptr || tile.any().cut(split).empty()) continue;
            merge(RowState::in(tile.past), end_split(tile), tile.rows, padded, forward.rule.exponent_factor);
            start_split(tile, padded);
        }
    }
    for (RowTile& tile : work.tiles)
        finish(forward, task.sequence, tile, tile.past == nullptr ? end_split(tile) : RowState::in(tile.past));
}

// Threads that share a task: each walks a split and leaves its tiles' states, then one merges them left to right.
struct SharedSplits {
    const ForwardTask* task;
    int64_t splits, tiles, floats, first;
    float* state(std::vector<float>& states, int64_t split, int64_t tile) const {
        return states.data() + first + (split * tiles + tile) * floats;
    }
};

template <class T>
void run_shared(const Forward<T>& forward, const std::vector<ForwardTask>& tasks, int32_t threads) {
    const int64_t padded = forward.layout.padded();
    std::vector<SharedSplits> shares;
    std::vector<std::pair<size_t, int64_t>> walks;
    int64_t used = 0;
    for (const ForwardTask& task : tasks) {
        const int64_t splits = (forward.layout.k_length[task.sequence] + SPLIT_KEYS - 1) / SPLIT_KEYS;
        const int64_t shared = task.few() && splits > 1 ? splits : 0, tiles = task.key_heads.size();
        shares.push_back({&task, shared, tiles, RowState::floats(padded), used});
        used += shared * tiles * RowState::floats(padded);
        for (int64_t split = 0; split < std::max<int64_t>(shared, 1); ++split) walks.push_back({shares.size() - 1, split});
    }
    std::vector<float> states(static_cast<size_t>(used));
    parallel_for(static_cast<int64_t>(walks.size()), threads, [&](int64_t number) {
        const auto [index, split] = walks[static_cast<size_t>(number)];
        const SharedSplits& share = shares[index];
        if (share.splits == 0) return run_forward(forward, *share.task);
        ForwardWork work = prepare(forward, *share.task);
        walk(forward, *share.task, work, work.keys.cut({split * SPLIT_KEYS, (split + 1) * SPLIT_KEYS}));
        for (int64_t t = 0; t < share.tiles; ++t) {
            RowTile& tile = work.tiles[static_cast<size_t>(t)];
            RowState::in(share.state(states, split, t)).copy(end_split(tile), tile.rows, padded);
        }
    });
    if (used == 0) return;
    parallel_for(static_cast<int64_t>(shares.size()), threads, [&](int64_t number) {
        const SharedSplits& share = shares[static_cast<size_t>(number)];
        if (share.splits == 0) return;
        ForwardWork work = prepare(forward, *share.task);
        for (int64_t t = 0; t < share.tiles; ++t) {
            RowTile& tile = work.tiles[static_cast<size_t>(t)];
            const RowState past = RowState::in(tile.past);
            for (int64_t split = 0; split < share.splits; ++split)
                merge(past, RowState::in(share.state(states, split, t)), tile.rows, padded, forward.rule.exponent_factor);
            finish(forward, share.task->sequence, tile, past);
        }
    });
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
    if (static_cast<int64_t>(tasks.size()) < threads) return run_shared(forward, tasks, threads);
    parallel_for(static_cast<int64_t>(tasks.size()), threads,
                 [&](int64_t task) { run_forward(forward, tasks[static_cast<size_t>(task)]); });
}

}  // namespace attention
}  // namespace SAMEBITS_ISA
}  // namespace samebits
