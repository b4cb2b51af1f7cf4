// The operations of elementary programs on one float or on a vector of WIDTH floats; the generated code is a template
// over the two. Knows no function. Each operation rounds as IEEE 754 says; integers wrap; shifts lie in 0..31.
#pragma once

#include <cstdint>
#include <cstring>

#include "samebits/simd.h"

namespace samebits {
inline namespace SAMEBITS_ISA {
namespace elementary {

typedef float FloatLanes __attribute__((vector_size(WIDTH * 4)));
typedef uint32_t UnsignedLanes __attribute__((vector_size(WIDTH * 4)));
typedef int32_t SignedLanes __attribute__((vector_size(WIDTH * 4)));

// From the float type to the integer and truth types beside it.
template <class F>
struct Beside;
template <>
struct Beside<float> {
    using Unsigned = uint32_t;
    using Signed = int32_t;
    using Truth = bool;
};
template <>
struct Beside<FloatLanes> {
    using Unsigned = UnsignedLanes;
    using Signed = SignedLanes;
    using Truth = SignedLanes;
};

template <class To, class From>
inline To reinterpret(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

// A constant in every lane.
template <class V, class Scalar>
inline V fill(Scalar scalar) {
    if constexpr (sizeof(V) == sizeof(Scalar)) {
        return scalar;
    } else {
        V v;
        for (int lane = 0; lane < WIDTH; ++lane) v[lane] = scalar;
        return v;
    }
}

template <class Truth, class V>
inline V choose(Truth condition, V yes, V no) {
    return condition ? yes : no;
}

inline float to_float(int32_t a) { return static_cast<float>(a); }
inline FloatLanes to_float(SignedLanes a) { return __builtin_convertvector(a, FloatLanes); }

inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline uint32_t multiply_high(uint32_t a, uint32_t b) {
    return static_cast<uint32_t>((static_cast<uint64_t>(a) * b) >> 32);
}

#if defined(__AVX512F__)
inline FloatLanes fused(FloatLanes a, FloatLanes b, FloatLanes c) { return _mm512_fmadd_ps(a, b, c); }
inline UnsignedLanes multiply_high(UnsignedLanes a, UnsignedLanes b) {
    const __m512i x = reinterpret<__m512i>(a), y = reinterpret<__m512i>(b);
    const __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(x, y), 32);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), _mm512_srli_epi64(y, 32));
    return reinterpret<UnsignedLanes>(_mm512_mask_mov_epi32(even, 0xaaaa, odd));
}
inline FloatLanes lanes(Floats a) { return a.v; }
inline Floats floats(FloatLanes a) { return {a}; }
#elif defined(__AVX2__)
inline FloatLanes fused(FloatLanes a, FloatLanes b, FloatLanes c) { return _mm256_fmadd_ps(a, b, c); }
inline UnsignedLanes multiply_high(UnsignedLanes a, UnsignedLanes b) {
    const __m256i x = reinterpret<__m256i>(a), y = reinterpret<__m256i>(b);
    const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(x, y), 32);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(y, 32));
    return reinterpret<UnsignedLanes>(_mm256_blend_epi32(even, odd, 0xaa));
}
inline FloatLanes lanes(Floats a) { return a.v; }
inline Floats floats(FloatLanes a) { return {a}; }
#elif defined(SAMEBITS_NEON)
inline FloatLanes lanes(Floats a) { return reinterpret<FloatLanes>(a); }
inline Floats floats(FloatLanes a) { return reinterpret<Floats>(a); }
inline FloatLanes fused(FloatLanes a, FloatLanes b, FloatLanes c) { return lanes(fma(floats(a), floats(b), floats(c))); }
inline UnsignedLanes multiply_high(UnsignedLanes a, UnsignedLanes b) {
    const uint32x4_t x = reinterpret<uint32x4_t>(a), y = reinterpret<uint32x4_t>(b);
    const uint64x2_t low = vmull_u32(vget_low_u32(x), vget_low_u32(y)), high = vmull_high_u32(x, y);
    return reinterpret<UnsignedLanes>(vuzp2q_u32(vreinterpretq_u32_u64(low), vreinterpretq_u32_u64(high)));
}
#else
inline FloatLanes fused(FloatLanes a, FloatLanes b, FloatLanes c) {
    FloatLanes r;
    for (int lane = 0; lane < WIDTH; ++lane) r[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
    return r;
}
inline UnsignedLanes multiply_high(UnsignedLanes a, UnsignedLanes b) {
    UnsignedLanes r;
    for (int lane = 0; lane < WIDTH; ++lane) r[lane] = multiply_high(a[lane], b[lane]);
    return r;
}
inline FloatLanes lanes(Floats a) { return reinterpret<FloatLanes>(a); }
inline Floats floats(FloatLanes a) { return reinterpret<Floats>(a); }
#endif

}  // namespace elementary
}  // namespace SAMEBITS_ISA
}  // namespace samebits
