// SPDX-License-Identifier: Apache-2.0
// Gradient of layer_norm: each block processes a run of rows, keeps its share of d_gamma, d_beta and d_bias in
// registers, and writes it as one row of partial sums each; a second kernel adds the rows in order.
#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/fp8_tile.cuh"
#include "ops/cuda/norm.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

// Three blocks of 128 per multiprocessor leave 168 registers per thread, for a row as read and the sums: 126 µs for
// 65,536 results of 768. Two blocks of 256, with 128 registers and the row read twice: 167, or 183 with the gains in
// shared memory and more spills; one block of 256: 150. Prefetching one row: 136, or 148 if the row is read twice.
constexpr int kGradThreads = 128;

template <class Elem>
struct NormGradArgs {
  const Elem* x;  // sum, or y
  const Elem *gamma, *d_y;
  const Elem* beta;          // used with y; may be null
  const float *mean, *rstd;  // mean: used with sum
  Elem *d_sum, *d_x;         // d_x may be null
  float* partials;           // [blocks, 3, H]
  int ld_x, ld_d_y, ld_d_sum, ld_d_x, T, H, rows_per_block;
  float inverse_h;
  bool accumulate;
  DropoutMask drop;
  Fp8Out fp8;  // copies of the gradient of x
};

__device__ __forceinline__ float inverse_gain(float gamma, float beta) {
  const bool undone = fabsf(gamma) >= fmaxf(kLeastGain, kLeastGainOfOffset * fabsf(beta));
  return undone ? __fdividef(1.0f, gamma) : 0.0f;
}

// Gains, offsets and inverse gains of a row as floats, for a block that inverts many rows: unpacking and inverting them
// for every row took 167 µs for 65,536 of 768. Halves of eight are stored apart, so that neighbouring lanes use
// different banks.
template <int kPieces>
struct Gains {
  float gamma[2][kPieces][4], beta[2][kPieces][4], inverse[2][kPieces][4];

  template <class Elem>
  __device__ __forceinline__ void fill(const Elem* from_gamma, const Elem* from_beta, int H) {
    for (int c = threadIdx.x; c < H; c += kGradThreads) {
      const float g = to_f32(from_gamma[c]), b = from_beta != nullptr ? to_f32(from_beta[c]) : 0.0f;
      gamma[c / 4 % 2][c / 8][c % 4] = g;
      beta[c / 4 % 2][c / 8][c % 4] = b;
      inverse[c / 4 % 2][c / 8][c % 4] = inverse_gain(g, b);
    }
    __syncthreads();
  }
  static __device__ __forceinline__ void read(const float (&from)[2][kPieces][4], int piece, float (&to)[8]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 v = *reinterpret_cast<const float4*>(from[half][piece]);
      to[4 * half] = v.x, to[4 * half + 1] = v.y, to[4 * half + 2] = v.z, to[4 * half + 3] = v.w;
    }
  }
};

// Used if there are no copies, or nothing to invert.
struct Nothing {};

