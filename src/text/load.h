// SPDX-License-Identifier: Apache-2.0
// Declarations shared by the tokenizer loaders; not for use outside src/text.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/components.h"

namespace brim::text {

// Parses the text of a tokenizer.json; `file` is used in messages.
std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view text, const std::filesystem::path& file,
                                                const TokenizerConfig& config);

// Parses an object like {"content": "[CLS]", "lstrip": false, …}, without its id; `special` is the default for that
// key.
AddedToken read_added_token(const JsonValue& json, bool special);

// Assigns each added token its id in the model, or the next free one; the last of equal tokens wins.
void number_added_tokens(std::vector<AddedToken>& added, const TokenModel& model, const std::filesystem::path& file);

// Ids of the roles: by the names in the configuration, else by their common names.
SpecialIds find_special_ids(const TokenizerConfig& config, const std::function<int32_t(const std::string&)>& id);

}  // namespace brim::text
