// SPDX-License-Identifier: Apache-2.0
// y = activation(x Wᵀ + bias) [+ residual] with mma.sync, for int8 operands and, in benchmarks, for fp16 ones.
// Persistent blocks compute tiles in row order, so that W stays in the L2 cache; the first stages of the next tile are
// loaded during the epilogue. Rows must have a multiple of 16 bytes and be 16-byte aligned.
//
// Shared memory holds stages of kBytes per row, in pieces of 16 bytes. The position of a piece is xored with bits of
// its row, so that ldmatrix has no bank conflicts. Column n of the MMA tile j is output 32 (j / 4) + 8 (n / 2) +
// 2 (j % 4) + n % 2 of the warp's columns: a lane ends up with eight neighbouring outputs per four tiles.
#pragma once
#include "device/cuda/launch_shared.cuh"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/int8.cuh"

namespace brim::ops {

// Columns of x that share a scale if a row has several.
constexpr int kScaleColumns = 128;

struct TileProblem {
  const char *x, *w;               // rows of K bytes
  const float *x_scale, *w_scale;  // int8: [blocks of columns][ld_x_scale] or [T]; [N]
  const void *bias, *residual;     // may be null
  void* y;
  float* y_scale;  // int8 result: [blocks of columns][ld_y_scale], written
  int64_t ldx, ldw, ld_residual, ldy;
  int ld_x_scale, ld_y_scale;
  int T, N, K;
  Activation activation;
};

// Arithmetic of a tile; both read fragments of 32 bytes of K.
struct MultiplyInt8 {
  using Sum = int;
  static __device__ __forceinline__ void run(int* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
    mma_16832(c, a, b0, b1);
  }
};
struct MultiplyHalf {
  using Sum = float;
  static __device__ __forceinline__ void run(float* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
    mma_16816<__half>(c, a, b0, b1);
  }
};

// kWarpsM x kWarpsN warps, each 16 kMi rows by 8 kNj columns.
template <int kWarpsM_, int kWarpsN_, int kMi_, int kNj_, int kBytes_, int kStages_, int kResident_>
struct TileShape {
  static constexpr int kWarpsM = kWarpsM_, kWarpsN = kWarpsN_, kMi = kMi_, kNj = kNj_, kBytes = kBytes_,
                       kStages = kStages_, kResident = kResident_;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN, kRows = 16 * kWarpsM * kMi, kColumns = 8 * kWarpsN * kNj;
  static constexpr int kSteps = kBytes / 32, kPieces = kBytes / 16;
  static constexpr int kXBytes = kRows * kBytes, kWBytes = kColumns * kBytes;
  // A stage also holds the scales of a block of columns.
  static constexpr int kStageBytes = kXBytes + kWBytes, kScaledBytes = kStageBytes + 4 * kRows;
  static constexpr int kMaximaBytes = 4 * kRows * kWarpsN;
  static constexpr int shared_bytes(bool blocks, bool codes) {
    return kStages * (blocks ? kScaledBytes : kStageBytes) + (codes ? kMaximaBytes : 0);
  }
  static_assert(kColumns % kScaleColumns == 0 && kNj % 4 == 0 && kSteps % 2 == 0 && (kBytes == 64 || kBytes == 128));
};

enum class Epilogue { none, gelu, any };

// kBlocks: rows of x have a scale for each kScaleColumns columns; sums of a block are added up in fp32. Out: Elem, or
// int8_t with such scales, from the largest magnitude of the block.
template <class Shape, class Mul, class Elem, class Out, bool kBlocks, Epilogue kEpilogue>
class TileGemm {
  using Sum = std::conditional_t<kBlocks, float, typename Mul::Sum>;
  static constexpr bool kInt8 = std::is_same_v<Mul, MultiplyInt8>, kCodes = sizeof(Out) == 1;
  static constexpr int kMi = Shape::kMi, kNj = Shape::kNj, kBytes = Shape::kBytes, kStages = Shape::kStages;
  static constexpr int kStageBytes = kBlocks ? Shape::kScaledBytes : Shape::kStageBytes;
  static_assert(!kBlocks || kBytes == kScaleColumns);

