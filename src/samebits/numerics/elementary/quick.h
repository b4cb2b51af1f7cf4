// exp and exp2 in fewer instructions where the processor can scale by a power of two in one: the same bits, every input.
//
// The generated functions scale twice, so that any processor can; AVX-512 does it once, with the same single rounding.
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

#else

inline Floats exp(Floats x) { return elementary::exp(x); }
inline Floats exp2(Floats x) { return elementary::exp2(x); }

#endif

}  // namespace quick
}  // namespace SAMEBITS_ISA
}  // namespace samebits
