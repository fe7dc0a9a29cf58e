// SPDX-License-Identifier: Apache-2.0
// Resuming after a stop, a kill or a full disk: the weights match bit for bit, and damaged checkpoints are never used.
#include "train/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <zlib.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/test_syscalls.h"
#include "train/tiny_job.h"

namespace brim::train {
namespace {

namespace fs = std::filesystem;

// Trains until `steps` optimizer steps are done, then stops as SIGTERM would.
TrainOutcome run_until(const TrainSettings& s, int64_t steps) {
  std::atomic<bool> stop{false};
  TrainCallbacks callbacks;
  callbacks.stop = &stop;
  // A step's loss is reported one or two steps later, so the run also stops that much later.
  callbacks.progress = [&](double done, double, const std::string& text) {
    stop = stop || (done >= static_cast<double>(steps) && !text.starts_with("scoring"));
  };
  return train(s, callbacks);
}

TrainSettings resumed(TrainSettings s, const std::string& which = "last") {
  s.resume_from_checkpoint = which;
  return s;
}

class Resume : public ::testing::TestWithParam<const char*> {};

TEST_P(Resume, GivesTheSameWeightsBitForBit) {
  TinyJob t(std::string(GetParam()).find("token") == std::string::npos ? "bert_sequence" : "bert_token");
  TrainSettings& s = t.settings;
  if (std::string(GetParam()) == "token") {
    put_file(t.dir / "train.conll", TinyJob::conll(48, 1));
    put_file(t.dir / "val.conll", TinyJob::conll(12, 2));
    s.train_files = {(t.dir / "train.conll").string()};
    s.validation_files = {(t.dir / "val.conll").string()};
  }
  if (std::string(GetParam()) == "8bit") s.optim = model::Optimizer::adamw_8bit;
  if (std::string(GetParam()) == "frozen") s.freeze = {model::Freeze::Part::layers, 1};
  if (std::string(GetParam()) == "lora") {
    s.lora_r = 2;
    s.lora_dropout = 0.1;
  }
  if (std::string(GetParam()) == "bf16") s.precision = {ops::Precision::bf16};
  if (std::string(GetParam()) == "teachers") {
    const TrainSettings second = t.to("second");
    train(second, {});
    s.teachers = {s.model, second.output_dir};
    put_file(t.dir / "texts.txt", "w5 w6 w7\nw66 w70\n");  // adds no steps
    put_file(t.dir / "train.csv", TinyJob::csv(46, 1));
    s.train_files.push_back((t.dir / "texts.txt").string());
  }
  s.lr_schedule = LrSchedule::cosine;
  s.warmup_ratio = 0.2;
  s.dropout = 0.1;
  s.num_train_epochs = 3;
  t.run();  // 18 steps in one run
  TrainSettings parts = t.to("parts");
  double seconds = 0;  // training time, summed over the parts
  for (const int64_t stop : {1, 5, 10}) {
    const TrainOutcome o = run_until(stop == 1 ? parts : resumed(parts), stop);
    ASSERT_TRUE(o.interrupted);
    EXPECT_GE(o.steps, stop);
    seconds += o.seconds;
  }
  TrainCallbacks callbacks;
  nlohmann::json record;
  callbacks.record = [&](const std::string& json) { record = nlohmann::json::parse(json); };
  const TrainOutcome last = train(resumed(parts), callbacks);
  EXPECT_GT(seconds, 0);
  EXPECT_LE(record["seconds_before"].get<double>(), seconds);
  EXPECT_GT(record["seconds_before"].get<double>(), 0.7 * seconds) << "all three parts count";
  EXPECT_EQ(last.steps, 18);
  EXPECT_TRUE(t.weights() == t.weights("parts"));
  // The log must also match an uninterrupted run, except for times.
  const auto state = [&](const fs::path& dir) { return nlohmann::json::parse(get_file(dir / "trainer_state.json")); };
  const auto whole = state(t.out()), in_parts = state(t.dir / "parts");
  EXPECT_EQ(whole["num_input_tokens_seen"], in_parts["num_input_tokens_seen"]);
  const auto &a = whole["log_history"], &b = in_parts["log_history"];
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    for (const char* key : {"step", "loss", "grad_norm", "learning_rate", "eval_loss"})
      EXPECT_EQ(a[i].value(key, 0.0), b[i].value(key, 0.0)) << i << " " << key;
}

INSTANTIATE_TEST_SUITE_P(Each, Resume,
                         ::testing::Values("plain", "token", "8bit", "bf16", "frozen", "lora", "teachers"));

// Checkpoints written by earlier versions (tests/data/train/checkpoints, never regenerated): the loaded state matches
// the files, and the resumed run matches the original, bit for bit if the arithmetic is the same.
class Golden : public ::testing::TestWithParam<model::Optimizer> {};

TEST_P(Golden, ResumesOldCheckpoints) {
  const std::string name = optimizer_name(GetParam());
  const fs::path golden = model::golden_models().parent_path() / "train" / "checkpoints" / name;
  TinyJob t;
  TrainSettings& s = t.settings;
  s.optim = GetParam();
  s.lr_schedule = LrSchedule::cosine;
  s.warmup_ratio = 0.2;
  s.dropout = 0.1;
  s.num_train_epochs = 3;
  s.save_strategy = Strategy::steps;
  s.save_steps = 6;
  const model::ModelShape shape = model::read_shape(t.dir / "model");
  {
    const auto device = device::open_cpu_device(1);
    const auto stream = device->make_stream();
    const auto loaded = load_checkpoint("", (golden / "checkpoint-6").string(), shape);
    model::TrainState state(*device, shape, ops::Precision::fp32, GetParam());
    state.upload(*stream, loaded->master);
    state.upload_moments(*stream, loaded->moments);
    std::vector<std::byte> copy;
    std::string moments;
    for (const auto part : state.moments_on_host(*stream, copy))
      moments.append(reinterpret_cast<const char*>(part.data()), part.size());
    EXPECT_TRUE(moments == get_file(golden / "checkpoint-6" / "optimizer.bin"));
    const hub::HfConfig config = hub::load_hf_config(t.dir / "model");
    write_model(t.dir / "again", {&config, t.dir / "model", config.id2label, {}, shape}, state.layout(),
                state.download(*stream));
    EXPECT_TRUE(get_file(t.dir / "again" / "model.safetensors") ==
                get_file(golden / "checkpoint-6" / "model.safetensors"));
  }
  ::setenv("BRIM_FORCE_ISA", "generic", 1);
  const TrainOutcome o = train(resumed(s, (golden / "checkpoint-6").string()), {});
  ::unsetenv("BRIM_FORCE_ISA");
  EXPECT_EQ(o.steps, 18);
  const auto want = nlohmann::json::parse(get_file(golden / "then.json"));
  const auto history = nlohmann::json::parse(get_file(t.out() / "trainer_state.json"))["log_history"];
  std::vector<double> losses;
  for (const auto& entry : history)
    if (entry.contains("loss") && entry["step"] > 6) losses.push_back(entry["loss"]);
  ASSERT_EQ(losses.size(), 12u);
#if defined(__aarch64__) && defined(NDEBUG)  // other processors and builds contract different multiply-adds
  EXPECT_EQ(losses, want["losses"].get<std::vector<double>>()) << nlohmann::json(losses);
  for (const auto& [file, crc] : want["crc32_of_step_12"].items()) {
    const std::string bytes = get_file(t.out() / "checkpoint-12" / file);
    EXPECT_EQ(crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())),
              crc.get<uint32_t>())
        << file;
  }
#else
  for (size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(losses[i], want["losses"][i].get<double>(), 1e-4 * losses[i]) << i;
#endif
}

INSTANTIATE_TEST_SUITE_P(Each, Golden, ::testing::Values(model::Optimizer::adamw, model::Optimizer::adamw_8bit),
                         [](const auto& p) { return std::string(optimizer_name(p.param)); });

TEST(Checkpoint, FallsBackToThePreviousOneIfDamaged) {
  TinyJob t;
  t.settings.save_strategy = Strategy::steps;
  t.settings.save_steps = 2;
  t.settings.save_total_limit = 10;
  t.run();
  const std::string want = t.weights();
  const fs::path newest = t.out() / "checkpoint-10";
  ASSERT_TRUE(fs::exists(newest));
  const auto resumes_from = [&](int64_t step) {
    std::string lines;
    TrainCallbacks callbacks;
    callbacks.say = [&](const std::string& line) { lines += line + "\n"; };
    fs::remove(t.out() / "model.safetensors");
    train(resumed(t.settings), callbacks);
    EXPECT_HAS(lines, "(checkpoint-" + std::to_string(step) + ")");
    EXPECT_TRUE(t.weights() == want);
  };
  resumes_from(10);
  const auto damage = [&](const fs::path& file, auto change) {
    std::string bytes = get_file(file);
    change(bytes);
    put_file(file, bytes);
  };
  std::vector<std::string> warnings;
  const LogSink sink = set_log_sink([&](LogLevel level, std::string_view text) {
    if (level == LogLevel::warning) warnings.emplace_back(text);
  });
  damage(t.out() / "checkpoint-10/model.safetensors", [](std::string& b) { b.resize(b.size() / 2); });
  resumes_from(8);
  EXPECT_HAS(warnings.at(0), "truncated");
  for (const auto& [file, step] :
       {std::pair{"checkpoint-8/optimizer.bin", 6}, {"checkpoint-6/trainer_state.json", 4}}) {
    const fs::path whole = t.out() / file;
    fs::remove_all(t.out() / "checkpoint-10");
    fs::remove_all(t.out() / ("checkpoint-" + std::to_string(step + 4)));
    // JSON never contains this byte; a flipped bit might only change a number.
    damage(whole, [](std::string& b) { b[b.size() / 2] = b[b.size() / 2] == '\1' ? '\2' : '\1'; });
    resumes_from(step);
  }
  set_log_sink(sink);
}

TEST(Checkpoint, DamagedNamedCheckpointIsAnError) {
  TinyJob t;
  t.settings.save_strategy = Strategy::steps;
  t.settings.save_steps = 4;
  t.run();
  const fs::path dir = t.out() / "checkpoint-4";
  EXPECT_EQ(train(resumed(t.settings, dir.string()), {}).steps, 12);
  put_file(dir / "trainer_state.json", "{\"global_step\": 4, \"brim\": {}}");
  error_of(ErrorCode::bad_model, [&] { train(resumed(t.settings, dir.string()), {}); });
  put_file(dir / "trainer_state.json", "{\"global_st");
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { train(resumed(t.settings, dir.string()), {}); }), "truncated");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { train(resumed(t.settings, (t.dir / "nowhere").string()), {}); }),
             "no such directory");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { train(resumed(t.settings, t.out().string()), {}); }),
             "such as " + (t.out() / "checkpoint-8").string());
}

