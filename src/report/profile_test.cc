// SPDX-License-Identifier: Apache-2.0
#include "report/profile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/test_files.h"
#include "base/timeline.h"
#include "model/golden_models.h"
#include "net/http_client.h"
#include "report/llm_stand_in.h"
#include "report/markup_check.h"
#include "report/profile_measure.h"

namespace brim::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kHostileName = "</script><b>\"&\xff\x01 model";

TEST(Spread, PercentilesInterpolateBetweenRanks) {
  std::vector<double> values;
  for (int i = 100; i >= 0; --i) values.push_back(i);
  const jobs::Spread s = jobs::spread_of(values);
  EXPECT_EQ(s.count, 101);
  EXPECT_DOUBLE_EQ(s.p50, 50);
  EXPECT_DOUBLE_EQ(s.p95, 95);
  EXPECT_DOUBLE_EQ(s.p99, 99);
  EXPECT_DOUBLE_EQ(s.least, 0);
  EXPECT_DOUBLE_EQ(s.most, 100);
  EXPECT_NEAR(s.mean, 50, 1e-9);
  EXPECT_DOUBLE_EQ(jobs::spread_of({1, 2}).p50, 1.5);
  EXPECT_DOUBLE_EQ(jobs::spread_of({3}).p99, 3);
  EXPECT_EQ(jobs::spread_of({}).count, 0);
  EXPECT_EQ(jobs::spread_of({NAN, INFINITY, 4}).count, 1);
}

TEST(Profile, ParsesCounts) {
  EXPECT_EQ(parse_count("20"), 20);
  EXPECT_EQ(parse_count("5k"), 5000);
  EXPECT_EQ(parse_count("2.5K"), 2500);
  EXPECT_EQ(parse_count("1M"), 1000000);
  for (const char* bad : {"", "k", "0", "-5", "1.5", "5kk", "nan", "inf", "1e30", "5 k"})
    EXPECT_FALSE(parse_count(bad)) << bad;
}

TEST(Profile, BuiltInTextsDiffer) {
  const ProfileTexts t = load_profile_texts({}, 500);
  ASSERT_EQ(t.texts.size(), 500u);
  std::set<std::string> different(t.texts.begin(), t.texts.end());
  EXPECT_GT(different.size(), 300u);
  EXPECT_THROW(load_profile_texts({.label_column = "label"}, 5), Error);
  EXPECT_THROW(load_profile_texts({.pair_column = "other"}, 5), Error);
}

BatchPoint batch(int64_t size, double seconds, double single) {
  BatchPoint b;
  b.batch_size = size;
  b.seconds = jobs::spread_of({seconds});
  std::vector<double> rates, gains;
  for (const double round : {0.97, 0.98, 0.99, 1.0, 1.01, 1.02, 1.03}) {
    rates.push_back(round * static_cast<double>(size) / seconds);
    gains.push_back(rates.back() * single);
  }
  b.rate = jobs::spread_of(rates);
  b.gain = jobs::spread_of(gains);
  b.items_per_second = b.rate.p50;
  b.speedup = b.gain.p50;
  return b;
}

// Made-up numbers: four times as fast at 20, nearly the best at 10.
Profile made_up() {
  Profile p;
  p.generated_at = "2026-01-02T03:04:05Z";
  p.stamp = "20260102_030405";
  p.mode = "sentiment";
  p.texts_source = kHostileName;
  p.texts = 3;
  p.machine.cpu = kHostileName;
  p.machine.cores = 2;
  p.machine.why_no_gpu = "no library";
  ModelProfile m;
  m.name = kHostileName;
  m.device = "cpu";
  m.precision = "fp32";
  m.cold_load_seconds = 5;
  m.warm_load_seconds = 1;
  m.single = jobs::spread_of({0.02, 0.02, 0.02});
  m.batches = {batch(1, 0.02, 0.02), batch(10, 0.0505, 0.02), batch(20, 0.1, 0.02)};
  SizePoint s;
  s.rows = 1000;
  s.run.stats.rows = 1000;
  s.run.stats.tokens = 30000;
  s.run.stats.seconds = 2;
  s.run.device_busy = 0.5;
  s.run.mfu = 0.25;
  s.run.held_back_by = "reading and tokenizing";
  m.sizes = {s};
  plan::Plan plan;
  plan.peak_bytes = 1000;
  plan.bytes[memory::Tag::weights] = 700;
  plan.bytes[memory::Tag::activations] = 300;
  plan.tokens_per_second = 100000;
  plan.device.tflops_fp32 = 1;
  plan.device.bandwidth = 1e10;
  m.plan = plan;
  m.held_bytes = 5000;
  m.before_bytes = 1000;
  m.ops = {{"linear", 1e9, 1e7, 0.5}};
  m.timeline = {"t", "time", {"reader"}, {{0, 0, 1, "read"}}};
  m.predictions = {"positive", "negative", "neutral"};
  m.accuracy = 0.9;
  m.macro_f1 = 0.8;
  m.labelled_rows = 100;
  ModelProfile v = m;
  v.name = "vader";
  v.plan.reset();
  v.accuracy = 0.895;
  v.sizes[0].run.stats.rows = 10'000;
  v.predictions = {"Positive", "NEGATIVE", "positive"};
  v.ops.clear();
  p.models = {m, v};
  p.agreement = agreements(p.models);
  p.recommendations = recommendations(p);
  return p;
}

