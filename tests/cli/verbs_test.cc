// SPDX-License-Identifier: Apache-2.0
// embed, tokenize, eval and plan from the command line.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <map>

#include "cli/program.h"
#include "hub/sentence_testing.h"

namespace brim {
namespace {

class Verbs : public ProgramTest {};

TEST_F(Verbs, EmbedWritesOneVectorPerRow) {
  auto embed = [&](std::vector<std::string> more) {
    std::vector<std::string> all = {"embed", "-", "--model", "tiny", "--precision", "fp32", "-q"};
    all.insert(all.end(), more.begin(), more.end());
    return json_lines(must(all, {.input = "w5 w6\n\nw7 w8 w9\n"}));
  };
  const auto mean = embed({}), cls = embed({"--pooling", "cls"}), unit = embed({"--normalize"});
  ASSERT_EQ(mean.size(), 3u);
  for (const auto& row : {mean[0], mean[1], cls[0]}) EXPECT_EQ(row.at("embedding").size(), 48u);
  EXPECT_NE(mean[0], cls[0]);
  double norm = 0, dot = 0, length = 0;
  for (size_t i = 0; i < 48; ++i) {
    const double u = unit[0].at("embedding")[i], m = mean[0].at("embedding")[i];
    norm += u * u;
    dot += u * m;
    length += m * m;
  }
  EXPECT_NEAR(norm, 1, 1e-5);
  EXPECT_NEAR(dot, std::sqrt(length), 1e-4);
  EXPECT_EQ(
      json_lines(must({"embed", "-", "--model", "tiny", "-q", "--format", "jsonl"}, {.input = "{\"text\":\"w5\"}\n"}))
          .size(),
      1u);
  refused(2, {"--pooling max", "mean or cls"}, {"embed", "-", "--model", "tiny", "--pooling", "max"},
          {.input = "w5\n"});
  refused(2, {"vader"}, {"embed", "-", "--model", "vader"}, {.input = "w5\n"});
}

TEST_F(Verbs, ProfileStreamsSkipsBatchesThatTakeTooLong) {
  put("in.txt", made_up_lines(3000));
  const std::vector<std::string> flags = {"streams",  "--models", "tiny,tiny", "--texts", "in.txt",
                                          "--device", "cpu",      "--seconds", "0.001"};
  std::vector<std::string> profile = {"profile"}, bench = {"bench"};
  profile.insert(profile.end(), flags.begin(), flags.end());
  bench.insert(bench.end(), flags.begin(), flags.end());
  const Outcome got = brim(profile);
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_EQ(got.err.find("deprecated"), std::string::npos) << got.err;
  EXPECT_NE(got.err.find(" and more: one takes about "), std::string::npos) << got.err;
  EXPECT_NE(got.err.find("longer than --seconds 0.001"), std::string::npos) << got.err;
  const Outcome old = brim(bench);  // the former name
  EXPECT_EQ(old.code, 0) << old.err;
  EXPECT_NE(old.err.find("brim bench streams is deprecated; use `brim profile streams`"), std::string::npos) << old.err;
}

TEST_F(Verbs, ProfileMeasuresTheLibrary) {
  put("in.txt", made_up_lines(50));
  const std::vector<std::string> model = {"--texts", "in.txt", "--model", "tiny", "--device", "cpu", "--threads", "1"};
  const auto measure = [&](std::vector<std::string> words) {
    words.insert(words.end(), model.begin(), model.end());
    return must(words);
  };
  EXPECT_NE(measure({"profile", "latency", "--count", "60"}).find("60 texts one at a time on cpu"), std::string::npos);
  EXPECT_NE(measure({"profile", "library", "--rounds", "1", "--callers", "2"}).find("Scorer::submit, 2 threads"),
            std::string::npos);
  EXPECT_NE(measure({"profile", "deterministic", "--rounds", "1", "--count", "3"}).find("overhead: "),
            std::string::npos);
  refused(2, {"--texts is required"}, {"profile", "latency", "--model", "tiny"});
  refused(2, {"unknown flag --mode"}, {"profile", "latency", "--texts", "in.txt", "--mode", "full"});
  refused(2, {"brim profile library: needs a classifier other than vader"},
          {"profile", "library", "--texts", "in.txt", "--model", "vader"});
}

TEST_F(Verbs, FormerNamesNoteTheNewOnes) {
  const Outcome tune = brim({"tune", "--model", "vader"});
  EXPECT_EQ(tune.code, 2);
  EXPECT_NE(tune.err.find("brim tune is deprecated; use `brim models tune`"), std::string::npos) << tune.err;
  EXPECT_NE(tune.err.find("brim models tune: requires a GPU"), std::string::npos) << tune.err;
  const Outcome renamed = refused(2, {"brim models tune: requires a GPU"}, {"models", "tune", "--model", "vader"});
  EXPECT_EQ(renamed.err.find("deprecated"), std::string::npos) << renamed.err;
}

TEST_F(Verbs, EmbedUsesSentenceTransformersSettings) {
  const auto embed = [&](const std::string& model, const std::vector<std::string>& more = {}) {
    std::vector<std::string> all = {"embed", "-", "--model", model, "--precision", "fp32", "-q"};
    all.insert(all.end(), more.begin(), more.end());
    return must(all, {.input = "w5 w6\nw7 w8 w9\n"});
  };
  const std::string mean = embed("tiny"), cls = embed("tiny", {"--pooling", "cls"});
  EXPECT_NE(mean, cls);
  make_model("bert_sequence", "st");
  hub::put_modules(folder_ / "st", hub::kClsPooling);
  EXPECT_EQ(embed("st"), cls);
  EXPECT_EQ(embed("st", {"--pooling", "mean"}), mean);
  must({"models", "export", "st", "--precision", "fp32", "-o", "st32"});
  EXPECT_EQ(embed("st32"), cls);
  put("st/config_sentence_transformers.json", R"({"prompts":{"query":"w9 "},"truncate_dim":5})");
  EXPECT_EQ(json_lines(embed("st"))[0].at("embedding").size(), 5u);
  EXPECT_NE(embed("st", {"--prompt-name", "query"}), embed("st"));
  refused(2, {"--prompt-name passage", "query"}, {"embed", "-", "--model", "st", "--prompt-name", "passage"},
          {.input = "w5\n"});
  hub::put_modules(folder_ / "st", hub::kMeanPooling, {"Dense"});
  refused(4, {"modules.json", "`type` is Dense"}, {"embed", "-", "--model", "st"}, {.input = "w5\n"});
}

TEST_F(Verbs, TokenizeNeedsTokenizerFilesOnly) {
  put("words/vocab.txt", get("tiny/vocab.txt"));
  const auto rows = json_lines(must({"tokenize", "-", "--model", "words"}, {.input = "w5 what\n\n"}));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].at("ids").dump(), "[2,5,1,3]");
  EXPECT_EQ(rows[0].at("tokens").dump(), R"(["[CLS]","w5","[UNK]","[SEP]"])");
  EXPECT_EQ(rows[0].at("offsets").dump(), "[[0,0],[0,2],[3,7],[0,0]]");
  EXPECT_EQ(rows[1].at("ids").dump(), "[2,3]");
  std::string text;
  for (int i = 0; i < 500; ++i) text += "w5 ";
  EXPECT_EQ(json_lines(must({"tokenize", "-", "--model", "tiny"}, {.input = text})).at(0).at("ids").size(),
            502u);  // never truncated
  refused(4, {"tokenizer"}, {"tokenize", "-", "--model", "."}, {.input = "a\n"});
}

