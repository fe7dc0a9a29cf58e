// SPDX-License-Identifier: Apache-2.0
// Packs weights for a CPU kernel. The rows of a panel are first converted to the kernel's element type, then transposed
// so that the values of all columns for one step of k are contiguous. Plain loops that compilers vectorise; models pack
// matrices in parallel.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "ops/check.h"
#include "ops/gemm/kernels.h"
#include "ops/int8.h"
#include "ops/linear.h"

namespace brim::ops {
namespace {

constexpr int64_t kChunk = 256;

// Bits of the largest magnitude: ordered like the numbers, with NaN above all.
int32_t largest_bits(const float* x, int64_t n) {
  int32_t most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::bit_cast<int32_t>(x[i]) & 0x7FFFFFFF);
  return most;
}

// q = x * inverse rounded to nearest even. The product goes through memory, because it must be rounded before the
// constant is added.
void round_to_int8(const float* x, int64_t n, float inverse, int8_t* q) {
  constexpr float kRound = 0x1.8p23f;  // leaves the integer part in the low bits
  float product[kChunk];
  for (int64_t first = 0; first < n; first += kChunk) {
    const int64_t count = std::min(kChunk, n - first);
    for (int64_t i = 0; i < count; ++i) product[i] = x[first + i] * inverse;
    for (int64_t i = 0; i < count; ++i)
      q[first + i] = static_cast<int8_t>(std::bit_cast<int32_t>(product[i] + kRound) - std::bit_cast<int32_t>(kRound));
  }
}

// Transposes rows [nr][groups] of words to [groups][nr].
template <class Word>
void turn(const char* rows, int64_t nr, int64_t groups, char* panel) {
  constexpr int64_t kTurn = 16;
  const auto* from = reinterpret_cast<const Word*>(rows);
  auto* to = reinterpret_cast<Word*>(panel);
  for (int64_t first = 0; first < groups; first += kTurn)
    for (int64_t n = 0; n < nr; ++n)
      for (int64_t g = first; g < std::min(groups, first + kTurn); ++g) to[g * nr + n] = from[n * groups + g];
}

}  // namespace

float quantise_int8(const float* x, int64_t n, int8_t* q) {
  const int32_t bits = largest_bits(x, n);
  const float largest = std::bit_cast<float>(bits);
  if (bits > 0 && bits < 0x7F800000)
    round_to_int8(x, n, 127 / largest, q);
  else
    std::memset(q, 0, static_cast<size_t>(n));
  return largest / 127;
}

int64_t linear_packed_bytes(int64_t N, int64_t K, Precision precision, device::Isa isa) {
  return gemm::packed_bytes(gemm::kernel_for(isa, precision), N, K);
}

void linear_pack(const tensor::TensorView& source, const tensor::TensorView& source_scale, Precision precision,
                 device::Isa isa, void* packed, float* scale, float* total) {
  const gemm::Kernel& kernel = gemm::kernel_for(isa, precision);
  const int64_t N = source.rows(), K = source.cols();
  const bool from_int8 = source.dtype == tensor::DType::i8;
  check_view("linear_pack", "source", source, source.dtype, {N, K});
  if (from_int8) check_view("linear_pack", "source_scale", source_scale, tensor::DType::f32, {N});
  BRIM_CHECK(scale != nullptr || precision != Precision::int8,
             "linear_pack: int8 requires a destination for the scales");

  if (kernel.pack_weights != nullptr && source.dtype == tensor::DType::f32) {
    kernel.pack_weights({source.data, source.ld(), N, K, false, 0, N}, packed);
    return;
  }
  const int64_t padded = gemm::round_up(K, kernel.k_multiple), row_bytes = padded * kernel.element_bytes,
                nr = kernel.nr;
  const int64_t word = kernel.kr * kernel.element_bytes, groups = padded / kernel.kr;
  auto* sums = reinterpret_cast<int32_t*>(static_cast<char*>(packed) + gemm::panel_bytes(kernel, N, K));
  std::vector<float> floats(static_cast<size_t>(K + 1));                    // never empty: K may be 0
  std::vector<uint64_t> rows(static_cast<size_t>(nr * row_bytes) / 8 + 1);  // aligned for any word
  char* const buffer = reinterpret_cast<char*>(rows.data());

  // Row n in the kernel's element type.
  const auto convert = [&](int64_t n, char* to) {
    const char* raw = static_cast<const char*>(source.data) + n * source.ld() * dtype_bytes(source.dtype);
    std::memset(to + K * kernel.element_bytes, 0, static_cast<size_t>(row_bytes - K * kernel.element_bytes));
    if (from_int8 && precision == Precision::int8) {
      std::memcpy(to, raw, static_cast<size_t>(K));
      scale[n] = source_scale.as<float>()[n];
      return;
    }
    const float* row = reinterpret_cast<const float*>(raw);
    if (from_int8) {
      for (int64_t k = 0; k < K; ++k)
        floats[k] = static_cast<float>(reinterpret_cast<const int8_t*>(raw)[k]) * source_scale.as<float>()[n];
      row = floats.data();
    } else if (source.dtype != tensor::DType::f32) {
      convert_elements(raw, source.dtype, floats.data(), tensor::DType::f32, K);
      row = floats.data();
    }
    if (precision == Precision::fp32)
      std::memcpy(to, row, static_cast<size_t>(K) * 4);
    else if (precision == Precision::int8)
      scale[n] = quantise_int8(row, K, reinterpret_cast<int8_t*>(to));
    else
      for (int64_t k = 0; k < K; ++k) reinterpret_cast<tensor::bf16_t*>(to)[k] = tensor::to_bf16(row[k]);
  };

  auto* panel = static_cast<char*>(packed);
  for (int64_t first = 0; first < N; first += nr, panel += nr * row_bytes) {
    for (int64_t i = 0; i < nr; ++i) {
      char* row = buffer + i * row_bytes;
      if (first + i < N)
        convert(first + i, row);
      else
        std::memset(row, 0, static_cast<size_t>(row_bytes));
      if (!kernel.column_sums && total == nullptr) continue;
      int32_t sum = 0;
      for (int64_t k = 0; k < K; ++k) sum += reinterpret_cast<const int8_t*>(row)[k];
      if (kernel.column_sums) sums[first + i] = 128 * sum;
      if (total != nullptr && first + i < N) total[first + i] = static_cast<float>(sum) * scale[first + i];
    }
    switch (word) {
      case 1:
        turn<uint8_t>(buffer, nr, groups, panel);
        break;
      case 2:
        turn<uint16_t>(buffer, nr, groups, panel);
        break;
      case 4:
        turn<uint32_t>(buffer, nr, groups, panel);
        break;
      default:
        turn<uint64_t>(buffer, nr, groups, panel);
        break;
    }
  }
}

}  // namespace brim::ops
