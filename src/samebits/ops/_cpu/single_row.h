// One row times a matrix: bound by memory, so B is read once, in the order it lies in, and never packed.
#pragma once

#include "ops/_cpu/chain.h"

namespace samebits {
inline namespace SAMEBITS_ISA {

// Columns whose accumulators stay in the first cache while whole rows of B stream past.
constexpr int64_t STREAM_COLUMNS = 2048;

// B has its columns contiguous: sum[j] += a[k] * b[k][j], four rows of B at a time.
template <class T>
void stream_rows(int64_t columns, int64_t depth, const float* a, View<T> b, float* sum) {
    int64_t k = 0;
    for (; k + 4 <= depth; k += 4) {
        const T *b0 = b.at(k, 0), *b1 = b.at(k + 1, 0), *b2 = b.at(k + 2, 0), *b3 = b.at(k + 3, 0);
        const Floats a0 = broadcast(a[k]), a1 = broadcast(a[k + 1]), a2 = broadcast(a[k + 2]), a3 = broadcast(a[k + 3]);
        int64_t j = 0;
        for (; j + WIDTH <= columns; j += WIDTH) {
            Floats value = fma(a0, load(b0 + j), load(sum + j));
            value = fma(a1, load(b1 + j), value);
            value = fma(a2, load(b2 + j), value);
            store(sum + j, fma(a3, load(b3 + j), value));
        }
        if (j < columns) {
            const int count = static_cast<int>(columns - j);
            Floats value = fma(a0, load_some(b0 + j, count), load_some(sum + j, count));
            value = fma(a1, load_some(b1 + j, count), value);
            value = fma(a2, load_some(b2 + j, count), value);
            store_some(sum + j, fma(a3, load_some(b3 + j, count), value), count);
        }
    }
    for (; k < depth; ++k) {
        const Floats value = broadcast(a[k]);
        for (int64_t j = 0; j < columns; j += WIDTH) {
            const int count = static_cast<int>(std::min<int64_t>(WIDTH, columns - j));
            store_some(sum + j, fma(value, load_some(b.at(k, j), count), load_some(sum + j, count)), count);
        }
    }
}

// B has its rows contiguous (a weight used by `linear`): WIDTH columns at a time, turned in registers.
template <class T>
Floats turned_columns(int count, int64_t depth, const float* a, View<T> b, int64_t column, Floats sum) {
    for (int64_t k = 0; k < depth; k += WIDTH) {
        const int steps = static_cast<int>(std::min<int64_t>(WIDTH, depth - k));
        Floats block[WIDTH];
        if (steps == WIDTH && count == WIDTH) {
            for (int i = 0; i < WIDTH; ++i) block[i] = load(b.at(k, column + i));
        } else {
            for (int i = 0; i < WIDTH; ++i) block[i] = i < count ? load_some(b.at(k, column + i), steps) : zeros();
        }
        transpose(block);
        if (steps == WIDTH) {
            for (int i = 0; i < WIDTH; ++i) sum = fma(broadcast(a[k + i]), block[i], sum);
        } else {
            for (int i = 0; i < steps; ++i) sum = fma(broadcast(a[k + i]), block[i], sum);
        }
    }
    return sum;
}

#if defined(SAMEBITS_NEON)
// Speed only: bytes by which every column is fetched ahead of its sum, into the second cache and into the first. The
// processor's own fetching stops at the end of a page: every page of every column would begin with a wait.
constexpr int64_t FAR_AHEAD = 4096, NEAR_AHEAD = 2048;
constexpr int64_t FETCHED_STEPS = 32;  // elements of a column from one fetch to the next: one or two cache lines
constexpr int64_t LINE_BYTES = 64;
// Speed only: most columns of a task. Where one ends, what was fetched of the columns behind it is lost to this thread.
constexpr int64_t TASK_COLUMNS = 512;

// A thread's share of the columns in tasks of one length.
inline int64_t even_columns(int64_t share) {
    const int64_t tasks = (share + TASK_COLUMNS - 1) / TASK_COLUMNS;
    return ((share + tasks - 1) / tasks + WIDTH - 1) / WIDTH * WIDTH;
}

// WIDTH columns from `first` on, with `stride` between two of them, each `depth` long.
template <class T>
struct Columns {
    const T* first;
    int64_t stride, depth;

    // Fetches what the sums will take after `ahead` more elements; behind the end of these columns the next WIDTH begin. It
    // need not exist, for it is not read.
    template <int CACHE>
    [[gnu::always_inline]] void fetch(int64_t k, int64_t ahead) const {
        const int64_t later = k + ahead;
        const T* place = later < depth ? first + later : first + WIDTH * stride + (later - depth);
        for (int64_t i = 0; i < WIDTH; ++i)
            for (int64_t line = 0; line < FETCHED_STEPS; line += LINE_BYTES / sizeof(T))
                __builtin_prefetch(place + i * stride + line, 0, CACHE);
    }
};

// The first WIDTH columns of B, the same chains as above.
template <class T>
void turned_ahead(int64_t depth, const float* a, View<T> b, float* sums) {
    const Columns<T> columns{b.at(0, 0), b.column, depth};
    const int64_t far = std::min<int64_t>(FAR_AHEAD / sizeof(T), depth);
    const int64_t near = std::min<int64_t>(NEAR_AHEAD / sizeof(T), depth);
    Floats sum = load(sums);
    int64_t start = 0;
    for (; start + FETCHED_STEPS <= depth; start += FETCHED_STEPS) {
        columns.template fetch<3>(start, near);
        columns.template fetch<2>(start, far);
#pragma GCC unroll 8
        for (int64_t k = start; k < start + FETCHED_STEPS; k += WIDTH) {
            Floats block[WIDTH];
            for (int i = 0; i < WIDTH; ++i) block[i] = load(columns.first + i * columns.stride + k);
            transpose(block);
            const Floats left = load(a + k);
            sum = fma_lane<0>(left, block[0], sum);
            sum = fma_lane<1>(left, block[1], sum);
            sum = fma_lane<2>(left, block[2], sum);
            sum = fma_lane<3>(left, block[3], sum);
        }
    }
    const View<T> rest{b.at(start, 0), b.row, b.column};
    store(sums, turned_columns(WIDTH, depth - start, a + start, rest, 0, sum));
}
#endif

// False where B has no contiguous axis: the general path packs it.
template <class T, class Out>
bool single_row(int64_t n, int64_t k, View<T> a, View<T> b, const T* bias, float* resumed, Out* out, int32_t threads) {
    const bool rows_stream = b.column == 1, columns_turn = b.row == 1;
    if (!rows_stream && !columns_turn) return false;
    float* row = scratch(0, k);
    for (int64_t i = 0; i < k; ++i) row[i] = widen(*a.at(0, i));
    const int64_t share = ((n + threads - 1) / threads + WIDTH - 1) / WIDTH * WIDTH;
#if defined(SAMEBITS_NEON)
    const int64_t width = std::min(share, rows_stream ? STREAM_COLUMNS : even_columns(share));
#else
    const int64_t width = rows_stream ? std::min(share, STREAM_COLUMNS) : std::min<int64_t>(share, 16 * WIDTH);
#endif
    parallel_for((n + width - 1) / width, threads, [&](int64_t task) {
        const int64_t first = task * width, columns = std::min(width, n - first);
        float* sum = resumed != nullptr ? resumed + first : scratch(1, width);
        if (resumed == nullptr) std::fill_n(sum, columns, 0.0f);
        if (rows_stream) {
            stream_rows(columns, k, row, View<T>{b.at(0, first), b.row, b.column}, sum);
        } else {
            int64_t j = 0;
#if defined(SAMEBITS_NEON)
            for (; j + WIDTH <= columns; j += WIDTH)
                turned_ahead(k, row, View<T>{b.at(0, first + j), b.row, b.column}, sum + j);
#endif
            for (; j < columns; j += WIDTH) {
                const int count = static_cast<int>(std::min<int64_t>(WIDTH, columns - j));
                store_some(sum + j, turned_columns(count, k, row, b, first + j, load_some(sum + j, count)), count);
            }
        }
        if (resumed != nullptr) return;
        for (int64_t j = 0; j < columns; j += WIDTH) {
            const int count = static_cast<int>(std::min<int64_t>(WIDTH, columns - j));
            Floats value = load_some(sum + j, count);
            if (bias != nullptr) value = add(value, load_some(bias + first + j, count));
            store_some(out + first + j, value, count);
        }
    });
    return true;
}

}  // namespace SAMEBITS_ISA
}  // namespace samebits
