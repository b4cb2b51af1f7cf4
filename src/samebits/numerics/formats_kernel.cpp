// Storage formats over arrays, as every kernel converts them: by vectors with a tail, or one number at a time.
#include "samebits/abi.h"
#include "samebits/simd.h"
#include "samebits/threads.h"

#include <algorithm>

namespace {
using namespace samebits;

// Speed only: elements of one task.
constexpr int64_t BLOCK = 1 << 16;

template <class From, class To>
void convert(int32_t by_vectors, const From* in, To* out, int64_t count) {
    int64_t i = 0;
    if (by_vectors) {
        for (; i + WIDTH <= count; i += WIDTH) store(out + i, load(in + i));
        if (i < count) store_some(out + i, load_some(in + i, static_cast<int>(count - i)), static_cast<int>(count - i));
    } else {
        for (; i < count; ++i) narrow(widen(in[i]), out + i);
    }
}

template <class From, class To>
void convert_all(int32_t by_vectors, const void* in, void* out, int64_t count, int32_t threads) {
    parallel_for((count + BLOCK - 1) / BLOCK, threads, [&](int64_t task) {
        const int64_t first = task * BLOCK;
        convert(by_vectors, static_cast<const From*>(in) + first, static_cast<To*>(out) + first,
                std::min(BLOCK, count - first));
    });
}

}  // namespace

// `count` numbers from one format to another, one of which is float32.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(convert)(int32_t from, int32_t to, int32_t by_vectors, const void* in, void* out,
                                               int64_t count, int32_t threads) {
    return guarded([&] {
        if (from == BFLOAT16 && to == FLOAT32) convert_all<BFloat16, float>(by_vectors, in, out, count, threads);
        else if (from == FLOAT16 && to == FLOAT32) convert_all<Half, float>(by_vectors, in, out, count, threads);
        else if (from == FLOAT32 && to == BFLOAT16) convert_all<float, BFloat16>(by_vectors, in, out, count, threads);
        else if (from == FLOAT32 && to == FLOAT16) convert_all<float, Half>(by_vectors, in, out, count, threads);
        else throw Error("formats " + std::to_string(from) + " to " + std::to_string(to) + ": one must be 0 (float32)");
    });
}