 public:
  __device__ __forceinline__ TileGemm(const TileProblem& problem, char* shared) : p(problem), memory(shared) {
    base = shared_address(shared);
    lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    warp_m = warp / Shape::kWarpsN;
    warp_n = warp % Shape::kWarpsN;
    column_tiles = (p.N + Shape::kColumns - 1) / Shape::kColumns;
    tiles = column_tiles * ((p.T + Shape::kRows - 1) / Shape::kRows);
    depth = (p.K + kBytes - 1) / kBytes;
    next_tile = static_cast<int>(blockIdx.x);
  }

  __device__ __forceinline__ void run() {
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) load_next();
    if constexpr (!kBlocks) {
      copy_async_wait<kStages - 2>();
      __syncthreads();
      load_fragments(0, 0);
    }
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
#pragma unroll
      for (int i = 0; i < kMi; ++i)
#pragma unroll
        for (int j = 0; j < kNj; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) sum[i][j][e] = 0;
      for (int k = 0; k < depth; ++k) {
        if constexpr (kBlocks)
          multiply_block();
        else
          multiply_stage();
      }
      finish(tile);
      if constexpr (!kBlocks) load_fragments(0, 0);  // again, so that the epilogue has their registers
    }
  }

 private:
  // ---- loads ----
  __device__ __forceinline__ void load_next() {
    if (next_tile < tiles) {
      if (next_depth == 0) {
        next_row = next_tile / column_tiles * Shape::kRows;
        next_column = next_tile % column_tiles * Shape::kColumns;
      }
      const SharedAddress to = base + write_stage * kStageBytes;
      load_rows<Shape::kRows, false>(to, p.x, p.ldx, next_row, p.T);
      load_rows<Shape::kColumns, true>(to + Shape::kXBytes, p.w, p.ldw, next_column, p.N);
      if constexpr (kBlocks) {
        const int r = static_cast<int>(threadIdx.x);
        if (r < Shape::kRows)
          copy_async4(to + Shape::kStageBytes + 4 * r,
                      p.x_scale + static_cast<int64_t>(next_depth) * p.ld_x_scale + min(next_row + r, p.T - 1));
      }
      write_stage = write_stage + 1 == kStages ? 0 : write_stage + 1;
      if (++next_depth == depth) {
        next_depth = 0;
        next_tile += static_cast<int>(gridDim.x);
      }
    }
    copy_async_commit();
  }
  // Rows past the end repeat the last one; columns past the end are zeros.
  template <int kRows, bool kWeights>
  __device__ __forceinline__ void load_rows(SharedAddress to, const char* from, int64_t ld, int first, int rows) const {
    constexpr int kCopies = kRows * Shape::kPieces / Shape::kThreads, kStep = Shape::kThreads / Shape::kPieces;
    static_assert(kRows * Shape::kPieces % Shape::kThreads == 0 && kStep % 8 == 0);
    const int r0 = static_cast<int>(threadIdx.x) / Shape::kPieces, c = static_cast<int>(threadIdx.x) % Shape::kPieces;
    const int k = next_depth * kBytes + 16 * c, bytes = min(max(p.K - k, 0), 16);
    from += bytes > 0 ? k : 0;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int r = r0 + i * kStep;
      copy_async16_part(to + r * kBytes + 16 * (c ^ (kWeights ? weight_bits(r) : row_bits(r))),
                        from + min(first + r, rows - 1) * ld, bytes);
    }
  }
  static __device__ __forceinline__ int row_bits(int r) { return kBytes == 64 ? r >> 1 & 3 : r & 7; }
  static __device__ __forceinline__ int weight_bits(int r) {
    return kBytes == 64 ? r >> 3 & 3 : (r >> 2 & 6) | (r & 1);
  }

  // ---- products ----
  // 16 rows of x, 32 bytes of K.
  __device__ __forceinline__ void load_x(uint32_t (&r)[4], SharedAddress stage, int i, int step) const {
    const int row = warp_m * 16 * kMi + (lane & 15);
    load_matrices<false>(r, stage + (row + 16 * i) * kBytes + 16 * ((2 * step + (lane >> 4)) ^ row_bits(row)));
  }
  __device__ __forceinline__ int weight_row(int j) const {
    return warp_n * 8 * kNj + 32 * (j / 4) + 2 * (j % 4) + 8 * ((lane & 7) >> 1) + (lane & 1);
  }
  // Two neighbouring MMA tiles of columns, 32 bytes of K.
  __device__ __forceinline__ void load_w(uint32_t (&r)[4], SharedAddress stage, int j, int step) const {
    const int row = weight_row(j) + 2 * (lane >> 4), bits = weight_bits(weight_row(0));
    load_matrices<false>(r, stage + Shape::kXBytes + row * kBytes + 16 * ((2 * step + (lane >> 3 & 1)) ^ bits));
  }
  // One MMA tile of columns, 64 bytes of K.
  __device__ __forceinline__ void load_w_long(uint32_t (&r)[4], SharedAddress stage, int j, int half) const {
    const int row = weight_row(j), bits = weight_bits(weight_row(0));
    load_matrices<false>(r, stage + Shape::kXBytes + row * kBytes + 16 * ((4 * half + (lane >> 3)) ^ bits));
  }

  __device__ __forceinline__ void load_fragments(int buffer, int step) {
    const SharedAddress stage = base + read_stage * kStageBytes;
#pragma unroll
    for (int i = 0; i < kMi; ++i) load_x(x[buffer][i], stage, i, step);
#pragma unroll
    for (int j = 0; j < kNj / 2; ++j) load_w(w[buffer][j], stage, 2 * j, step);
  }
  __device__ __forceinline__ void next_stage() {
    copy_async_wait<kStages - 2>();
    __syncthreads();
    read_stage = read_stage + 1 == kStages ? 0 : read_stage + 1;
  }
  // Fragments of the next step, also of the next stage, are loaded before the products of a step.
  __device__ __forceinline__ void multiply_stage() {
#pragma unroll
    for (int step = 0; step < Shape::kSteps; ++step) {
      if (step == 0) load_next();
      if (step == Shape::kSteps - 1) next_stage();
      load_fragments((step + 1) % 2, (step + 1) % Shape::kSteps);
#pragma unroll
      for (int i = 0; i < kMi; ++i)
#pragma unroll
        for (int j = 0; j < kNj; ++j)
          Mul::run(sum[i][j], x[step % 2][i], w[step % 2][j / 2][2 * (j % 2)], w[step % 2][j / 2][2 * (j % 2) + 1]);
    }
  }
  // One stage is one block of columns. Its sums are below 2²² and start at the bits of 1.5 · 2²³, so that they are
  // floats after a subtraction.
  __device__ __forceinline__ void multiply_block() {
    copy_async_wait<kStages - 2>();
    __syncthreads();
    load_next();
    const SharedAddress stage = base + read_stage * kStageBytes;
    uint32_t rows[4][kMi][4];
#pragma unroll
    for (int step = 0; step < 4; ++step)
#pragma unroll
      for (int i = 0; i < kMi; ++i) load_x(rows[step][i], stage, i, step);
    float scale[kMi][2];
    const auto* scales = reinterpret_cast<const float*>(memory + read_stage * kStageBytes + Shape::kStageBytes);
#pragma unroll
    for (int i = 0; i < kMi; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) scale[i][h] = scales[warp_m * 16 * kMi + 16 * i + 8 * h + (lane >> 2)];
#pragma unroll
    for (int j = 0; j < kNj; ++j) {
      int part[kMi][4];
#pragma unroll
      for (int i = 0; i < kMi; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) part[i][e] = 0x4B400000;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t columns[4];
        load_w_long(columns, stage, j, half);
#pragma unroll
        for (int step = 0; step < 2; ++step)
#pragma unroll
          for (int i = 0; i < kMi; ++i)
            Mul::run(part[i], rows[2 * half + step][i], columns[2 * step], columns[2 * step + 1]);
      }
#pragma unroll
      for (int i = 0; i < kMi; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          sum[i][j][e] = fmaf(__int_as_float(part[i][e]) - 12582912.0f, scale[i][e >> 1], sum[i][j][e]);
    }
    read_stage = read_stage + 1 == kStages ? 0 : read_stage + 1;
  }

  // ---- epilogue ----
  __device__ __forceinline__ static float number(float v) { return v; }
  __device__ __forceinline__ static float number(int v) { return __int2float_rn(v); }
  __device__ __forceinline__ float activate_one(float v) const {
    if constexpr (kEpilogue == Epilogue::gelu) return activated<Activation::gelu, Elem>(v);
    if constexpr (kEpilogue == Epilogue::any) return activated_as<Elem>(p.activation, v);
    return v;
  }
  struct Columns {
    float scale[8], bias[8];
  };
  __device__ __forceinline__ Columns load_columns(int column) const {
    Columns c;
#pragma unroll
    for (int e = 0; e < 8; ++e) c.scale[e] = 1.0f, c.bias[e] = 0.0f;
    if (column < p.N) {
      if constexpr (kInt8) load8(p.w_scale + column, c.scale);
      if (p.bias != nullptr) load8(static_cast<const Elem*>(p.bias) + column, c.bias);
    }
    return c;
  }
  // Results of row 16 i + 8 h + lane / 4 and eight columns.
  __device__ __forceinline__ void values_of(float (&v)[8], int i, int q, int h, float row_scale,
                                            const Columns& c) const {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float product = number(sum[i][4 * q + e / 2][2 * h + e % 2]) * row_scale;
      v[e] = activate_one(kInt8 ? fmaf(product, c.scale[e], c.bias[e]) : product + c.bias[e]);
    }
  }
  __device__ __forceinline__ float row_scale_of(int row) const {
    if constexpr (kInt8 && !kBlocks) return row < p.T ? p.x_scale[row] : 0.0f;
    return 1.0f;
  }

  __device__ __forceinline__ void finish(int tile) {
    const int first_row = tile / column_tiles * Shape::kRows + warp_m * 16 * kMi + (lane >> 2);
    const int first_column = tile % column_tiles * Shape::kColumns + warp_n * 8 * kNj + 8 * (lane & 3);
    if constexpr (kCodes)
      store_codes(first_row, first_column);
    else
      store_values(first_row, first_column);
  }
  __device__ __forceinline__ void store_values(int first_row, int first_column) const {
#pragma unroll
    for (int q = 0; q < kNj / 4; ++q) {
      const int column = first_column + 32 * q;
      const Columns c = load_columns(column);
#pragma unroll
      for (int i = 0; i < kMi; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int row = first_row + 16 * i + 8 * h;
          float v[8];
          values_of(v, i, q, h, row_scale_of(row), c);
          if (row >= p.T || column >= p.N) continue;
          if (p.residual != nullptr) {
            float other[8];
            load8(static_cast<const Elem*>(p.residual) + row * p.ld_residual + column, other);
#pragma unroll
            for (int e = 0; e < 8; ++e) v[e] += other[e];
          }
          store8(static_cast<Elem*>(p.y) + row * p.ldy + column, v);
        }
    }
  }
  // Largest magnitudes are compared as bits, which keeps NaN.
  __device__ __forceinline__ void store_codes(int first_row, int first_column) {
    constexpr int kSharing = kScaleColumns / (8 * kNj);  // warps per block of columns
    static_assert(kScaleColumns % (8 * kNj) == 0);
    auto* maxima = reinterpret_cast<uint32_t*>(memory + kStages * kStageBytes);
    uint32_t most[kMi][2];
#pragma unroll
    for (int i = 0; i < kMi; ++i) most[i][0] = most[i][1] = 0;
#pragma unroll
    for (int q = 0; q < kNj / 4; ++q) {
      const int column = first_column + 32 * q;
      const Columns c = load_columns(column);
#pragma unroll
      for (int i = 0; i < kMi; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float v[8];
          values_of(v, i, q, h, row_scale_of(first_row + 16 * i + 8 * h), c);
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            if (column < p.N) most[i][h] = max(most[i][h], magnitude_bits(v[e]));
            store_sum(sum[i][4 * q + e / 2][2 * h + e % 2], v[e]);
          }
        }
    }
    const int local = warp_m * 16 * kMi + (lane >> 2);
