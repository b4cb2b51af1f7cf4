// A product of two matrices of 16-bit numbers on Hopper: one warp copies, one to three warpgroups multiply and add.
//
// Each output has one accumulator in float32, to which 16 products are added at a time, k ascending, and is rounded once:
// tiles, stages and warpgroups decide speed alone. What lies outside of a matrix is copied as zeros and not stored.
// A program walks over tiles; the numbers in capitals are those of tiles.py.

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

constexpr int HEIGHT = GROUPS * GROUP_LINES;
constexpr int BOXES = (WIDTH + 63) / 64;
constexpr int LEFT_BYTES = HEIGHT * 128;
constexpr int RIGHT_BYTES = RIGHT_BY_COLUMNS ? BOXES * 8192 : WIDTH * 128;
constexpr int STEP_BYTES = LEFT_BYTES + RIGHT_BYTES;
constexpr int STAGE_BYTES = STEPS * STEP_BYTES;
constexpr int BLOCKS = GROUP_LINES / 64;
// Rows of tiles that are walked side by side, for the second cache.
constexpr int SIDE_BY_SIDE = 8;

__device__ __forceinline__ uint32_t shared_of(const void* pointer) { return (uint32_t)__cvta_generic_to_shared(pointer); }

// ---- barriers

__device__ __forceinline__ void init(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}

__device__ __forceinline__ void expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void wait(uint32_t barrier, uint32_t phase) {
  asm volatile(
      "{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra AGAIN;\nDONE:\n}\n" ::"r"(
          barrier),
      "r"(phase)
      : "memory");
}

// Of the program of this number, of those that copy for each other.
__device__ __forceinline__ void arrive(uint32_t barrier, int program) {
#if TOGETHER > 1
  asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
               "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(barrier), "r"(program) : "memory");
#else
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}

__device__ __forceinline__ void all_programs() {
#if TOGETHER > 1
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// ---- copies

__device__ __forceinline__ void copy(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
                   "r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y) : "memory");
}

// To the same place of both programs, whose barriers are both told.
__device__ __forceinline__ void copy_for_both(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1, {%3, %4}], [%2], %5;" ::
                   "r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "h"((uint16_t)3) : "memory");
}

__device__ __forceinline__ void copy_left(uint32_t to, const CUtensorMap* map, uint32_t barrier, int line, int k) {
  if (LEFT_BY_LINES) {
    for (int box = 0; box < HEIGHT / 64; ++box) copy(to + box * 8192, map, barrier, line + 64 * box, k);
  } else {
    copy(to, map, barrier, k, line);
  }
}

__device__ __forceinline__ void copy_right(uint32_t to, const CUtensorMap* map, uint32_t barrier, int column, int k, int program) {
#if TOGETHER > 1
  if (RIGHT_BY_COLUMNS) {
    for (int box = program; box < BOXES; box += 2) copy_for_both(to + box * 8192, map, barrier, column + 64 * box, k);
  } else {
    int half = program * (WIDTH / 2);
    copy_for_both(to + half * 128, map, barrier, k, column + half);
  }
#else
  if (RIGHT_BY_COLUMNS) {
    for (int box = 0; box < BOXES; ++box) copy(to + box * 8192, map, barrier, column + 64 * box, k);
  } else {
    copy(to, map, barrier, k, column);
  }
#endif
}

// ---- tiles

// Which tile comes as number `turn`.
__device__ __forceinline__ void tile_at(int turn, int tiles_down, int tiles_across, int& down, int& across) {
  int band = turn / (SIDE_BY_SIDE * tiles_across), first = band * SIDE_BY_SIDE;
  int rows = min(tiles_down - first, SIDE_BY_SIDE), within = turn - first * tiles_across;
  down = first + within % rows;
  across = within / rows;
}

// An operand 16 deep in shared memory, lines of 128 bytes swizzled. `box`: from 64 lines to the next, where those lie
// side by side.
__device__ __forceinline__ uint64_t operand(uint32_t at, bool by_lines, int step) {
  uint32_t from = at + step * (by_lines ? 2048 : 32), box = by_lines ? 8192 : 16;
  return (uint64_t)((from & 0x3FFFF) >> 4) | (uint64_t)(box >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

__device__ __forceinline__ uint32_t rounded(float first, float second) {
#if BFLOAT16
  __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
#else
  __half2 pair = __floats2half2_rn(first, second);
#endif
  return *(uint32_t*)&pair;
}

// 64 lines of up to 64 columns of sums, rounded, into shared memory: line by line, or column by column.
__device__ __forceinline__ void stage(ELEMENT* to, const float* sums, int wide, int warp, int lane) {
#pragma unroll
  for (int part = 0; part < 8; ++part)
    if (8 * part < wide) {
      // Of this warp's 16 lines the upper 8 and the lower 8.
      uint32_t upper = rounded(sums[4 * part], sums[4 * part + 1]), lower = rounded(sums[4 * part + 2], sums[4 * part + 3]);
      if (TRANSPOSED) {
        uint32_t at = shared_of(to + (8 * part + lane % 8) * STAGED_LINE + warp * 16 + lane / 8 % 2 * 8);
        asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(at), "r"(upper), "r"(lower) : "memory");
      } else {
        uint32_t at = shared_of(to + (warp * 16 + lane % 16) * STAGED_LINE + 8 * part);
        asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(at), "r"(upper), "r"(lower) : "memory");
      }
    }
}

