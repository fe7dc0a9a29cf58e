// SPDX-License-Identifier: Apache-2.0
// Forecast models and interrupted runs of version 0.1 (tests/data/formats_0.1).
#include <algorithm>
#include <cmath>

#include "cli/program.h"

namespace brim {
namespace {

namespace fs = std::filesystem;

class Formats : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    fs::copy(files_, folder_, fs::copy_options::recursive);
  }
  static std::vector<std::string> run(const std::string& verb, const std::string& output,
                                      const std::string& seed = "3") {
    std::vector<std::string> words = {"forecast", verb};
    for (const char* word : {"--data",       "series.csv",  "--horizon",    "4",
                             "--freq",       "index",       "--season",     "7",
                             "--losses",     "mae",         "--lookbacks",  "2",
                             "--n-blocks",   "1",           "--mlp-units",  "16,16",
                             "--device",     "cpu",         "--batch-size", "16",
                             "--save-steps", "10",          "--threads",    "1",
                             "-q",           "--precision", "fp32",         "--learning-rate",
                             "1e-3"})
      words.emplace_back(word);
    for (const std::string& word : {std::string("--random-seed"), seed, std::string("-o"), output})
      words.push_back(word);
    return words;
  }
  static std::vector<std::string> train(const std::string& seed = "3") {
    std::vector<std::string> words = run("train", "killed", seed);
    // The default of --history-size was 10.
    words.insert(words.end(), {"--max-steps", "300", "--held-out", "0", "--history-size", "10"});
    return words;
  }
  static std::vector<std::string> roll(const std::string& seed = "3") {
    std::vector<std::string> words = run("roll", "roll", seed);
    words.insert(words.end(), {"--max-steps", "100", "--folds", "3"});
    return words;
  }
  std::string forecasts_of(const std::string& model) const {
    return must(
        {"forecast", "predict", "--data", "series.csv", "--model", model, "--freq", "index", "--device", "cpu", "-q"});
  }
  // The same fields; numbers may differ as those of instruction sets do.
  static void expect_close(const std::string& got, const std::string& expected) {
    const std::vector<std::string> lines = lines_of(got), others = lines_of(expected);
    ASSERT_EQ(lines.size(), others.size());
    for (size_t i = 0; i < lines.size(); ++i) {
      const std::vector<std::string> fields = fields_of(lines[i]), other = fields_of(others[i]);
      ASSERT_GE(fields.size(), other.size()) << lines[i];
      for (size_t k = 0; k < other.size(); ++k) {
        char* end = nullptr;
        const double number = std::strtod(other[k].c_str(), &end);
        if (other[k].empty() || *end != '\0')
          EXPECT_EQ(fields[k], other[k]);
        else
          EXPECT_NEAR(std::stod(fields[k]), number, 1e-3 * std::max(1.0, std::fabs(number))) << lines[i];
      }
    }
  }
  static std::vector<std::string> fields_of(const std::string& line) {
    std::vector<std::string> fields;
    for (size_t from = 0, to = 0; to != std::string::npos; from = to + 1)
      fields.push_back(line.substr(from, (to = line.find(',', from)) == std::string::npos ? to : to - from));
    return fields;
  }
  const fs::path files_ = fs::path(BRIM_SOURCE_DIR) / "tests/data/formats_0.1/forecast";
};

TEST_F(Formats, ReadsForecastModelOfAnEarlierVersion) { expect_close(forecasts_of("model"), get("forecasts.csv")); }

TEST_F(Formats, ResumesForecastTrainingOfAnEarlierVersion) {
  refused(7, {"--random-seed 3"}, train("4"));
  must(train());
  EXPECT_FALSE(exists("killed/state"));
  expect_close(forecasts_of("killed"), get("forecasts.csv"));
}

TEST_F(Formats, ResumesRollingRunOfAnEarlierVersion) {
  refused(7, {"--random-seed 3"}, roll("4"));
  must(roll());
  expect_close(get("roll/forecasts.csv"), get("rolled.csv"));
}

}  // namespace
}  // namespace brim
