// The toy on the CPU: one pass over the elements.
#include "ops/_cpu/elements.h"

namespace {
using namespace samebits;

// y = round((a * 0.5) * b).
template <class T>
void halved(int64_t elements, const T* a, const T* b, T* y, int32_t threads) {
    each_element(elements, threads, [&](int64_t i, int count) {
        store_lanes(y + i, (load_lanes(a + i, count) * 0.5f) * load_lanes(b + i, count), count);
    });
}

}  // namespace

SAMEBITS_EXPORT int32_t SAMEBITS_NAME(halved_product_forward)(int32_t format, int64_t elements, const void* a, const void* b,
                                                              void* y, int32_t threads) {
    return guarded([&] {
        with_format(format, elements, 1, [&](auto zero) {
            using T = decltype(zero);
            halved(elements, static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(y), threads);
        });
    });
}

SAMEBITS_EXPORT int32_t SAMEBITS_NAME(halved_product_backward)(int32_t format, int64_t elements, const void* dy, const void* a,
                                                               const void* b, void* da, void* db, int32_t threads) {
    return guarded([&] {
        with_format(format, elements, 1, [&](auto zero) {
            using T = decltype(zero);
            const T* gradient = static_cast<const T*>(dy);
            halved(elements, gradient, static_cast<const T*>(b), static_cast<T*>(da), threads);
            halved(elements, gradient, static_cast<const T*>(a), static_cast<T*>(db), threads);
        });
    });
}
