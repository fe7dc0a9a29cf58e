// SPDX-License-Identifier: Apache-2.0
// What the CPU's matrix kernels share: how one is described, and one block of work as it is handed to it. Every kernel
// lives in a file of its own compiled with its instruction set's flags. Such a file may include this header, vec.h and
// intrinsics only: an inline function compiled twice with different flags is one function to the linker.
#pragma once
#include <cstddef>
#include <cstdint>

namespace brim::ops::gemm {

// gelu_fast is for results that a half or int8 format rounds afterwards: within 5e-5 of the erf form, a third of its
// cost.
enum class Act : uint8_t { none, gelu, gelu_fast, relu, tanh, gelu_tanh, quick_gelu, silu };

// Rows of x as a kernel's pack_rows reads them: element type f32 or bf16. Packed are rows begin .. end of them, each to
// its own place, so that threads can share the work; `begin` is a multiple of the kernel's pack_step.
struct Rows {
  const void* x;
  int64_t ld;  // elements from one row to the next
  int64_t rows, K;
  bool bf16;
  int64_t begin, end;
};

// y[0..m, n_begin..n_end] = act(a b + bias) + residual. Pointers other than a's are those of row 0, column 0 of the
// block's rows and of the whole matrix's columns.
struct Block {
  const void* a;          // rows as pack_rows wrote them, from a multiple of mr; or x itself for kernels without it
  int64_t lda;            // elements between rows of x, for kernels without pack_rows
  const float* a_scale;   // [m], int8 only
  const void* b;          // the whole packed matrix
  const float* b_scale;   // [N], int8 only
  const int32_t* b_sums;  // [N rounded up to nr] 128 * sum of a column's weights, for kernels with column_sums
  const float* bias;      // [N] or null
  const float* residual;  // or null
  int64_t ld_residual;
  void* y;  // f32, or bf16 where y_bf16
  int64_t ld_y;
  int64_t m, n_begin, n_end, N, K;
  bool y_bf16;
  Act act;
};

// Weights are packed into panels of nr columns, K padded with zeros to a multiple of k_multiple, N to a multiple of nr:
// element (n, k) lies at [n / nr][k / kr][n % nr][k % kr]. That one layout with four numbers serves every kernel.
struct Kernel {
  const char* name;  // "avx512_fp32"
  int mr;            // rows of a tile
  int nr, n_step;    // columns of a panel; columns at whose multiples a block may begin
  int kr, k_multiple;
  int element_bytes;    // of a packed weight: 4 fp32, 2 bf16, 1 int8
  bool column_sums;     // int8 kernels whose activations are offset by 128
  int a_element_bytes;  // of a packed row; 0: rows are read in place
  int pack_step;        // rows packed together
  // K's padding becomes zero, and so do the rows of the last tile past the end (with the last row).
  void (*pack_rows)(const Rows& rows, void* a, float* a_scale);
  void (*run)(const Block& block);
  // What training packs anew in every step, in the kernel's own instructions; without them it is done in plain loops,
  // from f32 alone. `begin` is a multiple of mr for rows, of nr for weights.
  void (*pack_turned_rows)(const Rows& rows, void* a) = nullptr;        // x is [K, rows]
  void (*pack_weights)(const Rows& weights, void* b) = nullptr;         // rows of [N,K] become columns of panels
  void (*pack_turned_weights)(const Rows& weights, void* b) = nullptr;  // x is [K,N]
};

inline constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Defined in the file of their instruction set.
extern const Kernel kGenericFp32, kGenericBf16, kGenericInt8;
extern const Kernel kAvx2Fp32, kAvx2Bf16, kAvx2Int8;
extern const Kernel kAvx512VnniFp32, kAvx512VnniInt8;
extern const Kernel kAvx512Fp32, kAvx512Bf16, kAvx512Int8;
extern const Kernel kAmxBf16, kAmxInt8;
extern const Kernel kNeonFp32, kNeonBf16, kNeonInt8, kNeonDotInt8, kNeonMmBf16, kNeonMmInt8;

}  // namespace brim::ops::gemm
