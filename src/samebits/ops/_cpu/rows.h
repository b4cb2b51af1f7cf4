// Row by row on the CPU, for every operator whose rows are independent: parts of vectors, shares of rows, storage types.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "samebits/abi.h"
#include "samebits/simd.h"
#include "samebits/threads.h"

namespace samebits {
inline namespace SAMEBITS_ISA {

// Speed only: elements of one task.
constexpr int64_t TASK_ELEMENTS = 1 << 16;

template <class T>
Floats load_part(const T* p, int count) {
    return count == WIDTH ? load(p) : load_some(p, count);
}
template <class T>
void store_part(T* p, Floats value, int count) {
    count == WIDTH ? store(p, value) : store_some(p, value, count);
}

template <class Body>
void each_row(int64_t rows, int64_t width, int32_t threads, Body&& body) {
    const int64_t share = std::max<int64_t>(1, std::min(TASK_ELEMENTS / width, (rows + threads - 1) / threads));
    parallel_for((rows + share - 1) / share, threads, [&](int64_t task) {
        for (int64_t row = task * share; row < std::min(rows, (task + 1) * share); ++row) body(row);
    });
}

// Runs body(zero of the storage type) for a format number.
template <class Body>
void with_format(int32_t format, int64_t rows, int64_t width, Body&& body) {
    if (rows < 0) throw Error("rows must be at least 0, got " + std::to_string(rows));
    if (width < 1) throw Error("width must be at least 1, got " + std::to_string(width));
    if (format == FLOAT32) body(float{});
    else if (format == BFLOAT16) body(BFloat16{});
    else if (format == FLOAT16) body(Half{});
    else throw Error("format must be 0 (float32), 1 (bfloat16) or 2 (float16), got " + std::to_string(format));
}

}  // namespace SAMEBITS_ISA
}  // namespace samebits
