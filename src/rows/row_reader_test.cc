// SPDX-License-Identifier: Apache-2.0
#include "rows/row_reader.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "base/test_files.h"
#include "io/atomic_file.h"
#include "rows/file_checks.h"

namespace brim::rows {
namespace {

struct Row {
  std::string text, record, label, error;
  int64_t number, line;
  bool operator==(const Row&) const = default;
};

std::vector<Row> rows_of(RowReader& reader) {
  std::vector<Row> rows;
  RowChunk chunk;
  while (reader.next_chunk(chunk)) {
    EXPECT_GT(chunk.size(), 0u);
    for (size_t i = 0; i < chunk.size(); ++i)
      rows.push_back({std::string(chunk.texts[i]), std::string(chunk.records[i]),
                      chunk.labels.empty() ? "" : std::string(chunk.labels[i]),
                      chunk.error(i) == nullptr ? "" : chunk.error(i)->what(),
                      chunk.first_row + static_cast<int64_t>(i), chunk.lines[i]});
  }
  return rows;
}

RowReaderOptions with_format(RowFormat format, std::string text_column = "", std::string label_column = "") {
  RowReaderOptions options;
  options.format = format;
  options.text_column = std::move(text_column);
  if (!label_column.empty()) options.label_columns = {std::move(label_column)};
  return options;
}

std::vector<Row> read_all(const std::string& bytes, const RowReaderOptions& options, size_t piece = SIZE_MAX) {
  RowReader reader(io::memory_source("in", bytes, piece), options);
  return rows_of(reader);
}

std::vector<std::string> texts_of(const std::vector<Row>& rows) {
  std::vector<std::string> texts;
  for (const Row& row : rows) texts.push_back(row.error.empty() ? row.text : "!" + row.error);
  return texts;
}

using Texts = std::vector<std::string>;

TEST(RowReader, CountsBlankLinesAfterSeek) {
  const std::string bytes = "text\n\na\n\n\nb\nc\n\nd\n\n";  // five blank lines
  for (const size_t piece : {size_t{1}, size_t{5}, SIZE_MAX}) {
    const TempDir dir;
    put_file(dir / "in.csv", bytes);
    RowReader first(io::memory_source("in.csv", bytes, piece), with_format(RowFormat::csv));
    std::vector<RowPosition> positions;
    for (RowChunk chunk; first.next_chunk(chunk);)
      for (size_t i = 0; i < chunk.size(); ++i) positions.push_back(chunk.position_after(i));
    EXPECT_EQ(first.blank_lines(), 5);
    ASSERT_EQ(positions.size(), 4u);
    for (const RowPosition& position : positions) {
      RowReader rest({(dir / "in.csv").string()}, with_format(RowFormat::csv));
      rest.seek(position);
      for (RowChunk chunk; rest.next_chunk(chunk);) {
      }
      EXPECT_EQ(rest.blank_lines(), 5) << "row " << position.rows << ", pieces of " << piece;
    }
  }
}

TEST(RowReader, KeepsBlankLinesOfFirstRows) {
  RowReader reader(io::memory_source("in", "text\na\n\nb\n\nc\n", SIZE_MAX), with_format(RowFormat::csv));
  RowChunk chunk;
  ASSERT_TRUE(reader.next_chunk(chunk));
  EXPECT_EQ(chunk.position_after(0).blank_lines, 1);
  chunk.keep_first(1);
  EXPECT_EQ(chunk.position_after(0).blank_lines, 1);
}

TEST(RowReader, OptionalLabelsMayBeMissing) {
  const auto labels = [](RowFormat format, const std::string& bytes) {
    RowReaderOptions options = with_format(format, "", "label");
    options.labels_optional = true;
    std::string out;
    for (const Row& row : read_all(bytes, options)) out += row.text + "=" + row.label + row.error + ";";
    return out;
  };
  EXPECT_EQ(labels(RowFormat::txt, "a\nb\n"), "a=;b=;");
  EXPECT_EQ(labels(RowFormat::csv, "text\na\n"), "a=;");
  EXPECT_EQ(labels(RowFormat::csv, "text,label\na,\nb,x\n"), "a=;b=x;");
  EXPECT_EQ(
      labels(RowFormat::jsonl, "{\"text\":\"a\"}\n{\"text\":\"b\",\"label\":null}\n{\"text\":\"c\",\"label\":\"x\"}\n"),
      "a=;b=;c=x;");
  EXPECT_EQ(labels(RowFormat::jsonl, "{\"text\":\"a\"}\n"), "a=;");
  // A label column with a different name is an error, not a text without a label.
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { labels(RowFormat::csv, "text,Label\na,x\n"); }), "did you mean Label?");
}

