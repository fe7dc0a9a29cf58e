// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

namespace brim {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

std::optional<int64_t> parse_bytes(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value)) return std::nullopt;
  std::string unit;
  for (const char* p = end; p != text.data() + text.size(); ++p)
    if (*p != ' ') unit += lower(*p);
  double scale = 0;
  if (unit.empty() || unit == "b") scale = 1;
  constexpr std::string_view prefixes = "kmgtpe";
  if (!unit.empty() && scale == 0) {
    const size_t power = prefixes.find(unit[0]);
    const std::string rest = unit.substr(1);
    if (power == std::string_view::npos) return std::nullopt;
    if (rest.empty() || rest == "ib" || rest == "i")
      scale = std::pow(1024.0, static_cast<double>(power + 1));
    else if (rest == "b")
      scale = std::pow(1000.0, static_cast<double>(power + 1));
    else
      return std::nullopt;
  }
  if (std::abs(value * scale) > 9e18) return std::nullopt;
  return static_cast<int64_t>(std::llround(value * scale));
}

std::string with_unit(std::string_view text) {
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return "";
  if (value <= 1) return fmt::format("{:g}%", 100 * value);
  return value < 1024 ? fmt::format("{}GiB", text) : fmt::format("{}B", text);
}

std::string format_bytes(int64_t bytes) {
  static constexpr std::array units = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(value) >= 1024 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{:.{}f} {}", value, std::abs(value) < 10 ? 2 : std::abs(value) < 100 ? 1 : 0, units[unit]);
}

std::string format_count(int64_t value) {
  std::string digits = std::to_string(std::abs(value));
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), ",");
  return value < 0 ? "-" + digits : digits;
}

std::string format_count(int64_t value, std::string_view noun) {
  return fmt::format("{} {}{}", format_count(value), noun, value == 1 ? "" : "s");
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "–";
  if (seconds < 0.9995 && seconds > 0) return fmt::format("{:.{}f} ms", 1e3 * seconds, seconds < 0.00995 ? 1 : 0);
  if (seconds < 60) return fmt::format("{:.{}f} s", seconds, seconds < 10 ? 1 : 0);
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  return fmt::format("{}h {:02}m", whole / 3600, whole / 60 % 60);
}

std::string format_rate(double per_second) {
  if (per_second <= 0) return "–";
  if (per_second >= 100) return format_count(static_cast<int64_t>(per_second + 0.5));
  return fmt::format("{:.{}f}", per_second, per_second < 10 ? 2 : 1);
}

std::string format_si(double value) {
  static constexpr std::array units = {"", " k", " M", " G", " T", " P"};
  size_t unit = 0;
  while (std::abs(value) >= 1000 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.{}f}{}", value,
                     unit == 0 || std::abs(value) >= 100 ? 0
                     : std::abs(value) >= 10             ? 1
                                                         : 2,
                     units[unit]);
}

namespace {

// Candidate names can also come from files, so the work of nearest_name is bounded.
constexpr size_t kMostNearestNames = 4096, kLongestNearestName = 160;

// Edits between two words: insertions, deletions, substitutions and swaps of adjacent letters.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    next[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      next[j] = std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        next[j] = std::min(next[j], before[j - 2] + 1);
    }
    before = std::exchange(row, next);
  }
  return row.back();
}

std::string sorted_letters(std::string text) {
  std::sort(text.begin(), text.end());
  return text;
}

}  // namespace

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), lower);
  return out;
}

bool same_word(std::string_view a, std::string_view b) { return lower_case(a) == lower_case(b); }

std::string nearest_name(std::string_view typed, const std::vector<std::string>& known, size_t most_edits) {
  if (known.size() > kMostNearestNames || typed.size() > kLongestNearestName) return "";
  const std::string word = lower_case(typed);
  std::string best;
  std::pair<size_t, bool> best_rank = {std::min(most_edits, std::max<size_t>(2, word.size() / 3)) + 1, false};
  for (const auto& name : known) {
    // Each byte of length difference needs at least one edit.
    const size_t shorter = std::min(name.size(), word.size()), longer = std::max(name.size(), word.size());
    if (longer - shorter > best_rank.first) continue;
    const std::string other = lower_case(name);
    const size_t edits = edit_distance(word, other);
    // On ties prefer the name with the same letters: MODLE is MODEL, not MODE.
    const std::pair rank = {edits, sorted_letters(word) != sorted_letters(other)};
    if (rank < best_rank && edits < word.size()) {
      best_rank = rank;
      best = name;
    }
  }
  return best;
}

std::string some_names(const std::vector<std::string>& names) {
  constexpr size_t kShown = 10;
  const std::span shown(names.data(), std::min(kShown, names.size()));
  return fmt::format("{}{}", fmt::join(shown, ", "),
                     names.size() > kShown ? fmt::format(", … ({} in total)", names.size()) : "");
}

}  // namespace brim
