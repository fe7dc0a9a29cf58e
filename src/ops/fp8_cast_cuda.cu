// SPDX-License-Identifier: Apache-2.0
// fp8_cast on CUDA: tiles of 128 rows and 64 columns. A thread processes 4 rows of 8 columns: its bytes are stored
// directly as rows, and as words of 4 rows in shared memory, from which whole columns of 128 bytes are written.
#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/fp8_tile.cuh"
#include "ops/fp8_cast.h"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

constexpr int kTileRows = static_cast<int>(kFp8CastRows), kTileColumns = static_cast<int>(kFp8TileWidth),
              kCastThreads = 256;
static_assert(kFp8CastRows == kFp8TileHeight);
constexpr int kChunks = kTileRows / 16;  // 16-byte chunks per column

struct CastPlan {
  const __nv_bfloat16 *x, *gate;
  int64_t ldx, ld_gate;
  uint8_t *rows, *columns;  // either may be null
  int64_t ld_rows, ld_columns;
  int T, C, padded, rows_per_block;  // padded: length of a column
  const float* scale;
  float *inverse, *partials;  // may be null
  int* most_bits;             // may be null
};

template <Activation kActivation, bool kSlope>
__device__ __forceinline__ float cast_value(float x, float gate) {
  if constexpr (!kSlope)
    return activated<kActivation, __nv_bfloat16>(x);
  else if constexpr (slope_reads_output(kActivation))
    return x * activation_slope<kActivation, __nv_bfloat16>(activated<kActivation, __nv_bfloat16>(gate));
  else
    return x * activation_slope<kActivation, __nv_bfloat16>(gate);
}

// Work of block (across, down) of a tensor.
template <Activation kActivation, bool kSlope>
__device__ __forceinline__ void cast_block(const CastPlan& p, int across, int down) {
  // Chunk c of column k is at c ^ (k / 8), so that words of one store, and chunks of one load, are in different banks.
  __shared__ uint4 tile[kTileColumns * kChunks];
  __shared__ float tops[kCastThreads / 32];
  auto* words = reinterpret_cast<uint32_t*>(tile);
  const int group = threadIdx.x % 8, quad = threadIdx.x / 8, first_column = across * kTileColumns,
            column = first_column + 8 * group;
  const bool inside = column < p.C;
  const int begin = down * p.rows_per_block, end = min(p.padded, begin + p.rows_per_block);
  const float scale = *p.scale;
  float most = 0.0f, sums[8] = {};
  for (int first = begin; first < end; first += kTileRows) {
    Raw8<__nv_bfloat16> raw[4], raw_gate[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int64_t row = first + 4 * quad + r;
      raw[r] = raw_gate[r] = {make_uint4(0, 0, 0, 0)};
      if (!inside || row >= p.T) continue;
      raw[r] = stream_raw8(p.x + row * p.ldx + column);
      if constexpr (kSlope) raw_gate[r] = stream_raw8(p.gate + row * p.ld_gate + column);
    }
    uint2 packed[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int64_t row = first + 4 * quad + r;
      float f[8], gate[8];
      unpack8<__nv_bfloat16>(raw[r], f);
      if constexpr (kSlope) unpack8<__nv_bfloat16>(raw_gate[r], gate);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        f[j] = cast_value<kActivation, kSlope>(f[j], kSlope ? gate[j] : 0.0f);
        most = f[j] != f[j] ? INFINITY : fmaxf(most, fabsf(f[j]));
        sums[j] += f[j];
        f[j] *= scale;
      }
      packed[r] = pack8_fp8(f);
      if (p.rows != nullptr && inside && row < p.T)
        *reinterpret_cast<uint2*>(p.rows + row * p.ld_rows + column) = packed[r];
    }
    if (p.columns == nullptr) continue;
    __syncthreads();  // the previous tile has been written
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t word = j < 4 ? bytes_of_rows(packed[0].x, packed[1].x, packed[2].x, packed[3].x, j)
                                  : bytes_of_rows(packed[0].y, packed[1].y, packed[2].y, packed[3].y, j - 4);
      words[(8 * group + j) * 4 * kChunks + (quad ^ group * 4)] = word;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTileColumns * kChunks / kCastThreads; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * kCastThreads, k = at / kChunks, c = at % kChunks,
                row = first + 16 * c;
      if (first_column + k < p.C && row < p.padded)
        *reinterpret_cast<uint4*>(p.columns + (first_column + k) * p.ld_columns + row) =
            tile[k * kChunks + (c ^ k / 8)];
    }
  }
  if (p.inverse != nullptr && across == 0 && down == 0 && threadIdx.x == 0) *p.inverse = 1.0f / scale;
  if (p.most_bits != nullptr) {
    most = warp_max(most);
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = most;
  }
  __syncthreads();
  if (p.most_bits != nullptr && threadIdx.x == 0) {
    for (int i = 1; i < kCastThreads / 32; ++i) most = fmaxf(most, tops[i]);
    atomicMax(p.most_bits, __float_as_int(most));
  }
  if (p.partials == nullptr) return;
  auto* shares = reinterpret_cast<float*>(tile);  // [quads][columns]
