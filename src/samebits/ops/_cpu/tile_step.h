// The innermost step of every tile of sums: sum[i][j] = fma(left[i], right[j], sum[i][j]).
//
// One product a sum and step, in the order of the calls: how the left numbers reach the instruction is speed only.
#pragma once

#include <utility>

#include "samebits/simd.h"

namespace samebits {
inline namespace SAMEBITS_ISA {

// Row i of the left operand is left[i * STRIDE], broadcast as it is loaded.
template <int STRIDE, int ROWS, int VECTORS>
[[gnu::always_inline]] inline void broadcast_step(const float* left, const Floats (&right)[VECTORS],
                                                  Floats (&sum)[ROWS][VECTORS]) {
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) {
        const Floats each = broadcast(left[i * STRIDE]);
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; ++j) sum[i][j] = fma(each, right[j], sum[i][j]);
    }
}

#if defined(SAMEBITS_NEON)
// A broadcast would cost every row an instruction beside its products; here the product takes a lane of a vector.
template <int LANE, int VECTORS>
[[gnu::always_inline]] inline void lane_row(Floats left, const Floats (&right)[VECTORS], Floats (&sum)[VECTORS]) {
    for (int j = 0; j < VECTORS; ++j) sum[j] = fma_lane<LANE>(left, right[j], sum[j]);
}
template <int ROWS, int VECTORS, int... ROW>
[[gnu::always_inline]] inline void lane_rows(const float* left, const Floats (&right)[VECTORS],
                                             Floats (&sum)[ROWS][VECTORS], std::integer_sequence<int, ROW...>) {
    Floats lanes[(ROWS + WIDTH - 1) / WIDTH];
    for (int i = 0; i < (ROWS + WIDTH - 1) / WIDTH; ++i) lanes[i] = load(left + i * WIDTH);
    (lane_row<ROW % WIDTH>(lanes[ROW / WIDTH], right, sum[ROW]), ...);
}
// The left numbers lie side by side; those up to a multiple of WIDTH may be read and are not used.
template <int ROWS, int VECTORS>
[[gnu::always_inline]] inline void tile_step(const float* left, const Floats (&right)[VECTORS],
                                             Floats (&sum)[ROWS][VECTORS]) {
    lane_rows(left, right, sum, std::make_integer_sequence<int, ROWS>{});
}

template <int STEP, int ROWS, int VECTORS>
[[gnu::always_inline]] inline void step_of_four(const Floats (&left)[ROWS], const float* right,
                                                Floats (&sum)[ROWS][VECTORS]) {
    Floats line[VECTORS];
#pragma GCC unroll 4
    for (int j = 0; j < VECTORS; ++j) line[j] = load(right + (STEP * VECTORS + j) * WIDTH);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) lane_row<STEP>(left[i], line, sum[i]);
}
// Four steps at once where the steps of a row lie side by side: one vector a row of the left operand, whose rows are
// STRIDE apart; the four lines of the right operand follow one another.
template <int STRIDE, int ROWS, int VECTORS>
[[gnu::always_inline]] inline void four_steps(const float* left, const float* right, Floats (&sum)[ROWS][VECTORS]) {
    static_assert(WIDTH == 4);
    Floats rows[ROWS];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) rows[i] = load(left + i * STRIDE);
    step_of_four<0>(rows, right, sum);
    step_of_four<1>(rows, right, sum);
    step_of_four<2>(rows, right, sum);
    step_of_four<3>(rows, right, sum);
}
#else
template <int ROWS, int VECTORS>
[[gnu::always_inline]] inline void tile_step(const float* left, const Floats (&right)[VECTORS],
                                             Floats (&sum)[ROWS][VECTORS]) {
    broadcast_step<1>(left, right, sum);
}
#endif

}  // namespace SAMEBITS_ISA
}  // namespace samebits
