// SPDX-License-Identifier: Apache-2.0
// Training of tiny models: splitting a step does not change the result, every task and option trains, errors have the
// right code, and other libraries can load the output directory.
#include "train/trainer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/clock.h"
#include "base/log.h"
#include "base/timeline.h"
#include "memory/ledger.h"
#include "model/weights.h"
#include "monitor/live.h"
#include "plan/card_measure.h"
#include "train/job.h"
#include "train/micro_batch.h"
#include "train/tiny_job.h"

namespace brim::train {

using model::Recompute;

namespace {

namespace fs = std::filesystem;

// One optimizer step on the first `rows` rows, in micro-batches of at most `budget` tokens.
std::vector<float> one_update(TrainJob& job, int64_t rows, int64_t budget, Recompute recompute,
                              int64_t sequences = INT64_MAX, int64_t* micros = nullptr) {
  model::TrainState state(*job.device, job.shape, ops::Precision::fp32, model::Optimizer::adamw);
  auto stream = job.device->make_stream();
  state.upload(*stream, job.master);
  std::vector<int64_t> all(static_cast<size_t>(rows));
  std::iota(all.begin(), all.end(), int64_t{0});
  const auto parts = split_micro_batches(job.train_set, all, budget, sequences);
  if (micros != nullptr) *micros = static_cast<int64_t>(parts.size());
  const model::BatchLimits limits{std::max<int64_t>(budget, 64), rows, 64};
  const model::TrainPassPlan plan = plan_train_pass(job.shape, ops::Precision::fp32, recompute, device::DeviceKind::cpu,
                                                    device::best_isa(), 1, limits);
  const device::DeviceBuffer arena = memory::Ledger::allocate(*job.device, nullptr, plan.placement.at_peak, "test");
  BatchStager stager(*job.device, job.shape, limits, 1);
  for (const auto& part : parts) {
    MicroBatch m;
    build_micro_batch(job.train_set, job.soft, part, job.shape, m);
    const StagedBatch staged = stager.stage(m, *stream);
    model::TrainPass pass{
        state.architecture(), state.params(), recompute, {}, {{}, staged.sorted, staged.sorted_positions}};
    pass.loss.sequence_scale = 1 / static_cast<float>(rows);
    run_train_pass(*stream, arena.data(), plan, pass, staged.batch, staged.targets, 1);
  }
  model::StepSettings step;
  // A large epsilon: with the usual one, AdamW's first step is the sign of the gradient, which is noise for gradients
  // that are zero except for rounding (key biases).
  step.lr = 1e-3f;
  step.eps = 1e-3f;
  step.weight_decay = 0.01f;
  state.step(*stream, step, 1);
  return state.download(*stream);
}

TEST(Update, DoesNotDependOnMicroBatches) {
  for (const char* model : {"bert_sequence", "roberta_sequence", "distilbert_sequence"}) {
    TinyJob t(model);
    t.settings.dropout = 0;
    TrainJob job = open_train_job(t.settings, {[](const std::string&) {}});
    const int64_t rows = 16;
    int64_t tokens = 0;
    for (int64_t r = 0; r < rows; ++r) tokens += job.train_set.length(r);
    const auto whole = one_update(job, rows, tokens, Recompute::none);
    double moved = 0;
    for (size_t i = 0; i < whole.size(); ++i)
      moved = std::max(moved, std::abs(static_cast<double>(whole[i]) - job.master[i]));
    EXPECT_GT(moved, 1e-5);
    for (const Recompute level : model::kRecomputeLevels)
      for (const int64_t parts : {1, 2, 4, 16}) {  // 16: one row each
        int64_t micros = 0;
        const bool one_by_one = parts == rows;
        const auto other =
            one_update(job, rows, one_by_one ? tokens : tokens / parts + 4, level, one_by_one ? 1 : INT64_MAX, &micros);
        if (one_by_one) {
          EXPECT_EQ(micros, rows);
        } else {
          EXPECT_GE(micros, parts);
        }
        double worst = 0;
        for (size_t i = 0; i < whole.size(); ++i)
          worst = std::max(worst, std::abs(static_cast<double>(whole[i]) - other[i]));
        EXPECT_LE(worst, 1e-6) << model << ", " << recompute_name(level) << ", " << micros << " micro-batches";
      }
  }
}

TEST(Update, BatchTimesAccumulationIsTheGlobalBatch) {
  TinyJob t;
  t.settings.train_batch_size = 8;
  t.run();
  for (const int64_t accumulation : {2, 4}) {
    TrainSettings s = t.to("a" + std::to_string(accumulation));
    s.train_batch_size = 8 / accumulation;
    s.gradient_accumulation_steps = accumulation;
    train(s, {});
    EXPECT_TRUE(t.weights() == get_file(fs::path(s.output_dir) / "model.safetensors"));
  }
}

// Timeline read by the doctor: every pass and update on the device and every prepared micro-batch, but no waiting.
TEST(Trainer, TimelineHasDeviceAndLoopEvents) {
  TinyJob t;
  t.settings.train_batch_size = 16;
  t.settings.save_strategy = Strategy::epoch;
  t.settings.load_best_model_at_end = false;
  Timeline::clear();
  Timeline::enable(true);
  int64_t began_ns = 0, ended_ns = 0;
  TrainCallbacks callbacks;
  callbacks.begins = [&](const TrainJob& job) {
    began_ns = now_ns();
    EXPECT_EQ(job.train_set.rows(), 48);
  };
  callbacks.ends = [&](const TrainJob&, const TrainOutcome& outcome) {
    ended_ns = now_ns();
    EXPECT_EQ(outcome.own_steps, 6);
  };
  const TrainOutcome o = train(t.settings, callbacks);
  Timeline::enable(false);
  const auto events = Timeline::events();
  const auto lanes = Timeline::thread_names();
  Timeline::clear();
  std::map<Zone, int64_t> count;
  int64_t tokens = 0, end = 0;
  for (const ZoneEvent& e : events) {
    ++count[e.zone];
    if (is_op(e.zone) || e.zone == Zone::load_model || e.zone == Zone::plan) continue;
    EXPECT_GE(e.begin_ns, began_ns) << zone_name(e.zone);
    EXPECT_LE(e.end_ns, ended_ns) << zone_name(e.zone);
    if (e.zone != Zone::device_busy) continue;
    EXPECT_EQ(lanes[static_cast<size_t>(e.thread)], "device");
    EXPECT_GE(e.begin_ns, end) << "spans of one device follow each other";
    end = e.end_ns;
    tokens += e.detail;
  }
  EXPECT_EQ(o.micro_batches, 6);
  EXPECT_EQ(count[Zone::forward], o.micro_batches);
  EXPECT_EQ(count[Zone::pack], o.micro_batches + o.own_steps);
  EXPECT_EQ(count[Zone::evaluate], 2);
  EXPECT_EQ(count[Zone::checkpoint], 1);  // after the first epoch; the second one ends with the model
  EXPECT_EQ(count[Zone::collect], o.own_steps);
  EXPECT_GE(count[Zone::device_busy], o.micro_batches + o.own_steps + count[Zone::evaluate]);
  EXPECT_GT(tokens, o.tokens) << "evaluations count too";
}

TEST(Trainer, LearnsAndWritesAHuggingFaceDirectory) {
  TinyJob t("bert_sequence", 240);
  t.settings.num_train_epochs = 6;
  t.settings.save_strategy = Strategy::epoch;
  std::string lines;
  std::string record;
  double last_done = 0;
  TrainCallbacks callbacks;
  callbacks.say = [&](const std::string& line) { lines += line + "\n"; };
  callbacks.record = [&](const std::string& json) { record = json; };
  callbacks.progress = [&](double done, double total, const std::string& text) {
    EXPECT_LE(done, total);
    last_done = done;
    for (const char* part : {"loss", "lr", "rows/s", "tokens/s", "MFU", "memory"}) EXPECT_HAS(text, part);
  };
  const TrainOutcome o = train(t.settings, callbacks);
  EXPECT_EQ(o.steps, 180);
  EXPECT_EQ(last_done, 180);
  EXPECT_GT(o.best_metric, 0.7);
  EXPECT_HAS(lines, "240 rows, ");
  EXPECT_HAS(lines, "labels: negative, neutral, positive\n");
  EXPECT_HAS(lines, "6 epochs · learning rate 0.001, schedule linear\n");
  EXPECT_HAS(lines, "24 validation rows evaluated every epoch · keeping the model with the best macro_f1\n");
  EXPECT_EQ(lines.find("GPU"), std::string::npos) << lines;
  for (const char* file :
       {"config.json", "model.safetensors", "vocab.txt", "trainer_state.json", "train_log.jsonl", "README.md"})
    EXPECT_TRUE(fs::exists(t.out() / file)) << file;
  const auto config = json_of(t.out() / "config.json");
  EXPECT_EQ(config["id2label"]["2"], "positive");
  EXPECT_EQ(config["architectures"][0], "BertForSequenceClassification");
  const auto state = json_of(t.out() / "trainer_state.json");
  EXPECT_EQ(state["global_step"], 180);
  EXPECT_EQ(state["best_metric"].get<double>(), o.best_metric);
  EXPECT_EQ(state["log_history"].size(), 186u);  // every step and six evaluations
  int64_t count = 0;
  std::istringstream log(get_file(t.out() / "train_log.jsonl"));
  for (std::string line; std::getline(log, line); ++count)
    EXPECT_EQ(nlohmann::json::parse(line), state["log_history"][static_cast<size_t>(count)]);
  EXPECT_EQ(count, 186);
  const std::string card = get_file(t.out() / "README.md");
  for (const char* part : {"train.csv", "| 240 |", "(best)", "learning_rate", "## Plan", "macro_f1"})
    EXPECT_HAS(card, part);
  EXPECT_EQ(nlohmann::json::parse(record)["state"]["global_step"], 180);
}

TEST(Trainer, MonitorsSeeTheStages) {
  TinyJob t;
  monitor::LivePublisher live(t.dir.path());
  TrainCallbacks callbacks;
  callbacks.live = &live;
  train(t.settings, callbacks);
  const auto runs = monitor::read_live(t.dir.path());
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_GT(runs[0].device_busy, 0);
  EXPECT_LE(runs[0].device_busy, 1);
  ASSERT_EQ(runs[0].stages.size(), 2u);
  EXPECT_EQ(runs[0].stages[0].first, "compute");
  EXPECT_EQ(runs[0].stages[0].second, runs[0].device_busy);
}

TEST(Trainer, SeedDeterminesTheRun) {
  TinyJob t;
  t.settings.dropout = 0.1;
  t.run();
  TrainSettings again = t.to("again"), threads = t.to("threads"), other = t.to("other");
  threads.threads = 2;
  other.seed = 43;
  for (const auto* s : {&again, &threads, &other}) train(*s, {});
  EXPECT_TRUE(t.weights() == t.weights("again"));
  EXPECT_TRUE(t.weights() == t.weights("threads"));
  EXPECT_FALSE(t.weights() == t.weights("other"));
}

TEST(Trainer, KeepsAnExistingOutputDirectory) {
  TinyJob t;
  put_file(t.out() / "mine.txt", "precious");
  EXPECT_HAS(error_of(ErrorCode::cannot_write, [&] { t.run(); }), "`overwrite_output_dir=true`");
  EXPECT_EQ(get_file(t.out() / "mine.txt"), "precious");
  EXPECT_FALSE(fs::exists(t.out() / "model.safetensors"));
  t.settings.overwrite_output_dir = true;
  t.run();
  EXPECT_EQ(get_file(t.out() / "mine.txt"), "precious");
  TrainSettings unwritable = t.settings;
  unwritable.output_dir = "/proc/brim-cannot-write-here";
  error_of(ErrorCode::cannot_write, [&] { train(unwritable, {}); });
}

TEST(Trainer, NonFiniteLossStopsAndSavesTheBatch) {
  TinyJob t;
  t.settings.learning_rate = 1e30;
  t.settings.save_strategy = Strategy::steps;
  t.settings.save_steps = 1;
  const std::string message = error_of(ErrorCode::diverged, [&] { t.run(); });
  EXPECT_EQ(exit_code(ErrorCode::diverged), 8);
  EXPECT_HAS(message, "train.csv:");
  EXPECT_HAS(message, "diverged-step-");
  fs::path saved;
  for (const auto& entry : fs::directory_iterator(t.out())) {
    if (entry.path().filename().string().rfind("diverged-step-", 0) == 0) saved = entry.path();
    // Checkpoints must not contain NaN or infinity.
    if (fs::exists(entry.path() / "trainer_state.json")) {
      EXPECT_EQ(entry.path().filename(), "checkpoint-1");
    }
  }
  ASSERT_FALSE(saved.empty());
  const auto batch = json_of(saved);
  EXPECT_EQ(batch["rows"].size(), 8u);
  EXPECT_HAS(batch["rows"][0]["from"].get<std::string>(), "train.csv:");
  EXPECT_FALSE(batch["rows"][0]["ids"].empty());
}

// All writes to /dev/full fail with "No space left on device".
TEST(Trainer, UnwritableLogsDoNotEndTheTraining) {
  TinyJob t;
  t.settings.overwrite_output_dir = true;
  t.settings.report_to = {"tensorboard"};
  fs::create_directories(t.out());
  fs::create_symlink("/dev/full", t.out() / "train_log.jsonl");
  std::vector<std::string> warnings;
  const LogSink before = set_log_sink([&](LogLevel level, std::string_view message) {
    if (level == LogLevel::warning && message.find("training continues") != message.npos)
      warnings.emplace_back(message);
  });
  TrainCallbacks callbacks;
  int reports = 0;
  callbacks.record = [&](const std::string&) {
    if (++reports < 2) fail(ErrorCode::cannot_write, "report.html: No space left on device");
  };
  const TrainOutcome o = train(t.settings, callbacks);
  set_log_sink(before);
  EXPECT_EQ(o.steps, 12);
  EXPECT_TRUE(fs::exists(t.out() / "model.safetensors"));
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_HAS(warnings[0], "train_log.jsonl: No space left on device; training continues without its log");
  EXPECT_HAS(warnings[1], "report.html: No space left on device; training continues");
  EXPECT_EQ(json_of(t.out() / "trainer_state.json")["log_history"].size(), 14u);
}

// The log continues once there is space again, without gaps or partial lines.
TEST(Trainer, WritesLogLinesThatFailedLater) {
  TinyJob t;
  t.settings.load_best_model_at_end = false;
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const LogSink before = set_log_sink([](LogLevel, std::string_view) {});
  TrainCallbacks callbacks;
  callbacks.say = [&](const std::string& line) {
    rlimit limit = old;
    if (line.starts_with("step 2 ")) limit.rlim_cur = fs::file_size(t.out() / "train_log.jsonl") + 20;
    if (line.starts_with("step 2 ") || line.starts_with("step 10 ")) ::setrlimit(RLIMIT_FSIZE, &limit);
  };
  train(t.settings, callbacks);
  set_log_sink(before);
  std::signal(SIGXFSZ, handler);
  std::istringstream log(get_file(t.out() / "train_log.jsonl"));
  int lines = 0;
  for (std::string line; std::getline(log, line); ++lines) EXPECT_TRUE(nlohmann::json::accept(line)) << line;
  EXPECT_EQ(lines, 14);
}

// As in Python: the memory of the process before the run is not the run's.
TEST(Trainer, CountsOnlyItsOwnMemoryInOtherPrograms) {
  TinyJob t;
  const std::vector<char> ballast(size_t{256} << 20, 'x');
  plan::set_library("/proc/self/exe");
  const int64_t held = t.run().held_bytes;
  plan::set_library({});
  EXPECT_GT(held, 0);
  EXPECT_LT(held, static_cast<int64_t>(ballast.size()));
  EXPECT_EQ(ballast[ballast.size() / 2], 'x');
}

TEST(Trainer, StopWritesACheckpointFirst) {
  TinyJob t;
  std::atomic<bool> stop{true};
  TrainCallbacks callbacks;
  callbacks.stop = &stop;
  const TrainOutcome o = train(t.settings, callbacks);
  EXPECT_TRUE(o.interrupted);
  EXPECT_EQ(exit_code(ErrorCode::interrupted), 130);
  EXPECT_TRUE(fs::exists(t.out() / "checkpoint-1" / "optimizer.bin"));
  EXPECT_FALSE(fs::exists(t.out() / "model.safetensors"));
}

TEST(Trainer, StopsEarlyWithoutImprovement) {
  TinyJob t;
  t.settings.num_train_epochs = 50;
  t.settings.early_stopping_patience = 2;
  t.settings.learning_rate = 1e-12;
  const TrainOutcome o = t.run();
  EXPECT_TRUE(o.stopped_early);
  EXPECT_EQ(o.best_step, 6);
  EXPECT_EQ(o.steps, 18);
}

TEST(Trainer, HasNoBestStepWithoutEvaluation) {
  TinyJob t;
  t.settings.eval_strategy = Strategy::no;
  t.settings.max_steps = 1;
  EXPECT_EQ(t.run().best_step, std::nullopt);
}

TEST(Trainer, EarlyStoppedRunIsNotResumedPastItsEnd) {
  TinyJob t;
  t.settings.eval_strategy = Strategy::steps;
  t.settings.eval_steps = 1;
  t.settings.early_stopping_patience = 2;
  t.settings.learning_rate = 1e-12;
  for (const bool interrupt : {false, true}) {
    TrainSettings s = t.to(interrupt ? "interrupted" : "saved");
    if (!interrupt) {
      s.save_strategy = Strategy::steps;
      s.save_steps = 3;
    }
    std::atomic<bool> stop{false};
    TrainCallbacks callbacks;
    callbacks.stop = &stop;
    callbacks.say = [&](const std::string& line) { stop = stop || (interrupt && line.find("step 2 ") != line.npos); };
    const TrainOutcome first = train(s, callbacks);
    EXPECT_EQ(first.steps, 3);
    EXPECT_EQ(first.interrupted, interrupt);
    EXPECT_TRUE(first.stopped_early);

    s.resume_from_checkpoint = "last";
    const TrainOutcome again = train(s, {});
    EXPECT_TRUE(again.stopped_early);
    EXPECT_FALSE(again.interrupted);
    EXPECT_EQ(again.steps, 3);
    EXPECT_EQ(again.own_steps, 0);
    EXPECT_EQ(again.best_step, first.best_step);
    EXPECT_TRUE(fs::exists(fs::path(s.output_dir) / "model.safetensors"));
  }
}

double final_loss(const TrainSettings& s) { return train(s, {}).final_loss; }

TEST(Trainer, LossOptionsChangeTheLoss) {
  TinyJob t;
  t.settings.max_steps = 1;
  t.settings.num_train_epochs = 1;
  const double plain = final_loss(t.settings);
  TrainSettings smooth = t.to("smooth"), weighted = t.to("weighted"), even = t.to("even");
  smooth.label_smoothing = 0.5;
  weighted.class_weights = "5,1,0.1";
  even.class_weights = "2,2,2";
  EXPECT_NE(final_loss(smooth), plain);
  EXPECT_NE(final_loss(weighted), plain);
  EXPECT_NEAR(final_loss(even), plain, 1e-6 * plain);  // a mean weighted by a constant
}

TEST(Trainer, TrainsMultiLabel) {
  TinyJob t("bert_multilabel");
  std::mt19937 random(5);
  std::string csv = "text,label\n";
  for (int r = 0; r < 240; ++r) {
    const int lean = r % 3, other = (r / 3) % 3;
    csv += tiny_text(random, lean, 6) + " " + tiny_text(random, other, 6) + "," + tiny_label(lean) +
           (other != lean ? std::string("|") + tiny_label(other) : "") + "\n";
  }
  put_file(t.dir / "train.csv", csv);
  put_file(t.dir / "val.csv", csv);
  t.settings.multi_label = true;
  t.settings.num_train_epochs = 8;
  EXPECT_GT(t.run().best_metric, 0.8);
  EXPECT_EQ(json_of(t.out() / "config.json")["problem_type"], "multi_label_classification");
  const auto history = json_of(t.out() / "trainer_state.json")["log_history"];
  EXPECT_GT(history.back()["eval_macro_f1"].get<double>(),
            history.back()["eval_accuracy"].get<double>());  // exact matches are rarer than correct labels

  // One column per label gives the same run.
  std::istringstream lines(csv);
  std::string line, columns = "text,positive,neutral,negative\n";
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    const size_t comma = line.rfind(',');
    const auto mark = [&](const char* name) { return line.find(name, comma) != std::string::npos ? ",1" : ",0"; };
    columns += line.substr(0, comma) + mark("positive") + mark("neutral") + mark("negative") + "\n";
  }
  put_file(t.dir / "train.csv", columns);
  put_file(t.dir / "val.csv", columns);
  TrainSettings s = t.to("columns");
  s.multi_label = false;
  s.label_columns = {"positive", "neutral", "negative"};
  train(s, {});
  EXPECT_TRUE(t.weights() == t.weights("columns"));
}

TEST(Trainer, TrainsTokensAndBothTasks) {
  TinyJob t("bert_token");
  put_file(t.dir / "train.conll", TinyJob::conll(120, 1));
  put_file(t.dir / "val.conll", TinyJob::conll(24, 2));
  TrainSettings ner = t.to("ner");
  ner.train_files = {(t.dir / "train.conll").string()};
  ner.validation_files = {(t.dir / "val.conll").string()};
  ner.num_train_epochs = 12;
  ner.learning_rate = 5e-3;
  const TrainOutcome o = train(ner, {});
  EXPECT_EQ(o.best_metric_name, "entity_f1");
  EXPECT_GT(o.best_metric, 0.8);
  EXPECT_EQ(json_of(fs::path(ner.output_dir) / "config.json")["architectures"][0], "BertForTokenClassification");

  TinyJob m("bert_encoder", 120);
  put_file(m.dir / "train.conll", TinyJob::conll(120, 1));
  put_file(m.dir / "val.conll", TinyJob::conll(24, 2));
  m.settings.task = TaskChoice::multi;
  m.settings.token_train_file = (m.dir / "train.conll").string();
  m.settings.token_validation_file = (m.dir / "val.conll").string();
  m.settings.num_train_epochs = 48;
  m.settings.learning_rate = 3e-3;  // at 5e-3 the tagger's result depends on the CPU's rounding
  m.run();
  // Values of the step that was kept.
  nlohmann::json kept;
  const auto state = json_of(m.out() / "trainer_state.json");
  for (const auto& row : state["log_history"])
    if (row["step"] == state["best_global_step"] && row.contains("eval_mean_f1")) kept = row;
  EXPECT_GT(kept["eval_macro_f1"].get<double>(), 0.6);
  EXPECT_GT(kept["eval_entity_f1"].get<double>(), 0.6);

  // Each head is a model that loads separately; the tagger continues from the joint training.
  EXPECT_EQ(json_of(m.out() / "config.json")["id2label"]["0"], "negative");
  EXPECT_EQ(json_of(m.out() / "ner/config.json")["id2label"]["0"], "O");
  TrainSettings tagger = m.to("tagger");
  tagger.task = TaskChoice::automatic;
  tagger.token_train_file.clear();
  tagger.token_validation_file.clear();
  tagger.model = (m.out() / "ner").string();
  tagger.learning_rate = 1e-12;
  tagger.num_train_epochs = 1;
  tagger.train_files = {(m.dir / "train.conll").string()};
  tagger.validation_files = {(m.dir / "val.conll").string()};
  const TrainOutcome same = train(tagger, {});
  EXPECT_NEAR(same.best_metric, kept["eval_entity_f1"].get<double>(), 1e-9);
}

TEST(Trainer, MatchesLabelsByIndexOrCase) {
  TinyJob t;
  t.run();
  const auto rewrite = [&](const char* file, unsigned seed, int rows, const std::vector<std::string>& names) {
    std::string csv = TinyJob::csv(rows, seed);
    for (int k = 0; k < 3; ++k)
      for (size_t at; (at = csv.find(std::string(",") + tiny_label(k) + "\n")) != std::string::npos;)
        csv.replace(at + 1, std::string(tiny_label(k)).size(), names[static_cast<size_t>(k)]);
    put_file(t.dir / file, csv);
  };
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{"0", "1", "2"}, {"Negative", "NEUTRAL", "Positive"}}) {
    rewrite("train.csv", 1, 48, names);
    rewrite("val.csv", 2, 24, names);
    std::string lines;
    TrainCallbacks callbacks;
    callbacks.say = [&](const std::string& line) { lines += line + "\n"; };
    const TrainSettings s = t.to(names[0]);
    train(s, callbacks);
    EXPECT_HAS(lines, names[1] + " = neutral");
    EXPECT_TRUE(t.weights() == t.weights(names[0]));
  }
  rewrite("train.csv", 1, 48, {"1", "2", "3"});
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { train(t.to("three"), {}); }), "do not match the model's");
}

