// SPDX-License-Identifier: Apache-2.0
#include "rows/labels.h"

#include <gtest/gtest.h>

#include "base/test_files.h"

namespace brim::rows {
namespace {

TEST(Labels, SplitsNamesAndOmitsEmptyOnes) {
  EXPECT_EQ(split_names("a|b c||d|", '|'), (std::vector<std::string>{"a", "b c", "d"}));
  EXPECT_EQ(split_names("a|b", ','), (std::vector<std::string>{"a|b"}));
  EXPECT_TRUE(split_names("", '|').empty());
}

TEST(Labels, ParsesBinaryMarks) {
  for (const char* yes : {"1", "true", "True", "TRUE"}) EXPECT_TRUE(read_mark(yes, "f:2", "toxic"));
  for (const char* no : {"0", "false", "False", "FALSE"}) EXPECT_FALSE(read_mark(no, "f:2", "toxic"));
  for (const char* bad : {"", "2", "01", "yes", "tru", "truee", " 1", "0.5"})
    EXPECT_EQ(error_of(ErrorCode::bad_data, [&] { read_mark(bad, "f:2", "toxic"); }),
              "f:2: column toxic: expected 0, 1, true or false, found '" + std::string(bad) + "'");
}

TEST(Labels, FindsByNameCaseInsensitiveNameOrNumber) {
  const std::vector<std::string> labels = {"negative", "neutral", "positive"};
  EXPECT_EQ(find_label(labels, "neutral"), 1);
  EXPECT_EQ(find_label(labels, "POSITIVE"), 2);
  EXPECT_EQ(find_label(labels, "0"), 0);
  EXPECT_EQ(find_label(labels, "LABEL_2"), 2);
  EXPECT_FALSE(find_label(labels, "3").has_value());
  EXPECT_FALSE(find_label(labels, "angry").has_value());
}

}  // namespace
}  // namespace brim::rows
