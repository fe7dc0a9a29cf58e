// SPDX-License-Identifier: Apache-2.0
// brim forecast with covariates and further training: files in, forecasts out, and invalid input.
#include <algorithm>
#include <cstdio>

#include "cli/program.h"

namespace brim {
namespace {

class ForecastCovariates : public ProgramTest {
 protected:
  // Days of three shops with a promotion, visitors, a weekday in words and an unused column. Rows after `known` have
  // no sales.
  std::string shops(int points, int known, bool promotions_ahead = true) {
    std::string text = "unique_id,ds,y,promotion,visits,day,region,note\n";
    unsigned state = 11;
    const auto random = [&] { return (state = state * 1664525U + 1013904223U) >> 8; };
    const char* const days[] = {"mon", "tue", "wed", "thu", "fri", "sat", "sun"};
    for (const char* shop : {"a", "b", "c"}) {
      double level = 100;
      for (int t = 0; t < points; ++t) {
        level += static_cast<double>(random() % 101) / 100 - 0.5;
        const unsigned promotion = random() % 4 == 0, visits = random() % 50;
        char date[32];
        std::snprintf(date, sizeof date, "2024-%02d-%02d", 1 + t / 28, 1 + t % 28);
        const bool is_known = t < known;
        text += std::string(shop) + "," + date + "," + (is_known ? std::to_string(level + 20 * promotion) : "") + "," +
                (is_known || promotions_ahead ? std::to_string(promotion) : "") + "," +
                (is_known ? std::to_string(visits) : "") + "," + days[t % 7] + "," +
                (shop[0] == 'b' ? "east" : "west") + ",x\n";
      }
    }
    return text;
  }

  std::vector<std::string> train(const std::string& data, const std::string& output,
                                 std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"forecast",    "train", "--data",       data,  "--horizon",   "4",  "-o",         output,
                               "--freq",      "index", "--losses",     "mae", "--lookbacks", "2",  "--n-blocks", "1",
                               "--mlp-units", "16,16", "--batch-size", "16",  "--max-steps", "30", "--device",   "cpu",
                               "--held-out",  "0"});
    return more;
  }
  static std::vector<std::string> split(const std::string& line, char separator = ',') {
    std::vector<std::string> fields;
    for (size_t from = 0, to = 0; to != std::string::npos; from = to + 1) {
      to = line.find(separator, from);
      fields.push_back(line.substr(from, to == std::string::npos ? to : to - from));
    }
    return fields;
  }
  static std::vector<std::string> words(const std::string& line) { return split(line, ' '); }
  // Writes rows with a target to known.csv and the other ones, without the target and the last column, to future.csv.
  void divide(const std::string& rows) {
    const std::vector<std::string> lines = lines_of(rows);
    std::string known = lines[0] + "\n", future = "unique_id,ds,promotion,visits,day,region\n";
    for (size_t i = 1; i < lines.size(); ++i) {
      const std::vector<std::string> f = split(lines[i]);
      if (!f[2].empty())
        known += lines[i] + "\n";
      else
        future += f[0] + "," + f[1] + "," + f[3] + "," + f[4] + "," + f[5] + "," + f[6] + "\n";
    }
    put("known.csv", known);
    put("future.csv", future);
  }
  const std::vector<std::string> columns_ = {"--future-columns", "promotion,day", "--past-columns", "visits",
                                             "--static-columns", "region",        "--categorical",  "day,region"};
};

