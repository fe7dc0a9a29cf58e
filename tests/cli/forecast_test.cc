// SPDX-License-Identifier: Apache-2.0
// brim forecast from the command line: files in, forecasts out, figures, and what is refused.
#include "cli/program.h"

namespace brim {
namespace {

class Forecast : public ProgramTest {
 protected:
  const std::string goldens_ = BRIM_SOURCE_DIR "/tests/data/forecast/";
};

TEST_F(Forecast, PredictsInNeuralForecastsColumns) {
  put("s/AAPL.csv", "Date,Open,Adj Close\n2015-01-01,1,10\n2015-01-02,2,20\n2015-01-05,3,30\n");
  put("s/MSFT.csv", "Date,Open,Adj Close\n2015-01-01,1,5\n2015-01-02,2,6\n2015-01-06,3,7\n");
  const std::vector<std::string> stocks = {"forecast", "predict",         "--data",    "s",         "--model",
                                           "naive",    "--target-column", "Adj Close", "--horizon", "2"};
  const Outcome o = brim(stocks);
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out,
            "unique_id,ds,Naive\nAAPL,2015-01-06,30\nAAPL,2015-01-07,30\nMSFT,2015-01-07,7\nMSFT,2015-01-08,7\n");
  EXPECT_NE(o.err.find("long layout · 2 series · 6 points · business days (B) · 1 point absent, masked"),
            std::string::npos)
      << o.err;
  auto named = stocks;
  named.insert(named.end(), {"-o", "out.csv.gz", "--alias", "Last", "-q"});
  EXPECT_EQ(brim(named).err, "");
  EXPECT_EQ(lines_of(unpacked("out.csv.gz"))[0], "unique_id,ds,Last");
  put("a.yaml", "forecast:\n  data: s\n  model: naive\n  horizon: 1\n  target_column: Open\ncache:\n  ttl: 5\n");
  const Outcome from_file = brim({"forecast", "predict", "--config", "a.yaml", "--horizon", "2"});
  EXPECT_EQ(lines_of(from_file.out).size(), 5u) << from_file.err;
  EXPECT_NE(from_file.err.find("left alone: cache"), std::string::npos) << from_file.err;
  const Outcome by_variable = brim({"forecast", "predict", "--data", "s", "--target-column", "Open", "-q"},
                                   {.environment = {{"BRIM_HORIZON", "3"}, {"BRIM_MODEL", "naive"}}});
  EXPECT_EQ(lines_of(by_variable.out).size(), 7u) << by_variable.err;
}

TEST_F(Forecast, MeasuresModelsAndFiles) {
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

// A regular series costs its values: times or rows kept beside them would show.
TEST_F(Forecast, TrainsAnEnsembleAndForecastsWithIt) {
  const std::vector<std::string> train = {"forecast",      "train", "--data",      goldens_ + "train.csv",
                                          "--horizon",     "8",     "--season",    "4",
                                          "--lookbacks",   "2,3",   "--losses",    "smape,mae",
                                          "--n-blocks",    "2",     "--mlp-units", "32,32",
                                          "--batch-size",  "16",    "--max-steps", "70",
                                          "--random-seed", "3",     "--device",    "cpu"};
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
  EXPECT_EQ(get("m/model.safetensors"), get("again/model.safetensors")) << "the same seed, the same bits";
  const std::string forecasts =
      must({"forecast", "predict", "--data", goldens_ + "train.csv", "--model", "m", "--device", "cpu", "-q"});
  EXPECT_EQ(lines_of(forecasts)[0], "unique_id,ds,NBEATS");
  EXPECT_EQ(lines_of(forecasts).size(), 6u * 8u + 1u);
  const auto e = nlohmann::json::parse(must({"forecast", "eval", "--data", goldens_ + "train.csv", "--actual",
                                             goldens_ + "test.csv", "--model", "m", "--season", "4", "--json"}));
  EXPECT_GT(e.at("owa").get<double>(), 0);
  refused(7, {"m: exists", "--output"}, into("m"));
  refused(5, {"One lane at a time needs", "--memory-limit"}, into("no", {"--memory-limit", "10MiB"}));
  refused(2, {"--horizon 9", "8 points"},
          {"forecast", "predict", "--data", goldens_ + "train.csv", "--model", "m", "--horizon", "9"});
}

TEST_F(Forecast, ReadsLongSeriesInLittleMoreThanTheirValues) {
  if (kInstrumented) GTEST_SKIP() << "a sanitizer's own memory counts too";
  constexpr int kPoints = 2'000'000;
  const auto peak = [&](int points) {
    {  // gone before the program starts, whose peak would count it
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
  EXPECT_LT(peak(kPoints) - peak(2), 3 * values_kib + 4096);  // a vector that doubles holds up to three times as much
}

TEST_F(Forecast, RefusesWithARemedy) {
  put("a.csv", "unique_id,ds,y\nA,2015-01-01,1\nA,2015-01-01,2\n");
  put("b.csv", "unique_id,ds,y\nA,2015-01-01,1\nA,2015-01-02,2\n");
  put("out.csv", "mine");
  const auto predict = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"forecast", "predict", "--model", "naive", "--horizon", "1"});
    return more;
  };
  refused(3, {"a.csv: line 3", "there already", "--id-column"}, predict({"--data", "a.csv", "-o", "out.csv"}));
  EXPECT_EQ(get("out.csv"), "mine");  // nothing is written over
  refused(3, {"b.csv: line 1: no column price", "--target-column"},
          predict({"--data", "b.csv", "--target-column", "price"}));
  refused(2, {"--horizon 0"}, predict({"--data", "b.csv", "--horizon", "0"}));
  refused(2, {"b.csv", "input"}, predict({"--data", "b.csv", "-o", "b.csv"}));
  refused(2, {".parquet"}, predict({"--data", "b.csv", "-o", "b.parquet"}));
  refused(2, {"--freq hourly", "15min"}, predict({"--data", "b.csv", "--freq", "hourly"}));
  refused(2, {"--data"}, predict({}));
  refused(2, {"--model arima"}, {"forecast", "predict", "--data", "b.csv", "--model", "arima", "--horizon", "1"});
  refused(2, {"--actual"}, {"forecast", "eval", "--data", "b.csv", "--model", "naive"});
  refused(2, {"train, predict, eval"}, {"forecast"});
  refused(2, {"did you mean predict?"}, {"forecast", "predit"});
  refused(3, {"'A'", "after 2015-01-02"},
          {"forecast", "eval", "--data", "b.csv", "--actual", "b.csv", "--model", "naive"});
}

}  // namespace
}  // namespace brim
