// SPDX-License-Identifier: Apache-2.0
#include "text/spm/prefix_trie.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/error.h"

namespace brim::text {

// Places nodes depth first. All children of a node are in one block of 256 units: the first open block they fit in,
// else a new one.
class PrefixTrieBuilder {
 public:
  PrefixTrieBuilder(std::span<const std::string_view> keys, std::vector<uint64_t>& units) : keys_(keys), units_(units) {
    // Most keys differ in their first eight bytes, so these are compared as an integer.
    struct Sorted {
      uint64_t head;
      int32_t id;
    };
    std::vector<Sorted> sorted;
    sorted.reserve(keys.size());
    for (size_t id = 0; id < keys.size(); ++id) {
      if (keys[id].empty()) continue;
      uint64_t head = 0;
      for (size_t i = 0; i < 8; ++i)
        head = head << 8 | (i < keys[id].size() ? static_cast<unsigned char>(keys[id][i]) : 0);
      sorted.push_back({head, static_cast<int32_t>(id)});
    }
    std::sort(sorted.begin(), sorted.end(), [&](const Sorted& a, const Sorted& b) {
      if (a.head != b.head) return a.head < b.head;
      const int c = keys[a.id].compare(keys[b.id]);
      return c != 0 ? c < 0 : a.id < b.id;
    });
    order_.reserve(sorted.size());
    for (const Sorted& key : sorted) order_.push_back(key.id);
    units_.clear();
  }

  // Returns the root's base. Uses an explicit stack because keys in a malicious file may be arbitrarily long.
  uint64_t build() {
    uint64_t root = 0;
    std::vector<Work> stack;
    stack.push_back({0, order_.size(), 0, kRoot});
    while (!stack.empty()) {
      const Work work = stack.back();
      stack.pop_back();
      children_.clear();
      // Keys are sorted, so those with the same next byte are adjacent.
      for (size_t i = work.begin; i < work.end;) {
        const auto label = static_cast<unsigned char>(keys_[order_[i]][work.depth]);
        size_t end = i;
        while (end < work.end && static_cast<unsigned char>(keys_[order_[end]][work.depth]) == label) ++end;
        children_.push_back({i, end, label});
        i = end;
      }
      const size_t base = place();
      if (work.unit == kRoot) {
        root = base;
      } else {
        units_[work.unit] |= static_cast<uint64_t>(base) << PrefixTrie::kBaseShift;
      }
      for (const Child& child : children_) {
        const size_t unit = base ^ child.label;
        units_[unit] = PrefixTrie::kUsed | child.label;
        size_t first = child.begin;
        while (first < child.end && keys_[order_[first]].size() == work.depth + 1) ++first;
        if (first > child.begin) {
          units_[unit] |= static_cast<uint64_t>(order_[first - 1] + 1) << PrefixTrie::kIdShift;
        }
        if (first < child.end) stack.push_back({first, child.end, work.depth + 1, unit});
      }
    }
    return root;
  }

 private:
  static constexpr size_t kRoot = SIZE_MAX, kBlock = 256, kOpenBlocks = 16;
  static constexpr int kMostFailures = 8;  // then a block is considered full
  struct Work {
    size_t begin, end, depth, unit;
  };
  struct Child {
    size_t begin, end;
    unsigned char label;
  };

  struct Block {
    std::array<uint64_t, 4> free = {~0ull, ~0ull, ~0ull, ~0ull};  // bit per unit
    std::array<uint64_t, 4> base = {};  // bit per base in use: two nodes must not share a base
    int failures = 0;
  };
  static bool bit(const std::array<uint64_t, 4>& bits, size_t i) { return bits[i >> 6] >> (i & 63) & 1; }

  // Reserves a base with free units for all children_. Block 0 stays empty for nodes without children.
  size_t place() {
    if (units_.empty()) add_block();
    if (children_.empty()) return 0;
    for (size_t i = 0; i < open_.size(); ++i) {
      Block& block = blocks_[open_[i]];
      const int base = fit(block);
      if (base >= 0) return take(open_[i], base);
      if (++block.failures >= kMostFailures) open_.erase(open_.begin() + i--);
    }
    add_block();
    if (open_.size() == kOpenBlocks) open_.erase(open_.begin());
    open_.push_back(blocks_.size() - 1);
    return take(open_.back(), 0);
  }

  // The first base that fits in `block`, or -1.
  int fit(const Block& block) const {
    for (size_t word = 0; word < 4; ++word) {
      for (uint64_t left = block.free[word]; left != 0; left &= left - 1) {
        const size_t base = (word * 64 + std::countr_zero(left)) ^ children_[0].label;
        if (bit(block.base, base)) continue;
        bool fits = true;
        for (size_t i = 1; fits && i < children_.size(); ++i) fits = bit(block.free, base ^ children_[i].label);
        if (fits) return static_cast<int>(base);
      }
    }
    return -1;
  }

  size_t take(size_t index, size_t base) {
    Block& block = blocks_[index];
    block.base[base >> 6] |= 1ull << (base & 63);
    for (const Child& child : children_) {
      const size_t i = base ^ child.label;
      block.free[i >> 6] &= ~(1ull << (i & 63));
    }
    return index * kBlock + base;
  }

  void add_block() {
    if (units_.size() + kBlock > static_cast<size_t>(PrefixTrie::kMostUnits)) {
      fail(ErrorCode::bad_model, "vocabulary: the pieces require more than {} trie nodes", PrefixTrie::kMostUnits);
    }
    units_.resize(units_.size() + kBlock, 0);
    blocks_.emplace_back();
  }

  std::span<const std::string_view> keys_;
  std::vector<uint64_t>& units_;
  std::vector<int32_t> order_;
  std::vector<Child> children_;
  std::vector<Block> blocks_;
  std::vector<size_t> open_;
};

PrefixTrie::PrefixTrie(std::span<const std::string_view> keys) {
  BRIM_CHECK(keys.size() <= static_cast<size_t>(kMostIds), "{} keys, at most {}", keys.size(), kMostIds);
  PrefixTrieBuilder builder(keys, units_);
  root_ = builder.build();
}

int32_t PrefixTrie::find(std::string_view key) const {
  int32_t id = -1;
  walk(key, [&](int32_t found, size_t length) {
    if (length == key.size()) id = found;
  });
  return id;
}

}  // namespace brim::text
