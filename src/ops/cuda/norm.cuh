// SPDX-License-Identifier: Apache-2.0
// A row of H elements held by a group of lanes, eight neighbours at a time, for layer norm and embedding: one pass over
// memory, statistics in fp32 from registers in two steps (mean, then centred squares). A warp processes a row of up to
// 1024 elements, four warps a longer one. One row per warp was faster than a persistent grid (95 % of copy bandwidth
// instead of 92 %).
#pragma once
#include "ops/cuda/int8.cuh"

namespace brim::ops {

constexpr int kNormThreads = 256;
constexpr int kNormMaxH = 4096;

// kVec pieces of eight elements per lane and kGroup warps per row: for rows of more than (kVec - 1) * kGroup * 256 and
// at most kVec * kGroup * 256 elements.
template <int kVec, int kGroup>
struct NormRow {
  static constexpr int kLanes = 32 * kGroup;
  float v[kVec][8];
  int lane;    // within the group
  int pieces;  // H / 8

  __device__ __forceinline__ int piece(int i) const { return i * kLanes + lane; }
  __device__ __forceinline__ bool has(int i) const { return i < kVec - 1 || piece(i) < pieces; }
  __device__ __forceinline__ int column(int i) const { return 8 * piece(i); }

  __device__ __forceinline__ float total(float x) const {
    x = warp_sum(x);
    if constexpr (kGroup > 1) {
      __shared__ float parts[kNormThreads / 32];
      const int warp = threadIdx.x / 32, first = warp / kGroup * kGroup;
      __syncthreads();  // earlier reads are complete
      if (threadIdx.x % 32 == 0) parts[warp] = x;
      __syncthreads();
      x = 0.0f;
#pragma unroll
      for (int i = 0; i < kGroup; ++i) x += parts[first + i];
    }
    return x;
  }
  // Largest magnitude as bits.
  __device__ __forceinline__ uint32_t most_of(uint32_t bits) const {
    bits = warp_max_bits(bits);
    if constexpr (kGroup > 1) {
      __shared__ uint32_t parts[kNormThreads / 32];
      const int warp = threadIdx.x / 32, first = warp / kGroup * kGroup;
      __syncthreads();  // earlier reads are complete
      if (threadIdx.x % 32 == 0) parts[warp] = bits;
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kGroup; ++i) bits = max(bits, parts[first + i]);
    }
    return bits;
  }
  __device__ __forceinline__ float2 statistics(float inverse_h, float eps) const {
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kVec; ++i)
      if (has(i)) {
#pragma unroll
        for (int j = 0; j < 8; ++j) sum += v[i][j];
      }
    const float mean = total(sum) * inverse_h;
#pragma unroll
    for (int i = 0; i < kVec; ++i)
      if (has(i)) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float d = v[i][j] - mean;
          squares = fmaf(d, d, squares);
        }
      }
    return make_float2(mean, rsqrtf(total(squares) * inverse_h + eps));
  }
};

// Outputs for a row: y, and the statistics kept for training. Pointers may be null.
template <class Elem>
struct NormOutput {
  const Elem *gamma, *beta;  // beta may be null
  Elem *y, *sum;
  uint8_t* y_fp8;
  const float* fp8_scale;
  float *mean, *rstd;
  float* row_scale;  // not null: y_fp8 receives int8 codes with this scale per row
  int64_t ldy, ld_sum, ld_fp8;
  float eps, inverse_h;
};
// From the arguments of an op with these member names; rows of H elements.
template <class Elem, class Args>
NormOutput<Elem> norm_output(const Args& a, int64_t H) {
  return {static_cast<const Elem*>(a.gamma.data),
          static_cast<const Elem*>(a.beta.data),
          static_cast<Elem*>(a.y.data),
          static_cast<Elem*>(a.sum.data),
          static_cast<uint8_t*>(a.y_fp8.data),
          a.fp8_scale.template as<float>(),
          a.mean.template as<float>(),
          a.rstd.template as<float>(),
          a.y_fp8 && a.y_fp8.dtype == tensor::DType::i8 ? a.fp8_scale.template as<float>() : nullptr,
          a.y.ld(),
          a.sum.ld(),
          a.y_fp8.ld(),
          a.eps,
          1.0f / static_cast<float>(H)};
}

// y and its int8 codes. Lanes of rows past the end take part in the barriers.
template <class Elem, int kVec, int kGroup>
__device__ __forceinline__ void store_codes(NormRow<kVec, kGroup>& row, int64_t r, bool valid,
                                            const NormOutput<Elem>& o, float2 stat, const Raw8<Elem> (&raw_gamma)[kVec],
                                            const Raw8<Elem> (&raw_beta)[kVec]) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < kVec; ++i)
    if (row.has(i)) {
      float gamma[8], beta[8] = {};
      unpack8<Elem>(raw_gamma[i], gamma);
      if (o.beta != nullptr) unpack8<Elem>(raw_beta[i], beta);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        row.v[i][j] = (row.v[i][j] - stat.x) * stat.y * gamma[j] + beta[j];
        bits = max(bits, magnitude_bits(row.v[i][j]));
      }
    }
  const float most = __uint_as_float(row.most_of(bits)), inverse = inverse_step(most);
  if (!valid) return;
  if (row.lane == 0) o.row_scale[r] = most * kInt8Step;