TEST(Profile, JsonHasTheFieldsReadByNewsBots) {
  Profile p = made_up();
  p.llm.emplace();
  p.llm->model = "mistral";
  p.llm->alone.seconds = jobs::spread_of({1, 2});
  p.llm->sharing.emplace();
  const json j = json::parse(profile_json(p));
  for (const char* key : {"schema_version", "generated_at", "system_info", "machine", "results", "recommendations"})
    EXPECT_TRUE(j.contains(key)) << key;
  for (const char* key : {"used_mb", "total_mb", "utilization_pct"}) {
    ASSERT_TRUE(j["system_info"].contains(key)) << key;
    EXPECT_TRUE(j["system_info"][key].is_null()) << "unknown without a GPU, not 0";
  }
  ASSERT_EQ(j["results"].size(), 3u);
  for (const json& r : j["results"]) {
    for (const char* key : {"model_name", "model_type", "load_time_ms", "inference_time_ms", "items_per_second",
                            "vram_used_mb", "batch_results", "notes"})
      EXPECT_TRUE(r.contains(key)) << key;
    for (const json& b : r["batch_results"])
      for (const char* key : {"batch_size", "avg_time_ms", "items_per_second", "speedup_vs_1"})
        EXPECT_TRUE(b[key].is_number()) << key;
  }
  EXPECT_DOUBLE_EQ(j["results"][0]["load_time_ms"], 5000);
  EXPECT_DOUBLE_EQ(j["results"][0]["inference_time_ms"], 20);
  EXPECT_DOUBLE_EQ(j["results"][0]["items_per_second"], 50);
  EXPECT_DOUBLE_EQ(j["results"][0]["batch_results"][2]["speedup_vs_1"], 4);
  EXPECT_EQ(j["results"][0]["plan"]["bytes_by_tag"]["weights"], 700);
  EXPECT_EQ(j["results"][0]["plan"]["measured_bytes"], 4000);
  EXPECT_EQ(j["results"][2]["model_type"], "llm");
  EXPECT_TRUE(j["results"][2]["vram_used_mb"].is_null());
}

TEST(Profile, AgreementIgnoresCase) {
  const Profile p = made_up();
  ASSERT_EQ(p.agreement.size(), 1u);
  EXPECT_EQ(p.agreement[0].rows, 3);
  EXPECT_NEAR(p.agreement[0].share, 2.0 / 3, 1e-12);
}

TEST(Profile, RecommendationsComeFromTheNumbers) {
  const Profile p = made_up();
  std::string all;
  for (const auto& r : p.recommendations) all += r + "\n";
  EXPECT_NE(all.find("fastest: 10 texts per call (198/s, 4.0× one at a time, 50.5 ms per call)"), std::string::npos)
      << all;
  EXPECT_NE(all.find("vader loses 0.5 points of accuracy"), std::string::npos) << all;
  EXPECT_NE(all.find("limited by reading and tokenizing"), std::string::npos) << all;
  EXPECT_NE(all.find("(15 % of the prediction)"), std::string::npos) << all;
  EXPECT_NE(all.find("5.0 s from disk and 1.0 s from memory"), std::string::npos) << all;
  EXPECT_TRUE(recommendations(Profile{}).empty());
}

std::string joined(const std::vector<std::string>& lines) {
  std::string all;
  for (const auto& line : lines) all += line + "\n";
  return all;
}

