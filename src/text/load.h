// SPDX-License-Identifier: Apache-2.0
// Between the files that load tokenizers: what they share, not for the rest of Brim.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/components.h"

namespace brim::text {

// The text of a tokenizer.json; `file` is named in messages.
std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view text, const std::filesystem::path& file,
                                                const TokenizerConfig& config);

// An object like {"content": "[CLS]", "lstrip": false, …}, its id left out; `special` where it does not say.
AddedToken read_added_token(const JsonValue& json, bool special);

// Gives each added token the id it has in the model, or the next free one; of equal tokens the last stays.
void number_added_tokens(std::vector<AddedToken>& added, const TokenModel& model, const std::filesystem::path& file);

// Ids of the roles: as the configuration names them, else by their usual names.
SpecialIds find_special_ids(const TokenizerConfig& config, const std::function<int32_t(const std::string&)>& id);

}  // namespace brim::text
