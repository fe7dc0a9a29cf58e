// SPDX-License-Identifier: Apache-2.0
// Gradients of linear on the CPU: two products on the forward kernels. For d_x = d_y W the weights are packed
// transposed; for d_w = d_yᵀ x tokens are the depth, processed kDepth at a time and in order, so the summation order
// depends on T only. Operands are rounded to bf16 if requested; sums are fp32. A single thread alternates between both
// every kDepth tokens, so that the second finds the inputs of the first in cache.
#include <algorithm>
#include <bit>
#include <cstring>

#include "ops/check.h"
#include "ops/cpu/column_sums.h"
#include "ops/cpu/linear_grad_rows.h"
#include "ops/gemm/kernels.h"
#include "ops/gemm/multiply.h"
#include "ops/kernel_table.h"

namespace brim::ops {

using device::Stream;
using tensor::TensorView;

namespace {

constexpr int64_t kDepth = 512;  // tokens per product of d_w
constexpr int64_t kTurn = 16;    // tile size of the transposition

const gemm::Kernel& kernel_of(const Stream& stream, Precision precision) {
  BRIM_CHECK(precision != Precision::int8, "linear_grad: int8 is not supported");
  return gemm::kernel_for(target_isa(stream), precision);
}

struct Sizes {  // sizes of the parts of scratch
  int64_t weights, turned, tokens, rows;
  bool apart;  // weights are needed alongside the others, not before them
  int64_t before_rows() const { return apart ? weights + turned + tokens : std::max(weights, turned + tokens); }
  int64_t total() const { return before_rows() + rows + 64; }
};
Sizes sizes(const gemm::Kernel& kernel, int64_t T, int64_t N, int64_t K, int threads) {
  const int64_t depth = std::min(T, kDepth);
  const int64_t turned = kernel.pack_turned_rows == nullptr ? gemm::round_up(N * depth * 4, 64) : 0;
  return {gemm::round_up(gemm::packed_bytes(kernel, K, N), 64), turned,
          gemm::round_up(gemm::packed_bytes(kernel, K, depth), 64),
          std::max(gemm::multiply_scratch_bytes(kernel, T, N, threads),
                   gemm::multiply_scratch_bytes(kernel, N, depth, threads)),
          threads == 1};
}

uint32_t bf16_bits(float x) {  // like to_bf16, but branchless, so that it vectorises
  const auto u = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = u + 0x7FFF + (u >> 16 & 1), quiet = u | 0x400000;
  return ((u & 0x7FFFFFFF) > 0x7F800000 ? quiet : rounded) >> 16;
}

// Packs `cols` columns of one group of kr source rows into one step of a panel.
void pack_group(const gemm::Kernel& kernel, const float* const* rows, int64_t cols, void* out) {
  if (kernel.element_bytes == 4) {
    std::memcpy(out, rows[0], static_cast<size_t>(cols) * 4);
  } else if (kernel.kr == 2) {
    auto* to = static_cast<uint32_t*>(out);
    const float *even = rows[0], *odd = rows[1];
    for (int64_t c = 0; c < cols; ++c) to[c] = bf16_bits(even[c]) | bf16_bits(odd[c]) << 16;
  } else if (kernel.kr == 4) {
    auto* to = static_cast<uint64_t*>(out);
    for (int64_t c = 0; c < cols; ++c) {
      const uint32_t low = bf16_bits(rows[0][c]) | bf16_bits(rows[1][c]) << 16,
                     high = bf16_bits(rows[2][c]) | bf16_bits(rows[3][c]) << 16;
      to[c] = low | static_cast<uint64_t>(high) << 32;
    }
  } else {
    auto* to = static_cast<uint16_t*>(out);
    for (int i = 0; i < kernel.kr; ++i)
      for (int64_t c = 0; c < cols; ++c) to[c * kernel.kr + i] = static_cast<uint16_t>(bf16_bits(rows[i][c]));
  }
}

// A panel of columns starting at `first` of source [depth, columns], whose rows become the depth of the product.
void pack_panel(const gemm::Kernel& kernel, const TensorView& source, int64_t first, char* to) {
  constexpr int kMostRows = 8, kMostColumns = 64;
  BRIM_CHECK(kernel.kr <= kMostRows && kernel.nr <= kMostColumns, "{}: kr {} nr {}", kernel.name, kernel.kr, kernel.nr);
  static constexpr float kZeros[kMostColumns] = {};
  const int64_t depth = source.rows(), cols = std::min<int64_t>(kernel.nr, source.cols() - first);
  const int64_t padded = gemm::round_up(depth, kernel.k_multiple),
                step = static_cast<int64_t>(kernel.nr) * kernel.kr * kernel.element_bytes;
  const float* from = source.as<float>() + first;
  const float* rows[kMostRows];
  for (int64_t k = 0; k < padded; k += kernel.kr, to += step) {
    for (int i = 0; i < kernel.kr; ++i) rows[i] = k + i < depth ? from + (k + i) * source.ld() : kZeros;
    if (cols < kernel.nr) std::memset(to, 0, static_cast<size_t>(step));
    pack_group(kernel, rows, cols, to);
  }
}
void pack_turned(const Stream& stream, const gemm::Kernel& kernel, const TensorView& source, void* packed) {
  const int64_t panel = kernel.nr * gemm::round_up(source.rows(), kernel.k_multiple) * kernel.element_bytes;
  parallel_pieces(stream, source.cols(), kernel.nr, [&](int64_t first, int64_t end, int) {
    if (kernel.pack_turned_weights != nullptr)
      kernel.pack_turned_weights(
          {source.data, source.ld(), source.cols(), source.rows(), source.dtype == tensor::DType::bf16, first, end},
          packed);
    else
      pack_panel(kernel, source, first, static_cast<char*>(packed) + first / kernel.nr * panel);
  });
}

// to [cols, rows] = from [rows, cols] transposed.
void transpose(const Stream& stream, const TensorView& from, const TensorView& to) {
  const int64_t rows = from.rows(), cols = from.cols(), ld = from.ld(), ld_to = to.ld();
  parallel_pieces(stream, cols, kTurn, [&](int64_t begin, int64_t end, int) {
    const float* in = from.as<float>();
    float* out = to.as<float>();
    for (int64_t row = 0; row < rows; row += kTurn) {
      const int64_t last = std::min(rows, row + kTurn);
      for (int64_t c = begin; c < end; ++c)
        for (int64_t r = row; r < last; ++r) out[c * ld_to + r] = in[r * ld + c];
    }
  });
}

}  // namespace

int64_t linear_grad_scratch_bytes(const Stream& stream, int64_t T, int64_t N, int64_t K, Precision precision,
                                  int threads) {
  // A narrow product accumulates at least one weight gradient in scratch; with ten thousand labels that needs more.
  if (target_kind(stream) == device::DeviceKind::cuda)
    return std::max(kCudaLinearScratchBytes, N * K * static_cast<int64_t>(sizeof(float)));
  return sizes(kernel_of(stream, precision), T, N, K, threads).total();
}

void linear_grad_rows(Stream& stream, const LinearGradArgs& args, const RowsDone& done, const TensorView& block) {
  const gemm::Kernel& kernel = kernel_of(stream, args.precision);
  const int64_t T = args.x.rows(), N = args.w_plain.rows(), K = args.w_plain.cols();
  const Sizes size = sizes(kernel, T, N, K, threads_of(stream));
  check_scratch("linear_grad", args.scratch, size.total());
  char* weights = reinterpret_cast<char*>(gemm::round_up(reinterpret_cast<intptr_t>(args.scratch.data), 64));
  char *turned = size.apart ? weights + size.weights : weights, *tokens = turned + size.turned,
       *rows_scratch = weights + size.before_rows();

  const auto d_x_of = [&](int64_t begin, int64_t end) {
    const TensorView d_x = block ? block.slice_rows(0, end - begin) : args.d_x.slice_rows(begin, end);
    gemm::multiply(stream, kernel,
                   {.x = args.d_y.slice_rows(begin, end),
                    .b = weights,
                    .residual = args.d_x_write == GradWrite::accumulate ? d_x : TensorView(),
                    .y = d_x,
                    .scratch = rows_scratch});
    if (done) done(begin, end, d_x);
  };
  bool add = args.d_w_write == GradWrite::accumulate;
  const auto d_w_of = [&](int64_t begin, int64_t end) {
    const int64_t depth = end - begin;
    const bool turns = kernel.pack_turned_rows != nullptr;
    TensorView rows = args.d_y.slice_rows(begin, end);
    if (!turns) {
      const TensorView to(turned, tensor::DType::f32, {N, depth});
      transpose(stream, rows, to);
      rows = to;
    }
    pack_turned(stream, kernel, args.x.slice_rows(begin, end), tokens);
    gemm::multiply(stream, kernel,
                   {.x = rows,
                    .b = tokens,
                    .residual = add ? args.d_w : TensorView(),
                    .y = args.d_w,
                    .turned = turns,
                    .scratch = rows_scratch});
    add = true;  // existing values are part of the sum
  };

  if (args.d_x) pack_turned(stream, kernel, args.w_plain, weights);
  const int64_t most = size.apart ? gemm::kRowsABlock : block ? block.rows() : T;  // rows of d_x at a time
  int64_t ready = 0;
  for (int64_t t = 0; t < T; t += kDepth) {
    const int64_t end = std::min(T, t + kDepth);
    // Without `apart`, packed tokens overwrite the weights, so all of d_x is computed first.
    for (const int64_t wanted = size.apart ? end : T; args.d_x && ready < wanted; ready = std::min(T, ready + most))
      d_x_of(ready, std::min(T, ready + most));
    if (args.d_w) d_w_of(t, end);
  }
  if (T == 0 && args.d_w && !add) d_w_of(0, 0);  // set to zero
  if (args.d_bias) sum_columns(stream, args.d_y, args.d_bias, args.d_w_write);
}

void linear_grad_cpu(Stream& stream, const LinearGradArgs& args) { linear_grad_rows(stream, args, {}); }

}  // namespace brim::ops
