// SPDX-License-Identifier: Apache-2.0
#include "rows/row_writer.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/test_files.h"

namespace brim::rows {
namespace {

// Writes every row of `bytes` with label "pos", score 0.75 and the given scores; bad rows as null rows.
std::string scored(const std::string& bytes, RowFormat in, RowWriterOptions options, std::vector<float> scores = {},
                   bool quotes = true) {
  RowReaderOptions read;
  read.format = in;
  read.quotes = quotes;
  RowReader reader(io::memory_source("in", bytes), read);
  RowWriter writer(reader.schema(), options);
  std::string out;
  writer.header(out);
  RowChunk chunk;
  while (reader.next_chunk(chunk))
    for (size_t i = 0; i < chunk.size(); ++i) {
      if (chunk.error(i) != nullptr) {
        writer.null_row(out, chunk, i);
      } else {
        const EntitySpan found[] = {{"PER", 0.5f, "J\"o", 3, 6}, {"LOC", 0.25f, "é", 8, 9}};
        std::vector<RowResult> results;
        for (const ResultColumns& columns : options.results) {
          const bool all = !columns.score_names.empty();
          results.push_back(columns.entities ? RowResult{.entities = found}
                                             : RowResult{"pos", 0.75f, all ? scores : std::span<const float>()});
        }
        writer.row(out, chunk, i, results);
      }
    }
  return out;
}

RowWriterOptions to(OutputFormat format) {
  RowWriterOptions options;
  options.format = format;
  return options;
}

TEST(RowWriter, KeepsBytesInTheSameFormat) {
  EXPECT_EQ(scored("id,text\r\n1,\"a,\"\"b\"\"\nc\"\r\n2,x\"y\r\n", RowFormat::csv, to(OutputFormat::csv)),
            "id,text,label,score\n1,\"a,\"\"b\"\"\nc\",pos,0.75\n2,x\"y,pos,0.75\n");
  EXPECT_EQ(scored("\xEF\xBB\xBFtext\nx\n", RowFormat::csv, to(OutputFormat::csv)),
            "\xEF\xBB\xBFtext,label,score\nx,pos,0.75\n");
  EXPECT_EQ(scored("id\ttext\n1\ta b\n", RowFormat::tsv, to(OutputFormat::tsv)),
            "id\ttext\tlabel\tscore\n1\ta b\tpos\t0.75\n");
  EXPECT_EQ(scored("{ \"n\": 1.50, \"text\": \"\\u00e9\" } \r\n{\"text\":\"b\"}\n", RowFormat::jsonl,
                   to(OutputFormat::jsonl)),
            "{ \"n\": 1.50, \"text\": "
            "\"\\u00e9\",\"label\":\"pos\",\"score\":0.75}\n{\"text\":\"b\",\"label\":\"pos\",\"score\":0.75}\n");
}

TEST(RowWriter, Txt) {
  EXPECT_EQ(scored("a, \"b\"\nc\n\n", RowFormat::txt, to(OutputFormat::csv)),
            "text,label,score\n\"a, \"\"b\"\"\",pos,0.75\nc,pos,0.75\n,pos,0.75\n");
  EXPECT_EQ(scored("a\t\"b\"\x01\n", RowFormat::txt, to(OutputFormat::jsonl)),
            "{\"text\":\"a\\t\\\"b\\\"\\u0001\",\"label\":\"pos\",\"score\":0.75}\n");
  EXPECT_EQ(scored("a\tb\n", RowFormat::txt, to(OutputFormat::tsv)), "text\tlabel\tscore\n\"a\tb\"\tpos\t0.75\n");
}

TEST(RowWriter, AcrossFormats) {
  EXPECT_EQ(scored("id,text\n01,\"a\tb\"\n", RowFormat::csv, to(OutputFormat::tsv)),
            "id\ttext\tlabel\tscore\n01\t\"a\tb\"\tpos\t0.75\n");
  EXPECT_EQ(scored("id\ttext\n1\ta, b\n", RowFormat::tsv, to(OutputFormat::csv)),
            "id,text,label,score\n1,\"a, b\",pos,0.75\n");
  EXPECT_EQ(scored("id,text,id\n01,\"a \"\"b\"\"\",2\n", RowFormat::csv, to(OutputFormat::jsonl)),
            "{\"id\":\"01\",\"text\":\"a \\\"b\\\"\",\"id.1\":\"2\",\"label\":\"pos\",\"score\":0.75}\n");
  EXPECT_EQ(scored("{\"id\":1,\"text\":\"a,\\n\"}\n{\"text\":\"b\",\"tags\":[1,\"x\"],\"id\":null}\n", RowFormat::jsonl,
                   to(OutputFormat::csv)),
            "id,text,tags,label,score\n1,\"a,\n\",,pos,0.75\n,b,\"[1,\"\"x\"\"]\",pos,0.75\n");
}

TEST(RowWriter, KeepsRawTabs) {
  EXPECT_EQ(scored("id\ttext\n1\t\"a\n", RowFormat::tsv, to(OutputFormat::tsv), {}, false),
            "id\ttext\tlabel\tscore\n1\t\"a\tpos\t0.75\n");
  EXPECT_EQ(scored("id\ttext\n1\t\"a\n", RowFormat::tsv, to(OutputFormat::csv), {}, false),
            "id,text,label,score\n1,\"\"\"a\",pos,0.75\n");
}

TEST(RowWriter, AllScores) {
  RowWriterOptions options = to(OutputFormat::csv);
  options.results[0].score_names = {"negative", "positive"};
  EXPECT_EQ(scored("x\n", RowFormat::txt, options, {0.25f, 0.75f}),
            "text,label,score,negative,positive\nx,pos,0.75,0.25,0.75\n");
  options.format = OutputFormat::jsonl;
  EXPECT_EQ(scored("x\n", RowFormat::txt, options, {0.25f, 0.75f}),
            "{\"text\":\"x\",\"label\":\"pos\",\"score\":0.75,\"scores\":{\"negative\":0.25,\"positive\":0.75}}\n");
  options.results[0].scores_at_top = true;
  options.results[0].score_names = {"neg", "neu", "pos", "compound"};
  EXPECT_EQ(
      scored("x\n", RowFormat::txt, options, {0, 0.254f, 0.746f, 0.6369f}),
      "{\"text\":\"x\",\"label\":\"pos\",\"score\":0.75,\"neg\":0,\"neu\":0.254,\"pos\":0.746,\"compound\":0.6369}\n");
}

TEST(RowWriter, PrefixesTakenNames) {
  EXPECT_EQ(scored("text,label\nx,neg\n", RowFormat::csv, to(OutputFormat::csv)),
            "text,label,predicted_label,predicted_score\nx,neg,pos,0.75\n");
  EXPECT_EQ(scored("text,score,predicted_label\nx,1,2\n", RowFormat::csv, to(OutputFormat::csv)),
            "text,score,predicted_label,predicted_predicted_label,predicted_predicted_score\nx,1,2,pos,0.75\n");
  EXPECT_EQ(scored("{\"text\":\"x\",\"label\":\"neg\"}\n{\"text\":\"y\"}\n", RowFormat::jsonl, to(OutputFormat::jsonl)),
            "{\"text\":\"x\",\"label\":\"neg\",\"predicted_label\":\"pos\",\"predicted_score\":0.75}\n"
            "{\"text\":\"y\",\"predicted_label\":\"pos\",\"predicted_score\":0.75}\n");
}

// The key first appears after the block that determined the names.
TEST(RowWriter, PrefixesALateKeyInItsRow) {
  RowReaderOptions read;
  read.format = RowFormat::jsonl;
  read.chunk_bytes = 16;
  RowReader reader(
      io::memory_source(
          "in", "{\"text\":\"\\\"label\\\"\"}\n{\"text\":\"y\",\"l\\u0061bel\":1}\n{\"text\":\"y\",\"label\":1}\n"),
      read);
  RowWriter writer(reader.schema(), to(OutputFormat::jsonl));
  std::string out;
  RowChunk chunk;
  while (reader.next_chunk(chunk))
    for (size_t i = 0; i < chunk.size(); ++i) writer.row(out, chunk, i, RowResult{"pos", 0.75f});
  EXPECT_HAS(out, "{\"text\":\"\\\"label\\\"\",\"label\":\"pos\",\"score\":0.75}");
  EXPECT_HAS(out, "{\"text\":\"y\",\"label\":1,\"predicted_label\":\"pos\",\"predicted_score\":0.75}");
}

TEST(RowWriter, KeepsBrokenRecordsAsNullRows) {
  EXPECT_EQ(scored("text,n\nshort\na,b,\"c,d\"\n\"x\"y,2\nok,1\n", RowFormat::csv, to(OutputFormat::csv)),
            "text,n,label,score\nshort,,,\na,\"b,\"\"c,d\"\"\",,\n\"\"\"x\"\"y,2\",,,\nok,1,pos,0.75\n");
  EXPECT_EQ(scored("text,n\nshort\nok,1\n", RowFormat::csv, to(OutputFormat::jsonl)),
            "{\"invalid_csv\":\"short\",\"label\":null,\"score\":null}\n{\"text\":\"ok\",\"n\":\"1\",\"label\":\"pos\","
            "\"score\":0.75}\n");
  EXPECT_EQ(scored("{\"text\":\"a\"}\n{\"text\": 1}\n{oops\n{}\n", RowFormat::jsonl, to(OutputFormat::jsonl)),
            "{\"text\":\"a\",\"label\":\"pos\",\"score\":0.75}\n{\"text\": 1,\"label\":null,\"score\":null}\n"
            "{\"invalid_json\":\"{oops\",\"label\":null,\"score\":null}\n{\"label\":null,\"score\":null}\n");
  EXPECT_EQ(scored("{\"text\":\"a\"}\n{oops\n", RowFormat::jsonl, to(OutputFormat::csv)),
            "text,label,score\na,pos,0.75\n{oops,,\n");
}

TEST(RowWriter, Entities) {
  RowWriterOptions options = to(OutputFormat::jsonl);
  options.results[0].entities = true;
  const std::string list = R"([{"entity_group":"PER","score":0.5,"word":"J\"o","start":3,"end":6},)"
                           R"({"entity_group":"LOC","score":0.25,"word":"é","start":8,"end":9}])";
  EXPECT_EQ(scored("x\n", RowFormat::txt, options), "{\"text\":\"x\",\"entities\":" + list + "}\n");
  options.format = OutputFormat::csv;
  const std::string csv = scored("x\n", RowFormat::txt, options);
  CsvRecord record;
  std::string scratch;
  parse_csv_record(csv, csv.find('\n') + 1, true, {}, record);
  EXPECT_EQ(csv_value(record.fields.at(1), scratch), list);
}