TEST(Profile, NoiseGivesNoVerdict) {
  Profile p = made_up();
  p.models.resize(1);
  ModelProfile& m = p.models[0];
  // Calls of five seem faster than single ones, but rounds differ by more than that.
  BatchPoint& five = m.batches[2];
  m.batches[1].items_per_second = 1;
  five.gain = jobs::spread_of({0.87, 1.40, 1.02, 0.95, 1.31, 1.12, 0.99});
  five.speedup = five.gain.p50;
  const std::string noise = joined(recommendations(p));
  EXPECT_EQ(noise.find("fastest"), std::string::npos) << noise;
  EXPECT_NE(noise.find("batching: difference not significant (20 texts per call: 1.02×, rounds 0.87× to 1.40×)"),
            std::string::npos)
      << noise;
  five.gain = jobs::spread_of({0.98, 0.99, 1.01, 1.0, 0.97, 1.02, 0.99});
  five.speedup = five.gain.p50;
  EXPECT_NE(joined(recommendations(p)).find("batching is not faster"), std::string::npos);
}

TEST(Spread, FewValuesGiveNoVerdict) {
  EXPECT_FALSE(jobs::spread_of({2, 2, 2}).surely_above(1));
  const jobs::Spread seven = jobs::spread_of({1.2, 1.3, 1.25, 1.4, 1.1, 1.2, 1.3});
  EXPECT_DOUBLE_EQ(seven.low, 1.1);
  EXPECT_DOUBLE_EQ(seven.high, 1.4);
  EXPECT_TRUE(seven.surely_above(1.05));
  EXPECT_FALSE(seven.surely_above(1.1));
  EXPECT_TRUE(seven.surely_below(1.5));
  std::vector<double> hundred;
  for (int i = 1; i <= 100; ++i) hundred.push_back(i);
  EXPECT_DOUBLE_EQ(jobs::spread_of(hundred).low, 40);  // ranks 40 and 61 of 100
  EXPECT_DOUBLE_EQ(jobs::spread_of(hundred).high, 61);
}

TEST(Profile, ReportsAnExceededPeakAsWrong) {
  Profile p = made_up();
  EXPECT_EQ(joined(p.recommendations).find("is impossible"), std::string::npos);
  p.models[0].sizes[0].run.mfu = 1.37;
  EXPECT_NE(joined(recommendations(p)).find("137 % of peak compute (MFU) is impossible"), std::string::npos);
  EXPECT_NE(joined(recommendations(p)).find("brim plan measure=true"), std::string::npos);
}

TEST(Profile, AccuracyUsesTheSameRowsForEveryModel) {
  ModelProfile two, three, words;
  two.name = "two";
  two.labels = {"NEGATIVE", "POSITIVE"};
  two.predictions = {"NEGATIVE", "NEGATIVE", "POSITIVE", "NEGATIVE", "POSITIVE", "POSITIVE"};
  three.name = "three";
  three.labels = {"negative", "neutral", "positive"};
  three.predictions = {"negative", "neutral", "neutral", "neutral", "", "positive", "positive"};  // one not scored
  words.labels = {"O", "B-PER"};
  std::vector<ModelProfile> models = {two, three, words};
  measure_accuracy(models, {"negative", "neutral", "positive", "neutral", "neutral", "positive", "negative"});
  // Rows 1, 2, 3, 4 and 6: the fifth and the seventh lack a prediction of one model.
  EXPECT_EQ(models[0].labelled_rows, 5);
  EXPECT_EQ(models[1].labelled_rows, 5);
  EXPECT_DOUBLE_EQ(*models[0].accuracy, 3.0 / 5) << "two neutral rows are wrong answers";
  EXPECT_DOUBLE_EQ(*models[1].accuracy, 4.0 / 5);
  ASSERT_EQ(models[0].notes.size(), 1u);
  EXPECT_NE(models[0].notes[0].find("2 of 5 rows have a label unknown to the model (neutral; known:"),
            std::string::npos)
      << models[0].notes[0];
  EXPECT_FALSE(models[2].accuracy);
  Profile p;
  p.models = {models[0], models[1]};
  EXPECT_NE(joined(recommendations(p)).find("three is the most accurate (80.0 % of 5 rows; difference not significant"),
            std::string::npos)
      << joined(recommendations(p));
  p.models[0].labelled_rows = 4;
  EXPECT_NE(joined(recommendations(p)).find("no recommendation by accuracy"), std::string::npos);
}