TEST(RowReader, Txt) {
  const RowReaderOptions txt = with_format(RowFormat::txt);
  EXPECT_EQ(texts_of(read_all("a\nb\r\n\nc", txt)), (Texts{"a", "b", "", "c"}));
  EXPECT_EQ(texts_of(read_all("", txt)), Texts{});
  EXPECT_EQ(texts_of(read_all("\n", txt)), Texts{""});
  EXPECT_EQ(texts_of(read_all("\xEF\xBB\xBF", txt)), Texts{});
  EXPECT_EQ(texts_of(read_all("\xEF\xBB\xBFx\n", txt)), Texts{"x"});
  EXPECT_HAS(read_all("\xEF\xBB", txt).at(0).error, "byte 1 (0xEF) is not UTF-8");  // truncated BOM
  EXPECT_EQ(texts_of(read_all(std::string("a\0b\n", 4), txt)), Texts{std::string("a\0b", 3)});
  const std::string long_word(300'000, 'x');
  EXPECT_EQ(texts_of(read_all("a\n" + long_word + "\nb\n", txt, 1000)), (Texts{"a", long_word, "b"}));
}

TEST(RowReader, CsvColumnsAndLabels) {
  const std::string csv = "id,text,label\r\n1,\"a \"\"b\"\"\",pos\r\n2,\"x\ny\",neg\r\n3,z,\"p,q\"\r\n";
  const auto rows = read_all(csv, with_format(RowFormat::csv, "", "label"));
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0], (Row{"a \"b\"", "1,\"a \"\"b\"\"\",pos", "pos", "", 0, 2}));
  EXPECT_EQ(rows[1], (Row{"x\ny", "2,\"x\ny\",neg", "neg", "", 1, 3}));
  EXPECT_EQ(rows[2], (Row{"z", "3,z,\"p,q\"", "p,q", "", 2, 5}));
  EXPECT_EQ(texts_of(read_all(csv, with_format(RowFormat::csv, "id"))), (Texts{"1", "2", "3"}));
  EXPECT_EQ(texts_of(read_all("headline\nup\ndown\n", with_format(RowFormat::csv))), (Texts{"up", "down"}));
  EXPECT_EQ(texts_of(read_all("a\ttext\n1\tx, y\n", with_format(RowFormat::tsv))), Texts{"x, y"});
}

TEST(RowReader, CsvSchema) {
  RowReader reader(io::memory_source("in", "\xEF\xBB\xBF\"id\",text,\"la\"\"bel\"\n1,2,3\n"),
                   with_format(RowFormat::csv));
  EXPECT_EQ(reader.schema().columns, (Texts{"id", "text", "la\"bel"}));
  EXPECT_EQ(reader.schema().header, "\"id\",text,\"la\"\"bel\"");
  EXPECT_TRUE(reader.schema().byte_order_mark);
  EXPECT_EQ(reader.schema().text_index, 1u);
}

TEST(RowReader, TextColumnRule) {
  const RowReaderOptions csv = with_format(RowFormat::csv);
  std::string message = error_of(ErrorCode::usage, [&] { read_all("a,b\n1,2\n", csv); });
  EXPECT_HAS(message, "`text_column`");
  EXPECT_HAS(message, "a, b");
  message = error_of(ErrorCode::usage, [&] { read_all("text,b\n1,2\n", with_format(RowFormat::csv, "txet")); });
  EXPECT_HAS(message, "did you mean text");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { read_all("text,text\n1,2\n", csv); }), "more than once");
  EXPECT_EQ(texts_of(read_all("a,a,text\n1,2,3\n", csv)), Texts{"3"});  // other columns may repeat
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { read_all("text\n1\n", with_format(RowFormat::csv, "", "label")); }),
             "unknown column label");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { read_all("x\n", with_format(RowFormat::txt, "", "label")); }), "txt");
}

