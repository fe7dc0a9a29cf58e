// SPDX-License-Identifier: Apache-2.0
// Test support: overwrites one value of a tensor in a safetensors file: float32, or float16 if the value is NaN.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace brim::hub {

inline void edit_weight(const std::filesystem::path& model, const std::string& tensor, size_t index, float value) {
  std::fstream file(model / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  uint64_t header_bytes = 0;
  file.read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
  std::string header(header_bytes, '\0');
  file.read(header.data(), static_cast<std::streamsize>(header.size()));
  const nlohmann::json entry = nlohmann::json::parse(header).at(tensor);
  const size_t begin = entry.at("data_offsets")[0], end = entry.at("data_offsets")[1];
  const bool half = entry.at("dtype") == "F16" && std::isnan(value);
  const size_t bytes = half ? 2 : 4;
  if ((entry.at("dtype") != "F32" && !half) || begin + bytes * (index + 1) > end) throw std::out_of_range(tensor);
  file.seekp(static_cast<std::streamoff>(sizeof header_bytes + header_bytes + begin + bytes * index));
  constexpr uint16_t kHalfNan = 0x7E00;
  file.write(half ? reinterpret_cast<const char*>(&kHalfNan) : reinterpret_cast<const char*>(&value),
             static_cast<std::streamsize>(bytes));
  if (!file) throw std::runtime_error("cannot write " + model.string());
}

}  // namespace brim::hub
