// Sampling on the CPU: one row at a time, its scores in float32 in cache; a token that is dropped gets the score -inf.
#include <algorithm>
#include <cmath>
#include <vector>

#include "numerics/elementary/generated.h"
#include "ops/_cpu/lane_sum.h"
#include "ops/_cpu/rows.h"

namespace {
using namespace samebits;
using elementary::fill;
using elementary::FloatLanes;
using elementary::SignedLanes;
using elementary::UnsignedLanes;

constexpr float INFINITE = __builtin_inff();
constexpr int64_t NO_TOKEN = -1;
// The pattern after that of 1.0, which is the largest exponential.
constexpr uint32_t BEYOND_ONE = 0x3f800001u;

// How one row is drawn.
struct Choice {
    int64_t request, position;
    float temperature;
    int64_t top_k;
    float top_p;
    uint64_t seed;
};

inline FloatLanes lanes_at(const float* p) { return elementary::lanes(load(p)); }

// Scores, and -inf up to a whole number of lanes. The largest, or NaN where a score is.
template <class T>
float make_scores(int64_t vocabulary, int64_t padded, const T* x, float scale, float* z) {
    FloatLanes best = fill<FloatLanes>(-INFINITE);
    SignedLanes wrong = fill<SignedLanes>(0);
    const Floats factor = broadcast(scale);
    each_vector(vocabulary, [&](int64_t v, int count) { store_part(z + v, mul(load_part(x + v, count), factor), count); });
    std::fill(z + vocabulary, z + padded, -INFINITE);
    for (int64_t v = 0; v < padded; v += WIDTH) {
        const FloatLanes value = lanes_at(z + v);
        best = value > best ? value : best;
        wrong |= value != value;
    }
    float maximum = -INFINITE;
    for (int lane = 0; lane < WIDTH; ++lane) {
        if (wrong[lane]) return __builtin_nanf("");
        maximum = best[lane] > maximum ? best[lane] : maximum;
    }
    return maximum;
}

// Keys are ordered as the floats are.
inline uint32_t key_of(float value) {
    const uint32_t bits = to_bits(value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
inline float of_key(uint32_t key) { return from_bits(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

inline int64_t count_from(int64_t padded, const float* z, float least) {
    SignedLanes found = fill<SignedLanes>(0);
    const FloatLanes threshold = fill<FloatLanes>(least);
    for (int64_t v = 0; v < padded; v += WIDTH) found -= lanes_at(z + v) >= threshold;
    int64_t count = 0;
    for (int lane = 0; lane < WIDTH; ++lane) count += found[lane];
    return count;
}

// The k-th largest score: the largest number that k scores reach. Counts are exact, so no order matters.
inline float kth_largest(int64_t padded, const float* z, int64_t k) {
    uint32_t reached = key_of(-INFINITE), missed = key_of(INFINITE);
    while (missed - reached > 1) {
        const uint32_t middle = reached + (missed - reached) / 2;
        (count_from(padded, z, of_key(middle)) >= k ? reached : missed) = middle;
    }
    return of_key(reached);
}

// The largest t for which the exponentials from t on sum to top_p of the whole.
inline float nucleus(int64_t padded, const float* e, float top_p) {
    const auto sum_from = [&](float least) {
        const FloatLanes threshold = fill<FloatLanes>(least), nothing = fill<FloatLanes>(0.0f);
        return lane_sum(padded, [&](Floats sum, int64_t v, int) {
            const FloatLanes value = lanes_at(e + v);
            return add(sum, elementary::floats(value >= threshold ? value : nothing));
        });
    };
    const float target = top_p * sum_from(0.0f);
    uint32_t reached = 0, missed = BEYOND_ONE;
    while (missed - reached > 1) {
        const uint32_t middle = reached + (missed - reached) / 2;
        (sum_from(from_bits(middle)) >= target ? reached : missed) = middle;
    }
    return from_bits(reached);
}

// The scores that top_k and top_p drop become -inf.
inline void drop(int64_t vocabulary, int64_t padded, float maximum, const Choice& choice, float* z, float* e) {
    const FloatLanes nowhere = fill<FloatLanes>(-INFINITE);
    if (choice.top_k > 0 && choice.top_k < vocabulary) {
        const FloatLanes least = fill<FloatLanes>(kth_largest(padded, z, choice.top_k));
        for (int64_t v = 0; v < padded; v += WIDTH) {
            const FloatLanes value = lanes_at(z + v);
            store(z + v, elementary::floats(value >= least ? value : nowhere));
        }
    }
    if (choice.top_p < 1.0f) {
        const FloatLanes shift = fill<FloatLanes>(maximum);
        for (int64_t v = 0; v < padded; v += WIDTH)
            store(e + v, elementary::floats(elementary::exp(lanes_at(z + v) - shift)));
        const FloatLanes least = fill<FloatLanes>(nucleus(padded, e, choice.top_p));
        for (int64_t v = 0; v < padded; v += WIDTH)
            store(z + v, elementary::floats(lanes_at(e + v) >= least ? lanes_at(z + v) : nowhere));
    }
}

// The largest z + g, the first of equals. Philox gives four words a counter: 4 WIDTH tokens at a time.
inline int64_t largest_drawn(int64_t padded, const float* z, const Choice& choice) {
    const auto word = [](uint64_t value, int half) {
        return fill<UnsignedLanes>(static_cast<uint32_t>(half == 0 ? value : value >> 32));
    };
    const uint64_t request = static_cast<uint64_t>(choice.request), position = static_cast<uint64_t>(choice.position);
    int64_t token = NO_TOKEN;
    float best = -INFINITE;
    for (int64_t first = 0; first < padded; first += 4 * WIDTH) {
        if (*std::max_element(z + first, z + first + 4 * WIDTH) == -INFINITE) continue;
        UnsignedLanes block, words[4];
        for (int lane = 0; lane < WIDTH; ++lane) block[lane] = static_cast<uint32_t>(first / 4 + lane);
        elementary::philox(block, word(position, 0), word(request, 0), word(request, 1), word(choice.seed, 0),
                           word(choice.seed, 1), words);
        float logs[4][WIDTH];
        for (int i = 0; i < 4; ++i) {
            const FloatLanes bits = elementary::to_float(elementary::reinterpret<SignedLanes>(words[i] >> 9));
            const FloatLanes u = bits * fill<FloatLanes>(0x1p-23f) + fill<FloatLanes>(0x1p-24f);
            store(static_cast<float*>(logs[i]), elementary::floats(elementary::log(-elementary::log(u))));
        }
        for (int i = 0; i < 4 * WIDTH; ++i) {
            const float score = z[first + i] - logs[i % 4][i / 4];
            if (score > best) {
                best = score;
                token = first + i;
            }
        }
    }
    return token;
}

template <class T>
int64_t draw(int64_t vocabulary, const T* x, const Choice& choice) {
    thread_local std::vector<float> scores, exponentials;
    const int64_t padded = (vocabulary + LANES - 1) / LANES * LANES;
    if (static_cast<int64_t>(scores.size()) < padded) {
        scores.resize(static_cast<size_t>(padded));
        exponentials.resize(static_cast<size_t>(padded));
    }
    float* z = scores.data();
    const bool greedy = choice.temperature == 0.0f;
    const float maximum = make_scores(vocabulary, padded, x, greedy ? 1.0f : 1.0f / choice.temperature, z);
    if (!std::isfinite(maximum)) return NO_TOKEN;
    if (greedy) return std::find(z, z + vocabulary, maximum) - z;
    drop(vocabulary, padded, maximum, choice, z, exponentials.data());
    return largest_drawn(padded, z, choice);
}

}  // namespace

// tokens[m]: drawn from row m, as its request, position, temperature, top_k, top_p and seed say. They were checked.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(sample)(int32_t format, int64_t rows, int64_t vocabulary,
                                              const void* logits, const int64_t* requests, const int64_t* positions,
                                              const float* temperature, const int64_t* top_k, const float* top_p,
                                              const int64_t* seeds, int64_t* tokens, int32_t threads) {
    return guarded([&] {
        with_format(format, rows, vocabulary, [&](auto zero) {
            const auto* x = static_cast<const decltype(zero)*>(logits);
            each_row(rows, vocabulary, threads, [&](int64_t row) {
                const Choice choice{requests[row], positions[row], temperature[row],
                                    top_k[row],    top_p[row],     static_cast<uint64_t>(seeds[row])};
                tokens[row] = draw(vocabulary, x + row * vocabulary, choice);
            });
        });
    });
}