TEST_F(ForecastCovariates, TrainsAndForecastsWithTheColumnsOfTheModel) {
  put("shops.csv", shops(100, 96));
  const Outcome o = brim(train("shops.csv", "m", columns_));
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("columns not used: note"), std::string::npos) << o.err;
  const auto config = nlohmann::json::parse(get("m/config.json"));
  EXPECT_EQ(config.at("covariates").at("columns").size(), 4u);
  EXPECT_EQ(config.at("covariates").at("columns")[1].at("categories").size(), 7u);
  EXPECT_EQ(config.at("lanes")[0].at("stacks")[0].at("type"), "exogenous");
  const auto predict = [](const std::string& data, std::vector<std::string> more = {}) {
    more.insert(more.begin(),
                {"forecast", "predict", "--data", data, "--model", "m", "--freq", "index", "--device", "cpu"});
    return more;
  };
  const std::string forecasts = must(predict("shops.csv", {"-q"}));
  EXPECT_EQ(lines_of(forecasts).size(), 13u);
  EXPECT_NE(forecasts.find("a,97,"), std::string::npos) << forecasts;
  // The values of the future may be in a further file without the target.
  divide(shops(100, 96));
  EXPECT_EQ(must(predict("known.csv", {"--data", "future.csv", "-q"})), forecasts);
}

TEST_F(ForecastCovariates, EvaluatesWithTheColumnsOfTheActualValues) {
  put("shops.csv", shops(100, 96));
  must(train("shops.csv", "m", columns_));
  divide(shops(100, 96));
  const std::vector<std::string> full = lines_of(shops(100, 100));
  std::string actual = full[0] + "\n", fewer = "unique_id,ds,y,promotion,day\n";
  for (size_t i = 1; i < full.size(); ++i) {
    if ((i - 1) % 100 < 96) continue;
    actual += full[i] + "\n";
    const std::vector<std::string> fields = split(full[i]);
    fewer += fields[0] + "," + fields[1] + "," + fields[2] + "," + fields[3] + "," + fields[5] + "\n";
  }
  put("actual.csv", actual);
  put("fewer.csv", fewer);
  const auto eval = [&](const std::string& file) {
    return nlohmann::json::parse(must({"forecast", "eval", "--data", "known.csv", "--actual", file, "--model", "m",
                                       "--device", "cpu", "--freq", "index", "--json"}));
  };
  const nlohmann::json e = eval("actual.csv");
  EXPECT_EQ(e.at("points"), 12);
  EXPECT_EQ(eval("fewer.csv"), e) << "past and static columns may be absent";
}

TEST_F(ForecastCovariates, RollsWithColumns) {
  divide(shops(100, 96));
  must(
      words("forecast roll --data known.csv --horizon 4 --folds 2 -o r --lookbacks 2 --losses mae --n-blocks 1 "
            "--mlp-units 16,16 --batch-size 16 --max-steps 10 --device cpu -q --future-columns promotion "
            "--past-columns visits --freq index --early-stop-patience-steps 2 --val-check-steps 5 --baselines naive"));
  EXPECT_TRUE(exists("r/forecasts.csv"));
}

