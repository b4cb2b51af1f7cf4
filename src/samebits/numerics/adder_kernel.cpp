// Whole matrix products added like a matrix unit adds: the accumulator and `width` products at a time, as integers.
//
// Vectorised over outputs; an output belongs to one chain, so neither threads nor instruction set can reach its bits.
// The same node in plain numpy is simulate.fused_node.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "samebits/abi.h"
#include "samebits/threads.h"

namespace {

constexpr int COLUMNS = 64;        // outputs side by side: speed only
constexpr int64_t ROWS = 16;       // rows a task works on: speed only
constexpr int32_t NO_EXPONENT = -2000;  // of a zero: below every exponent there is
constexpr uint32_t NAN_BITS = 0x7fffffffu;

// The fields of AdderModel; every one decides bits.
struct Model {
    int32_t format, width, fraction_bits, keep_bits;
    bool normalise_subnormals, zeros_align;
    int32_t least_exponent;
    bool overflow_is_infinite;
    int significand_bits() const { return format == 1 ? 8 : 11; }
    int lowest_exponent() const { return format == 2 ? -14 : -126; }
    int product_fraction() const { return 2 * (significand_bits() - 1); }
};

template <class To, class From>
To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

// An operand: signed significand and exponent. What is not finite is a zero here and is looked up again in `special`.
struct Decoded {
    int32_t significand, exponent;
    float special;
};

Decoded decode(uint32_t pattern, const Model& model) {
    const int stored = model.significand_bits() - 1;
    const int exponent_bits = model.format == 2 ? 5 : 8;
    if (model.format == 3) {
        const bool finite = (pattern & 0x7f800000u) != 0x7f800000u;
        pattern = finite ? pattern >> 13 : (pattern >> 13) | ((pattern & 0x1fffu) != 0);  // a NaN must stay one
    }
    const int32_t fraction = static_cast<int32_t>(pattern & ((1u << stored) - 1));
    const int32_t field = static_cast<int32_t>((pattern >> stored) & ((1u << exponent_bits) - 1));
    const bool negative = (pattern >> (stored + exponent_bits)) & 1;
    if (field == (1 << exponent_bits) - 1) {
        const float infinity = negative ? -INFINITY : INFINITY;
        return {0, NO_EXPONENT, fraction ? bit_cast<float>(NAN_BITS) : infinity};
    }
    int32_t significand = field ? fraction | (1 << stored) : fraction;
    int32_t exponent = model.lowest_exponent() + (field ? field - 1 : 0);
    if (significand == 0 && !model.zeros_align) {
        exponent = NO_EXPONENT;
    } else if (model.normalise_subnormals) {
        for (; significand != 0 && significand < (1 << stored); significand <<= 1) --exponent;
    }
    return {negative ? -significand : significand, exponent, 0.0f};
}

// A matrix decoded once, rows padded to whole tiles of `step` elements.
struct Matrix {
    int64_t stride;
    std::vector<int32_t> significand, exponent;
    std::vector<float> special;  // empty where every element is finite

