// SPDX-License-Identifier: Apache-2.0
// Strict JSON parser for files of a model directory: one value, no repeated keys, bounded depth. Errors name the file,
// the line and the column. Include it only in .cc files, to keep the JSON library out of headers.
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

// Message of a nlohmann parse error, without its exception number and position.
std::string json_reason(std::string_view what);

}  // namespace brim::io