TEST(RowReader, ReadsSeveralLabelColumns) {
  for (const auto& [format, text] :
       {std::pair{RowFormat::csv, "b,text,a\n1,x,0\nshort\n\"2,\"\"3\",y,5\n"},
        std::pair{RowFormat::jsonl,
                  "{\"b\":1,\"text\":\"x\",\"a\":0}\n{}\n{\"a\":5,\"b\":\"2,\\\"3\",\"text\":\"y\"}\n"}}) {
    RowReaderOptions options = with_format(format);
    options.label_columns = {"a", "b"};
    RowReader reader(io::memory_source("rows", text), options);
    RowChunk chunk;
    ASSERT_TRUE(reader.next_chunk(chunk));
    ASSERT_EQ(chunk.size(), 3u);
    EXPECT_NE(chunk.error(1), nullptr);
    EXPECT_EQ(chunk.labels, (std::vector<std::string_view>{"0", "1", "", "", "5", "2,\"3"}));
    options.label_columns = {"a", "a"};
    EXPECT_HAS(error_of(ErrorCode::usage, [&, text = text] { RowReader(io::memory_source("rows", text), options); }),
               "given twice");
  }
}

TEST(RowReader, ExcelSeparatorLineSetsTheDelimiter) {
  for (const char* first : {"sep=;\n", "sep=;\r\n", "\"sep=;\"\n", "\xEF\xBB\xBFsep=;\n"})
    for (const size_t piece : {size_t{1}, SIZE_MAX}) {
      const auto rows = read_all(std::string(first) + "text;label\na, b;x\nc;y\n",
                                 with_format(RowFormat::csv, "text", "label"), piece);
      EXPECT_EQ(texts_of(rows), (Texts{"a, b", "c"})) << first;
      EXPECT_EQ(rows[1].label, "y");
      EXPECT_EQ(rows[0].line, 3);
    }
  const auto commas = read_all("sep=,\ntext,label\na,x\n", with_format(RowFormat::csv, "text", "label"));
  EXPECT_EQ(texts_of(commas), Texts{"a"});
  RowReaderOptions given = with_format(RowFormat::csv, "text", "label");
  given.delimiter = '|';  // the option wins
  EXPECT_EQ(texts_of(read_all("sep=;\ntext|label\na;b|x\n", given)), Texts{"a;b"});
  EXPECT_EQ(texts_of(read_all("text\nsep=;\n", with_format(RowFormat::csv, "text"))), Texts{"sep=;"});
  error_of(ErrorCode::bad_data, [] { read_all("sep=;\n", with_format(RowFormat::csv)); });
}

TEST(FileChecks, RecognisesParquetByItsFirstBytes) {
  for (const char* head : {"PAR1\x15\x04", "PAR1\x18\xC8", "PAR1\xC8\x01"})
    EXPECT_HAS(why_not_text(head), "is a Parquet file");
  for (const char* head : {"PAR1", "PAR1\ntext", "PAR1 is a word"}) EXPECT_EQ(why_not_text(head), "");
}

TEST(RowReader, EmptyCsv) {
  EXPECT_HAS(error_of(ErrorCode::bad_data, [] { read_all("", with_format(RowFormat::csv)); }), "is empty");
  EXPECT_HAS(error_of(ErrorCode::bad_data, [] { read_all("\n\r\n", with_format(RowFormat::csv)); }), "is empty");
  EXPECT_EQ(read_all("text,label\n", with_format(RowFormat::csv)).size(), 0u);
  EXPECT_EQ(read_all("text,label", with_format(RowFormat::csv)).size(), 0u);
}

TEST(RowReader, BadCsvRows) {
  const auto rows =
      read_all("text,n\ngood,1\nshort\n1,2,3\n\"x\"y,2\nfine,2\n\"open,3\nlast,4\n", with_format(RowFormat::csv));
  ASSERT_EQ(rows.size(), 7u);
  EXPECT_EQ(rows[0].error, "");
  EXPECT_EQ(rows[1].error, "in: line 3: 1 field, but the header has 2");
  EXPECT_EQ(rows[2].error, "in: line 4: 3 fields, but the header has 2");
  EXPECT_HAS(rows[3].error, "in: line 5: field 1 continues after its closing quote");
  EXPECT_EQ(rows[4].text, "fine");
  EXPECT_EQ(rows[5].error, "in: line 7: unterminated quote in field 1");
  EXPECT_EQ(rows[5].record, "\"open,3");
  EXPECT_EQ(rows[6].text, "last");
  EXPECT_EQ(rows[6].line, 8);
}