TEST_F(Verbs, EvalReportsMetrics) {
  put("a.csv", "text,label\nw5,neutral\nw7,neutral\nw8 w9,negative\nw6,2\n");
  const auto got = nlohmann::json::parse(must({"eval", "a.csv", "--model", "tiny", "--json"}));
  EXPECT_EQ(got.at("rows"), 4);
  for (const char* key : {"accuracy", "macro_f1", "macro_recall"}) {
    EXPECT_GE(got.at(key).get<double>(), 0) << key;
    EXPECT_LE(got.at(key).get<double>(), 1) << key;
  }
  EXPECT_EQ(got.at("confusion").size(), 3u);
  EXPECT_EQ(got.at("per_class").size(), 3u);
  EXPECT_EQ(got.at("per_class").at("neutral").at("support"), 2);
  EXPECT_NE(must({"eval", "a.csv", "--model", "tiny"}).find("accuracy"), std::string::npos);
  const auto rules = nlohmann::json::parse(must({"eval", "a.csv", "--model", "vader", "--json"}));
  EXPECT_EQ(rules.at("rows"), 4);
  put("b.csv", "text,label\nw5,angry\n");
  refused(3, {"b.csv", "angry", "negative, neutral, positive"}, {"eval", "b.csv", "--model", "tiny"});
  refused(2, {"unknown column kind", "text, label"}, {"eval", "a.csv", "--model", "tiny", "--label-column", "kind"});
  refused(2, {"labelled rows"}, {"eval", "--model", "tiny"});
  EXPECT_NE(brim({"eval", "a.csv", "--model", "tiny", "--precision", "fp32"}).err.find("in fp32"), std::string::npos);
  put("c.csv", "text,label\nw5,neutral\nw6\n");
  const Outcome broken = refused(3, {"c.csv: line 3: 1 field,"}, {"eval", "c.csv", "--model", "tiny"});
  EXPECT_EQ(broken.err.find("c.csv", broken.err.find("c.csv") + 1), std::string::npos) << broken.err;  // contained once
  put("d.conll", "w5 B-PER\n");
  refused(2, {"d.conll", "token model"}, {"eval", "d.conll", "--model", "tiny"});
  refused(2, {"stdin", "--format"}, {"eval", "-", "--model", "tiny"}, {.input = "text,label\nw5,neutral\n"});
}

