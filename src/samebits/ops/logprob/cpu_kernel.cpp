// Log-probabilities of selected tokens on the CPU: logits exist one panel at a time, in a thread's own scratch memory.
#include "numerics/elementary/quick.h"
#include "ops/_cpu/chain.h"
#include "ops/_cpu/lane_sum.h"
#include "ops/_cpu/rows.h"

namespace {
using namespace samebits;

// Decides bits: columns of a vocabulary block. One block is one fold of the lanes.
constexpr int64_t BLOCK = LANES;
// Speed only: columns of a panel, whole blocks that stay in the second cache beside the packed rows.
constexpr int64_t PANEL = 2 * BLOCK;

constexpr float MINUS_INFINITY = -__builtin_inff();

template <class T>
struct Logits {
    int64_t rows, vocabulary, depth;
    const T *hidden, *weight;  // rows x depth, vocabulary x depth
    float* kept;               // rows x vocabulary where the caller wants them, else null
};

Floats negated(Floats a) { return mul(a, broadcast(-1.0f)); }

// Every panel of logits once: body(row, rows, column, columns, logits, stride).
template <class T, class Body>
void each_panel(const Logits<T>& all, int32_t threads, Body&& body) {
    const Parts blocks(all.rows, BLOCK_ROWS);
    const int64_t panels = (all.vocabulary + PANEL - 1) / PANEL;
    // Neighbouring tasks share a panel of the weight.
    parallel_for(blocks.count * panels, threads, [&](int64_t task) {
        const int64_t row = blocks.start(task % blocks.count), rows = blocks.size(task % blocks.count);
        const int64_t column = task / blocks.count * PANEL, columns = std::min(PANEL, all.vocabulary - column);
        float* logits = all.kept != nullptr ? all.kept + row * all.vocabulary + column : scratch(2, rows * PANEL);
        const int64_t stride = all.kept != nullptr ? all.vocabulary : PANEL;
        run_chain(Chain<T>{rows, columns, all.depth, {all.hidden + row * all.depth, all.depth, 1},
                           {all.weight + column * all.depth, 1, all.depth}, logits, stride, false});
        body(row, rows, column, columns, logits, stride);
    });
}

// The largest of a block's logits, and the folded sum of exp(logit - largest). Missing columns are -inf: they add nothing.
void block_statistics(const float* logits, float* largest, float* sum) {
    Floats lane[LANE_VECTORS], most = broadcast(MINUS_INFINITY);
    for (int j = 0; j < LANE_VECTORS; ++j) most = larger(load(logits + j * WIDTH), most);
    alignas(64) float rest[WIDTH];
    store(rest, most);
    *largest = *std::max_element(rest, rest + WIDTH);
    // A block of -inf alone sums to 0: its logits are taken as they are, for -inf minus -inf is no number.
    const Floats shift = broadcast(*largest == MINUS_INFINITY ? 0.0f : -*largest);
    for (int j = 0; j < LANE_VECTORS; ++j) lane[j] = quick::exp(add(load(logits + j * WIDTH), shift));
    *sum = fold_by_halves(lane);
}

void tail_statistics(const float* logits, int64_t columns, float* largest, float* sum) {
    alignas(64) float whole[BLOCK];
    std::copy_n(logits, columns, whole);
    std::fill(whole + columns, whole + BLOCK, MINUS_INFINITY);
    block_statistics(whole, largest, sum);
}

// l = fma(l_b, exp(m_b - m), l), blocks ascending; (z - m) - log(l), and m + log(l).
void merge(const float* maxima, const float* sums, int64_t blocks, float selected, float* logprob, float* lse) {
    float most = MINUS_INFINITY, sum = 0.0f;
    for (int64_t b = 0; b < blocks; ++b) most = maxima[b] > most ? maxima[b] : most;
    for (int64_t b = 0; b < blocks; ++b) sum = __builtin_fmaf(sums[b], elementary::exp(maxima[b] - most), sum);
    const float logarithm = elementary::log(sum);
    *logprob = (selected - most) - logarithm;
    *lse = most + logarithm;
}

template <class T>
void forward(const Logits<T>& all, const int64_t* ids, int64_t ignored, float* parts, float* logprob, float* lse,
             int32_t threads) {
    const int64_t blocks = (all.vocabulary + BLOCK - 1) / BLOCK;
    float *maxima = parts, *sums = parts + all.rows * blocks;
    each_panel(all, threads, [&](int64_t first, int64_t rows, int64_t column, int64_t columns, const float* logits,
                                 int64_t stride) {
        for (int64_t i = 0; i < rows; ++i) {
            const int64_t row = first + i, own = ids[row] - column;
            const float* z = logits + i * stride;
            // Until the row is merged, its selected logit waits in its place.
            if (own >= 0 && own < columns) logprob[row] = z[own];
            for (int64_t at = 0; at < columns; at += BLOCK) {
                const int64_t place = row * blocks + (column + at) / BLOCK;
                if (at + BLOCK <= columns) block_statistics(z + at, maxima + place, sums + place);
                else tail_statistics(z + at, columns - at, maxima + place, sums + place);
            }
        }
    });
    each_row(all.rows, blocks, threads, [&](int64_t row) {
        merge(maxima + row * blocks, sums + row * blocks, blocks, logprob[row], logprob + row, lse + row);
        if (ids[row] == ignored) logprob[row] = 0.0f;
    });
}

// dz = round(g * ((v == id) - exp(z - lse))) of one row; `dz` may lie over `logits`, from the same address on.
template <class T>
void gradient_row(const float* logits, int64_t columns, int64_t own, bool ignored, float lse, float g, T* dz) {
    if (ignored) {
        std::fill_n(dz, columns, T{});
        return;
    }
    const bool here = own >= 0 && own < columns;
    const float selected = here ? logits[own] : 0.0f;
    const Floats shift = broadcast(-lse), scale = broadcast(g);
    each_vector(columns, [&](int64_t v, int count) {
        const Floats probability = quick::exp(add(load_part(logits + v, count), shift));
        store_part(dz + v, mul(scale, add(zeros(), negated(probability))), count);
    });
    if (here) narrow(g * (1.0f - elementary::exp(selected - lse)), dz + own);
}

}  // namespace