TEST(Checkpoint, RejectsAnotherRunAndListsTheDifference) {
  TinyJob t;
  t.settings.save_strategy = Strategy::steps;
  t.settings.save_steps = 4;
  t.run();
  TrainSettings s = resumed(t.settings);
  s.learning_rate = 5e-4;
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { train(s, {}); }), "learning_rate");
  put_file(t.dir / "train.csv", TinyJob::csv(48, 99));
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { train(resumed(t.settings), {}); }), "data");
}

TEST(Checkpoint, KeepsTheLatestAndRemovesIncompleteFiles) {
  TinyJob t;
  t.settings.save_strategy = Strategy::steps;
  t.settings.save_steps = 2;
  t.settings.save_total_limit = 2;
  fs::create_directories(t.out() / "checkpoint-7.part");
  put_file(t.out() / "checkpoint-7.part/model.safetensors", "half");
  t.settings.overwrite_output_dir = true;
  t.run();
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(t.out()))
    if (entry.is_directory()) left.insert(entry.path().filename().string());
  EXPECT_EQ(left, (std::set<std::string>{"checkpoint-10", "checkpoint-8"}));
}

TEST(Checkpoint, IsSyncedBeforeRenameAndBeforeRemovingOlderOnes) {
  TinyJob t;
  t.settings.save_strategy = Strategy::steps;
  t.settings.save_steps = 2;
  t.settings.save_total_limit = 1;
  const SyscallLog log;
  t.run();
  const auto calls = log.calls();
  size_t checkpoints = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    const FileCall& c = calls[i];
    if (c.call != "rename" || fs::path(c.target).filename().string().rfind("checkpoint-", 0) != 0) continue;
    ++checkpoints;
    for (const char* name : {"/model.safetensors", "/optimizer.bin", "/config.json", "/trainer_state.json"})
      EXPECT_LT(find_call(calls, "rename", c.path + name), i) << name;
    EXPECT_EQ(unsynced(calls, i, c.path), std::vector<std::string>{});
    // The directory must be synced before the next call that changes it, including the removal of older checkpoints.
    ASSERT_LT(i + 1, calls.size());
    EXPECT_EQ(calls[i + 1].call, "fsync");
    EXPECT_EQ(calls[i + 1].path, t.out().string());
  }
  EXPECT_GE(checkpoints, 2u);
  for (const std::string& path : unsynced(calls, calls.size(), t.out().string()))
    for (const char* name : {"model.safetensors", "config.json"}) EXPECT_NE(fs::path(path).filename(), name);
}

