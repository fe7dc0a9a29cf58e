// SPDX-License-Identifier: Apache-2.0
#include "serve/serve_config.h"

#include <map>

#include "base/fuzz_driver.h"
#include "base/settings.h"
#include "base/test_files.h"

#define LLVMFuzzerTestOneInput fuzz_serve_config
#include "serve/serve_config_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::serve {
namespace {

const char* const kWhole = R"(listen: 127.0.0.1:8080
memory_limit: 4GiB
models:
  finbert: {path: ./finbert, precision: bf16, keep_alive: 10m}
  distil:  {path: distilbert, keep_alive: -1, labels: {LABEL_0: negative, LABEL_1: positive}}
  vader:   {builtin: vader}
  vectors: {path: e5, pooling: cls}
allowed_host: [news.example, bot.example]
ladders:
  sentiment:
    rungs: [finbert, {model: distil, max_loss: 3%}, vader]
    default: distil
    gate: {data: gate.csv, text: headline, label: label, max_loss: 2%, min_agreement: 88%, against: finbert}
    sources: [{match: [reuters, bloom*], rung: finbert}, {match: sec, rung: finbert, wake: true}]
    schedule: {zone: UTC, calendar: nyse, calendar_file: days.txt, open: distil, closed: vader, lead: 2m}
    load: {spill_over_ms: 200, back_under_ms: 50, floor: distil}
queues:
  news: {ladder: sentiment, flush_size: 20, flush_age_ms: 2000, apply: {compound: mood}}
  plain: {model: vader, immediate: true}
)";

const std::vector<std::string> kSettings = {"listen", "memory_limit"};

TEST(ServeConfig, ReadsCompleteFile) {
  const TempDir dir;
  put_file(dir / "serve.yaml", kWhole);
  put_file(dir / "days.txt", "2026-06-02 closed\n");
  const ServeConfig config = read_serve_config(dir / "serve.yaml", kSettings);
  ASSERT_EQ(config.settings.size(), 2u);
  EXPECT_EQ(config.settings[1].value, "4GiB");
  EXPECT_HAS(config.settings[1].where, "serve.yaml:2");
  ASSERT_EQ(config.models.size(), 4u);
  EXPECT_EQ(config.models[0].pooling, std::nullopt);
  EXPECT_EQ(config.models[3].pooling, Pooling::cls);
  EXPECT_EQ(config.allowed_hosts, (std::vector<std::string>{"news.example", "bot.example"}));
  EXPECT_EQ(config.models[0].path, (dir / "finbert").string()) << "relative to the file";
  EXPECT_EQ(config.models[0].keep_alive_seconds, 600);
  EXPECT_EQ(config.models[1].path, "distilbert") << "a model name is not a path";
  EXPECT_EQ(config.models[1].keep_alive_seconds, -1);
  EXPECT_EQ(config.models[2].path, "vader");
  EXPECT_EQ(config.models[1].labels.at("LABEL_1"), "positive");
  const LadderRules& ladder = config.ladders.at(0);
  EXPECT_EQ(ladder.gate.data, (dir / "gate.csv").string());
  EXPECT_NEAR(ladder.gate.limits.min_agreement, 0.88, 1e-12);
  EXPECT_NEAR(ladder.rungs[1].gate->max_loss, 0.03, 1e-12);
  EXPECT_NEAR(ladder.rungs[1].gate->min_agreement, 0.88, 1e-12) << "default from the ladder";
  EXPECT_FALSE(ladder.rungs[0].gate);
  EXPECT_EQ(ladder.sources[0].match.size(), 2u);
  EXPECT_TRUE(ladder.sources[1].wake);
  EXPECT_EQ(ladder.load->floor, "distil");
  EXPECT_EQ(ladder.lead_seconds, 120);
  // Tuesday, 2026-06-02, 12:00 UTC is closed by the exceptions file; the next day is regular, with extended as open.
  EXPECT_EQ(ladder.schedule->rung_at(1780401600), "vader");
  EXPECT_EQ(ladder.schedule->rung_at(1780401600 + 86400), "distil");
  EXPECT_EQ(ladder.schedule->rung_at(1780401600 + 86400 - 6 * 3600), "distil");
  EXPECT_EQ(config.queues[0].model, "sentiment");
  EXPECT_EQ(config.queues[0].flush_size, 20);
  EXPECT_EQ(config.queues[0].apply.compound, "mood");
  EXPECT_EQ(config.queues[0].apply.label, "") << "only listed fields are added";
  EXPECT_EQ(config.queues[0].apply.error, "sentiment_error");
  EXPECT_TRUE(config.queues[1].immediate);
  EXPECT_EQ(config.queues[1].apply.label, "sentiment_label");
}

