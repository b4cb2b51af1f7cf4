// Rotary position embedding on the CPU: a token's sines and cosines are computed once and turn all of its heads.
#include <vector>

#include "ops/_cpu/elements.h"

namespace {
using namespace samebits;
using elementary::FloatLanes;
using elementary::fused;

struct Angles {
    const int64_t* positions;
    const float* frequencies;
    float factor;       // cosine and sine are multiplied by it, unless it is 1
    bool interleaved;   // pairs (2i, 2i + 1) instead of (i, i + pairs)
    float sign;         // 1, or -1 for the opposite angle
};

// One cosine and one sine a pair.
[[gnu::flatten]] void fill_table(const Angles& angles, int64_t token, int64_t pairs, float* cosine, float* sine) {
    const float position = static_cast<float>(angles.positions[token]);
    each_vector(pairs, [&](int64_t i, int count) {
        const FloatLanes phase = position * load_lanes(angles.frequencies + i, count);
        FloatLanes c = elementary::cos(phase), s = elementary::sin(phase);
        if (angles.factor != 1.0f) {
            c = c * angles.factor;
            s = s * angles.factor;
        }
        store_lanes(cosine + i, c, count);
        store_lanes(sine + i, s * angles.sign, count);
    });
}

// For neighbours that form a pair: each cosine twice, and each sine under both signs, so that one formula serves the two.
void spread_table(int64_t pairs, const float* cosine, const float* sine, float* both_cosines, float* both_sines) {
    for (int64_t i = 0; i < pairs; ++i) {
        both_cosines[2 * i] = both_cosines[2 * i + 1] = cosine[i];
        both_sines[2 * i] = -sine[i];
        both_sines[2 * i + 1] = sine[i];
    }
}

inline FloatLanes neighbours_swapped(FloatLanes a) {
#if defined(__clang__)
    FloatLanes swapped;
    for (int lane = 0; lane < WIDTH; ++lane) swapped[lane] = a[lane ^ 1];
    return swapped;
#else
    elementary::SignedLanes partner;
    for (int lane = 0; lane < WIDTH; ++lane) partner[lane] = lane ^ 1;
    return __builtin_shuffle(a, partner);
#endif
}

// y_a = fma(a, c, -(b * s)), y_b = fma(b, c, a * s).
template <class T>
void turn_halves(int64_t pairs, const T* x, const float* cosine, const float* sine, T* y) {
    each_vector(pairs, [&](int64_t i, int count) {
        const FloatLanes a = load_lanes(x + i, count), b = load_lanes(x + pairs + i, count);
        const FloatLanes c = load_lanes(cosine + i, count), s = load_lanes(sine + i, count);
        store_lanes(y + i, fused(a, c, -(b * s)), count);
        store_lanes(y + pairs + i, fused(b, c, a * s), count);
    });
}

template <class T>
void turn_neighbours(int64_t size, const T* x, const float* both_cosines, const float* both_sines, T* y) {
    each_vector(size, [&](int64_t i, int count) {
        const FloatLanes value = load_lanes(x + i, count);
        const FloatLanes across = neighbours_swapped(value) * load_lanes(both_sines + i, count);
        store_lanes(y + i, fused(value, load_lanes(both_cosines + i, count), across), count);
    });
}

template <class T>
void rotate(int64_t tokens, int64_t heads, int64_t size, const T* x, const Angles& angles, T* y, int32_t threads) {
    const int64_t pairs = size / 2, width = heads * size;
    const int64_t even = (tokens + threads - 1) / threads;
    const int64_t share = std::max<int64_t>(1, std::clamp(even, LEAST_SHARE / width, TASK_ELEMENTS / width));
    parallel_for((tokens + share - 1) / share, threads, [&](int64_t task) {
        std::vector<float> table(static_cast<size_t>(3 * size));
        float *cosine = table.data(), *sine = cosine + pairs, *both_cosines = sine + pairs;
        float* both_sines = both_cosines + size;
        for (int64_t token = task * share; token < std::min(tokens, (task + 1) * share); ++token) {
            fill_table(angles, token, pairs, cosine, sine);
            if (angles.interleaved) spread_table(pairs, cosine, sine, both_cosines, both_sines);
            for (int64_t head = 0; head < heads; ++head) {
                const int64_t at = token * width + head * size;
                if (angles.interleaved) turn_neighbours(size, x + at, both_cosines, both_sines, y + at);
                else turn_halves(pairs, x + at, cosine, sine, y + at);
            }
        }
    });
}

}  // namespace

// Turns every pair of every head by its token's position times the pair's frequency; `opposite`: back again.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(rope_rotate)(int32_t format, int64_t tokens, int64_t heads, int64_t size,
                                                   const void* x, const int64_t* positions, const float* frequencies,
                                                   float factor, int32_t interleaved, int32_t opposite, void* y,
                                                   int32_t threads) {
    return guarded([&] {
        if (size % 2) throw Error("size must be even, got " + std::to_string(size));
        with_format(format, tokens, heads * size, [&](auto zero) {
            using T = decltype(zero);
            const Angles angles{positions, frequencies, factor, interleaved != 0, opposite ? -1.0f : 1.0f};
            rotate(tokens, heads, size, static_cast<const T*>(x), angles, static_cast<T*>(y), threads);
        });
    });
}
