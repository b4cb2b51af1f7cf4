// The chain: C = start + A B, every output one accumulator, k ascending, one fused multiply-add a step.
//
// Rows and columns are cut into tiles for caches and threads, and k into blocks whose accumulators are kept in float32
// between them. None of that can reach a bit: the tile only says who computes an output and when.
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <utility>

#include "ops/_cpu/pack.h"
#include "ops/_cpu/tile_step.h"
#include "samebits/abi.h"
#include "samebits/simd.h"
#include "samebits/threads.h"

namespace samebits {
inline namespace SAMEBITS_ISA {

// Accumulators of one micro tile: as many as the register file holds beside one row of B and one broadcast, or on NEON
// beside one row of B and one of A.
#if defined(SAMEBITS_NEON)
constexpr int TILE_ROWS = 12;
#else
constexpr int TILE_ROWS = WIDTH == 16 ? 14 : WIDTH == 8 ? 6 : 4;
#endif
constexpr int TILE_VECTORS = 2;
constexpr int TILE_COLUMNS = TILE_VECTORS * WIDTH;
constexpr int ROW_PANEL = ((TILE_ROWS + WIDTH - 1) / WIDTH) * WIDTH;

// Speed only. A block of packed rows stays in the second cache while every panel of B passes once, so longer blocks cost
// nothing but that cache; a deeper block visits C less often.
constexpr int64_t BLOCK_K = 512;
#if defined(SAMEBITS_NEON)
constexpr int64_t BLOCK_ROWS = 384;
#else
constexpr int64_t BLOCK_ROWS = 588;
#endif
constexpr int64_t BLOCK_COLUMNS = 4096;
constexpr int64_t ROWS_AHEAD = 16;     // steps of k by which the packed rows are fetched into the first cache
constexpr int64_t COLUMNS_AHEAD = 48;  // steps of k by which rows of B are fetched into the second
constexpr int SECOND_CACHE = 2;        // the locality hint that means it
// GCC takes a function that only fetches for one without effect and drops the call, unless it is inlined first.
#define SAMEBITS_FETCH [[gnu::always_inline]] inline void

template <class T>
struct Chain {
    int64_t rows, columns, depth;
    View<T> a, b;            // rows x depth, depth x columns
    float* accumulator;      // rows x columns, row stride accumulator_stride
    int64_t accumulator_stride;
    bool resume;             // start from what the accumulator holds, else from +0
};

// A packed panel of B. Step k also fetches a line of the panel after it: line k / TILE_COLUMNS of column k % TILE_COLUMNS.
struct Packed {
    const float* panel;
    const char* later;
    int64_t later_stride;
    Floats read(int64_t k, int vector) const { return load(panel + k * TILE_COLUMNS + vector * WIDTH); }
    SAMEBITS_FETCH fetch(int64_t k) {
        __builtin_prefetch(later, 0, SECOND_CACHE);
        later += later_stride;
        if (k % TILE_COLUMNS == TILE_COLUMNS - 1) later += 64 - TILE_COLUMNS * later_stride;
    }
};

// A panel whose rows are contiguous in B: the first tile to use it packs it on the way. Fetching it whole beforehand would
// fail, since rows a power of two apart fall into few sets of a cache; a few rows ahead do fit.
template <class T>
struct Packing {
    float* panel;
    const T *rows, *later;   // this panel and the next one
    int64_t stride, depth;
    Floats read(int64_t k, int vector) const {
        const Floats value = load(rows + k * stride + vector * WIDTH);
        store(panel + k * TILE_COLUMNS + vector * WIDTH, value);
        return value;
    }
    SAMEBITS_FETCH fetch(int64_t k) const {
        const int64_t ahead = k + COLUMNS_AHEAD;
        const T* row = ahead < depth ? rows + ahead * stride : later + (ahead - depth) * stride;
        for (int j = 0; j < TILE_VECTORS; ++j) __builtin_prefetch(row + j * WIDTH, 0, SECOND_CACHE);
    }
};

// One tile of accumulators in registers. `next` is the tile that follows: its memory is fetched while this one is computed.
template <int ROWS, class Right>
void micro_tile(int64_t depth, const float* a, Right b, float* c, int64_t stride, bool resume, const float* next) {
    Floats sum[ROWS][TILE_VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) {
#pragma GCC unroll 4
        for (int j = 0; j < TILE_VECTORS; ++j) {
            sum[i][j] = resume ? load(c + i * stride + j * WIDTH) : zeros();
            __builtin_prefetch(next + i * stride + j * WIDTH, 1, SECOND_CACHE);
        }
    }
#pragma GCC unroll 2
    for (int64_t k = 0; k < depth; ++k) {
        Floats right[TILE_VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < TILE_VECTORS; ++j) right[j] = b.read(k, j);
        __builtin_prefetch(a + (k + ROWS_AHEAD) * ROW_PANEL);
        b.fetch(k);
        tile_step(a + k * ROW_PANEL, right, sum);
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) {
#pragma GCC unroll 4
        for (int j = 0; j < TILE_VECTORS; ++j) store(c + i * stride + j * WIDTH, sum[i][j]);
    }
}

template <class Right>
using MicroTile = void (*)(int64_t, const float*, Right, float*, int64_t, bool, const float*);
template <class Right, int... ROWS>
constexpr std::array<MicroTile<Right>, sizeof...(ROWS)> micro_tiles(std::integer_sequence<int, ROWS...>) {
    return {micro_tile<ROWS + 1, Right>...};
}
template <class Right>
constexpr auto MICRO_TILES = micro_tiles<Right>(std::make_integer_sequence<int, TILE_ROWS>{});

template <class Right>
void tile(int rows, int64_t depth, const float* a, const Right& b, float* c, int64_t stride, bool resume,
          const float* next) {
    MICRO_TILES<Right>[static_cast<size_t>(rows - 1)](depth, a, b, c, stride, resume, next);
}

// The right edge: compute a whole tile aside, keep the columns that exist.
inline void edge_tile(int rows, int columns, int64_t depth, const float* a, const Packed& b, float* c, int64_t stride,
                      bool resume) {
    alignas(64) float aside[TILE_ROWS * TILE_COLUMNS] = {};
    const size_t bytes = static_cast<size_t>(columns) * sizeof(float);
    if (resume)
        for (int i = 0; i < rows; ++i) std::memcpy(aside + i * TILE_COLUMNS, c + i * stride, bytes);
    tile(rows, depth, a, b, aside, TILE_COLUMNS, resume, aside);
    for (int i = 0; i < rows; ++i) std::memcpy(c + i * stride, aside + i * TILE_COLUMNS, bytes);
}

// Scratch memory of one thread, kept between calls.
inline float* scratch(size_t slot, int64_t count) {
    struct Free {
        void operator()(float* p) const { std::free(p); }
    };
    thread_local std::array<std::unique_ptr<float, Free>, 3> memory;
    thread_local std::array<int64_t, 3> sizes{};
    if (sizes[slot] < count) {
        const size_t bytes = (static_cast<size_t>(count) * sizeof(float) + 4095) / 4096 * 4096;
        memory[slot].reset(static_cast<float*>(std::aligned_alloc(4096, bytes)));
        sizes[slot] = memory[slot] ? count : 0;
        if (!memory[slot]) throw std::bad_alloc();
    }
    return memory[slot].get();
}

// A length cut into equal parts of at most `most` (33 rows: 11, 11, 11), so that no part is nearly empty.
struct Parts {
    int64_t length, count;
    Parts(int64_t whole, int64_t most) : length(whole), count((whole + most - 1) / most) {}
    int64_t start(int64_t part) const { return part * length / count; }
    int64_t size(int64_t part) const { return start(part + 1) - start(part); }
    int64_t largest() const { return count == 0 ? 0 : (length + count - 1) / count; }
};

// What a packed tile fetches of the next panel, where that panel's columns are contiguous: the first tiles share it out.
template <class T>
Packed packed(const float* panel, View<T> later, int64_t depth, int64_t number) {
    constexpr int64_t line = 64 / sizeof(T);
    const int64_t k = number * (depth / TILE_COLUMNS) * line;
    if (later.row != 1 || k >= depth) return {panel, reinterpret_cast<const char*>(panel), 0};
    return {panel, reinterpret_cast<const char*>(later.at(k, 0)), later.column * static_cast<int64_t>(sizeof(T))};
}

// All packed rows times one panel of B, the columns from `left` on.
template <class T>
void multiply_panel(const Chain<T>& chain, const Parts& rows, int64_t k, int64_t depth, int64_t left, const float* packed_a,
                    float* packed_b) {
    const int64_t stride = chain.accumulator_stride;
    const int columns = static_cast<int>(std::min<int64_t>(TILE_COLUMNS, chain.columns - left));
    const bool resume = chain.resume || k > 0, more = left + 2 * TILE_COLUMNS <= chain.columns;
    const View<T> here{chain.b.at(k, left), chain.b.row, chain.b.column};
    const View<T> later{here.at(0, more ? TILE_COLUMNS : 0), here.row, here.column};
    const bool packing = here.column == 1 && columns == TILE_COLUMNS;
    if (!packing) pack<TILE_COLUMNS>(here.data, here.row, here.column, depth, columns, packed_b);
    for (int64_t p = 0; p < rows.count; ++p) {
        const int size = static_cast<int>(rows.size(p));
        const float* a = packed_a + p * depth * ROW_PANEL;
        float* c = chain.accumulator + rows.start(p) * stride + left;
        const float* next = p + 1 < rows.count ? c + size * stride : chain.accumulator + left + TILE_COLUMNS;
        if (packing && p == 0)
            tile(size, depth, a, Packing<T>{packed_b, here.data, later.data, here.row, depth}, c, stride, resume, next);
        else if (columns == TILE_COLUMNS)
            tile(size, depth, a, packed(packed_b, later, depth, p), c, stride, resume, next);
        else
            edge_tile(size, columns, depth, a, packed(packed_b, later, depth, p), c, stride, resume);
    }
}

template <class T>
void run_chain(const Chain<T>& chain) {
    const Parts rows(chain.rows, TILE_ROWS), blocks(chain.depth, BLOCK_K);
    float* packed_a = scratch(0, rows.count * blocks.largest() * ROW_PANEL);
    float* packed_b = scratch(1, blocks.largest() * TILE_COLUMNS);
    for (int64_t block = 0; block < blocks.count; ++block) {
        const int64_t k = blocks.start(block), depth = blocks.size(block);
        for (int64_t p = 0; p < rows.count; ++p)
            pack<ROW_PANEL>(chain.a.at(rows.start(p), k), chain.a.column, chain.a.row, depth,
                            static_cast<int>(rows.size(p)), packed_a + p * depth * ROW_PANEL);
        for (int64_t left = 0; left < chain.columns; left += TILE_COLUMNS)
            multiply_panel(chain, rows, k, depth, left, packed_a, packed_b);
    }
}

}  // namespace SAMEBITS_ISA
}  // namespace samebits