#pragma unroll
    for (int i = 0; i < kMi; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t& m = most[i][h];
        m = max(m, __shfl_xor_sync(~0u, m, 1));
        m = max(m, __shfl_xor_sync(~0u, m, 2));
        if (kSharing > 1 && (lane & 3) == 0) maxima[warp_n * Shape::kRows + local + 16 * i + 8 * h] = m;
      }
    if (kSharing > 1) __syncthreads();
#pragma unroll
    for (int i = 0; i < kMi; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = first_row + 16 * i + 8 * h;
        uint32_t m = most[i][h];
#pragma unroll
        for (int s = 1; s < kSharing; ++s) m = max(m, maxima[(warp_n ^ s) * Shape::kRows + local + 16 * i + 8 * h]);
        store_codes_of(row, first_column, i, h, __uint_as_float(m));
      }
    if (kSharing > 1) __syncthreads();  // before the next tile writes its maxima
  }
  __device__ __forceinline__ void store_codes_of(int row, int first_column, int i, int h, float most) const {
    constexpr int kSharing = kScaleColumns / (8 * kNj);
    if (row >= p.T) return;
    if ((lane & 3) == 0 && warp_n % kSharing == 0 && first_column < p.N)
      p.y_scale[static_cast<int64_t>(first_column / kScaleColumns) * p.ld_y_scale + row] = most * kInt8Step;
    const float inverse = inverse_step(most);
#pragma unroll
    for (int q = 0; q < kNj / 4; ++q) {
      float v[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) v[e] = float_of(sum[i][4 * q + e / 2][2 * h + e % 2]);
      if (first_column + 32 * q < p.N)
        *reinterpret_cast<uint2*>(static_cast<char*>(p.y) + row * p.ldy + first_column + 32 * q) =
            pack8_int8(v, inverse);
    }
  }
  static __device__ __forceinline__ void store_sum(float& to, float v) { to = v; }
  static __device__ __forceinline__ void store_sum(int& to, float v) { to = __float_as_int(v); }
  static __device__ __forceinline__ float float_of(float v) { return v; }
  static __device__ __forceinline__ float float_of(int v) { return __int_as_float(v); }

  const TileProblem& p;
  char* memory;
  SharedAddress base;
  int lane, warp_m, warp_n, column_tiles, tiles, depth;
  int next_tile, next_depth = 0, next_row = 0, next_column = 0, write_stage = 0, read_stage = 0;
  Sum sum[kMi][kNj][4];
  uint32_t x[2][kMi][4], w[2][kNj / 2][4];  // fragments of two steps
};

template <class Shape, class Mul, class Elem, class Out, bool kBlocks, Epilogue kEpilogue>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kResident) tile_gemm_kernel(const TileProblem p) {
  BRIM_DYNAMIC_SHARED(shared);
  TileGemm<Shape, Mul, Elem, Out, kBlocks, kEpilogue>(p, shared).run();
}

template <class Shape, class Mul, class Elem, class Out, bool kBlocks, Epilogue kEpilogue>
void launch_tiles(device::CudaStream& s, const TileProblem& p) {
  const int64_t tiles = int64_t{device::blocks_for(p.T, Shape::kRows)} * device::blocks_for(p.N, Shape::kColumns);
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(tiles, Shape::kResident * s.info().sm_count)));
  device::launch_with_shared<tile_gemm_kernel<Shape, Mul, Elem, Out, kBlocks, kEpilogue>>(
      s, grid, dim3(Shape::kThreads), Shape::shared_bytes(kBlocks, sizeof(Out) == 1), p);
}

}  // namespace brim::ops