TEST(RowReader, RejectsAnUnterminatedQuoteLongerThanARecord) {
  RowReaderOptions options = with_format(RowFormat::csv);
  options.chunk_bytes = 64;
  options.max_record_bytes = 1000;
  std::string csv = "text,n\n\"open,1\n";
  for (int i = 0; i < 200; ++i) csv += "row,2345\n";
  const auto rows = read_all(csv, options);
  ASSERT_EQ(rows.size(), 201u);
  EXPECT_HAS(rows[0].error, "line 2: unterminated quote");
  EXPECT_EQ(rows[200].text, "row");
  EXPECT_EQ(rows[200].line, 202);
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { read_all("text\n" + std::string(5000, 'x') + "\n", options); }),
             "line 2");
}

TEST(RowReader, Jsonl) {
  const std::string jsonl =
      "{\"text\": \"a\\n\\u00e9\\ud83d\\ude00\", \"label\": \"pos\", \"n\": [1, {\"text\": 2}]}\r\n"
      "\n   \n"
      "{\"label\": 3, \"text\": \"plain\"}\n"
      "{\"text\": \"x\", \"label\": true, \"text\": \"last wins\"}\n"
      "{\"te\\u0078t\": \"escaped key\", \"label\": \"a\\\"b\"}";
  const auto rows = read_all(jsonl, with_format(RowFormat::jsonl, "", "label"));
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].text, "a\n\u00e9\U0001F600");
  EXPECT_EQ(rows[0].label, "pos");
  EXPECT_EQ(rows[1], (Row{"plain", "{\"label\": 3, \"text\": \"plain\"}", "3", "", 1, 4}));
  EXPECT_EQ(rows[2].text, "last wins");
  EXPECT_EQ(rows[2].label, "true");
  EXPECT_EQ(rows[3].text, "escaped key");
  EXPECT_EQ(rows[3].label, "a\"b");
}

TEST(RowReader, BadJsonRows) {
  const auto rows = read_all(
      "{\"text\": \"ok\"}\n{\"text\": \"x\"\n[1]\n{\"body\": \"x\"}\n{\"text\": null}\n{\"text\": "
      "5}\n\"text\"\n{\"text\": \"a\tb\"}\n",
      with_format(RowFormat::jsonl));
  ASSERT_EQ(rows.size(), 8u);
  EXPECT_EQ(rows[1].error, "in: line 2: byte 13: unterminated object");
  EXPECT_EQ(rows[2].error, "in: line 3: byte 1: not a JSON object");
  EXPECT_EQ(rows[3].error, "in: line 4: missing key \"text\"");
  EXPECT_EQ(rows[4].error, "in: line 5: \"text\" is null, not a string");
  EXPECT_EQ(rows[5].error, "in: line 6: \"text\" is a number, not a string");
  EXPECT_HAS(rows[6].error, "not a JSON object");
  EXPECT_HAS(rows[7].error, "control character");
  EXPECT_EQ(rows[7].text, "");
}

TEST(RowReader, JsonKeys) {
  RowReader reader(io::memory_source("in", "{\"id\":1,\"text\":\"a\"}\n{\"text\":\"b\",\"label\":\"x\"}\n"),
                   with_format(RowFormat::jsonl));
  EXPECT_EQ(reader.schema().columns, (Texts{"id", "text", "label"}));
  EXPECT_EQ(texts_of(read_all("{\"tweet\":\"a\"}\n", with_format(RowFormat::jsonl))), Texts{"a"});
  EXPECT_EQ(texts_of(read_all("{\"\":\"a\"}\n", with_format(RowFormat::jsonl))), Texts{"a"});
  EXPECT_HAS(error_of(ErrorCode::usage, [] { read_all("{\"a\":\"x\",\"b\":\"y\"}\n", with_format(RowFormat::jsonl)); }),
             "a, b");
  EXPECT_HAS(error_of(ErrorCode::bad_data, [] { read_all(" [{\"text\":\"x\"}]\n", with_format(RowFormat::jsonl)); }),
             "found an array");
  EXPECT_EQ(read_all("", with_format(RowFormat::jsonl)).size(), 0u);
  EXPECT_HAS(read_all("nonsense\n", with_format(RowFormat::jsonl))[0].error, "line 1");
}

