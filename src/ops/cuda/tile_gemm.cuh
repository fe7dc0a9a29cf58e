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

#if defined(BRIM_CUDA_EMULATION)
inline uint32_t load_shared4(SharedAddress at) {
  uint32_t r;
  std::memcpy(&r, at, 4);
  return r;
}
inline float tanh_fast(float x) { return std::tanh(x); }
inline void mma_16832_from(int* c, const uint32_t* a, uint32_t b0, uint32_t b1, int from) {
  for (int i = 0; i < 4; ++i) c[i] = from;
  mma_16832(c, a, b0, b1);
}
#else
__device__ __forceinline__ float tanh_fast(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// mma_16832 whose sums all start at `from`.
__device__ __forceinline__ void mma_16832_from(int* c, const uint32_t* a, uint32_t b0, uint32_t b1, int from) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(from));
#else
  c[0] = c[1] = c[2] = c[3] = from;
  mma_16832(c, a, b0, b1);
#endif
}
__device__ __forceinline__ uint32_t load_shared4(SharedAddress at) {
  uint32_t r;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(r) : "r"(at) : "memory");
  return r;
}
#endif

// The tanh form of GELU, as in the library's epilogue: one special instruction instead of two. Its error of 4.8e-4, and
// that of tanh, 2⁻¹¹, are below the rounding to codes.
__device__ __forceinline__ float gelu_fast(float x) {
  const float half = 0.5f * x;
  return fmaf(half, tanh_fast(x * fmaf(0.0356774081f, x * x, 0.7978845608f)), half);
}

// Columns of x that share a scale if a row has several.
constexpr int kScaleColumns = 64;

// Float whose unit in the last place is 1, so that adding an integer to its bits adds the integer. Blocks between
// subtractions of its multiples: their sum is below 2²⁶, rounded to 4.
constexpr float kOrigin = 12582912.0f;  // 1.5 · 2²³
constexpr int kOriginBits = 0x4B400000;
constexpr int kBlocksApart = 4;

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
  static constexpr int shared_bytes(bool blocks) { return kStages * (blocks ? kScaledBytes : kStageBytes); }
  static_assert(8 * kNj == kScaleColumns && kSteps % 2 == 0 && (kBytes == 64 || kBytes == 128));
};

enum class Epilogue { none, gelu, any };

// kBlocks: rows of x have a scale for each kScaleColumns columns; sums of a block are added up in fp32. Out: Elem, or
// int8_t with such scales, from the largest magnitude of the block. gelu is the fast form.
template <class Shape, class Mul, class Elem, class Out, bool kBlocks, Epilogue kEpilogue>
class TileGemm {
  using Sum = std::conditional_t<kBlocks, float, typename Mul::Sum>;
  static constexpr bool kInt8 = std::is_same_v<Mul, MultiplyInt8>, kCodes = sizeof(Out) == 1;
  static constexpr int kMi = Shape::kMi, kNj = Shape::kNj, kBytes = Shape::kBytes, kStages = Shape::kStages;
  static constexpr int kStageBytes = kBlocks ? Shape::kScaledBytes : Shape::kStageBytes;
  static_assert(!kBlocks || kBytes == kScaleColumns);

 public:
  __device__ __forceinline__ TileGemm(const TileProblem& problem, char* shared) : p(problem) {
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
        if constexpr (kBlocks) {
          if (k % kBlocksApart == 0) subtract_origin();
          multiply_block();
        } else {
          multiply_stage();
        }
      }
      if constexpr (kBlocks) subtract_origin();
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
  __device__ __forceinline__ void load_w_long(uint32_t (&r)[4], SharedAddress stage, int j) const {
    const int row = weight_row(j), bits = weight_bits(weight_row(0));
    load_matrices<false>(r, stage + Shape::kXBytes + row * kBytes + 16 * ((lane >> 3) ^ bits));
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
  // One stage is one block of columns. Its sums are below 2²² and start at the bits of kOrigin, so that they are floats
  // without a conversion. kOrigin times the scales is subtracted after a few blocks, before it costs precision.
  __device__ __forceinline__ void multiply_block() {
    copy_async_wait<kStages - 2>();
    __syncthreads();
    load_next();
    const SharedAddress stage = base + read_stage * kStageBytes;
    read_stage = read_stage + 1 == kStages ? 0 : read_stage + 1;
    const SharedAddress scales = stage + Shape::kStageBytes + 4 * (warp_m * 16 * kMi + (lane >> 2));
    float scale[kMi][2];
#pragma unroll
    for (int i = 0; i < kMi; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        scale[i][h] = __uint_as_float(load_shared4(scales + 4 * (16 * i + 8 * h)));
        scale_sum[i][h] += scale[i][h];
      }
    uint32_t rows[2][kMi][4];
#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int i = 0; i < kMi; ++i) load_x(rows[step][i], stage, i, step);
    int part[2][kMi][4];
#pragma unroll
    for (int j = 0; j <= kNj; ++j) {
      if (j < kNj) {
        uint32_t columns[4];
        load_w_long(columns, stage, j);
#pragma unroll
        for (int i = 0; i < kMi; ++i) mma_16832_from(part[j % 2][i], rows[0][i], columns[0], columns[1], kOriginBits);
#pragma unroll
        for (int i = 0; i < kMi; ++i) mma_16832(part[j % 2][i], rows[1][i], columns[2], columns[3]);
      }
      if (j == 0) continue;
#pragma unroll
      for (int i = 0; i < kMi; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& to = sum[i][j - 1][e];
          to = fmaf(__int_as_float(part[(j - 1) % 2][i][e]), scale[i][e >> 1], to);
        }
    }
  }
  __device__ __forceinline__ void subtract_origin() {
#pragma unroll
    for (int i = 0; i < kMi; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int j = 0; j < kNj; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) sum[i][j][2 * h + e] = fmaf(-kOrigin, scale_sum[i][h], sum[i][j][2 * h + e]);
        scale_sum[i][h] = 0.0f;
      }
  }

