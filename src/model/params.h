// SPDX-License-Identifier: Apache-2.0
// The list of a model's parameters: names, shapes, storage, weight decay, initialization and bounds. Used by the weight
// store, training's slabs, checkpoints, export and plans. Its order is part of the checkpoint format.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "model/shape.h"
#include "ops/linear.h"
#include "tensor/tensor_view.h"

namespace brim::model {

enum class ParamKind : uint8_t { embedding, matrix, bias, norm };  // no weight decay for biases and norms

// Bound on the rows that a matrix multiplies, for any text; bounded rows can be stored as fp8 (model/fp8.h).
struct InputBound {
  enum class Kind : uint8_t { none, norm, product };  // none: the product runs in bf16
  Kind kind = Kind::none;
  int64_t gamma = -1, beta = -1;  // indices of the preceding norm
  int64_t w = -1, b = -1;         // indices of the product after that norm
  int64_t first_row = 0;          // first row of w: attention averages its values, which are the last rows of qkv
  int64_t other_gamma = -1, other_beta = -1;  // norm of other rows that the matrix also multiplies; -1: none
};

// Adapters of a matrix: y += scale · (x Aᵀ) Bᵀ, with one B for each tensor that the matrix consists of. All matrices A
// are stacked.
struct LoraParams {
  struct Part {
    int64_t b = -1;              // index of B
    int64_t begin = 0, end = 0;  // rows of the matrix
  };
  int64_t a = -1;  // index of A [parts * rank, columns]; -1: not adapted
  int64_t rank = 0;
  float scale = 0;
  std::vector<Part> parts;
};

// An entry of a parameter slab: one or several tensors of the file, stacked by rows (q, k and v are one matrix here).
struct ParamSpec {
  std::vector<std::string> names;  // full Hugging Face names, e.g. bert.encoder.layer.0.attention.self.query.weight
  int64_t rows = 0;                // total over all names
  int64_t cols = 0;                // 0: a vector
  int64_t inner = 0;               // stored as [rows, cols / inner, inner] (a convolution); 0: as [rows, cols]
  ParamKind kind = ParamKind::matrix;
  int64_t layer = -1;    // -1: none
  int64_t group = -1;    // group of layers that share it; -1: none
  bool head = false;     // part of a task head: may be missing if a new head is trained
  bool classes = false;  // one row per class: reinitialized if the classes differ
  bool embeds = false;   // part of the embeddings
  bool frozen = false;   // training does not change it: no gradient, moments or master weights
  bool int8 = false;     // stored as I8 in int8 directories
  // Rows that are also multiplied separately (packed weights cannot be sliced): a classifier's last layer only computes
  // queries for first tokens. The whole matrix is then stored only if it is used too.
  int64_t split = 0;
  bool whole_scored = true, whole_trained = true;
  InputBound input;  // matrices only
  LoraParams lora;   // matrices only
  enum class Adapter : uint8_t { none, a, b };
  Adapter adapter = Adapter::none;  // a matrix of an adapter

  int64_t elements() const { return rows * (cols > 0 ? cols : 1); }
};

// All parameters in slab order, as listed by the family (model/families). Missing entries (no type table, no head) have
// rows = 0, so that indices are fixed. Random initialization uses the index as a seed.
std::vector<ParamSpec> model_params(const ModelShape& shape);
int64_t param_count(const ModelShape& shape);
// Indices of the parameters of layer l (-1: those of no layer), in order.
std::vector<size_t> params_of_layer(const std::vector<ParamSpec>& params, int64_t l);

// fp8: the factor into e4m3 and its inverse, [1] f32 each on the device (model/fp8.h). Empty otherwise.
struct Fp8Scale {
  tensor::TensorView quantise, dequantise;
};

// fp8 training: a point at which values are cast to e4m3, [1] f32 each on the device. A step's scale depends on the
// maxima of earlier steps.
struct Fp8Site {
  tensor::TensorView scale, inverse;  // factor into e4m3 and its inverse
  tensor::TensorView amax;            // largest magnitude of this step so far
};
// A matrix for training's fp8 products; empty: they run in the compute type.
struct Fp8Matrix {
  tensor::TensorView rows, columns;  // [N,K] and, transposed, [K,N] f8e4m3
  Fp8Site w, x, d_y;                 // matrix, its input, gradient of its result
  explicit operator bool() const { return static_cast<bool>(rows); }
};

// Product of an adapter that is added to that of a matrix: y += (x downᵀ) upᵀ. Parts as in Param.
struct LowRank {
  int64_t width = 0;  // largest rank of the model's adapter, which sizes memory; 0: no adapters
  ops::Precision precision = ops::Precision::fp32;
  ops::LinearWeight down;             // [rank,K]; N = 0: this matrix is not adapted
  ops::LinearWeight up, first, rest;  // [N,rank]

  const ops::LinearWeight& up_for(int64_t begin, int64_t end) const {
    return first.N == 0 || end - begin > std::max(first.N, rest.N) ? up : begin == 0 ? first : rest;
  }
};

// A parameter in the formats that passes read.
struct Param {
  tensor::TensorView plain;       // tables and vectors; in training also matrices, in the compute type
  ops::LinearWeight matrix;       // for linear(); N = 0 if not a matrix or only used in parts
  ops::LinearWeight first, rest;  // parts of a split matrix
  Fp8Scale input;                 // inference: scale of the matrix's input
  tensor::TensorView grad;        // training: f32, accumulated
  Fp8Matrix fp8;                  // training
  LowRank low_rank;               // inference
  LoraParams lora;                // training

  // The weight for rows [begin,end) of a matrix: all of it, or one of the parts in which it is stored.
  const ops::LinearWeight& rows(int64_t begin, int64_t end) const {
    return first.N == 0 || end - begin > std::max(first.N, rest.N) ? matrix : begin == 0 ? first : rest;
  }
};
using Params = std::vector<Param>;  // in the order of model_params()

// Precision of a matrix: that of the model, but wider for heads and for products that fp8 does not support.
ops::Precision matrix_precision(const ParamSpec& spec, ops::Precision precision, device::DeviceKind target);

// Format of a matrix for scoring. A model without a head (of its own, not of adapters) gives vectors, which need more
// than int8 (docs/numerics.md): on a CPU its int8 products use rows packed around their centres, and those that int8
// hardly speeds up run in bf16.
struct MatrixFormat {
  ops::Precision precision;
  bool centred = false;
};
MatrixFormat matrix_format(const ParamSpec& spec, const ModelShape& shape, ops::Precision precision,
                           device::DeviceKind target, device::Isa isa);

// Whether fp8 training uses fp8 for a matrix, forward and backward: encoder matrices with supported dimensions.
bool trains_in_fp8(const ParamSpec& spec);
// Precision of everything else when training in `precision`, including evaluation and teachers.
ops::Precision pass_precision(ops::Precision precision, device::DeviceKind target);

}  // namespace brim::model