TEST(RowReader, AllowsDifferentJsonKeysPerLine) {
  RowReader reader(io::memory_source("in", "{\"text\":\"t\",\"b\":1}\n{\"a\":1,\"text\":\"u\",\"a\":2}\n"),
                   with_format(RowFormat::jsonl));
  EXPECT_EQ(reader.schema().columns, (Texts{"text", "b", "a"}));
}

TEST(RowReader, RejectsUtf16) {
  for (const std::string mark : {"\xFF\xFE", "\xFE\xFF"})
    for (size_t piece : {size_t{1}, SIZE_MAX}) {
      auto call = [&] { read_all(mark + std::string("a\0b\0", 4), with_format(RowFormat::csv), piece); };
      EXPECT_HAS(error_of(ErrorCode::bad_data, call), "UTF-16");
    }
}

TEST(RowReader, RejectsRowsThatAreNotUtf8) {
  const auto error = [](const std::string& bytes, RowFormat format, size_t row) {
    return read_all(bytes, with_format(format)).at(row).error;
  };
  EXPECT_HAS(error("a\nb\ncaf\xE9 x\n", RowFormat::txt, 2), "line 3: byte 4 (0xE9) is not UTF-8");
  EXPECT_HAS(error("id,text\n1,a\n\xE9,b\n", RowFormat::csv, 1), "line 3: byte 1 (0xE9) is not UTF-8");  // any column
  EXPECT_HAS(error("{\"text\":\"a\"}\n{\"text\":\"\xE9\"}\n", RowFormat::jsonl, 1), "byte 10 (0xE9)");
  EXPECT_HAS(error("a\nb\n\xED\xA0\x80\n", RowFormat::txt, 2), "byte 1 (0xED)");  // a surrogate
  EXPECT_EQ(error("a\nb\n\xC3\xA9\n", RowFormat::txt, 2), "");
  EXPECT_HAS(error_of(ErrorCode::bad_data, [] { read_all("t\xE9xt,a\n1,2\n3,4\n", with_format(RowFormat::csv)); }),
             "line 1: byte 2 (0xE9)");
}

TEST(RowReader, RejectsOtherEncodings) {
  EXPECT_HAS(why_other_encoding("d\xE9j\xE0 vu\ncaf\xE9\nplain\n"),
             "2 of the first 3 lines are invalid, starting at byte 2 (0xE9)");
  EXPECT_HAS(why_other_encoding("caf\xE9\n"), "iconv -f WINDOWS-1252 -t UTF-8");
  std::string random;
  for (uint32_t i = 0, x = 1; i < 100000; ++i) random += static_cast<char>((x = x * 1664525 + 1013904223) >> 24);
  EXPECT_HAS(why_other_encoding(random), "is not a UTF-8 text file");
  std::string whole = "x";  // a code point truncated by the end is not an error
  for (int i = 0; i < 1000; ++i) whole += "\xC3\xA9";
  EXPECT_EQ(why_other_encoding(std::string_view(whole).substr(0, 1000)), "");
  EXPECT_EQ(why_other_encoding("a\nb\ncaf\xE9\n"), "");  // one bad row among good ones
  TempDir dir;
  put_file(dir / "a.txt", "caf\xE9\n");
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { RowReader({(dir / "a.txt").string()}, {}); }), "a.txt: is not UTF-8");
}

TEST(RowReader, RejectsBareCrLineEndings) {
  TempDir dir;
  const std::string large(size_t{1} << 17, 'x');
  for (const std::string& text :
       {std::string("good\rbad\r"), std::string("good\rbad"), std::string("good\rbad\n"), "good\r" + large + "\rbad\r"})
    for (const char* name : {"a.txt", "a.csv", "a.tsv", "a.jsonl"}) {
      put_file(dir / name, text);
      const std::string message = error_of(ErrorCode::bad_data, [&] { RowReader({(dir / name).string()}, {}); });
      EXPECT_HAS(message, std::string(name) + ": has CR line endings");
      EXPECT_HAS(message, "tr '\\r' '\\n'");
    }
  // Pipes are checked while being read.
  for (const size_t piece : {size_t{1}, SIZE_MAX}) {
    EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { read_all("good\rbad\r", with_format(RowFormat::txt), piece); }),
               "in: has CR line endings");
    EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { read_all("text\rgood\r", with_format(RowFormat::csv), piece); }),
               "in: has CR line endings");
  }
}