// kFromY: y - beta, which is gamma times the normalised row, replaces it in the sums; those of d_gamma are divided at
// the end. kFp8: with copies of the gradient of x; rows_per_block is then a multiple of 32.
template <class Elem, int kVec, int kGroup, bool kFp8, bool kFromY>
__global__ void __launch_bounds__(kGradThreads, sizeof(Elem) == 2 && kVec < 4 ? 3 : 2)
    layer_norm_grad_kernel(const NormGradArgs<Elem> a) {
  constexpr int kRows = kGradThreads / 32 / kGroup;
  static_assert(!kFp8 || kGroup == 1);
  constexpr bool kGains = kFromY && kGroup == 1;  // longer rows do not fit
  // Shares of the groups of one sum, in eighths of a row so that neighbouring lanes use different banks; shares storage
  // with the per-row data, which is no longer needed then.
  constexpr int kEighth = kVec * kGroup * 32 + 4;
  __shared__ union {
    float shares[kRows][8 * kEighth];
    struct {
      alignas(16) std::conditional_t<kGains, Gains<kVec * 32>, Nothing> gains;
      std::conditional_t<kFp8, Fp8Tile<kVec * 256, kGradThreads>, Nothing> tile;
    } rows;
  } shared;
  auto& gains = shared.rows.gains;
  auto& tile = shared.rows.tile;
  if constexpr (kGains) gains.fill(a.gamma, a.beta, a.H);
  float scale = 1.0f, most = 0.0f;
  if constexpr (kFp8) scale = *a.fp8.scale;
  NormRow<kVec, kGroup> row;  // gives the columns of this lane
  row.lane = threadIdx.x % (32 * kGroup);
  row.pieces = a.H / 8;
  const int group = threadIdx.x / (32 * kGroup);
  const int begin = static_cast<int>(blockIdx.x) * a.rows_per_block, end = min(a.T, begin + a.rows_per_block),
            walked = kFp8 ? min(a.fp8.padded, begin + a.rows_per_block) : end;
  float sums[3][kVec][8];  // d_gamma, d_beta, d_bias
#pragma unroll
  for (int i = 0; i < kVec; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j) sums[0][i][j] = sums[1][i][j] = sums[2][i][j] = 0.0f;
  for (int first = begin; first < walked; first += kRows) {
    const int r = first + group;
    const bool valid = r < end;
    if (kGroup == 1 && !kFp8 && !valid) break;  // longer rows and copies use a block barrier
    const auto at = [&](int ld, int i) { return static_cast<int64_t>(r) * ld + row.column(i); };
    Raw8<Elem> raw_x[kVec], raw_d_y[kVec];
    const float mean = !kFromY && valid ? a.mean[r] : 0.0f, rstd = valid ? a.rstd[r] : 0.0f;
    // Gains and offsets of eight columns.
    const auto load_gains = [&](int i, float(&gamma)[8], float(&beta)[8]) {
      if constexpr (kGains) {
        gains.read(gains.gamma, row.piece(i), gamma);
        gains.read(gains.beta, row.piece(i), beta);
      } else {
        load8(a.gamma + row.column(i), gamma);
        if (kFromY && a.beta != nullptr) load8(a.beta + row.column(i), beta);
      }
    };
    float total = 0.0f, total_x = 0.0f;
#pragma unroll
    for (int i = 0; i < kVec; ++i)
      if (row.has(i) && valid)
        raw_x[i] = load_raw8(a.x + at(a.ld_x, i)), raw_d_y[i] = load_raw8(a.d_y + at(a.ld_d_y, i));
#pragma unroll
    for (int i = 0; i < kVec; ++i)
      if (row.has(i) && valid) {
        float x[8], d_y[8], gamma[8], beta[8] = {};
        unpack8<Elem>(raw_x[i], x);
        unpack8<Elem>(raw_d_y[i], d_y);
        load_gains(i, gamma, beta);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float g = d_y[j] * gamma[j], centre = kFromY ? x[j] - beta[j] : (x[j] - mean) * rstd;
          total += g;
          total_x = fmaf(kFromY ? d_y[j] : g, centre, total_x);
          sums[0][i][j] = fmaf(d_y[j], centre, sums[0][i][j]);
          sums[1][i][j] += d_y[j];
        }
      }
    total = row.total(total) * a.inverse_h;
    total_x = row.total(total_x) * a.inverse_h;
    if (!kFp8 && !valid) continue;
#pragma unroll
    for (int i = 0; i < kVec; ++i)
      if (row.has(i)) {
        if constexpr (kFp8)
          if (!valid) {
            tile.put((first - begin) % kFp8TileRows + group, row.column(i), make_uint2(0, 0));
            continue;
          }
        float x[8], d[8], gamma[8], beta[8] = {};
        unpack8<Elem>(raw_x[i], x);
        unpack8<Elem>(raw_d_y[i], d);
        load_gains(i, gamma, beta);
        float inverse[8];
        if constexpr (kGains) {
          gains.read(gains.inverse, row.piece(i), inverse);
        } else if constexpr (kFromY) {
#pragma unroll
          for (int j = 0; j < 8; ++j) inverse[j] = inverse_gain(gamma[j], beta[j]);
        }
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float normal = kFromY ? (x[j] - beta[j]) * inverse[j] : (x[j] - mean) * rstd;
          d[j] = rstd * (d[j] * gamma[j] - total - normal * total_x);
        }
        Elem* to = a.d_sum + at(a.ld_d_sum, i);
        if (a.accumulate) {
          float there[8];
          load8(to, there);
#pragma unroll
          for (int j = 0; j < 8; ++j) d[j] += there[j];
        }
        store8(to, d);
        if (kFp8 || a.d_x != nullptr) {  // without copies, d_x is present whenever there is dropout
          if (a.drop.threshold != 0) drop8(a.drop, static_cast<uint64_t>(r), static_cast<uint32_t>(row.column(i)), d);
          if (!kFp8 || a.d_x != nullptr) store8(a.d_x + at(a.ld_d_x, i), d);
        }
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[2][i][j] += d[j];
        if constexpr (kFp8) {
          const uint2 codes = codes_of<Elem>(d, scale, most);
          if (a.fp8.rows != nullptr) *reinterpret_cast<uint2*>(a.fp8.rows + r * a.fp8.ld_rows + row.column(i)) = codes;
          tile.put((first - begin) % kFp8TileRows + group, row.column(i), codes);
        }
      }
    if constexpr (kFp8) {
      const int so_far = first + kRows - begin;
      if (a.fp8.columns != nullptr && (so_far % kFp8TileRows == 0 || first + kRows >= walked)) {
        __syncthreads();
        tile.leave(a.fp8, begin + (so_far - 1) / kFp8TileRows * kFp8TileRows, a.H);
        __syncthreads();
      }
    }
  }
  if constexpr (kFp8) merge_most<kGradThreads>(a.fp8, most);
    // Add the shares of the groups in order.
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    __syncthreads();  // reads of the tile or the last sum are complete
#pragma unroll
    for (int i = 0; i < kVec; ++i)
      if (row.has(i)) {
#pragma unroll
        for (int j = 0; j < 8; ++j) shared.shares[group][j * kEighth + row.piece(i)] = sums[k][i][j];
      }
    __syncthreads();
    for (int c = threadIdx.x; c < a.H; c += kGradThreads) {
      float sum = 0.0f;
#pragma unroll
      for (int g = 0; g < kRows; ++g) sum += shared.shares[g][c % 8 * kEighth + c / 8];
      if (kFromY && k == 0) sum *= inverse_gain(to_f32(a.gamma[c]), a.beta != nullptr ? to_f32(a.beta[c]) : 0.0f);
      a.partials[(static_cast<int64_t>(blockIdx.x) * 3 + k) * a.H + c] = sum;
    }
  }
}

