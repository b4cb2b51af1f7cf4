// Strided views of matrices, and packing: any layout, any storage type -> float32 panels that a micro tile reads in order.
#pragma once

#include <cstdint>

#include "samebits/simd.h"

namespace samebits {
inline namespace SAMEBITS_ISA {

// A matrix in memory; strides count elements and may be anything.
template <class T>
struct View {
    const T* data;
    int64_t row, column;
    const T* at(int64_t i, int64_t j) const { return data + i * row + j * column; }
};

// Elements by which a row is fetched ahead while it is turned. Speed only.
constexpr int64_t PACK_AHEAD = 4 * WIDTH;

// out[k][lane] = source(k, lane) for lane < lanes, zero up to LANES. LANES is a multiple of WIDTH.
template <int LANES, class T>
void pack(const T* source, int64_t k_stride, int64_t lane_stride, int64_t depth, int lanes, float* out) {
    int lane = 0;
    if (lane_stride == 1) {
        for (; lane + WIDTH <= lanes; lane += WIDTH)
            for (int64_t k = 0; k < depth; ++k) store(out + k * LANES + lane, load(source + k * k_stride + lane));
        if (lane < lanes) {
            for (int64_t k = 0; k < depth; ++k)
                store(out + k * LANES + lane, load_some(source + k * k_stride + lane, lanes - lane));
            lane += WIDTH;
        }
    } else if (k_stride == 1) {
        for (; lane < lanes; lane += WIDTH) {
            const int count = lanes - lane < WIDTH ? lanes - lane : WIDTH;
            const T* first = source + lane * lane_stride;
            for (int64_t k = 0; k < depth; k += WIDTH) {
                const int steps = depth - k < WIDTH ? static_cast<int>(depth - k) : WIDTH;
                Floats block[WIDTH];
                for (int i = 0; i < WIDTH; ++i) {
                    const T* p = first + i * lane_stride + k;
                    __builtin_prefetch(p + PACK_AHEAD);
                    block[i] = i >= count ? zeros() : steps == WIDTH ? load(p) : load_some(p, steps);
                }
                transpose(block);
                for (int i = 0; i < steps; ++i) store(out + (k + i) * LANES + lane, block[i]);
            }
        }
    } else {
        for (int64_t k = 0; k < depth; ++k)
            for (int i = 0; i < LANES; ++i)
                out[k * LANES + i] = i < lanes ? widen(source[k * k_stride + i * lane_stride]) : 0.0f;
        return;
    }
    for (; lane < LANES; lane += WIDTH)
        for (int64_t k = 0; k < depth; ++k) store(out + k * LANES + lane, zeros());
}

}  // namespace SAMEBITS_ISA
}  // namespace samebits
