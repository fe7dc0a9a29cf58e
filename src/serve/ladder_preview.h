// SPDX-License-Identifier: Apache-2.0
// Which rung of a ladder would answer at a given time, and why: for `brim serve --check --at TIME`.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "serve/ladder.h"

namespace brim::serve {

// Parses "2026-11-23 10:00" or "2026-11-23T10:00:00-05:00" to Unix time. Without an offset, the time is local to the
// zone of the ladder's schedule (UTC without a schedule). Throws BadValue.
int64_t parse_preview_time(std::string_view text, const Ladder& ladder);

// One line for requests without options, the next change of the schedule, and one line per source rule.
std::vector<std::string> preview_lines(Ladder& ladder, int64_t unix_seconds);

}  // namespace brim::serve
