// SPDX-License-Identifier: Apache-2.0
#include "engine/repeated_rows.h"

#include <algorithm>

namespace brim::engine {
namespace {

constexpr int64_t kGrowthBytes = 1 << 20;
// Entry, hash node and bucket, with the allocator's overhead.
constexpr int64_t kRepeatEntryBytes = 160;
constexpr int64_t kLargestShare = 16;  // a text that needs more than this part of the table is not kept

template <class T>
auto nth(std::deque<T>& values, size_t index) {
  return values.begin() + static_cast<std::ptrdiff_t>(index);
}

}  // namespace

RepeatFinder::RepeatFinder(int64_t most_bytes, int64_t result_bytes, memory::Ledger* ledger)
    : most_bytes_(most_bytes), entry_bytes_(kRepeatEntryBytes + result_bytes), ledger_(ledger) {}

std::vector<RowSlot> RepeatFinder::find(const rows::RowChunk& rows) {
  std::vector<RowSlot> slots(rows.size());
  size_t error = 0;  // index into the errors, by row
  for (size_t row = 0; row < rows.size(); ++row) {
    if (error < rows.errors.size() && rows.errors[error].row == row) {
      ++error;
      continue;
    }
    std::string_view text = rows.texts[row];
    if (const auto pair = rows.pair(row)) {
      both_ = std::to_string(text.size()) + ' ';  // so that ("a", "bc") differs from ("ab", "c")
      both_.append(text).append(*pair);
      text = both_;
    }
    slots[row] = find(text);
  }
  return slots;
}

RowSlot RepeatFinder::find(std::string_view text) {
  if (const auto found = slots_.find(text); found != slots_.end()) {
    entries_[found->second].seen_again = true;
    return {found->second, true};
  }
  const auto size = static_cast<int64_t>(text.size());
  if (size + entry_bytes_ > most_bytes_ / kLargestShare) return {};
  while (used_ + size + (free_.empty() ? entry_bytes_ : 0) > reserved_)
    if (!grow() && !replace_one()) return {};
  used_ += size;
  if (free_.empty()) {
    used_ += entry_bytes_;  // slots are reused, but never freed
    free_.push_back(static_cast<uint32_t>(entries_.size()));
    entries_.emplace_back();
  }
  const uint32_t slot = free_.back();
  free_.pop_back();
  entries_[slot] = {std::string(text), true};
  slots_.emplace(entries_[slot].text, slot);
  return {slot};
}

bool RepeatFinder::grow() {
  const int64_t bytes = std::min(most_bytes_, reserved_ + kGrowthBytes);
  if (bytes <= reserved_) return false;
  try {
    if (ledger_ != nullptr && !reservation_)
      reservation_ = ledger_->reserve(memory::Tag::context, "repeated texts", bytes);
    else if (ledger_ != nullptr)
      reservation_.resize(bytes);
  } catch (const Error&) {  // nothing left under the limit
    most_bytes_ = reserved_;
    return false;
  }
  reserved_ = bytes;
  return true;
}

bool RepeatFinder::replace_one() {
  if (slots_.empty()) return false;
  for (;; ++hand_) {
    if (hand_ >= entries_.size()) hand_ = 0;
    Entry& entry = entries_[hand_];
    if (entry.kept && !std::exchange(entry.seen_again, false)) break;
  }
  const size_t slot = hand_++;  // the next text gets this slot, so continue behind it
  Entry& entry = entries_[slot];
  used_ -= static_cast<int64_t>(entry.text.size());
  slots_.erase(entry.text);
  entry = {};
  free_.push_back(static_cast<uint32_t>(slot));
  return true;
}

RepeatedResults::RepeatedResults(std::vector<size_t> widths) {
  for (const size_t width : widths) models_.emplace_back().width = width;
}

int64_t RepeatedResults::bytes_per_text(const std::vector<size_t>& widths) {
  size_t bytes = 0;
  for (const size_t width : widths) bytes += width * sizeof(float) + sizeof(Kept);
  return static_cast<int64_t>(bytes);
}

void RepeatedResults::apply(ScoredChunk& chunk, const std::vector<RowSlot>& slots) {
  std::vector<rows::RowError> errors;
  for (size_t row = 0; row < chunk.rows.size(); ++row) {
    const auto [slot, repeats] = slots[row];
    if (slot == RowSlot::kNone) continue;
    if (!repeats) {
      errors_.erase(slot);
      if (const Error* error = chunk.error(row)) errors_.emplace(slot, *error);
      for (size_t m = 0; m < models_.size(); ++m) models_[m].keep(chunk.of(m), row, slot);
      continue;
    }
    ++rows_;
    if (const auto error = errors_.find(slot); error != errors_.end()) errors.push_back({row, error->second});
    for (size_t m = 0; m < models_.size(); ++m) models_[m].copy(slot, chunk.of(m), row);
  }
  if (errors.empty()) return;
  chunk.errors.insert(chunk.errors.end(), errors.begin(), errors.end());
  std::sort(chunk.errors.begin(), chunk.errors.end(),
            [](const rows::RowError& a, const rows::RowError& b) { return a.row < b.row; });
}

void RepeatedResults::ModelResults::keep(const ChunkScores& from, size_t row, size_t slot) {
  if (kept.size() <= slot) {
    kept.resize(slot + 1);
    scores.resize(kept.size() * width);
  }
  std::copy_n(from.scores.begin() + static_cast<std::ptrdiff_t>(row * width), width, nth(scores, slot * width));
  Kept& to = kept[slot];
  to.choice = from.choices.empty() ? Choice() : from.choices[row];
  to.truncated = from.truncated.empty() ? 0 : from.truncated[row];
}

void RepeatedResults::ModelResults::copy(size_t slot, ChunkScores& to, size_t row) {
  const Kept& from = kept[slot];
  std::copy_n(nth(scores, slot * width), width, to.scores.begin() + static_cast<std::ptrdiff_t>(row * width));
  if (!to.choices.empty()) to.choices[row] = from.choice;
  if (!to.truncated.empty()) to.truncated[row] = from.truncated;
  truncated += from.truncated;
}

}  // namespace brim::engine