#pragma unroll
  for (int j = 0; j < 8; ++j) shares[quad * kTileColumns + 8 * group + j] = sums[j];
  __syncthreads();
  const int c = threadIdx.x;
  if (c >= kTileColumns || first_column + c >= p.C) return;
  float total = 0.0f;
  for (int q = 0; q < kTileRows / 4; ++q) total += shares[q * kTileColumns + c];
  p.partials[static_cast<int64_t>(down) * p.C + first_column + c] = total;
}

template <Activation kActivation, bool kSlope>
__global__ void __launch_bounds__(kCastThreads) fp8_cast_kernel(const CastPlan p) {
  cast_block<kActivation, kSlope>(p, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
}

// Index of the matrix that contains a tile: the last one that begins at or before it.
__device__ __forceinline__ int matrix_of(const Fp8MatrixPlace* places, int n, int tile) {
  int low = 0, high = n - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (places[middle].first_tile <= tile)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

__global__ void __launch_bounds__(kCastThreads)
    matrices_amax_kernel(const Fp8MatrixPlace* places, int n, int* most_bits) {
  __shared__ float tops[kCastThreads / 32];
  const int tile = static_cast<int>(blockIdx.x), which = matrix_of(places, n, tile);
  const Fp8MatrixPlace m = places[which];
  const auto* x = static_cast<const __nv_bfloat16*>(m.x);
  const int wide = (m.K + kTileColumns - 1) / kTileColumns, at = tile - m.first_tile,
            column = at % wide * kTileColumns + 8 * static_cast<int>(threadIdx.x % 8),
            first = at / wide * kTileRows + static_cast<int>(threadIdx.x / 8);
  float most = 0.0f;
#pragma unroll
  for (int r = 0; r < kTileRows; r += kCastThreads / 8) {
    if (column >= m.K || first + r >= m.N) continue;
    float f[8];
    load8(x + static_cast<int64_t>(first + r) * m.K + column, f);
#pragma unroll
    for (int j = 0; j < 8; ++j) most = f[j] != f[j] ? INFINITY : fmaxf(most, fabsf(f[j]));
  }
  most = warp_max(most);
  if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = most;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kCastThreads / 32; ++i) most = fmaxf(most, tops[i]);
  atomicMax(most_bits + which, __float_as_int(most));
}

__global__ void __launch_bounds__(kCastThreads)
    matrices_cast_kernel(const Fp8MatrixPlace* places, int n, const float* scales) {
  const int tile = static_cast<int>(blockIdx.x), which = matrix_of(places, n, tile);
  const Fp8MatrixPlace m = places[which];
  CastPlan p{};
  p.x = static_cast<const __nv_bfloat16*>(m.x);
  p.ldx = p.ld_rows = p.C = m.K;
  p.rows = m.rows;
  p.columns = m.columns;
  p.ld_columns = p.T = p.padded = m.N;
  p.rows_per_block = kTileRows;
  p.scale = scales + which;
  const int wide = (m.K + kTileColumns - 1) / kTileColumns, at = tile - m.first_tile;
  cast_block<Activation::none, false>(p, at % wide, at / wide);
}

void check_cast_view(const char* name, const tensor::TensorView& v) {
  const int64_t step = std::min<int64_t>(16, 8 * dtype_bytes(v.dtype));
  BRIM_CHECK(!v || (reinterpret_cast<uintptr_t>(v.data) % 16 == 0 && v.ld() * dtype_bytes(v.dtype) % step == 0),
             "fp8_cast: {} {} must have rows on {}-byte boundaries", name, v.shape_text(), step);
}

}  // namespace

