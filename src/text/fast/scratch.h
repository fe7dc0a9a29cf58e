// SPDX-License-Identifier: Apache-2.0
// Per-thread state of one tokenizer that is reused between texts: buffers that only grow, and the word cache.
// Not thread-safe; ScratchPool hands out one per thread.
#pragma once
#include <array>
#include <atomic>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "text/fast/subword_cache.h"
#include "text/fast/word_cache.h"
#include "text/pipeline.h"

namespace brim::text {

// Normalized form of one code point (see fast_bert.cc).
struct CharForm {
  enum Kind : uint8_t { word, space, apart, general } kind = general;
  char32_t c = 0xFFFFFFFF;
  uint8_t size = 0;
  char bytes[15] = {};
};

struct Scratch {
  static constexpr size_t kPadding = 32;  // readable bytes after the text, all zero

  WordCache cache;
  std::unique_ptr<SubwordCache> subwords;  // created by the fast path that uses it
  std::array<CharForm, 512> forms;
  std::vector<char> input;  // the text as valid UTF-8, padded
  std::string word;         // a word assembled from parts
  NormalizedText normalized;
  PreTokenized pieces;

  // Copies `text` and replaces invalid bytes; the result stays valid until the next call.
  std::string_view set_input(std::string_view text) {
    constexpr size_t kKept = size_t{1} << 20;  // larger buffers are released
    std::string replaced;
    if (!is_valid_utf8(text)) text = replaced = replace_invalid_utf8(text);
    if (input.size() > kKept && text.size() < kKept / 2) std::vector<char>().swap(input);
    if (input.size() < text.size() + kPadding) input.resize(text.size() + text.size() / 2 + 256 + kPadding);
    if (!text.empty()) std::memcpy(input.data(), text.data(), text.size());
    std::memset(input.data() + text.size(), 0, kPadding);
    return {input.data(), text.size()};
  }
};

// Scratch objects of one tokenizer. A thread takes the one it used last (one atomic exchange, indexed by thread number)
// and returns it after each text, so there are never more of them than active threads, and they are freed with the
// tokenizer.
class ScratchPool {
 public:
  class Lease {
   public:
    explicit Lease(ScratchPool& pool) : pool_(pool), scratch_(pool.take()) {}
    ~Lease() { pool_.put(scratch_); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Scratch& operator*() const { return *scratch_; }

   private:
    ScratchPool& pool_;
    Scratch* scratch_;
  };

  ScratchPool() = default;
  ~ScratchPool() {
    for (Slot& slot : slots_) delete slot.scratch.load();
  }
  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;

 private:
  struct alignas(64) Slot {
    std::atomic<Scratch*> scratch{nullptr};
  };
  static size_t thread_number() {
    static std::atomic<size_t> next{0};
    thread_local const size_t number = next.fetch_add(1);
    return number;
  }
  Scratch* take() {
    const size_t first = thread_number();
    for (size_t i = 0; i < slots_.size(); ++i) {
      Slot& slot = slots_[(first + i) % slots_.size()];
      if (slot.scratch.load(std::memory_order_relaxed) == nullptr) continue;
      if (Scratch* found = slot.scratch.exchange(nullptr)) return found;
    }
    return new Scratch;
  }
  void put(Scratch* scratch) {
    const size_t first = thread_number();
    for (size_t i = 0; i < slots_.size(); ++i) {
      Scratch* none = nullptr;
      if (slots_[(first + i) % slots_.size()].scratch.compare_exchange_strong(none, scratch)) return;
    }
    delete scratch;
  }
  std::array<Slot, 64> slots_;
};

}  // namespace brim::text
