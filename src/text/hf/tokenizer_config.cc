// SPDX-License-Identifier: Apache-2.0
// Reads tokenizer_config.json, special_tokens_map.json and added_tokens.json. All are optional; if two of them define a
// role, tokenizer_config.json wins.
// Does not read the vocabulary.
#include <algorithm>

#include "base/error.h"
#include "base/token.h"
#include "text/components.h"
#include "text/json_reader.h"
#include "text/load.h"

namespace brim::text {
namespace {

// "[CLS]" or an object.
AddedToken read_special_token(const JsonValue& json) {
  if (!json.raw().is_string()) return read_added_token(json, true);
  AddedToken token;
  token.special = true;
  token.content = json.as_string();
  return token;
}

std::optional<bool> read_flag(const JsonValue& json, const char* key) {
  if (!json.has(key)) return std::nullopt;
  return json.at(key).as_bool();
}

using Role = std::pair<const char*, std::optional<AddedToken> TokenizerConfig::*>;
constexpr Role kRoles[] = {{"cls_token", &TokenizerConfig::cls},   {"sep_token", &TokenizerConfig::sep},
                           {"pad_token", &TokenizerConfig::pad},   {"unk_token", &TokenizerConfig::unk},
                           {"mask_token", &TokenizerConfig::mask}, {"bos_token", &TokenizerConfig::bos},
                           {"eos_token", &TokenizerConfig::eos}};

void read_roles(const JsonValue& json, TokenizerConfig& config) {
  for (const auto& [key, member] : kRoles) {
    if (json.has(key) && !(config.*member)) config.*member = read_special_token(json.at(key));
  }
}

void read_max_length(const JsonValue& json, TokenizerConfig& config) {
  // Hugging Face writes "no limit" as 1e30; "max_len" is its older name.
  for (const char* key : {"model_max_length", "max_len"}) {
    if (!json.has(key)) continue;
    const double value = json.at(key).as_double();
    if (!(value >= 1)) json.at(key).fail("must be at least 1");
    if (value < 1e15) config.model_max_length = static_cast<int64_t>(value);
    return;
  }
}

// Same limit as in the pipeline: no model has larger ids, and the token type is stored in the bits above the id.
int32_t checked_id(const JsonValue& place, int64_t id) {
  if (id < 0 || id >= kIdMask) place.fail(fmt::format("is not a token id: must be from 0 to {}", kIdMask - 1));
  return static_cast<int32_t>(id);
}

int32_t read_id(const JsonValue& place, const std::string& text) {
  int64_t id = 0;
  for (const char c : text) {
    if (c < '0' || c > '9' || id > 100'000'000) place.fail(fmt::format("\"{}\" is not a token id", text));
    id = id * 10 + (c - '0');
  }
  if (text.empty()) place.fail("contains an empty token id");
  return checked_id(place, id);
}

}  // namespace

AddedToken read_added_token(const JsonValue& json, bool special) {
  AddedToken token;
  token.content = json.at("content").as_string();
  token.special = json.get("special", special);
  token.lstrip = json.get("lstrip", false);
  token.rstrip = json.get("rstrip", false);
  token.single_word = json.get("single_word", false);
  token.normalized = json.get("normalized", !token.special);
  return token;
}

TokenizerConfig read_tokenizer_config(const std::filesystem::path& dir) {
  TokenizerConfig config;
  config.file = dir / "tokenizer_config.json";
  if (std::filesystem::exists(config.file)) {
    const nlohmann::json raw = parse_json_file(config.file);
    const JsonValue json(raw, config.file, "");
    json.expect_object();
    config.do_lower_case = read_flag(json, "do_lower_case");
    config.strip_accents = read_flag(json, "strip_accents");
    config.tokenize_chinese_chars = read_flag(json, "tokenize_chinese_chars");
    config.add_prefix_space = read_flag(json, "add_prefix_space");
    config.trim_offsets = read_flag(json, "trim_offsets");
    config.tokenizer_class = json.get("tokenizer_class", "");
    if (json.has("model_input_names")) {
      const JsonValue names = json.at("model_input_names");
      names.expect_array();
      config.takes_types = false;
      for (size_t i = 0; i < names.size(); ++i)
        config.takes_types = config.takes_types || names.at(i).as_string() == "token_type_ids";
    }
    read_max_length(json, config);
    read_roles(json, config);
    if (json.has("added_tokens_decoder")) {
      const JsonValue decoder = json.at("added_tokens_decoder");
      decoder.expect_object();
      for (const auto& [id, value] : decoder.raw().items()) {
        const JsonValue entry(value, config.file, "added_tokens_decoder." + id);
        AddedToken token = read_special_token(entry);
        token.id = read_id(entry, id);
        config.added.push_back(std::move(token));
      }
    }
  }
  const std::filesystem::path map = dir / "special_tokens_map.json";
  if (std::filesystem::exists(map)) {
    const nlohmann::json raw = parse_json_file(map);
    const JsonValue json(raw, map, "");
    json.expect_object();
    read_roles(json, config);
  }
  const std::filesystem::path added = dir / "added_tokens.json";
  if (config.added.empty() && std::filesystem::exists(added)) {
    const nlohmann::json raw = parse_json_file(added);
    const JsonValue json(raw, added, "");
    json.expect_object();
    for (const auto& [content, value] : raw.items()) {
      const JsonValue entry(value, added, content);
      AddedToken token;
      token.content = content;
      token.id = checked_id(entry, entry.as_int());
      token.normalized = true;
      config.added.push_back(std::move(token));
    }
  }
  std::sort(config.added.begin(), config.added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  // Matching options of a token are defined only in added_tokens_decoder; a role may just name the token.
  for (const auto& [key, member] : kRoles) {
    auto& role = config.*member;
    for (const AddedToken& token : config.added) {
      if (role && role->content == token.content) role = token;
    }
  }
  return config;
}

}  // namespace brim::text
