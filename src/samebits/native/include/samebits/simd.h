// Vectors of float32 for three instruction sets, and exact conversions from and to the storage types.
//
// WIDTH differs between instruction sets, so no kernel may let it shape a sum: vectorise over outputs, or fold a
// fixed number of lanes. Multiply-add is fused only where fma() is written; the compiler is told to add none itself.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace samebits {
// Each instruction set has its own inline namespace: equal names in differently compiled files must not be merged.
inline namespace SAMEBITS_ISA {

struct BFloat16 {
    uint16_t bits;
};
struct Half {
    uint16_t bits;
};

#if defined(__aarch64__)
using NativeHalf = __fp16;  // GCC has _Float16 in C++ on ARM only from version 13 on.
#else
using NativeHalf = _Float16;
#endif

enum Format : int32_t { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2 };

inline float from_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline uint32_t to_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

inline float widen(float value) { return value; }
inline float widen(BFloat16 value) { return from_bits(static_cast<uint32_t>(value.bits) << 16); }
inline float widen(Half value) {
    NativeHalf half;
    std::memcpy(&half, &value, 2);
    return static_cast<float>(half);
}

// Round to nearest, ties to even; a NaN stays a NaN (quiet).
inline void narrow(float value, float* out) { *out = value; }
inline void narrow(float value, BFloat16* out) {
    const uint32_t bits = to_bits(value);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    out->bits = static_cast<uint16_t>(nan ? ((bits >> 16) | 0x40u) : (rounded >> 16));
}
inline void narrow(float value, Half* out) {
    const NativeHalf half = static_cast<NativeHalf>(value);
    std::memcpy(out, &half, 2);
}

#if defined(__AVX512F__)

constexpr int WIDTH = 16;
struct Floats {
    __m512 v;
};
inline __mmask16 first(int count) { return static_cast<__mmask16>((1u << count) - 1u); }
inline Floats broadcast(float value) { return {_mm512_set1_ps(value)}; }
inline Floats add(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats mul(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
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

#elif defined(__AVX2__)

constexpr int WIDTH = 8;
struct Floats {
    __m256 v;
};
inline Floats broadcast(float value) { return {_mm256_set1_ps(value)}; }
inline Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Floats mul(Floats a, Floats b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
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

#else

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
template <class T>
inline Floats load(const T* p) {
    SAMEBITS_EACH(widen(p[i]));
}
template <class T>
inline void store(T* p, Floats a) {
    for (int i = 0; i < WIDTH; ++i) narrow(a.v[i], p + i);
}
#undef SAMEBITS_EACH
inline void transpose(Floats (&r)[WIDTH]) {
    for (int i = 0; i < WIDTH; ++i) {
        for (int j = 0; j < i; ++j) {
            const float kept = r[i].v[j];
            r[i].v[j] = r[j].v[i];
            r[j].v[i] = kept;
        }
    }
}

#endif

#if !defined(__AVX512F__)
// Tails go through a small buffer: slower than a masked load, equal in bits.
template <class T>
inline Floats load_some(const T* p, int count) {
    T buffer[WIDTH] = {};
    std::memcpy(buffer, p, static_cast<size_t>(count) * sizeof(T));
    return load(static_cast<const T*>(buffer));
}
template <class T>
inline void store_some(T* p, Floats a, int count) {
    T buffer[WIDTH];
    store(static_cast<T*>(buffer), a);
    std::memcpy(p, buffer, static_cast<size_t>(count) * sizeof(T));
}
#endif

inline Floats zeros() { return broadcast(0.0f); }

}  // namespace SAMEBITS_ISA
}  // namespace samebits
