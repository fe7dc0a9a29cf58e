// SPDX-License-Identifier: Apache-2.0
// brim forecast: files in, forecasts out, metrics, and invalid input.
#include <signal.h>
#include <unistd.h>

#include <random>

#include "cli/program.h"

namespace brim {
namespace {

class Forecast : public ProgramTest {
 protected:
  const std::string goldens_ = BRIM_SOURCE_DIR "/tests/data/forecast/";
};

TEST_F(Forecast, PredictsWithColumnsOfNeuralForecast) {
  put("s/AAPL.csv", "Date,Open,Adj Close\n2015-01-01,1,10\n2015-01-02,2,20\n2015-01-05,3,30\n");
  put("s/MSFT.csv", "Date,Open,Adj Close\n2015-01-01,1,5\n2015-01-02,2,6\n2015-01-06,3,7\n");
  const std::vector<std::string> stocks = {"forecast", "predict",         "--data",    "s",         "--model",
                                           "naive",    "--target-column", "Adj Close", "--horizon", "2"};
  const Outcome o = brim(stocks);
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out,
            "unique_id,ds,Naive\nAAPL,2015-01-06,30\nAAPL,2015-01-07,30\nMSFT,2015-01-07,7\nMSFT,2015-01-08,7\n");
  EXPECT_NE(o.err.find("long layout · 2 series · 6 points · business days (B) · 1 point missing, masked"),
            std::string::npos)
      << o.err;
  auto named = stocks;
  named.insert(named.end(), {"-o", "out.csv.gz", "--alias", "Last", "-q"});
  EXPECT_EQ(brim(named).err, "");
  EXPECT_EQ(lines_of(unpacked("out.csv.gz"))[0], "unique_id,ds,Last");
  put("a.yaml", "forecast:\n  data: s\n  model: naive\n  horizon: 1\n  target_column: Open\ncache:\n  ttl: 5\n");
  const Outcome from_file = brim({"forecast", "predict", "--config", "a.yaml", "--horizon", "2"});
  EXPECT_EQ(lines_of(from_file.out).size(), 5u) << from_file.err;
  EXPECT_NE(from_file.err.find("other programs: cache"), std::string::npos) << from_file.err;
  const Outcome by_variable = brim({"forecast", "predict", "--data", "s", "--target-column", "Open", "-q"},
                                   {.environment = {{"BRIM_HORIZON", "3"}, {"BRIM_MODEL", "naive"}}});
  EXPECT_EQ(lines_of(by_variable.out).size(), 7u) << by_variable.err;
}

TEST_F(Forecast, EvaluatesModelsAndFiles) {
  const std::vector<std::string> files = {
      "--data", goldens_ + "train.csv", "--actual", goldens_ + "test.csv", "--season", "4", "--json"};
  const auto measured = [&](std::vector<std::string> what) {
    what.insert(what.begin(), {"forecast", "eval"});
    what.insert(what.end(), files.begin(), files.end());
    return nlohmann::json::parse(must(what));
  };
  const auto naive2 = measured({"--model", "naive2"});
  EXPECT_EQ(naive2.at("schema_version"), 1);
  EXPECT_EQ(naive2.at("series"), 6);
  EXPECT_EQ(naive2.at("horizon"), 8);
  EXPECT_EQ(naive2.at("owa"), 1.0);
  EXPECT_NEAR(naive2.at("smape").get<double>(), 8.6886, 1e-3);  // mean of the golden's
  must({"forecast", "predict", "--data", goldens_ + "train.csv", "--model", "naive2", "--season", "4", "--horizon", "8",
        "-o", "f.csv", "-q"});
  const auto again = measured({"--forecast", "f.csv"});
  EXPECT_EQ(again.at("model"), "Naive2");
  EXPECT_NEAR(again.at("mase").get<double>(), naive2.at("mase").get<double>(), 1e-6);
  EXPECT_EQ(again.at("naive2"), naive2.at("naive2"));
  std::vector<std::string> table = {"forecast", "eval", "--model", "snaive"};
  table.insert(table.end(), files.begin(), files.end() - 1);
  EXPECT_NE(must(table).find("(seasonal naive)"), std::string::npos);
}

TEST_F(Forecast, TrainsEnsembleAndPredicts) {
  const std::vector<std::string> train = {"forecast",      "train", "--data",      goldens_ + "train.csv",
                                          "--horizon",     "8",     "--season",    "4",
                                          "--lookbacks",   "2,3",   "--losses",    "smape,mae",
                                          "--n-blocks",    "2",     "--mlp-units", "32,32",
                                          "--batch-size",  "16",    "--max-steps", "70",
                                          "--random-seed", "3",     "--device",    "cpu",
                                          "--model",       "nbeats"};
  const auto into = [&](const char* output, std::vector<std::string> more = {}) {
    more.insert(more.begin(), train.begin(), train.end());
    more.insert(more.end(), {"-o", output});
    return more;
  };
  const Outcome o = brim(into("m"));
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("4 lanes of 2 blocks · 70 steps of 16 windows"), std::string::npos) << o.err;
  EXPECT_NE(get("m/README.md").find("| 3 | 24 | mae |"), std::string::npos);
  must(into("again", {"-q"}));
  EXPECT_EQ(get("m/model.safetensors"), get("again/model.safetensors")) << "equal seeds give equal bits";
  const std::string forecasts =
      must({"forecast", "predict", "--data", goldens_ + "train.csv", "--model", "m", "--device", "cpu", "-q"});
  EXPECT_EQ(lines_of(forecasts)[0], "unique_id,ds,NBEATS");
  EXPECT_EQ(lines_of(forecasts).size(), 6u * 8u + 1u);
  const auto e = nlohmann::json::parse(must({"forecast", "eval", "--data", goldens_ + "train.csv", "--actual",
                                             goldens_ + "test.csv", "--model", "m", "--season", "4", "--json"}));
  EXPECT_GT(e.at("owa").get<double>(), 0);
  refused(7, {"m: not empty", "--output"}, into("m"));
  refused(5, {"One lane requires", "--memory-limit"}, into("no", {"--memory-limit", "10MiB"}));
  refused(2, {"--horizon 9", "8 points"},
          {"forecast", "predict", "--data", goldens_ + "train.csv", "--model", "m", "--horizon", "9"});
}