void fp8_cast_cuda(device::Stream& stream, const Fp8CastArgs& a) {
  cuda_op(stream, "fp8_cast", [&](device::CudaStream& s) {
    const int64_t T = a.x.rows(), C = a.x.cols(), blocks = cuda_fp8_cast_blocks(T),
                  tiles = (T + kTileRows - 1) / kTileRows;
    check_cast_view("x", a.x);
    check_cast_view("gate", a.gate);
    check_cast_view("rows", a.rows);
    check_cast_view("columns", a.columns);
    BRIM_CHECK(!a.columns || a.columns.ld() % 16 == 0, "fp8_cast: columns {} must be a multiple of 16 bytes apart",
               a.columns.shape_text());
    CastPlan p{};
    p.x = static_cast<const __nv_bfloat16*>(a.x.data);
    p.gate = static_cast<const __nv_bfloat16*>(a.gate.data);
    p.ldx = a.x.ld();
    p.ld_gate = a.gate.ld();
    p.rows = static_cast<uint8_t*>(a.rows.data);
    p.columns = static_cast<uint8_t*>(a.columns.data);
    p.ld_rows = a.rows.ld();
    p.ld_columns = a.columns.ld();
    p.T = static_cast<int>(T);
    p.C = static_cast<int>(C);
    p.padded = static_cast<int>(fp8_columns(T));
    p.rows_per_block = static_cast<int>((tiles + blocks - 1) / blocks * kTileRows);
    p.scale = a.scale.as<float>();
    p.inverse = a.inverse.as<float>();
    p.partials = a.d_bias ? static_cast<float*>(a.scratch.data) : nullptr;
    p.most_bits = reinterpret_cast<int*>(a.amax.as<float>());
    const dim3 grid(device::blocks_for(C, kTileColumns), static_cast<unsigned>(blocks));
    dispatch_activation(a.activation, [&](auto chosen) {
      constexpr Activation kActivation = decltype(chosen)::value;
      if (a.gate)
        device::launch<fp8_cast_kernel<kActivation, true>>(s, grid, dim3(kCastThreads), p);
      else
        device::launch<fp8_cast_kernel<kActivation, false>>(s, grid, dim3(kCastThreads), p);
    });
    if (a.d_bias) add_rows_cuda(s, p.partials, blocks, C, 1, a.d_bias.as<float>(), 0, true);
  });
}

void fp8_cast_matrices_cuda(device::Stream& stream, const Fp8CastMatricesArgs& a) {
  cuda_op(stream, "fp8_cast_matrices", [&](device::CudaStream& s) {
    const auto* places = static_cast<const Fp8MatrixPlace*>(a.places.data);
    const int n = static_cast<int>(a.amax.rows());
    const dim3 grid(static_cast<unsigned>(a.tiles)), block(kCastThreads);
    s.fill_zero(a.amax.data, static_cast<size_t>(a.amax.bytes()));
    device::launch<matrices_amax_kernel>(s, grid, block, places, n, reinterpret_cast<int*>(a.amax.as<float>()));
    fp8_scale_cuda(stream, {.amax = a.amax, .scale = a.scale, .inverse = a.inverse});
    device::launch<matrices_cast_kernel>(s, grid, block, places, n, a.scale.as<float>());
  });
}

}  // namespace brim::ops