__global__ void __launch_bounds__(kSumThreads)
    add_norm_partials_kernel(const float* partials, int count, int H, float* d_gamma, float* d_beta, float* d_bias) {
  const int c = static_cast<int>(blockIdx.x) * 32 + threadIdx.x % 32, which = static_cast<int>(blockIdx.y);
  float* to = which == 0 ? d_gamma : which == 1 ? d_beta : d_bias;  // the last two may be null
  if (to == nullptr) return;
  const float sum = add_column(partials + which * H + c, count, 3 * H, c < H);
  if (threadIdx.x < 32 && c < H) to[c] += sum;
}

}  // namespace

void layer_norm_grad_cuda(device::Stream& stream, const LayerNormGradArgs& a) {
  cuda_op(stream, "layer_norm_grad", [&](device::CudaStream& s) {
    const TensorView& x = a.y ? a.y : a.sum;
    const int64_t T = x.rows(), H = x.cols(), blocks = cuda_norm_partials(T),
                  wanted = cuda_layer_norm_grad_scratch_bytes(T, H);
    for (const auto& [name, view] : NamedViews{{"sum", a.sum},
                                               {"y", a.y},
                                               {"gamma", a.gamma},
                                               {"beta", a.beta},
                                               {"d_y", a.d_y},
                                               {"d_sum", a.d_sum},
                                               {"d_x", a.d_x}})
      check_norm_view("layer_norm_grad", name, view);
    BRIM_CHECK(a.scratch && a.scratch.bytes() >= wanted, "layer_norm_grad: scratch has {} bytes, needs {}",
               a.scratch ? a.scratch.bytes() : 0, wanted);
    check_fp8_out("layer_norm_grad", a.train_fp8);
    bool copied = !a.train_fp8;
    auto* partials = static_cast<float*>(a.scratch.data);
    dispatch_elem(x.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      NormGradArgs<Elem> args{};
      args.x = static_cast<const Elem*>(x.data);
      args.gamma = static_cast<const Elem*>(a.gamma.data);
      args.beta = static_cast<const Elem*>(a.beta.data);
      args.d_y = static_cast<const Elem*>(a.d_y.data);
      args.mean = a.mean.as<float>();
      args.rstd = a.rstd.as<float>();
      args.d_sum = static_cast<Elem*>(a.d_sum.data);
      args.d_x = static_cast<Elem*>(a.d_x.data);
      args.partials = partials;
      args.ld_x = static_cast<int>(x.ld());
      args.ld_d_y = static_cast<int>(a.d_y.ld());
      args.ld_d_sum = static_cast<int>(a.d_sum.ld());
      args.ld_d_x = static_cast<int>(a.d_x.ld());
      args.T = static_cast<int>(T);
      args.H = static_cast<int>(H);
      args.inverse_h = 1.0f / static_cast<float>(H);
      args.accumulate = a.d_sum_write == GradWrite::accumulate;
      args.drop = dropout_mask(a.dropout);
      const dim3 grid(static_cast<unsigned>(blocks)), block(kGradThreads);
      dispatch_norm("layer_norm_grad", H, [&](auto shape) {
        using Shape = decltype(shape);
        constexpr int kRows = kGradThreads / 32 / Shape::group;
        args.rows_per_block = static_cast<int>((T + blocks * kRows - 1) / (blocks * kRows) * kRows);
        const auto start = [&](auto from_y) {
          constexpr bool kFromY = decltype(from_y)::value;
          if constexpr (std::is_same_v<Elem, __nv_bfloat16> && Shape::group == 1)  // see layer_norm_grad_stores_d_x
            if (a.train_fp8) {
              copied = true;
              args.fp8 = fp8_out(a.train_fp8, T);
              args.rows_per_block = (args.rows_per_block + kFp8TileRows - 1) / kFp8TileRows * kFp8TileRows;
              device::launch<layer_norm_grad_kernel<Elem, Shape::vec, 1, true, kFromY>>(s, grid, block, args);
              return;
            }
          device::launch<layer_norm_grad_kernel<Elem, Shape::vec, Shape::group, false, kFromY>>(s, grid, block, args);
        };
        if (a.y)
          start(std::true_type{});
        else
          start(std::false_type{});
      });
    });
    launch<add_norm_partials_kernel>(s, dim3(device::blocks_for(H, 32), 3), dim3(kSumThreads), partials,
                                     static_cast<int>(blocks), static_cast<int>(H), a.d_gamma.as<float>(),
                                     a.d_beta.as<float>(), a.d_bias.as<float>());
    if (!copied) fp8_copy(stream, a.d_x ? a.d_x : a.d_sum, a.train_fp8);
  });
}

}  // namespace brim::ops
