// Softmax on the CPU: each row is read once from memory and kept in cache for its later passes.
#include <type_traits>
#include <vector>

#include "numerics/elementary/quick.h"
#include "ops/_cpu/lane_sum.h"
#include "ops/_cpu/rows.h"

namespace {
using namespace samebits;

// Speed only: maxima that are on their way at once.
constexpr int MAXIMA = 4;

// What is subtracted from a row: its maximum; a NaN does not reach it and shows in the sum. Without a finite one nothing is; nor is the sign of a zero.
template <class T>
float row_shift(int64_t width, const T* x) {
    Floats best[MAXIMA];
    for (Floats& each : best) each = broadcast(-__builtin_inff());
    int64_t h = 0;
    for (; h + MAXIMA * WIDTH <= width; h += MAXIMA * WIDTH)
        for (int j = 0; j < MAXIMA; ++j) best[j] = larger(load(x + h + j * WIDTH), best[j]);
    for (; h + WIDTH <= width; h += WIDTH) best[0] = larger(load(x + h), best[0]);
    for (int j = 1; j < MAXIMA; ++j) best[0] = larger(best[j], best[0]);
    alignas(64) float lanes[WIDTH];
    store(static_cast<float*>(lanes), best[0]);
    for (int half = WIDTH / 2; half > 0; half /= 2)
        for (int j = 0; j < half; ++j) lanes[j] = lanes[j] > lanes[j + half] ? lanes[j] : lanes[j + half];
    float maximum = lanes[0];
    for (; h < width; ++h) maximum = widen(x[h]) > maximum ? widen(x[h]) : maximum;
    return maximum == -__builtin_inff() || maximum == 0.0f ? 0.0f : maximum;
}

template <class In, class Out>
void softmax(int64_t width, const In* x, Out* y) {
    // Exponentials wait for their sum in y itself where that loses nothing.
    thread_local std::vector<float> aside;
    float* waiting;
    if constexpr (std::is_same_v<Out, float>) {
        waiting = y;
    } else {
        if (static_cast<int64_t>(aside.size()) < width) aside.resize(static_cast<size_t>(width));
        waiting = aside.data();
    }
    const Floats minus_shift = broadcast(-row_shift(width, x));
    const float total = lane_sum(width, [&](Floats sum, int64_t h, int count) {
        const Floats value = quick::exp(add(load_part(x + h, count), minus_shift));
        store_part(waiting + h, value, count);
        return add(sum, value);
    });
    const Floats scale = broadcast(total == 0.0f ? 0.0f : 1.0f / total);
    each_vector(width, [&](int64_t h, int count) {
        store_part(y + h, mul(load_part(static_cast<const float*>(waiting) + h, count), scale), count);
    });
}

template <class In, class Out>
void log_softmax(int64_t width, const In* x, Out* y) {
    const Floats minus_shift = broadcast(-row_shift(width, x));
    const float total = lane_sum(width, [&](Floats sum, int64_t h, int count) {
        return add(sum, quick::exp(add(load_part(x + h, count), minus_shift)));
    });
    const Floats minus_log = broadcast(total == 0.0f ? 0.0f : -elementary::log(total));
    each_vector(width, [&](int64_t h, int count) {
        store_part(y + h, add(add(load_part(x + h, count), minus_shift), minus_log), count);
    });
}

template <class In, class Out>
void softmax_gradient(int64_t width, const Out* dy, const Out* y, In* dx) {
    const float dot = lane_sum(width, [&](Floats sum, int64_t h, int count) {
        return fma(load_part(dy + h, count), load_part(y + h, count), sum);
    });
    const Floats minus_dot = broadcast(-dot);
    each_vector(width, [&](int64_t h, int count) {
        store_part(dx + h, mul(load_part(y + h, count), add(load_part(dy + h, count), minus_dot)), count);
    });
}

template <class In, class Out>
void log_softmax_gradient(int64_t width, const Out* dy, const Out* y, In* dx) {
    const float total =
        lane_sum(width, [&](Floats sum, int64_t h, int count) { return add(sum, load_part(dy + h, count)); });
    // The product with -total is the product of -exp(y) with total.
    const Floats minus_total = broadcast(-total);
    each_vector(width, [&](int64_t h, int count) {
        const Floats share = quick::exp(load_part(y + h, count));
        store_part(dx + h, fma(share, minus_total, load_part(dy + h, count)), count);
    });
}

// Runs body(zero of x's type, zero of y's type): y has x's own type or float32.
template <class Body>
void with_formats(int32_t in, int32_t out, int64_t rows, int64_t width, Body&& body) {
    if (out != in && out != FLOAT32)
        throw Error("the result's format must be x's own or 0 (float32), got " + std::to_string(out));
    with_format(in, rows, width, [&](auto zero) { out == FLOAT32 ? body(zero, float{}) : body(zero, zero); });
}

}  // namespace

// y = round(e * (1 / S)), e = exp(x - max); with `logarithm`: y = round((x - max) - log(S)).
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(softmax_forward)(int32_t in, int32_t out, int32_t logarithm, int64_t rows,
                                                       int64_t width, const void* x, void* y, int32_t threads) {
    return guarded([&] {
        with_formats(in, out, rows, width, [&](auto zero_in, auto zero_out) {
            using In = decltype(zero_in);
            using Out = decltype(zero_out);
            each_row(rows, width, threads, [&](int64_t row) {
                const In* from = static_cast<const In*>(x) + row * width;
                Out* to = static_cast<Out*>(y) + row * width;
                logarithm ? log_softmax(width, from, to) : softmax(width, from, to);
            });
        });
    });
}

// dx = round(y * (dy - sum(dy * y))); with `logarithm`: dx = round(dy - exp(y) * sum(dy)), one fused step.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(softmax_backward)(int32_t in, int32_t out, int32_t logarithm, int64_t rows,
                                                        int64_t width, const void* dy, const void* y, void* dx,
                                                        int32_t threads) {
    return guarded([&] {
        with_formats(in, out, rows, width, [&](auto zero_in, auto zero_out) {
            using In = decltype(zero_in);
            using Out = decltype(zero_out);
            each_row(rows, width, threads, [&](int64_t row) {
                const Out* above = static_cast<const Out*>(dy) + row * width;
                const Out* stored = static_cast<const Out*>(y) + row * width;
                In* to = static_cast<In*>(dx) + row * width;
                logarithm ? log_softmax_gradient(width, above, stored, to) : softmax_gradient(width, above, stored, to);
            });
        });
    });
}