// A large batch under a small limit: thousands of micro-batches per step.
TEST(Trainer, StepSplitsIntoManyMicroBatches) {
  TinyJob t("bert_sequence", 8000);
  t.settings.validation_files.clear();
  t.settings.train_batch_size = 8000;
  t.settings.num_train_epochs = 1;
  const TrainJob job = open_train_job(t.settings, {[](const std::string&) {}});
  const int64_t least = least_limit(train_plan_request(job, plan::local_profile(*job.device), 0));
  t.settings.memory_limit =
      plan::MemoryLimit::read(fmt::format("{}KiB", (least >> 10) + 64));  // one or two texts at a time
  const TrainOutcome o = t.run();
  EXPECT_EQ(o.steps, 1);
  EXPECT_GT(o.micro_batches, 4096);
  EXPECT_TRUE(std::isfinite(o.final_loss));
}

// File names may contain arbitrary bytes; they are read before the training and written after it.
TEST(Trainer, SupportsFileNamesThatAreNotUtf8) {
  TinyJob t;
  const std::string odd = (t.dir / "rows-\xe9.csv").string();
  put_file(odd, TinyJob::csv(48, 1));
  t.settings.train_files = {odd};
  std::string record;
  TrainCallbacks callbacks;
  callbacks.record = [&](const std::string& json) { record = json; };
  train(t.settings, callbacks);
  EXPECT_HAS(nlohmann::json::parse(record)["data"]["train"][0].get<std::string>(), "rows-\xEF\xBF\xBD.csv");
  EXPECT_HAS(get_file(t.out() / "README.md"), "| training | rows-\xEF\xBF\xBD.csv | 48 |");
}

