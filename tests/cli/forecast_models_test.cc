// SPDX-License-Identifier: Apache-2.0
// brim forecast: baselines that are fitted, intervals, combined models, and invalid levels.
#include <algorithm>
#include <cmath>

#include "cli/program.h"

namespace brim {
namespace {

class ForecastModels : public ProgramTest {
 protected:
  const std::string goldens_ = BRIM_SOURCE_DIR "/tests/data/forecast/";
  const std::vector<std::string> files_ = {
      "--data", goldens_ + "train.csv", "--actual", goldens_ + "test.csv", "--season", "4", "--json"};

  nlohmann::json measured(std::vector<std::string> what) {
    what.insert(what.begin(), {"forecast", "eval"});
    what.insert(what.end(), files_.begin(), files_.end());
    return nlohmann::json::parse(must(what));
  }

  // Many similar series: a season of 4, a trend and pseudo-random noise.
  std::string seasonal_series(int series, int points) {
    std::string text;
    unsigned state = 7;
    for (int i = 0; i < series; ++i) {
      text += "s" + std::to_string(i);
      for (int t = 0; t < points; ++t) {
        double noise = 0;  // the sum of uniform numbers is about normal
        for (int k = 0; k < 6; ++k) noise += (state = state * 1664525U + 1013904223U) / 4294967296.0 - 0.5;
        text += "," + std::to_string(100 + i + 0.5 * t + 10 * std::sin(M_PI / 2 * t) + 3 * noise);
      }
      text += "\n";
    }
    return text;
  }