// logprob and log-sum-exp of every row; `parts` is room for two numbers a row and block; `kept` may be null.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(logprob_forward)(int32_t format, int64_t rows, int64_t vocabulary, int64_t depth,
                                                       const void* hidden, const void* weight, const int64_t* ids,
                                                       int64_t ignored, float* kept, float* parts, float* logprob,
                                                       float* lse, int32_t threads) {
    return guarded([&] {
        with_format(format, rows, vocabulary, [&](auto zero) {
            using T = decltype(zero);
            const Logits<T> all{rows, vocabulary, depth, static_cast<const T*>(hidden), static_cast<const T*>(weight), kept};
            forward(all, ids, ignored, parts, logprob, lse, threads);
        });
    });
}

// The logits' gradient for the columns `first`, `first` + 1, ..., whose weights are given; rows of dz lie `stride` apart.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(logprob_gradient)(int32_t format, int64_t rows, int64_t columns, int64_t depth,
                                                        const void* hidden, const void* weight, const int64_t* ids,
                                                        int64_t ignored, int64_t first, const float* lse, const float* g,
                                                        void* dz, int64_t stride, int32_t threads) {
    return guarded([&] {
        with_format(format, rows, columns, [&](auto zero) {
            using T = decltype(zero);
            const Logits<T> all{rows, columns, depth, static_cast<const T*>(hidden), static_cast<const T*>(weight), nullptr};
            each_panel(all, threads, [&](int64_t top, int64_t count, int64_t column, int64_t width, const float* logits,
                                         int64_t apart) {
                for (int64_t row = top; row < top + count; ++row)
                    gradient_row(logits + (row - top) * apart, width, ids[row] - first - column, ids[row] == ignored,
                                 lse[row], g[row], static_cast<T*>(dz) + row * stride + column);
            });
        });
    });
}

// The same where the logits are known: each row of dz replaces its row of logits, from the same address on.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(logprob_gradient_in_place)(int32_t format, int64_t rows, int64_t vocabulary,
                                                                 float* logits, const int64_t* ids, int64_t ignored,
                                                                 const float* lse, const float* g, int32_t threads) {
    return guarded([&] {
        with_format(format, rows, vocabulary, [&](auto zero) {
            using T = decltype(zero);
            each_row(rows, vocabulary, threads, [&](int64_t row) {
                float* z = logits + row * vocabulary;
                gradient_row(z, vocabulary, ids[row], ids[row] == ignored, lse[row], g[row], reinterpret_cast<T*>(z));
            });
        });
    });
}
