// SPDX-License-Identifier: Apache-2.0
// CPU row kernels: the work of one thread on some rows. row_kernels.cc is compiled once per instruction set; this
// header declares the resulting tables and selects one. Uses plain pointers only, because files of every instruction
// set include it.
#pragma once
#include <stdint.h>

namespace brim::device {
enum class Isa : uint8_t;
}  // namespace brim::device

namespace brim::ops {

namespace cpu {

enum class Elem : uint8_t { f32, f16, bf16 };

// Dropout of some rows; threshold 0 means off.
struct DropRows {
  uint64_t seed = 0, first_row = 0;
  uint32_t site = 0, threshold = 0;
  float scale = 1;
};

// y = norm(drop_in(x) + residual), drop_out(y).
struct NormRows {
  const float *x, *residual;  // residual may be null
  float *y, *sum;             // sum may be null (not kept) or equal to x, y or residual
  const float *gamma, *beta;  // beta may be null
  float *mean, *rstd;         // null if not kept
  int64_t ld_x, ld_residual, ld_y, ld_sum, rows, H;
  float eps;
  DropRows drop_in, drop_out;
};

// Gradient of y = norm(sum) * gamma + beta.
struct NormGradRows {
  const float* x;                    // sum; or y, if inverse_gain is given
  const float* mean;                 // used with sum
  const float *beta, *inverse_gain;  // used with y; beta may be null
  const float *rstd, *gamma, *d_y;
  float* d_sum;             // may be equal to d_y
  float* d_x;               // d_sum after dropout, or null
  float *d_gamma, *d_beta;  // [H] sums over these rows, accumulated
  int64_t ld_x, ld_d_y, ld_d_sum, ld_d_x, rows, H;
  bool accumulate;  // accumulate into d_sum
  DropRows drop;
};

// One range of an AdamW update; the caller computes the factors once.
struct AdamWRange {
  float *master, *m, *v;     // fp32 moments, or
  uint8_t *m8, *v8;          // one byte each (ops/adam8_code.h), with
  float *m_scale, *v_scale;  // one scale per block
  const float* grad;
  uint16_t* copy;  // may be null
  Elem copy_type;
  int64_t n;
  float grad_factor, beta1, beta2, step_size, inv_sqrt_correction2, eps, keep;  // keep = 1 - lr * weight_decay
};

struct TableRow {
  const void* values;  // null to skip
  Elem type;
};

struct RowKernels {
  const char* name;
  void (*norm)(const NormRows& rows);
  void (*add_table_rows)(const TableRow* rows, int count, float* sum, int64_t n);  // sum = rows[0] + rows[1] + …
  void (*add)(float* y, const float* x, int64_t n);                                // y += x
  void (*scale)(float* y, float factor, int64_t n);                                // y *= factor
  void (*softmax)(const float* x, float* y, int64_t n);
  void (*sigmoid)(const float* x, float* y, int64_t n);
  void (*gelu)(const float* x, float* y, int64_t n);
  void (*relu)(const float* x, float* y, int64_t n);
  void (*tanh)(const float* x, float* y, int64_t n);
  void (*gelu_tanh)(const float* x, float* y, int64_t n);
  void (*quick_gelu)(const float* x, float* y, int64_t n);
  void (*silu)(const float* x, float* y, int64_t n);
  void (*exp)(const float* x, float* y, int64_t n);  // for tests of vec.h
  void (*widen)(const void* x, Elem from, float* y, int64_t n);
  void (*narrow)(const float* x, void* y, Elem to, int64_t n);
  // Backward and training.
  void (*norm_grad)(const NormGradRows& rows);
  void (*gelu_grad)(const float* x, const float* d_y, float* d_x, int64_t n);
  void (*relu_grad)(const float* y, const float* d_y, float* d_x, int64_t n);  // reads the outputs
  // In place from bf16 outputs, also writing d_x in bf16.
  void (*relu_grad_bf16)(const uint16_t* y, float* d, uint16_t* d_x, int64_t n);
  void (*tanh_grad)(const float* y, const float* d_y, float* d_x, int64_t n);
  void (*gelu_tanh_grad)(const float* x, const float* d_y, float* d_x, int64_t n);
  void (*quick_gelu_grad)(const float* x, const float* d_y, float* d_x, int64_t n);
  void (*silu_grad)(const float* x, const float* d_y, float* d_x, int64_t n);
  void (*drop)(const float* x, float* y, int64_t n, const DropRows& drop);  // one row: drop.first_row
  void (*adamw)(const AdamWRange& range);
  void (*adamw8)(const AdamWRange& range);  // whole blocks, except at the end of the slab
  double (*sum_squares)(const float* x, int64_t n);
  void (*add_wide)(double* sums, const float* x, int64_t n);  // sums += x
};

const RowKernels& row_kernels(device::Isa isa);

}  // namespace cpu

// Defined by the files compiled for each instruction set.
namespace generic {
extern const cpu::RowKernels kRowKernels;
}
namespace avx2 {
extern const cpu::RowKernels kRowKernels;
}
namespace avx512 {
extern const cpu::RowKernels kRowKernels;
}
namespace neon {
extern const cpu::RowKernels kRowKernels;
}

}  // namespace brim::ops