  std::vector<std::string> small_training(const std::string& data, const std::string& output) {
    return {
        "forecast", "train",         "--data", data,           "--horizon",  "4",           "--season",    "4",
        "--losses", "mae",           "-o",     output,         "--n-blocks", "1",           "--mlp-units", "16,16",
        "-q",       "--lookbacks",   "2,3",    "--batch-size", "32",         "--max-steps", "40",          "--device",
        "cpu",      "--random-seed", "3"};
  }
};

// No file system has space for this model: 1,000 blocks of matrices of 65,536 × 65,536.
TEST_F(ForecastModels, ChecksDiskSpaceBeforeTraining) {
  put("series.csv", seasonal_series(4, 40));
  std::vector<std::string> args = small_training("series.csv", "model");
  for (std::string& arg : args) {
    if (arg == "16,16") arg = "65536,65536,65536,65536,65536,65536,65536,65536";
    if (arg == "1") arg = "1000";
  }
  refused(7, {"not enough disk space: the run needs ", "a model of ", "free some space or set another --output"}, args);
  EXPECT_FALSE(exists("model"));
}

TEST_F(ForecastModels, EvaluatesAgainstTheBestBaseline) {
  const auto ets = measured({"--model", "ets"});
  EXPECT_EQ(ets.at("model"), "ets");
  EXPECT_NEAR(ets.at("mase").get<double>(), ets.at("ets").at("mase").get<double>(), 1e-9);
  EXPECT_LT(ets.at("mase").get<double>(), ets.at("naive").at("mase").get<double>());
  const auto naive = measured({"--model", "naive"});
  const std::string best = naive.at("best_baseline");
  EXPECT_TRUE(best == "ets" || best == "theta") << best;
  EXPECT_LT(naive.at("skill_best").get<double>(), 0);
  EXPECT_GT(naive.at("against_best").at("statistic").get<double>(), 0);
  EXPECT_TRUE(naive.at("crps").is_null()) << "no intervals";
  const auto few = measured({"--model", "naive", "--baselines", "naive"});
  EXPECT_FALSE(few.contains("ets"));
  std::vector<std::string> table = {"forecast", "eval", "--model", "snaive"};
  table.insert(table.end(), files_.begin(), files_.end() - 1);
  const std::string out = must(table);
  for (const char* part : {"the best baseline", "(Theta)", "(ETS)", "(Naive2)"})
    EXPECT_NE(out.find(part), std::string::npos) << out;
  refused(2, {"--baselines arima", "theta, ets or naive"},
          {"forecast", "eval", "--baselines", "arima", "--data", "x", "--actual", "y", "--model", "naive"});
}

TEST_F(ForecastModels, PredictsWithIntervals) {
  put("many.csv", seasonal_series(60, 40));
  const std::string out = must({"forecast", "predict", "--data", "many.csv", "--model", "theta", "--horizon", "4",
                                "--season", "4", "--level", "80,95", "-q"});
  const std::vector<std::string> lines = lines_of(out);
  EXPECT_EQ(lines[0], "unique_id,ds,AutoTheta,AutoTheta-lo-80,AutoTheta-hi-80,AutoTheta-lo-95,AutoTheta-hi-95");
  EXPECT_EQ(lines.size(), 241u);
  refused(2, {"--level 101", "between 0 and 100"},
          {"forecast", "predict", "--data", "many.csv", "--model", "ets", "--horizon", "4", "--level", "101"});
  refused(3, {"--level 95", "19 held-out errors", "10 are known"},
          {"forecast", "predict", "--data", goldens_ + "train.csv", "--model", "ets", "--horizon", "4", "--season", "4",
           "--level", "95"});
}

TEST_F(ForecastModels, IntervalsOfATrainedModelCoverTheirLevel) {
  const std::string all = seasonal_series(60, 44);
  std::string known, actual;
  for (const std::string& line : lines_of(all)) {
    size_t at = line.size();
    for (int k = 0; k < 4; ++k) at = line.rfind(',', at - 1);
    known += line.substr(0, at) + "\n";
    actual += line.substr(0, line.find(',')) + line.substr(at) + "\n";
  }
  put("known.csv", known);
  put("actual.csv", actual);
  must(small_training("known.csv", "m"));
  EXPECT_NE(get("m/report.html").find("Accuracy on the held-out horizons"), std::string::npos);
  const auto e = nlohmann::json::parse(must({"forecast", "eval", "--data", "known.csv", "--actual", "actual.csv",
                                             "--model", "m", "--season", "4", "--level", "80,95", "--json"}));
  ASSERT_EQ(e.at("levels").size(), 2u);
  EXPECT_NEAR(e.at("levels")[0].at("coverage").get<double>(), 0.80, 0.08);
  EXPECT_NEAR(e.at("levels")[1].at("coverage").get<double>(), 0.95, 0.04);
  EXPECT_GT(e.at("crps").get<double>(), 0);
  EXPECT_LT(e.at("crps").get<double>(), e.at("mae").get<double>());
  const auto season_of_model = nlohmann::json::parse(must({"forecast", "eval", "--data", "known.csv", "--actual",
                                                           "actual.csv", "--model", "m", "--level", "80", "--json"}));
  EXPECT_EQ(season_of_model.at("mae"), e.at("mae"));
  EXPECT_EQ(season_of_model.at("levels")[0].at("coverage"), e.at("levels")[0].at("coverage"));
  auto without = small_training("known.csv", "bare");
  without.insert(without.end(), {"--held-out", "0"});
  must(without);
  EXPECT_EQ(get("m/model.safetensors"), get("bare/model.safetensors")) << "the trial does not change the training";
  refused(2, {"--level", "bare has no errors of held-out horizons", "--held-out 2"},
          {"forecast", "predict", "--data", "known.csv", "--model", "bare", "--level", "80"});
}

TEST_F(ForecastModels, ChoosesSettingsByTheData) {
  put("many.csv", seasonal_series(30, 40));
  const auto train = [&](const std::string& output, std::vector<std::string> more = {}) {
    more.insert(more.begin(),
                {"forecast",    "train",    "--data",       "many.csv", "--horizon", "4",          "--season",
                 "4",           "--losses", "mae",          "-o",       output,      "--n-blocks", "1",
                 "--mlp-units", "16,16",    "--batch-size", "32",       "--device",  "cpu"});
    const Outcome o = brim(more);
    EXPECT_EQ(o.code, 0) << o.err;
    return o.err;
  };
  const std::string chosen = train("m");
  for (const char* part : {"history: 417 horizons for 30 series", "lookbacks: 2, 3, 4, 5 horizons for short series",
                           "held out: 2 horizons of 30 series", "(error relative to naive: ", " after 30, "})
    EXPECT_NE(chosen.find(part), std::string::npos) << part << chosen;
  EXPECT_EQ(nlohmann::json::parse(get("m/config.json")).at("lanes").size(), 4u);
  const auto steps = [](const std::string& err) {
    const size_t at = err.find("steps: ");
    return at == std::string::npos ? "" : err.substr(at, err.find('\n', at) - at);
  };
  EXPECT_EQ(steps(train("again")), steps(chosen));
  EXPECT_EQ(get("again/model.safetensors"), get("m/model.safetensors"));
  EXPECT_NE(steps(train("one", {"--held-out", "1"})).find("steps: 300 (too few horizons"), std::string::npos);
  const std::string given = train("given", {"--history-size", "3", "--lookbacks", "2", "--max-steps", "5"});
  for (const char* part : {"history:", "lookbacks:", "steps: "})
    EXPECT_EQ(given.find(part), std::string::npos) << part << given;
}

TEST_F(ForecastModels, RollChoosesSettingsBeforeItsFirstTraining) {
  const auto roll = [&](const std::string& data, const std::string& output, std::vector<std::string> more = {}) {
    more.insert(more.begin(),
                {"forecast",    "roll",  "--data",       data,   "--horizon",  "4",   "--season",    "4",
                 "--losses",    "mae",   "-o",           output, "--n-blocks", "1",   "--folds",     "2",
                 "--mlp-units", "16,16", "--batch-size", "8",    "--device",   "cpu", "--baselines", "naive"});
    const Outcome o = brim(more);
    EXPECT_EQ(o.code, 0) << o.err;
    return o.err;
  };
  const auto lines_with = [](const std::string& err, const char* part) {
    std::string found;
    for (const std::string& line : lines_of(err))
      if (line.find(part) != std::string::npos) found += line + "\n";
    return found;
  };
  put("many.csv", seasonal_series(30, 48));
  const std::string chosen = roll("many.csv", "r");
  for (const char* part : {"lookbacks: 2, 3, 4, 5 horizons for short series", "held out: 2 horizons of 30 series",
                           "(error relative to naive: ", "3 trainings of 4 lanes"})
    EXPECT_NE(chosen.find(part), std::string::npos) << part << chosen;
  EXPECT_FALSE(exists("r/state/trial-30"));
  // Values after the first cutoff, which is at point 43, do not change the choice.
  std::string other;
  for (const std::string& line : lines_of(get("many.csv"))) {
    size_t at = line.size();
    for (int k = 0; k < 5; ++k) at = line.rfind(',', at - 1);
    other += line.substr(0, at) + ",7,1e6,-3,0,9\n";
  }
  put("other.csv", other);
  const std::string same = roll("other.csv", "o");
  for (const char* part : {"held out: ", "steps: ", "history: "})
    EXPECT_EQ(lines_with(same, part), lines_with(chosen, part));
  // A longer run keeps the settings of the first one.
  std::string longer;
  for (const std::string& line : lines_of(get("many.csv"))) longer += line + ",100,101,102,103\n";
  put("longer.csv", longer);
  const std::string extended = roll("longer.csv", "r", {"--extend"});
  EXPECT_EQ(extended.find("held out:"), std::string::npos) << extended;
  EXPECT_NE(extended.find("of 4 lanes"), std::string::npos) << extended;
  EXPECT_EQ(roll("many.csv", "given", {"--max-steps", "5"}).find("held out:"), std::string::npos);
}

TEST_F(ForecastModels, PageOfATrainingHasTimesWindowsAndMemory) {
  put("many.csv", seasonal_series(30, 40));
  put("settings.yaml", "gpu_optimization:\n  gradient_accumulation_steps: 2\n");
  auto train = small_training("many.csv", "m");
  train.insert(train.end(), {"--config", "settings.yaml"});
  must(train);
  const std::string page = get("m/report.html");
  for (const char* part : {"per epoch", "32 × 2", "memory in use before", "and after",
                           "Accuracy on the held-out horizons", "the last held-out horizon", "80 %"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
}

TEST_F(ForecastModels, ChecksPlotsBeforeForecasting) {
  put("few.csv", seasonal_series(3, 40));
  const auto predict = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"forecast", "predict", "--data", "few.csv", "--model", "naive", "--horizon", "4"});
    return more;
  };
  const std::string before = get("few.csv");
  EXPECT_NE(brim(predict({"--plot", "few.csv"})).code, 0);
  EXPECT_EQ(get("few.csv"), before);
  refused(2, {"--plot x", "is also the output"}, predict({"--plot", "x", "-o", "x"}));
  refused(2, {"--plot-series", "requires --plot"}, predict({"--plot-series", "s1"}));
  refused(2, {"--plot-series none"}, predict({"--plot", "p.html", "--plot-series", "none", "-o", "out.csv"}));
  EXPECT_FALSE(exists("out.csv"));
  must(predict({"--plot", "p.html", "--plot-series", "s1", "-o", "out.csv", "-q"}));
  EXPECT_NE(get("p.html").find("s1"), std::string::npos);
}

TEST_F(ForecastModels, PlotsOnlyTheForecastPoints) {
  put("many.csv", seasonal_series(6, 40));
  auto train = small_training("many.csv", "m");
  train.insert(train.end(), {"--stack-types", "trend,seasonality"});
  must(train);
  const auto page = [&](const std::string& horizon) {
    must({"forecast", "predict", "--data", "many.csv", "--model", "m", "--horizon", horizon, "--plot", "p.html", "-o",
          "out.csv", "-q", "--components", "--level", "50", "--device", "cpu"});
    return get("p.html");
  };
  const std::string all = page("4"), fewer = page("2");
  EXPECT_EQ(lines_of(get("out.csv")).size(), 13u);
  for (const char* point : {"forecast: steps after the cutoff 3,", "trend: step ahead 4,"}) {
    EXPECT_NE(all.find(point), std::string::npos) << point;
    EXPECT_EQ(fewer.find(point), std::string::npos) << point;
  }
  const auto band = [](const std::string& html) {
    const size_t legend = html.find("<title>50 %"), end = html.find("<title>50 %", legend + 1);
    const size_t begin = html.rfind(" d=\"", end);
    return std::count(html.begin() + static_cast<std::ptrdiff_t>(begin),
                      html.begin() + static_cast<std::ptrdiff_t>(end), 'L');
  };
  EXPECT_EQ(band(all), 7);
  EXPECT_EQ(band(fewer), 3);
}

TEST_F(ForecastModels, CombinesModelsByHeldOutError) {
  put("many.csv", seasonal_series(30, 40));
  must(small_training("many.csv", "m"));  // the default
  const std::string page = get("m/report.html");
  EXPECT_NE(page.find("mean of N-BEATS, Theta, ETS and seasonal naive"), std::string::npos);
  const auto config = nlohmann::json::parse(get("m/config.json"));
  const auto combined = config.at("combined").get<std::vector<std::string>>();
  ASSERT_FALSE(combined.empty());
  EXPECT_NE(combined, std::vector<std::string>{"nbeats"}) << "40 steps do not beat ETS on a line with a season";
  const auto predicted = [&](const std::string& model) {
    std::vector<double> values;
    for (const std::string& line : lines_of(must({"forecast", "predict", "--data", "many.csv", "--model", model,
                                                  "--horizon", "4", "--season", "4", "--device", "cpu", "-q"})))
      if (line.find("unique_id") == std::string::npos) values.push_back(std::stod(line.substr(line.rfind(',') + 1)));
    return values;
  };
  std::vector<double> mean(120);
  for (const std::string& name : combined) {
    auto part = small_training("many.csv", "alone");
    part.insert(part.end(), {"--model", "nbeats"});
    if (name == "nbeats") must(part);
    const std::vector<double> values = predicted(name == "nbeats" ? "alone" : name);
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += values.at(i) / static_cast<double>(combined.size());
  }
  const std::vector<double> got = predicted("m");
  ASSERT_EQ(got.size(), mean.size());
  for (size_t i = 0; i < mean.size(); ++i) EXPECT_NEAR(got[i], mean[i], 1e-3);
  auto given = small_training("many.csv", "given");
  given.insert(given.end(), {"--model", "auto"});
  must(given);
  EXPECT_EQ(get("given/config.json"), get("m/config.json"));
  refused(2, {"--model ets", "need no training", "predict --model ets"},
          {"forecast", "train", "--data", "many.csv", "--horizon", "4", "-o", "x", "--model", "ets"});
  refused(
      2, {"--model auto requires held-out horizons"},
      {"forecast", "train", "--data", "many.csv", "--horizon", "4", "-o", "x", "--model", "auto", "--held-out", "0"});
  put("short.csv", "a,1,2,3,4,5,6\nb,2,3,4,5,6,7\n");
  refused(3, {"short.csv", "held-out horizons", "too short"},
          {"forecast", "train", "--data", "short.csv", "--horizon", "4", "-o", "x", "--model", "auto"});
  const Outcome o = brim(small_training("short.csv", "short"));
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(nlohmann::json::parse(get("short/config.json")).at("combined").empty());
}

TEST_F(ForecastModels, ChoosesTheLastValueOfSeriesThatAreFlat) {
  std::string text;
  unsigned state = 3;
  for (int i = 0; i < 6; ++i) {
    text += "s" + std::to_string(i);
    for (int t = 0; t < 40; ++t) text += "," + std::to_string(t < 30 ? (state = state * 1664525U + 7U) >> 24 : 50U + i);
    text += "\n";
  }
  put("flat.csv", text);
  const Outcome o = brim({"forecast",    "train", "--data",      "flat.csv", "--horizon",    "4",   "-o",      "m",
                          "--losses",    "mae",   "--n-blocks",  "1",        "--device",     "cpu", "--model", "auto",
                          "--mlp-units", "16,16", "--lookbacks", "2",        "--batch-size", "8"});
  EXPECT_EQ(o.code, 0) << o.err;
  for (const char* part :
       {"steps: 300 (the naive forecast has no error on the held-out horizons;", "forecasts: naive · MASE "})
    EXPECT_NE(o.err.find(part), std::string::npos) << part << o.err;
  EXPECT_EQ(nlohmann::json::parse(get("m/config.json")).at("combined"), std::vector<std::string>{"naive"});
}

TEST_F(ForecastModels, CombinedQuantileModelsHaveIntervals) {
  put("many.csv", seasonal_series(30, 40));
  auto train = small_training("many.csv", "m");
  *std::find(train.begin(), train.end(), "mae") = "quantile";
  train.insert(train.end(), {"--model", "auto", "--level", "80"});
  must(train);
  auto config = nlohmann::json::parse(get("m/config.json"));
  ASSERT_NE(config.at("combined"), std::vector<std::string>{"nbeats"}) << "40 steps do not beat ETS";
  const auto header = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"forecast", "predict", "--data", "many.csv", "--model", "m", "--device", "cpu", "-q"});
    return lines_of(must(more))[0];
  };
  EXPECT_EQ(header({}), "unique_id,ds,Auto") << "the quantiles are those of N-BEATS alone";
  EXPECT_EQ(header({"--level", "90"}), "unique_id,ds,Auto,Auto-lo-90,Auto-hi-90");
  config["combined"] = {"nbeats"};
  put("m/config.json", config.dump());
  EXPECT_EQ(header({}), "unique_id,ds,Auto,Auto-lo-80,Auto-hi-80");
  EXPECT_EQ(header({"--level", "80"}), "unique_id,ds,Auto,Auto-lo-80,Auto-hi-80");
  refused(2, {"--level 90: m has quantiles for 80 %"},
          {"forecast", "predict", "--data", "many.csv", "--model", "m", "--level", "90", "--device", "cpu"});
}

TEST_F(ForecastModels, FlagsReplaceTheListsOfAFile) {
  put("many.csv", seasonal_series(60, 40));
  put("levels.yaml", "forecast:\n  level: [80, 95]\n");
  const std::string out = must({"forecast", "predict", "--config", "levels.yaml", "--data", "many.csv", "--model",
                                "naive", "--horizon", "4", "--level", "50", "-q"});
  EXPECT_EQ(lines_of(out)[0], "unique_id,ds,Naive,Naive-lo-50,Naive-hi-50");
}

}  // namespace
}  // namespace brim
