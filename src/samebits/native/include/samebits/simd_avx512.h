// Vectors of 16 float32 for AVX-512 (F, BW, DQ, VL). Included by simd.h alone.
#pragma once

#include <immintrin.h>

#include "samebits/formats.h"

namespace samebits {
inline namespace SAMEBITS_ISA {

constexpr int WIDTH = 16;
struct Floats {
    __m512 v;
};
inline __mmask16 first(int count) { return static_cast<__mmask16>((1u << count) - 1u); }
// One number at a time, by the same instructions as a vector.
inline float widen(Half value) { return _cvtsh_ss(value.bits); }
inline void narrow(float value, Half* out) { out->bits = _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }
inline Floats broadcast(float value) { return {_mm512_set1_ps(value)}; }
inline Floats add(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats mul(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Floats square_root(Floats a) { return {_mm512_sqrt_ps(a.v)}; }
// The larger; b where one is a NaN.
inline Floats larger(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Floats widen_bfloat16(__m256i bits) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline __m256i narrow_bfloat16(Floats a) {
    const __m512i bits = _mm512_castps_si512(a.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
}
constexpr int NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
inline Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Floats load(const BFloat16* p) { return widen_bfloat16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline Floats load(const Half* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
inline Floats load_some(const float* p, int count) { return {_mm512_maskz_loadu_ps(first(count), p)}; }
inline Floats load_some(const BFloat16* p, int count) { return widen_bfloat16(_mm256_maskz_loadu_epi16(first(count), p)); }
inline Floats load_some(const Half* p, int count) { return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(count), p))}; }
inline void store(float* p, Floats a) { _mm512_storeu_ps(p, a.v); }
inline void store(BFloat16* p, Floats a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_bfloat16(a)); }
inline void store(Half* p, Floats a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, NEAREST));
}
inline void store_some(float* p, Floats a, int count) { _mm512_mask_storeu_ps(p, first(count), a.v); }
inline void store_some(BFloat16* p, Floats a, int count) {
    _mm256_mask_storeu_epi16(p, first(count), narrow_bfloat16(a));
}
inline void store_some(Half* p, Floats a, int count) {
    _mm256_mask_storeu_epi16(p, first(count), _mm512_cvtps_ph(a.v, NEAREST));
}
// Row i, column j  <->  row j, column i.
inline void transpose(Floats (&r)[WIDTH]) {
    __m512 pair[16];
    for (int i = 0; i < 16; i += 2) {
        pair[i] = _mm512_unpacklo_ps(r[i].v, r[i + 1].v);
        pair[i + 1] = _mm512_unpackhi_ps(r[i].v, r[i + 1].v);
    }
    __m512 quad[16];
    for (int i = 0; i < 16; i += 4) {
        for (int j = 0; j < 2; ++j) {
            const __m512d low = _mm512_castps_pd(pair[i + j]), high = _mm512_castps_pd(pair[i + j + 2]);
            quad[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            quad[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    }
    for (int j = 0; j < 4; ++j) {
        const __m512 even_low = _mm512_shuffle_f32x4(quad[j], quad[j + 4], 0x88);
        const __m512 odd_low = _mm512_shuffle_f32x4(quad[j], quad[j + 4], 0xdd);
        const __m512 even_high = _mm512_shuffle_f32x4(quad[j + 8], quad[j + 12], 0x88);
        const __m512 odd_high = _mm512_shuffle_f32x4(quad[j + 8], quad[j + 12], 0xdd);
        r[j].v = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
        r[j + 4].v = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
        r[j + 8].v = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
        r[j + 12].v = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
    }
}

}  // namespace SAMEBITS_ISA
}  // namespace samebits
