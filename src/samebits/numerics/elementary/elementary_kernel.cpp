// Elementary functions over arrays, Philox words, and the exhaustive measurement of a function's error.
#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <string>
#include <utility>

#include "quick.h"
#include "samebits/abi.h"
#include "samebits/threads.h"

namespace {

using namespace samebits;
using elementary::Function;
using elementary::FUNCTION_COUNT;

// Elements of one task: a few cache pages, so that threads share the work evenly. Speed only.
constexpr int64_t BLOCK = 1 << 14;
constexpr uint32_t NAN_BITS = 0x7fc00000u;

using Range = void (*)(const float* in, float* out, int64_t count);

template <int32_t function>
void apply_range(const float* in, float* out, int64_t count) {
    int64_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH) store(out + i, elementary::apply<function>(load(in + i)));
    for (; i < count; ++i) out[i] = elementary::apply<function>(in[i]);
}

template <int32_t... function>
Range range_of(int32_t wanted, std::integer_sequence<int32_t, function...>) {
    constexpr std::array<Range, sizeof...(function)> ranges = {apply_range<function>...};
    if (wanted < 0 || wanted >= FUNCTION_COUNT) {
        throw Error("function=" + std::to_string(wanted) + " is unknown; allowed: 0.." +
                    std::to_string(FUNCTION_COUNT - 1));
    }
    return ranges[static_cast<size_t>(wanted)];
}
Range range_of(int32_t wanted) { return range_of(wanted, std::make_integer_sequence<int32_t, FUNCTION_COUNT>()); }

// The C library's double functions err by about 2^-29 of a float32 ulp: exact for our purpose.
double reference(Function function, double x) {
    switch (function) {
        case Function::exp: return std::exp(x);
        case Function::exp2: return std::exp2(x);
        case Function::log: return std::log(x);
        case Function::rsqrt: return 1.0 / std::sqrt(x);
        case Function::sin: return std::sin(x);
        case Function::cos: return std::cos(x);
        case Function::tanh: return std::tanh(x);
        case Function::erf: return std::erf(x);
        case Function::sigmoid: return 1.0 / (1.0 + std::exp(-x));
    }
    throw Error("no reference for function=" + std::to_string(static_cast<int32_t>(function)));
}

// Distance in float32 ulps of the exact value; subnormals have the ulp 2^-149, beyond the largest number lies 2^128.
// A wrong sign, a NaN where none belongs (or the reverse) and a NaN of other bits count as infinite.
double ulps(float result, double exact) {
    if (std::isnan(exact)) return to_bits(result) == NAN_BITS ? 0.0 : INFINITY;
    if (std::isnan(result) || std::signbit(result) != std::signbit(exact)) return INFINITY;
    if (to_bits(result) == to_bits(static_cast<float>(exact)) && (std::isinf(result) || exact == 0.0)) return 0.0;
    const double magnitude = std::min(std::fabs(exact), 0x1p128);
    const double distance = std::fabs(std::min(std::fabs(static_cast<double>(result)), 0x1p128) - magnitude);
    uint64_t bits;
    std::memcpy(&bits, &magnitude, 8);
    const int exponent = std::clamp(static_cast<int>(bits >> 52) - 1023, -126, 127);
    const uint64_t inverse_ulp_bits = static_cast<uint64_t>(1023 + 23 - exponent) << 52;
    double inverse_ulp;
    std::memcpy(&inverse_ulp, &inverse_ulp_bits, 8);
    return distance * inverse_ulp;
}

struct Worst {
    double ulp = -1.0;
    uint32_t input = 0;
    // The smallest input among equals, so that threads cannot change the answer.
    void take(double other_ulp, uint32_t other_input) {
        if (other_ulp > ulp || (other_ulp == ulp && other_input < input)) *this = {other_ulp, other_input};
    }
};

Worst worst_of_block(int32_t function, Range range, uint32_t first, int64_t count) {
    float in[1024], out[1024];
    Worst worst;
    for (int64_t start = 0; start < count; start += 1024) {
        const int64_t size = std::min<int64_t>(1024, count - start);
        for (int64_t i = 0; i < size; ++i) in[i] = from_bits(first + static_cast<uint32_t>(start + i));
        range(in, out, size);
        for (int64_t i = 0; i < size; ++i) {
            const double exact = reference(static_cast<Function>(function), static_cast<double>(in[i]));
            worst.take(ulps(out[i], exact), first + static_cast<uint32_t>(start + i));
        }
    }
    return worst;
}

