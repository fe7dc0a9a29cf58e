// SPDX-License-Identifier: Apache-2.0
// Parts of libbrim.so that run a command of the program: plans, comparisons, shards, forecasts and readings of GPUs.
// The commands are in src/jobs and src/report; their flags in src/cli.
#include <atomic>
#include <nlohmann/json.hpp>

#include "brim/brim.h"
#include "brim/compare.h"
#include "brim/forecast.h"
#include "brim/monitor.h"
#include "brim/plan.h"
#include "brim/shards.h"
#include "jobs/compare_run.h"
#include "jobs/plan_job.h"
#include "jobs/shard_run.h"
#include "monitor/nvml.h"
#include "report/forecast_run.h"

namespace brim {
namespace {

// A stop token as the flag that runs poll.
class StopFlag {
 public:
  explicit StopFlag(const std::stop_token& stop) : callback_(stop, [this] { flag_ = true; }) {}
  const std::atomic<bool>& flag() const { return flag_; }

 private:
  std::atomic<bool> flag_{false};
  std::stop_callback<std::function<void()>> callback_;
};

std::string text_of(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

ModelPlan plan_of_rules(const std::string& device) {
  ModelPlan plan;
  plan.device = device;
  plan.json = text_of({{"schema_version", jobs::kPlanSchema},
                       {"task", "score"},
                       {"model", "vader"},
                       {"device", {{"name", device}}},
                       {"fits", true},
                       {"limit_bytes", 0},
                       {"peak_bytes", 0},
                       {"token_budget", 0},
                       {"tokens_per_second", 0.0},
                       {"bytes", nlohmann::ordered_json::object()}});
  return plan;
}

void set_if(jobs::PlanSpec& spec, const char* name, const std::string& value, const char* otherwise) {
  if (value != otherwise) spec.settings[name] = {value};
}

}  // namespace

ModelPlan plan_model(const PlanOptions& options) {
  jobs::PlanSpec spec;
  spec.task = options.training ? plan::Task::train : plan::Task::score;
  spec.device = options.device.empty() ? "auto" : options.device;
  spec.typical_length = options.typical_length;
  set_if(spec, "precision", options.precision.text(), "auto");
  set_if(spec, "memory_limit", options.memory_limit.text, "auto");
  set_if(spec, "leave_free", options.leave_free.text, "");
  set_if(spec, "max_length", std::to_string(options.max_length), "0");
  jobs::PlanJob job = open_job(spec, options.model, true);
  const jobs::PlanTarget target = open_target(spec, spec.device);
  if (job.rules) return plan_of_rules(target.profile.name);
  if (labels_job(job))
    fail(ErrorCode::usage, Remedy{"use `brim plan`"}, "{}: has two encoders, one for texts and one for labels",
         options.model);
  job.notes.insert(job.notes.end(), target.notes.begin(), target.notes.end());
  for (std::string& note : jobs::notes_on_limit(job.settings)) job.notes.push_back(std::move(note));
  const plan::PlanRequest request = request_for(job, target);
  const plan::Plan solved = solve(request);
  ModelPlan plan;
  plan.limit_bytes = solved.limit_bytes;
  plan.peak_bytes = solved.peak_bytes;
  for (int t = 0; t < memory::kTagCount; ++t)
    if (const auto tag = static_cast<memory::Tag>(t); solved.bytes[tag] > 0)
      plan.bytes.emplace_back(tag_name(tag), solved.bytes[tag]);
  plan.tokens_per_batch = solved.token_budget;
  plan.tokens_per_second = solved.tokens_per_second;
  plan.device = target.profile.name;
  plan.precision = precision_name(solved.precision);
  plan.json = text_of(described_plan(job, request, solved));
  return plan;
}

CompareReport compare_models(const CompareOptions& options, std::stop_token stop) {
  const StopFlag stopped(stop);
  jobs::CompareSpec spec;
  for (ScorerOptions model : options.models) {
    const std::string name = model.model.empty() ? "default" : model.model, dir = find_model(model.model);
    model.model = dir.empty() ? "vader" : dir;
    spec.models.push_back({name, std::move(model)});
  }
  spec.data = options.data;
  spec.text_column = options.text_column;
  spec.label_column = options.label_column;
  spec.max_loss = options.max_loss;
  spec.stop = &stopped.flag();
  const jobs::Comparison comparison = run_comparison(spec);
  CompareReport report;
  report.rows = comparison.rows;
  report.json = to_json(comparison);
  const auto json = nlohmann::json::parse(report.json);
  for (const auto& model : json.at("models")) {
    ComparedScores& scores = report.models.emplace_back();
    scores.name = model.at("name");
    if (model.contains("accuracy") && model["accuracy"].is_number()) scores.accuracy = model["accuracy"].get<double>();
    scores.rows_per_second = model.at("rows_per_second");
    scores.load_seconds = model.at("load_seconds");
    scores.planned_bytes = model.at("planned_bytes");
  }
  if (!comparison.expected.empty()) report.recommended = comparison.models[comparison.recommended].name;
  return report;
}

std::vector<GpuReading> read_gpus() {
  monitor::Nvml nvml;
  std::vector<GpuReading> all;
  for (const monitor::GpuSample& gpu : nvml.sample({.pcie_throughput = false, .processes = false, .gpm = false})) {
    GpuReading& reading = all.emplace_back();
    reading.index = gpu.index;
    reading.name = gpu.name;
    reading.driver = gpu.driver;
    reading.healthy = gpu.state == monitor::GpuState::ok;
    reading.problem = gpu.why;
    reading.utilization = gpu.utilization;
    reading.used_bytes = gpu.used_bytes;
    reading.free_bytes = gpu.free_bytes;
    reading.total_bytes = gpu.total_bytes;
    reading.temperature_c = gpu.temperature_c;
    reading.power_w = gpu.power_w;
  }
  return all;
}

namespace {

jobs::ShardJob job_in(const std::string& folder) {
  auto job = jobs::find_job(folder);
  if (!job)
    throw Error(ErrorCode::usage, folder + ": no job in this directory",
                {"start one with `brim score` and `shard=0/8`"});
  return std::move(*job);
}

}  // namespace

void run_shard(const std::string& folder, int64_t shard, int threads, std::stop_token stop) {
  const StopFlag stopped(stop);
  jobs::run_shard(job_in(folder), shard, threads, stopped.flag());
}

int64_t finish_shards(const std::string& folder) { return finish_job(job_in(folder)); }

ForecastListener::~ForecastListener() = default;
void ForecastListener::progress(double, double, std::string_view) {}
void ForecastListener::line(std::string_view) {}

namespace {

class Reporter final : public report::ForecastObserver {
 public:
  explicit Reporter(ForecastListener& listener) : listener_(listener) {}
  void progress(const std::string& title, double done, double total, const std::string& text) override {
    listener_.progress(done, total, title + " · " + text);
  }
  void note(const std::string& text) override { listener_.line(text); }
  void line(const std::string& text) override { listener_.line(text); }

