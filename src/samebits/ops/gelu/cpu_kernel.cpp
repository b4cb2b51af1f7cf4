// GELU on the CPU: one pass over the elements; the backward pass recomputes what it needs instead of storing it.
#include "numerics/elementary/quick.h"
#include "ops/_cpu/elements.h"
#if defined(SAMEBITS_NEON)
#include "ops/_cpu/elements_in_turns.h"
#endif

namespace {
using namespace samebits;
#if defined(SAMEBITS_NEON)
using FloatLanes = elementary::FloatQuad;
using in_turns::each_element, in_turns::load_lanes, in_turns::store_lanes;
#else
using elementary::FloatLanes;
#endif

// Decide bits: each is rounded once to float32. Named and explained in reference.py.
constexpr float ROOT_HALF = static_cast<float>(0.7071067811865476);
constexpr float DENSITY = static_cast<float>(0.3989422804014327);
constexpr float ROOT_TWO_OVER_PI = static_cast<float>(0.7978845608028654);
constexpr float CUBIC = static_cast<float>(0.044715);
constexpr float CUBIC_SLOPE = static_cast<float>(0.134145);

inline FloatLanes erf_of(FloatLanes x) { return elementary::lanes(quick::erf(elementary::floats(x * ROOT_HALF))); }
inline FloatLanes tanh_of(FloatLanes x) {
    return elementary::tanh(ROOT_TWO_OVER_PI * elementary::fused(CUBIC * (x * x), x, x));
}

inline FloatLanes slope_by_erf(FloatLanes x) {
    const FloatLanes e = elementary::lanes(quick::exp(elementary::floats((x * -0.5f) * x)));
    const FloatLanes density = e * DENSITY;
    return elementary::fused(x, density, 0.5f * (1.0f + erf_of(x)));
}
inline FloatLanes slope_by_tanh(FloatLanes x) {
    const FloatLanes t = tanh_of(x), one = elementary::fill<FloatLanes>(1.0f);
    const FloatLanes steep = ROOT_TWO_OVER_PI * elementary::fused(elementary::fill<FloatLanes>(CUBIC_SLOPE), x * x, one);
    return elementary::fused((x * 0.5f) * elementary::fused(-t, t, one), steep, 0.5f * (1.0f + t));
}

template <bool BY_TANH, class T>
void forward(int64_t elements, const T* x, T* y, int32_t threads) {
    each_element(elements, threads, [&](int64_t i, int count) {
        const FloatLanes value = load_lanes(x + i, count);
        const FloatLanes e = BY_TANH ? tanh_of(value) : erf_of(value);
        store_lanes(y + i, (value * 0.5f) * (1.0f + e), count);
    });
}

template <bool BY_TANH, class T>
void backward(int64_t elements, const T* dy, const T* x, T* dx, int32_t threads) {
    each_element(elements, threads, [&](int64_t i, int count) {
        const FloatLanes value = load_lanes(x + i, count);
        const FloatLanes slope = BY_TANH ? slope_by_tanh(value) : slope_by_erf(value);
        store_lanes(dx + i, load_lanes(dy + i, count) * slope, count);
    });
}

}  // namespace

// y = round((x * 0.5) * (1 + e)), e = erf(x / sqrt 2), or tanh(sqrt(2/pi) * (x + 0.044715 x^3)).
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(gelu_forward)(int32_t format, int32_t by_tanh, int64_t elements, const void* x,
                                                    void* y, int32_t threads) {
    return guarded([&] {
        with_format(format, elements, 1, [&](auto zero) {
            using T = decltype(zero);
            const auto chosen = by_tanh ? forward<true, T> : forward<false, T>;
            chosen(elements, static_cast<const T*>(x), static_cast<T*>(y), threads);
        });
    });
}

// dx = round(dy * slope), the slope of the above.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(gelu_backward)(int32_t format, int32_t by_tanh, int64_t elements, const void* dy,
                                                     const void* x, void* dx, int32_t threads) {
    return guarded([&] {
        with_format(format, elements, 1, [&](auto zero) {
            using T = decltype(zero);
            const auto chosen = by_tanh ? backward<true, T> : backward<false, T>;
            chosen(elements, static_cast<const T*>(dy), static_cast<const T*>(x), static_cast<T*>(dx), threads);
        });
    });
}