TEST_F(ForecastCovariates, RefusesInvalidInput) {
  put("shops.csv", shops(60, 56));
  must(train("shops.csv", "m", columns_));
  const std::vector<std::string> predict = {"forecast", "predict", "--model",  "m",
                                            "--freq",   "index",   "--device", "cpu"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), predict.begin(), predict.end());
    return more;
  };
  put("short.csv", shops(60, 56, false));
  refused(3, {"short.csv: line 61: series 'a': column promotion has no value at 57", "next 4 points", "blank target"},
          with({"--data", "short.csv"}));
  put("later.csv", "unique_id,ds,y,promotion,visits,day,region\na,57,100,,5,mon,west\na,58,101,1,7,tue,west\n");
  refused(3, {"short.csv: line 61: series 'a': column promotion has no value at 57"},
          {"forecast", "eval", "--data", "short.csv", "--actual", "later.csv", "--model", "m", "--freq", "index",
           "--device", "cpu"});
  put("other.csv", "unique_id,ds,y,promotion\na,1,2,0\na,2,3,1\n");
  refused(3, {"other.csv: line 1: unknown column day", "--future-columns"}, with({"--data", "other.csv"}));
  refused(2, {"m: trained with", "visits (past)", "the settings name promotion (future)", "omit the columns"},
          with({"--data", "shops.csv", "--future-columns", "promotion"}));
  refused(3, {"shops.csv: line 2: column day: 'mon' is not a finite number", "--categorical"},
          train("shops.csv", "x", {"--future-columns", "day"}));
  put("varies.csv", "unique_id,ds,y,size\na,1,2,5\na,2,3,6\na,3,4,6\n");
  refused(3, {"varies.csv: line 3: series 'a': static column size is 6, but 5", "--past-columns"},
          train("varies.csv", "x", {"--static-columns", "size"}));
  refused(2, {"--categorical day", "not a covariate"}, train("shops.csv", "x", {"--categorical", "day"}));
  refused(2, {"column y is a covariate and also the target"},
          train("shops.csv", "x", {"--target-column", "y", "--past-columns", "y"}));
  refused(2, {"column day is listed twice"},
          train("shops.csv", "x", {"--past-columns", "day", "--future-columns", "day", "--categorical", "day"}));
  refused(3, {"--calendar", "the points are numbered"}, train("shops.csv", "x", {"--calendar"}));
  put("wide.csv", "a,1,2,3\nb,2,3,4\n");
  refused(3, {"wide.csv: line 1", "the wide layout, which has no covariates"},
          train("wide.csv", "x", {"--past-columns", "price"}));
  put("lists.jsonl", "{\"item_id\":\"a\",\"target\":[1,2,3,4,5,6],\"price\":[1,2,3]}\n");
  refused(3, {"lists.jsonl: line 1: \"price\" has 3 values, but \"target\" has 6", "one value per point"},
          train("lists.jsonl", "x", {"--past-columns", "price"}));
  refused(2, {"exogenous stacks require future covariates", "--calendar"},
          train("wide.csv", "x", {"--stack-types", "exogenous,generic"}));
  EXPECT_FALSE(exists("x/config.json"));
}

TEST_F(ForecastCovariates, ShorterForecastsReadAllFutureValuesOfTheModel) {
  const std::string all = shops(60, 56);
  put("shops.csv", all);
  must(train("shops.csv", "m", {"--future-columns", "promotion", "-q"}));
  std::string two, known;  // with the future values of two points, and without any
  const std::vector<std::string> lines = lines_of(all);
  for (size_t i = 0; i < lines.size(); ++i) {
    const size_t day = i == 0 ? 0 : (i - 1) % 60;
    if (day < 58) two += lines[i] + "\n";
    if (day < 56) known += lines[i] + "\n";
  }
  put("two.csv", two);
  put("known.csv", known);
  const auto predict = [](const std::string& data, const std::string& horizon) {
    return std::vector<std::string>{"forecast", "predict", "--data", data,       "--model", "m", "--horizon",
                                    horizon,    "--freq",  "index",  "--device", "cpu",     "-q"};
  };
  const std::vector<std::string> four = lines_of(must(predict("shops.csv", "4"))),
                                 first = lines_of(must(predict("shops.csv", "2")));
  ASSERT_EQ(first.size(), 7u);
  EXPECT_EQ(first[2], four[2]);
  const std::vector<std::string> error = {"two.csv: line 59: series 'a': column promotion has no value at 59",
                                          "next 4 points", "blank target"};
  refused(3, error, predict("two.csv", "2"));
  put("actual.csv", "unique_id,ds,y,promotion\na,57,100,0\na,58,101,1\nb,57,100,0\nb,58,9,1\nc,57,1,0\nc,58,1,1\n");
  refused(3, {"series 'a': column promotion has no value at 59", "next 4 points"},
          {"forecast", "eval", "--data", "known.csv", "--actual", "actual.csv", "--model", "m", "--freq", "index",
           "--device", "cpu"});
  must({"forecast", "eval", "--data", "shops.csv", "--actual", "actual.csv", "--model", "m", "--freq", "index",
        "--device", "cpu", "-q"});
}

