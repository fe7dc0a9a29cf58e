// SPDX-License-Identifier: Apache-2.0
// No telemetry, no network: commands that read texts open no internet socket. `profile --llm-url` and `pull` show that
// the test detects sockets.
#include <fmt/format.h>

#include "cli/program.h"

namespace brim {
namespace {

class Network : public ProgramTest {
 protected:
  bool opens_socket(const std::vector<std::string>& arguments, bool must_succeed = true,
                    std::vector<std::pair<std::string, std::string>> environment = {}) const {
    const auto log = folder_ / "sockets";
    std::filesystem::remove(log);
    Surroundings around;
    around.environment = {{"LD_PRELOAD", BRIM_SOCKET_LOG}, {"BRIM_TEST_SOCKET_LOG", log.string()}};
    for (const auto& variable : environment) around.environment.push_back(variable);
    const Outcome got = brim(arguments, around);
    if (must_succeed) {
      EXPECT_EQ(got.code, 0) << got.err;
    }
    return std::filesystem::exists(log);
  }
};

TEST_F(Network, IsNotUsedByTextCommands) {
  put("rows.csv", "text,label\nw5 w6,negative\nw7 w8,neutral\nw9 w10,positive\n");
  EXPECT_FALSE(opens_socket({"score", "rows.csv", "--model", "tiny", "-o", "out.csv"}));
  EXPECT_FALSE(opens_socket({"score", "rows.csv", "--model", "vader"}));
  EXPECT_FALSE(opens_socket({"eval", "rows.csv", "--model", "tiny"}));
  EXPECT_FALSE(opens_socket({"embed", "rows.csv", "--model", "tiny"}));
  EXPECT_FALSE(opens_socket({"score", "rows.csv", "--model", "org/name"}, /*must_succeed=*/false));
  EXPECT_FALSE(opens_socket({"train", "--model", "tiny", "--train", "rows.csv", "--val", "rows.csv", "--output", "out",
                             "--max-steps", "2", "--device", "cpu"}));
  EXPECT_FALSE(opens_socket({"plan", "--model", "tiny", "--task", "train", "--device", "rtx3070"}));
}

TEST_F(Network, IsNotUsedByCommandsThatInspectOrTune) {
  put("rows.csv", "text,label\nw5 w6,negative\nw7 w8,neutral\nw9 w10,positive\n");
  EXPECT_FALSE(opens_socket({"tokenize", "rows.csv", "--model", "tiny"}));
  EXPECT_FALSE(opens_socket({"compare", "--models", "tiny,vader", "--data", "rows.csv"}));
  EXPECT_FALSE(opens_socket({"models", "list"}));
  EXPECT_FALSE(opens_socket({"models", "show", "tiny"}));
  EXPECT_FALSE(opens_socket({"models", "tune", "--model", "tiny", "--seconds", "0.01"}, /*must_succeed=*/false));
  EXPECT_FALSE(opens_socket({"monitor", "--json"}));
  EXPECT_FALSE(opens_socket({"doctor", "--json"}));
  EXPECT_FALSE(opens_socket({"doctor", "--", "brim", "score", "rows.csv", "--model", "tiny", "-o", "out.csv"}));
  EXPECT_FALSE(
      opens_socket({"profile", "--model", "vader", "--sizes", "3", "--batch-sizes", "1", "--seconds", "0.01"}));
  for (const char* part : {"0/2", "1/2"})
    EXPECT_FALSE(opens_socket({"score", "rows.csv", "--model", "vader", "-o", "parts", "--shard", part})) << part;
  EXPECT_FALSE(opens_socket({"score", "-o", "parts", "--shard", "check"}));
  EXPECT_FALSE(opens_socket({"shards", "parts"}));
}

TEST_F(Network, IsNotUsedByForecasts) {
  std::string series;
  for (int s = 0; s < 2; ++s) {
    series += fmt::format("s{}", s);
    for (int t = 0; t < 40; ++t) series += fmt::format(",{}", 10 * s + t % 4);
    series += "\n";
  }
  put("series.csv", series);
  EXPECT_FALSE(opens_socket({"forecast", "train", "--data", "series.csv", "--horizon", "4", "-o", "m", "--n-blocks",
                             "1", "--mlp-units", "8,8", "--max-steps", "2", "--device", "cpu", "--lookbacks", "2"}));
  EXPECT_FALSE(opens_socket({"forecast", "predict", "--data", "series.csv", "--model", "m", "--device", "cpu"}));
  EXPECT_FALSE(opens_socket({"forecast", "predict", "--data", "series.csv", "--model", "ets", "--horizon", "4"}));
}

TEST_F(Network, DetectsOpenedSocket) {
  EXPECT_TRUE(opens_socket({"profile", "--mode", "llm", "--llm-url", "http://127.0.0.1:9", "--llm-model", "m",
                            "--llm-api", "openai", "--output-dir", "report"},
                           /*must_succeed=*/false));
  EXPECT_TRUE(opens_socket({"pull", "org/name"}, /*must_succeed=*/false, {{"HF_ENDPOINT", "http://127.0.0.1:9"}}));
}

}  // namespace
}  // namespace brim
