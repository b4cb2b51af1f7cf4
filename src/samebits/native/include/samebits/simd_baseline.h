// Four float32 in plain C++, for any CPU and compiler; the conversions of float16 are integer code, since not every
// supported compiler has a type for it. Included by simd.h alone.
#pragma once

#include <cmath>

#include "samebits/formats.h"

namespace samebits {
inline namespace SAMEBITS_ISA {

inline float widen(Half value) {
    const uint32_t sign = (value.bits & 0x8000u) << 16, exponent = (value.bits >> 10) & 31u, fraction = value.bits & 0x3ffu;
    if (exponent == 0) return from_bits(to_bits(static_cast<float>(fraction) * 0x1p-24f) | sign);
    if (exponent < 31) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    return from_bits(sign | 0x7f800000u | fraction << 13 | (fraction != 0 ? 0x400000u : 0u));
}
inline void narrow(float value, Half* out) {
    const uint32_t bits = to_bits(value), size = bits & 0x7fffffffu;
    uint32_t half;
    if (size > 0x7f800000u) half = 0x7e00u | ((size >> 13) & 0x3ffu);
    else if (size >= 0x477ff000u) half = 0x7c00u;  // from 65520 on, the middle between the largest and what would follow
    else if (size < 0x38800000u) half = to_bits(from_bits(size) + 0.5f) - to_bits(0.5f);  // the sum rounds to 2^-24
    else half = (size + 0xfffu + ((size >> 13) & 1u) - (112u << 23)) >> 13;
    out->bits = static_cast<uint16_t>(half | (bits >> 16 & 0x8000u));
}

constexpr int WIDTH = 4;
struct Floats {
    float v[WIDTH];
};
#define SAMEBITS_EACH(expression)                        \
    Floats r;                                            \
    for (int i = 0; i < WIDTH; ++i) r.v[i] = expression; \
    return r
inline Floats broadcast(float value) { SAMEBITS_EACH(value); }
inline Floats add(Floats a, Floats b) { SAMEBITS_EACH(a.v[i] + b.v[i]); }
inline Floats mul(Floats a, Floats b) { SAMEBITS_EACH(a.v[i] * b.v[i]); }
inline Floats fma(Floats a, Floats b, Floats c) { SAMEBITS_EACH(__builtin_fmaf(a.v[i], b.v[i], c.v[i])); }
inline Floats square_root(Floats a) { SAMEBITS_EACH(std::sqrt(a.v[i])); }
// The larger; b where one is a NaN.
inline Floats larger(Floats a, Floats b) { SAMEBITS_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
template <class T>
inline Floats load(const T* p) {
    SAMEBITS_EACH(widen(p[i]));
}
template <class T>
inline void store(T* p, Floats a) {
    for (int i = 0; i < WIDTH; ++i) narrow(a.v[i], p + i);
}
#undef SAMEBITS_EACH
// Row i, column j  <->  row j, column i.
inline void transpose(Floats (&r)[WIDTH]) {
    for (int i = 0; i < WIDTH; ++i) {
        for (int j = 0; j < i; ++j) {
            const float kept = r[i].v[j];
            r[i].v[j] = r[j].v[i];
            r[j].v[i] = kept;
        }
    }
}

}  // namespace SAMEBITS_ISA
}  // namespace samebits
