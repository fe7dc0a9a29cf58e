// SPDX-License-Identifier: Apache-2.0
// Text from files we do not trust, made fit for an error message: quoted, control bytes escaped, long ones cut.
#pragma once
#include <string>
#include <string_view>

namespace brim::io {

std::string quote_text(std::string_view text, size_t max_bytes = 100);

}  // namespace brim::io
