// What every caller of the library asks first: its source digest, what this CPU can run, and the last error.
#include "samebits/abi.h"

#include <cstring>

namespace samebits {
namespace {
thread_local std::string last_error;
}

void remember_error(const char* message) noexcept {
    try {
        last_error = message;
    } catch (...) {
        last_error.clear();
    }
}

}  // namespace samebits

SAMEBITS_EXPORT const char* samebits_last_error() { return samebits::last_error.c_str(); }

SAMEBITS_EXPORT const char* samebits_source_digest() { return SAMEBITS_SOURCE_DIGEST; }

SAMEBITS_EXPORT const char* samebits_build_digest() { return SAMEBITS_BUILD_DIGEST; }

SAMEBITS_EXPORT const char* samebits_compiler() { return SAMEBITS_COMPILER; }

// The instruction sets this CPU and its operating system can run, widest last.
SAMEBITS_EXPORT const char* samebits_instruction_sets() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx512 ? "baseline avx2 avx512" : avx2 ? "baseline avx2" : "baseline";
#elif defined(__aarch64__)
    return "baseline neon";
#else
    return "baseline";
#endif
}

// Fails on purpose, so that tests can see the error path work: 1 refused, 2 out of memory, 3 unforeseen.
SAMEBITS_EXPORT int32_t samebits_fail(int32_t how) {
    return samebits::guarded([&] {
        if (how == 1) throw samebits::Error("refused on purpose");
        if (how == 2) throw std::bad_alloc();
        if (how == 3) throw 3;
    });
}