TEST_F(Forecast, ReadsLongSeriesWithLittleOverhead) {
  if (kInstrumented) GTEST_SKIP() << "sanitizers add memory";
  constexpr int kPoints = 2'000'000;
  const auto peak = [&](int points) {
    {  // freed before the program starts, because its peak would include it
      std::string text = "ds,y\n";
      for (int i = 0; i < points; ++i) text += std::to_string(i) + "," + std::to_string(i % 97) + "\n";
      put("long.csv", text);
    }
    const Outcome o = brim({"forecast", "predict", "--data", "long.csv", "--model", "naive", "--horizon", "1", "-q"});
    EXPECT_EQ(o.out,
              "unique_id,ds,Naive\nlong," + std::to_string(points) + "," + std::to_string((points - 1) % 97) + "\n");
    return o.peak_kib;
  };
  const long values_kib = 4L * kPoints / 1024;
  EXPECT_LT(peak(kPoints) - peak(2), 3 * values_kib + 4096);  // a growing vector uses up to three times as much
}

std::string random_walks() {
  std::string text = "unique_id,ds,y\n";
  std::mt19937 random(5);
  for (const char* id : {"a", "b", "c"}) {
    double level = 50;
    for (int day = 0; day < 90; ++day) {
      level += static_cast<double>(random() % 201) / 100 - 1;
      text += std::string(id) + "," + std::to_string(day + 1) + "," + std::to_string(level) + "\n";
    }
  }
  return text;
}

