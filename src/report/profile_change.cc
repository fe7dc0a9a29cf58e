// SPDX-License-Identifier: Apache-2.0
#include "report/profile_change.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <vector>

#include "base/error.h"

namespace brim::report {
namespace {

using ProfileJson = nlohmann::json;

struct Measured {
  std::optional<double> value, least, most;  // range over rounds, if there were several
  double rounds = 1;
};

const ProfileJson* member_of(const ProfileJson& block, const char* key) {
  if (!block.is_object()) return nullptr;
  const auto found = block.find(key);
  return found == block.end() || found->is_null() ? nullptr : &*found;
}

std::optional<double> figure_of(const ProfileJson& block, const char* key) {
  const ProfileJson* found = member_of(block, key);
  return found != nullptr && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

std::string word_of(const ProfileJson& block, const char* key) {
  const ProfileJson* found = member_of(block, key);
  return found != nullptr && found->is_string() ? found->get<std::string>() : "";
}

Measured rate_of(const ProfileJson& point) {
  Measured m{figure_of(point, "items_per_second"), {}, {}};
  if (const ProfileJson* range = member_of(point, "items_per_second_range")) {
    m.least = figure_of(*range, "min");
    m.most = figure_of(*range, "max");
    m.rounds = figure_of(*range, "count").value_or(1);
  }
  return m;
}

// The element of a list with `key` equal to `value`.
const ProfileJson* find_by(const ProfileJson& block, const char* list, const char* key, const ProfileJson& value) {
  const ProfileJson* all = member_of(block, list);
  if (all == nullptr || !all->is_array()) return nullptr;
  for (const ProfileJson& one : *all)
    if (const ProfileJson* found = member_of(one, key); found != nullptr && *found == value) return &one;
  return nullptr;
}

// With fewer rounds, separation by chance is too likely: for five of each it is 1 in 126.
constexpr double kFewestRounds = 5;

// Rates are reported as different only if the ranges of their rounds do not overlap.
std::string verdict_of(const Measured& before, const Measured& after) {
  if (!before.least || !before.most || !after.least || !after.most) return "";
  if (std::min(before.rounds, after.rounds) < kFewestRounds) return "  too few rounds";
  if (*after.least > *before.most) return "  faster";
  if (*after.most < *before.least) return "  slower";
  return "  within the range of the rounds";
}

constexpr double kSmallestCompared = 0.15;

class ChangeTable {
 public:
  void add(const std::string& model, const std::string& what, const Measured& before, const Measured& after) {
    if (!before.value || !after.value) return;
    // A percentage of a value that is displayed as 0.0 or 0.1 only shows its rounding.
    const bool tiny = std::min(*before.value, *after.value) < kSmallestCompared;
    rows_.push_back(
        {model, what, fmt::format("{:.1f}", *before.value), fmt::format("{:.1f}", *after.value),
         tiny ? "–" : fmt::format("{:+.1f} %", 100 * (*after.value / *before.value - 1)) + verdict_of(before, after)});
  }
  std::string text() const {
    std::vector<size_t> width(5);
    for (const auto& row : rows_)
      for (size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], row[c].size());
    std::string out;
    for (const auto& row : rows_)
      out += fmt::format("  {:<{}}  {:<{}}  {:>{}}  {:>{}}  {}\n", row[0], width[0], row[1], width[1], row[2], width[2],
                         row[3], width[3], row[4]);
    return out;
  }

 private:
  std::vector<std::vector<std::string>> rows_ = {{"model", "what", "before", "after", "change"}};
};

}  // namespace

std::string read_profile(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::error_code ignored;
  if (!in.is_open() || std::filesystem::is_directory(file, ignored))
    fail(ErrorCode::bad_data, "{}: cannot be read: {}", file.string(), std::strerror(in.is_open() ? EISDIR : errno));
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const ProfileJson profile = ProfileJson::parse(text, nullptr, false);
  const ProfileJson* results = member_of(profile, "results");
  if (results == nullptr || !results->is_array())
    fail(ErrorCode::bad_data, "{}: not a profile (expected a gpu_profile_….json from `brim profile`)", file.string());
  return text;
}

std::string profile_change(const std::string& before_text, const std::string& after_text, const std::string& name) {
  const ProfileJson before = ProfileJson::parse(before_text), after = ProfileJson::parse(after_text);
  std::string out = fmt::format("\nbefore and after: {} from {}\n", name, word_of(before, "generated_at"));
  ChangeTable table;
  std::vector<std::string> notes;
  const ProfileJson nothing;
  const auto machine = [&](const ProfileJson& profile) {
    const ProfileJson* facts = member_of(profile, "machine");
    return facts == nullptr ? nothing : *facts;
  };
  if (const std::string was = word_of(machine(before), "cpu"), is = word_of(machine(after), "cpu"); was != is)
    notes.push_back(fmt::format("different machine: {} before, {} now", was, is));
  for (const ProfileJson& now : after.at("results")) {
    const std::string model = word_of(now, "model_name");
    const ProfileJson* was = find_by(before, "results", "model_name", model);
    if (was == nullptr) {
      notes.push_back(fmt::format("{} was not measured before", model));
      continue;
    }
    for (const char* fact : {"device", "precision", "model_dir"})
      if (word_of(*was, fact) != word_of(now, fact))
        notes.push_back(fmt::format("{}: {} was {}, now {}", model, fact, word_of(*was, fact), word_of(now, fact)));
    const auto plain = [&](const char* what, const char* key) {
      table.add(model, what, {figure_of(*was, key), {}, {}}, {figure_of(now, key), {}, {}});
    };
    plain("load, ms", "load_time_ms");
    plain("one text, ms", "inference_time_ms");
    plain("GPU memory, MiB", "vram_used_mb");
    for (const auto& [list, key, unit] :
         {std::tuple("batch_results", "batch_size", "a call"), std::tuple("size_results", "rows", "rows")}) {
      const ProfileJson* points = member_of(now, list);
      if (points == nullptr || !points->is_array()) continue;
      for (const ProfileJson& point : *points) {
        const ProfileJson* size = member_of(point, key);
        const ProfileJson* then = size != nullptr ? find_by(*was, list, key, *size) : nullptr;
        if (then != nullptr)
          table.add(model, fmt::format("texts/s, {} {}", size->dump(), unit), rate_of(*then), rate_of(point));
      }
    }
  }
  out += table.text();
  for (const std::string& note : notes) out += fmt::format("note: {}\n", note);
  return out;
}

}  // namespace brim::report