  // ---- epilogue ----
  __device__ __forceinline__ static float number(float v) { return v; }
  __device__ __forceinline__ static float number(int v) { return __int2float_rn(v); }
  __device__ __forceinline__ float activate_one(float v) const {
    if constexpr (kEpilogue == Epilogue::gelu) return gelu_fast(v);
    if constexpr (kEpilogue == Epilogue::any) return activated_as<Elem>(p.activation, v);
    return v;
  }
  // Factors of the lane's rows, and scales and biases of eight of its columns.
  struct Rows {
    float scale[kMi][2];
  };
  struct Columns {
    float scale[8];
    Raw8<Elem> bias;
  };
  __device__ __forceinline__ Rows load_row_scales(int first_row) const {
    Rows r;
#pragma unroll
    for (int i = 0; i < kMi; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        r.scale[i][h] = 1.0f;
        if constexpr (kInt8 && !kBlocks) r.scale[i][h] = p.x_scale[min(first_row + 16 * i + 8 * h, p.T - 1)];
      }
    return r;
  }
  __device__ __forceinline__ Columns load_columns(int column) const {
    Columns c{};
    if (column < p.N) {
      if constexpr (kInt8) load8(p.w_scale + column, c.scale);
      if (p.bias != nullptr) c.bias = load_raw8(static_cast<const Elem*>(p.bias) + column);
    }
    return c;
  }
  // Results of row 16 i + 8 h + lane / 4 and eight columns.
  __device__ __forceinline__ void values_of(float (&v)[8], int i, int q, int h, const Rows& rows,
                                            const Columns& c) const {
    float bias[8];
    unpack8<Elem>(c.bias, bias);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float product = number(sum[i][4 * q + e / 2][2 * h + e % 2]) * rows.scale[i][h];
      v[e] = activate_one(kInt8 ? fmaf(product, c.scale[e], bias[e]) : product + bias[e]);
    }
  }

  // All loads are issued before the first store, which the compiler does not move them across.
  __device__ __forceinline__ void finish(int tile) {
    const int first_row = tile / column_tiles * Shape::kRows + warp_m * 16 * kMi + (lane >> 2);
    const int first_column = tile % column_tiles * Shape::kColumns + warp_n * 8 * kNj + 8 * (lane & 3);
    const Rows rows = load_row_scales(first_row);
    Columns columns[kNj / 4];
#pragma unroll
    for (int q = 0; q < kNj / 4; ++q) columns[q] = load_columns(first_column + 32 * q);
    if constexpr (kCodes)
      store_codes(first_row, first_column, rows, columns);
    else
      store_values(first_row, first_column, rows, columns);
  }
  __device__ __forceinline__ void store_values(int first_row, int first_column, const Rows& rows,
                                               const Columns (&columns)[kNj / 4]) const {
#pragma unroll
    for (int i = 0; i < kMi; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int q = 0; q < kNj / 4; ++q) {
          const int row = first_row + 16 * i + 8 * h, column = first_column + 32 * q;
          float v[8];
          values_of(v, i, q, h, rows, columns[q]);
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
  // A row of a warp is a block of columns. Largest magnitudes are compared as bits, which keeps NaN.
  __device__ __forceinline__ void store_codes(int first_row, int first_column, const Rows& rows,
                                              const Columns (&columns)[kNj / 4]) {
#pragma unroll
    for (int i = 0; i < kMi; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float v[kNj / 4][8];
        uint32_t bits = 0;
#pragma unroll
        for (int q = 0; q < kNj / 4; ++q) {
          values_of(v[q], i, q, h, rows, columns[q]);
#pragma unroll
          for (int e = 0; e < 8; ++e)
            if (first_column + 32 * q < p.N) bits = max(bits, magnitude_bits(v[q][e]));
        }
        bits = max(bits, __shfl_xor_sync(~0u, bits, 1));
        bits = max(bits, __shfl_xor_sync(~0u, bits, 2));
        const float most = __uint_as_float(bits), inverse = inverse_step(most);
        const int row = first_row + 16 * i + 8 * h;
        if (row >= p.T) continue;
        if ((lane & 3) == 0 && first_column < p.N)
          p.y_scale[static_cast<int64_t>(first_column / kScaleColumns) * p.ld_y_scale + row] = most * kInt8Step;
#pragma unroll
        for (int q = 0; q < kNj / 4; ++q)
          if (first_column + 32 * q < p.N)
            *reinterpret_cast<uint2*>(static_cast<char*>(p.y) + row * p.ldy + first_column + 32 * q) =
                pack8_int8(v[q], inverse);
      }
  }

  const TileProblem& p;
  SharedAddress base;
  int lane, warp_m, warp_n, column_tiles, tiles, depth;
  int next_tile, next_depth = 0, next_row = 0, next_column = 0, write_stage = 0, read_stage = 0;
  Sum sum[kMi][kNj][4];
  uint32_t x[2][kMi][4], w[2][kNj / 2][4];  // fragments of two steps
  float scale_sum[kMi][2] = {};             // scales of the blocks whose origin is still in `sum`
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
      s, grid, dim3(Shape::kThreads), Shape::shared_bytes(kBlocks), p);
}

}  // namespace brim::ops