TEST_F(Verbs, InterruptedEvalPrintsNoMetrics) {
  std::string rows = "text,label\n";
  while (rows.size() < (size_t{1} << 20)) rows += "w5 w6 w7,neutral\n";
  Running* run = nullptr;
  Surroundings around;
  around.feed = [&](int fd) {
    for (size_t at = 0; at < rows.size();) {  // larger than a pipe buffer: once it is written, the program is reading
      const ssize_t n = ::write(fd, rows.data() + at, rows.size() - at);
      if (n <= 0) return;
      at += static_cast<size_t>(n);
    }
    run->signal(SIGINT);
  };
  Running running(folder_, {"eval", "-", "--format", "csv", "--model", "tiny", "--device", "cpu", "--json"}, around);
  run = &running;
  const Outcome got = running.wait();
  EXPECT_EQ(got.code, 130) << got.err;
  EXPECT_EQ(got.out, "");
  EXPECT_NE(got.err.find("interrupted after"), std::string::npos) << got.err;
}

TEST_F(Verbs, FailsIfStdoutIsFull) {
  put("a.csv", "text,label\nw5,neutral\n");
  const Surroundings full{.stdout_path = "/dev/full"};
  refused(7, {"stdout", "No space left"}, {"eval", "a.csv", "--model", "tiny", "--json"}, full);
  refused(7, {"stdout", "No space left"}, {"models", "list"}, full);
  refused(7, {"stdout", "No space left"}, {"help", "score"}, full);
}

// stderr on a full disk, on a pipe without a reader, and closed.
TEST_F(Verbs, ContinuesWithoutWritableStderr) {
  put("in.txt", "w5\nw6\n");
  put("a.csv", "text,label\nw5,neutral\nw7,negative\n");
  for (const char* where : {"2>/dev/full", "2>&-", "2> >(exec true)"})
    for (const auto& [command, code] :
         {std::pair("score in.txt --model tiny --device cpu -o o.csv", 0), std::pair("eval a.csv --model tiny", 0),
          std::pair("plan --model tiny --device cpu", 0), std::pair("score none.txt --model tiny", 2),
          std::pair("train --model tiny --train a.csv --output-dir out --max-steps 2 --device cpu", 0)}) {
      std::filesystem::remove(folder_ / "o.csv");
      std::filesystem::remove_all(folder_ / "out");
      const std::string line = fmt::format("cd '{}' && exec bash -c \"exec '{}' {} >out.txt {}\"", folder_.string(),
                                           BRIM_PROGRAM, command, where);
      const int status = std::system(line.c_str());
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == code) << status << ": " << line;
      if (command[0] == 's' && code == 0) {
        EXPECT_EQ(lines_of(get("o.csv")).size(), 3u) << where;
      }
    }
}

