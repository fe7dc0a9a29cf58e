// SPDX-License-Identifier: Apache-2.0
#include "model/export.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "hub/hf_config.h"
#include "hub/safetensors.h"
#include "hub/sentence_settings.h"
#include "hub/weights.h"
#include "model/params.h"

namespace brim::model {

using ops::Precision;
using tensor::DType;

namespace {

constexpr const char* kScaleSuffix = "_scale";

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Names (with and without the family's prefix) of the tensors that int8 quantises.
std::set<std::string> quantized_names(const ModelShape& shape) {
  std::set<std::string> names;
  for (const auto& p : model_params(shape)) {
    if (p.rows == 0 || !p.int8) continue;
    for (const auto& name : p.names) {
      names.insert(name);
      names.insert(name.substr(name.find('.') + 1));
    }
  }
  return names;
}

std::vector<float> read_wide(const hub::WeightSource& source, const std::string& name, const tensor::TensorView& t) {
  std::vector<float> wide(static_cast<size_t>(t.elements()));
  if (t.dtype == DType::i8) {
    const auto scale = source.find(name + kScaleSuffix);
    if (!scale || scale->dtype != DType::f32 || scale->elements() != t.rows())
      fail(ErrorCode::bad_model, "{}: int8 tensor without one scale per row", source.where(name));
    const int64_t cols = t.elements() / std::max<int64_t>(1, t.rows());
    for (int64_t i = 0; i < t.elements(); ++i)
      wide[static_cast<size_t>(i)] = static_cast<float>(t.as<int8_t>()[i]) * scale->as<float>()[i / cols];
  } else {
    convert_elements(t.data, t.dtype, wide.data(), DType::f32, t.elements());
  }
  return wide;
}

bool is_number_type(DType t) {
  return t == DType::f32 || t == DType::f16 || t == DType::bf16 || t == DType::f64 || t == DType::i8;
}

}  // namespace

float quantize_row(const float* row, int64_t n, int8_t* out) {
  float amax = 0;
  for (int64_t i = 0; i < n; ++i) amax = std::max(amax, std::abs(row[i]));
  const float scale = amax > 0 ? amax / 127.0f : 1.0f;
  for (int64_t i = 0; i < n; ++i)
    out[i] = static_cast<int8_t>(std::clamp(std::nearbyint(row[i] / scale), -127.0f, 127.0f));
  return scale;
}

ExportReport export_model(const std::filesystem::path& from, const std::filesystem::path& to, Precision precision) {
  DType wanted = DType::f32;
  const char* torch_dtype = "float32";
  switch (precision) {
    case Precision::fp32:
    case Precision::int8:
      break;
    case Precision::fp16:
      wanted = DType::f16;
      torch_dtype = "float16";
      break;
    case Precision::bf16:
      wanted = DType::bf16;
      torch_dtype = "bfloat16";
      break;
    default:
      fail(ErrorCode::usage, "`precision={}`: use fp32, fp16, bf16 or int8 for export", precision_name(precision));
  }
  const hub::HfConfig config = hub::load_hf_config(from);
  const auto source = hub::WeightSource::open(from);
  const ModelShape shape = shape_of(config, head_kind(config, source->names()));
  std::error_code ec;
  if (std::filesystem::exists(to, ec) && !(std::filesystem::is_directory(to, ec) && std::filesystem::is_empty(to, ec)))
    fail(ErrorCode::cannot_write, "{}: already exists; choose another directory", to.string());
  std::filesystem::create_directories(to, ec);
  if (ec) fail(ErrorCode::cannot_write, "{}: {}", to.string(), ec.message());

  const auto quantized = precision == Precision::int8 ? quantized_names(shape) : std::set<std::string>();
  std::vector<hub::SafetensorsSpec> specs;
  for (const auto& name : source->names()) {
    if (ends_with(name, kScaleSuffix) && source->has(name.substr(0, name.size() - 6))) continue;
    const hub::StoredTensor& t = source->require(name);
    if (!is_number_type(*t.dtype)) continue;  // counters and position ids in old checkpoints
    const std::vector<int64_t> dims = t.shape.empty() ? std::vector<int64_t>{1} : t.shape;
    const bool small = dims.size() == 2 && quantized.count(name) > 0;
    specs.push_back({name, small ? DType::i8 : wanted, dims});
    if (small) specs.push_back({name + kScaleSuffix, DType::f32, {dims[0]}});
  }
  hub::SafetensorsWriter writer(to / "model.safetensors", specs);
  ExportReport report;
  std::vector<int8_t> bytes;
  std::vector<float> scales;
  for (const auto& spec : writer.order()) {
    ++report.tensors;
    const bool is_scale =
        ends_with(spec.name, kScaleSuffix) && quantized.count(spec.name.substr(0, spec.name.size() - 6)) > 0;
    const std::string name = is_scale ? spec.name.substr(0, spec.name.size() - 6) : spec.name;
    const hub::LoadedTensor t = source->get(name);
    const std::vector<float> wide = read_wide(*source, name, t);
    if (is_scale || spec.dtype == DType::i8) {
      if (!std::ranges::all_of(wide, [](float v) { return std::isfinite(v); }))
        fail(ErrorCode::bad_model, Remedy{"fetch the model again"},
             "{}: contains NaN or infinity, which int8 cannot represent", source->where(name));
      const int64_t rows = t.rows(), cols = t.cols();
      bytes.resize(wide.size());
      scales.resize(static_cast<size_t>(rows));
      for (int64_t r = 0; r < rows; ++r)
        scales[static_cast<size_t>(r)] =
            quantize_row(&wide[static_cast<size_t>(r * cols)], cols, &bytes[static_cast<size_t>(r * cols)]);
      if (is_scale)
        writer.append(spec.name, scales.data(), scales.size() * 4);
      else {
        writer.append(spec.name, bytes.data(), bytes.size());
        ++report.quantized;
      }
    } else {
      std::vector<std::byte> out(wide.size() * static_cast<size_t>(dtype_bytes(spec.dtype)));
      convert_elements(wide.data(), DType::f32, out.data(), spec.dtype, static_cast<int64_t>(wide.size()));
      writer.append(spec.name, out.data(), out.size());
    }
  }
  source->check_unchanged();
  writer.commit();
  hub::ConfigUpdate update;
  update.torch_dtype = torch_dtype;
  update.quantization =
      precision == Precision::int8 ? hub::ConfigUpdate::Quantization::int8 : hub::ConfigUpdate::Quantization::remove;
  write_config(config, update, to);
  hub::copy_tokenizer_files(from, to);
  hub::copy_sentence_files(from, to);
  report.bytes = static_cast<int64_t>(std::filesystem::file_size(to / "model.safetensors"));
  return report;
}

}  // namespace brim::model
