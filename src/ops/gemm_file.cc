// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace brim::ops {

namespace {
constexpr int kGemmFileVersion = 1;
}

std::string gemm_file_text(const std::string& library, const std::vector<GemmChoice>& choices) {
  nlohmann::ordered_json all = {
      {"version", kGemmFileVersion}, {"library", library}, {"choices", nlohmann::ordered_json::array()}};
  for (const GemmChoice& c : choices)
    all["choices"].push_back(
        {{"key", c.key}, {"algorithm", c.algorithm}, {"us", c.us}, {"default_us", c.default_us}, {"tried", c.tried}});
  return all.dump(1) + "\n";
}

std::optional<std::vector<GemmChoice>> read_gemm_file(const std::string& text, const std::string& library) {
  const nlohmann::json all = nlohmann::json::parse(text);
  if (all.value("version", 1) != kGemmFileVersion || all.at("library").get<std::string>() != library)
    return std::nullopt;
  std::vector<GemmChoice> choices;
  for (const auto& c : all.at("choices"))
    choices.push_back({c.at("key").get<std::string>(), c.at("algorithm").get<std::string>(), c.at("us").get<double>(),
                       c.at("default_us").get<double>(), c.at("tried").get<int>()});
  return choices;
}

std::vector<GemmChoice> known_gemm_choices(std::string_view library) {
  struct Known {
    std::string_view card;
    int64_t version;
    const char* key;
    const char* algorithm;
  };
  static constexpr Known table[] = {
#include "ops/known_gemms.inc"
  };
  std::vector<GemmChoice> choices;
  for (const Known& k : table)
    if (library.starts_with(fmt::format("{} driver ", k.card)) &&
        library.ends_with(fmt::format(" cublaslt {}", k.version)))
      choices.push_back({.key = k.key, .algorithm = k.algorithm});
  return choices;
}

}  // namespace brim::ops