TEST(Profile, LabelNumbersAreNotUsedIfAClassIsMissing) {
  ModelProfile two;
  two.labels = {"negative", "positive"};
  two.predictions = {"negative", "positive", "positive"};
  std::vector<ModelProfile> models = {two};
  measure_accuracy(models, {"0", "1", "2"});  // 1 is neutral there
  EXPECT_FALSE(models[0].accuracy);
  measure_accuracy(models, {"0", "1", "0"});
  EXPECT_DOUBLE_EQ(*models[0].accuracy, 2.0 / 3);
}

TEST(Profile, HasTablesBySizeAndByBatch) {
  Profile p = made_up();
  p.models[0].notes = {"a note"};
  const std::string table = profile_table(p);
  for (const char* part :
       {"one at a time/s", "best batch/s", "whole file rows/s", "by texts per call", "ms per call", "194 to 206",
        "4.00×", "by size of the data set", "limited by", "reading and tokenizing", "note: ", "a note"})
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
}

TEST(Profile, MarksUtilisationRelativeToTheDataSheet) {
  Profile p = made_up();
  p.models.resize(1);
  for (const bool measured : {true, false}) {
    ModelProfile& m = p.models[0];
    m.plan->device.kind = device::DeviceKind::cuda;
    m.plan->device.measured = measured;
    m.sizes[0].run.mfu_of_data_sheet = !measured;
    m.batches[0].mfu = 0.125;
    const std::string table = profile_table(p), page = profile_html(p), note = " % of the data sheet";
    EXPECT_EQ(table.find("25.0" + note) == std::string::npos, measured);
    for (const char* share : {"25.0", "12.5"}) EXPECT_EQ(page.find(share + note) == std::string::npos, measured);
  }
}

TEST(Profile, HtmlIsWellFormedAndHasItsPlots) {
  Profile p = made_up();
  // Three for speed, one for memory, one roofline, two timelines, one for accuracy. One data set is not plotted.
  EXPECT_EQ(check_markup(profile_html(p)).tags.at("svg"), 8);
  p.models[0].sizes.push_back(p.models[0].sizes[0]);
  const MarkupCheck check = check_markup(profile_html(p));
  EXPECT_EQ(check.problem, "");
  EXPECT_EQ(check.tags.at("script"), 1);
  EXPECT_EQ(check.tags.at("svg"), 9);
  EXPECT_EQ(check.text.find("nan"), std::string::npos);
  EXPECT_EQ(check_markup(profile_html(Profile{})).problem, "");
}

TEST(Profile, NamesTheMeasuredDevice) {
  Profile p = made_up();
  p.machine.cpu = "a CPU";
  p.machine.gpu = GpuFacts{"a GPU", "580", "0000:17:00.0", 3000, 12000, 95, 61};
  EXPECT_EQ(p.device_name(), "a CPU") << "the GPU was idle";
  EXPECT_NE(profile_html(p).find("2026-01-02T03:04:05Z · a CPU"), std::string::npos);
  p.models[0].device_kind = device::DeviceKind::cuda;
  EXPECT_EQ(p.device_name(), "a GPU");
  p.models.clear();
  EXPECT_EQ(p.device_name(), "a GPU") << "only a language model";
  p.machine.gpu.reset();
  EXPECT_EQ(p.device_name(), "a CPU");
}

TEST(Profile, JsonHasTheValuesReadByNewsBots) {
  Profile p = made_up();
  p.machine.gpu = GpuFacts{"a GPU", "580", "0000:17:00.0", 3000, 12000, 95, 61};
  p.models[0].notes = {"one", "two"};
  p.notes = {"no language model"};
  const json j = json::parse(profile_json(p));
  EXPECT_DOUBLE_EQ(j["system_info"]["utilization_pct"], 25) << "share of memory";
  EXPECT_DOUBLE_EQ(j["system_info"]["gpu_utilization_pct"], 95);
  EXPECT_DOUBLE_EQ(j["system_info"]["temperature_c"], 61);
  EXPECT_EQ(j["results"][0]["notes"], "Best speedup: 3.96x at batch_size=10; one; two");
  EXPECT_EQ(j["notes"], json::array({"no language model"}));
  EXPECT_NE(profile_table(p).find("note: no language model\n"), std::string::npos);
  EXPECT_NE(profile_html(p).find("no language model"), std::string::npos);
}

