// Grouped product on the CPU: matmul's chain for each expert, the tiles of all experts shared out among the threads.
#include <vector>

#include "ops/_cpu/chain.h"
#include "ops/_cpu/rows.h"
#include "ops/_cpu/single_row.h"

namespace {
using namespace samebits;

// One expert's consecutive rows, and a block of its output.
struct Block {
    int64_t expert, row, rows, column, columns;
};

// Speed only: blocks of outputs that pay for packing, and enough of them for every thread.
constexpr int64_t LEAST_COLUMNS = 4 * TILE_COLUMNS;

int64_t block_columns(int64_t columns, int64_t others, int32_t threads) {
    int64_t parts = (columns + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
    while (parts * others < 2 * threads && (columns + parts) / (parts + 1) >= LEAST_COLUMNS) ++parts;
    return ((columns + parts - 1) / parts + TILE_COLUMNS - 1) / TILE_COLUMNS * TILE_COLUMNS;
}

// Appends the blocks that cover `rows` x `columns` outputs of an expert.
void cover(std::vector<Block>& blocks, int64_t expert, int64_t first, int64_t rows, int64_t columns, int64_t width) {
    const Parts parts(rows, BLOCK_ROWS);
    for (int64_t part = 0; part < parts.count; ++part)
        for (int64_t column = 0; column < columns; column += width)
            blocks.push_back({expert, first + parts.start(part), parts.size(part), column, std::min(width, columns - column)});
}

// Whose rows lie where: expert e has the rows from ends[e - 1] to ends[e].
struct Groups {
    int64_t experts;
    const int64_t* ends;
    int64_t first(int64_t expert) const { return expert == 0 ? 0 : ends[expert - 1]; }
    int64_t rows(int64_t expert) const { return ends[expert] - first(expert); }
    int64_t busy() const {
        int64_t count = 0;
        for (int64_t e = 0; e < experts; ++e) count += rows(e) > 0;
        return count;
    }
    void check(int64_t all) const {
        for (int64_t e = 0; e < experts; ++e)
            if (rows(e) < 0 || ends[e] > all)
                throw Error("the rows of expert " + std::to_string(e) + " end at " + std::to_string(ends[e]) +
                            "; allowed: from " + std::to_string(first(e)) + " to " + std::to_string(all));
    }
};

// The chain of one block, from +0 or from what `out` holds; rounded once where `out` is narrower than float32.
template <class T, class Out>
void run_block(Chain<T> chain, Out* out, int64_t stride) {
    if constexpr (std::is_same_v<Out, float>) {
        chain.accumulator = out;
        chain.accumulator_stride = stride;
        run_chain(chain);
    } else {
        chain.accumulator = scratch(2, chain.rows * chain.columns);
        chain.accumulator_stride = chain.columns;
        run_chain(chain);
        for (int64_t i = 0; i < chain.rows; ++i)
            for (int64_t j = 0; j < chain.columns; j += WIDTH) {
                const int count = static_cast<int>(std::min<int64_t>(WIDTH, chain.columns - j));
                store_some(out + i * stride + j, load_some(chain.accumulator + i * chain.columns + j, count), count);
            }
    }
}

// y[m] = round(x[m] weight[e]) for the rows of every expert e.
template <class T>
void forward(Groups groups, int64_t k, int64_t n, View<T> x, View<T> weight, int64_t weight_expert, T* y, int32_t threads) {
    const int64_t width = block_columns(n, groups.busy(), threads);
    std::vector<Block> blocks;
    for (int64_t e = 0; e < groups.experts; ++e) {
        const int64_t first = groups.first(e);
        const View<T> row{x.at(first, 0), x.row, x.column}, own{weight.data + e * weight_expert, weight.row, weight.column};
        const T* no_bias = nullptr;
        if (groups.rows(e) == 1 && single_row(n, k, row, own, no_bias, nullptr, y + first * n, threads)) continue;
        cover(blocks, e, first, groups.rows(e), n, width);
    }
    parallel_for(static_cast<int64_t>(blocks.size()), threads, [&](int64_t task) {
        const Block& block = blocks[static_cast<size_t>(task)];
        const View<T> a{x.at(block.row, 0), x.row, x.column};
        const View<T> b{weight.at(0, block.column) + block.expert * weight_expert, weight.row, weight.column};
        run_block(Chain<T>{block.rows, block.columns, k, a, b, nullptr, 0, false}, y + block.row * n + block.column, n);
    });
}

// sums[e] = the chain of x^T dy over the rows of expert e, ascending. An expert without rows keeps what it has.
template <class T, class Out>
void dweight(bool resume, Groups groups, int64_t k, int64_t n, View<T> x, View<T> dy, Out* sums, int32_t threads) {
    const int64_t width = block_columns(n, groups.busy(), threads);
    std::vector<Block> blocks;
    for (int64_t e = 0; e < groups.experts; ++e)
        if (groups.rows(e) > 0) cover(blocks, e, 0, k, n, width);
    parallel_for(static_cast<int64_t>(blocks.size()), threads, [&](int64_t task) {
        const Block& block = blocks[static_cast<size_t>(task)];
        const int64_t first = groups.first(block.expert);
        const View<T> a{x.at(first, block.row), x.column, x.row}, b{dy.at(first, block.column), dy.row, dy.column};
        run_block(Chain<T>{block.rows, block.columns, groups.rows(block.expert), a, b, nullptr, 0, resume},
                  sums + (block.expert * k + block.row) * n + block.column, n);
    });
}

}  // namespace

// x (m, k), rows by expert; expert e has the rows from ends[e - 1] to ends[e]. y (m, n) keeps the rows beyond the last end.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(grouped_matmul)(int32_t format, int64_t experts, int64_t m, int64_t k, int64_t n,
                                                      const void* x, int64_t x_row, int64_t x_column, const void* weight,
                                                      int64_t weight_expert, int64_t weight_row, int64_t weight_column,
                                                      const int64_t* ends, void* y, int32_t threads) {
    return guarded([&] {
        const Groups groups{experts, ends};
        groups.check(m);
        with_format(format, m, n, [&](auto zero) {
            using T = decltype(zero);
            forward<T>(groups, k, n, {static_cast<const T*>(x), x_row, x_column},
                       {static_cast<const T*>(weight), weight_row, weight_column}, weight_expert, static_cast<T*>(y),
                       threads);
        });
    });
}

// sums (experts, k, n), float32 or the format of x; with `resume` the chains go on from what float32 sums hold.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(grouped_matmul_dweight)(int32_t format, int32_t sums_format, int32_t resume,
                                                              int64_t experts, int64_t m, int64_t k, int64_t n,
                                                              const void* x, int64_t x_row, int64_t x_column,
                                                              const void* dy, int64_t dy_row, int64_t dy_column,
                                                              const int64_t* ends, void* sums, int32_t threads) {
    return guarded([&] {
        const Groups groups{experts, ends};
        groups.check(m);
        with_format(format, m, n, [&](auto zero) {
            using T = decltype(zero);
            const View<T> left{static_cast<const T*>(x), x_row, x_column}, right{static_cast<const T*>(dy), dy_row, dy_column};
            if (sums_format == FLOAT32)
                dweight(resume != 0, groups, k, n, left, right, static_cast<float*>(sums), threads);
            else if (sums_format == format && resume == 0)
                dweight(false, groups, k, n, left, right, static_cast<T*>(sums), threads);
            else
                throw Error("sums must be float32, or of x's format and not resumed");
        });
    });
}
