// SPDX-License-Identifier: Apache-2.0
// Typed access to the keys of a config.json, with errors (bad_model) that name the file, the key and the value.
// Families use it to read their specific keys.
#pragma once
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace brim::hub {

struct HfConfig;
enum class HiddenAct;

class ConfigKeys {
 public:
  static constexpr int kMaxSize = 1 << 24;  // far above any dimension of a real model; products of two still fit

  explicit ConfigKeys(const HfConfig& config);  // keys at the top level of the file
  ConfigKeys(const nlohmann::json& object, const std::string& where);

  // Null if the key is absent or null.
  const nlohmann::json* get(const char* key) const;
  bool has(const char* key) const;  // true even if the value is null
  int integer(const char* key, int fallback, int least, int most = kMaxSize) const;
  float number(const char* key, float fallback, double least, double below) const;  // in [least, below)
  float positive(const char* key, float fallback, double below) const;  // in (0, below), also after rounding to float
  std::string text(const char* key, const char* fallback) const;
  bool flag(const char* key) const;
  HiddenAct activation(const char* key, const char* fallback) const;

  [[noreturn]] void refuse(const char* key, const nlohmann::json& value, std::string_view why) const;
  template <class... Args>
  [[noreturn]] void contradiction(fmt::format_string<Args...> format, Args&&... args) const {
    refuse(fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const;
  std::shared_ptr<const nlohmann::json> owned_;
  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace brim::hub
