// SPDX-License-Identifier: Apache-2.0
#include "model/stored_param.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "base/error.h"
#include "hub/hf_config.h"

namespace brim::model {

using hub::WeightSource;
using tensor::DType;

namespace {

constexpr int64_t kPieceElements = int64_t{1} << 14;
constexpr const char* kRowScaleSuffix = "_scale";

std::string dtype_and_shape(const hub::StoredTensor& t) {
  // A scalar counts as a vector of one element.
  const std::string shape = t.shape.empty() ? "[1]" : hub::shape_text(t.shape);
  return (t.dtype ? dtype_name(*t.dtype) : t.dtype_text) + shape;
}

void check_shape(const WeightSource& source, const ParamSpec& spec, const std::string& name, const hub::StoredTensor& t,
                 int64_t rows) {
  const int64_t cols = spec.cols;
  const bool vector = cols == 0;
  const bool good = vector           ? t.elements == rows && t.shape.size() <= 1
                    : spec.inner > 0 ? t.shape.size() == 3 && t.shape[0] == rows && t.shape[2] == spec.inner &&
                                           t.elements == rows * cols
                                     : t.shape.size() == 2 && t.shape[0] == rows && t.shape[1] == cols;
  if (good) return;
  const std::filesystem::path dir = std::filesystem::path(source.where()).parent_path();
  if (spec.classes && !t.shape.empty() && t.shape[0] != rows && !hub::load_hf_config(dir).labels_given)
    fail(ErrorCode::bad_model, "{}: has {} classes, but {} has no labels; add \"id2label\" with {} labels",
         source.where(name), t.shape[0], (dir / "config.json").string(), t.shape[0]);
  const bool rows_differ = t.shape.empty() || t.shape[0] != rows;
  const std::string keys = hub::keys_of_size(dir, vector || rows_differ ? rows : cols);
  fail(ErrorCode::bad_model,
       "{}: has shape {}, config.json requires [{}{}]{}; the weights and config.json belong to different models",
       source.where(name), dtype_and_shape(t), rows,
       vector           ? ""
       : spec.inner > 0 ? fmt::format(",{},{}", cols / spec.inner, spec.inner)
                        : fmt::format(",{}", cols),
       keys.empty() ? "" : " (" + keys + ")");
}

// Number of layers (or groups) that have a tensor with this name, given the name for layer `own`.
int64_t layers_held(const WeightSource& source, int64_t own, const std::string& name) {
  const std::string number = fmt::format(".{}.", own);
  const size_t at = name.find(number);
  if (at == std::string::npos) return std::numeric_limits<int64_t>::max();
  int64_t held = 0;
  const auto of_layer = [&](int64_t l) {
    return name.substr(0, at) + fmt::format(".{}.", l) + name.substr(at + number.size());
  };
  while (source.has(stored_name(source, of_layer(held)))) ++held;
  return held;
}

[[noreturn]] void fail_absent(const WeightSource& source, const ParamSpec& spec, const std::string& name) {
  const int64_t own = std::max(spec.layer, spec.group);
  if (const int64_t held = own < 0 ? 0 : layers_held(source, own, name); own >= held)
    fail(ErrorCode::bad_model, "{}: no tensor {}: config.json requires at least {} {} (\"{}\"), the weights have {}",
         source.where(), name, own + 1, spec.group < 0 ? "layers" : "groups of layers",
         spec.group < 0 ? "num_hidden_layers" : "num_hidden_groups", held);
  (void)source.require(name);  // throws and suggests the nearest name
  fail(ErrorCode::bad_model, "{}: no tensor {}", source.where(), name);
}

}  // namespace

std::string stored_name(const WeightSource& source, const std::string& name) {
  if (source.has(name)) return name;
  const std::string alone = name.substr(name.find('.') + 1);
  return source.has(alone) ? alone : name;
}

std::optional<StoredParam> StoredParam::find(const WeightSource& source, const ParamSpec& spec) {
  if (spec.head)
    for (const std::string& name : spec.names)
      if (!source.has(stored_name(source, name))) return std::nullopt;
  return StoredParam(source, spec);
}

StoredParam::StoredParam(const WeightSource& source, const ParamSpec& spec)
    : source_(&source), rows_(spec.rows), cols_(std::max<int64_t>(1, spec.cols)) {
  for (const std::string& name : spec.names)
    check_part(spec, name, spec.rows / static_cast<int64_t>(spec.names.size()));
}

void StoredParam::check_part(const ParamSpec& spec, const std::string& name, int64_t rows) {
  const std::string stored = stored_name(*source_, name);
  if (!source_->has(stored)) fail_absent(*source_, spec, name);
  const hub::StoredTensor& t = source_->require(stored);
  check_shape(*source_, spec, name, t, rows);
  const DType dtype = *t.dtype;
  if (dtype == DType::i8) {
    const std::string scale_name = stored + kRowScaleSuffix;
    if (!source_->has(scale_name))
      fail(ErrorCode::bad_model, "{}: int8 tensor without {}{}", source_->where(name), name, kRowScaleSuffix);
    const hub::StoredTensor& scale = source_->require(scale_name);
    if (scale.dtype != DType::f32 || scale.elements != rows)
      fail(ErrorCode::bad_model, "{}: is {}, expected f32[{}]", source_->where(name + kRowScaleSuffix),
           dtype_and_shape(scale), rows);
  } else if (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16 && dtype != DType::f64) {
    fail(ErrorCode::bad_model, "{}: type {} cannot be used as a weight", source_->where(name), dtype_name(dtype));
  }
  if (names_.empty()) dtype_ = dtype;
  if (dtype != dtype_)
    fail(ErrorCode::bad_model, "{}: type {} differs from {} of the tensors stacked with it", source_->where(name),
         dtype_name(dtype), dtype_name(dtype_));
  names_.push_back(stored);
}

// Calls fn(part, first, last, done) for each tensor that overlaps [begin, end): its index, the range within the tensor,
// and the number of elements before it.
template <class Fn>
void StoredParam::for_each_part(int64_t begin, int64_t end, int64_t part_size, Fn&& fn) const {
  for (int64_t at = begin; at < end;) {
    const int64_t part = at / part_size, first = at - part * part_size;
    const int64_t last = std::min(part_size, end - part * part_size);
    fn(static_cast<size_t>(part), first, last, at - begin);
    at += last - first;
  }
}

void StoredParam::read_stored(int64_t begin, int64_t end, void* out) const {
  for_each_part(begin, end, elements() / static_cast<int64_t>(names_.size()),
                [&](size_t part, int64_t first, int64_t last, int64_t done) {
                  source_->read(names_[part], first, last, static_cast<char*>(out) + done * dtype_bytes(dtype_));
                });
}

void StoredParam::read_scales(int64_t begin, int64_t end, float* out) const {
  for_each_part(begin, end, rows_ / static_cast<int64_t>(names_.size()),
                [&](size_t part, int64_t first, int64_t last, int64_t done) {
                  source_->read(names_[part] + kRowScaleSuffix, first, last, out + done);
                });
}

void StoredParam::dequantise(int64_t begin, int64_t end, float* out) const {
  const int64_t first_row = begin / cols_, last_row = (end + cols_ - 1) / cols_;
  std::vector<float> scales(static_cast<size_t>(last_row - first_row));
  read_scales(first_row, last_row, scales.data());
  std::vector<int8_t> stored(static_cast<size_t>(std::min(kPieceElements, end - begin)));
  for (int64_t at = begin; at < end; at += kPieceElements) {
    const int64_t next = std::min(at + kPieceElements, end);
    read_stored(at, next, stored.data());
    for (int64_t i = at; i < next; ++i)
      out[i - begin] =
          static_cast<float>(stored[static_cast<size_t>(i - at)]) * scales[static_cast<size_t>(i / cols_ - first_row)];
  }
}

void StoredParam::read_wide(int64_t begin, int64_t end, float* out) const {
  if (dtype_ == DType::i8) return dequantise(begin, end, out);
  if (dtype_ == DType::f32) return read_stored(begin, end, out);
  const int64_t width = dtype_bytes(dtype_);
  const auto stored =
      std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(std::min(kPieceElements, end - begin) * width));
  for (int64_t at = begin; at < end; at += kPieceElements) {
    const int64_t next = std::min(at + kPieceElements, end);
    read_stored(at, next, stored.get());
    convert_elements(stored.get(), dtype_, out + (at - begin), DType::f32, next - at);
  }
}

void StoredParam::read_as(int64_t begin, int64_t end, void* out, DType to) const {
  if (to == dtype_) return read_stored(begin, end, out);
  if (to == DType::f32) return read_wide(begin, end, static_cast<float*>(out));
  std::vector<float> wide(static_cast<size_t>(std::min(kPieceElements, end - begin)));
  for (int64_t at = begin; at < end; at += kPieceElements) {
    const int64_t next = std::min(at + kPieceElements, end);
    read_wide(at, next, wide.data());
    convert_elements(wide.data(), DType::f32, static_cast<char*>(out) + (at - begin) * dtype_bytes(to), to, next - at);
  }
}

}  // namespace brim::model
