// Attention backward on the CPU: weights are computed again from the scores; memory grows with the length alone.
//
// A task holds a run of keys of one sequence and key head, packed, and takes a run of rows over them: heads of the group
// ascending, queries ascending, keys ascending. That is the order of all three sums, so one task can make all three; where
// heads are fewer than threads, tasks with fewer queries make dq and tasks with fewer keys make dk and dv.
#pragma once

#include <vector>

#include "ops/_cpu/lane_sum.h"
#include "ops/attention/cpu_tiles.h"

namespace samebits {
inline namespace SAMEBITS_ISA {
namespace attention {

// Speed only: tiles of queries whose pairs with a block of keys are summed to dk and dv together.
constexpr int64_t STRIP_TILES = 128 / TILE_ROWS;
constexpr int64_t STRIP_ROWS = STRIP_TILES * TILE_ROWS;

template <class T>
struct Backward {
    Layout layout;
    Rule rule;
    float gradient_factor;
    Heads<const T> dout, q, k, v;
    const T* out;
    const float* lse2;
    float* delta;
    Heads<T> dq, dk, dv;
};

struct BackwardTask {
    int64_t sequence, key_head;
    Range queries, keys;
    bool makes_dq, makes_dk_dv;
};

struct BackwardBlock {
    Range range;
    float *keys_turned, *values_turned, *keys, *dk, *dv;
    bool not_finite;
};

// Consecutive queries of one head.
struct Strip {
    int64_t first, rows, head;
    Range seen[STRIP_ROWS];
    float lse2[STRIP_ROWS], delta[STRIP_ROWS];
    float *q_turned, *dout_turned, *q, *dout, *dq;
    float *weights, *dscores;  // rows x BLOCK_KEYS, of one block
    bool not_finite;
    Range any() const { return {seen[0].first, seen[rows - 1].stop}; }
};

// Weights and the scores' gradients of one row and the columns of a block, rounded as the sums take them; unseen pairs +0.
template <class T>
void weigh(const Rule& rule, float lse2, float delta, Range seen, Range columns, float* weights, float* dscores) {
    const Floats factor = broadcast(rule.exponent_factor), minus_lse2 = broadcast(-lse2), minus_delta = broadcast(-delta);
    for (int64_t j = 0; j < BLOCK_KEYS; j += WIDTH) {
        Floats weight = zeros(), dscore = zeros();
        if (j >= columns.first && j < columns.stop) {
            Floats z = load(weights + j), bend = zeros();
            if (rule.capped) {
                bend = elementary::tanh(mul(z, broadcast(rule.score_factor)));
                z = mul(bend, broadcast(rule.cap));
            }
            weight = quick::exp2(fma(z, factor, minus_lse2));
            dscore = mul(weight, add(load(dscores + j), minus_delta));
            if (rule.capped) dscore = mul(dscore, fma(mul(bend, broadcast(-1.0f)), bend, broadcast(1.0f)));
            if (j < seen.first || j + WIDTH > seen.stop) {
                weight = keep(seen.from(j), weight, zeros());
                dscore = keep(seen.from(j), dscore, zeros());
            }
        }
        store(weights + j, rounded_to<T>(weight));
        store(dscores + j, rounded_to<T>(dscore));
    }
}

// All pairs of a strip and a block.
template <class T>
void weigh_strip(const Backward<T>& backward, Strip& strip, const BackwardBlock& block) {
    const int64_t head = backward.layout.head;
    for (int64_t first = 0; first < strip.rows; first += TILE_ROWS) {
        const int64_t rows = std::min<int64_t>(TILE_ROWS, strip.rows - first), panel = first / TILE_ROWS * ROW_PANEL * head;
        const Range any{strip.seen[first].first, strip.seen[first + rows - 1].stop};
        const Range keys = any.cut(block.range).from(block.range.first);
        const Range columns = keys.empty() ? Range{0, 0} : whole_panels(keys);
        float *weights = strip.weights + first * BLOCK_KEYS, *dscores = strip.dscores + first * BLOCK_KEYS;
        product<1, ROW_PANEL>(rows, {0, head}, columns, strip.q_turned + panel, {block.keys_turned, head}, false, nullptr,
                              weights, BLOCK_KEYS);
        product<1, ROW_PANEL>(rows, {0, head}, columns, strip.dout_turned + panel, {block.values_turned, head}, false,
                              nullptr, dscores, BLOCK_KEYS);
        for (int64_t r = 0; r < rows; ++r)
            weigh<T>(backward.rule, strip.lse2[first + r], strip.delta[first + r],
                     strip.seen[first + r].from(block.range.first), columns, weights + r * BLOCK_KEYS,
                     dscores + r * BLOCK_KEYS);
    }
}

// dq of the strip's rows: the chain over keys, resumed. Keys that are not finite reach only the rows that see them.
inline void add_to_dq(Strip& strip, const BackwardBlock& block, int64_t padded) {
    const int64_t most = block.not_finite ? 1 : TILE_ROWS;
    for (int64_t first = 0; first < strip.rows; first += most) {
        const int64_t rows = std::min(most, strip.rows - first);
        const Range any{strip.seen[first].first, strip.seen[first + rows - 1].stop};
        const Range keys = any.cut(block.range).from(block.range.first);
        if (!keys.empty())
            product<BLOCK_KEYS, 1>(rows, keys, {0, padded}, strip.dscores + first * BLOCK_KEYS, {block.keys, BLOCK_KEYS},
                                   true, nullptr, strip.dq + first * padded, padded);
    }
}

// dk and dv of the block's keys: chains over the strip's rows, resumed. Rows that are not finite reach what they see.
inline void add_to_dk_dv(const Strip& strip, BackwardBlock& block, int64_t padded) {
    const int64_t most = strip.not_finite ? 1 : TILE_ROWS;
    const Parts parts(block.range.size(), most);
    Range rows{0, 0};
    for (int64_t part = 0; part < parts.count; ++part) {
        const int64_t first = parts.start(part), stop = parts.start(part + 1), at = block.range.first;
        // Both ends of what a row sees grow with the row, so the rows that see some of these keys are consecutive.
        while (rows.first < strip.rows && strip.seen[rows.first].stop <= at + first) ++rows.first;
        while (rows.stop < strip.rows && strip.seen[rows.stop].first < at + stop) ++rows.stop;
        if (rows.empty()) continue;
        product<1, BLOCK_KEYS>(stop - first, rows, {0, padded}, strip.weights + first, {strip.dout, STRIP_ROWS}, true,
                               nullptr, block.dv + first * padded, padded);
        product<1, BLOCK_KEYS>(stop - first, rows, {0, padded}, strip.dscores + first, {strip.q, STRIP_ROWS}, true, nullptr,
                               block.dk + first * padded, padded);
    }
}

template <class T>
void begin(const Backward<T>& backward, const BackwardTask& task, Strip& strip) {
    const Layout& layout = backward.layout;
    const int64_t n = task.sequence, token = layout.q_start[n] + strip.first;
    const auto q = [&](int64_t r) { return backward.q.at(token + r, strip.head); };
    const auto dout = [&](int64_t r) { return backward.dout.at(token + r, strip.head); };
    for (int64_t first = 0; first < strip.rows; first += TILE_ROWS) {
        const int64_t rows = std::min<int64_t>(TILE_ROWS, strip.rows - first), panel = first / TILE_ROWS * ROW_PANEL;
        pack_turned(lines_of([&](int64_t r) { return q(first + r); }, rows, layout.head), ROW_PANEL, ROW_PANEL,
                    strip.q_turned + panel * layout.head);
        pack_turned(lines_of([&](int64_t r) { return dout(first + r); }, rows, layout.head), ROW_PANEL, ROW_PANEL,
                    strip.dout_turned + panel * layout.head);
    }
    strip.not_finite = false;
    if (task.makes_dk_dv) {
        strip.not_finite = pack_rows(lines_of(q, strip.rows, layout.head), STRIP_ROWS, strip.q);
        strip.not_finite |= pack_rows(lines_of(dout, strip.rows, layout.head), STRIP_ROWS, strip.dout);
    }
    std::fill_n(strip.dq, strip.rows * layout.padded(), 0.0f);
    for (int64_t r = 0; r < strip.rows; ++r) {
        const int64_t place = (token + r) * layout.heads + strip.head;
        strip.lse2[r] = backward.lse2[place], strip.delta[r] = backward.delta[place];
        strip.seen[r] = backward.rule.seen(layout.k_length[n] - layout.q_length[n] + strip.first + r, layout.k_length[n]);
    }
}

template <class T>
void begin(const Backward<T>& backward, const BackwardTask& task, BackwardBlock& block) {
    const Layout& layout = backward.layout;
    const int64_t first = block.range.first, count = block.range.size();
    const Keys<T> k = layout.keys(backward.k, task.sequence, task.key_head);
    const Keys<T> v = layout.keys(backward.v, task.sequence, task.key_head);
    const auto keys = lines_of([&](int64_t j) { return k.at(first + j); }, count, layout.head);
    const auto values = lines_of([&](int64_t j) { return v.at(first + j); }, count, layout.head);
    pack_turned(keys, BLOCK_KEYS, TILE_COLUMNS, block.keys_turned);
    pack_turned(values, BLOCK_KEYS, TILE_COLUMNS, block.values_turned);
    if (task.makes_dq) block.not_finite = pack_rows(keys, BLOCK_KEYS, block.keys);
    if (task.makes_dk_dv) {
        std::fill_n(block.dk, BLOCK_KEYS * layout.padded(), 0.0f);
        std::fill_n(block.dv, BLOCK_KEYS * layout.padded(), 0.0f);
    }
}

inline void take_memory(const Layout& layout, const BackwardTask& task, Strip& strip, std::vector<BackwardBlock>& blocks) {
    const int64_t head = layout.head, padded = layout.padded();
    for (Pieces pieces{nullptr};; pieces = {scratch(0, pieces.used)}) {
        strip.weights = pieces.take(STRIP_ROWS * BLOCK_KEYS);
        strip.dscores = pieces.take(STRIP_ROWS * BLOCK_KEYS);
        for (float** turned : {&strip.q_turned, &strip.dout_turned}) *turned = pieces.take(STRIP_TILES * ROW_PANEL * head);
        for (float** plain : {&strip.q, &strip.dout, &strip.dq}) *plain = pieces.take(STRIP_ROWS * padded);
        for (BackwardBlock& block : blocks) {
            block.keys_turned = pieces.take(BLOCK_KEYS * head);
            block.values_turned = pieces.take(BLOCK_KEYS * head);
            if (task.makes_dq) block.keys = pieces.take(BLOCK_KEYS * padded);
            if (task.makes_dk_dv) block.dk = pieces.take(BLOCK_KEYS * padded), block.dv = pieces.take(BLOCK_KEYS * padded);
        }
        if (pieces.memory != nullptr) return;
    }
}

template <class T>
void run_strip(const Backward<T>& backward, const BackwardTask& task, Strip& strip, std::vector<BackwardBlock>& blocks) {
    const Layout& layout = backward.layout;
    begin(backward, task, strip);
    for (BackwardBlock& block : blocks) {
        if (strip.any().cut(block.range).empty()) continue;
        weigh_strip(backward, strip, block);
        if (task.makes_dq) add_to_dq(strip, block, layout.padded());
        if (task.makes_dk_dv) add_to_dk_dv(strip, block, layout.padded());
    }
    for (int64_t r = 0; r < strip.rows && task.makes_dq; ++r)
        store_scaled(strip.dq + r * layout.padded(), backward.gradient_factor, layout.head,
                     backward.dq.at(layout.q_start[task.sequence] + strip.first + r, strip.head));
}

template <class T>
void run_backward(const Backward<T>& backward, const BackwardTask& task) {
    const Layout& layout = backward.layout;
    std::vector<BackwardBlock> blocks;
    for (int64_t first = task.keys.first; first < task.keys.stop; first += BLOCK_KEYS)
        blocks.push_back({{first, std::min(first + BLOCK_KEYS, task.keys.stop)}, {}, {}, {}, {}, {}, false});
    Strip strip;
    take_memory(layout, task, strip, blocks);
    for (BackwardBlock& block : blocks) begin(backward, task, block);
    for (int64_t member = 0; member < layout.group(); ++member) {
        strip.head = task.key_head * layout.group() + member;
        for (strip.first = task.queries.first; strip.first < task.queries.stop; strip.first += STRIP_ROWS) {
            strip.rows = std::min(STRIP_ROWS, task.queries.stop - strip.first);
            run_strip(backward, task, strip, blocks);
        }
    }
    if (!task.makes_dk_dv) return;
    for (const BackwardBlock& block : blocks) {
        for (int64_t j = 0; j < block.range.size(); ++j) {
            const int64_t token = layout.k_start[task.sequence] + block.range.first + j, at = j * layout.padded();
            store_scaled(block.dk + at, backward.gradient_factor, layout.head, backward.dk.at(token, task.key_head));
            store_scaled(block.dv + at, 1.0f, layout.head, backward.dv.at(token, task.key_head));
        }
    }
}

// Speed only: whole heads where there are enough of them, else queries for dq and keys for dk and dv shared out.
inline std::vector<BackwardTask> backward_tasks(const Layout& layout, int32_t threads) {
    std::vector<BackwardTask> tasks;
    const int64_t lines = layout.sequences * layout.key_heads;
    const bool whole = threads == 1 || lines >= 4 * threads || (lines >= threads && lines % threads == 0);
    for (int64_t n = 0; n < layout.sequences; ++n) {
        const Range queries{0, layout.q_length[n]}, keys{0, layout.k_length[n]};
        const Parts query_parts(queries.stop, rounded_up(std::max<int64_t>(queries.stop / (4 * threads), 1), STRIP_ROWS));
        const int64_t share = rounded_up(std::max<int64_t>(keys.stop / (4 * threads), 1), BLOCK_KEYS);
        for (int64_t head = 0; head < layout.key_heads; ++head) {
            if (whole) {
                tasks.push_back({n, head, queries, keys, true, true});
                continue;
            }
            for (int64_t part = query_parts.count - 1; part >= 0; --part)
                tasks.push_back({n, head, {query_parts.start(part), query_parts.start(part + 1)}, keys, true, false});
            for (int64_t first = 0; first < keys.stop; first += share)
                tasks.push_back({n, head, queries, {first, std::min(first + share, keys.stop)}, false, true});
        }
    }
    return tasks;
}

// delta = the sum over a head of dout * out, in the order of lanes.
template <class T>
void make_delta(const Backward<T>& backward, int64_t tokens, int32_t threads) {
    const Layout& layout = backward.layout;
    each_row(tokens * layout.heads, layout.head, threads, [&](int64_t row) {
        const T *dout = backward.dout.at(row / layout.heads, row % layout.heads), *out = backward.out + row * layout.head;
        backward.delta[row] = lane_sum(layout.head, [&](Floats sum, int64_t d, int count) {
            return fma(load_part(dout + d, count), load_part(out + d, count), sum);
        });
    });
}

template <class T>
void run_backward(const Backward<T>& backward, int64_t tokens, int32_t threads) {
    make_delta(backward, tokens, threads);
    const std::vector<BackwardTask> tasks = backward_tasks(backward.layout, threads);
    parallel_for(static_cast<int64_t>(tasks.size()), threads,
                 [&](int64_t task) { run_backward(backward, tasks[static_cast<size_t>(task)]); });
}

}  // namespace attention
}  // namespace SAMEBITS_ISA
}  // namespace samebits
