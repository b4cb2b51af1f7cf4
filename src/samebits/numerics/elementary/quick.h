// exp, exp2 and erf in fewer instructions on AVX-512, exp and exp2 on NEON: the same bits, every input.
//
// The generated functions scale twice, so that any processor can; AVX-512 does it once, with the same single rounding.
// It also has a minimum and a three-way bit operation, and where a NaN may stay any NaN nothing need look for it.
// NEON adds to the exponent where the result is a normal number, and leaves all other inputs to the generated function.
// That all 2^32 inputs agree is part of the test suite. A NaN stays a NaN.
#pragma once

#include "numerics/elementary/generated.h"

namespace samebits {
inline namespace SAMEBITS_ISA {
namespace quick {

#if defined(__AVX512F__)

// Up to -104 the result is +0, and what would be computed costs the processor dearly.
inline Floats exp(Floats x) {
    const __mmask16 more = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(-0x1.ap+6f), _CMP_NLE_UQ);
    const __m512 near = _mm512_min_ps(_mm512_set1_ps(0x1.64p+6f), x.v);
    const __m512 magic = _mm512_set1_ps(0x1.8p+23f), one = _mm512_set1_ps(1.0f);
    const __m512 whole = _mm512_sub_ps(_mm512_fmadd_ps(near, _mm512_set1_ps(0x1.715476p+0f), magic), magic);
    const __m512 partly = _mm512_fmadd_ps(whole, _mm512_set1_ps(-0x1.62e4p-1f), near);
    const __m512 rest = _mm512_fmadd_ps(whole, _mm512_set1_ps(-0x1.7f7d1cp-20f), partly);
    const __m512 high = _mm512_add_ps(rest, one);
    const __m512 lost = _mm512_add_ps(_mm512_sub_ps(one, high), rest);
    __m512 series = _mm512_fmadd_ps(_mm512_set1_ps(0x1.6a495cp-10f), rest, _mm512_set1_ps(0x1.1239ap-7f));
    series = _mm512_fmadd_ps(series, rest, _mm512_set1_ps(0x1.5558b4p-5f));
    series = _mm512_fmadd_ps(series, rest, _mm512_set1_ps(0x1.555492p-3f));
    series = _mm512_fmadd_ps(series, rest, _mm512_set1_ps(0x1.fffffcp-2f));
    const __m512 low = _mm512_fmadd_ps(_mm512_mul_ps(rest, rest), series, lost);
    return {_mm512_maskz_scalef_ps(more, _mm512_add_ps(high, low), whole)};
}

// Up to -150 likewise.
inline Floats exp2(Floats x) {
    const __mmask16 more = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(-150.0f), _CMP_NLE_UQ);
    const __m512 near = _mm512_min_ps(_mm512_set1_ps(0x1.02p+7f), x.v);
    const __m512 magic = _mm512_set1_ps(0x1.8p+23f), one = _mm512_set1_ps(1.0f), ln2 = _mm512_set1_ps(0x1.62e43p-1f);
    const __m512 whole = _mm512_sub_ps(_mm512_add_ps(near, magic), magic);
    const __m512 rest = _mm512_sub_ps(near, whole);
    const __m512 high = _mm512_fmadd_ps(rest, ln2, one);
    const __m512 lost = _mm512_fmadd_ps(rest, ln2, _mm512_sub_ps(one, high));
    __m512 series = _mm512_fmadd_ps(_mm512_set1_ps(0x1.416024p-13f), rest, _mm512_set1_ps(0x1.5f02fep-10f));
    series = _mm512_fmadd_ps(series, rest, _mm512_set1_ps(0x1.3b2deap-7f));
    series = _mm512_fmadd_ps(series, rest, _mm512_set1_ps(0x1.c6af8ap-5f));
    series = _mm512_fmadd_ps(series, rest, _mm512_set1_ps(0x1.ebfbdcp-3f));
    series = _mm512_fmadd_ps(rest, series, _mm512_set1_ps(-0x1.05c61p-29f));
    return {_mm512_maskz_scalef_ps(more, _mm512_add_ps(high, _mm512_fmadd_ps(rest, series, lost)), whole)};
}

// Horner's scheme, highest degree first.
template <class... More>
inline __m512 horner(__m512 x, float first, More... more) {
    __m512 result = _mm512_set1_ps(first);
    ((result = _mm512_fmadd_ps(result, x, _mm512_set1_ps(more))), ...);
    return result;
}

// The lesser of two magnitudes, without a sign.
constexpr int LESSER_MAGNITUDE = 0xa;

inline Floats erf(Floats x) {
    const __m512 magic = _mm512_set1_ps(0x1.8p+23f - 2.0f);
    const __m512 bounded = _mm512_range_ps(x.v, _mm512_set1_ps(0x1p+2f), LESSER_MAGNITUDE);
    const __m512 t = _mm512_sub_ps(bounded, _mm512_set1_ps(0x1.a0788p-1f));
    const __m512 slope = horner(t, 0x1.17443cp-12f, -0x1.7faa16p-9f, 0x1.141f5cp-6f, -0x1.24b4c8p-4f, -0x1.2e00bcp+0f,
                                -0x1.ae134ap+1f);
    const __m512 rounded = _mm512_fmadd_ps(slope, t, magic);
    const __m512 rest = _mm512_fmadd_ps(slope, t, _mm512_sub_ps(magic, rounded));
    const __m512 power = horner(rest, 0x1.5fb03cp-10f, 0x1.3d378p-7f, 0x1.c6adbep-5f, 0x1.ebf862p-3f, 0x1.62e432p-1f,
                                0x1.000002p+0f);
    const __m512i shifted = _mm512_slli_epi32(_mm512_castps_si512(rounded), 23);
    const __m512i erfc = _mm512_add_epi32(_mm512_castps_si512(power), shifted);
    const __m512 square = _mm512_fmadd_ps(x.v, x.v, _mm512_set1_ps(-0x1p-1f));
    const __m512 ratio = horner(square, 0x1.306414p-14f, -0x1.2856cap-11f, 0x1.c879c4p-9f, -0x1.2b8dfap-6f,
                                0x1.45432ap-4f, -0x1.1fd164p-2f, -0x1.1ae14cp-5f);
    // The square from the split on, where it has another value than just before; false for a NaN, which so stays one.
    const __mmask16 large = _mm512_cmp_ps_mask(square, _mm512_set1_ps(0x1.648p-1f), _CMP_GE_OQ);
    const __m512 result = _mm512_mask_sub_ps(_mm512_fmadd_ps(x.v, ratio, x.v), large, _mm512_set1_ps(1.0f),
                                             _mm512_castsi512_ps(erfc));
    // The sign bit of x, all other bits of the result.
    const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000u));
    const __m512i bits = _mm512_ternarylogic_epi32(sign, _mm512_castps_si512(x.v), _mm512_castps_si512(result), 0xca);
    return {_mm512_castsi512_ps(bits)};
}

