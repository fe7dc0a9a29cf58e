// SPDX-License-Identifier: Apache-2.0
#include "rows/jsonl.h"

#include <gtest/gtest.h>

#include "base/fuzz_driver.h"
#include "io/scan.h"

#define LLVMFuzzerTestOneInput fuzz_jsonl
#include "rows/jsonl_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::rows {
namespace {

std::string problem_of(const std::string& line) {
  std::vector<JsonMember> members;
  const JsonProblem problem = scan_json_object(line, members);
  return problem.what == nullptr ? "" : std::to_string(problem.at) + " " + problem.what;
}

TEST(Jsonl, Members) {
  std::vector<JsonMember> members;
  const std::string line =
      " { \"a\" : \"x\\ty\", \"b\":[1,{\"c\":\"]\"}], \"d\":-1.5e+3 ,\"e\":null,\"f\":true, \"\\u0067\":{} } ";
  ASSERT_EQ(scan_json_object(line, members).what, nullptr);
  ASSERT_EQ(members.size(), 6u);
  EXPECT_EQ(members[0].value, "x\\ty");
  EXPECT_TRUE(members[0].value_escaped);
  EXPECT_EQ(members[1].value, "[1,{\"c\":\"]\"}]");
  EXPECT_EQ(members[1].kind, JsonKind::array);
  EXPECT_EQ(members[2].value, "-1.5e+3");
  EXPECT_EQ(members[3].kind, JsonKind::null);
  EXPECT_EQ(members[4].kind, JsonKind::boolean);
  EXPECT_TRUE(json_key_is(members[5], "g"));
  EXPECT_EQ(scan_json_object("{}", members).what, nullptr);
  EXPECT_TRUE(members.empty());
}

TEST(Jsonl, Problems) {
  EXPECT_EQ(problem_of(""), "0 empty line");
  EXPECT_EQ(problem_of("{"), "1 expected a key in double quotes");
  EXPECT_EQ(problem_of("{\"a\":1"), "6 unterminated object");
  EXPECT_EQ(problem_of("{\"a\":1,}"), "7 expected a key in double quotes");
  EXPECT_EQ(problem_of("{\"a\" 1}"), "5 expected ':'");
  EXPECT_EQ(problem_of("{\"a\":01}"), "6 expected ',' or '}'");
  EXPECT_EQ(problem_of("{\"a\":NaN}"), "5 expected a value");
  EXPECT_EQ(problem_of("{\"a\":1.}"), "7 expected a digit");
  EXPECT_EQ(problem_of("{\"a\":-}"), "5 expected a value");
  EXPECT_EQ(problem_of("{\"a\":\"\\x\"}"), "6 unknown escape");
  EXPECT_EQ(problem_of("{\"a\":\"\\u12g4\"}"), "6 \\u needs four hexadecimal digits");
  EXPECT_EQ(problem_of("{\"a\":\"x"), "7 unterminated string");
  EXPECT_EQ(problem_of("{\"a\":[1,2}"), "9 expected ',' or ']'");
  EXPECT_EQ(problem_of("{\"a\":{\"b\":}}"), "10 expected a value");
  EXPECT_EQ(problem_of("{} x"), "3 unexpected bytes after the object");
  EXPECT_EQ(problem_of("{\"a\":tru}"), "5 expected a value");
}

TEST(Jsonl, DeepNestingIsBounded) {
  auto nested = [](size_t depth) { return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}"; };
  EXPECT_EQ(problem_of(nested(1000)), "");
  EXPECT_EQ(problem_of(nested(1001)), "1005 nesting depth exceeds 1000");
  EXPECT_EQ(problem_of("{\"a\":" + std::string(1'000'000, '[')), "1005 nesting depth exceeds 1000");
}

TEST(Jsonl, Unescape) {
  EXPECT_EQ(json_unescape("a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20ac\\ud83d\\ude00"),
            "a\"\\/\b\f\n\r\tA\u00e9\u20ac\U0001F600");
  EXPECT_EQ(json_unescape("\\ud83dx\\ude00\\ud83d\\u0041\\ud83d"), "\uFFFDx\uFFFD\uFFFDA\uFFFD");
  EXPECT_EQ(json_unescape("\\u0000"), std::string(1, '\0'));
}

TEST(Jsonl, WritesStrings) {
  std::string out;
  append_json_string(out, std::string("a\"\\\n\x1f\0\x7f\xC3\xA9\xC3", 10));
  EXPECT_EQ(out, "\"a\\\"\\\\\\n\\u001f\\u0000\x7f\u00e9\uFFFD\"");
}

// Compares the eight-bytes-at-a-time searches with a plain loop, for every start and every position of the match.
TEST(Scan, MatchesTheReferenceLoop) {
  for (size_t length = 0; length < 40; ++length)
    for (size_t hit = 0; hit <= length; ++hit)
      for (int byte : {0x22, 0x5C, 0, 0x1F, 0x2C, 0x0A, 0x0D, 0x21, 0x7F, 0x80, 0xFF, 0xA0, 0x5B, 0x23}) {
        std::string text(length, static_cast<char>('a' + hit % 20));
        if (hit < length) text[hit] = static_cast<char>(byte);
        if (hit + 1 < length) text[hit + 1] = '"';
        const char* end = text.data() + length;
        const char* either = text.data();
        while (either < end && *either != ',' && *either != '\n') ++either;
        EXPECT_EQ(io::scan::find_either(text.data(), end, ',', '\n'), either);
        const char* field = text.data();
        while (field < end && *field != ',' && *field != '"' && *field != '\n' && *field != '\r') ++field;
        EXPECT_EQ(io::scan::find_csv_special(text.data(), end, ','), field);
        const char* special = text.data();
        while (special < end && *special != '"' && *special != '\\' && static_cast<unsigned char>(*special) >= 0x20)
          ++special;
        EXPECT_EQ(io::scan::find_json_special(text.data(), end), special) << length << " " << hit << " " << byte;
      }
}

TEST(Jsonl, Fuzz) {
  drive_fuzz(fuzz_jsonl,
             {"{\"text\":\"hello\",\"n\":[1,2.5e3,{\"a\":null}],\"ok\":true}", "{\"a\":\"\\ud83d\\ude00\\n\\u0041\"}",
              "{}", "{\"a\":{\"b\":[[],{}]},\"c\":-0.0}", "[1]", "{\"\\u0061\":1,\"a\":2}", "{\"t\":\"\xC3\xA9\"} "},
             50000);
}

}  // namespace
}  // namespace brim::rows
