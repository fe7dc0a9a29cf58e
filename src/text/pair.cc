// SPDX-License-Identifier: Apache-2.0
// Encodes two texts as one sequence: encodes each separately, truncates, and joins them with the post-processor's
// template.
#include <algorithm>

#include "base/error.h"
#include "text/tokenizer.h"

namespace brim::text {

int32_t PairTemplate::largest_type() const {
  int32_t largest = std::max(first_type, second_type);
  for (const auto* tokens : {&before, &between, &after}) {
    for (const int32_t token : *tokens) largest = std::max(largest, type_of(token));
  }
  return largest;
}

PairLengths fit_pair(int64_t first, int64_t second, int64_t room) {
  if (first + second <= room) return {first, second};
  int64_t shorter = std::min(first, second), longer = std::max(shorter, room - shorter);
  if (shorter + longer > room) {
    shorter = room / 2;
    longer = room - shorter;
  }
  return first <= second ? PairLengths{shorter, longer} : PairLengths{longer, shorter};
}

void Tokenizer::content_ids(std::string_view text, std::vector<int32_t>& out) const {
  out.clear();
  encode_ids(text, out);
  out.resize(out.size() - suffix_.size());
  out.erase(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(prefix_.size()));
}

void Tokenizer::join_pair(std::span<const int32_t> first, std::span<const int32_t> second,
                          std::vector<int32_t>& out) const {
  const auto add = [&](std::span<const int32_t> ids, int32_t type) {
    for (const int32_t id : ids) out.push_back(typed(id, type));
  };
  out.insert(out.end(), pair_->before.begin(), pair_->before.end());
  add(first, pair_->first_type);
  out.insert(out.end(), pair_->between.begin(), pair_->between.end());
  add(second, pair_->second_type);
  out.insert(out.end(), pair_->after.begin(), pair_->after.end());
}

int64_t Tokenizer::encode_pair(std::string_view first, std::string_view second, int64_t longest, bool keep_end,
                               std::vector<int32_t>& out) const {
  std::vector<int32_t> a, b;
  content_ids(first, a);
  content_ids(second, b);
  const auto special = static_cast<int64_t>(pair_->special());
  BRIM_CHECK(longest > special, "pairs of at most {} tokens, {} of them special", longest, special);
  const auto [first_kept, second_kept] =
      fit_pair(static_cast<int64_t>(a.size()), static_cast<int64_t>(b.size()), longest - special);
  const auto cut = [&](const std::vector<int32_t>& ids, int64_t kept) {
    const std::span<const int32_t> all(ids);
    return keep_end ? all.last(static_cast<size_t>(kept)) : all.first(static_cast<size_t>(kept));
  };
  join_pair(cut(a, first_kept), cut(b, second_kept), out);
  return special + static_cast<int64_t>(a.size() + b.size());
}

std::optional<Error> why_no_pairs(const Tokenizer& tokenizer, const std::filesystem::path& dir, int64_t types,
                                  int64_t max_length) {
  const auto& pair = tokenizer.pair();
  if (!pair)
    return Error(ErrorCode::bad_model,
                 fmt::format("{}: pairs are not supported: the tokenizer adds no separator between two texts "
                             "(\"post_processor\" has 0 tokens there, at least 1 is required)",
                             dir.string()));
  if (types > 0 && pair->largest_type() >= types)
    return Error(
        ErrorCode::bad_model,
        fmt::format(
            "{}: the tokenizer uses token type {} for pairs, but the model has only {} (config.json type_vocab_size)",
            dir.string(), pair->largest_type(), types));
  if (static_cast<int64_t>(pair->special()) >= max_length)
    return Error(ErrorCode::usage, fmt::format("`max_length={}`: must be greater than the {} special tokens of a pair",
                                               max_length, pair->special()));
  return std::nullopt;
}

}  // namespace brim::text