TEST(Checkpoint, RemovesThoseOfAnOverwrittenRun) {
  TinyJob t;
  t.settings.save_strategy = Strategy::steps;
  t.settings.save_steps = 2;
  t.settings.save_total_limit = 1;
  t.run();
  ASSERT_TRUE(fs::exists(t.out() / "checkpoint-10"));
  t.settings.overwrite_output_dir = true;
  t.settings.seed = 7;
  TrainSettings from_own = t.settings;
  from_own.model = (t.out() / "checkpoint-10/").string();
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { train(from_own, {}); }), "another `output`");
  ASSERT_TRUE(run_until(t.settings, 2).interrupted);
  EXPECT_FALSE(fs::exists(t.out() / "checkpoint-10"));
  EXPECT_EQ(train(resumed(t.settings), {}).steps, 12);
}

TEST(Checkpoint, KeepsTheNewOneDespiteDamagedOnesOfAHigherStep) {
  TinyJob t;
  t.settings.save_strategy = Strategy::steps;
  t.settings.save_steps = 5;
  t.settings.save_total_limit = 1;
  fs::create_directories(t.out() / "checkpoint-99");
  std::vector<std::string> warnings;
  const LogSink sink = set_log_sink([&](LogLevel, std::string_view text) { warnings.emplace_back(text); });
  ASSERT_TRUE(run_until(resumed(t.settings), 2).interrupted);
  set_log_sink(sink);
  EXPECT_HAS(warnings.at(0), "no other checkpoint found");
  EXPECT_FALSE(fs::exists(t.out() / "checkpoint-99"));
  EXPECT_LT(train(resumed(t.settings), {}).own_steps, 12);
}

