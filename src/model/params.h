// SPDX-License-Identifier: Apache-2.0
// The one list of a model's parameters: names, shapes, how they are stored, decayed, drawn and bounded. The weight
// store, training's slabs, checkpoints, export and plans read it. Its order is part of the checkpoint format.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "model/shape.h"
#include "ops/linear.h"
#include "tensor/tensor_view.h"

namespace brim::model {

enum class ParamKind : uint8_t { embedding, matrix, bias, norm };  // biases and norms are not decayed

// What bounds the rows that a matrix multiplies, whatever the text is: they may then travel as fp8 (model/fp8.h).
struct InputBound {
  enum class Kind : uint8_t { none, norm, product };  // none: the product runs in bf16
  Kind kind = Kind::none;
  int64_t gamma = -1, beta = -1;  // places of the norm before it
  int64_t w = -1, b = -1;         // and of the product after that
  int64_t first_row = 0;          // of w: attention averages its values, which are the last rows of qkv
};

// One entry of a parameter slab: one or several tensors of the file, stacked by rows (q, k and v are one matrix here).
struct ParamSpec {
  std::vector<std::string> names;  // full Hugging Face names, e.g. bert.encoder.layer.0.attention.self.query.weight
  int64_t rows = 0;                // of all names together
  int64_t cols = 0;                // 0: a vector
  ParamKind kind = ParamKind::matrix;
  int64_t layer = -1;    // -1: of none
  int64_t group = -1;    // of layers that share it; -1: of none
  bool head = false;     // of a task head: may be absent when a new head is to be trained
  bool classes = false;  // one row for each class: drawn anew where the classes are others
  bool int8 = false;     // int8 directories store it as such
  // Rows that are also multiplied apart from the rest (packed weights cannot be cut): a classifier's last layer makes
  // queries for first tokens only. Then the whole is stored only where it is used too.
  int64_t split = 0;
  bool whole_scored = true, whole_trained = true;
  InputBound input;  // of a matrix

  int64_t elements() const { return rows * (cols > 0 ? cols : 1); }
};

// All parameters in slab order, as the family lists them (model/families). Empty entries (no type table, no head) have
// rows = 0, so that places never move. A tensor that is drawn takes its place for a seed.
std::vector<ParamSpec> model_params(const ModelShape& shape);
int64_t param_count(const ModelShape& shape);
// Places of what belongs to layer l (-1: to none), in order.
std::vector<size_t> places_of_layer(const std::vector<ParamSpec>& params, int64_t l);

// fp8: the factor on the way into e4m3 and the one back, [1] f32 each on the device (model/fp8.h). Empty otherwise.
struct Fp8Scale {
  tensor::TensorView quantise, dequantise;
};

// Training in fp8: where values become e4m3, [1] f32 each on the device. A step's scale is of earlier steps' maxima.
struct Fp8Site {
  tensor::TensorView scale, inverse;  // on the way into e4m3 and back
  tensor::TensorView amax;            // largest magnitude of this step so far
};
// A matrix as training's products read it; empty: they run in the compute type.
struct Fp8Matrix {
  tensor::TensorView rows, columns;  // [N,K] and, turned, [K,N] f8e4m3
  Fp8Site w, x, d_y;                 // of the matrix, of what it multiplies, of its result's gradient
  explicit operator bool() const { return static_cast<bool>(rows); }
};

// One parameter as passes read it.
struct Param {
  tensor::TensorView plain;       // a table or a vector; training: also a matrix, in the compute type
  ops::LinearWeight matrix;       // ready for linear(); N = 0 for what is no matrix or is used in parts only
  ops::LinearWeight first, rest;  // its parts, where the list splits it
  Fp8Scale input;                 // scoring: of what the matrix reads
  tensor::TensorView grad;        // training: f32, accumulated
  Fp8Matrix fp8;                  // training
};
using Params = std::vector<Param>;  // in the order of model_params()

// Precision of a matrix: that of the model, but wider for heads and for what fp8 cannot multiply.
ops::Precision matrix_precision(const ParamSpec& spec, ops::Precision precision, device::DeviceKind target);

// Whether training in fp8 multiplies a matrix in it, forward and backward: an encoder's, of widths that fp8 takes.
bool trains_in_fp8(const ParamSpec& spec);
// What everything else of training in `precision` is computed in, evaluation and teachers too.
ops::Precision pass_precision(ops::Precision precision, device::DeviceKind target);

}  // namespace brim::model