// Word 4 * block + i is output i of the block.
void philox_blocks(uint64_t seed, uint32_t stream, int64_t first_block, int64_t blocks, uint32_t* out) {
    for (int64_t i = 0; i < blocks; ++i) {
        const uint64_t block = static_cast<uint64_t>(first_block + i);
        elementary::philox<uint32_t>(static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), stream, 0u,
                                     static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), out + 4 * i);
    }
}

int64_t blocks_of(int64_t count) { return (count + BLOCK - 1) / BLOCK; }

}  // namespace

// out[i] = function(in[i]); in and out may be the same array.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(elementary)(int32_t function, const float* in, float* out, int64_t count,
                                                  int32_t threads) {
    return guarded([&] {
        const Range range = range_of(function);
        parallel_for(blocks_of(count), threads, [&](int64_t block) {
            const int64_t start = block * BLOCK;
            range(in + start, out + start, std::min(BLOCK, count - start));
        });
    });
}

// out[i] = the square root of in[i], rounded once: an instruction of every processor. in and out may be the same array.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(square_root)(const float* in, float* out, int64_t count, int32_t threads) {
    return guarded([&] {
        parallel_for(blocks_of(count), threads, [&](int64_t block) {
            const int64_t stop = std::min(count, (block + 1) * BLOCK);
            for (int64_t i = block * BLOCK; i < stop; ++i) out[i] = std::sqrt(in[i]);
        });
    });
}

// The largest error over `count` consecutive bit patterns, and the first input that has it.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(elementary_worst)(int32_t function, uint32_t first_pattern, int64_t count,
                                                        double* worst_ulp, uint32_t* worst_input, int32_t threads) {
    return guarded([&] {
        const Range range = range_of(function);
        Worst worst;
        std::mutex lock;
        parallel_for(blocks_of(count), threads, [&](int64_t block) {
            const int64_t start = block * BLOCK;
            const uint32_t first = first_pattern + static_cast<uint32_t>(start);
            const Worst found = worst_of_block(function, range, first, std::min(BLOCK, count - start));
            const std::lock_guard<std::mutex> guard(lock);
            worst.take(found.ulp, found.input);
        });
        *worst_ulp = worst.ulp;
        *worst_input = worst.input;
    });
}

// The first `count` words of a Philox4x32-10 stream.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(philox)(uint64_t seed, uint32_t stream, uint32_t* out, int64_t count,
                                              int32_t threads) {
    return guarded([&] {
        parallel_for(blocks_of(count), threads, [&](int64_t task) {
            const int64_t start = task * BLOCK, size = std::min(BLOCK, count - start);
            philox_blocks(seed, stream, start / 4, size / 4, out + start);
            if (size % 4 != 0) {
                uint32_t last[4];
                philox_blocks(seed, stream, (start + size) / 4, 1, last);
                std::copy(last, last + size % 4, out + start + size - size % 4);
            }
        });
    });
}

// How many of `count` consecutive bit patterns give other bits by the quick form of exp (0), exp2 (1) or erf (2) than by
// the generated one. Two NaNs agree.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(elementary_quick_differs)(int32_t function, uint32_t first, int64_t count,
                                                                int64_t* differing, int32_t threads) {
    return guarded([&] {
        if (function < 0 || function > 2) throw Error("function must be 0, 1 or 2, got " + std::to_string(function));
        using Lanes = Floats (*)(Floats);
        constexpr Lanes plain_forms[] = {elementary::exp, elementary::exp2, elementary::erf};
        constexpr Lanes quick_forms[] = {quick::exp, quick::exp2, quick::erf};
        std::mutex lock;
        *differing = 0;
        parallel_for(blocks_of(count), threads, [&](int64_t block) {
            int64_t found = 0;
            const int64_t stop = std::min(count, (block + 1) * BLOCK);
            for (int64_t i = block * BLOCK; i < stop; i += WIDTH) {
                float in[WIDTH], plain[WIDTH], quicker[WIDTH];
                for (int lane = 0; lane < WIDTH; ++lane) in[lane] = from_bits(first + static_cast<uint32_t>(i + lane));
                const Floats x = load(static_cast<const float*>(in));
                store(static_cast<float*>(plain), plain_forms[function](x));
                store(static_cast<float*>(quicker), quick_forms[function](x));
                for (int lane = 0; lane < WIDTH; ++lane)
                    found += to_bits(plain[lane]) != to_bits(quicker[lane]) &&
                             !(std::isnan(plain[lane]) && std::isnan(quicker[lane]));
            }
            const std::lock_guard<std::mutex> guard(lock);
            *differing += found;
        });
    });
}
