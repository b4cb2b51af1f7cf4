// SwiGLU on the CPU: one pass over the elements; the backward pass recomputes the sigmoid instead of storing it.
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

template <class T>
void forward(int64_t elements, const T* gate, const T* up, T* y, int32_t threads) {
    each_element(elements, threads, [&](int64_t i, int count) {
        const FloatLanes g = load_lanes(gate + i, count);
        store_lanes(y + i, (g * elementary::sigmoid(g)) * load_lanes(up + i, count), count);
    });
}

template <class T>
void backward(int64_t elements, const T* dy, const T* gate, const T* up, T* dgate, T* dup, int32_t threads) {
    each_element(elements, threads, [&](int64_t i, int count) {
        const FloatLanes g = load_lanes(gate + i, count), gradient = load_lanes(dy + i, count);
        const FloatLanes s = elementary::sigmoid(g);
        const FloatLanes a = g * s;
        const FloatLanes slope = elementary::fused(a, 1.0f - s, s);
        store_lanes(dgate + i, (gradient * load_lanes(up + i, count)) * slope, count);
        store_lanes(dup + i, gradient * a, count);
    });
}

}  // namespace

// y = round((gate * sigmoid(gate)) * up).
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(swiglu_forward)(int32_t format, int64_t elements, const void* gate, const void* up,
                                                      void* y, int32_t threads) {
    return guarded([&] {
        with_format(format, elements, 1, [&](auto zero) {
            using T = decltype(zero);
            forward(elements, static_cast<const T*>(gate), static_cast<const T*>(up), static_cast<T*>(y), threads);
        });
    });
}

// dup = round(dy * a), a = gate * s, s = sigmoid(gate); dgate = round((dy * up) * fma(a, 1 - s, s)).
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(swiglu_backward)(int32_t format, int64_t elements, const void* dy, const void* gate,
                                                       const void* up, void* dgate, void* dup, int32_t threads) {
    return guarded([&] {
        with_format(format, elements, 1, [&](auto zero) {
            using T = decltype(zero);
            backward(elements, static_cast<const T*>(dy), static_cast<const T*>(gate), static_cast<const T*>(up),
                     static_cast<T*>(dgate), static_cast<T*>(dup), threads);
        });
    });
}
