// The distillation loss on the CPU: a row of student and teacher is read from memory once and stays in cache.
#include "numerics/elementary/quick.h"
#include "ops/_cpu/lane_sum.h"
#include "ops/_cpu/rows.h"

namespace {
using namespace samebits;

// Places of the statistics that the backward needs, each an array of `rows`.
enum Statistic { STUDENT_MAXIMUM, TEACHER_MAXIMUM, STUDENT_SHARE, TEACHER_SHARE, PLAIN_SHARE };

struct Numbers {
    int64_t ignore_index;
    float inverse_temperature, divergence, entropy;  // a term of weight 0 is never computed
};

Floats subtract(Floats a, Floats b) { return elementary::floats(elementary::lanes(a) - elementary::lanes(b)); }

// The largest of a row, +0 for -0: which of the two a maximum meets depends on the order. A NaN shows in the sum.
template <class T>
float row_maximum(int64_t width, const T* x) {
    using elementary::FloatLanes;
    const float lowest = -__builtin_inff();
    FloatLanes best[4];
    for (FloatLanes& each : best) each = elementary::fill<FloatLanes>(lowest);
    const auto take = [&](FloatLanes& most, FloatLanes value) { most = value > most ? value : most; };
    int64_t v = 0;
    for (; v + 4 * WIDTH <= width; v += 4 * WIDTH)
        for (int j = 0; j < 4; ++j) take(best[j], elementary::lanes(load(x + v + j * WIDTH)));
    for (; v + WIDTH <= width; v += WIDTH) take(best[0], elementary::lanes(load(x + v)));
    float maximum = lowest;
    for (; v < width; ++v) maximum = widen(x[v]) > maximum ? widen(x[v]) : maximum;
    for (const FloatLanes& each : best)
        for (int lane = 0; lane < WIDTH; ++lane) maximum = each[lane] > maximum ? each[lane] : maximum;
    return maximum + 0.0f;
}

// softmax(x * inverse): d = x * inverse - maximum * inverse, e = exp(d).
template <class T>
struct Softmax {
    const T* x;
    Floats inverse, shift;
    float total = 0.0f;

