// LayerNorm on the CPU: each row is read once from memory and kept in cache for its later passes.
#include "numerics/elementary/generated.h"
#include "ops/_cpu/lane_sum.h"
#include "ops/_cpu/rows.h"

namespace {
using namespace samebits;

// Speed only: columns whose gradients stay in the first cache.
constexpr int64_t GRADIENT_COLUMNS = 2048;

// A weight or bias that may be missing: every element is then `neutral`, which changes nothing.
template <class T>
struct Optional {
    const T* values;
    Floats neutral;
    Floats at(int64_t h, int count) const { return values != nullptr ? load_part(values + h, count) : neutral; }
};

template <class T>
Optional<T> weight_or_ones(const void* weight) {
    return {static_cast<const T*>(weight), broadcast(1.0f)};
}

// -0 is the neutral element of addition: +0 would turn a product of -0 into +0.
template <class T>
Optional<T> bias_or_minus_zeros(const void* bias) {
    return {static_cast<const T*>(bias), broadcast(-0.0f)};
}

// x - mean, element by element: what is left of a row.
template <class T>
struct Deviations {
    const T* x;
    Floats minus_mean;
    Floats at(int64_t h, int count) const { return add(load_part(x + h, count), minus_mean); }
};

template <class Term>
float row_mean(int64_t width, Term&& add_term) {
    return lane_sum(width, add_term) / static_cast<float>(width);
}

template <class T>
void forward(int64_t rows, int64_t width, const T* x, Optional<T> weight, Optional<T> bias, float eps, T* y, float* mean,
             float* rstd, int32_t threads) {
    each_row(rows, width, threads, [&](int64_t row) {
        const T* source = x + row * width;
        T* out = y + row * width;
        mean[row] = row_mean(
            width, [&](Floats sum, int64_t h, int count) { return add(sum, load_part(source + h, count)); });
        const Deviations<T> left{source, broadcast(-mean[row])};
        const float variance = row_mean(width, [&](Floats sum, int64_t h, int count) {
            const Floats value = left.at(h, count);
            return fma(value, value, sum);
        });
        rstd[row] = elementary::rsqrt(variance + eps);
        const Floats scale = broadcast(rstd[row]);
        each_vector(width, [&](int64_t h, int count) {
            const Floats normed = mul(left.at(h, count), scale);
            store_part(out + h, fma(normed, weight.at(h, count), bias.at(h, count)), count);
        });
    });
}

template <class T>
void backward_input(int64_t rows, int64_t width, const T* dy, const T* x, Optional<T> weight, const float* mean,
                    const float* rstd, T* dx, int32_t threads) {
    each_row(rows, width, threads, [&](int64_t row) {
        const int64_t start = row * width;
        const Floats scale = broadcast(rstd[row]);
        const Deviations<T> left{x + start, broadcast(-mean[row])};
        const auto gradient = [&](int64_t h, int count) {
            return mul(load_part(dy + start + h, count), weight.at(h, count));
        };
        const auto normed = [&](int64_t h, int count) { return mul(left.at(h, count), scale); };
        const float centre = row_mean(
            width, [&](Floats sum, int64_t h, int count) { return add(sum, gradient(h, count)); });
        const float slope = row_mean(
            width, [&](Floats sum, int64_t h, int count) { return fma(gradient(h, count), normed(h, count), sum); });
        const Floats minus_centre = broadcast(-centre), minus_slope = broadcast(-slope);
        each_vector(width, [&](int64_t h, int count) {
            const Floats centred = add(gradient(h, count), minus_centre);
            store_part(dx + start + h, mul(scale, fma(normed(h, count), minus_slope, centred)), count);
        });
    });
}

// accumulator[h] = accumulator[h] + term(row, h), rows ascending; four rows are added while a sum is in a register.
template <class Term>
void chain_over_rows(int64_t rows, int64_t width, float* accumulator, int32_t threads, Term&& term) {
    const int64_t share = ((width + threads - 1) / threads + WIDTH - 1) / WIDTH * WIDTH;
    const int64_t columns = std::min(share, GRADIENT_COLUMNS);
    parallel_for((width + columns - 1) / columns, threads, [&](int64_t task) {
        const int64_t first = task * columns, last = std::min(width, first + columns);
        for (int64_t row = 0; row < rows; row += 4) {
            const int64_t end = std::min(rows, row + 4);
            each_vector(last - first, [&](int64_t i, int count) {
                Floats sum = load_part(accumulator + first + i, count);
                for (int64_t r = row; r < end; ++r) sum = add(sum, term(r, first + i, count));
                store_part(accumulator + first + i, sum, count);
            });
        }
    });
}

}  // namespace

// y = round(fma((x - mean) * rstd, weight, bias)); `weight` and `bias` may be null. mean and rstd are written.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(layernorm_forward)(int32_t format, int64_t rows, int64_t width, const void* x,
                                                         const void* weight, const void* bias, float eps, void* y,
                                                         float* mean, float* rstd, int32_t threads) {
    return guarded([&] {
        with_format(format, rows, width, [&](auto zero) {
            using T = decltype(zero);
            forward(rows, width, static_cast<const T*>(x), weight_or_ones<T>(weight), bias_or_minus_zeros<T>(bias), eps,
                    static_cast<T*>(y), mean, rstd, threads);
        });
    });
}

// dx = round(rstd * ((g - mean(g)) - xhat * mean(g * xhat))), g = dy * weight, xhat = (x - mean) * rstd.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(layernorm_backward_input)(int32_t format, int64_t rows, int64_t width,
                                                                const void* dy, const void* x, const void* weight,
                                                                const float* mean, const float* rstd, void* dx,
                                                                int32_t threads) {
    return guarded([&] {
        with_format(format, rows, width, [&](auto zero) {
            using T = decltype(zero);
            backward_input(rows, width, static_cast<const T*>(dy), static_cast<const T*>(x), weight_or_ones<T>(weight),
                           mean, rstd, static_cast<T*>(dx), threads);
        });
    });
}

// accumulator[h] = accumulator[h] + dy * xhat, rows ascending: a chain that can be resumed.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(layernorm_backward_weight)(int32_t format, int64_t rows, int64_t width,
                                                                 const void* dy, const void* x, const float* mean,
                                                                 const float* rstd, float* accumulator,
                                                                 int32_t threads) {
    return guarded([&] {
        with_format(format, rows, width, [&](auto zero) {
            using T = decltype(zero);
            const T *gradient = static_cast<const T*>(dy), *source = static_cast<const T*>(x);
            chain_over_rows(rows, width, accumulator, threads, [&](int64_t row, int64_t h, int count) {
                const Deviations<T> left{source + row * width, broadcast(-mean[row])};
                return mul(load_part(gradient + row * width + h, count), mul(left.at(h, count), broadcast(rstd[row])));
            });
        });
    });
}

// accumulator[h] = accumulator[h] + dy, rows ascending: a chain that can be resumed.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(layernorm_backward_bias)(int32_t format, int64_t rows, int64_t width,
                                                               const void* dy, float* accumulator, int32_t threads) {
    return guarded([&] {
        with_format(format, rows, width, [&](auto zero) {
            using T = decltype(zero);
            const T* gradient = static_cast<const T*>(dy);
            chain_over_rows(rows, width, accumulator, threads, [&](int64_t row, int64_t h, int count) {
                return load_part(gradient + row * width + h, count);
            });
        });
    });
}