TEST(RowWriter, ScoresRoundTripExactly) {
  auto shown = [](float value) {
    std::string out;
    append_json_number(out, value);
    return out;
  };
  EXPECT_EQ(shown(0.6369f), "0.6369");
  EXPECT_EQ(shown(1), "1");
  EXPECT_EQ(shown(-0.0f), "-0");
  EXPECT_EQ(shown(std::numeric_limits<float>::quiet_NaN()), "null");
  uint32_t state = 1;
  for (int i = 0; i < 20000; ++i) {
    state = state * 1664525u + 1013904223u;
    const float value = static_cast<float>(state >> 8) * 0x1p-24f;
    EXPECT_EQ(nlohmann::json::parse(shown(value)).get<float>(), value);
  }
  RowWriterOptions options = to(OutputFormat::csv);
  options.results[0].score_names = {"a"};
  EXPECT_EQ(scored("x\n", RowFormat::txt, options, {std::numeric_limits<float>::infinity()}),
            "text,label,score,a\nx,pos,0.75,\n");
}

TEST(RowWriter, NamesColumnsByModel) {
  RowWriterOptions options = to(OutputFormat::csv);
  options.results = {{.name = "mood", .score_names = {"bad", "good"}}, {.name = "ner", .entities = true}};
  const std::string found = R"([{"entity_group":"PER","score":0.5,"word":"J\"o","start":3,"end":6},)"
                            R"({"entity_group":"LOC","score":0.25,"word":"é","start":8,"end":9}])";
  std::string quoted = found;
  for (size_t at = 0; (at = quoted.find('"', at)) != std::string::npos; at += 2) quoted.insert(at, 1, '"');
  EXPECT_EQ(
      scored("text,n\nx,1\n", RowFormat::csv, options, {0.25f, 0.75f}),
      "text,n,mood_label,mood_score,mood_bad,mood_good,ner_entities\nx,1,pos,0.75,0.25,0.75,\"" + quoted + "\"\n");
  EXPECT_EQ(scored("text,mood_label\nx\n", RowFormat::csv, options, {0.25f, 0.75f}),
            "text,mood_label,predicted_mood_label,predicted_mood_score,predicted_mood_bad,predicted_mood_good,"
            "predicted_ner_entities\nx,,,,,,\n");
  options.format = OutputFormat::jsonl;
  options.results.push_back({.name = "vader", .score_names = {"neg", "pos"}, .scores_at_top = true});
  EXPECT_EQ(
      scored("x\n", RowFormat::txt, options, {0.25f, 0.75f}),
      R"({"text":"x","mood_label":"pos","mood_score":0.75,"mood_scores":{"bad":0.25,"good":0.75},"ner_entities":)" +
          found +
          R"(,"vader_label":"pos","vader_score":0.75,"vader_neg":0.25,"vader_pos":0.75})"
          "\n");
}

