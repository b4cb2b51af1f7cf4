// Attention on the CPU: the two C functions, from plain numbers to typed views.
#include "ops/attention/cpu_backward.h"
#include "ops/attention/cpu_forward.h"

namespace {
using namespace samebits;
using namespace samebits::attention;

// Sizes, strides and flags travel in one array, in this order; cpu_kernel.py writes it.
struct Numbers {
    int64_t format, tokens, sequences, heads, key_heads, head, pages_row, page_size, causal, window;
    int64_t q_token, q_head, k_token, k_head, v_token, v_head, dout_token, dout_head;
};
// So do the factors.
struct Factors {
    float softcap, score, cap, exponent, gradient;
};
struct Tables {
    const int64_t *q_start, *q_length, *k_start, *k_length;
    const int32_t* pages;
};

Layout layout_of(const Numbers& n, const Tables& t) {
    if (n.head < 1 || n.head > LANES || n.head % 8 != 0)
        throw Error("head size must be a multiple of 8 up to 256, got " + std::to_string(n.head));
    if (n.key_heads < 1 || n.heads % n.key_heads != 0)
        throw Error("heads must be a multiple of key heads, got " + std::to_string(n.heads) + " and " +
                    std::to_string(n.key_heads));
    return {n.sequences, n.heads,    n.key_heads, n.head,      t.q_start,  t.q_length,
            t.k_start,   t.k_length, t.pages,     n.pages_row, n.page_size};
}

Rule rule_of(const Numbers& n, const Factors& f) {
    return {n.causal != 0, n.window, f.softcap != 0.0f, f.score, f.cap, f.exponent};
}

template <class T>
Heads<const T> view(const void* data, int64_t token, int64_t head) {
    return {static_cast<const T*>(data), token, head};
}

template <class T>
Heads<T> dense(void* data, int64_t heads, int64_t head) {
    return {static_cast<T*>(data), heads * head, head};
}

}  // namespace

// out = softmax(rule(q k)) v, lse2 = the row's logarithm of the sum of weights to base two.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(attention_forward)(const Numbers* numbers, const Factors* factors,
                                                         const Tables* tables, const void* q, const void* k, const void* v,
                                                         void* out, float* lse2, int32_t threads) {
    return guarded([&] {
        const Numbers& n = *numbers;
        with_format(static_cast<int32_t>(n.format), n.tokens, n.head, [&](auto zero) {
            using T = decltype(zero);
            run_forward<T>({layout_of(n, *tables), rule_of(n, *factors), view<T>(q, n.q_token, n.q_head),
                            view<T>(k, n.k_token, n.k_head), view<T>(v, n.v_token, n.v_head),
                            dense<T>(out, n.heads, n.head), lse2},
                           threads);
        });
    });
}

// dq, dk, dv from dout, from what went in and what came out; delta is room for tokens * heads floats.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(attention_backward)(const Numbers* numbers, const Factors* factors,
                                                          const Tables* tables, const void* dout, const void* q,
                                                          const void* k, const void* v, const void* out, const float* lse2,
                                                          float* delta, void* dq, void* dk, void* dv, int32_t threads) {
    return guarded([&] {
        const Numbers& n = *numbers;
        with_format(static_cast<int32_t>(n.format), n.tokens, n.head, [&](auto zero) {
            using T = decltype(zero);
            run_backward<T>({layout_of(n, *tables), rule_of(n, *factors), factors->gradient,
                             view<T>(dout, n.dout_token, n.dout_head), view<T>(q, n.q_token, n.q_head),
                             view<T>(k, n.k_token, n.k_head), view<T>(v, n.v_token, n.v_head),
                             static_cast<const T*>(out), lse2, delta, dense<T>(dq, n.heads, n.head),
                             dense<T>(dk, n.key_heads, n.head), dense<T>(dv, n.key_heads, n.head)},
                            n.tokens, threads);
        });
    });
}
