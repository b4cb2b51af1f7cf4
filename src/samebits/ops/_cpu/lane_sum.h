// The lanes order: a row is summed by LANES accumulators, element h into lane h % LANES, and the lanes fold by halves.
//
// The number of lanes is part of the order and equal for every instruction set; how many fit in one register is not.
#pragma once

#include <algorithm>
#include <cstdint>

#include "samebits/simd.h"

namespace samebits {
inline namespace SAMEBITS_ISA {

// Decides bits.
constexpr int LANES = 256;
constexpr int LANE_VECTORS = LANES / WIDTH;

// Calls body(h, count) for consecutive vectors: `count` of the elements from h on exist, all WIDTH of them but at the end.
template <class Body>
inline void each_vector(int64_t width, Body&& body) {
    int64_t h = 0;
    for (; h + WIDTH <= width; h += WIDTH) body(h, WIDTH);
    if (h < width) body(h, static_cast<int>(width - h));
}

// Speed only: loops over lanes are unrolled where that keeps lanes in registers; 64 narrow vectors stay in memory.
constexpr int LANE_UNROLL = WIDTH >= 8 ? 64 : 8;

inline float fold_by_halves(Floats (&lane)[LANE_VECTORS]) {
#pragma GCC unroll 8
    for (int half = LANE_VECTORS / 2; half > 0; half /= 2)
#pragma GCC unroll LANE_UNROLL
        for (int j = 0; j < half; ++j) lane[j] = add(lane[j], lane[j + half]);
    alignas(64) float rest[WIDTH];
    store(rest, lane[0]);
    for (int half = WIDTH / 2; half > 0; half /= 2)
        for (int j = 0; j < half; ++j) rest[j] = rest[j] + rest[j + half];
    return rest[0];
}

// step(sum, h, count) adds elements h, h + 1, ... to the accumulators of their lanes. Lanes past the end are not touched.
template <class Step>
inline float lane_sum(int64_t width, Step&& step) {
    Floats lane[LANE_VECTORS];
    for (Floats& sum : lane) sum = zeros();
    int64_t h = 0;
    for (; h + LANES <= width; h += LANES)
#pragma GCC unroll LANE_UNROLL
        for (int j = 0; j < LANE_VECTORS; ++j) lane[j] = step(lane[j], h + j * WIDTH, WIDTH);
    if (h == width) return fold_by_halves(lane);
    if constexpr (WIDTH == 16) {
        // All lanes stay in registers, so what is left of the row is told apart vector by vector.
#pragma GCC unroll 64
        for (int j = 0; j < LANE_VECTORS; ++j) {
            const int64_t start = h + j * WIDTH;
            if (start + WIDTH <= width) {
                lane[j] = step(lane[j], start, WIDTH);
            } else if (start < width) {
                alignas(64) float kept[WIDTH];
                store(kept, lane[j]);
                store_some(kept, step(lane[j], start, static_cast<int>(width - start)), static_cast<int>(width - start));
                lane[j] = load(kept);
            }
        }
    } else {
        alignas(64) float kept[LANES];
        for (int j = 0; j < LANE_VECTORS; ++j) store(kept + j * WIDTH, lane[j]);
        each_vector(width - h, [&](int64_t i, int count) {
            store_some(kept + i, step(load(kept + i), h + i, count), count);
        });
        for (int j = 0; j < LANE_VECTORS; ++j) lane[j] = load(kept + j * WIDTH);
    }
    return fold_by_halves(lane);
}

}  // namespace SAMEBITS_ISA
}  // namespace samebits