 private:
  ForecastListener& listener_;
};

class Collector final : public report::ForecastRows {
 public:
  void begin(const std::vector<std::string>& columns) override {
    all_.columns = columns;
    all_.values.resize(columns.size());
  }
  void write(std::string_view id, std::string_view time, std::span<const double> values,
             std::string_view cutoff) override {
    all_.ids.emplace_back(id);
    all_.times.emplace_back(time);
    if (!cutoff.empty()) all_.cutoffs.emplace_back(cutoff);
    for (size_t c = 0; c < values.size(); ++c) all_.values[c].push_back(values[c]);
  }
  Forecasts take() { return std::move(all_); }

 private:
  Forecasts all_;
};

// A run of forecasting: its settings, and where it reports.
struct ForecastCall {
  ForecastCall(report::ForecastCommand command, const ForecastSpec& spec, ForecastListener& listener,
               const std::stop_token& stop)
      : reporter(listener), stopped(stop) {
    report::ForecastValues values;
    std::string config;
    for (const auto& [name, value] : spec.settings)
      if (name == "config")
        config = value;
      else
        values[name].push_back(value);
    settings = report::read_forecast_settings(command, config, values, reporter);
  }
  report::ForecastContext context() { return {reporter, stopped.flag()}; }

  Reporter reporter;
  StopFlag stopped;
  forecast::ForecastSettings settings;
};

}  // namespace

void train_forecaster(const ForecastSpec& spec, ForecastListener& listener, std::stop_token stop) {
  ForecastCall call(report::ForecastCommand::train, spec, listener, stop);
  report::train_forecaster(call.settings, call.context());
}

Forecasts predict_series(const ForecastSpec& spec, ForecastListener& listener, std::stop_token stop) {
  ForecastCall call(report::ForecastCommand::predict, spec, listener, stop);
  Collector rows;
  report::predict_series(call.settings, rows, call.context());
  return rows.take();
}

Forecasts roll_forecaster(const ForecastSpec& spec, ForecastListener& listener, std::stop_token stop) {
  ForecastCall call(report::ForecastCommand::roll, spec, listener, stop);
  Collector rows;
  const report::RolledText text = report::roll_forecaster(call.settings, &rows, call.context());
  listener.line(text.headline);
  listener.line(text.figures);
  return rows.take();
}

std::string evaluate_forecasts(const ForecastSpec& spec, ForecastListener& listener, std::stop_token stop) {
  ForecastCall call(report::ForecastCommand::eval, spec, listener, stop);
  return evaluation_json(report::evaluate_forecasts(call.settings, call.context()));
}

}  // namespace brim
