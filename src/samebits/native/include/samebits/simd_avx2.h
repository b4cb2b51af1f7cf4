// Vectors of 8 float32 for AVX2 with FMA and F16C. Included by simd.h alone.
#pragma once

#include <immintrin.h>

#include "samebits/formats.h"

namespace samebits {
inline namespace SAMEBITS_ISA {

constexpr int WIDTH = 8;
struct Floats {
    __m256 v;
};
// One number at a time, by the same instructions as a vector.
inline float widen(Half value) { return _cvtsh_ss(value.bits); }
inline void narrow(float value, Half* out) { out->bits = _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }
inline Floats broadcast(float value) { return {_mm256_set1_ps(value)}; }
inline Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Floats mul(Floats a, Floats b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Floats square_root(Floats a) { return {_mm256_sqrt_ps(a.v)}; }
// The larger; b where one is a NaN.
inline Floats larger(Floats a, Floats b) { return {_mm256_max_ps(a.v, b.v)}; }
inline __m128i narrow_bfloat16(Floats a) {
    const __m256i bits = _mm256_castps_si256(a.v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}
inline Floats load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline Floats load(const BFloat16* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
}
inline Floats load(const Half* p) { return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
inline void store(float* p, Floats a) { _mm256_storeu_ps(p, a.v); }
inline void store(BFloat16* p, Floats a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow_bfloat16(a)); }
inline void store(Half* p, Floats a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline void transpose(Floats (&r)[WIDTH]) {
    __m256 pair[8], quad[8];
    for (int i = 0; i < 8; i += 2) {
        pair[i] = _mm256_unpacklo_ps(r[i].v, r[i + 1].v);
        pair[i + 1] = _mm256_unpackhi_ps(r[i].v, r[i + 1].v);
    }
    for (int i = 0; i < 8; i += 4) {
        for (int j = 0; j < 2; ++j) {
            quad[i + 2 * j] = _mm256_shuffle_ps(pair[i + j], pair[i + j + 2], 0x44);
            quad[i + 2 * j + 1] = _mm256_shuffle_ps(pair[i + j], pair[i + j + 2], 0xee);
        }
    }
    for (int j = 0; j < 4; ++j) {
        r[j].v = _mm256_permute2f128_ps(quad[j], quad[j + 4], 0x20);
        r[j + 4].v = _mm256_permute2f128_ps(quad[j], quad[j + 4], 0x31);
    }
}

}  // namespace SAMEBITS_ISA
}  // namespace samebits