TEST(ServeConfig, ReadsWeeklySpans) {
  const TempDir dir;
  put_file(dir / "serve.yaml", R"(models: {a: {path: a}, b: {path: b}}
ladders:
  l:
    rungs: [a, b]
    schedule: {zone: UTC, times: [{days: mon-fri, from: "07:00", to: "22:00", rung: b}]}
)");
  const ServeConfig config = read_serve_config(dir / "serve.yaml", {});
  EXPECT_EQ(config.ladders[0].schedule->rung_at(1780401600), "b");
  EXPECT_EQ(config.ladders[0].schedule->rung_at(1780401600 + 12 * 3600), "");
}

TEST(ServeConfig, RejectsWithLocationAndSuggestion) {
  const TempDir dir;
  const std::string models = "models: {finbert: {path: f}, vader: {builtin: vader}}\n";
  const std::string ladder = models + "ladders: {s: {rungs: [finbert, vader], ";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"lisen: x\n", "serve.yaml:1: serve: unknown key lisen; did you mean listen?"},
      {"listen: [a, b]\n", "serve.yaml:1: serve: listen: must be a single value"},
      {"models: {a: {pth: x}}\n", "serve.yaml:1: models: a: unknown key pth; did you mean path?"},
      {"models: {a: {precision: bf16}}\n", "exactly one of `path` and `builtin` is required"},
      {"models: {a: {path: x, builtin: vader}}\n", "exactly one of `path` and `builtin` is required"},
      {"models: {a: {builtin: vade}}\n", "must be vader"},
      {"models: {a: {path: x, keep_alive: soon}}\n", "keep_alive: soon: must be a time such as 30s"},
      {"models: {a: {path: x, keep_alive: -5}}\n", "must be a time such as 30s"},
      {"models: {a: {builtin: vader, labels: {x: y}}}\n", "not supported by VADER"},
      {"models: {a: {path: x, candidate_labels: [b, b]}}\n", "candidate_labels: duplicate label \"b\""},
      {"models: {a: {path: x, candidate_labels: []}}\n", "candidate_labels: at least one label"},
      {"models: {a: {path: x, multi_label: true}}\n", "multi_label: true: requires candidate_labels"},
      {"models: {a: {path: x, candidate_labels: [b], hypothesis_template: \"{x}\"}}\n", "hypothesis_template"},
      {"models: {a: {builtin: vader, candidate_labels: [b]}}\n", "not supported by VADER"},
      {"models: {a: {path: x, labels: [y]}}\n", "labels: must be a mapping of strings to strings"},
      {"models: {a: {path: x, labels: {y: [z]}}}\n", "labels: each key must be unique and have a non-empty value"},
      {"models: {a: {path: x, labels: {y: z, y: w}}}\n", "labels: each key must be unique and have a non-empty value"},
      {"models: {a/b: {path: x}}\n", "invalid name (use up to 64"},
      {"models: {a: {path: x}, a: {path: y}}\n", "duplicate name"},
      {"models: {a: x}\n", "models: a: must be a mapping"},
      {"models: [a]\n", "must be a mapping of names to settings"},
      {ladder + "schedul: {}}}\n", "serve.yaml:2: ladders: s: unknown key schedul; did you mean schedule?"},
      {ladder + "default: fin}}\n", "unknown rung fin"},
      {models + "ladders: {s: {rungs: [finbrt]}}\n",
       "serve.yaml:2: ladder s: rungs: unknown model finbrt; did you mean finbert?"},
      {models + "ladders: {s: {rungs: [finbrt, vader], default: finbert}}\n",
       "serve.yaml:2: ladder s: rungs: unknown model finbrt; did you mean finbert?"},
      {models + "ladders: {vader: {rungs: [vader]}}\n", "the name is already used"},
      {ladder + "gate: {max_loss: 5}}}\n", "must be a share such as 2%"},
      {ladder + "load: {spill_over_ms: -1}}}\n", "must be positive"},
      {ladder + "load: {spill_over_ms: 50, back_under_ms: 60}}}\n", "back_under_ms=60"},
      {ladder + "sources: [{rung: vader}]}}\n", "missing key match"},
      {ladder + "sources: {a: b}}}\n", "must be a list"},
      {ladder + "schedule: {calendar: lse, open: vader}}}\n", "must be nyse"},
      {ladder + "schedule: {zone: Mars/Base, calendar: nyse, open: vader}}}\n", "Mars/Base"},
      {ladder + "schedule: {calendar: nyse, open: vader, times: []}}}\n", "cannot be combined with `times`"},
      {ladder + "schedule: {calendar: nyse, open: vader, lead: -1}}}\n", "lead: -1: must be a time such as 30s or 5m"},
      {ladder + "schedule: {calendar: nyse, open: vader, lead: soon}}}\n", "lead: soon: must be a time"},
      {ladder + "schedule: {calendar: nyse, open: vader, calendar_file: none.txt}}}\n", "cannot read"},
      {ladder + "schedule: {times: [{days: monday, rung: vader}]}}}\n", "mon-fri"},
      {ladder + "schedule: {times: [{from: 7, rung: vader}]}}}\n", "must be a time such as"},
      {ladder + "schedule: {times: [{from: \"07:00\"}]}}}\n", "missing key rung"},
      {models + "ladders: {s: {rungs: [xyz]}}\n",
       "unknown model xyz; use one of finbert, vader, or add it under models"},
      {models + "queues: {q: {model: vadr}}\n", "serve.yaml:2: queue q: unknown model vadr; did you mean vader?"},
      {models + "queues: {q: {model: vader, ladder: vader}}\n", "cannot be combined with `model`"},
      {models + "queues: {q: {flush_size: 0}}\n", "must be a whole number from 1 to 100,000"},
      {models + "queues: {q: {flush_sise: 5}}\n", "did you mean flush_size?"},
      {models + "queues: {q: {apply: {lable: x}}}\n", "did you mean label?"},
  };
  for (const auto& [yaml, message] : cases) {
    put_file(dir / "serve.yaml", yaml);
    EXPECT_HAS(error_of(ErrorCode::usage, [&] { read_serve_config(dir / "serve.yaml", kSettings); }), message);
  }
}

