// The storage formats: bits of float32, bfloat16 and float16, and the conversions that need no instruction of their own.
#pragma once

#include <cstdint>
#include <cstring>

namespace samebits {
// Each instruction set has its own inline namespace: equal names in differently compiled files must not be merged.
inline namespace SAMEBITS_ISA {

struct BFloat16 {
    uint16_t bits;
};
struct Half {
    uint16_t bits;
};

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

// Widening is exact. Narrowing rounds to nearest, ties to even. A NaN keeps its sign and the upper part of its payload
// and becomes quiet, but a bfloat16 is widened as it is. Half has its own form in every instruction set; all agree.
inline float widen(float value) { return value; }
inline float widen(BFloat16 value) { return from_bits(static_cast<uint32_t>(value.bits) << 16); }
inline void narrow(float value, float* out) { *out = value; }
inline void narrow(float value, BFloat16* out) {
    const uint32_t bits = to_bits(value);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    out->bits = static_cast<uint16_t>(nan ? ((bits >> 16) | 0x40u) : (rounded >> 16));
}

}  // namespace SAMEBITS_ISA
}  // namespace samebits
