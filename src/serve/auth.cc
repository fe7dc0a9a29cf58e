// SPDX-License-Identifier: Apache-2.0
#include "serve/auth.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/mapped_file.h"
#include "http/key_file.h"
#include "io/sha256.h"
#include "serve/http_names.h"

namespace brim::serve {
namespace {

struct ScopeName {
  const char* name;
  Scope scope;
};
constexpr ScopeName kScopes[] = {{"score", Scope::score},
                                 {"queue", Scope::queue},
                                 {"jobs", Scope::jobs},
                                 {"metrics", Scope::metrics},
                                 {"admin", Scope::admin}};

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = std::min(text.find(at), text.size());
    parts.push_back(text.substr(0, end));
    if (end == text.size()) return parts;
    text.remove_prefix(end + 1);
  }
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

}  // namespace

const char* scope_name(Scope scope) {
  for (const ScopeName& known : kScopes)
    if (known.scope == scope) return known.name;
  return "open";
}

ApiKeys ApiKeys::parse(std::string_view text, const std::string& where) {
  ApiKeys keys;
  int number = 0;
  for (std::string_view line : split(text, '\n')) {
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line[0] == '#') continue;
    const auto bad = [&](std::string_view why) {
      fail(ErrorCode::usage, Remedy{"write NAME:SCOPES:SHA256, such as `web:score,queue:9f86d0…`"}, "{}:{}: {}", where,
           number, why);
    };
    const auto parts = split(line, ':');
    if (parts.size() != 3 || parts[0].empty()) bad("invalid key line");
    ApiKey key;
    key.name = parts[0];
    for (const std::string_view scope : split(parts[1], ',')) {
      const auto known =
          std::find_if(std::begin(kScopes), std::end(kScopes), [&](const ScopeName& s) { return scope == s.name; });
      if (known == std::end(kScopes)) bad("unknown scope (use score, queue, jobs, metrics or admin)");
      key.scopes = static_cast<uint8_t>(key.scopes | static_cast<uint8_t>(known->scope));
    }
    if (parts[2].size() != 64) bad("the SHA-256 must have 64 hexadecimal digits");
    for (size_t i = 0; i < 32; ++i) {
      const int high = hex_value(parts[2][2 * i]), low = hex_value(parts[2][2 * i + 1]);
      if (high < 0 || low < 0) bad("the SHA-256 must have 64 hexadecimal digits");
      key.hash[i] = static_cast<uint8_t>(high * 16 + low);
    }
    const auto same =
        std::find_if(keys.keys_.begin(), keys.keys_.end(), [&](const ApiKey& k) { return k.name == key.name; });
    if (same != keys.keys_.end()) bad("duplicate key name");
    keys.keys_.push_back(std::move(key));
  }
  return keys;
}

ApiKeys ApiKeys::load(const std::filesystem::path& file) {
  http::check_key_file("api_key_file", file.string(), http::KeyFile::hashes);
  ApiKeys keys = parse(read_file(file, ErrorCode::usage), file.string());
  if (keys.empty()) fail(ErrorCode::usage, "{}: no keys", file.string());
  return keys;
}

void ApiKeys::add(std::string_view key, const std::string& name) {
  ApiKey added;
  added.name = name;
  added.scopes = 0xFF & ~static_cast<uint8_t>(Scope::admin);
  added.hash = io::sha256(key);
  keys_.push_back(std::move(added));
}

const ApiKey* ApiKeys::find(std::string_view authorization) const {
  constexpr std::string_view kBearer = "bearer ";
  if (authorization.size() <= kBearer.size() || !same_ignoring_case(authorization.substr(0, kBearer.size()), kBearer))
    return nullptr;
  const auto hash = io::sha256(authorization.substr(kBearer.size()));
  const ApiKey* found = nullptr;
  for (const ApiKey& key : keys_) {  // compares all keys and all bytes, in constant time
    uint8_t other = 0;
    for (size_t i = 0; i < hash.size(); ++i) other = static_cast<uint8_t>(other | (hash[i] ^ key.hash[i]));
    if (other == 0) found = &key;
  }
  return found;
}

}  // namespace brim::serve
