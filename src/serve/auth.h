// SPDX-License-Identifier: Apache-2.0
// API keys: stored as SHA-256 hashes, each with a name and scopes.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace brim::serve {

enum class Scope : uint8_t { open = 0, score = 1, queue = 2, jobs = 4, metrics = 8, admin = 16 };

const char* scope_name(Scope scope);

struct ApiKey {
  std::string name;
  uint8_t scopes = 0;
  std::array<uint8_t, 32> hash{};
  bool allows(Scope scope) const { return scope == Scope::open || (scopes & static_cast<uint8_t>(scope)) != 0; }
};

class ApiKeys {
 public:
  // Parses lines of NAME:SCOPES:SHA256HEX with comma-separated scopes: score, queue, jobs, metrics, admin. Ignores
  // empty lines and lines starting with #. Anything else is a usage error with `where` and the line number.
  static ApiKeys parse(std::string_view text, const std::string& where);
  static ApiKeys load(const std::filesystem::path& file);
  // Adds a plain-text key with every scope except admin.
  void add(std::string_view key, const std::string& name);

  bool empty() const { return keys_.empty(); }
  // Looks up the key of `Authorization: Bearer KEY`; null if unknown. Constant time.
  const ApiKey* find(std::string_view authorization) const;

 private:
  std::vector<ApiKey> keys_;
};

}  // namespace brim::serve