// As with `| head`.
TEST_F(Verbs, ClosedOutputPipeIsNotAnError) {
  put("in.txt", made_up_lines(20'000));
  for (const char* command : {"score in.txt --model vader -q", "tokenize in.txt --model tiny",
                              "embed in.txt --model tiny --device cpu -q", "help score", "models list"}) {
    const std::string line =
        fmt::format("cd '{}' && exec bash -c \"'{}' {} 2>err.txt | head -c 10 >/dev/null; exit \\${{PIPESTATUS[0]}}\"",
                    folder_.string(), BRIM_PROGRAM, command);
    const int status = std::system(line.c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status << ": " << line;
    EXPECT_EQ(get("err.txt"), "") << line;
  }
}

TEST_F(Verbs, EvaluatesMultiLabelRows) {
  make_model("bert_multilabel", "multi");
  put("names.csv", "text,label\nw5 w6,negative|positive\nw7,\nw8 w9,neutral\n");
  put("columns.csv", "text,positive,neutral,negative\nw5 w6,1,0,true\nw7,0,0,0\nw8 w9,0,1,False\n");
  const auto names = nlohmann::json::parse(must({"eval", "names.csv", "--model", "multi", "--json"}));
  EXPECT_EQ(names.at("rows"), 3);
  EXPECT_EQ(names.at("multi_label"), true);
  EXPECT_EQ(names.at("per_class").at("negative").at("support"), 1);
  const auto columns = nlohmann::json::parse(
      must({"eval", "--label-column", "positive,neutral,negative", "columns.csv", "--model", "multi", "--json"}));
  EXPECT_EQ(columns, names);
  const auto again =
      nlohmann::json::parse(must({"eval", "--label-column", "positive", "--label-column", "neutral", "--label-column",
                                  "negative", "columns.csv", "--model", "multi", "--json"}));
  EXPECT_EQ(again, names);
  EXPECT_NE(must({"eval", "names.csv", "--model", "multi"}).find("exact match"), std::string::npos);
  put("bad.csv", "text,positive,neutral,negative\nw5,1,0,0\nw6,0,2,0\n");
  refused(3, {"bad.csv", "3", "column neutral: expected 0, 1, true or false, found '2'"},
          {"eval", "bad.csv", "--model", "multi", "--label-column", "positive,neutral,negative"});
  refused(2, {"multi-label model"}, {"eval", "columns.csv", "--model", "tiny", "--label-column", "positive,neutral"});
  put("angry.csv", "text,positive,angry\nw5,1,0\n");
  refused(3, {"angry", "negative, neutral, positive"},
          {"eval", "angry.csv", "--model", "multi", "--label-column", "positive,angry"});
}

TEST_F(Verbs, EvaluatesEntities) {
  make_model("bert_token", "ner");
  put("a.conll", "w5 B-PER\nw6 O\n\nw7 B-LOC\nw8 I-LOC\n");
  const auto got = nlohmann::json::parse(must({"eval", "a.conll", "--model", "ner", "--json", "--format", "conll"}));
  EXPECT_EQ(got.at("rows"), 2);
  for (const char* key : {"entity_f1", "accuracy", "per_class"}) EXPECT_TRUE(got.contains(key)) << key;
  ASSERT_EQ(std::system(fmt::format("gzip -k '{}'", (folder_ / "a.conll").string()).c_str()), 0);
  EXPECT_EQ(nlohmann::json::parse(must({"eval", "a.conll.gz", "--model", "ner", "--json"})), got);
  put("empty.conll", "\n");
  refused(3, {"empty.conll", "no labelled sentences"}, {"eval", "empty.conll", "--model", "ner"});

  // The same sentences in every supported format.
  put("a.txt", get("a.conll"));
  EXPECT_EQ(nlohmann::json::parse(must({"eval", "a.txt", "--model", "ner", "--json"})), got);
  put("a.jsonl", R"({"tokens": ["w5", "w6"], "ner_tags": ["B-PER", "O"]}
{"tokens": ["w7", "w8"], "ner_tags": ["B-LOC", "I-LOC"]}
)");
  EXPECT_EQ(nlohmann::json::parse(must({"eval", "a.jsonl", "--model", "ner", "--json"})), got);
  put("n.jsonl", R"({"tokens": ["w5", "w6"], "ner_tags": [1, 0]}
{"tokens": ["w7", "w8"], "ner_tags": [3, 4]}
)");
  EXPECT_EQ(nlohmann::json::parse(must({"eval", "n.jsonl", "--model", "ner", "--json"})), got);

  put("x.conll", "w5 O\nw6 X-LOC\n");
  refused(3, {"x.conll: line 2: invalid tag 'X-LOC'", "B-TYPE"}, {"eval", "x.conll", "--model", "ner"});
  put("wide.conll", "w5 B-PER 0.99\nw6 O 0.5\n");
  refused(3, {"wide.conll: line 1: invalid tag '0.99' in the last of 3 columns"},
          {"eval", "wide.conll", "--model", "ner"});
  put("other.conll", "w5 O\nw6 B-city\n");
  refused(3, {"other.conll: line 2: unknown tag 'B-city'", "B-LOC"}, {"eval", "other.conll", "--model", "ner"});
  for (const char* file : {"a.conll", "a.txt", "a.jsonl"})
    refused(2, {file, "tagged words", "brim eval", "one per line"}, {"score", file, "--model", "ner"});
  EXPECT_EQ(lines_of(must({"score", "a.txt", "--format", "txt", "--model", "ner", "-q"})).size(), 6u);
}

TEST_F(Verbs, RecordsAndUsesAgreement) {
  put("a.csv", "text,label\nw5,neutral\nw7,neutral\nw8 w9,negative\nw6,2\n");
  must({"eval", "a.csv", "--model", "tiny", "--record-agreement"});
  EXPECT_NE(must({"models", "show", "tiny"}).find("agree with fp32"), std::string::npos);
  EXPECT_EQ(json_of("tiny/brim.json").at("version"), 1);
  put("tiny/brim.json", "{\"int8_agreement\": 0.99}");  // existing value
  EXPECT_NE(must({"models", "show", "tiny"}).find("agree with fp32"), std::string::npos);
}

TEST_F(Verbs, PlansForMissingDevice) {
  const auto plan = nlohmann::json::parse(must({"plan", "--model", "tiny", "--device", "rtx3050-6gb", "--json"}));
  int64_t sum = 0;
  for (const auto& [tag, bytes] : plan.at("bytes").items()) sum += bytes.get<int64_t>();
  EXPECT_EQ(sum, plan.at("peak_bytes").get<int64_t>());
  std::map<std::string, int64_t> by_tag;
  for (const auto& entry : plan.at("ledger")) {
    EXPECT_FALSE(entry.at("owner").get<std::string>().empty());
    by_tag[entry.at("tag").get<std::string>()] += entry.at("bytes").get<int64_t>();
  }
  for (const auto& [tag, bytes] : plan.at("bytes").items()) EXPECT_EQ(by_tag[tag], bytes.get<int64_t>()) << tag;
  EXPECT_LE(plan.at("peak_bytes").get<int64_t>(), plan.at("limit_bytes").get<int64_t>());
  EXPECT_GT(plan.at("token_budget").get<int64_t>(), 0);
  refused(5, {"--memory-limit"}, {"plan", "--model", "tiny", "--device", "rtx3050-6gb", "--memory-limit", "64MiB"});
  refused(5, {"--memory-limit"}, {"score", "--model", "tiny", "--device", "cpu", "--memory-limit", "1KiB"},
          {.input = "w5\n"});
  refused(2, {"rtx3051"}, {"plan", "--model", "tiny", "--device", "rtx3051"});
}

// The format version is the first key of every JSON report.
TEST_F(Verbs, ReportsStartWithVersion) {
  put("a.csv", "text,label\nw5 w6,negative\nw7,positive\n");
  must({"score", "a.csv", "--model", "tiny", "-o", "o.csv", "--summary-json", "s.json", "--trace", "t.json"});
  std::vector<std::string> reports = {
      get("s.json"),
      get("t.json"),
      must({"plan", "--model", "tiny", "--device", "rtx3070", "--json"}),
      must({"plan", "--model", "tiny", "--task", "train", "--device", "rtx3070", "--json"}),
      must({"plan", "--model", "tiny,vader", "--device", "rtx3070", "--json"}),
      brim({"plan", "--model", "tiny", "--device", "rtx3070", "--memory-limit", "1MiB", "--json"}).out,
      must({"eval", "a.csv", "--model", "tiny", "--json"}),
      must({"compare", "--models", "tiny,vader", "--data", "a.csv", "--json"}),
      must({"doctor", "--json"}),
      must({"doctor", "--run", "t.json", "--json"}),
      must({"monitor", "--json"}),
      must({"monitor", "--jsonl", "-", "--samples", "1"}),
      must(
          {"profile", "--model", "vader", "--sizes", "10", "--batch-sizes", "1", "--seconds", "0.01", "--json", "-q"})};
  const auto all = nlohmann::ordered_json::parse(must({"plan", "--model", "tiny", "--device", "all", "--json"}));
  for (const auto& row : all) reports.push_back(row.dump());
  ASSERT_GT(reports.size(), 30u);
  for (const std::string& text : reports) {
    const auto report = nlohmann::ordered_json::parse(text);
    ASSERT_TRUE(report.is_object()) << text.substr(0, 200);
    EXPECT_EQ(report.begin().key(), "schema_version") << text.substr(0, 200);
    EXPECT_EQ(report.begin().value(), 1) << text.substr(0, 200);
  }
  const auto trace = nlohmann::ordered_json::parse(get("t.json"));
  EXPECT_EQ(trace.at("otherData").at("brim").begin().key(), "schema_version");
}

}  // namespace
}  // namespace brim
