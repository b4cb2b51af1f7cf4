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
// Speed only: columns of B that are taken together. A chain waits for each of its products; a wide vector hides that by
// its width, a narrow one needs a second chain beside it. More of them read from more places than memory serves well.
constexpr int64_t TURNED_COLUMNS = 2 * WIDTH;
constexpr int64_t LINE_BYTES = 64;
// Speed only: lines by which the first four columns are ahead of the others. Columns a power of two apart share the few
// places of one set in the first cache: at different lines they do not meet there.
constexpr int64_t LINES_APART = 8;

// sum[lane] for WIDTH columns and one cache line of each.
template <class T>
[[gnu::always_inline]] inline Floats turned_line(const float* a, View<T> b, Floats sum) {
#pragma GCC unroll 8
    for (int64_t k = 0; k < LINE_BYTES / static_cast<int64_t>(sizeof(T)); k += WIDTH) {
        Floats block[WIDTH];
        for (int i = 0; i < WIDTH; ++i) block[i] = load(b.at(k, i));
        transpose(block);
        const Floats left = load(a + k);
        sum = fma_lane<0>(left, block[0], sum);
        sum = fma_lane<1>(left, block[1], sum);
        sum = fma_lane<2>(left, block[2], sum);
        sum = fma_lane<3>(left, block[3], sum);
    }
    return sum;
}

// The first TURNED_COLUMNS columns of B: the same chains as above, two side by side.
template <class T>
void turned_together(int64_t depth, const float* a, View<T> b, float* sums) {
    constexpr int64_t LINE = LINE_BYTES / sizeof(T);
    const int64_t lines = depth / LINE;
    Floats early = load(sums), late = load(sums + WIDTH);
    const auto step = [&](Floats sum, int64_t line, int64_t column) {
        return turned_line(a + line * LINE, View<T>{b.at(line * LINE, column), b.row, b.column}, sum);
    };
    const int64_t apart = std::min(LINES_APART, lines);
    for (int64_t line = 0; line < apart; ++line) early = step(early, line, 0);
    for (int64_t line = apart; line < lines; ++line) {
        early = step(early, line, 0);
        late = step(late, line - apart, WIDTH);
    }
    for (int64_t line = lines - apart; line < lines; ++line) late = step(late, line, WIDTH);
    const View<T> rest{b.at(lines * LINE, 0), b.row, b.column};
    store(sums, turned_columns(WIDTH, depth - lines * LINE, a + lines * LINE, rest, 0, early));
    store(sums + WIDTH, turned_columns(WIDTH, depth - lines * LINE, a + lines * LINE, rest, WIDTH, late));
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
    const int64_t width = rows_stream ? std::min(share, STREAM_COLUMNS) : std::min<int64_t>(share, 16 * WIDTH);
    parallel_for((n + width - 1) / width, threads, [&](int64_t task) {
        const int64_t first = task * width, columns = std::min(width, n - first);
        float* sum = resumed != nullptr ? resumed + first : scratch(1, width);
        if (resumed == nullptr) std::fill_n(sum, columns, 0.0f);
        if (rows_stream) {
            stream_rows(columns, k, row, View<T>{b.at(0, first), b.row, b.column}, sum);
        } else {
            int64_t j = 0;
#if defined(SAMEBITS_NEON)
            for (; j + TURNED_COLUMNS <= columns; j += TURNED_COLUMNS) 
                turned_together(k, row, View<T>{b.at(0, first + j), b.row, b.column}, sum + j);
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