    template <class Pattern>
    Matrix(const Pattern* patterns, int64_t rows, int64_t columns, int64_t step, const Model& model)
        : stride((columns + step - 1) / step * step),
          significand(static_cast<size_t>(rows * stride), 0),
          exponent(static_cast<size_t>(rows * stride), NO_EXPONENT) {
        for (int64_t r = 0; r < rows; ++r) {
            for (int64_t c = 0; c < columns; ++c) {
                const Decoded value = decode(patterns[r * columns + c], model);
                const size_t at = static_cast<size_t>(r * stride + c);
                significand[at] = value.significand;
                exponent[at] = value.exponent;
                if (value.special != 0.0f) {
                    if (special.empty()) special.assign(significand.size(), 0.0f);
                    special[at] = value.special;
                }
            }
        }
    }
    float at(int64_t index) const {
        const size_t i = static_cast<size_t>(index);
        if (!special.empty() && special[i] != 0.0f) return special[i];
        return static_cast<float>(significand[i]);  // only sign and zero matter beside an infinity
    }
};

// One row of outputs, COLUMNS wide, between two fused additions.
using Row = std::array<float, COLUMNS>;

// Adds the terms' cut significands, in units of 2^(largest - fraction_bits), to `total`.
template <class Integer>
void add_products(const Matrix& a, const Matrix& b, int64_t row, int64_t column, int64_t k_first, int64_t k_last,
                  const Model& model, const int32_t* largest, int64_t* total) {
    const int left = std::max(model.fraction_bits - model.product_fraction(), 0);
    const int right = std::max(model.product_fraction() - model.fraction_bits, 0);
    constexpr int32_t MOST = 8 * sizeof(Integer) - 1;
    Integer sum[COLUMNS] = {};
    for (int64_t k = k_first; k < k_last; ++k) {
        const int32_t a_significand = a.significand[static_cast<size_t>(row * a.stride + k)];
        const int32_t a_exponent = a.exponent[static_cast<size_t>(row * a.stride + k)];
        if (a_significand == 0) continue;
        const int32_t* b_significand = &b.significand[static_cast<size_t>(k * b.stride + column)];
        const int32_t* b_exponent = &b.exponent[static_cast<size_t>(k * b.stride + column)];
        for (int j = 0; j < COLUMNS; ++j) {
            const int32_t product = a_significand * b_significand[j];
            const int32_t magnitude = product < 0 ? -product : product;
            const int32_t shift = std::min(right + largest[j] - a_exponent - b_exponent[j], MOST);
            const Integer cut = (static_cast<Integer>(magnitude) << left) >> shift;
            sum[j] += product < 0 ? -cut : cut;
        }
    }
    for (int j = 0; j < COLUMNS; ++j) total[j] += sum[j];
}

void largest_exponents(const Matrix& a, const Matrix& b, int64_t row, int64_t column, int64_t k_first, int64_t k_last,
                       int32_t* largest) {
    for (int64_t k = k_first; k < k_last; ++k) {
        const int32_t a_exponent = a.exponent[static_cast<size_t>(row * a.stride + k)];
        const int32_t* b_exponent = &b.exponent[static_cast<size_t>(k * b.stride + column)];
        for (int j = 0; j < COLUMNS; ++j) largest[j] = std::max(largest[j], a_exponent + b_exponent[j]);
    }
}

// total * 2^(largest - fraction_bits), cut to keep_bits and to multiples of 2^-149.
float finish(int64_t total, int32_t largest, const Model& model) {
    const double exact = static_cast<double>(total);  // below 2^52: nothing is lost
    const int64_t scale = static_cast<int64_t>(1023 + largest - model.fraction_bits) << 52;
    const double scaled = exact * bit_cast<double>(scale);
    const int64_t bits = bit_cast<int64_t>(scaled);
    const int64_t exponent = ((bits >> 52) & 0x7ff) - 1023;
    const int64_t drop = std::max<int64_t>(53 - model.keep_bits, 29 + (-126 - exponent));
    const int64_t kept = bits & static_cast<int64_t>(~uint64_t{0} << std::min<int64_t>(drop, 52));
    const float result = static_cast<float>(bit_cast<double>(drop > 52 ? int64_t{0} : kept));
    const float ceiling = std::copysign(3.40282346638528859812e+38f, result);
    return std::isinf(result) && !model.overflow_is_infinite ? ceiling : result;
}

// IEEE addition of the terms that are not finite decides the outputs they reach.
void add_specials(const Matrix& a, const Matrix& b, int64_t row, int64_t column, int64_t k_first, int64_t k_last,
                  const Row& before, Row& after) {
    for (int j = 0; j < COLUMNS; ++j) {
        float sum = std::isfinite(before[j]) ? 0.0f : before[j];
        for (int64_t k = k_first; k < k_last; ++k) {
            const float product = a.at(row * a.stride + k) * b.at(k * b.stride + column + j);
            if (!std::isfinite(product)) sum += product;
        }
        if (sum != 0.0f) after[j] = std::isnan(sum) ? bit_cast<float>(NAN_BITS) : sum;
    }
}

// One fused addition for one row of outputs.
template <class Integer>
void fused(const Matrix& a, const Matrix& b, int64_t row, int64_t column, int64_t k_first, int64_t k_last,
           const Model& model, Row& accumulator) {
    int32_t largest[COLUMNS], significand[COLUMNS];
    int64_t total[COLUMNS];
    const int left = std::max(model.fraction_bits - 23, 0), right = std::max(23 - model.fraction_bits, 0);
    const Row before = accumulator;
    int32_t exponent[COLUMNS];
    for (int j = 0; j < COLUMNS; ++j) {
        const int32_t bits = bit_cast<int32_t>(before[j]);
        const int32_t field = (bits >> 23) & 0xff;
        const int32_t magnitude = field == 255 ? 0 : (bits & 0x7fffff) | (field ? 0x800000 : 0);
        significand[j] = magnitude;
        const bool counts = magnitude != 0 || model.zeros_align;
        exponent[j] = counts && field != 255 ? std::max(field, 1) - 127 : NO_EXPONENT;
        largest[j] = exponent[j];
    }
    largest_exponents(a, b, row, column, k_first, k_last, largest);
    for (int j = 0; j < COLUMNS; ++j) {
        // Without a term the sum is zero, whatever the unit; the unit must still be a float64.
        largest[j] = std::max({largest[j], model.least_exponent, -500});
        const int64_t shift = std::min(right + largest[j] - exponent[j], 63);
        const int64_t cut = (static_cast<int64_t>(significand[j]) << left) >> shift;
        total[j] = bit_cast<int32_t>(before[j]) < 0 ? -cut : cut;
    }
    add_products<Integer>(a, b, row, column, k_first, k_last, model, largest, total);
    bool all_finite = a.special.empty() && b.special.empty();
    for (int j = 0; j < COLUMNS; ++j) accumulator[j] = finish(total[j], largest[j], model);
    for (int j = 0; j < COLUMNS; ++j) all_finite &= ((bit_cast<int32_t>(before[j]) >> 23) & 0xff) != 255;
    if (!all_finite) add_specials(a, b, row, column, k_first, k_last, before, accumulator);
}

template <class Integer>
void chains(const Matrix& a, const Matrix& b, float* out, int64_t M, int64_t K, int64_t N, const Model& model,
            int32_t threads) {
    const int64_t row_tasks = (M + ROWS - 1) / ROWS, column_tasks = (N + COLUMNS - 1) / COLUMNS;
    samebits::parallel_for(row_tasks * column_tasks, threads, [&](int64_t task) {
        const int64_t row_first = task % row_tasks * ROWS, column = task / row_tasks * COLUMNS;
        const int64_t rows = std::min(ROWS, M - row_first), columns = std::min<int64_t>(COLUMNS, N - column);
        std::array<Row, ROWS> accumulators{};
        const size_t bytes = static_cast<size_t>(columns) * sizeof(float);
        for (int64_t r = 0; r < rows; ++r) std::memcpy(&accumulators[r], out + (row_first + r) * N + column, bytes);
        for (int64_t k = 0; k < K; k += model.width) {
            for (int64_t r = 0; r < rows; ++r) {
                fused<Integer>(a, b, row_first + r, column, k, std::min<int64_t>(k + model.width, K), model,
                               accumulators[r]);
            }
        }
        for (int64_t r = 0; r < rows; ++r) std::memcpy(out + (row_first + r) * N + column, &accumulators[r], bytes);
    });
}

template <class Pattern>
void product(const void* a, const void* b, float* out, int64_t M, int64_t K, int64_t N, const Model& model,
             int32_t threads) {
    const Matrix a_matrix(static_cast<const Pattern*>(a), M, K, 1, model);
    const Matrix b_matrix(static_cast<const Pattern*>(b), K, N, COLUMNS, model);
    // 32-bit lanes are twice as fast and exact while the largest possible sum of cut products fits.
    const double largest_product = std::ldexp(1.0, 2 * model.significand_bits());
    const int left = std::max(model.fraction_bits - model.product_fraction(), 0);
    const bool fits = model.width * std::ldexp(largest_product, left) <= std::ldexp(1.0, 31);
    if (fits) {
        chains<int32_t>(a_matrix, b_matrix, out, M, K, N, model, threads);
    } else {
        chains<int64_t>(a_matrix, b_matrix, out, M, K, N, model, threads);
    }
}

}  // namespace

// out [M, N] holds the accumulators to start from and becomes the result. format: 1 bfloat16, 2 float16, 3 tfloat32.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(fused_chain)(const void* a, const void* b, float* out, int64_t M, int64_t K,
                                                   int64_t N, int32_t format, int32_t width, int32_t fraction_bits,
                                                   int32_t keep_bits, int32_t normalise_subnormals,
                                                   int32_t zeros_align, int32_t least_exponent,
                                                   int32_t overflow_is_infinite, int32_t threads) {
    return samebits::guarded([&] {
        const Model model{format, width, fraction_bits, keep_bits, normalise_subnormals != 0,
                          zeros_align != 0, least_exponent, overflow_is_infinite != 0};
        if (format < 1 || format > 3) throw samebits::Error("format=" + std::to_string(format) + "; allowed: 1, 2, 3");
        if (format == 3) {
            product<uint32_t>(a, b, out, M, K, N, model, threads);
        } else {
            product<uint16_t>(a, b, out, M, K, N, model, threads);
        }
    });
}
