// Element by element, as in elements.h, with four vectors in turns: for functions that are long chains, where the
// processor's window is small. The bits are the same.
#pragma once

#include "numerics/elementary/quads.h"
#include "ops/_cpu/elements.h"

namespace samebits {
inline namespace SAMEBITS_ISA {
namespace in_turns {

constexpr int AT_ONCE = 4 * WIDTH;

template <class Body>
[[gnu::flatten]] void one_share(int64_t first, int64_t last, Body& body) {
    for (; first + AT_ONCE <= last; first += AT_ONCE) body(first, AT_ONCE);
    if (first < last) body(first, static_cast<int>(last - first));
}

// Calls body(start, count) for consecutive runs of a flat array: `count` of the elements from start on exist.
template <class Body>
void each_element(int64_t elements, int32_t threads, Body&& body) {
    const int64_t even = ((elements + threads - 1) / threads + LANES - 1) / LANES * LANES;
    const int64_t share = std::clamp(even, LEAST_SHARE, TASK_ELEMENTS);
    parallel_for((elements + share - 1) / share, threads, [&](int64_t task) {
        one_share(task * share, std::min(elements, (task + 1) * share), body);
    });
}

// How many elements of vector `number` exist where `count` of the four's do.
inline int part_of(int count, int number) { return std::clamp(count - number * WIDTH, 0, WIDTH); }

template <class T>
elementary::FloatQuad load_four(const T* p, int count) {
    __builtin_prefetch(reinterpret_cast<const char*>(p) + BYTES_AHEAD);
    const auto vector = [&](int number) {
        const int part = count == AT_ONCE ? WIDTH : part_of(count, number);
        return elementary::lanes(load_part(p + number * WIDTH, part));
    };
    return {{vector(0), vector(1), vector(2), vector(3)}};
}
template <class T>
void store_four(T* p, elementary::FloatQuad value, int count) {
    __builtin_prefetch(reinterpret_cast<char*>(p) + BYTES_AHEAD, 1);
#pragma GCC unroll 4
    for (int number = 0; number < 4; ++number) {
        const int part = count == AT_ONCE ? WIDTH : part_of(count, number);
        store_part(p + number * WIDTH, elementary::floats(value.v[number]), part);
    }
}

// No templates, so that they are preferred to those of elements.h.
inline elementary::FloatQuad load_lanes(const float* p, int count) { return load_four(p, count); }
inline elementary::FloatQuad load_lanes(const BFloat16* p, int count) { return load_four(p, count); }
inline elementary::FloatQuad load_lanes(const Half* p, int count) { return load_four(p, count); }
inline void store_lanes(float* p, elementary::FloatQuad value, int count) { store_four(p, value, count); }
inline void store_lanes(BFloat16* p, elementary::FloatQuad value, int count) { store_four(p, value, count); }
inline void store_lanes(Half* p, elementary::FloatQuad value, int count) { store_four(p, value, count); }

}  // namespace in_turns
}  // namespace SAMEBITS_ISA
}  // namespace samebits
