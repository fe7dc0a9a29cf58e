// SPDX-License-Identifier: Apache-2.0
// Builder for a family's parameter list: each call appends a parameter and returns its index. Does not allocate or load
// parameters.
#pragma once
#include "model/blocks/linear.h"
#include "model/blocks/norm.h"

namespace brim::model {

class ParamList {
 public:
  const std::vector<ParamSpec>& specs() const { return specs_; }
  ParamSpec& at(int64_t index) { return specs_[static_cast<size_t>(index)]; }
  std::vector<ParamSpec>& all() { return specs_; }

  void begin_layer(int64_t l) { layer_ = l; }  // layer of the following parameters; -1: none
  void begin_group(int64_t g) { group_ = g; }  // same for a group of layers with shared parameters
  void end_embeddings() {                      // marks all parameters so far
    for (ParamSpec& p : specs_) p.embeds = true;
  }

  int64_t table(const std::string& name, int64_t rows, int64_t cols) {
    return add({name}, rows, cols, ParamKind::embedding);
  }
  // A small table that is added to attention scores; like a bias vector, it has no weight decay.
  int64_t biases(const std::string& name, int64_t rows, int64_t cols) {
    return add({name}, rows, cols, ParamKind::bias);
  }
  NormParams norm(const std::string& name, int64_t size, bool bias = true) {
    return {add({name + ".weight"}, size, 0, ParamKind::norm),
            add({name + ".bias"}, bias ? size : 0, 0, ParamKind::norm)};
  }
  // An encoder matrix; several names are stacked by rows.
  LinearParams linear(const std::vector<std::string>& names, int64_t rows, int64_t cols, const InputBound& input,
                      bool bias = true) {
    const LinearParams params = matrix(names, rows, cols, bias);
    at(params.w).int8 = true;
    at(params.w).input = input;
    return params;
  }
  // A head matrix; rows = 0 if there is no such head.
  LinearParams head(const std::string& name, int64_t rows, int64_t cols, bool classes, bool bias = true) {
    const LinearParams params = matrix({name}, rows, cols, bias);
    for (const int64_t index : {params.w, params.b}) {
      at(index).head = true;
      at(index).classes = classes;
    }
    return params;
  }
  // A matrix of an adapter of `matrix`; several names are stacked by rows.
  int64_t adapter(const ParamSpec& matrix, std::vector<std::string> names, int64_t rows, int64_t cols,
                  ParamSpec::Adapter part) {
    const int64_t index = add(std::move(names), rows, cols, ParamKind::matrix);
    at(index).layer = matrix.layer;
    at(index).group = matrix.group;
    at(index).adapter = part;
    return index;
  }
  NormParams head_norm(const std::string& name, int64_t size, bool bias) {
    const NormParams params = norm(name, size, bias);
    at(params.gamma).head = at(params.beta).head = true;
    return params;
  }

 private:
  int64_t add(std::vector<std::string> names, int64_t rows, int64_t cols, ParamKind kind) {
    ParamSpec& p = specs_.emplace_back();
    p.names = std::move(names);
    p.rows = rows;
    p.cols = cols;
    p.kind = kind;
    p.layer = layer_;
    p.group = group_;
    return static_cast<int64_t>(specs_.size()) - 1;
  }
  LinearParams matrix(const std::vector<std::string>& names, int64_t rows, int64_t cols, bool bias) {
    const auto with = [&](const char* end) {
      std::vector<std::string> full;
      for (const std::string& name : names) full.push_back(name + end);
      return full;
    };
    return {add(with(".weight"), rows, cols, ParamKind::matrix),
            add(with(".bias"), bias ? rows : 0, 0, ParamKind::bias)};
  }

  std::vector<ParamSpec> specs_;
  int64_t layer_ = -1, group_ = -1;
};

}  // namespace brim::model