ServeConfig from_variables(const std::map<std::string, std::string>& variables) {
  return config_from_env([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(ServeConfig, BuildsLadderFromEnvironmentVariables) {
  EXPECT_TRUE(from_variables({}).ladders.empty());
  EXPECT_TRUE(from_variables({{"FEATURE_ADAPTIVE_SENTIMENT", "0"}}).ladders.empty());

  const ServeConfig plain =
      from_variables({{"SENTIMENT_MODEL_NAME", "./models/roberta/"}, {"SENTIMENT_BATCH_SIZE", "25"}});
  ASSERT_EQ(plain.ladders.size(), 1u);
  EXPECT_EQ(plain.models[0].path, "./models/roberta/");
  EXPECT_EQ(plain.ladders[0].default_rung, "roberta");
  EXPECT_FALSE(plain.ladders[0].schedule);
  EXPECT_EQ(plain.queues[0].flush_size, 25);
  EXPECT_EQ(plain.queues[0].model, "sentiment");
  EXPECT_TRUE(plain.settings.empty()) << "one model at all times";
  check_names(plain);
}

TEST(ServeConfig, AdaptiveVariablesFollowMarketHours) {
  if (!std::filesystem::exists("/usr/share/zoneinfo/America/New_York")) GTEST_SKIP() << "no tzdata";
  const ServeConfig config = from_variables({{"FEATURE_ADAPTIVE_SENTIMENT", "1"}});
  ASSERT_EQ(config.models.size(), 2u) << "no implicit default, because every hour has a rung";
  EXPECT_EQ(config.models[1].name, "vader");
  ASSERT_EQ(config.settings.size(), 2u) << "the GPU is released at night";
  EXPECT_EQ(config.settings[0].key + " " + config.settings[0].value, "keep_alive 10m");
  EXPECT_EQ(config.settings[1].key + " " + config.settings[1].value, "release_device_after 10m");
  EXPECT_EQ(from_variables({{"FEATURE_ADAPTIVE_SENTIMENT", "1"}, {"SENTIMENT_MODEL_NAME", "finbert"}}).models.size(),
            3u)
      << "which requests may name";
  Ladder ladder(config.ladders[0]);
  const auto model_at = [&](Ladder& of, int64_t t) {
    return of.choose({}, {t, 0}, [](const std::string&) { return 0.0; }).model;
  };
  EXPECT_EQ(model_at(ladder, 1717423200), "distilbert");  // Monday 2024-06-03 10:00 in New York
  EXPECT_EQ(model_at(ladder, 1717405200), "distilbert");  // 05:00: extended hours
  EXPECT_EQ(model_at(ladder, 1717473600), "vader");       // midnight
  EXPECT_EQ(ladder.view(1717423200).rungs[1].gate.verdict, Verdict::not_measured);
  EXPECT_TRUE(ladder.view(1717423200).warnings.empty());

  const ServeConfig fixed = from_variables({{"FEATURE_ADAPTIVE_SENTIMENT", "true"},
                                            {"MARKET_STATUS_OVERRIDE", "closed"},
                                            {"SENTIMENT_MODEL_CLOSED", "finbert"}});
  EXPECT_EQ(fixed.models.size(), 2u);
  EXPECT_TRUE(fixed.settings.empty()) << "finbert uses the GPU at night";
  EXPECT_EQ(from_variables({{"FEATURE_ADAPTIVE_SENTIMENT", "1"}, {"SENTIMENT_MODEL_NAME", "distilbert"}}).models.size(),
            2u)
      << "duplicate rungs are merged";
  Ladder at_night(fixed.ladders[0]);
  EXPECT_EQ(model_at(at_night, 1717423200), "finbert");
  for (const auto& [key, value] : std::map<std::string, std::string>{
           {"MARKET_STATUS_OVERRIDE", "shut"}, {"SENTIMENT_BATCH_SIZE", "0"}, {"SENTIMENT_BATCH_SIZE", "ten"}})
    EXPECT_HAS(error_of(ErrorCode::usage,
                        [&, key = key, value = value] {
                          from_variables({{"FEATURE_ADAPTIVE_SENTIMENT", "1"}, {key, value}});
                        }),
               key + "=" + value);
  for (const char* size : {"ten", "0", "-1", "1.5", "100001"})
    EXPECT_HAS(error_of(ErrorCode::usage,
                        [&] {
                          from_variables({{"SENTIMENT_BATCH_SIZE", size}});
                        }),
               "must be a whole number from 1 to 100,000")
        << size;
  EXPECT_HAS(error_of(ErrorCode::usage,
                      [&] {
                        from_variables({{"FEATURE_ADAPTIVE_SENTIMENT", "maybe"}});
                      }),
             "true or false");
}

TEST(ServeConfig, AcceptsOrRejectsAnyBytes) {
  drive_fuzz(fuzz_serve_config,
             {kWhole, "models: {a: {path: x}}\n", "models: [a, b]\nqueues: {q: {model: a}}\n", "&a [*a]"}, 500);
}

TEST(ServeConfig, ParsesSeconds) {
  EXPECT_EQ(read_seconds("30s"), 30);
  EXPECT_EQ(read_seconds("500ms"), 0.5);
  EXPECT_EQ(read_seconds("10m"), 600);
  EXPECT_EQ(read_seconds("2h"), 7200);
  EXPECT_EQ(read_seconds("0"), 0);
  EXPECT_EQ(read_seconds("-1"), -1);
  EXPECT_EQ(read_seconds("never"), -1);
  for (const char* bad : {"", "m", "1d", "-2", "nan", "inf", "1e300h"})
    EXPECT_THROW(read_seconds(bad), BadValue) << bad;
}

}  // namespace
}  // namespace brim::serve
