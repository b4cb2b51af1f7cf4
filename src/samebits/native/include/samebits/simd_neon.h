// Vectors of 4 float32 for NEON, which every aarch64 CPU has. Included by simd.h alone.
#pragma once

#include <arm_neon.h>

#include "samebits/formats.h"

namespace samebits {
inline namespace SAMEBITS_ISA {

constexpr int WIDTH = 4;
struct Floats {
    float32x4_t v;
};

// One number at a time, by the same instructions as a vector. __fp16 is a storage type: it computes nothing.
inline float widen(Half value) {
    __fp16 half;
    std::memcpy(&half, &value, 2);
    return static_cast<float>(half);
}
inline void narrow(float value, Half* out) {
    const __fp16 half = static_cast<__fp16>(value);
    std::memcpy(out, &half, 2);
}

inline Floats broadcast(float value) { return {vdupq_n_f32(value)}; }
inline Floats add(Floats a, Floats b) { return {vaddq_f32(a.v, b.v)}; }
inline Floats mul(Floats a, Floats b) { return {vmulq_f32(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
// fma(broadcast(lane LANE of a), b, c): the lane is part of the instruction.
template <int LANE>
inline Floats fma_lane(Floats a, Floats b, Floats c) {
    return {vfmaq_laneq_f32(c.v, b.v, a.v, LANE)};
}
inline Floats square_root(Floats a) { return {vsqrtq_f32(a.v)}; }
// The larger; b where one is a NaN.
inline Floats larger(Floats a, Floats b) { return {vbslq_f32(vcgtq_f32(a.v, b.v), a.v, b.v)}; }

inline uint16x4_t narrow_bfloat16(Floats a) {
    const uint32x4_t bits = vreinterpretq_u32_f32(a.v);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(a.v, a.v), rounded, quiet), 16);
}
inline Floats load(const float* p) { return {vld1q_f32(p)}; }
inline Floats load(const BFloat16* p) {
    return {vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p)), 16))};
}
inline Floats load(const Half* p) {
    return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))))};
}
inline void store(float* p, Floats a) { vst1q_f32(p, a.v); }
inline void store(BFloat16* p, Floats a) { vst1_u16(reinterpret_cast<uint16_t*>(p), narrow_bfloat16(a)); }
inline void store(Half* p, Floats a) {
    vst1_u16(reinterpret_cast<uint16_t*>(p), vreinterpret_u16_f16(vcvt_f16_f32(a.v)));
}
// Row i, column j  <->  row j, column i.
inline void transpose(Floats (&r)[WIDTH]) {
    const float32x4_t a = vtrn1q_f32(r[0].v, r[1].v), b = vtrn2q_f32(r[0].v, r[1].v);
    const float32x4_t c = vtrn1q_f32(r[2].v, r[3].v), d = vtrn2q_f32(r[2].v, r[3].v);
    const auto low = [](float32x4_t x, float32x4_t y) {
        return vreinterpretq_f32_f64(vtrn1q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
    };
    const auto high = [](float32x4_t x, float32x4_t y) {
        return vreinterpretq_f32_f64(vtrn2q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
    };
    r[0].v = low(a, c), r[1].v = low(b, d), r[2].v = high(a, c), r[3].v = high(b, d);
}

}  // namespace SAMEBITS_ISA
}  // namespace samebits
