// SPDX-License-Identifier: Apache-2.0
#include "model/export.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "base/error.h"
#include "hub/adapter.h"
#include "hub/hf_config.h"
#include "hub/safetensors.h"
#include "hub/sentence_settings.h"
#include "hub/weights.h"
#include "model/params.h"

namespace brim::model {

namespace fs = std::filesystem;
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

DType stored_type(Precision precision) {
  switch (precision) {
    case Precision::fp32:
    case Precision::int8:
      return DType::f32;
    case Precision::fp16:
      return DType::f16;
    case Precision::bf16:
      return DType::bf16;
    default:
      fail(ErrorCode::usage, "`precision={}`: use fp32, fp16, bf16 or int8 for export", precision_name(precision));
  }
}

const char* torch_name(DType type) {
  return type == DType::f16 ? "float16" : type == DType::bf16 ? "bfloat16" : "float32";
}

// A new or empty directory. What is written to it is removed unless keep() is called, so that a failed export can be
// repeated.
class OutputDirectory {
 public:
  explicit OutputDirectory(fs::path dir) : dir_(std::move(dir)) {
    std::error_code ec;
    existed_ = fs::exists(dir_, ec);
    if (existed_ && !(fs::is_directory(dir_, ec) && fs::is_empty(dir_, ec)))
      fail(ErrorCode::cannot_write, "{}: already exists; choose another directory", dir_.string());
    fs::create_directories(dir_, ec);
    if (ec) fail(ErrorCode::cannot_write, "{}: {}", dir_.string(), ec.message());
  }
  ~OutputDirectory() {
    if (kept_) return;
    std::error_code ec;
    std::vector<fs::path> written;
    for (const auto& entry : fs::directory_iterator(dir_, ec)) written.push_back(entry.path());
    for (const fs::path& path : written) fs::remove_all(path, ec);
    if (!existed_) fs::remove(dir_, ec);
  }
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;
  void keep() { kept_ = true; }

 private:
  const fs::path dir_;
  bool existed_ = false, kept_ = false;
};

std::vector<hub::SafetensorsSpec> tensors_of(const hub::WeightSource& source, DType type,
                                             const std::set<std::string>& quantized, const hub::Adapter* adapter) {
  std::vector<hub::SafetensorsSpec> specs;
  if (adapter != nullptr)
    for (const auto& [name, shape] : adapter->added()) specs.push_back({name, type, shape});
  for (const auto& name : source.names()) {
    if (adapter != nullptr && adapter->added().contains(name)) continue;
    if (ends_with(name, kScaleSuffix) && source.has(name.substr(0, name.size() - 6))) continue;
    const hub::StoredTensor& t = source.require(name);
    if (!is_number_type(*t.dtype)) continue;  // counters and position ids in old checkpoints
    const std::vector<int64_t> dims = t.shape.empty() ? std::vector<int64_t>{1} : t.shape;
    const bool small = dims.size() == 2 && quantized.count(name) > 0;
    specs.push_back({name, small ? DType::i8 : type, dims});
    if (small) specs.push_back({name + kScaleSuffix, DType::f32, {dims[0]}});
  }
  return specs;
}

std::vector<float> adapted(const hub::WeightSource& source, const hub::Adapter* adapter, const std::string& name) {
  if (adapter != nullptr && adapter->added().contains(name)) return adapter->values_of_added(name);
  std::vector<float> wide = read_wide(source, name, source.get(name));
  if (adapter != nullptr) adapter->apply(name, wide);
  return wide;
}

// Writes the int8 values of a matrix, or its scales.
void append_quantized(hub::SafetensorsWriter& writer, const hub::WeightSource& source, const hub::Adapter* adapter,
                      const std::string& written, const std::string& name) {
  const std::vector<float> wide = adapted(source, adapter, name);
  if (!std::ranges::all_of(wide, [](float v) { return std::isfinite(v); }))
    fail(ErrorCode::bad_model, Remedy{"fetch the model again"},
         "{}: contains NaN or infinity, which int8 cannot represent", source.where(name));
  const int64_t rows = source.require(name).shape[0], cols = static_cast<int64_t>(wide.size()) / rows;
  std::vector<int8_t> bytes(wide.size());
  std::vector<float> scales(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r)
    scales[static_cast<size_t>(r)] =
        quantize_row(&wide[static_cast<size_t>(r * cols)], cols, &bytes[static_cast<size_t>(r * cols)]);
  if (written == name)
    writer.append(written, bytes.data(), bytes.size());
  else
    writer.append(written, scales.data(), scales.size() * 4);
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

ExportReport export_model(const fs::path& from, const fs::path& to, Precision precision, const fs::path& adapter_dir,
                          const std::atomic<bool>* stop) {
  const DType type = stored_type(precision);
  hub::HfConfig config = hub::load_hf_config(from);
  const auto source = hub::WeightSource::open(from);
  std::optional<hub::Adapter> opened;
  if (!adapter_dir.empty()) opened.emplace(adapter_dir, *source);
  const hub::Adapter* adapter = opened ? &*opened : nullptr;
  hub::ConfigUpdate update;
  if (adapter != nullptr) config = adapter->config_with_head(config, &update);
  const ModelShape shape = shape_of(config, head_kind(config, source->names()));
  OutputDirectory output(to);
  const bool int8 = precision == Precision::int8;
  const auto quantized = int8 ? quantized_names(shape) : std::set<std::string>();
  hub::SafetensorsWriter writer(to / "model.safetensors", tensors_of(*source, type, quantized, adapter));
  ExportReport report;
  if (adapter != nullptr) report.adapted = adapter->matrices();
  for (const auto& spec : writer.order()) {
    if (stop != nullptr && *stop) fail(ErrorCode::interrupted, "interrupted");
    ++report.tensors;
    const std::string without = spec.name.substr(0, spec.name.size() - std::min<size_t>(6, spec.name.size()));
    const bool is_scale = ends_with(spec.name, kScaleSuffix) && quantized.count(without) > 0;
    if (is_scale || spec.dtype == DType::i8) {
      append_quantized(writer, *source, adapter, spec.name, is_scale ? without : spec.name);
      report.quantized += !is_scale;
      continue;
    }
    const std::vector<float> wide = adapted(*source, adapter, spec.name);
    std::vector<std::byte> out(wide.size() * static_cast<size_t>(dtype_bytes(spec.dtype)));
    convert_elements(wide.data(), DType::f32, out.data(), spec.dtype, static_cast<int64_t>(wide.size()));
    writer.append(spec.name, out.data(), out.size());
  }
  source->check_unchanged();
  writer.commit();
  update.torch_dtype = torch_name(type);
  update.quantization = int8 ? hub::ConfigUpdate::Quantization::int8 : hub::ConfigUpdate::Quantization::remove;
  write_config(config, update, to);
  hub::copy_tokenizer_files(from, to);
  hub::copy_sentence_files(from, to);
  report.bytes = static_cast<int64_t>(fs::file_size(to / "model.safetensors"));
  output.keep();
  return report;
}

}  // namespace brim::model
