// Element by element on the CPU, for every operator whose outputs each depend on one place of the inputs alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "numerics/elementary/generated.h"
#include "ops/_cpu/lane_sum.h"
#include "ops/_cpu/rows.h"

namespace samebits {
inline namespace SAMEBITS_ISA {

// Speed only: a share below this costs less than the waking of a second thread.
constexpr int64_t LEAST_SHARE = 1 << 13;

// Flattened: an elementary function that is called once a vector would load its constants every time.
template <class Body>
[[gnu::flatten]] void one_share(int64_t first, int64_t last, Body& body) {
    each_vector(last - first, [&](int64_t i, int count) { body(first + i, count); });
}

// Calls body(start, count) for consecutive vectors of a flat array: `count` of the elements from start on exist.
template <class Body>
void each_element(int64_t elements, int32_t threads, Body&& body) {
    const int64_t even = ((elements + threads - 1) / threads + LANES - 1) / LANES * LANES;
    const int64_t share = std::clamp(even, LEAST_SHARE, TASK_ELEMENTS);
    parallel_for((elements + share - 1) / share, threads, [&](int64_t task) {
        one_share(task * share, std::min(elements, (task + 1) * share), body);
    });
}

// Speed only: bytes by which memory is fetched ahead. The processor's own fetching stops at the end of every page.
constexpr int64_t BYTES_AHEAD = 2048;

// Parts of vectors in the form that the elementary functions and plain arithmetic take.
template <class T>
elementary::FloatLanes load_lanes(const T* p, int count) {
    __builtin_prefetch(reinterpret_cast<const char*>(p) + BYTES_AHEAD);
    return elementary::lanes(load_part(p, count));
}
template <class T>
void store_lanes(T* p, elementary::FloatLanes value, int count) {
    __builtin_prefetch(reinterpret_cast<char*>(p) + BYTES_AHEAD, 1);
    store_part(p, elementary::floats(value), count);
}

}  // namespace SAMEBITS_ISA
}  // namespace samebits
