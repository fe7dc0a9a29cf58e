// SPDX-License-Identifier: Apache-2.0
#include "batch/packed_batch.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/token.h"

namespace brim::batch {
namespace {

constexpr size_t kWindowSequences = 256;  // lookahead past a sequence that does not fit

// Writes the positions of one sequence and returns how many of its tokens are padding. Texts rarely contain the padding
// token, so the plain count is written first.
int64_t write_positions(const Sequence& s, int32_t offset, int32_t* out) {
  std::iota(out, out + s.length, offset);
  const int32_t padding = offset - 1;  // equals -1, which is no id, for families that count every token
  const int64_t found = std::count_if(s.ids, s.ids + s.length, [&](int32_t t) { return id_of(t) == padding; });
  if (found == 0) return 0;
  int32_t next = offset;
  for (int32_t i = 0; i < s.length; ++i) out[i] = id_of(s.ids[i]) == padding ? padding : next++;
  return found;
}

}  // namespace

void PackedBatch::clear() {
  ids.clear();
  positions.clear();
  starts.clear();
  order.clear();
  tickets.clear();
  words.clear();
  longest = n_long = padding_tokens = 0;
  sum_squares = 0;
}

void PackedBatch::add(const Sequence& s, int64_t position_offset) {
  starts.push_back(static_cast<int32_t>(ids.size()));
  ids.insert(ids.end(), s.ids, s.ids + s.length);
  positions.resize(ids.size());
  padding_tokens +=
      write_positions(s, static_cast<int32_t>(position_offset), positions.data() + positions.size() - s.length);
  tickets.push_back(s.ticket);
  words.push_back(s.words);
  longest = std::max<int64_t>(longest, s.length);
  n_long += s.length > ops::kShortTokens;
  sum_squares += static_cast<double>(s.length) * s.length;
}

void PackedBatch::finish() {
  starts.push_back(static_cast<int32_t>(ids.size()));
  order.resize(tickets.size());
  // Counting sort by length, longest first: lengths are small and batches large.
  std::vector<int32_t> at(static_cast<size_t>(longest) + 2, 0);
  auto length = [&](size_t b) { return static_cast<size_t>(starts[b + 1] - starts[b]); };
  for (size_t b = 0; b < order.size(); ++b) ++at[static_cast<size_t>(longest) - length(b) + 1];
  std::partial_sum(at.begin(), at.end(), at.begin());
  for (size_t b = 0; b < order.size(); ++b)
    order[static_cast<size_t>(at[static_cast<size_t>(longest) - length(b)]++)] = static_cast<int32_t>(b);
}

ops::BatchView PackedBatch::view() const {
  auto vec = [](const std::vector<int32_t>& v) {
    return tensor::TensorView(const_cast<int32_t*>(v.data()), tensor::DType::i32, {static_cast<int64_t>(v.size())});
  };
  ops::BatchView b;
  b.T = tokens();
  b.B = sequences();
  b.S = longest;
  b.n_long = n_long;
  b.ids = vec(ids);
  b.positions = vec(positions);
  b.starts = vec(starts);
  b.order = vec(order);
  return b;
}

void Packer::pop(PackedBatch& batch) {
  batch.clear();
  int64_t space = limits_.tokens;
  size_t skipped = 0, examined = 0;
  while (waiting_.size() > skipped && batch.sequences() < limits_.sequences && space > 0 &&
         examined < kWindowSequences) {
    const Sequence next = waiting_[skipped];
    BRIM_CHECK(next.length > 0 && next.length <= limits_.tokens, "sequence of {} tokens exceeds the budget of {}",
               next.length, limits_.tokens);
    if (next.length <= space) {
      batch.add(next, position_offset_);
      space -= next.length;
      waiting_tokens_ -= next.length;
      if (skipped == 0)
        waiting_.pop_front();
      else
        waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(skipped));
    } else {
      ++skipped;
    }
    if (skipped > 0) ++examined;
  }
  batch.finish();
}

}  // namespace brim::batch
