// Matrix product on the CPU: chooses tiles for the shape, runs the chain, and rounds once at the end.
#include "ops/_cpu/chain.h"
#include "ops/_cpu/single_row.h"

namespace {
using namespace samebits;

struct Tiling {
    int64_t rows, columns;
};

// Speed only: big enough to pay for packing, small enough that every thread gets some.
Tiling choose_tiling(int64_t rows, int64_t columns, int32_t threads) {
    Tiling tiling{std::min(rows, BLOCK_ROWS), std::min(columns, BLOCK_COLUMNS)};
    const auto parts = [](int64_t whole, int64_t part) { return (whole + part - 1) / part; };
    // Even shares: 4096 columns in tiles of 512, but 1536 columns on 2 threads in tiles of 384.
    int64_t row_parts = parts(rows, tiling.rows), column_parts = parts(columns, tiling.columns);
    while (row_parts * column_parts % threads != 0 && parts(columns, column_parts + 1) >= 2 * TILE_COLUMNS) ++column_parts;
    while (row_parts * column_parts < threads && parts(rows, row_parts + 1) >= TILE_ROWS) ++row_parts;
    tiling.rows = parts(rows, row_parts);
    tiling.columns = parts(parts(columns, column_parts), TILE_COLUMNS) * TILE_COLUMNS;
    return tiling;
}

template <class T, class Out>
void finish(const float* accumulator, int64_t stride, const T* bias, Out* out, int64_t out_stride, int64_t rows,
            int64_t columns) {
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; j += WIDTH) {
            const int count = static_cast<int>(std::min<int64_t>(WIDTH, columns - j));
            Floats value = load_some(accumulator + i * stride + j, count);
            if (bias != nullptr) value = add(value, load_some(bias + j, count));
            store_some(out + i * out_stride + j, value, count);
        }
    }
}

template <class T, class Out>
void product(int64_t m, int64_t n, int64_t k, View<T> a, View<T> b, const T* bias, float* resumed, Out* out,
             int32_t threads) {
    constexpr bool direct = std::is_same_v<Out, float>;
    if (m == 1 && single_row(n, k, a, b, bias, resumed, out, threads)) return;
    const Tiling tiling = choose_tiling(m, n, threads);
    const int64_t row_tiles = (m + tiling.rows - 1) / tiling.rows;
    const int64_t column_tiles = (n + tiling.columns - 1) / tiling.columns;
    parallel_for(row_tiles * column_tiles, threads, [&](int64_t task) {
        const int64_t row = task % row_tiles * tiling.rows, column = task / row_tiles * tiling.columns;
        const int64_t rows = std::min(tiling.rows, m - row), columns = std::min(tiling.columns, n - column);
        const View<T> a_tile{a.at(row, 0), a.row, a.column}, b_tile{b.at(0, column), b.row, b.column};
        Chain<T> chain{rows, columns, k, a_tile, b_tile, nullptr, n, false};
        if (resumed != nullptr) {
            chain.accumulator = resumed + row * n + column;
            chain.resume = true;
        } else if constexpr (direct) {
            chain.accumulator = out + row * n + column;
        } else {
            chain.accumulator = scratch(2, rows * columns);
            chain.accumulator_stride = columns;
        }
        if (k == 0 && !chain.resume)
            for (int64_t i = 0; i < rows; ++i)
                std::fill_n(chain.accumulator + i * chain.accumulator_stride, columns, 0.0f);
        run_chain(chain);
        if (resumed == nullptr && (!direct || bias != nullptr))
            finish(chain.accumulator, chain.accumulator_stride, bias == nullptr ? bias : bias + column,
                   out + row * n + column, n, rows, columns);
    });
}

template <class T>
void product_to(int32_t out_format, int64_t m, int64_t n, int64_t k, View<T> a, View<T> b, const T* bias, float* resumed,
                void* out, int32_t threads) {
    if (out_format == FLOAT32)
        product(m, n, k, a, b, bias, resumed, static_cast<float*>(out), threads);
    else if constexpr (std::is_same_v<T, float>)
        throw Error("a float32 product is stored as float32");
    else
        product(m, n, k, a, b, bias, resumed, static_cast<T*>(out), threads);
}

}  // namespace

// out = round(A B + bias), or with `accumulator`: accumulator = accumulator + A B (the chain resumed), `out` unused.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(matmul)(int32_t format, int32_t out_format, int64_t m, int64_t n, int64_t k,
                                              const void* a, int64_t a_row, int64_t a_column, const void* b, int64_t b_row,
                                              int64_t b_column, const void* bias, float* accumulator, void* out,
                                              int32_t threads) {
    return samebits::guarded([&] {
        const auto run = [&](auto zero) {
            using T = decltype(zero);
            product_to<T>(out_format, m, n, k, {static_cast<const T*>(a), a_row, a_column},
                          {static_cast<const T*>(b), b_row, b_column}, static_cast<const T*>(bias), accumulator, out,
                          threads);
        };
        if (format == FLOAT32) run(float{});
        else if (format == BFLOAT16) run(BFloat16{});
        else if (format == FLOAT16) run(Half{});
        else throw Error("format must be 0 (float32), 1 (bfloat16) or 2 (float16), got " + std::to_string(format));
    });
}