TEST(RowWriter, WarnsAboutUnknownKeysInCsvOutput) {
  RowReaderOptions read;
  read.format = RowFormat::jsonl;
  read.chunk_bytes = 16;
  RowReader reader(
      io::memory_source("in", "{\"text\":\"a\"}\n{\"text\":\"b\",\"late\":1}\n{\"text\":\"b\",\"later\":1}\n"), read);
  RowWriter writer(reader.schema(), to(OutputFormat::csv));
  std::vector<std::string> warnings;
  LogSink before = set_log_sink([&](LogLevel, std::string_view text) { warnings.emplace_back(text); });
  std::string out;
  RowChunk chunk;
  while (reader.next_chunk(chunk))
    for (size_t i = 0; i < chunk.size(); ++i) writer.row(out, chunk, i, RowResult{"pos", 0.75f});
  set_log_sink(before);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_HAS(warnings[0], "\"late\"");
}

TEST(RowWriter, FormatByName) {
  EXPECT_EQ(output_format_of("out.jsonl.gz", RowFormat::csv), OutputFormat::jsonl);
  EXPECT_EQ(output_format_of("-", RowFormat::tsv), OutputFormat::tsv);
  EXPECT_EQ(output_format_of("-", RowFormat::txt), OutputFormat::csv);
  EXPECT_EQ(output_format_of("scores", RowFormat::jsonl), OutputFormat::jsonl);
  error_of(ErrorCode::usage, [] { parse_output_format("xml"); });
}

}  // namespace
}  // namespace brim::rows