#elif defined(SAMEBITS_NEON)

// False where a lane is larger than the bound in size, or a NaN.
inline bool all_within(Floats x, float bound) {
    return vminvq_u32(vcaleq_f32(x.v, vdupq_n_f32(bound))) != 0;
}

// a * 2^n, exact: n are the lower bits of the rounded number.
inline Floats scaled(Floats a, Floats rounded) {
    const uint32x4_t shifted = vshlq_n_u32(vreinterpretq_u32_f32(rounded.v), 23);
    return {vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(a.v), shifted))};
}

// Horner's scheme, highest degree first.
template <class... More>
inline Floats horner(Floats x, float first, More... more) {
    Floats result = broadcast(first);
    ((result = fma(result, x, broadcast(more))), ...);
    return result;
}

inline Floats subtract(Floats a, Floats b) { return {vsubq_f32(a.v, b.v)}; }

// Up to 86 in size the result lies between 2^-125 and 2^125.
inline Floats exp(Floats x) {
    if (!all_within(x, 86.0f)) return elementary::exp(x);
    const Floats magic = broadcast(0x1.8p+23f), one = broadcast(1.0f);
    const Floats rounded = fma(x, broadcast(0x1.715476p+0f), magic);
    const Floats whole = subtract(rounded, magic);
    const Floats rest = fma(whole, broadcast(-0x1.7f7d1cp-20f), fma(whole, broadcast(-0x1.62e4p-1f), x));
    const Floats high = add(rest, one);
    const Floats lost = add(subtract(one, high), rest);
    const Floats series =
        horner(rest, 0x1.6a495cp-10f, 0x1.1239ap-7f, 0x1.5558b4p-5f, 0x1.555492p-3f, 0x1.fffffcp-2f);
    return scaled(add(high, fma(mul(rest, rest), series, lost)), rounded);
}

// Up to 125 likewise.
inline Floats exp2(Floats x) {
    if (!all_within(x, 125.0f)) return elementary::exp2(x);
    const Floats magic = broadcast(0x1.8p+23f), one = broadcast(1.0f), ln2 = broadcast(0x1.62e43p-1f);
    const Floats rounded = add(x, magic);
    const Floats rest = subtract(x, subtract(rounded, magic));
    const Floats high = fma(rest, ln2, one);
    const Floats lost = fma(rest, ln2, subtract(one, high));
    const Floats series = horner(rest, 0x1.416024p-13f, 0x1.5f02fep-10f, 0x1.3b2deap-7f, 0x1.c6af8ap-5f, 0x1.ebfbdcp-3f,
                                 -0x1.05c61p-29f);
    return scaled(add(high, fma(rest, series, lost)), rounded);
}

inline Floats erf(Floats x) { return elementary::erf(x); }

#else

inline Floats exp(Floats x) { return elementary::exp(x); }
inline Floats exp2(Floats x) { return elementary::exp2(x); }
inline Floats erf(Floats x) { return elementary::erf(x); }

#endif

}  // namespace quick
}  // namespace SAMEBITS_ISA
}  // namespace samebits