// Checkpoints do not contain the best model so far; a run resumed into another directory must still produce one.
TEST(Checkpoint, ResumeInAnotherDirectoryKeepsTheBestModel) {
  TinyJob t;
  TrainSettings& s = t.settings;
  s.save_strategy = s.eval_strategy = Strategy::steps;
  s.save_steps = s.eval_steps = 2;
  s.save_total_limit = 10;
  s.learning_rate = 1e-9;  // no evaluation after the first one is better
  t.run();
  const std::string named = (t.out() / "checkpoint-8").string();
  train(resumed(t.to("other"), named + "/"), {});
  EXPECT_TRUE(t.weights("other") == t.weights());
  EXPECT_TRUE(fs::exists(t.dir / "other/vocab.txt"));
  fs::remove(t.out() / "model.safetensors");
  std::string lines;
  TrainCallbacks callbacks;
  callbacks.say = [&](const std::string& line) { lines += line; };
  train(resumed(t.to("without"), named), callbacks);
  EXPECT_HAS(lines, "only later models are considered");
  EXPECT_TRUE(fs::exists(t.dir / "without/model.safetensors"));
}

TEST(Checkpoint, FullDiskIsReportedAndTheLastGoodOneStays) {
  TinyJob t;
  t.settings.save_strategy = Strategy::steps;
  t.settings.save_steps = 3;
  t.run();
  const std::string want = t.weights();
  TrainSettings s = t.to("full");
  ASSERT_TRUE(run_until(s, 2).interrupted);
  std::vector<std::string> before;
  for (const auto& entry : fs::directory_iterator(t.dir / "full")) before.push_back(entry.path().filename().string());
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small{64 << 10, limit.rlim_max};  // the model takes 180 kB
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = error_of(ErrorCode::cannot_write, [&] { train(resumed(s), {}); });
  setrlimit(RLIMIT_FSIZE, &limit);
  EXPECT_HAS(message, "full");
  bool whole = false;
  for (const auto& entry : fs::directory_iterator(t.dir / "full")) {
    EXPECT_FALSE(entry.path().string().ends_with(".part")) << entry.path();
    whole = whole || fs::exists(entry.path() / "optimizer.bin");
  }
  EXPECT_TRUE(whole);
  EXPECT_EQ(train(resumed(s), {}).steps, 12);
  EXPECT_TRUE(t.weights("full") == want);
}

TEST(Checkpoint, ResumeWithoutACheckpointStartsFromTheBeginning) {
  TinyJob t;
  t.run();
  EXPECT_EQ(train(resumed(t.to("fresh")), {}).steps, 12);
  EXPECT_TRUE(t.weights() == t.weights("fresh"));
}

