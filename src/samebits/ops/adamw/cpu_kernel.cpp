// AdamW on the CPU: every tensor is read and written once; tensors are cut into tasks of equal size for the threads.
#include <vector>

#include "numerics/elementary/lanes.h"
#include "ops/_cpu/lane_sum.h"
#include "ops/_cpu/rows.h"

namespace {
using namespace samebits;

// One row of the table that Python hands over; pointers travel as integers.
struct Entry {
    int64_t size, param_format, grad_format, param, grad, exp_avg, exp_avg_sq, master;
};

struct Numbers {
    float decay, minus_step_size, root, beta1, rest1, beta2, rest2, eps;
};

Floats divide(Floats a, Floats b) { return elementary::floats(elementary::lanes(a) / elementary::lanes(b)); }

template <class T>
T* at(int64_t address, int64_t first) {
    return reinterpret_cast<T*>(address) + first;
}

// `weight` is what is updated: the parameter itself, or its float32 master, whose rounding the parameter becomes.
template <bool MASTER, class P, class G, class W>
void step(int64_t count, P* param, const G* grad, float* exp_avg, float* exp_avg_sq, W* weight, const Numbers& n) {
    const Floats decay = broadcast(n.decay), minus_step_size = broadcast(n.minus_step_size), root = broadcast(n.root);
    const Floats beta1 = broadcast(n.beta1), rest1 = broadcast(n.rest1);
    const Floats beta2 = broadcast(n.beta2), rest2 = broadcast(n.rest2), eps = broadcast(n.eps);
    each_vector(count, [&](int64_t i, int some) {
        const Floats g = load_part(grad + i, some);
        const Floats m = fma(load_part(exp_avg + i, some), beta1, mul(rest1, g));
        const Floats v = fma(load_part(exp_avg_sq + i, some), beta2, mul(mul(rest2, g), g));
        const Floats quotient = divide(m, fma(square_root(v), root, eps));
        const Floats p = fma(minus_step_size, quotient, mul(load_part(weight + i, some), decay));
        store_part(exp_avg + i, m, some);
        store_part(exp_avg_sq + i, v, some);
        store_part(weight + i, p, some);
        if constexpr (MASTER) store_part(param + i, p, some);
    });
}

template <class P, class G>
void part(const Entry& entry, int64_t first, int64_t count, const Numbers& numbers) {
    P* param = at<P>(entry.param, first);
    const G* grad = at<const G>(entry.grad, first);
    float *exp_avg = at<float>(entry.exp_avg, first), *exp_avg_sq = at<float>(entry.exp_avg_sq, first);
    if (entry.master == 0) step<false>(count, param, grad, exp_avg, exp_avg_sq, param, numbers);
    else step<true>(count, param, grad, exp_avg, exp_avg_sq, at<float>(entry.master, first), numbers);
}

void any_part(const Entry& entry, int64_t first, int64_t count, const Numbers& numbers) {
    with_format(static_cast<int32_t>(entry.param_format), 1, 1, [&](auto zero) {
        using P = decltype(zero);
        if (entry.grad_format == entry.param_format) part<P, P>(entry, first, count, numbers);
        else if (entry.grad_format == FLOAT32) part<P, float>(entry, first, count, numbers);
        else throw Error("a gradient must have its parameter's format or float32");
    });
}

}  // namespace

// m = fma(m, beta1, rest1*g); v = fma(v, beta2, (rest2*g)*g); p = fma(minus_step_size, m / fma(sqrt(v), root, eps), p*decay)
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(adamw)(int64_t tensors, const void* table, float decay, float minus_step_size,
                                             float root, float beta1, float rest1, float beta2, float rest2, float eps,
                                             int32_t threads) {
    return guarded([&] {
        const Numbers numbers{decay, minus_step_size, root, beta1, rest1, beta2, rest2, eps};
        const Entry* entries = static_cast<const Entry*>(table);
        struct Task {
            int64_t entry, first;
        };
        std::vector<Task> tasks;
        for (int64_t entry = 0; entry < tensors; ++entry)
            for (int64_t first = 0; first < entries[entry].size; first += TASK_ELEMENTS) tasks.push_back({entry, first});
        parallel_for(static_cast<int64_t>(tasks.size()), threads, [&](int64_t number) {
            const auto [entry, first] = tasks[static_cast<size_t>(number)];
            any_part(entries[entry], first, std::min(TASK_ELEMENTS, entries[entry].size - first), numbers);
        });
    });
}
