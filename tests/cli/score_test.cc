// SPDX-License-Identifier: Apache-2.0
// brim score: input and output formats, columns, long texts; scores do not depend on the format.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "cli/program.h"

namespace brim {
namespace {

class Score : public ProgramTest {
 protected:
  std::vector<std::string> tiny(std::vector<std::string> more) const {
    std::vector<std::string> all = {"score", "--model", "tiny", "--device", "cpu", "-q"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  void pack(const std::string& tool, const std::string& name) const {
    const std::string command = fmt::format("cd '{}' && {} -q -k '{}'", folder_.string(), tool, name);
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
};

TEST_F(Score, WritesCsvWithTextColumnForTxtInput) {
  const auto lines = lines_of(must(tiny({"-"}), {.input = "w5 w6\nw7, w8\n"}));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "text,label,score");
  EXPECT_EQ(lines[1].substr(0, 6), "w5 w6,");
  EXPECT_EQ(lines[2].substr(0, 9), "\"w7, w8\",");
}

TEST_F(Score, GivesSameScoresForAllFormats) {
  put("a.txt", "w5 w6\nw7 w8\n");
  put("a.csv", "id,text\r\n1,w5 w6\r\n2,\"w7 w8\"\r\n");
  put("a.tsv", "id\ttext\n1\tw5 w6\n2\tw7 w8\n");
  put("a.jsonl", "{\"text\":\"w5 w6\",\"id\":1}\n\n{\"id\":2,\"text\":\"w7\\u0020w8\"}\n");
  std::vector<std::string> want;
  for (const char* name : {"a.txt", "a.csv", "a.tsv", "a.jsonl"}) {
    const auto rows = json_lines(must(tiny({name, "--output-format", "jsonl"})));
    ASSERT_EQ(rows.size(), 2u) << name;
    std::vector<std::string> got;
    for (const auto& row : rows)
      got.push_back(row.at("label").get<std::string>() + row.at("score").dump() + row.at("text").get<std::string>());
    if (want.empty()) want = got;
    EXPECT_EQ(got, want) << name;
  }
  EXPECT_EQ(must(tiny({"a.csv"})).substr(0, 20), "id,text,label,score\n");
  EXPECT_EQ(must(tiny({"a.tsv"})).substr(0, 20), "id\ttext\tlabel\tscore\n");
  EXPECT_EQ(must(tiny({"a.jsonl"})).substr(0, 35), "{\"text\":\"w5 w6\",\"id\":1,\"label\":\"neu");
}

// Scores of pairs depend on the second text and the order, not on the format.
TEST_F(Score, ScoresPairs) {
  make_model("bert_pair", "pair");
  put("a.csv", "a,b\nw5 w6,w7\nw7,w5 w6\nw5 w6,w8\n");
  put("a.jsonl", "{\"b\":\"w7\",\"a\":\"w5 w6\"}\n{\"a\":\"w7\",\"b\":\"w5 w6\"}\n{\"a\":\"w5 w6\",\"b\":\"w8\"}\n");
  const auto scores = [&](const std::string& file) {
    std::vector<std::string> got;
    for (const auto& row : json_lines(must({"score", file, "--model", "pair", "--device", "cpu", "-q", "--text-column",
                                            "a", "--pair-column", "b", "--output-format", "jsonl"})))
      got.push_back(row.at("label").get<std::string>() + row.at("score").dump());
    return got;
  };
  const auto want = scores("a.csv");
  ASSERT_EQ(want.size(), 3u);
  EXPECT_NE(want[0], want[1]);
  EXPECT_NE(want[0], want[2]);
  EXPECT_EQ(scores("a.jsonl"), want);

  const Outcome missing =
      brim({"score", "a.csv", "--model", "pair", "--device", "cpu", "--text-column", "a", "--pair-column", "c"});
  EXPECT_EQ(missing.code, 2) << missing.err;
  EXPECT_NE(missing.err.find("unknown column c; columns: a, b"), std::string::npos) << missing.err;
  std::string wide = "text";
  for (int i = 0; i < 960; ++i) wide += fmt::format(",feature{}", i);
  put("wide.csv", wide + "\n");
  refused(2, {"unknown column txt (did you mean text?); columns: text, feature0,", "feature8, … (961 in total)"},
          {"score", "wide.csv", "--model", "vader", "--text-column", "txt"});
  const Outcome rules = brim({"score", "a.csv", "--model", "vader", "--text-column", "a", "--pair-column", "b"});
  EXPECT_EQ(rules.code, 2) << rules.err;
}

TEST_F(Score, ReadsAndWritesCompressedFiles) {
  put("a.txt", made_up_lines(10'000));
  pack("gzip", "a.txt");
  pack("zstd", "a.txt");
  const std::string want = must(tiny({"a.txt"}));
  EXPECT_EQ(lines_of(want).size(), 10'001u);
  for (const char* name : {"a.txt.gz", "a.txt.zst"}) EXPECT_EQ(must(tiny({name})), want) << name;
  EXPECT_EQ(must(tiny({"-"}), {.input = get("a.txt.zst")}), want);  // detected by its first bytes on a pipe
  for (const char* name : {"o.csv", "o.csv.gz", "o.csv.zst"}) {
    must(tiny({"a.txt", "-o", name}));
    EXPECT_EQ(std::string(name) == "o.csv" ? get(name) : unpacked(name), want) << name;
    EXPECT_FALSE(exists(std::string(name) + ".part"));
    EXPECT_FALSE(exists(std::string(name) + ".part.json"));
  }
}

TEST_F(Score, SelectsOutputFormatByFileName) {
  put("a.txt", "w5\n");
  must(tiny({"a.txt", "-o", "o.jsonl"}));
  EXPECT_EQ(json_lines(get("o.jsonl")).at(0).at("text"), "w5");
  must(tiny({"a.txt", "-o", "o.tsv"}));
  EXPECT_EQ(lines_of(get("o.tsv")).at(0), "text\tlabel\tscore");
}

TEST_F(Score, AllScoresIncludesEveryLabel) {
  const auto csv = lines_of(must(tiny({"--all-scores"}), {.input = "w5 w6\n"}));
  EXPECT_EQ(csv.at(0), "text,label,score,negative,neutral,positive");
  const auto row = json_lines(must(tiny({"--all-scores", "--output-format", "jsonl"}), {.input = "w5 w6\n"})).at(0);
  const auto& scores = row.at("scores");
  ASSERT_EQ(scores.size(), 3u);
  double sum = 0;
  for (const auto& [label, score] : scores.items()) sum += score.get<double>();
  EXPECT_NEAR(sum, 1, 1e-5);
  EXPECT_EQ(scores.at(row.at("label").get<std::string>()), row.at("score"));
}

TEST_F(Score, VaderMatchesReference) {
  const std::vector<std::string> arguments = {"score", "--model", "vader", "--all-scores", "-q", "--output-format"};
  auto with = [&](const char* format) {
    auto all = arguments;
    all.emplace_back(format);
    return must(all, {.input = "VADER is smart, handsome, and funny!\nTerrible :(\nthe table\n"});
  };
  const auto rows = json_lines(with("jsonl"));
  EXPECT_EQ(rows.at(0).at("label"), "positive");
  EXPECT_EQ(rows.at(0).at("compound"), 0.8439);  // from the README of the reference
  EXPECT_EQ(rows.at(0).at("pos"), 0.752);
  EXPECT_EQ(rows.at(1).at("label"), "negative");
  EXPECT_EQ(rows.at(2).at("label"), "neutral");
  EXPECT_EQ(lines_of(with("csv")).at(0), "text,label,score,neg,neu,pos,compound");
}

TEST_F(Score, ReportsEntityOffsetsInCharacters) {
  make_model("bert_token", "ner");
  const auto rows =
      json_lines(must({"score", "--model", "ner", "-q", "--output-format", "jsonl"}, {.input = "é w5 w6 w9 w33\n\n"}));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_TRUE(rows[1].at("entities").empty());
  for (const auto& entity : rows[0].at("entities")) {
    const std::string text = "e w5 w6 w9 w33";  // one byte per character
    const size_t start = entity.at("start"), end = entity.at("end");
    if (start > 0) {
      EXPECT_EQ(text.substr(start, end - start), entity.at("word").get<std::string>());
    }
    EXPECT_GT(entity.at("score").get<double>(), 0);
    EXPECT_TRUE(entity.at("entity_group") == "PER" || entity.at("entity_group") == "LOC");
  }
  EXPECT_EQ(lines_of(must({"score", "--model", "ner", "-q"}, {.input = "w5\n"})).at(0), "text,entities");
}

TEST_F(Score, ScoresWithSeveralModelsInOnePass) {
  make_model("bert_token", "ner");
  put("a.txt", made_up_lines(3000));
  const auto with = [&](std::vector<std::string> models, std::vector<std::string> more) {
    std::vector<std::string> all = {"score", "a.txt", "--device", "cpu", "-q"};
    for (const auto& model : models) all.insert(all.end(), {"--model", model});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const auto rows = json_lines(must(with({"tiny", "people=ner", "vader"}, {"--output-format", "jsonl"})));
  const auto labels = json_lines(must(with({"tiny"}, {"--output-format", "jsonl"}))),
             entities = json_lines(must(with({"ner"}, {"--output-format", "jsonl"}))),
             rules = json_lines(must(with({"vader"}, {"--output-format", "jsonl"})));
  ASSERT_EQ(rows.size(), 3000u);
  for (size_t i = 0; i < rows.size(); ++i) {
    ASSERT_EQ(rows[i].at("text"), labels[i].at("text"));
    ASSERT_EQ(rows[i].at("tiny_label"), labels[i].at("label"));
    ASSERT_NEAR(rows[i].at("tiny_score").get<double>(), labels[i].at("score").get<double>(), 1e-5);
    ASSERT_EQ(rows[i].at("people_entities").size(), entities[i].at("entities").size());
    ASSERT_EQ(rows[i].at("vader_label"), rules[i].at("label"));
  }
  must(with({"tiny", "vader"}, {"--all-scores", "-o", "o.csv", "--summary-json", "s.json"}));
  EXPECT_EQ(lines_of(get("o.csv")).at(0),
            "text,tiny_label,tiny_score,tiny_negative,tiny_neutral,tiny_positive,vader_label,vader_score,vader_neg,"
            "vader_neu,vader_pos,vader_compound");
  const auto summary = json_of("s.json");
  EXPECT_EQ(summary.at("rows"), 3000);
  EXPECT_EQ(summary.at("models").at(0).at("name"), "tiny");
  EXPECT_GT(summary.at("models").at(0).at("tokens").get<int64_t>(), 3000);
  EXPECT_EQ(summary.at("models").at(1).at("model"), "vader");
  EXPECT_FALSE(summary.at("models").at(1).at("labels").empty());
  refused(2, {"duplicate name tiny", "NAME="}, with({"tiny", "./tiny/"}, {}));
  refused(2, {"--trace"}, with({"tiny", "vader"}, {"--trace", "t.json"}));
}

TEST_F(Score, RowRejectedByOneModelIsBadForAll) {
  make_model("bert_sequence", "other");
  std::string words;
  for (int i = 5; i < 96; ++i) words += fmt::format("w{} ", i);
  put("a.csv", "text,n\nw5,1\n" + words + ",2\nw6,3\n");
  const auto rows = lines_of(must({"score", "a.csv", "--model", "vader", "--model", "tiny", "--model", "other", "-q",
                                   "--long-text", "error", "--on-error", "null"}));
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[2], words + ",2,,,,,,");
  EXPECT_EQ(rows[3].substr(0, 5), "w6,3,");
  EXPECT_EQ(rows[3].find(",,"), std::string::npos) << rows[3];
}

// On the CPU the limit applies to the whole process. The error for a limit that is too small contains the smallest
// limit that works; with that limit, the resident peak stays below it.
class ScoreMemoryLimit : public Score {
 protected:
  void expect_limit_holds(const std::string& model, const char* precision) const {
    SCOPED_TRACE(model + " in " + precision);
    const auto with = [&](const std::string& limit) {
      return std::vector<std::string>{
          "score", "a.txt",          "--model", model, "--device",    "cpu",     "-o",           "out.csv", "--threads",
          "2",     "--memory-limit", limit,     "-q",  "--precision", precision, "--max-length", "32"};
    };
    const Outcome small = refused(5, {"context", "--memory-limit"}, with("8MiB"));
    const size_t at = small.err.find("--memory-limit ");
    ASSERT_NE(at, std::string::npos);
    const int64_t least = std::stoll(small.err.substr(at + 15));
    EXPECT_EQ(small.err.substr(at).find(fmt::format("--memory-limit {}MiB", least)), 0u) << small.err;
    refused(5, {fmt::format("{}MiB", least)}, with(fmt::format("{}MiB", least - 1)));
    const Outcome got = brim(with(fmt::format("{}MiB", least)));
    EXPECT_EQ(got.code, 0) << got.err;
    if (!kInstrumented) {
      EXPECT_LE(got.peak_kib, least * 1024);
    }
  }
};

TEST_F(ScoreMemoryLimit, HoldsOnCpu) {
  put("a.txt", made_up_lines(300));
  make_model("bert_token", "ner");
  for (const char* model : {BRIM_SOURCE_DIR "/models/default", "tiny", "ner"})
    for (const char* precision : {"fp32", "int8"}) expect_limit_holds(model, precision);
}

TEST_F(ScoreMemoryLimit, HoldsWithMisalignedWeights) {
  put("a.txt", made_up_lines(60));
  for (const char* stored : {"fp32", "fp16", "int8"}) {
    must({"models", "export", BRIM_SOURCE_DIR "/models/default", "-o", stored, "--precision", stored});
    for (const bool aligned : {true, false}) {
      if (!aligned) misalign_weights(stored);
      for (const char* precision : {"fp32", "int8"}) {
        SCOPED_TRACE(aligned ? "aligned" : "misaligned");
        expect_limit_holds(stored, precision);
        if (aligned)
          std::filesystem::rename(folder_ / "out.csv", folder_ / fmt::format("{}.{}.csv", stored, precision));
        else
          EXPECT_EQ(get("out.csv"), get(fmt::format("{}.{}.csv", stored, precision)));
      }
    }
  }
}

// Below the needs of the dynamic loader, the exit code is 127; below 32 MiB the loader crashes.
TEST_F(Score, ReportsTooLittleAddressSpaceAsOutOfMemory) {
  if (kInstrumented) GTEST_SKIP() << "a sanitizer reserves terabytes of address space";
  put("a.txt", made_up_lines(3000));
  int refusals = 0, successes = 0;
  for (int64_t mib = 40; mib <= 408; mib += 16) {
    const Outcome got = brim(tiny({"a.txt", "--threads", "4", "-o", "out.csv"}), {.address_limit = mib << 20});
    EXPECT_EQ(got.signal, 0) << mib << " MiB: " << got.err;
    EXPECT_TRUE(got.code == 0 || got.code == 5 || got.code == 127) << mib << " MiB: " << got.code << " " << got.err;
    refusals += got.code == 5;
    successes += got.code == 0;
  }
  EXPECT_GT(refusals, 0);
  EXPECT_GT(successes, 0);
}

TEST_F(Score, SupportsLongTextModes) {
  std::string text;
  for (int i = 5; i < 96; ++i) text += fmt::format("w{} ", i);
  auto score = [&](const char* mode) {
    return json_lines(must(tiny({"--long-text", mode, "--output-format", "jsonl"}), {.input = text + "\nw5\n"}));
  };
  const auto cut = score("truncate"), mean = score("window-mean"), most = score("window-max");
  EXPECT_NE(cut[0].at("score"), mean[0].at("score"));
  EXPECT_NE(most[0].at("score"), mean[0].at("score"));
  EXPECT_EQ(cut[1].at("score"), mean[1].at("score"));
  const Outcome got = refused(3, {"stdin: line 1: ", "93 tokens", "supports 44", "window-mean"},
                              tiny({"--long-text", "error"}), {.input = text + "\nw5\n"});
  const auto kept = lines_of(must(tiny({"--long-text", "error", "--on-error", "skip"}), {.input = text + "\nw5\n"}));
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[1].substr(0, 3), "w5,");
  const Outcome more = brim(tiny({"--max-length", "5000"}), {.input = text + "\nw5\n"});
  EXPECT_EQ(more.code, 0);
  EXPECT_NE(more.err.find("--max-length 5000: "), std::string::npos) << more.err;
  EXPECT_NE(more.err.find("supports at most 44 tokens"), std::string::npos) << more.err;
  refused(2, {"--long-text cut", "window-mean"}, tiny({"--long-text", "cut"}), {.input = "w5\n"});
}

TEST_F(Score, ReadsSeveralInputs) {
  put("a.csv", "text,n\nw5,1\n");
  put("b.csv", "text,n\nw6,2\n");
  put("c.csv", "n,text\n3,w7\n");
  const auto rows = lines_of(must(tiny({"a.csv", "b.csv"})));
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[2].substr(0, 5), "w6,2,");
  refused(2, {"c.csv", "n, text", "text, n"}, tiny({"a.csv", "c.csv"}));
}

TEST_F(Score, KeepsColumnsWithEqualNames) {
  const auto rows = lines_of(must(tiny({"--format", "csv"}), {.input = "text,label\nw5,mine\n"}));
  EXPECT_EQ(rows.at(0), "text,label,predicted_label,predicted_score");
  EXPECT_EQ(rows.at(1).substr(0, 8), "w5,mine,");
}

TEST_F(Score, DeterminesTextColumn) {
  EXPECT_EQ(lines_of(must(tiny({"--format", "csv"}), {.input = "tweet\nw5\n"})).at(0), "tweet,label,score");
  EXPECT_EQ(lines_of(must(tiny({"--format", "csv", "--text-column", "b"}), {.input = "a,b\n1,w5\n"})).size(), 2u);
  refused(2, {"--text-column", "a, b"}, tiny({"--format", "csv"}), {.input = "a,b\n1,w5\n"});
  refused(2, {"unknown column bb", "a, b"}, tiny({"--format", "csv", "--text-column", "bb"}), {.input = "a,b\n1,w5\n"});
  refused(2, {"--text-column", "a, b"}, tiny({"--format", "jsonl"}), {.input = "{\"a\":\"w5\",\"b\":\"w6\"}\n"});
}

TEST_F(Score, SummaryHasNullPlanForVader) {
  for (const char* model : {"tiny", "vader"}) {
    must({"score", "--model", model, "-o", "o.csv", "--summary-json", "s.json", "-q"}, {.input = "w5\n"});
    for (const char* name : {"planned_bytes", "limit_bytes", "token_budget"})
      EXPECT_EQ(json_of("s.json").at(name).is_null(), model == std::string("vader")) << model << " " << name;
  }
}

TEST_F(Score, HandlesBadRowsByOnErrorSetting) {
  put("a.csv", "text,id\nw5,1\nw6\nw7,3\n");
  const Outcome stopped = refused(3, {"a.csv: line 3: ", "--on-error skip or null"}, tiny({"a.csv"}));
  EXPECT_EQ(stopped.err.find("a.csv", stopped.err.find("a.csv") + 1), std::string::npos)
      << stopped.err;  // contained once
  must(tiny({"a.csv", "--on-error", "skip", "-o", "skip.csv", "--summary-json", "skip.json"}));
  EXPECT_EQ(lines_of(get("skip.csv")).size(), 3u);
  must(tiny({"a.csv", "--on-error", "null", "-o", "null.csv", "--summary-json", "null.json"}));
  const auto rows = lines_of(get("null.csv"));
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[2], "w6,,,");
  for (const char* name : {"skip.json", "null.json"}) {
    const auto summary = json_of(name);
    EXPECT_EQ(summary.at("bad_rows"), 1) << name;
    EXPECT_EQ(summary.at("rows"), 3) << name;
    EXPECT_EQ(summary.at("precision").get<std::string>().empty(), false);
  }
  const Outcome loud = brim({"score", "--model", "tiny", "a.csv", "--on-error", "skip", "-o", "o.csv"});
  EXPECT_NE(loud.err.find("bad rows: 1"), std::string::npos) << loud.err;
  refused(2, {"--on-error ignore", "stop, skip or null"}, tiny({"a.csv", "--on-error", "ignore"}));
}

TEST_F(Score, PrintsPrecision) {
  const Outcome got = brim({"score", "--model", "tiny", "--precision", "fp32", "--device", "cpu"}, {.input = "w5\n"});
  EXPECT_EQ(got.code, 0);
  EXPECT_NE(got.err.find("fp32"), std::string::npos) << got.err;
}

TEST_F(Score, ReadsFlagsFromEnvironment) {
  const auto rows = lines_of(
      must({"score", "-q"}, {.input = "w5\n", .environment = {{"BRIM_MODEL", "tiny"}, {"BRIM_ALL_SCORES", "true"}}}));
  EXPECT_EQ(rows.at(0), "text,label,score,negative,neutral,positive");
}

TEST_F(Score, ReadsFlagsFromYamlFile) {
  put("in.txt", "w5\nw6\n");
  put("run.yaml",
      "input: [in.txt]\nmodel: [mood=tiny, vader]\ndevice: cpu\nall_scores: true\noutput-format: jsonl\nquiet: yes\n");
  const auto rows = json_lines(must({"score", "--config", "run.yaml"}));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_TRUE(rows[0].contains("mood_scores")) << rows[0];
  EXPECT_TRUE(rows[0].contains("vader_compound")) << rows[0];
  // The command line and the environment take precedence.
  EXPECT_EQ(lines_of(must({"score", "--config", "run.yaml", "--model", "tiny"},
                          {.environment = {{"BRIM_OUTPUT_FORMAT", "csv"}}}))
                .at(0),
            "text,label,score,negative,neutral,positive");
  put("bad.yaml", "model: tiny\nmemory_limt: 6GiB\n");
  refused(2, {"bad.yaml:2: ", "memory_limt", "did you mean memory-limit?"},
          {"score", "in.txt", "--config", "bad.yaml"});
  put("bad.yaml", "memory_fraction: 0.98\n");
  refused(2, {"bad.yaml:1: ", "unknown key memory_fraction (did you mean memory_limit: 98%?)"},
          {"score", "in.txt", "--config", "bad.yaml"});
  put("bad.yaml", "batch_size: 64\n");
  refused(2, {"bad.yaml:1: ", "unknown key batch_size: batch sizes are planned"},
          {"score", "in.txt", "--config", "bad.yaml"});
  put("bad.yaml", "threshold: ''\n");
  refused(2, {"bad.yaml:1: threshold: missing value"}, {"score", "in.txt", "--config", "bad.yaml"});
  put("bad.yaml", "threads: many\n");
  refused(2, {"bad.yaml:1: threads: many"}, {"score", "in.txt", "--config", "bad.yaml"});
  put("bad.yaml", "device: [cpu, cuda]\n");
  refused(2, {"bad.yaml:1: device takes one value"}, {"score", "in.txt", "--config", "bad.yaml"});
  put("bad.yaml", "training:\n  threads: 1\n");
  refused(2, {"bad.yaml:1: ", "training"}, {"score", "in.txt", "--config", "bad.yaml"});
  refused(2, {"--config none.yaml: cannot be read: No such file or directory"},
          {"score", "in.txt", "--config", "none.yaml"});
}

TEST_F(Score, UsesIncludedModelByDefault) {
  if (!std::filesystem::exists(BRIM_SOURCE_DIR "/models/default/config.json")) GTEST_SKIP() << "no models/default here";
  const auto rows = json_lines(must({"score", "-q", "--output-format", "jsonl"},
                                    {.input = "I love this phone\nThis is the worst service ever\n"}));
  EXPECT_EQ(rows.at(0).at("label"), "positive");
  EXPECT_EQ(rows.at(1).at("label"), "negative");
}

TEST_F(Score, WarnsIfVaderReplacesMissingDefaultModel) {
  const Surroundings elsewhere = {.input = "I love this phone\n", .environment = {{"BRIM_HOME", folder_.string()}}};
  const Outcome got = brim({"score", "-q"}, elsewhere);
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_NE(got.err.find("models/default not found"), std::string::npos) << got.err;
  for (const std::string model : {"vader", "tiny"}) {
    const Outcome named = brim({"score", "-q", "--model", model}, elsewhere);
    EXPECT_EQ(named.code, 0) << named.err;
    EXPECT_EQ(named.err, "") << model;
  }
}

// As with `tail -f`: labels are written while the input pipe is open.
TEST_F(Score, WritesLabelsWhileInputPipePauses) {
  for (const char* model : {"tiny", "vader"}) {
    const std::string labels = (folder_ / "live.csv").string();
    bool written = false;
    Surroundings around;
    around.feed = [&](int fd) {
      (void)!::write(fd, "w5\n", 3);
      for (int i = 0; i < 1000 && !written; ++i) {
        ::usleep(10'000);
        written = get("live.csv").find("\nw5,") != std::string::npos;
      }
      (void)!::write(fd, "w6\n", 3);
    };
    around.stdout_path = labels;
    EXPECT_EQ(brim({"score", "--model", model, "--device", "cpu", "-q"}, around).code, 0);
    EXPECT_TRUE(written) << model;
    EXPECT_EQ(lines_of(get("live.csv")).size(), 3u);
  }
}

// Finished chunks wait for a chunk whose last row did not fit into its batch. When all chunks in flight wait, the
// device must process the partial batch.
TEST_F(Score, ScoresFileWithOneDelayedRow) {
  std::string rows = "text,more\n", words;
  for (int i = 0; i < 42; ++i) words += fmt::format("w{} ", 5 + i);
  for (int i = 0; i < 134; ++i) rows += words + ",\n";
  for (int i = 0; i < 40; ++i) rows += "w9," + std::string(600'000, 'x') + "\n";
  put("a.csv", rows);
  Running run(folder_, tiny({"a.csv", "-o", "o.csv"}), {});
  ASSERT_TRUE(run.ends_within(60));
  EXPECT_EQ(run.wait().code, 0);
  EXPECT_EQ(lines_of(get("o.csv")).size(), 175u);
}

// Ten times the rows through a pipe give the same peak memory, up to the fill level of the queues.
TEST_F(Score, UsesConstantMemoryOnStreams) {
  std::string block;
  for (const auto& line : lines_of(made_up_lines(1000, 3))) block += line + "," + std::string(500, 'x') + "\n";
  auto peak = [&](const std::string& model, int blocks) {
    Surroundings around;
    around.feed = [&](int fd) {
      const std::string header = "text,more\n";
      (void)!::write(fd, header.data(), header.size());
      for (int i = 0; i < blocks; ++i)
        for (size_t at = 0; at < block.size();) {
          const ssize_t n = ::write(fd, block.data() + at, block.size() - at);
          if (n <= 0) return;
          at += static_cast<size_t>(n);
        }
    };
    around.stdout_path = "/dev/null";
    const Outcome got =
        brim({"score", "--format", "csv", "--model", model, "--device", "cpu", "--threads", "2", "-q"}, around);
    EXPECT_EQ(got.code, 0) << got.err;
    return got.peak_kib;
  };
  for (const char* model : {"vader", "tiny"}) {
    const long small = peak(model, 20), large = peak(model, 200);
    EXPECT_LT(large, small + 40 * 1024) << model;  // for 100 MB of additional input
  }
}

}  // namespace
}  // namespace brim