// What was staged, to the result, 16 bytes a thread; M lines and N columns, stored transposed where that is so.
__device__ __forceinline__ void store(ELEMENT* out, size_t pitch, const ELEMENT* from, int line, int column, int wide, int M, int N, int thread) {
  int rows = TRANSPOSED ? wide : 64, pieces = (TRANSPOSED ? 64 : wide) / 8;
  int first_row = TRANSPOSED ? column : line, first_column = TRANSPOSED ? line : column;
  int all_rows = TRANSPOSED ? N : M, all_columns = TRANSPOSED ? M : N;
  for (int piece = thread; piece < rows * pieces; piece += 128) {
    int row = piece / pieces, part = piece % pieces * 8;
    if (first_row + row < all_rows && first_column + part < all_columns)
      *(uint4*)(out + (first_row + row) * pitch + first_column + part) = *(const uint4*)(from + row * STAGED_LINE + part);
  }
}

extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1)
product(const __grid_constant__ CUtensorMap left_map, const __grid_constant__ CUtensorMap right_map, ELEMENT* __restrict__ out, int M, int N, int K, int pitch) {
  extern __shared__ uint8_t memory[];
  __shared__ uint64_t barriers[2 * STAGES];
  uint32_t base = (shared_of(memory) + 1023) & ~1023u, full = shared_of(barriers), empty = full + 8 * STAGES;
  int group = threadIdx.x / 128, program = 0;
#if TOGETHER > 1
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(program));
#endif
  if (threadIdx.x == 0) {
    for (int each = 0; each < STAGES; ++each) {
      init(full + 8 * each, 1);
      init(empty + 8 * each, GROUPS * TOGETHER);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  __syncthreads();
  all_programs();
  int tiles_down = (M + HEIGHT * TOGETHER - 1) / (HEIGHT * TOGETHER), tiles_across = (N + WIDTH - 1) / WIDTH;
  int turns = tiles_down * tiles_across, stages = (K + 64 * STEPS - 1) / (64 * STEPS);
  int first = blockIdx.x / TOGETHER, stride = gridDim.x / TOGETHER;
  int at = 0;
  if (group == 0) {
#if GROUPS == 3
    asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
#elif GROUPS == 2
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
#endif
    uint32_t phase = 1;
    if (threadIdx.x == 0) {
      for (int turn = first; turn < turns; turn += stride) {
        int down, across;
        tile_at(turn, tiles_down, tiles_across, down, across);
        int line = (down * TOGETHER + program) * HEIGHT, column = across * WIDTH;
        for (int each = 0; each < stages; ++each) {
          wait(empty + 8 * at, phase);
          expect(full + 8 * at, STAGE_BYTES);
          for (int step = 0; step < STEPS; ++step) {
            uint32_t left = base + at * STAGE_BYTES + step * STEP_BYTES;
            int k = 64 * (each * STEPS + step);
            copy_left(left, &left_map, full + 8 * at, line, k);
            copy_right(left + LEFT_BYTES, &right_map, full + 8 * at, column, k, program);
          }
          if (++at == STAGES) at = 0, phase ^= 1;
        }
      }
    }
  } else {
#if GROUPS == 3
    asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
#elif GROUPS == 2
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
#endif
    uint32_t phase = 0;
    int own = group - 1, thread = threadIdx.x % 128;
    float sums[BLOCKS][WIDTH / 2];
    ELEMENT* staged = (ELEMENT*)(memory + (base - shared_of(memory)) + STAGES * STAGE_BYTES) + own * 2 * 64 * STAGED_LINE;
    for (int turn = first; turn < turns; turn += stride) {
      int down, across, before = -1;
      tile_at(turn, tiles_down, tiles_across, down, across);
      for (int each = 0; each < stages; ++each) {
        wait(full + 8 * at, phase);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
          uint32_t left = base + at * STAGE_BYTES + step * STEP_BYTES, right = left + LEFT_BYTES;
          left += own * GROUP_LINES * 128;
#pragma unroll
          for (int part = 0; part < 4; ++part)
#pragma unroll
            for (int block = 0; block < BLOCKS; ++block)
              multiply_add(sums[block], operand(left + block * 8192, LEFT_BY_LINES, part), operand(right, RIGHT_BY_COLUMNS, part), (each | step | part) != 0);
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        // The stage before is read; this one's products go on while the next is waited for.
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (before >= 0 && thread < TOGETHER) arrive(empty + 8 * before, thread);
        before = at;
        if (++at == STAGES) at = 0, phase ^= 1;
      }
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
      for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
        for (int place = 0; place < WIDTH / 2; ++place) asm volatile("" : "+f"(sums[block][place])::"memory");
      if (thread < TOGETHER) arrive(empty + 8 * before, thread);
      int line = (down * TOGETHER + program) * HEIGHT + own * GROUP_LINES, column = across * WIDTH;
#pragma unroll
      for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
        for (int box = 0; box < BOXES; ++box) {
          int wide = box == BOXES - 1 ? WIDTH - 64 * box : 64;
          ELEMENT* buffer = staged + (block * BOXES + box) % 2 * 64 * STAGED_LINE;
          asm volatile("bar.sync %0, 128;" ::"r"(1 + own) : "memory");
          stage(buffer, sums[block] + 32 * box, wide, thread / 32, thread % 32);
          asm volatile("bar.sync %0, 128;" ::"r"(1 + own) : "memory");
          store(out, pitch, buffer, line + 64 * block, column + 64 * box, wide, M, N, thread);
        }
    }
  }
  // Nobody leaves while the other may still copy into its memory, or tell its barriers.
  all_programs();
}