TEST(Trainer, ModelCardSeparatesBothTasks) {
  TinyJob t("bert_encoder", 48);
  put_file(t.dir / "train.conll", TinyJob::conll(20, 1));
  put_file(t.dir / "val.conll", TinyJob::conll(10, 2));
  put_file(t.dir / "none.csv", "text,label\n");  // a file without rows: locations still name the right file
  t.settings.train_files.push_back((t.dir / "none.csv").string());
  t.settings.task = TaskChoice::multi;
  t.settings.token_train_file = (t.dir / "train.conll").string();
  t.settings.token_validation_file = (t.dir / "val.conll").string();
  t.settings.num_train_epochs = 1;
  std::string lines;
  TrainCallbacks callbacks;
  nlohmann::json record;
  callbacks.say = [&](const std::string& line) { lines += line + "\n"; };
  callbacks.record = [&](const std::string& json) { record = nlohmann::json::parse(json); };
  const TrainOutcome o = train(t.settings, callbacks);
  const std::string card = get_file(t.out() / "README.md");
  EXPECT_HAS(card, "| training | train.csv, none.csv | 48 |");
  EXPECT_HAS(card, "| training, tags | train.conll | 20 |");
  EXPECT_HAS(card, "| validation | val.csv | 24 |");
  EXPECT_HAS(card, "| validation, tags | val.conll | 10 |");
  EXPECT_HAS(card, "selected by mean_f1, the mean of macro_f1 and entity_f1");
  EXPECT_HAS(lines, "keeping the model with the best mean_f1 (of macro_f1 and entity_f1)");
  EXPECT_EQ(record["data"]["train"].size(), 3u);  // the same rows as in the model card
  EXPECT_EQ(record["data"]["rows"], 68);
  EXPECT_EQ(o.best_metric_name, "mean_f1");
  const auto row = json_of(t.out() / "trainer_state.json")["log_history"].back();
  EXPECT_NEAR(row["eval_mean_f1"].get<double>(),
              (row["eval_macro_f1"].get<double>() + row["eval_entity_f1"].get<double>()) / 2, 1e-12);
  const TrainJob job = open_train_job(t.settings, {[](const std::string&) {}});
  EXPECT_EQ(job.train_set.file.back(), 2);
  TrainSettings one = t.to("one");
  one.metric_for_best_model = "eval_entity_f1";
  EXPECT_EQ(train(one, {}).best_metric_name, "entity_f1");
}

TEST(Trainer, F1DependsOnTheTask) {
  TinyJob t;
  t.settings.metric_for_best_model = "f1";
  EXPECT_EQ(t.run().best_metric_name, "macro_f1");
  EXPECT_EQ(best_metric(t.settings, TrainTask::token), "entity_f1");
  EXPECT_EQ(best_metric(t.settings, TrainTask::multi), "mean_f1");
  t.settings.metric_for_best_model = "eval_loss";
  EXPECT_EQ(best_metric(t.settings, TrainTask::multi), "loss");
}

}  // namespace
}  // namespace brim::train
