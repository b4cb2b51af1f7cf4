// RMSNorm on the CPU: each row is read once from memory and kept in cache for its second pass.
#include "numerics/elementary/generated.h"
#include "ops/_cpu/lane_sum.h"
#include "ops/_cpu/rows.h"

namespace {
using namespace samebits;

// Speed only: columns whose weight gradients stay in the first cache.
constexpr int64_t WEIGHT_COLUMNS = 2048;

template <class T>
void add_row(int64_t width, const T* x, const T* residual, T* hidden) {
    each_vector(width, [&](int64_t h, int count) {
        store_part(hidden + h, add(load_part(x + h, count), load_part(residual + h, count)), count);
    });
}

template <class T>
float row_rstd(int64_t width, const T* x, float eps) {
    const float squares = lane_sum(width, [&](Floats sum, int64_t h, int count) {
        const Floats value = load_part(x + h, count);
        return fma(value, value, sum);
    });
    const float mean = squares * (1.0f / static_cast<float>(width));
    return elementary::rsqrt(mean + eps);
}

template <class T>
void forward(int64_t rows, int64_t width, const T* x, const T* weight, const T* residual, float eps, T* y, float* rstd,
             T* hidden, int32_t threads) {
    each_row(rows, width, threads, [&](int64_t row) {
        const T* source = x + row * width;
        T* out = y + row * width;
        if (residual != nullptr) {
            add_row(width, source, residual + row * width, hidden + row * width);
            source = hidden + row * width;
        }
        rstd[row] = row_rstd(width, source, eps);
        const Floats scale = broadcast(rstd[row]);
        each_vector(width, [&](int64_t h, int count) {
            store_part(out + h, mul(mul(load_part(source + h, count), scale), load_part(weight + h, count)), count);
        });
    });
}

template <class T>
void backward_input(int64_t rows, int64_t width, const T* dy, const T* x, const T* weight, const float* rstd,
                    const T* dhidden, T* dx, int32_t threads) {
    each_row(rows, width, threads, [&](int64_t row) {
        const int64_t start = row * width;
        const Floats scale = broadcast(rstd[row]);
        const auto gradient = [&](int64_t h, int count) {
            return mul(load_part(dy + start + h, count), load_part(weight + h, count));
        };
        const auto normed = [&](int64_t h, int count) { return mul(load_part(x + start + h, count), scale); };
        const float dot = lane_sum(
            width, [&](Floats sum, int64_t h, int count) { return fma(gradient(h, count), normed(h, count), sum); });
        // The product with -mean is the product of -xhat with mean.
        const Floats minus_mean = broadcast(-(dot * (1.0f / static_cast<float>(width))));
        each_vector(width, [&](int64_t h, int count) {
            const Floats value = mul(scale, fma(normed(h, count), minus_mean, gradient(h, count)));
            const bool more = dhidden != nullptr;
            store_part(dx + start + h, more ? add(value, load_part(dhidden + start + h, count)) : value, count);
        });
    });
}

// Rows ascending for every column; four rows are added while a column's sum is in a register.
template <class T>
void backward_weight(int64_t rows, int64_t width, const T* dy, const T* x, const float* rstd, float* accumulator,
                     int32_t threads) {
    const int64_t share = ((width + threads - 1) / threads + WIDTH - 1) / WIDTH * WIDTH;
    const int64_t columns = std::min(share, WEIGHT_COLUMNS);
    parallel_for((width + columns - 1) / columns, threads, [&](int64_t task) {
        const int64_t first = task * columns, last = std::min(width, first + columns);
        for (int64_t row = 0; row < rows; row += 4) {
            const int64_t end = std::min(rows, row + 4);
            each_vector(last - first, [&](int64_t i, int count) {
                Floats sum = load_part(accumulator + first + i, count);
                for (int64_t r = row; r < end; ++r) {
                    const int64_t at = r * width + first + i;
                    sum = add(sum, mul(load_part(dy + at, count), mul(load_part(x + at, count), broadcast(rstd[r]))));
                }
                store_part(accumulator + first + i, sum, count);
            });
        }
    });
}

}  // namespace

// y = round((h * rstd) * weight), h = x, or with `residual`: h = round(x + residual), which is written to `hidden`.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(rmsnorm_forward)(int32_t format, int64_t rows, int64_t width, const void* x,
                                                       const void* weight, const void* residual, float eps, void* y,
                                                       float* rstd, void* hidden, int32_t threads) {
    return guarded([&] {
        if ((residual == nullptr) != (hidden == nullptr)) throw Error("residual and hidden must be given together");
        with_format(format, rows, width, [&](auto zero) {
            using T = decltype(zero);
            forward(rows, width, static_cast<const T*>(x), static_cast<const T*>(weight), static_cast<const T*>(residual),
                    eps, static_cast<T*>(y), rstd, static_cast<T*>(hidden), threads);
        });
    });
}

// dx = round(rstd * (g - xhat * mean(g * xhat)) + dhidden), g = dy * weight, xhat = x * rstd; `dhidden` may be null.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(rmsnorm_backward_input)(int32_t format, int64_t rows, int64_t width, const void* dy,
                                                              const void* x, const void* weight, const float* rstd,
                                                              const void* dhidden, void* dx, int32_t threads) {
    return guarded([&] {
        with_format(format, rows, width, [&](auto zero) {
            using T = decltype(zero);
            backward_input(rows, width, static_cast<const T*>(dy), static_cast<const T*>(x), static_cast<const T*>(weight),
                           rstd, static_cast<const T*>(dhidden), static_cast<T*>(dx), threads);
        });
    });
}

// accumulator[h] = accumulator[h] + dy * xhat, rows ascending: a chain that can be resumed.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(rmsnorm_backward_weight)(int32_t format, int64_t rows, int64_t width, const void* dy,
                                                               const void* x, const float* rstd, float* accumulator,
                                                               int32_t threads) {
    return guarded([&] {
        with_format(format, rows, width, [&](auto zero) {
            using T = decltype(zero);
            backward_weight(rows, width, static_cast<const T*>(dy), static_cast<const T*>(x), rstd, accumulator, threads);
        });
    });
}
