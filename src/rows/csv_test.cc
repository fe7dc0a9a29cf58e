// SPDX-License-Identifier: Apache-2.0
#include "rows/csv.h"

#include <gtest/gtest.h>

#include "base/fuzz_driver.h"

#define LLVMFuzzerTestOneInput fuzz_csv
#include "rows/csv_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::rows {
namespace {

using Rows = std::vector<std::vector<std::string>>;

// All records of a buffer; an error becomes a row with one field, "!status:column".
Rows parse_all(const std::string& text, CsvDialect dialect = {}) {
  Rows rows;
  CsvRecord record;
  std::string scratch;
  for (size_t at = 0; at < text.size(); at = record.next) {
    parse_csv_record(text, at, true, dialect, record);
    if (record.status == CsvStatus::blank) continue;
    std::vector<std::string>& row = rows.emplace_back();
    if (record.status != CsvStatus::record) {
      row = {(record.status == CsvStatus::bad_quote ? "!bad:" : "!open:") + std::to_string(record.error_field)};
      continue;
    }
    for (const CsvField& field : record.fields) row.emplace_back(csv_value(field, scratch));
  }
  return rows;
}

TEST(Csv, DetectsForeignFilesAtAnyReadSize) {
  using namespace std::string_literals;
  for (const std::string& bytes : {"SQLite format 3\0rest,of\na,b\n"s, "%PDF-1.7\nx\n"s, "PK\x03\x04x\n"s}) {
    const auto whole = csv_fuzz::read_rows(bytes, SIZE_MAX, 1 << 16, true);
    ASSERT_EQ(whole.size(), 1u);
    EXPECT_TRUE(whole[0].bad);
    for (const size_t piece : {1, 3, 7}) EXPECT_EQ(whole, csv_fuzz::read_rows(bytes, piece, 8, true)) << piece;
  }
}

TEST(Csv, Rfc4180) {
  EXPECT_EQ(parse_all("aaa,bbb,ccc\r\nzzz,yyy,xxx\r\n"), (Rows{{"aaa", "bbb", "ccc"}, {"zzz", "yyy", "xxx"}}));
  EXPECT_EQ(parse_all("aaa,bbb\nlast,line"), (Rows{{"aaa", "bbb"}, {"last", "line"}}));
  EXPECT_EQ(parse_all("\"aaa\",\"b\r\nbb\",\"ccc\"\r\nz,y,x"), (Rows{{"aaa", "b\r\nbb", "ccc"}, {"z", "y", "x"}}));
  EXPECT_EQ(parse_all("\"aaa\",\"b\"\"bb\",\"ccc\""), (Rows{{"aaa", "b\"bb", "ccc"}}));
  EXPECT_EQ(parse_all("\"a,b\",c"), (Rows{{"a,b", "c"}}));
  EXPECT_EQ(parse_all(" a , b "), (Rows{{" a ", " b "}}));  // spaces belong to the field
}

TEST(Csv, EmptyFieldsAndLines) {
  EXPECT_EQ(parse_all(",\n,,\n"), (Rows{{"", ""}, {"", "", ""}}));
  EXPECT_EQ(parse_all("a\n\n\r\nb\n"), (Rows{{"a"}, {"b"}}));
  EXPECT_EQ(parse_all("\"\"\n"), (Rows{{""}}));
  EXPECT_EQ(parse_all("a,\"\"\na,"), (Rows{{"a", ""}, {"a", ""}}));
  EXPECT_EQ(parse_all("\"\"\"\"\n"), (Rows{{"\""}}));
  EXPECT_EQ(parse_all(""), Rows{});
}

TEST(Csv, LineEnds) {
  EXPECT_EQ(parse_all("a\rb,c\n"), (Rows{{"a\rb", "c"}}));  // a lone CR is data
  EXPECT_EQ(parse_all("a,b\r"), (Rows{{"a", "b"}}));        // half a line end at the end of input
  EXPECT_EQ(parse_all("a,\"b\"\r"), (Rows{{"a", "b"}}));
  EXPECT_EQ(parse_all("a\r,b\r\n"), (Rows{{"a\r", "b"}}));
  EXPECT_EQ(parse_all(std::string("a\0b,c\n", 6)), (Rows{{std::string("a\0b", 3), "c"}}));
}

TEST(Csv, QuotesInsideUnquotedFieldsAreLiteral) {
  EXPECT_EQ(parse_all("5\" disk,say \"hi\"\n"), (Rows{{"5\" disk", "say \"hi\""}}));
}

TEST(Csv, StrayQuoteAffectsOneLine) {
  EXPECT_EQ(parse_all("a,\"b\"c\nd,e\n"), (Rows{{"!bad:1"}, {"d", "e"}}));
  EXPECT_EQ(parse_all("a,\"b\nc,d\ne,f\n"), (Rows{{"!open:1"}, {"c", "d"}, {"e", "f"}}));
  EXPECT_EQ(parse_all("a,\"b\nc,\"d\"\ne,f\n"), (Rows{{"!bad:1"}, {"c", "d"}, {"e", "f"}}));
  EXPECT_EQ(parse_all("\""), (Rows{{"!open:0"}}));
  EXPECT_EQ(parse_all("\"a\" ,b\nc,d"), (Rows{{"!bad:0"}, {"c", "d"}}));
}

TEST(Csv, TabsAndNoQuotes) {
  EXPECT_EQ(parse_all("a\t\"b\tc\"\n", {'\t', true}), (Rows{{"a", "b\tc"}}));
  EXPECT_EQ(parse_all("a\t\"b\n\"\tc\n", {'\t', false}), (Rows{{"a", "\"b"}, {"\"", "c"}}));
}

TEST(Csv, IncompleteAtEveryCut) {
  const std::string text = "\"a\"\"b\",c,\"d\r\ne\"\r\nnext,row,x\n";
  const size_t end = text.find("next");
  CsvRecord record;
  for (size_t cut = 0; cut < end; ++cut) {
    parse_csv_record(std::string_view(text).substr(0, cut), 0, false, {}, record);
    EXPECT_EQ(record.status, CsvStatus::incomplete) << cut;
  }
  for (size_t cut = end; cut <= text.size(); ++cut) {
    parse_csv_record(std::string_view(text).substr(0, cut), 0, false, {}, record);
    EXPECT_EQ(record.status, CsvStatus::record) << cut;
    EXPECT_EQ(record.raw, "\"a\"\"b\",c,\"d\r\ne\"");
    EXPECT_EQ(record.next, end);
    EXPECT_EQ(record.lines, 2);
  }
}

TEST(Csv, RoundTrips) {
  const std::vector<std::string> values = {"plain", "",    "a,b", "say \"x\"", "two\nlines",
                                           "cr\r",  " s ", "\t",  "\"",        "é"};
  for (char delimiter : {',', '\t'}) {
    std::string line;
    for (const std::string& value : values) {
      if (!line.empty()) line += delimiter;
      append_csv_field(line, value, delimiter);
    }
    EXPECT_EQ(parse_all(line + "\n", {delimiter, true}), Rows{values});
  }
  std::string plain;
  append_csv_field(plain, "no need", ',');
  EXPECT_EQ(plain, "no need");
}

TEST(Csv, Fuzz) {
  drive_fuzz(
      fuzz_csv,
      {"0text,label\nhello,pos\n\"a, \"\"b\"\"\",neg\r\n", "1text\nx\n\ny\r\n", "7\xEF\xBB\xBFid,text\n1,\"a\nb\"\n2,c",
       "9a,text,b\n1,2\n1,2,3,4\n\"x\"y,2,3\n\"open,2,3\n4,5,6\n", "", "\"\"\"", "2\"text\"\n\"\"\n\"\n"},
      20000);
}

}  // namespace
}  // namespace brim::rows
