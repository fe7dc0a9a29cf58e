// SPDX-License-Identifier: Apache-2.0
// JSON from a model directory, parsed strictly: one value, no repeated keys, bounded depth. Errors name the file, the
// line and the column. Only .cc files may include this, as they alone may see the JSON library.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

namespace brim::io {

// `where` is the file's name for messages.
nlohmann::json parse_json(std::string_view text, const std::string& where, ErrorCode code = ErrorCode::bad_model);

// "12:5" for a byte offset in `text`.
std::string line_and_column(std::string_view text, size_t offset);

// What nlohmann says about a parse error, without its exception number and position.
std::string json_reason(std::string_view what);

}  // namespace brim::io
