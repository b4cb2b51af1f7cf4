// Four vectors in turns: the operations of elementary programs, each on the four of them, one after another.
//
// A function of one vector is a chain of some twenty operations, each of which waits for the one before, and a processor
// with a small window finds too little other work meanwhile: here the program itself has it. Each operation is that of
// lanes.h, so the bits are the same.
#pragma once

#include "numerics/elementary/quick.h"

namespace samebits {
inline namespace SAMEBITS_ISA {
namespace elementary {

template <class V>
struct Quad {
    V v[4];
};
using FloatQuad = Quad<FloatLanes>;

template <>
struct Beside<FloatQuad> {
    using Unsigned = Quad<UnsignedLanes>;
    using Signed = Quad<SignedLanes>;
    using Truth = Quad<SignedLanes>;
};

template <class Operation, class... Quads>
inline auto each_of_four(Operation operation, Quads... quads) {
    using V = decltype(operation(quads.v[0]...));
    const auto turn = [&](int number) { return operation(quads.v[number]...); };
    return Quad<V>{{turn(0), turn(1), turn(2), turn(3)}};
}

#define SAMEBITS_FOUR_TIMES(sign)                                                                     \
    template <class V>                                                                                \
    inline auto operator sign(Quad<V> a, Quad<V> b) {                                                 \
        return each_of_four([](V x, V y) { return x sign y; }, a, b);                                 \
    }
SAMEBITS_FOUR_TIMES(+)
SAMEBITS_FOUR_TIMES(-)
SAMEBITS_FOUR_TIMES(*)
SAMEBITS_FOUR_TIMES(&)
SAMEBITS_FOUR_TIMES(|)
SAMEBITS_FOUR_TIMES(<<)
SAMEBITS_FOUR_TIMES(>>)
SAMEBITS_FOUR_TIMES(<)
SAMEBITS_FOUR_TIMES(==)
#undef SAMEBITS_FOUR_TIMES

template <class V>
inline Quad<V> operator-(Quad<V> a) {
    return each_of_four([](V x) { return -x; }, a);
}
inline FloatQuad operator*(FloatQuad a, float b) {
    return each_of_four([=](FloatLanes x) { return x * b; }, a);
}
inline FloatQuad operator*(float a, FloatQuad b) {
    return each_of_four([=](FloatLanes x) { return a * x; }, b);
}
inline FloatQuad operator+(float a, FloatQuad b) {
    return each_of_four([=](FloatLanes x) { return a + x; }, b);
}
inline FloatQuad operator-(float a, FloatQuad b) {
    return each_of_four([=](FloatLanes x) { return a - x; }, b);
}

template <class To, class V>
inline To reinterpret(Quad<V> from) {
    using Vector = decltype(To{}.v[0] + To{}.v[0]);
    return each_of_four([](V x) { return reinterpret<Vector>(x); }, from);
}

// A constant in every lane of the four.
template <class V, class Scalar>
inline Quad<V> fill_four(Scalar scalar) {
    const V vector = fill<V>(scalar);
    return {{vector, vector, vector, vector}};
}
template <>
inline FloatQuad fill(float scalar) {
    return fill_four<FloatLanes>(scalar);
}
template <>
inline Quad<UnsignedLanes> fill(uint32_t scalar) {
    return fill_four<UnsignedLanes>(scalar);
}
template <>
inline Quad<SignedLanes> fill(int32_t scalar) {
    return fill_four<SignedLanes>(scalar);
}

template <class V>
inline Quad<V> choose(Quad<SignedLanes> condition, Quad<V> yes, Quad<V> no) {
    return each_of_four([](SignedLanes which, V x, V y) { return choose(which, x, y); }, condition, yes, no);
}

inline FloatQuad fused(FloatQuad a, FloatQuad b, FloatQuad c) {
    return each_of_four([](FloatLanes x, FloatLanes y, FloatLanes z) { return fused(x, y, z); }, a, b, c);
}

// The form that kernels for one vector ask for.
inline FloatQuad lanes(FloatQuad a) { return a; }
inline FloatQuad floats(FloatQuad a) { return a; }

}  // namespace elementary

namespace quick {
inline elementary::FloatQuad exp(elementary::FloatQuad x) { return elementary::exp(x); }
inline elementary::FloatQuad erf(elementary::FloatQuad x) { return elementary::erf(x); }
}  // namespace quick
}  // namespace SAMEBITS_ISA
}  // namespace samebits
