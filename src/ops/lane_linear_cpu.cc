// SPDX-License-Identifier: Apache-2.0
// Lanes on the CPU: if there are enough lanes for all threads, each thread processes one lane at a time with its
// weights in cache; otherwise all threads work on one lane after another. Threads never share a sum, so both ways give
// the same bits.
#include <algorithm>

#include "ops/check.h"
#include "ops/cpu/column_sums.h"
#include "ops/cpu/convert_args.h"
#include "ops/cpu/linear_grad_rows.h"
#include "ops/cuda/scratch.h"
#include "ops/gemm/kernels.h"
#include "ops/gemm/multiply.h"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

// A partial last round of lanes costs as much as a full one.
bool lane_per_thread(int64_t lanes, int threads) {
  return threads == 1 || lanes % threads == 0 || lanes >= int64_t{4} * threads;
}

// Calls fn(stream, lane, scratch) for every lane; each thread has `each` bytes of scratch.
template <class Fn>
void for_each_lane(device::Stream& stream, int64_t lanes, char* scratch, int64_t each, Fn&& fn) {
  if (!lane_per_thread(lanes, threads_of(stream))) {
    for (int64_t g = 0; g < lanes; ++g) fn(stream, g, scratch);
    return;
  }
  parallel_pieces(stream, lanes, 1, [&](int64_t g, int64_t, int worker) {
    device::CpuStream alone(nullptr, target_isa(stream));
    fn(alone, g, scratch + worker * each);
  });
}

int64_t forward_bytes(const gemm::Kernel& kernel, int64_t B, int64_t N, int64_t K) {
  return gemm::round_up(gemm::packed_bytes(kernel, N, K), 64) +
         gemm::round_up(gemm::multiply_scratch_bytes(kernel, B, K, 1), 64);
}

// Matrix of one lane of a [G,rows,cols] view.
TensorView matrix_of(const TensorView& v, int64_t lane) {
  if (!v) return {};
  TensorView m(static_cast<char*>(v.data) + lane * v.stride[0] * dtype_bytes(v.dtype), v.dtype, {v.dim[1], v.dim[2]});
  m.stride[0] = v.stride[1];
  return m;
}
TensorView vector_of(const TensorView& v, int64_t lane) {
  if (!v) return {};
  return {static_cast<char*>(v.data) + lane * v.stride[0] * dtype_bytes(v.dtype), v.dtype, {v.dim[1]}};
}

uint16_t* bits_of(const TensorView& bf16, int64_t row) { return static_cast<uint16_t*>(bf16.data) + row * bf16.ld(); }

char* aligned(void* p) { return reinterpret_cast<char*>(gemm::round_up(reinterpret_cast<intptr_t>(p), 64)); }

}  // namespace

tensor::DType lane_value_type(const device::Stream& stream, Precision precision) {
  using tensor::DType;
  if (precision == Precision::fp16) return DType::f16;
  if (precision != Precision::bf16) return DType::f32;
  if (target_kind(stream) == device::DeviceKind::cuda) return DType::bf16;
  const gemm::Kernel& kernel = gemm::kernel_for(target_isa(stream), precision);
  return kernel.pack_turned_rows != nullptr && kernel.pack_turned_weights != nullptr ? DType::bf16 : DType::f32;
}

int64_t lane_linear_scratch_bytes(const device::Stream& stream, int64_t, int64_t B, int64_t N, int64_t K,
                                  Precision precision, int threads) {
  if (target_kind(stream) == device::DeviceKind::cuda) return kCudaLinearScratchBytes;
  // One thread's share times the threads also covers all of them working on one lane, so fewer lanes never need more.
  const gemm::Kernel& kernel = gemm::kernel_for(target_isa(stream), precision);
  return 64 + threads * forward_bytes(kernel, B, N, K);
}

void lane_linear_cpu(device::Stream& stream, const LaneLinearArgs& a) {
  const int64_t G = a.y.rows(), B = a.y.dim[1], N = a.y.cols(), K = a.x.cols();
  const gemm::Kernel& kernel = gemm::kernel_for(target_isa(stream), a.precision);
  check_scratch("lane_linear", a.scratch,
                lane_linear_scratch_bytes(stream, G, B, N, K, a.precision, threads_of(stream)));
  const int64_t packed = gemm::round_up(gemm::packed_bytes(kernel, N, K), 64);
  for_each_lane(stream, G, aligned(a.scratch.data), forward_bytes(kernel, B, N, K),
                [&](device::Stream& own, int64_t g, char* scratch) {
                  linear_pack(matrix_of(a.w, g), {}, a.precision, target_isa(stream), scratch, nullptr);
                  gemm::multiply(own, kernel,
                                 {.x = matrix_of(a.x, g),
                                  .b = scratch,
                                  .bias = vector_of(a.bias, g),
                                  .y = matrix_of(a.y, g),
                                  .act = a.relu ? gemm::Act::relu : gemm::Act::none,
                                  .scratch = scratch + packed});
                });
}