TEST_F(Forecast, ResumesTrainingAfterKillAndWritesReport) {
  put("walks.csv", random_walks());
  const auto train = [](const char* output) {
    return std::vector<std::string>{"forecast",
                                    "train",
                                    "--data",
                                    "walks.csv",
                                    "--horizon",
                                    "4",
                                    "--losses",
                                    "quantile",
                                    "--level",
                                    "80",
                                    "--stack-types",
                                    "trend,seasonality",
                                    "--n-blocks",
                                    "1",
                                    "--mlp-units",
                                    "16,16",
                                    "--lookbacks",
                                    "2,3",
                                    "--batch-size",
                                    "16",
                                    "--max-steps",
                                    "300",
                                    "--save-steps",
                                    "10",
                                    "--early-stop-patience-steps",
                                    "20",
                                    "--val-check-steps",
                                    "25",
                                    "--device",
                                    "cpu",
                                    "-q",
                                    "-o",
                                    output};
  };
  must(train("whole"));
  int kills = 0;
  for (int tries = 0; kills < 4 && tries < 20; ++tries) {
    Running run(folder_, train("killed"), {});
    usleep(20'000);
    run.signal(SIGKILL);
    kills += run.wait().signal == SIGKILL ? 1 : 0;
  }
  if (!exists("killed/config.json")) must(train("killed"));
  EXPECT_GT(kills, 0);
  EXPECT_EQ(get("killed/model.safetensors"), get("whole/model.safetensors"));
  EXPECT_FALSE(exists("killed/state"));
  for (const char* part : {"Loss by lane", "Memory per wave and limit", "Components", "seasonality"})
    EXPECT_NE(get("whole/report.html").find(part), std::string::npos) << part;
  const std::string shown = must({"models", "show", "whole"});
  for (const char* part :
       {"N-BEATS, 2 lanes", "4 points", "0.1, 0.5, 0.9", "1 trend of width 16", "quantile with lookback 12"})
    EXPECT_NE(shown.find(part), std::string::npos) << part << shown;
  const auto rows = lines_of(must(
      {"forecast", "predict", "--data", "walks.csv", "--model", "whole", "--components", "--device", "cpu", "-q"}));
  EXPECT_EQ(rows[0], "unique_id,ds,NBEATS,NBEATS-lo-80,NBEATS-hi-80,NBEATS-level,NBEATS-trend,NBEATS-seasonality");
  EXPECT_EQ(rows.size(), 1u + 3 * 4);
}

TEST_F(Forecast, PlansTrainingAndRolling) {
  put("walks.csv", random_walks());
  const std::vector<std::string> plan = {"plan",  "--task",   "forecast", "--horizon",      "13",   "--preset",
                                         "paper", "--device", "rtx3060",  "--memory-limit", "11GiB"};
  const std::string output = must(plan);
  for (const char* part : {"18 lanes of 30 blocks", "optimizer", "lanes", "total", "waves", "without --data"})
    EXPECT_NE(output.find(part), std::string::npos) << part << output;
  auto as_json = plan;
  as_json.insert(as_json.end(), {"--json", "--folds", "20", "--data", "walks.csv"});
  const auto j = nlohmann::json::parse(must(as_json));
  EXPECT_EQ(j.at("lanes"), 18 * 21);  // includes the training before the first fold
  EXPECT_LE(j.at("planned_bytes"), j.at("limit_bytes"));
  EXPECT_GT(j.at("waves"), 1);
  auto small = plan;
  small.back() = "500MiB";
  refused(5, {"One lane requires", "--memory-limit"}, small);
  refused(2, {"--folds: requires --task forecast"}, {"plan", "--folds", "3"});
}

std::vector<std::string> roll_command(const std::string& output, const std::vector<std::string>& more = {}) {
  std::vector<std::string> all = {"forecast",     "roll", "--data",      "walks.csv", "--horizon",    "3",
                                  "--folds",      "8",    "--refit",     "2",         "--lookbacks",  "2,3",
                                  "--losses",     "mae",  "--n-blocks",  "1",         "--mlp-units",  "16,16",
                                  "--batch-size", "16",   "--max-steps", "60",        "--save-steps", "8",
                                  "--device",     "cpu",  "-o",          output};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST_F(Forecast, RollsAndReportsSkillAgainstNaive) {
  put("walks.csv", random_walks());
  put("gpu.yaml",
      "gpu_optimization:\n  max_memory_gb: 12.0\n  use_mixed_precision: true\n  gradient_accumulation_steps: 2\n"
      "  dynamic_batch_sizing: true\n  memory_monitoring: true\n  target_utilization: 85\n");
  const Outcome o = brim(roll_command("r", {"--config", "gpu.yaml", "--warm", "anchor", "--keep-models"}));
  EXPECT_EQ(o.code, 0) << o.err;
  for (const char* part :
       {"8 folds", "warm start: anchor", "dynamic_batch_sizing is ignored", "memory_monitoring is ignored", "11.2 GiB"})
    EXPECT_NE(o.err.find(part), std::string::npos) << part << o.err;
  EXPECT_NE(o.out.find("naive"), std::string::npos) << o.out;
  const auto rows = lines_of(get("r/forecasts.csv"));
  EXPECT_EQ(rows[0], "unique_id,ds,cutoff,y,NBEATS,NBEATS-lo-80,NBEATS-hi-80,NBEATS-lo-95,NBEATS-hi-95");
  EXPECT_EQ(rows.size(), 1u + 8 * 3 * 3);
  EXPECT_EQ(rows[1].substr(0, 8), "a,81,80,");
  const auto j = json_of("r/roll.json");
  EXPECT_EQ(j.at("warm"), "anchor");
  EXPECT_EQ(j.at("windows_per_step"), 32);
  EXPECT_EQ(j.at("target_utilization"), 85);
  EXPECT_EQ(j.at("folds").size(), 8u);
  EXPECT_EQ(j.at("memory").at("limit_bytes"), 12'000'000'000);
  EXPECT_GE(j.at("against_naive").at("p_value").get<double>(), 0);
  const std::string page = get("r/report.html");
  for (const char* part :
       {"Warm starts", "Error by fold", "Skill vs. naive by series", "Worst: ", "target_utilization"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  must({"forecast", "predict", "--model", "r/models/6", "--data", "walks.csv", "--device", "cpu", "-q"});
}

TEST_F(Forecast, DoctorAndMonitorSupportForecastRuns) {
  put("walks.csv", random_walks());
  must(roll_command("r", {"-q", "--trace", "t.json"}));
  const auto d = nlohmann::json::parse(must({"doctor", "--run", "t.json", "--json"})).at("run");
  EXPECT_GE(d.at("attributed").get<double>(), 0.95) << d.dump(2);
  EXPECT_GT(d.at("busy_seconds").get<double>(), 0);
  EXPECT_GT(d.at("idle_by_cause").at("writer").get<double>(), 0) << "a checkpoint every eighth step";
  EXPECT_EQ(d.at("idle_by_cause").at("tokenizer"), 0);
  EXPECT_GT(json_of("r/roll.json").at("busy").get<double>(), 0);

  const auto train = [](const char* output, const char* steps) {
    return std::vector<std::string>{"forecast",     "train", "--data",      "walks.csv", "--horizon",   "3",
                                    "--losses",     "mae",   "--lookbacks", "2,3",       "--n-blocks",  "1",
                                    "--batch-size", "16",    "--threads",   "1",         "--max-steps", steps,
                                    "--device",     "cpu",   "-o",          output};
  };
  auto diagnosed = train("m", "400");
  diagnosed.insert(diagnosed.begin(), {"doctor", "--verify", "--"});
  const std::string output = must(diagnosed);
  EXPECT_NE(output.find("device busy"), std::string::npos) << output;
  EXPECT_NE(output.find("verified"), std::string::npos) << output;
  EXPECT_TRUE(exists("m/config.json"));
  EXPECT_FALSE(exists("m.doctor"));
  refused(2, {"brim forecast train", "brim forecast roll"}, {"doctor", "--", "brim", "forecast", "eval"});

  const Surroundings own = {.environment = {{"XDG_RUNTIME_DIR", folder_.string()}}};
  Running run(folder_, train("long", "10000000"), own);
  nlohmann::json seen;
  const auto number = [&](const char* key) {
    return seen.contains(key) && seen[key].is_number() ? seen[key].get<double>() : 0;
  };
  for (int i = 0; i < 500 && !run.ended() && number("step") == 0; ++i) {
    usleep(10'000);
    const auto runs = nlohmann::json::parse(must({"monitor", "--json"}, own)).at("runs");
    if (!runs.empty()) seen = runs[0];
  }
  run.signal(SIGINT);
  EXPECT_EQ(run.wait().code, 130);
  EXPECT_EQ(seen.value("command", ""), "forecast train") << seen.dump(2);
  EXPECT_GT(number("step"), 0) << seen.dump(2);
  EXPECT_GT(number("loss"), 0) << seen.dump(2);
}

// Twenty kills at random moments, some while a checkpoint is written, do not change the output bytes.
TEST_F(Forecast, ResumesRollAfterKills) {
  put("walks.csv", random_walks());
  std::mt19937 random(7);
  for (const char* warm : {"none", "chain"}) {
    const auto command = [&](const char* output) {
      return roll_command(output, {"--warm", warm, "--warm-steps", "40", "--max-steps", "400", "-q"});
    };
    auto whole = command("whole");
    auto killed = command("killed");
    if (std::string(warm) == "none")
      for (auto* words : {&whole, &killed})
        std::erase_if(*words, [](const auto& w) { return w == "--warm-steps" || w == "40"; });
    must(whole);
    int kills = 0;
    for (int tries = 0; kills < 10 && tries < 40; ++tries) {
      Running run(folder_, killed, {});
      usleep(2000 + random() % 60'000);
      run.signal(SIGKILL);
      kills += run.wait().signal == SIGKILL ? 1 : 0;
    }
    EXPECT_EQ(kills, 10) << warm;
    must(killed);
    EXPECT_EQ(get("killed/forecasts.csv"), get("whole/forecasts.csv")) << warm;
    for (const char* output : {"whole", "killed"}) std::filesystem::remove_all(folder_ / output);
  }
}

TEST_F(Forecast, RollRejectsInvalidInput) {
  put("walks.csv", random_walks());
  put("twice.csv", "unique_id,ds,y\nA,1,1\nA,1,2\n");
  put("mine/notes.txt", "mine");
  refused(7, {"mine: not a rolling run", "--output"}, roll_command("mine"));
  refused(3, {"twice.csv: line 3", "duplicate time"}, roll_command("r", {"--data", "twice.csv"}));
  refused(3, {"300 folds", "--folds 86"}, roll_command("r", {"--folds", "300"}));
  refused(2, {"--warm-steps", "--warm anchor"}, roll_command("r", {"--warm-steps", "5"}));
  refused(2, {"--precision fp16", "loss scaling", "--precision bf16"}, roll_command("r", {"--precision", "fp16"}));
  refused(2, {"--extend", "contains no run"}, roll_command("r", {"--extend"}));
  EXPECT_FALSE(exists("r/forecasts.csv"));
  must(roll_command("r", {"-q"}));
  const std::string before = get("r/forecasts.csv");
  refused(7, {"with --max-steps 60, but this run has --max-steps 61"}, roll_command("r", {"--max-steps", "61"}));
  EXPECT_EQ(get("r/forecasts.csv"), before);  // nothing is written over
  EXPECT_NE(brim(roll_command("r")).err.find("(10 resumed)"), std::string::npos);
}

TEST_F(Forecast, RejectsInvalidInput) {
  put("a.csv", "unique_id,ds,y\nA,2015-01-01,1\nA,2015-01-01,2\n");
  put("b.csv", "unique_id,ds,y\nA,2015-01-01,1\nA,2015-01-02,2\n");
  put("out.csv", "mine");
  const auto predict = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"forecast", "predict", "--model", "naive", "--horizon", "1"});
    return more;
  };
  refused(3, {"a.csv: line 3", "duplicate time", "--id-column"}, predict({"--data", "a.csv", "-o", "out.csv"}));
  EXPECT_EQ(get("out.csv"), "mine");  // nothing is written over
  refused(3, {"b.csv: line 1: unknown column price", "--target-column"},
          predict({"--data", "b.csv", "--target-column", "price"}));
  refused(2, {"--horizon 0"}, predict({"--data", "b.csv", "--horizon", "0"}));
  refused(2, {"b.csv", "input"}, predict({"--data", "b.csv", "-o", "b.csv"}));
  refused(2, {".parquet"}, predict({"--data", "b.csv", "-o", "b.parquet"}));
  refused(2, {"--freq hourly", "15min"}, predict({"--data", "b.csv", "--freq", "hourly"}));
  refused(2, {"--data"}, predict({}));
  refused(2, {"--model arima"}, {"forecast", "predict", "--data", "b.csv", "--model", "arima", "--horizon", "1"});
  refused(2, {"--actual"}, {"forecast", "eval", "--data", "b.csv", "--model", "naive"});
  refused(2, {"train, roll, predict, eval"}, {"forecast"});
  refused(2, {"did you mean predict?"}, {"forecast", "predit"});
  refused(3, {"b.csv: the longest series, 'A', has 2 points, but a horizon of 4 requires 5", "--horizon 1"},
          {"forecast", "train", "--data", "b.csv", "--horizon", "4", "-o", "m", "--device", "cpu"});
  EXPECT_FALSE(exists("m"));
  refused(3, {"'A'", "at 2015-01-02"},
          {"forecast", "eval", "--data", "b.csv", "--actual", "b.csv", "--model", "naive"});
}

}  // namespace
}  // namespace brim
