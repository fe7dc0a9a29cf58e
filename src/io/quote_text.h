// SPDX-License-Identifier: Apache-2.0
// Formats untrusted text for error messages: quoted, control bytes escaped, long text truncated.
#pragma once
#include <string>
#include <string_view>

namespace brim::io {

std::string quote_text(std::string_view text, size_t max_bytes = 100);

}  // namespace brim::io