TEST(Profile, HasOneBestBatchEverywhere) {
  Profile p = made_up();
  p.models.resize(1);
  p.models[0].name = "m";
  EXPECT_EQ(p.models[0].fastest_batch()->batch_size, 20);
  EXPECT_EQ(p.models[0].best_batch()->batch_size, 10) << "nearly as fast";
  EXPECT_NE(joined(recommendations(p)).find("m: fastest: 10 texts per call (198/s"), std::string::npos);
  const std::string page = profile_html(p);
  const size_t best = page.find("Best batch</th>");
  ASSERT_NE(best, std::string::npos);
  EXPECT_NE(page.substr(best, 60).find(">10</td>"), std::string::npos) << page.substr(best, 60);
  EXPECT_EQ(profile_html(p).find("Measured ÷ planned"), std::string::npos);
}

TEST(Profile, ShortRunsHaveNoLimit) {
  Profile p = made_up();
  for (ModelProfile& m : p.models) m.sizes[0].run.stats.seconds = 0.036;
  p.recommendations.clear();
  for (const std::string& text : {profile_table(p), profile_html(p)}) {
    EXPECT_NE(text.find("run too short"), std::string::npos);
    EXPECT_EQ(text.find("reading and tokenizing"), std::string::npos);
  }
}

TEST(Profile, NeverOverwritesFiles) {
  const TempDir dir;
  const Profile p = made_up();
  const ProfileFiles first = write_profile(p, dir / "made" / "here"), second = write_profile(p, dir / "made" / "here");
  EXPECT_EQ(first.json.filename(), "gpu_profile_20260102_030405.json");
  EXPECT_EQ(first.html.filename(), "gpu_profile_20260102_030405.html");
  EXPECT_NE(first.json, second.json);
  EXPECT_TRUE(fs::exists(second.html));
  std::ofstream(dir / "file") << "x";
  EXPECT_THROW(write_profile(p, dir / "file"), Error);
}

TEST(Profile, DropsThePageCacheSafely) {
  const TempDir dir;
  std::ofstream(dir / "weights") << std::string(1 << 20, 'w');
  const auto share = drop_from_cache(dir.path());
  if (share) {
    EXPECT_GE(*share, 0);
    EXPECT_LE(*share, 1);
  }
  EXPECT_EQ(fs::file_size(dir / "weights"), 1u << 20);
  EXPECT_FALSE(drop_from_cache(dir / "nowhere"));
}

class ProfileRun : public ::testing::Test {
 protected:
  void SetUp() override {
    model::put_golden_model(dir_ / "tiny", "bert_sequence");
    options_.engine.device = "cpu";
    options_.engine.precision = "fp32";
    options_.engine.threads = 2;
    options_.engine.memory_limit = "1GiB";
    options_.batch_sizes = {1, 3};
    options_.sizes = {20, 60};
    options_.sizes_given = true;
    options_.seconds = 1e-6;
    for (int i = 0; i < 40; ++i) {
      texts_.texts.push_back(fmt::format("w{} w{} w{}", 5 + i, 6 + i, 7 + i));
      texts_.labels.push_back(std::to_string(i % 3));
    }
    texts_.source = "made up";
  }
  const TempDir temp_;
  const fs::path dir_ = temp_.path();
  ProfileOptions options_;
  ProfileTexts texts_;
};