TEST_F(ForecastCovariates, CalendarModelsRequireDatesOfTheirFrequency) {
  const auto series = [](const char* month, int days) {
    std::string text = "unique_id,ds,y\n";
    for (int t = 0; t < 24; ++t) {
      char line[64];
      std::snprintf(line, sizeof line, "a,2024-%s-%02d %02d:00,%d\n", month, 1 + t / days, days == 1 ? 0 : t % days, t);
      text += line;
    }
    return text;
  };
  put("days.csv", series("01", 1));
  put("hours.csv", series("02", 24));
  put("numbers.csv", "unique_id,y\na,1\na,2\na,3\na,4\na,5\na,6\n");
  auto calendar = train("days.csv", "m", {"--calendar", "-q"});
  const auto freq = std::find(calendar.begin(), calendar.end(), "--freq");
  calendar.erase(freq, freq + 2);
  must(calendar);
  const auto predict = [](const char* data, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"forecast", "predict", "--data", data, "--model", "m", "--device", "cpu", "-q"});
    return more;
  };
  must(predict("days.csv"));
  refused(3, {"numbers.csv", "require dates, but the points are numbered", "time column"}, predict("numbers.csv"));
  refused(3, {"require dates"}, predict("days.csv", {"--freq", "index"}));
  refused(3, {"hours.csv: the frequency is H, but m was trained with calendar features on D", "--freq D"},
          predict("hours.csv"));
  refused(3, {"numbers.csv", "require dates"},
          {"forecast", "eval", "--data", "numbers.csv", "--actual", "numbers.csv", "--model", "m", "--device", "cpu"});
}

TEST_F(ForecastCovariates, FlagsReplaceTheColumnsOfAFile) {
  put("shops.csv", shops(60, 60));
  put("columns.yaml", "forecast:\n  future_columns: [none]\n  past_columns: [nothing]\n");
  must(train("shops.csv", "m",
             {"--config", "columns.yaml", "--future-columns", "promotion", "--past-columns", "visits", "-q"}));
  EXPECT_EQ(nlohmann::json::parse(get("m/config.json")).at("covariates").at("columns").size(), 2u);
}

TEST_F(ForecastCovariates, ContinuesTheTrainingOfAModel) {
  put("shops.csv", shops(60, 60));
  put("more.csv", shops(80, 80));
  must(train("shops.csv", "m", {"--future-columns", "promotion", "-q"}));
  const auto further = [](const std::string& output, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"forecast", "train", "--from", "m", "--data", "more.csv", "-o", output, "--freq",
                               "index", "--device", "cpu", "--max-steps", "5", "-q"});
    return more;
  };
  must(further("more"));
  EXPECT_EQ(nlohmann::json::parse(get("more/config.json")).at("covariates"),
            nlohmann::json::parse(get("m/config.json")).at("covariates"));
  EXPECT_NE(get("more/model.safetensors"), get("m/model.safetensors"));
  must(further("again"));
  EXPECT_EQ(get("again/model.safetensors"), get("more/model.safetensors"));
  refused(2, {"--lookbacks", "fixed by the model in m"}, further("x", {"--lookbacks", "3"}));
  refused(2, {"--horizon", "fixed by the model in m"}, further("x", {"--horizon", "5"}));
  refused(2, {"--from none", "brim forecast train"},
          {"forecast", "train", "--from", "none", "--data", "more.csv", "-o", "x"});
  put("hours.csv",
      "unique_id,ds,y,promotion\na,2024-01-01 00:00,1,0\na,2024-01-01 01:00,2,0\na,2024-01-01 02:00,3,1\n");
  refused(3, {"hours.csv: the frequency is H", "trained on index"},
          {"forecast", "train", "--from", "m", "--data", "hours.csv", "-o", "x"});
}

}  // namespace
}  // namespace brim
