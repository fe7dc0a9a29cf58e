// SPDX-License-Identifier: Apache-2.0
// Fuzz entry: arbitrary bytes as adapter_config.json of an adapter with one pair of matrices, whose rank is the first
// byte. Accepted adapters are applied.
#include <cmath>
#include <cstdlib>
#include <map>

#include "base/error.h"
#include "base/test_files.h"
#include "hub/adapter.h"
#include "hub/safetensors.h"

namespace brim::hub {

inline void open_fuzzed_adapter(int64_t rank, const std::string& config) {
  static const TempDir dir;
  static const std::string module = "bert.encoder.layer.0.attention.self.query";
  static std::vector<float> ones(64, 1.0f);
  static const auto base = [&] {
    write_safetensors(dir / "model.safetensors",
                      {{module + ".weight", tensor::TensorView(ones.data(), tensor::DType::f32, {4, 3})}});
    return WeightSource::open(dir.path());
  }();
  const std::filesystem::path folder = dir / std::to_string(rank);
  if (std::filesystem::create_directories(folder)) {
    std::map<std::string, tensor::TensorView> tensors;
    const std::string name = kAdapterPrefix + module;
    tensors[name + ".lora_A.weight"] = tensor::TensorView(ones.data(), tensor::DType::f32, {rank, 3});
    tensors[name + ".lora_B.weight"] = tensor::TensorView(ones.data(), tensor::DType::f32, {4, rank});
    write_safetensors(folder / kAdapterWeights, tensors);
  }
  put_file(folder / kAdapterConfig, config);
  try {
    const Adapter adapter(folder, *base);
    std::vector<float> values(12, 1.0f);
    adapter.apply(module + ".weight", values);
    for (const float value : values)
      if (!std::isfinite(value)) std::abort();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::bad_model) std::abort();
  }
}

}  // namespace brim::hub

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  brim::hub::open_fuzzed_adapter(data[0] % 8, std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}