TEST_F(ProfileRun, MeasuresATinyModelAndVaderEndToEnd) {
  options_.models = {{"tiny", dir_ / "tiny"}, {"vader", {}}};
  std::vector<std::string> messages;
  double last_done = -1, total = 0;
  options_.progress = [&](double done, double all, const std::string& what) {
    EXPECT_GT(done, last_done);
    last_done = done;
    total = all;
    messages.push_back(what);
  };
  const Profile p = run_profile(options_, "sentiment", texts_);
  EXPECT_EQ(last_done + 1, total) << "every step was reported";
  EXPECT_FALSE(Timeline::enabled());
  ASSERT_EQ(p.models.size(), 2u);
  const ModelProfile& m = p.models[0];
  EXPECT_EQ(m.family, "bert");
  EXPECT_GT(m.cold_load_seconds, 0);
  EXPECT_GT(m.warm_load_seconds, 0);
  EXPECT_GE(m.single.count, 30);
  EXPECT_LE(m.single.p50, m.single.p99);
  ASSERT_EQ(m.batches.size(), 2u);
  EXPECT_DOUBLE_EQ(m.batches[0].speedup, 1);
  EXPECT_GT(m.batches[1].flops, m.batches[0].flops);
  for (const BatchPoint& b : m.batches) {
    EXPECT_GT(b.busy_seconds, 0);
    EXPECT_LE(b.busy_seconds, b.seconds.mean) << "the device's share of a call is no longer than the call";
  }
  EXPECT_GT(m.batches[1].bytes, 0);
  EXPECT_GT(m.batches[1].mfu, 0);
  EXPECT_DOUBLE_EQ(m.mean_tokens, 5);  // three words and two special tokens
  ASSERT_EQ(m.sizes.size(), 2u);
  EXPECT_EQ(m.sizes[1].run.stats.rows, 60);
  EXPECT_TRUE(m.sizes[1].repeated);
  EXPECT_FALSE(m.sizes[0].repeated);
  EXPECT_EQ(m.predictions.size(), 40u) << "repeated texts are not predicted twice";
  ASSERT_TRUE(m.accuracy);
  EXPECT_EQ(m.labelled_rows, 40);
  EXPECT_EQ(m.plan->bytes.total(), m.plan->peak_bytes);
  EXPECT_FALSE(m.timeline.spans.empty());
  EXPECT_FALSE(m.ops.empty());
  EXPECT_GT(m.held_bytes, 0);
  const ModelProfile& v = p.models[1];
  EXPECT_FALSE(v.plan);
  EXPECT_EQ(v.sizes[1].run.stats.rows, 60);
  EXPECT_TRUE(v.accuracy);
  ASSERT_EQ(p.agreement.size(), 1u);
  EXPECT_EQ(p.agreement[0].rows, 40);
  const json j = json::parse(profile_json(p));
  EXPECT_EQ(j["results"][0]["vram_used_mb"], 0.0);
  EXPECT_EQ(check_markup(profile_html(p)).problem, "");
  EXPECT_NE(profile_table(p).find("vader"), std::string::npos);
}

TEST_F(ProfileRun, PredictionsMatchTheEngine) {
  options_.models = {{"tiny", dir_ / "tiny"}};
  const Profile p = run_profile(options_, "sentiment", texts_);
  engine::EngineOptions options = engine::engine_options(options_.engine);
  options.model_dir = dir_ / "tiny";
  const auto engine = engine::Engine::open(options);
  std::vector<std::string_view> views(texts_.texts.begin(), texts_.texts.end());
  const auto scores = engine->score(views);
  for (size_t i = 0; i < scores.size(); ++i)
    EXPECT_EQ(
        p.models[0].predictions[i],
        engine
            ->labels()[static_cast<size_t>(std::max_element(scores[i].begin(), scores[i].end()) - scores[i].begin())]);
}

TEST_F(ProfileRun, MeasuresPairsAsPairs) {
  model::put_golden_model(dir_ / "tiny", "bert_pair");
  for (int i = 0; i < 40; ++i) texts_.pairs.push_back(fmt::format("w{}", 95 - i));
  options_.models = {{"tiny", dir_ / "tiny"}};
  const ModelProfile m = run_profile(options_, "sentiment", texts_).models[0];
  EXPECT_DOUBLE_EQ(m.mean_tokens, 7);  // four words and three special tokens
  EXPECT_EQ(m.sizes[1].run.stats.tokens, 60 * 7);
  engine::EngineOptions options = engine::engine_options(options_.engine);
  options.model_dir = dir_ / "tiny";
  const auto engine = engine::Engine::open(options);
  engine::TokenizedTexts tokens;
  for (size_t i = 0; i < 40; ++i)
    ASSERT_FALSE(engine->tokenize(texts_.texts[i], texts_.pairs[i], tokens, engine->text_options()));
  const std::vector<float> scores = engine->score(tokens);
  for (size_t i = 0; i < 40; ++i)
    EXPECT_EQ(m.predictions[i], engine->labels()[static_cast<size_t>(engine::choose_label({&scores[i * 3], 3}).label)]);
  options_.models = {{"vader", {}}};
  EXPECT_THROW(run_profile(options_, "sentiment", texts_), Error);
}