    Softmax(const T* x, float maximum, float inverse)
        : x(x), inverse(broadcast(inverse)), shift(broadcast(maximum * inverse)) {}
    Floats shifted(int64_t v, int count) const { return subtract(mul(load_part(x + v, count), inverse), shift); }
    Floats weight(int64_t v, int count) const { return quick::exp(shifted(v, count)); }
    void add_up(int64_t width) {
        total = lane_sum(width, [&](Floats sum, int64_t v, int count) { return add(sum, weight(v, count)); });
    }
};

// e^-gap - 1 + gap where |gap| < 1, by the series of x^2 (1/2! + x/3! + ...): never negative, and 0 for 0.
Floats excess(Floats gap) {
    constexpr float factorials[] = {6.0f, 24.0f, 120.0f, 720.0f, 5040.0f, 40320.0f, 362880.0f, 3628800.0f, 39916800.0f};
    const Floats x = subtract(zeros(), gap);
    Floats series = broadcast(1.0f / factorials[8]);
    for (int k = 7; k >= 0; --k) series = fma(series, x, broadcast(1.0f / factorials[k]));
    return mul(mul(x, x), fma(series, x, broadcast(0.5f)));
}

template <class T>
float row_divergence(int64_t width, const Softmax<T>& teacher, const Softmax<T>& student) {
    const Floats share = broadcast(1.0f / teacher.total), student_share = broadcast(1.0f / student.total);
    const Floats log_teacher = broadcast(elementary::log(teacher.total));
    const Floats log_student = broadcast(elementary::log(student.total));
    return lane_sum(width, [&](Floats sum, int64_t v, int count) {
        const Floats d = teacher.shifted(v, count);
        const Floats mine = student.shifted(v, count);
        const Floats p = mul(quick::exp(d), share), q = mul(quick::exp(mine), student_share);
        const Floats gap = subtract(subtract(d, log_teacher), subtract(mine, log_student));
        // Each term is p (e^-gap - 1 + gap), which is never negative: q - p + p gap where that does not cancel.
        const auto g = elementary::lanes(gap), one = elementary::fill<elementary::FloatLanes>(1.0f);
        const auto near = elementary::lanes(fma(p, excess(gap), sum));
        const auto far = elementary::lanes(add(sum, fma(p, gap, subtract(q, p))));
        const auto some = (g < one) & (g > -one) ? near : far;
        // Where the teacher gives probability 0, whatever its logarithm.
        const auto missing = elementary::lanes(p) == elementary::fill<elementary::FloatLanes>(0.0f);
        return elementary::floats(missing ? elementary::lanes(add(sum, q)) : some);
    });
}

template <class T>
void forward(int64_t rows, int64_t width, const T* student, const T* teacher, const int64_t* targets,
             const Numbers& numbers, float* loss, float* statistics, int32_t threads) {
    each_row(rows, width, threads, [&](int64_t row) {
        const T *mine = student + row * width, *theirs = teacher + row * width;
        const auto keep = [&](Statistic place, float value) { statistics[place * rows + row] = value; };
        const bool ignored = targets != nullptr && targets[row] == numbers.ignore_index;
        for (int place = 0; place < 5; ++place) keep(static_cast<Statistic>(place), 0.0f);
        loss[row] = 0.0f;
        if (ignored) return;
        const float maximum = row_maximum(width, mine);
        keep(STUDENT_MAXIMUM, maximum);
        Softmax<T> tempered(mine, maximum, numbers.inverse_temperature);
        if (numbers.divergence != 0.0f) tempered.add_up(width);
        float entropy = 0.0f;
        if (numbers.entropy != 0.0f) {
            Softmax<T> plain(mine, maximum, 1.0f);
            if (numbers.divergence != 0.0f && numbers.inverse_temperature == 1.0f) plain.total = tempered.total;
            else plain.add_up(width);
            keep(PLAIN_SHARE, 1.0f / plain.total);
            entropy = numbers.entropy * (elementary::log(plain.total) - (widen(mine[targets[row]]) - maximum));
            loss[row] = entropy;
        }
        if (numbers.divergence != 0.0f) {
            const float teacher_maximum = row_maximum(width, theirs);
            keep(TEACHER_MAXIMUM, teacher_maximum);
            Softmax<T> wanted(theirs, teacher_maximum, numbers.inverse_temperature);
            wanted.add_up(width);
            keep(STUDENT_SHARE, 1.0f / tempered.total);
            keep(TEACHER_SHARE, 1.0f / wanted.total);
            const float divergence = row_divergence(width, wanted, tempered);
            loss[row] = numbers.entropy != 0.0f ? __builtin_fmaf(numbers.divergence, divergence, entropy)
                                                : numbers.divergence * divergence;
        }
    });
}

template <class T>
void backward(int64_t rows, int64_t width, const float* upstream, const T* student, const T* teacher,
              const int64_t* targets, const Numbers& numbers, const float* statistics, T* dstudent, int32_t threads) {
    each_row(rows, width, threads, [&](int64_t row) {
        const auto kept = [&](Statistic place) { return statistics[place * rows + row]; };
        T* out = dstudent + row * width;
        if (targets != nullptr && targets[row] == numbers.ignore_index) {
            each_vector(width, [&](int64_t v, int count) { store_part(out + v, zeros(), count); });
            return;
        }
        const T *mine = student + row * width, *theirs = teacher + row * width;
        const Softmax<T> tempered(mine, kept(STUDENT_MAXIMUM), numbers.inverse_temperature);
        const Softmax<T> plain(mine, kept(STUDENT_MAXIMUM), 1.0f);
        const Softmax<T> wanted(theirs, kept(TEACHER_MAXIMUM), numbers.inverse_temperature);
        const Floats mine_share = broadcast(kept(STUDENT_SHARE)), their_share = broadcast(kept(TEACHER_SHARE));
        const Floats plain_share = broadcast(kept(PLAIN_SHARE));
        const Floats divergence = broadcast(upstream[row] * numbers.divergence);
        const float entropy = upstream[row] * numbers.entropy;
        const auto miss = [&](int64_t v, int count) {
            return subtract(mul(tempered.weight(v, count), mine_share), mul(wanted.weight(v, count), their_share));
        };
        if (numbers.entropy == 0.0f) {
            each_vector(width, [&](int64_t v, int count) { store_part(out + v, mul(divergence, miss(v, count)), count); });
            return;
        }
        const auto gradient = [&](Floats onehot, int64_t v, int count) {
            const Floats error = mul(broadcast(entropy), subtract(mul(plain.weight(v, count), plain_share), onehot));
            return numbers.divergence == 0.0f ? error : fma(divergence, miss(v, count), error);
        };
        each_vector(width, [&](int64_t v, int count) { store_part(out + v, gradient(zeros(), v, count), count); });
        // Once more for the target's own column, the only one from which 1 is taken.
        store_part(out + targets[row], gradient(broadcast(1.0f), targets[row], 1), 1);
    });
}

}  // namespace

// loss[m] = fma(divergence, KL, entropy * CE), 0 where the target is ignored; `targets` may be null where entropy is 0.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(distill_loss_forward)(int32_t format, int64_t rows, int64_t vocabulary,
                                                            const void* student, const void* teacher,
                                                            const int64_t* targets, int64_t ignore_index,
                                                            float inverse_temperature, float divergence, float entropy,
                                                            float* loss, float* statistics, int32_t threads) {
    return guarded([&] {
        if (targets == nullptr && entropy != 0.0f) throw Error("targets must be given where entropy is not 0");
        const Numbers numbers{ignore_index, inverse_temperature, divergence, entropy};
        with_format(format, rows, vocabulary, [&](auto zero) {
            using T = decltype(zero);
            forward(rows, vocabulary, static_cast<const T*>(student), static_cast<const T*>(teacher), targets, numbers,
                    loss, statistics, threads);
        });
    });
}

// dstudent = round(fma(g * divergence, p_student - p_teacher, (g * entropy) * (p_plain - onehot))); divergence: alpha T.
SAMEBITS_EXPORT int32_t SAMEBITS_NAME(distill_loss_backward)(int32_t format, int64_t rows, int64_t vocabulary,
                                                             const float* upstream, const void* student,
                                                             const void* teacher, const int64_t* targets,
                                                             int64_t ignore_index, float inverse_temperature,
                                                             float divergence, float entropy, const float* statistics,
                                                             void* dstudent, int32_t threads) {
    return guarded([&] {
        if (targets == nullptr && entropy != 0.0f) throw Error("targets must be given where entropy is not 0");
        const Numbers numbers{ignore_index, inverse_temperature, divergence, entropy};
        with_format(format, rows, vocabulary, [&](auto zero) {
            using T = decltype(zero);
            backward(rows, vocabulary, upstream, static_cast<const T*>(student), static_cast<const T*>(teacher), targets,
                     numbers, statistics, static_cast<T*>(dstudent), threads);
        });
    });
}
