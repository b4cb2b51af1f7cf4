// The embedding on the CPU: rows are copied; in the gradient a thread owns columns, and so every chain in them.
#include <cstring>

#include "ops/_cpu/lane_sum.h"
#include "ops/_cpu/rows.h"

namespace {
using namespace samebits;

// Speed only: fewer columns than these are not worth a task of their own.
constexpr int64_t LEAST_COLUMNS = 64;

// Speed only: the table's rows lie anywhere, so each is fetched while the rows this far before it are copied.
constexpr int64_t ROWS_AHEAD = 2;
constexpr int64_t CACHE_LINE = 64;

// Positions ascending for every column.
template <class T>
void accumulate(int64_t rows, int64_t width, int64_t padding, const int64_t* ids, const T* dy, float* accumulator,
                int32_t threads) {
    const int64_t share = ((width + threads - 1) / threads + WIDTH - 1) / WIDTH * WIDTH;
    const int64_t columns = std::max(share, LEAST_COLUMNS);
    parallel_for((width + columns - 1) / columns, threads, [&](int64_t task) {
        const int64_t first = task * columns, count_here = std::min(columns, width - first);
        for (int64_t row = 0; row < rows; ++row) {
            if (ids[row] == padding) continue;
            float* sum = accumulator + ids[row] * width + first;
            const T* term = dy + row * width + first;
            each_vector(count_here, [&](int64_t h, int count) {
                const Floats before = load_part(static_cast<const float*>(sum) + h, count);
                store_part(sum + h, add(before, load_part(term + h, count)), count);
            });
        }
    });
}

}  // namespace

// y[m] = weight[ids[m]], rows of any type given by their bytes. The ids have been checked.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(embedding_forward)(int64_t rows, int64_t bytes, const int64_t* ids,
                                                         const char* weight, char* y, int32_t threads) {
    return guarded([&] {
        each_row(rows, bytes, threads, [&](int64_t row) {
            const char* later = weight + ids[std::min(row + ROWS_AHEAD, rows - 1)] * bytes;
            for (int64_t byte = 0; byte < bytes; byte += CACHE_LINE) __builtin_prefetch(later + byte);
            std::memcpy(y + row * bytes, weight + ids[row] * bytes, static_cast<size_t>(bytes));
        });
    });
}

// accumulator[ids[m]] = accumulator[ids[m]] + dy[m], m ascending, but for ids[m] == padding: chains that can be resumed.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(embedding_accumulate)(int32_t format, int64_t rows, int64_t width, int64_t padding,
                                                            const int64_t* ids, const void* dy, float* accumulator,
                                                            int32_t threads) {
    return guarded([&] {
        with_format(format, rows, width, [&](auto zero) {
            accumulate(rows, width, padding, ids, static_cast<const decltype(zero)*>(dy), accumulator, threads);
        });
    });
}