TEST(RowReader, AcceptsACrWithinALine) {
  const auto txt = with_format(RowFormat::txt);
  EXPECT_EQ(texts_of(read_all("10%\r20%\r30%\ndone\n", txt)), (Texts{"10%\r20%\r30%", "done"}));
  EXPECT_EQ(texts_of(read_all("done\n10%\r20%\n", txt)), (Texts{"done", "10%\r20%"}));
  EXPECT_EQ(texts_of(read_all("one\r\n", txt)), Texts{"one"});
  EXPECT_EQ(texts_of(read_all("one\r", txt)), Texts{"one"});
  EXPECT_EQ(texts_of(read_all("text\n\"a\rb\"\n", with_format(RowFormat::csv))), Texts{"a\rb"});
}

TEST(RowReader, CountsSkippedBlankLines) {
  const auto blank_lines = [](RowFormat format, const std::string& bytes, size_t rows) {
    RowReader reader(io::memory_source("in", bytes, 3), with_format(format));
    EXPECT_EQ(rows_of(reader).size(), rows);
    return reader.blank_lines();
  };
  EXPECT_EQ(blank_lines(RowFormat::csv, "text\na\n\n\"\"\n\r\nb\n", 3), 2);
  EXPECT_EQ(blank_lines(RowFormat::csv, "id,text\n1,a\n", 1), 0);
  EXPECT_EQ(blank_lines(RowFormat::jsonl, "{\"text\":\"a\"}\n\n  \n", 1), 2);
  EXPECT_EQ(blank_lines(RowFormat::txt, "a\n\nb\n", 3), 0) << "a blank line of a txt file is a row";
}

// Rows, numbers, lines and errors must not depend on read or block boundaries.
TEST(RowReader, HandlesBlockBoundariesAtEveryByte) {
  const std::pair<RowFormat, std::string> cases[] = {
      {RowFormat::txt,
       "\xEF\xBB\xBF"
       "a\r\nbcd\n\n\r\nlast\r"},
      {RowFormat::csv,
       "\xEF\xBB\xBF"
       "id,text\r\n1,\"a \"\"q\"\"\r\n,b\"\r\n\r\n2,c\n3\n\"x\"y,1\n4,\"\"\n5,\"open\n6,z"},
      {RowFormat::jsonl, "{\"text\":\"a\\n\"}\r\n\r\n{\"text\":\"b\",\"n\":[1,2]}\n{bad\n{\"text\":\"c\"}"},
  };
  for (const auto& [format, bytes] : cases) {
    const auto expected = read_all(bytes, with_format(format));
    EXPECT_GE(expected.size(), 4u);
    for (size_t piece = 1; piece <= bytes.size(); ++piece)
      for (size_t block = 1; block <= bytes.size(); ++block) {
        RowReaderOptions options = with_format(format);
        options.chunk_bytes = block;
        EXPECT_EQ(read_all(bytes, options, piece), expected) << row_format_name(format) << piece << " " << block;
      }
  }
}

TEST(RowReader, SeekReturnsToTheSameRows) {
  TempDir dir;
  const std::string a = "id,text\n1,\"a\nb\"\n\n2,c\r\nbad\n3,\"d\"\"\"\n", b = "id,text\n4,e\n5,\"f\n\ng\"\n";
  put_file(dir / "a.csv", a);
  put_file(dir / "b.csv", b);
  const std::vector<std::string> paths = {(dir / "a.csv").string(), (dir / "b.csv").string()};
  RowReaderOptions options;
  options.chunk_rows = 2;
  RowReader first(paths, options);
  const auto expected = rows_of(first);
  ASSERT_EQ(expected.size(), 6u);
  EXPECT_EQ(expected[4].number, 4);
  EXPECT_EQ(expected[5].line, 3);

  RowReader again(paths, options);
  RowChunk chunk;
  std::vector<RowPosition> positions;
  while (again.next_chunk(chunk))
    for (size_t i = 0; i < chunk.size(); ++i) positions.push_back(chunk.position_after(i));
  ASSERT_EQ(positions.size(), expected.size());
  for (size_t i = 0; i < positions.size(); ++i) {
    RowReader reader(paths, options);
    reader.seek(positions[i]);
    EXPECT_EQ(rows_of(reader), std::vector<Row>(expected.begin() + static_cast<long>(i) + 1, expected.end()));
  }
}

