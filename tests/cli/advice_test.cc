// SPDX-License-Identifier: Apache-2.0
// doctor, compare, plan and profile with unexpected files, flags and signals.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "cli/program.h"

namespace brim {
namespace {

namespace fs = std::filesystem;

class Advice : public ProgramTest {
 protected:
  static Surroundings temporary(const fs::path& folder) {
    Surroundings around;
    around.environment = {{"TMPDIR", folder.string()}};
    return around;
  }
};

TEST_F(Advice, InterruptedDoctorStopsItsRunAndRemovesFiles) {
  put("in.txt", made_up_lines(400'000));
  fs::create_directory(folder_ / "tmp");
  Running doctor(folder_,
                 {"doctor", "--", "brim", "score", "in.txt", "--model", "tiny", "--device", "cpu", "--threads", "1",
                  "-o", "o.csv", "-q"},
                 temporary(folder_ / "tmp"));
  while (!doctor.ended() && !exists("o.csv.part")) ::usleep(1000);
  doctor.signal(SIGTERM);  // only to the doctor, not to its run
  const Outcome got = doctor.wait();
  EXPECT_EQ(got.code, 130) << got.err;
  EXPECT_NE(got.err.find("interrupted after"), std::string::npos) << got.err;
  EXPECT_FALSE(exists("o.csv"));
  EXPECT_TRUE(fs::is_empty(folder_ / "tmp")) << "the trace stayed behind";
}

TEST_F(Advice, DoctorRejectsUnsupportedRuns) {
  refused(2, {"brim score", "brim train"}, {"doctor", "--", "brim", "eval", "--model", "tiny"});
  refused(2, {"--trace", "remove it from the command"},
          {"doctor", "--", "brim", "train", "--model", "tiny", "--trace", "t.json"});
  refused(2, {"is a directory"}, {"doctor", "--run", "."});
  put("in.txt", made_up_lines(50));
  must({"embed", "in.txt", "--model", "tiny", "--trace", "t.json", "-o", "v.jsonl", "-q"});
  refused(3, {"t.json", "scoring or training run", "brim score", "brim train"}, {"doctor", "--run", "t.json"});
}

std::string labelled_rows(int rows) {
  const char* names[] = {"negative", "neutral", "positive"};
  std::string text = "text,label\n";
  for (int r = 0; r < rows; ++r)
    text += fmt::format("w{} w{} w{},{}\n", 5 + r % 30 + 30 * (r % 3), 5 + r * 7 % 91, 5 + r * 11 % 91, names[r % 3]);
  return text;
}

TEST_F(Advice, DoctorDiagnosesTraining) {
  put("rows.csv", labelled_rows(600));
  put("val.csv", labelled_rows(60));
  const std::vector<std::string> run = {
      "train",     "--model", "tiny",         "--train", "rows.csv",        "--val", "val.csv",      "--device", "cpu",
      "--threads", "1",       "--output-dir", "out",     "--save-strategy", "steps", "--save-steps", "2",        "-q"};
  const auto with = [&](std::vector<std::string> before, const std::vector<std::string>& after) {
    before.insert(before.end(), run.begin(), run.end());
    before.insert(before.end(), after.begin(), after.end());
    return before;
  };
  must(with({}, {"--trace", "t.json"}), temporary(folder_));
  const auto d = nlohmann::json::parse(must({"doctor", "--run", "t.json", "--json"})).at("run");
  EXPECT_GE(d.at("attributed").get<double>(), 0.98) << d.dump(2);
  EXPECT_NEAR(d.at("busy_seconds").get<double>() + d.at("idle_seconds").get<double>(), d.at("seconds").get<double>(),
              1e-6);
  EXPECT_GT(d.at("busy_seconds").get<double>(), 0);
  EXPECT_EQ(d.at("idle_by_cause").at("reader"), 0) << "rows are read and tokenized before the first step";
  EXPECT_GT(d.at("idle_by_cause").at("writer").get<double>(), 0) << "a checkpoint every second step";
  EXPECT_GT(d.at("idle_by_cause").at("evaluation").get<double>(), 0);

  // Unnecessary full recomputation must be reported; the verification run leaves no files.
  const auto verified =
      nlohmann::json::parse(must(with({"doctor", "--verify", "--json", "--"},
                                      {"--recompute=full", "--overwrite-output-dir", "--save-strategy", "no"}),
                                 temporary(folder_)));
  const auto& findings = verified.at("run").at("findings");
  const bool named = std::any_of(findings.begin(), findings.end(),
                                 [](const nlohmann::json& f) { return f.at("cause") == "memory pressure"; });
  EXPECT_TRUE(named) << verified.dump(2);
  EXPECT_GT(verified.at("verify").at("obtained_seconds").get<double>(), 0) << verified.dump(2);
  EXPECT_TRUE(exists("out/model.safetensors"));
  EXPECT_FALSE(exists("out.doctor"));
  for (const auto& file : fs::directory_iterator(folder_))
    EXPECT_FALSE(file.path().filename().string().starts_with("brim_doctor_")) << file.path();
}

TEST_F(Advice, DoctorReportsWhetherSettingsWereWritten) {
  put("in.txt", made_up_lines(2000));
  const std::string output = must({"doctor", "--apply", "fast.env", "--", "score", "in.txt", "--model", "tiny",
                                   "--device", "cpu", "--threads", "1", "-o", "o.csv", "-q"});
  const bool any = get("fast.env").find("\nBRIM_") != std::string::npos;
  EXPECT_EQ(output.find("settings written to fast.env") != std::string::npos, any) << output;
  EXPECT_EQ(output.find("no setting would help") != std::string::npos, !any) << output;
}

TEST_F(Advice, PlanThatDoesNotFitIsReportedAsJson) {
  const Outcome got =
      refused(5, {"--memory-limit"},
              {"plan", "--model", "tiny", "--device", "rtx3050-6gb", "--memory-limit", "64MiB", "--json"});
  const auto plan = nlohmann::json::parse(got.out);
  EXPECT_EQ(plan.at("fits"), false);
  EXPECT_EQ(plan.at("limit_bytes"), 64 << 20);
  must({"plan", "--model", "tiny", "--device", "rtx3050-6gb", "--memory-limit",
        std::to_string(plan.at("smallest_limit_bytes").get<int64_t>()) + "B"});
}

TEST_F(Advice, PlanAcceptsGpuNameOrDescription) {
  refused(2, {"cannot be combined with --vram"},
          {"plan", "--model", "tiny", "--device", "all", "--vram", "8GiB", "--tflops", "20", "--bandwidth", "300"});
  const auto own = nlohmann::json::parse(
      must({"plan", "--model", "tiny", "--vram", "8GiB", "--tflops", "20", "--bandwidth", "300", "--json"}));
  EXPECT_EQ(own.at("device").at("total_bytes"), int64_t{8} << 30);
  ASSERT_EQ(own.at("neighbours").size(), 1u) << "one GiB more exceeds the GPU's memory";
  EXPECT_EQ(own.at("neighbours")[0].at("limit_bytes"), own.at("limit_bytes").get<int64_t>() - (int64_t{1} << 30));
  refused(2, {"--learning-rate"}, {"plan", "--model", "tiny", "--task", "train", "--learning-rate", "-1"});
}

TEST_F(Advice, CompareReportsErrorsBeforeItRuns) {
  put("rows.csv", "text,label\nw5,neutral\nw6,positive\n");
  const auto compare = [](const std::string& models, std::vector<std::string> more) {
    more.insert(more.begin(), {"compare", "--models", models, "-q"});
    return more;
  };
  const auto both = nlohmann::json::parse(must(compare("vader,tiny", {"--data", "rows.csv", "--json"})));
  EXPECT_EQ(both.at("rows"), 2);
  EXPECT_TRUE(both.at("models")[0].at("tokens_per_second").is_null());
  refused(2, {"nosuch.csv", "No such file"}, compare("vader,tiny", {"--data", "nosuch.csv"}));
  refused(2, {"is a directory"}, compare("vader,tiny", {"--data", "."}));
  refused(2, {"must be a file"}, compare("vader,tiny", {"--data", "-"}));
  put("odd.csv", "text,label\nw5,neutral\nw6,angry\n");
  refused(3, {"odd.csv:3", "angry", "neutral"}, compare("vader,tiny", {"--data", "odd.csv"}));
  refused(7, {"nosuch"}, compare("vader,tiny", {"--data", "rows.csv", "--disagreements", "nosuch/d.jsonl"}));
  make_model("bert_sequence", "topics");
  edit_config("topics", [](nlohmann::json& config) {
    config["id2label"] = {{"0", "negative"}, {"1", "positive"}, {"2", "mixed"}};
    config["label2id"] = {{"negative", 0}, {"positive", 1}, {"mixed", 2}};
  });
  const std::string differing = must(compare("vader,topics", {"--data", "rows.csv"}));
  EXPECT_NE(differing.find("topics has no neutral: 1 row with that label counts as wrong"), std::string::npos)
      << differing;
  make_model("bert_encoder", "bare");
  make_model("bert_token", "words");
  fs::create_directory(folder_ / "empty");
  refused(4, {"bare", "no classification head"}, compare("vader,tiny,bare", {"--data", "rows.csv"}));
  refused(2, {"words", "brim eval"}, compare("vader,words", {"--data", "rows.csv"}));
  refused(4, {"empty", "config.json"}, compare("vader,empty", {"--data", "rows.csv"}));
}

TEST_F(Advice, ProfilePrintsTablesByBatchAndBySize) {
  put("rows.csv", "text,label\nw5 w6,negative\nw7,positive\nw8,neutral\n");
  make_model("bert_sequence", "pair");
  edit_config("pair", [](nlohmann::json& config) {
    config["id2label"] = {{"0", "negative"}, {"1", "positive"}, {"2", "mixed"}};
    config["label2id"] = {{"negative", 0}, {"positive", 1}, {"mixed", 2}};
  });
  const std::string output =
      must({"profile", "--models", "tiny,pair", "--device", "cpu", "--batch-sizes", "1,3", "--sizes", "20,1k",
            "--seconds", "0.01", "--texts", "rows.csv", "--label-column", "label", "--output-dir", "reports", "-q"});
  for (const char* part : {"one at a time/s", "whole file rows/s", "tiny by texts per call", "range", "speed-up",
                           "pair by size of the data set", "\n  20 ", "\n  1,000 ", "limited by",
                           "1 of 3 rows have a label unknown to the model (neutral; known:"})
    EXPECT_NE(output.find(part), std::string::npos) << part << "\n" << output;
}

TEST_F(Advice, TrainingSummarySplitsTotalTime) {
  put("rows.csv", labelled_rows(24));
  const Outcome got = brim({"train", "--model", "tiny", "--device", "cpu", "--train", "rows.csv", "--val", "rows.csv",
                            "--output-dir", "out", "--num-train-epochs", "1", "--per-device-train-batch-size", "8"});
  ASSERT_EQ(got.code, 0) << got.err;
  for (const char* part : {"\ntime ", ": steps ", ", evaluation ", ", saving ", " % of the steps", "\nlimited by: "})
    EXPECT_NE(got.err.find(part), std::string::npos) << part << "\n" << got.err;
}

TEST_F(Advice, SummaryPathIsCheckedBeforeTheRun) {
  put("in.txt", made_up_lines(50));
  for (const char* flag : {"--trace", "--summary-json"}) {
    refused(7, {"nosuch"}, {"score", "in.txt", "--model", "tiny", "-o", "o.csv", flag, "nosuch/f.json"});
    refused(7, {"is a directory"}, {"score", "in.txt", "--model", "tiny", "-o", "o.csv", flag, "."});
    EXPECT_FALSE(exists("o.csv") || exists("o.csv.part")) << flag;
  }
  refused(7, {"nosuch"},
          {"doctor", "--apply", "nosuch/f.env", "--", "score", "in.txt", "--model", "tiny", "-o", "o.csv"});
  EXPECT_FALSE(exists("o.csv"));
}

TEST_F(Advice, EvalWritesTimeline) {
  put("rows.csv", "text,label\nw5 w6,0\nw7,1\n");
  brim({"eval", "rows.csv", "--model", "tiny", "--trace", "t.json", "-q"});
  ASSERT_TRUE(exists("t.json"));
  EXPECT_FALSE(json_of("t.json").at("traceEvents").empty());
}

}  // namespace
}  // namespace brim