TEST_F(ProfileRun, MeasuresTokenModels) {
  model::put_golden_model(dir_ / "tiny", "bert_token");
  options_.models = {{"tiny", dir_ / "tiny"}};
  const Profile p = run_profile(options_, "sentiment", texts_);
  EXPECT_EQ(p.models[0].type, "entities");
  EXPECT_TRUE(p.models[0].predictions.empty());
  EXPECT_EQ(p.models[0].sizes[1].run.stats.rows, 60);
}

TEST_F(ProfileRun, WritesNothingWhenStopped) {
  std::atomic<bool> stop{false};
  options_.models = {{"vader", {}}};
  options_.stop = &stop;
  options_.progress = [&](double done, double, const std::string&) { stop = done >= 2; };
  EXPECT_THROW(run_profile(options_, "sentiment", texts_), Error);
}

TEST_F(ProfileRun, FullModeMeasuresBothAloneAndTogether) {
  LlmStandIn server(good_llm);
  options_.models = {{"vader", {}}, {"tiny", dir_ / "tiny"}};
  options_.llm.emplace();
  options_.llm->url = server.url();
  options_.llm->model = "mistral";
  options_.llm->requests = 2;
  std::vector<std::string> messages;
  options_.progress = [&](double done, double total, const std::string& what) {
    EXPECT_LT(done, total);
    messages.push_back(what);
  };
  const Profile p = run_profile(options_, "full", texts_);
  for (const char* message : {"mistral: alone, request 2 of 2", "mistral: together with scoring, request 1 of 2"})
    EXPECT_EQ(std::count(messages.begin(), messages.end(), message), 1) << message;
  ASSERT_TRUE(p.llm && p.llm->sharing);
  EXPECT_EQ(p.llm->sharing->sentiment_model, "tiny") << "a model takes precedence over VADER";
  EXPECT_EQ(p.llm->alone.calls, 2);
  EXPECT_EQ(p.llm->sharing->together.calls, 2);
  const json j = json::parse(profile_json(p));
  EXPECT_TRUE(j["sharing"]["sentiment_speed_kept"].is_number());
  EXPECT_TRUE(j["sharing"]["llm_speed_kept"].is_number());
  EXPECT_EQ(check_markup(profile_html(p)).problem, "");
  // The language model alone.
  options_.models.clear();
  const Profile alone = run_profile(options_, "llm", texts_);
  EXPECT_FALSE(alone.llm->sharing);
  EXPECT_EQ(check_markup(profile_html(alone)).problem, "");
  EXPECT_NE(profile_table(alone).find("mistral"), std::string::npos);
}

TEST_F(ProfileRun, FullModeWithoutAServerMeasuresTheClassifier) {
  ::setenv("OLLAMA_HOST", "127.0.0.1:1", 1);
  options_.models = {{"vader", {}}};
  options_.llm.emplace();
  const Profile p = run_profile(options_, "full", texts_);
  EXPECT_FALSE(p.llm);
  EXPECT_EQ(p.models.size(), 1u);
  ASSERT_EQ(p.notes.size(), 1u);
  EXPECT_HAS(p.notes[0],
             "no language model was measured: no server responds at the default address http://127.0.0.1:1");
  EXPECT_HAS(p.notes[0], "set `llm_url` and `llm_model`");
  options_.models.clear();
  EXPECT_THROW(run_profile(options_, "llm", texts_), Error);
  ::unsetenv("OLLAMA_HOST");
}

TEST_F(ProfileRun, MissingServerIsReportedBeforeMeasuring) {
  options_.models = {{"vader", {}}};
  options_.llm.emplace();
  options_.llm->url = "http://127.0.0.1:1";
  options_.llm->model = "mistral";
  int steps = 0;
  options_.progress = [&](double, double, const std::string&) { ++steps; };
  try {
    run_profile(options_, "full", texts_);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    EXPECT_NE(std::string(e.what()).find("no server responds"), std::string::npos);
  }
  EXPECT_EQ(steps, 0);
}

TEST(Profile, UsesTheMeasuredGpuAsTheMachinesGpu) {
  MachineFacts m;
  m.cards = {{"A", "580", "0000:17:00.0", 1, 2, 3}, {"B", "580", "0000:65:00.0", 1, 2, 3}};
  m.gpu = m.cards[0];
  m.choose_card("");  // VADER or the CPU
  EXPECT_EQ(m.gpu->name, "A");
  m.choose_card("0000:65:00.0");
  EXPECT_EQ(m.gpu->name, "B");
}

}  // namespace
}  // namespace brim::report
