// SPDX-License-Identifier: Apache-2.0
// Interface of the CPU matrix kernels: the description of a kernel, and a block of work for it. Every kernel is in a
// separate file compiled with the flags of its instruction set. Such a file may include only this header, vec.h and
// intrinsics: the linker would merge inline functions compiled with different flags.
#pragma once
#include <cstddef>
#include <cstdint>

namespace brim::ops::gemm {

// gelu_fast is for results rounded to a half or int8 format afterwards: within 5e-5 of the erf form, at a third of its
// cost.
enum class Act : uint8_t { none, gelu, gelu_fast, relu, tanh, gelu_tanh, quick_gelu, silu };

// Input rows of pack_rows: element type f32 or bf16. Packs rows begin .. end, each to its own position, so that threads
// can share the work; `begin` is a multiple of the kernel's pack_step.
struct Rows {
  const void* x;
  int64_t ld;  // row stride in elements
  int64_t rows, K;
  bool bf16;
  int64_t begin, end;
  float* centre = nullptr;  // [rows], int8 only: rows are packed around their centres, which are written here
};

// y[0..m, n_begin..n_end] = act(a b + bias) + residual. Pointers other than `a` refer to row 0 of the block's rows and
// column 0 of the whole matrix.
struct Block {
  const void* a;          // packed rows starting at a multiple of mr; or x itself for kernels without pack_rows
  int64_t lda;            // row stride of x in elements, for kernels without pack_rows
  const float* a_scale;   // [m], int8 only
  const float* a_centre;  // [m], int8 rows packed around their centres, else null
  const void* b;          // the whole packed matrix
  const float* b_scale;   // [N], int8 only
  const int32_t* b_sums;  // [N rounded up to nr] 128 * sum of a column's weights, for kernels with column_sums
  const float* b_total;   // [N], with a_centre: sum of a column's weights
  const float* bias;      // [N] or null
  const float* residual;  // may be null
  int64_t ld_residual;
  void* y;  // f32, or bf16 with y_bf16
  int64_t ld_y;
  int64_t m, n_begin, n_end, N, K;
  bool y_bf16;
  Act act;
};

// Weights are packed into panels of nr columns, with zero padding of K to a multiple of k_multiple and of N to a
// multiple of nr: element (n, k) is at [n / nr][k / kr][n % nr][k % kr]. This layout with its four parameters serves
// every kernel.
struct Kernel {
  const char* name;     // "avx512_fp32"
  int mr;               // rows of a tile
  int nr, n_step = nr;  // columns of a panel; granularity of the first column of a block
  int kr = 1, k_multiple = kr;
  int element_bytes;         // per packed weight: 4 fp32, 2 bf16, 1 int8
  bool column_sums = false;  // int8 kernels whose activations are offset by 128
  int a_element_bytes = 0;   // per packed row element; 0: rows are read in place
  int pack_step = 1;         // rows packed together
  // Padding of K is zeroed (with centres: arbitrary), and so are the rows of the last tile past the end (along with the
  // last row).
  void (*pack_rows)(const Rows& rows, void* a, float* a_scale) = nullptr;
  void (*run)(const Block& block);
  // Packing done in every training step, in the kernel's own instructions; if null, plain loops are used, from f32
  // only. `begin` is a multiple of mr for rows, of nr for weights.
  void (*pack_turned_rows)(const Rows& rows, void* a) = nullptr;        // x is [K, rows]
  void (*pack_weights)(const Rows& weights, void* b) = nullptr;         // rows of [N,K] become columns of panels
  void (*pack_turned_weights)(const Rows& weights, void* b) = nullptr;  // x is [K,N]
};

// Half the range of a centred int8 row below which it is packed as its centre: 127 / half would overflow.
inline constexpr float kLeastRange = 1e-36f;

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