#pragma unroll
  for (int i = 0; i < kVec; ++i)
    if (row.has(i)) {
      store8(o.y + r * o.ldy + row.column(i), row.v[i]);
      *reinterpret_cast<uint2*>(o.y_fp8 + r * o.ld_fp8 + row.column(i)) = pack8_int8(row.v[i], inverse);
    }
}

struct NoCopy {
  __device__ __forceinline__ void operator()(int, const float (&)[8]) const {}
};
// `also(column, y)` is called with each eight values of y as they are stored.
template <class Elem, int kVec, int kGroup, bool kTrain, class Also = NoCopy>
__device__ __forceinline__ void normalise_and_store(NormRow<kVec, kGroup>& row, int64_t r, bool valid,
                                                    const NormOutput<Elem>& o, const DropoutMask& after,
                                                    const Also& also = {}) {
  if constexpr (kTrain)
    if (o.sum != nullptr && valid) {
#pragma unroll
      for (int i = 0; i < kVec; ++i)
        if (row.has(i)) store8(o.sum + r * o.ld_sum + row.column(i), row.v[i]);
    }
  Raw8<Elem> raw_gamma[kVec], raw_beta[kVec];  // loaded while the statistics are computed
#pragma unroll
  for (int i = 0; i < kVec; ++i)
    if (row.has(i)) {
      raw_gamma[i] = load_raw8(o.gamma + row.column(i));
      if (o.beta != nullptr) raw_beta[i] = load_raw8(o.beta + row.column(i));
    }
  const float2 stat = row.statistics(o.inverse_h, o.eps);
  if constexpr (!kTrain)
    if (o.row_scale != nullptr) return store_codes<Elem>(row, r, valid, o, stat, raw_gamma, raw_beta);
  if (!valid) return;
  if constexpr (kTrain)
    if (row.lane == 0) {
      if (o.mean != nullptr) o.mean[r] = stat.x;
      if (o.rstd != nullptr) o.rstd[r] = stat.y;
    }
#pragma unroll
  for (int i = 0; i < kVec; ++i)
    if (row.has(i)) {
      float gamma[8], beta[8] = {}, y[8];
      unpack8<Elem>(raw_gamma[i], gamma);
      if (o.beta != nullptr) unpack8<Elem>(raw_beta[i], beta);
#pragma unroll
      for (int j = 0; j < 8; ++j) y[j] = (row.v[i][j] - stat.x) * stat.y * gamma[j] + beta[j];
      if constexpr (kTrain)
        if (after.threshold != 0) drop8(after, static_cast<uint64_t>(r), static_cast<uint32_t>(row.column(i)), y);
      store8(o.y + r * o.ldy + row.column(i), y);
      also(row.column(i), y);
      if (o.y_fp8 != nullptr) {
        const float scale = *o.fp8_scale;
#pragma unroll
        for (int j = 0; j < 8; ++j) y[j] *= scale;
        *reinterpret_cast<uint2*>(o.y_fp8 + r * o.ld_fp8 + row.column(i)) = pack8_fp8(y);
      }
    }
}

template <int kVec, int kGroup>
struct NormShape {
  static constexpr int vec = kVec, group = kGroup;
};

// Calls f(NormShape) for a row length.
template <class F>
void dispatch_norm(const char* op, int64_t H, F&& f) {
  BRIM_CHECK(H % 8 == 0 && H <= kNormMaxH,
             "{}: rows have {} elements, the CUDA kernels support multiples of 8 up to {}", op, H, kNormMaxH);
  if (H <= 256) return f(NormShape<1, 1>{});
  if (H <= 512) return f(NormShape<2, 1>{});
  if (H <= 768) return f(NormShape<3, 1>{});
  if (H <= 1024) return f(NormShape<4, 1>{});
  if (H <= 2048) return f(NormShape<2, 4>{});
  if (H <= 3072) return f(NormShape<3, 4>{});
  return f(NormShape<4, 4>{});
}
inline void check_norm_view(const char* op, const char* name, const tensor::TensorView& v) {
  BRIM_CHECK(!v || (reinterpret_cast<uintptr_t>(v.data) % 16 == 0 && (v.rank < 2 || v.ld() % 8 == 0)),
             "{}: {} must be 16-byte aligned with rows a multiple of 8 elements apart", op, name);
}

}  // namespace brim::ops
