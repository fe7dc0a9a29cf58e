// SPDX-License-Identifier: Apache-2.0
#include "rows/first_seen.h"

#include <gtest/gtest.h>

namespace brim::rows {
namespace {

// Counts comparisons: a linear search for every key would need 800 million.
struct CountedEqual {
  static inline int64_t calls = 0;
  bool operator()(const std::string& a, const std::string& b) const {
    ++calls;
    return a == b;
  }
};

TEST(FirstSeen, LooksUpNamesInConstantTime) {
  constexpr int64_t kNames = 40'000;
  FirstSeen<CountedEqual> seen;
  CountedEqual::calls = 0;
  for (int64_t i = 0; i < kNames; ++i) {
    seen.add("text");
    seen.add("a key with a long name in front of its number " + std::to_string(i));
  }
  EXPECT_GE(CountedEqual::calls, kNames - 1);  // repeated "text" keys
  EXPECT_LE(CountedEqual::calls, 4 * kNames);
  const std::vector<std::string> names = seen.take();
  ASSERT_EQ(names.size(), size_t{kNames} + 1);
  EXPECT_EQ(names[0], "text");
  EXPECT_EQ(names.back(), "a key with a long name in front of its number 39999");
}

}  // namespace
}  // namespace brim::rows