TEST(RowReader, ShorterChunksContainTheSameRows) {
  TempDir dir;
  std::string a = "id,text\n", b = "id,text\n";
  for (int i = 0; i < 60; ++i) (i < 40 ? a : b) += fmt::format("{},\"a text {}\n in two lines\"\n", i, i);
  put_file(dir / "a.csv", a);
  put_file(dir / "b.csv", b);
  const std::vector<std::string> paths = {(dir / "a.csv").string(), (dir / "b.csv").string()};
  RowReader whole(paths, {});
  const auto expected = rows_of(whole);
  for (const size_t limit : {size_t{1}, size_t{100}, size_t{1000}}) {
    RowReader reader(paths, {});
    reader.limit_chunks(limit);
    EXPECT_EQ(rows_of(reader), expected) << limit;
    RowReader again(paths, {});
    again.limit_chunks(limit);
    RowChunk chunk;
    int64_t before = 0;
    while (again.next_chunk(chunk)) {
      int64_t bytes = 0;
      for (size_t i = 0; i + 1 < chunk.size(); ++i) bytes += static_cast<int64_t>(chunk.records[i].size()) + 1;
      EXPECT_LT(bytes, static_cast<int64_t>(limit)) << "it ends with the row that reaches the limit";
      EXPECT_EQ(chunk.file_bytes(), (chunk.input == 1 ? static_cast<int64_t>(a.size()) : 0) +
                                        chunk.position_after(chunk.size() - 1).offset);
      EXPECT_GT(chunk.file_bytes(), before);
      before = chunk.file_bytes();
    }
    EXPECT_EQ(before, again.bytes_total());
  }
}

TEST(RowReader, SeveralInputs) {
  TempDir dir;
  put_file(dir / "a.csv", "text,n\nx,1\n");
  put_file(dir / "b.csv", "\"text\",n\ny,2\n");
  put_file(dir / "c.csv", "n,text\n3,z\n");
  put_file(dir / "d.txt", "z\n");
  auto path = [&](const char* name) { return (dir / name).string(); };
  RowReader reader({path("a.csv"), path("b.csv")}, {});
  EXPECT_EQ(texts_of(rows_of(reader)), (Texts{"x", "y"}));
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { RowReader({path("a.csv"), path("c.csv")}, {}); }), "n, text");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { RowReader({path("a.csv"), path("d.txt")}, {}); }), "same format");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { RowReader({path("a.csv"), path("none.csv")}, {}); }), "none.csv");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { RowReader({dir.path().string()}, {}); }), "directory");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { RowReader({"-", "-"}, {}); }), "stdin");
}

TEST(RowReader, FormatByName) {
  EXPECT_EQ(row_format_of("a.csv.gz"), RowFormat::csv);
  EXPECT_EQ(row_format_of("a.tsv.zst"), RowFormat::tsv);
  EXPECT_EQ(row_format_of("a.ndjson"), RowFormat::jsonl);
  EXPECT_EQ(row_format_of("-"), RowFormat::txt);
  EXPECT_EQ(parse_row_format("tsv"), RowFormat::tsv);
  error_of(ErrorCode::usage, [] { parse_row_format("xls"); });
}

// Data that has arrived on a pipe is delivered although more may follow.
TEST(RowReader, DoesNotWaitForAPipe) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const int saved = ::dup(STDIN_FILENO);
  ASSERT_GE(::dup2(ends[0], STDIN_FILENO), 0);
  ASSERT_EQ(::write(ends[1], "one\ntwo\nthr", 11), 11);
  RowReader reader({"-"}, {});
  RowChunk chunk;
  ASSERT_TRUE(reader.next_chunk(chunk));
  EXPECT_EQ(chunk.texts.size(), 2u);
  ASSERT_EQ(::write(ends[1], "ee\n", 3), 3);
  ASSERT_TRUE(reader.next_chunk(chunk));
  EXPECT_EQ(chunk.texts[0], "three");
  EXPECT_EQ(chunk.first_row, 2);
  ::close(ends[1]);
  EXPECT_FALSE(reader.next_chunk(chunk));
  EXPECT_EQ(reader.bytes_total(), -1);
  ::dup2(saved, STDIN_FILENO);
  ::close(saved);
  ::close(ends[0]);
}

