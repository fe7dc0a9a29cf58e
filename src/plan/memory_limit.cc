// SPDX-License-Identifier: Apache-2.0
// Memory limits as users write them: sizes, percentages, auto, and free memory left to others.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/settings.h"
#include "base/units.h"
#include "plan/plan.h"

namespace brim::plan {
namespace {

std::string limit_text(int64_t bytes) { return fmt::format("{}MiB", (bytes + (1 << 20) - 1) >> 20); }

}  // namespace

std::string LimitOrigin::name(const std::string& text) const {
  return where.empty() ? fmt::format("`memory_limit={}`", text) : fmt::format("{}: {}: {}", where, key, value);
}

std::string LimitOrigin::setting(int64_t bytes) const {
  if (where.empty()) return fmt::format("`memory_limit={}`", limit_text(bytes));
  if (key == "max_memory_gb") return fmt::format("{}: {:.2f}", key, std::ceil(static_cast<double>(bytes) / 1e7) / 100);
  return fmt::format("{}: {}", key, limit_text(bytes));
}

MemoryLimit MemoryLimit::read(std::string_view given) {
  MemoryLimit limit;
  limit.set_limit(given);
  return limit;
}

void MemoryLimit::set_limit(std::string_view given) {
  text = given;
  bytes = 0;
  percent = 0;
  if (same_word(text, "auto")) return;
  if (text.ends_with('%')) {
    char* end = nullptr;
    percent = std::strtod(text.c_str(), &end);
    if (end != text.c_str() + text.size() - 1 || !(percent > 0) || percent > 100)
      throw BadValue{"a percentage must be above 0 and at most 100"};
    return;
  }
  if (text.starts_with('-')) throw BadValue{"must be above zero"};
  const auto read = parse_bytes(text);
  if (!read) throw BadValue{"use a size (6GiB, 512MiB), a percentage (90%) or auto"};
  if (*read <= 0) throw BadValue{"must be above zero"};
  if (const std::string suggestion = with_unit(text); !suggestion.empty())
    throw BadValue{fmt::format("a number needs a unit; did you mean {}?", suggestion)};
  bytes = *read;
}

void MemoryLimit::set_leave_free(std::string_view given) {
  const std::string size(given);
  const auto read = parse_bytes(size);
  if (!read || *read < 0) throw BadValue{"use a size such as 8GiB or 500MiB"};
  if (const std::string suggestion = *read > 0 ? with_unit(size) : ""; !suggestion.empty())
    throw BadValue{fmt::format("a number needs a unit; did you mean {}?", suggestion)};
  leave_free_text = size;
  leave_free_bytes = *read;
}

int64_t MemoryLimit::on(device::MemoryInfo memory, const std::string& device, const LimitOrigin& origin) const {
  if (percent > 0) return static_cast<int64_t>(static_cast<double>(memory.total_bytes) * percent / 100);
  if (bytes == 0) {
    if (memory.total_bytes > 0 && leave_free_bytes > memory.total_bytes)
      fail(ErrorCode::usage, "`leave_free={}`: {} has {}", leave_free_text, device, format_bytes(memory.total_bytes));
    const int64_t most = memory.free_bytes - leave_free_bytes;
    if (leave_free_bytes > 0 && most <= 0)
      fail(ErrorCode::does_not_fit, Remedy{"free some memory, or set a smaller `leave_free`"},
           "`leave_free={}`: only {} free on {}", leave_free_text, format_bytes(memory.free_bytes), device);
    return std::min(memory.free_bytes - memory.free_bytes / 20, most);
  }
  if (memory.total_bytes > 0 && bytes > memory.total_bytes)
    fail(ErrorCode::usage, "{}: {} has {}; set {} or less", origin.name(text), device, format_bytes(memory.total_bytes),
         origin.setting(memory.total_bytes - 10'000'000));
  return bytes;
}

}  // namespace brim::plan