TEST(Checkpoint, RejectsARunWithAnotherTeacher) {
  TinyJob t;
  model::put_golden_model(t.dir / "other", "bert_sequence");
  t.settings.teachers = {(t.dir / "model").string()};
  t.settings.save_strategy = Strategy::epoch;
  t.run();
  TrainSettings s = t.settings;
  s.resume_from_checkpoint = "last";
  s.teachers = {(t.dir / "other").string()};  // the same weights in another directory count as the same teacher
  train(s, {});
  std::string weights = get_file(t.dir / "other/model.safetensors");
  weights.back() ^= 1;
  put_file(t.dir / "other/model.safetensors", weights);
  const std::string message = error_of(ErrorCode::usage, [&] { train(s, {}); });
  EXPECT_HAS(message, "teacher_weights: was ");
  EXPECT_HAS(message, "`model=");
  s.teachers = {(t.dir / "model").string(), (t.dir / "model").string()};
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { train(s, {}); }), "teacher_weights: was ");
  s.teachers.clear();
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { train(s, {}); }), "teacher_weights: was ");
}

TEST(Checkpoint, NonFiniteEvaluationIsNeverTheBest) {
  TrainProgress p;
  for (const bool lower : {false, true}) {
    EXPECT_FALSE(p.improved_by(NAN, lower));
    EXPECT_FALSE(p.improved_by(INFINITY, lower));
    EXPECT_FALSE(p.improved_by(-INFINITY, lower));
    EXPECT_TRUE(p.improved_by(1e30, lower));
  }
  p.best_step = 3;
  p.best_metric = 0.5;
  EXPECT_TRUE(p.improved_by(0.4, true));
  EXPECT_FALSE(p.improved_by(0.5, true));
  EXPECT_FALSE(p.improved_by(0.4, false));
  EXPECT_TRUE(p.improved_by(0.6, false));
}

TEST(Checkpoint, StoresItsVersion) {
  TinyJob t;
  t.settings.save_strategy = Strategy::epoch;
  t.run();
  fs::path newest;
  for (const auto& entry : fs::directory_iterator(t.settings.output_dir))
    if (entry.is_directory() && fs::exists(entry.path() / "trainer_state.json")) newest = entry.path();
  const fs::path path = newest / "trainer_state.json";
  auto state = nlohmann::ordered_json::parse(get_file(path));
  EXPECT_EQ(state["brim"].begin().key(), "version");
  t.settings.resume_from_checkpoint = newest.string();
  state["brim"].erase("version");
  put_file(path, state.dump());
  EXPECT_EQ(train(t.settings, {}).steps, 12);
  const auto places = state["brim"]["places"];
  EXPECT_EQ(places.size(), 33u);  // two layers, five for embeddings and four for heads
  state["brim"]["places"]["classifier.weight"] = 7;
  put_file(path, state.dump());
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { train(t.settings, {}); }),
             "offset of the moments of classifier.weight is 7, expected");
  state["brim"].erase("places");  // earlier versions did not write them
  put_file(path, state.dump());
  EXPECT_EQ(train(t.settings, {}).steps, 12);
  state["brim"]["version"] = 2;
  put_file(path, state.dump());
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { train(t.settings, {}); }),
             "unsupported version 2 (the latest supported is 1)");
}

// Earlier versions wrote the settings in another order.
TEST(Checkpoint, ComparesSettingsByName) {
  TinyJob t;
  t.settings.save_strategy = Strategy::epoch;
  t.run();
  for (const auto& entry : fs::directory_iterator(t.settings.output_dir)) {
    const fs::path path = entry.path() / "trainer_state.json";
    if (!entry.is_directory() || !fs::exists(path)) continue;
    auto state = nlohmann::ordered_json::parse(get_file(path));
    auto& settings = state["brim"]["settings"];
    const std::string written = settings.dump();
    settings = nlohmann::ordered_json::parse(nlohmann::json::parse(written).dump());  // sorted alphabetically
    ASSERT_NE(settings.dump(), written);
    put_file(path, state.dump());
  }
  t.settings.resume_from_checkpoint = "last";
  EXPECT_EQ(train(t.settings, {}).steps, 12);
}

TEST(Checkpoint, ResumedRunKeepsItsClassifier) {
  TinyJob t("bert_encoder");
  t.settings.save_strategy = Strategy::epoch;
  std::string lines;
  TrainCallbacks callbacks;
  callbacks.say = [&](const std::string& line) { lines += line + "\n"; };
  train(t.settings, callbacks);
  EXPECT_HAS(lines, "the model has no classifier; adding a new one for negative, neutral, positive");
  lines.clear();
  t.settings.resume_from_checkpoint = "last";
  train(t.settings, callbacks);
  EXPECT_HAS(lines, "resuming after step");
  EXPECT_EQ(lines.find("classifier"), std::string::npos) << lines;
}

}  // namespace
}  // namespace brim::train