// Pipes as created by the shell's <(…): each can be read once, so none is opened early.
TEST(RowReader, NamedPipes) {
  TempDir dir;
  const std::vector<std::string> paths = {(dir / "a").string(), (dir / "b").string()};
  for (const std::string& path : paths) ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  std::thread feeder([&] {
    for (const std::string& path : paths) put_file(path, "text,n\nof " + path.substr(path.size() - 1) + ",1\n");
  });
  RowReader reader(paths, with_format(RowFormat::csv));
  EXPECT_EQ(texts_of(rows_of(reader)), (Texts{"of a", "of b"}));
  feeder.join();
}

TEST(RowReader, ChunksOutliveTheReader) {
  RowReaderOptions options = with_format(RowFormat::csv);
  options.chunk_bytes = 32;
  RowReader reader(
      io::memory_source("in", "text\n\"a\"\"1\"\n\"b\"\"2\"\n\"c\"\"3\"\n\"d\"\"4\"\n\"e\"\"5\"\n\"f\"\"6\"\n"),
      options);
  std::vector<RowChunk> chunks(1);
  while (reader.next_chunk(chunks.back())) chunks.emplace_back();
  chunks.pop_back();
  EXPECT_GT(chunks.size(), 1u);
  std::string all;
  for (const RowChunk& chunk : chunks)
    for (std::string_view text : chunk.texts) all += text;
  EXPECT_EQ(all, "a\"1b\"2c\"3d\"4e\"5f\"6");
}

TEST(RowReader, ReturnsRowsBeforeDamageInACompressedFile) {
  for (const io::Compression compression : {io::Compression::gzip, io::Compression::zstd}) {
    std::string lines;
    for (int i = 0; i < 20000; ++i) lines += "row " + std::to_string(i) + "\n";
    const TempDir dir;
    io::AtomicFile file(dir / "x");
    auto sink = make_sink(file, compression);
    for (int member = 0; member < 2; ++member) {
      sink->write(lines);
      sink->end_member();
    }
    file.commit();
    const std::string bytes = get_file(dir / "x");
    RowReaderOptions options;
    options.format = RowFormat::txt;
    RowReader reader(decompressed(io::memory_source("x", bytes.substr(0, bytes.size() - 10))), options);
    RowChunk chunk;
    int64_t rows = 0;
    error_of(ErrorCode::bad_data, [&] {
      while (reader.next_chunk(chunk)) rows += static_cast<int64_t>(chunk.size());
    });
    EXPECT_GE(rows, 20000);
    EXPECT_LT(rows, 40000);
  }
}

TEST(RowReader, ReadsPairsFromTheirColumn) {
  for (const auto& [format, bytes] :
       {std::pair(RowFormat::csv, "b,text,label\n\"x \"\"y\"\"\",one,0\n,two,1\n"),
        std::pair(RowFormat::jsonl, "{\"text\":\"one\",\"b\":\"x \\\"y\\\"\"}\n{\"b\":\"\",\"text\":\"two\"}\n")}) {
    RowReaderOptions options = with_format(format);
    options.pair_column = "b";
    RowReader reader(io::memory_source("in", bytes, 3), options);
    Texts texts, pairs;
    RowChunk chunk;
    while (reader.next_chunk(chunk))
      for (size_t i = 0; i < chunk.size(); ++i) {
        texts.emplace_back(chunk.texts[i]);
        pairs.emplace_back(chunk.pair(i).value_or("none"));
      }
    EXPECT_EQ(texts, (Texts{"one", "two"}));
    EXPECT_EQ(pairs, (Texts{"x \"y\"", ""}));
  }
  RowReaderOptions options = with_format(RowFormat::jsonl);
  options.pair_column = "b";
  EXPECT_EQ(texts_of(read_all("{\"text\":\"one\"}\n{\"text\":\"two\",\"b\":7}\n", options)),
            (Texts{"!in: line 1: missing key \"b\"", "!in: line 2: \"b\" is a number, not a string"}));
  options.format = RowFormat::txt;
  EXPECT_THROW(read_all("one\n", options), Error);
}

}  // namespace
}  // namespace brim::rows
