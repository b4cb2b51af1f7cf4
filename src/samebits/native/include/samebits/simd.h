// Vectors of float32 for every instruction set, and exact conversions from and to the storage types.
//
// WIDTH differs between instruction sets, so no kernel may let it shape a sum: vectorise over outputs, or fold a
// fixed number of lanes. Multiply-add is fused only where fma() is written; the compiler is told to add none itself.
#pragma once

#include "samebits/formats.h"

// What a kernel file is compiled for decides; sources.py has the flags.
#if defined(__AVX512F__)
#include "samebits/simd_avx512.h"
#elif defined(__AVX2__)
#include "samebits/simd_avx2.h"
#elif defined(SAMEBITS_NEON)
#include "samebits/simd_neon.h"
#else
#include "samebits/simd_baseline.h"
#endif

namespace samebits {
inline namespace SAMEBITS_ISA {

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