namespace {

// Rows of d_x in f32 before conversion to bf16, per thread; several threads on one lane combine theirs.
int64_t block_rows(int64_t B) { return std::min(B, gemm::kRowsABlock); }
int64_t block_bytes(const device::Stream& stream, int64_t B, int64_t K, Precision precision) {
  return lane_value_type(stream, precision) == tensor::DType::bf16 ? block_rows(B) * K * 4 : 0;
}
int64_t grad_bytes(const device::Stream& stream, int64_t B, int64_t N, int64_t K, Precision precision) {
  return gemm::round_up(linear_grad_scratch_bytes(stream, B, N, K, precision, 1), 64);
}

}  // namespace

int64_t lane_linear_grad_scratch_bytes(const device::Stream& stream, int64_t G, int64_t B, int64_t N, int64_t K,
                                       Precision precision, int threads) {
  const bool cuda = target_kind(stream) == device::DeviceKind::cuda;
  if (cuda) return std::max(kCudaLinearScratchBytes, cuda_lane_sums_bytes(G, B, std::max(N, K)));
  return 64 +
         threads * (grad_bytes(stream, B, N, K, precision) + gemm::round_up(block_bytes(stream, B, K, precision), 64));
}

void lane_linear_grad_cpu(device::Stream& stream, const LaneLinearGradArgs& a) {
  const int64_t G = a.d_y.rows(), B = a.d_y.dim[1], N = a.d_y.cols(), K = a.x.cols();
  const int threads = threads_of(stream);
  check_scratch("lane_linear_grad", a.scratch,
                lane_linear_grad_scratch_bytes(stream, G, B, N, K, a.precision, threads));
  const int64_t packing = grad_bytes(stream, B, N, K, a.precision),
                each = packing + gemm::round_up(block_bytes(stream, B, K, a.precision), 64);
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  for_each_lane(stream, G, aligned(a.scratch.data), each, [&](device::Stream& own, int64_t g, char* scratch) {
    const TensorView x = matrix_of(a.x, g), d_x = matrix_of(a.d_x, g);
    const bool alone = threads_of(own) == 1, narrow = d_x.dtype == tensor::DType::bf16;
    const bool gated = a.d_x && a.x_is_relu, summed = gated && a.d_x_sums;
    const int here = threads_of(own);
    TensorView block;
    if (narrow) block = TensorView(scratch + packing * here, tensor::DType::f32, {block_rows(B) * here, K});
    std::vector<double> sums(summed ? static_cast<size_t>(K) : 0);
    const RowsDone gate = [&](int64_t first, int64_t last, const TensorView& rows) {
      parallel_pieces(own, last - first, rows_per_piece(K), [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; ++row) {
          float* d = rows.as<float>() + row * rows.ld();
          if (narrow)
            kernels.relu_grad_bf16(bits_of(x, first + row), d, bits_of(d_x, first + row), K);
          else
            kernels.relu_grad(x.as<float>() + (first + row) * x.ld(), d, d, K);
          if (summed && alone) kernels.add_wide(sums.data(), d, K);
        }
      });
      if (!summed || alone) return;
      constexpr int64_t kColumns = 64;  // threads divide columns, never a sum
      parallel_pieces(own, K, kColumns, [&](int64_t begin, int64_t end, int) {
        for (int64_t row = 0; row < last - first; ++row)
          kernels.add_wide(&sums[static_cast<size_t>(begin)], rows.as<float>() + row * rows.ld() + begin, end - begin);
      });
    };
    linear_grad_rows(own,
                     {.x = x,
                      .w_plain = matrix_of(a.w, g),
                      .d_y = matrix_of(a.d_y, g),
                      .d_x = d_x,
                      .d_w = matrix_of(a.d_w, g),
                      .d_bias = vector_of(a.d_bias, g),
                      .scratch = TensorView(scratch, tensor::DType::u8, {packing * here}),
                      .precision = a.precision,
                      .d_x_write = a.d_x_write,
                      .d_w_write = a.write},
                     gated ? gate : RowsDone(), block);
    if (summed) write_sums(sums.data(), vector_of(a.d_x_sums, g), a.d_x_sums_write);
  });
}

}  // namespace brim::ops
