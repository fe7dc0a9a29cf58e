// SPDX-License-Identifier: Apache-2.0
// A parameter in a model's weight files: one or several tensors stacked by rows. Elements are read on demand, in pieces
// if they are converted, so reading only needs the destination and a small buffer. Does not keep any data.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hub/weights.h"
#include "model/params.h"
#include "tensor/dtype.h"

namespace brim::model {

// Name of a tensor in the file: encoders saved alone lack the family prefix ("bert."). Returns `name` if it is missing.
std::string stored_name(const hub::WeightSource& source, const std::string& name);

class StoredParam {
 public:
  // Checks shapes and types. Returns nullopt if a head parameter is missing. `source` must outlive the result.
  static std::optional<StoredParam> find(const hub::WeightSource& source, const ParamSpec& spec);

  tensor::DType dtype() const { return dtype_; }  // f32, f16, bf16, f64 or i8
  int64_t rows() const { return rows_; }
  int64_t elements() const { return rows_ * cols_; }

  // Elements [begin, end) in row-major order: as stored, widened to f32 (i8 is dequantised), or as `to`.
  void read_stored(int64_t begin, int64_t end, void* out) const;
  void read_wide(int64_t begin, int64_t end, float* out) const;
  void read_as(int64_t begin, int64_t end, void* out, tensor::DType to) const;
  // i8 only: scales of rows [begin, end).
  void read_scales(int64_t begin, int64_t end, float* out) const;

 private:
  StoredParam(const hub::WeightSource& source, const ParamSpec& spec);
  void check_part(const ParamSpec& spec, const std::string& name, int64_t rows);
  template <class Fn>
  void for_each_part(int64_t begin, int64_t end, int64_t part_size, Fn&& fn) const;
  void dequantise(int64_t begin, int64_t end, float* out) const;

  const hub::WeightSource* source_;
  std::vector<std::string> names_;  // names in the file; tensors of equal size
  tensor::DType dtype_ = tensor::DType::f32;
  int64_t rows_ = 0, cols_ = 1;
};

}  // namespace brim::model
