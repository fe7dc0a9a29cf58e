// SPDX-License-Identifier: Apache-2.0
// Fast path for RoBERTa and GPT-2: splits and merges raw bytes. The byte-level text is never materialized.
#include "text/fast/fast_path.h"
#include "text/hf/bpe.h"
#include "text/hf/byte_level.h"

namespace brim::text {
namespace {

class ByteBpeFastPath : public FastPath {
 public:
  ByteBpeFastPath(const BpeModel& model, bool add_prefix_space) : model_(model), add_prefix_space_(add_prefix_space) {}

  bool encode(std::string_view part, Scratch& s, std::vector<int32_t>& out) const override {
    if (add_prefix_space_ && part[0] != ' ') {
      s.word.assign(1, ' ');
      s.word.append(part);
      const size_t size = s.word.size();
      s.word.append(Scratch::kPadding, '\0');
      part = std::string_view(s.word).substr(0, size);
    }
    const auto miss = [this](std::string_view word, std::vector<int32_t>& ids) { model_.tokenize_bytes(word, ids); };
    WordBatch batch(s, out, part.size() / 2);
    for (size_t at = 0; at < part.size();) {
      const size_t end = word_end(part, at);
      if (end - at <= ShortKey::kLongest) [[likely]] {
        batch.add(ShortKey::from_padded(part.data() + at, end - at), miss);
      } else {
        batch.add_long(part.substr(at, end - at), miss);
      }
      at = end;
    }
    batch.flush(miss);
    batch.close();
    return true;
  }

 private:
  // gpt2_word_end, with a shortcut for up to 16 ASCII letters after an optional space.
  static size_t word_end(std::string_view part, size_t at) {
    const size_t start = at + (part[at] == ' ');
    uint64_t lower;
    size_t n = swar::run(swar::letters(load8(part.data() + start), lower));
    if (n == 8) n += swar::run(swar::letters(load8(part.data() + start + 8), lower));
    const size_t end = start + n;
    if (n == 0 || n == 16 || end > part.size()) return gpt2_word_end(part, at);
    if (end < part.size() && static_cast<unsigned char>(part[end]) >= 0x80) return gpt2_word_end(part, at);
    return end;
  }

  const BpeModel& model_;
  const bool add_prefix_space_;
};

}  // namespace

std::unique_ptr<FastPath> make_byte_bpe_fast_path(const BpeModel& model, bool add_prefix_space) {
  return std::make_unique<ByteBpeFastPath>(model, add_prefix_space);
}

}  // namespace brim::text
