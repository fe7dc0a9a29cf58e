// SPDX-License-Identifier: Apache-2.0
// brim models list | show DIR | export DIR --precision P -o OUT | tune, which measures GEMM algorithms for a model.
// Does not download models.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <map>
#include <memory>
#include <vector>

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/units.h"
#include "cli/engine_flags.h"
#include "cli/verb.h"
#include "engine/precision.h"
#include "engine/scorer_access.h"
#include "forecast/nbeats_io.h"
#include "hub/gliner_config.h"
#include "hub/model_dir.h"
#include "hub/weights.h"
#include "model/export.h"
#include "model/weights.h"
#include "text/tokenizer.h"

namespace brim::cli {
namespace {

struct ModelsFlags {
  CLI::App *list = nullptr, *show = nullptr, *export_ = nullptr, *merge = nullptr, *tune = nullptr;
  std::string model, adapter, precision = "int8", merged_precision = "fp32", output;
};

int run_list() {
  fmt::print("{:<40} {}\n", "vader", "built-in lexicon and rules, no model files");
  for (const auto& found : list_models(hub::model_search_path(hub::model_roots())))
    fmt::print("{:<40} {}\n", found.name, found.dir.string());
  return 0;
}

// Precision in which most of the weights are stored.
std::string stored_precision(const hub::WeightSource& source) {
  std::map<std::string, int64_t> elements;
  for (const std::string& name : source.names()) {
    const hub::StoredTensor& tensor = *source.describe(name);
    if (tensor.dtype) elements[dtype_name(*tensor.dtype)] += tensor.elements;
  }
  const auto most = std::max_element(elements.begin(), elements.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == elements.end()) return "unknown";
  const std::string& name = most->first;  // users know "f32" as fp32 and "i8" as int8
  return name[0] == 'f' ? "fp" + name.substr(1) : name[0] == 'i' ? "int" + name.substr(1) : name;
}

// Shows a directory written by `brim forecast train`.
int show_forecaster(const std::filesystem::path& dir) {
  const forecast::NbeatsModel m = forecast::load_nbeats(dir);
  int64_t parameters = 0;
  std::map<std::string, int64_t> kinds;
  for (const forecast::NbeatsLane& lane : m.lanes) {
    const forecast::NbeatsShape shape = lane_shape(m, lane);
    for (const forecast::NbeatsParam& p : nbeats_layout(shape).params) {
      const forecast::NbeatsSize size = true_size(shape, p, lane.spec.lookback);
      parameters += size.rows * size.cols;
    }
    ++kinds[fmt::format("{} with lookback {}", forecast::forecast_loss_name(lane.spec.loss), lane.spec.lookback)];
  }
  std::vector<std::string> stacks, lanes;
  for (const forecast::StackSpec& s : m.lanes[0].stacks)
    stacks.push_back(fmt::format("{} {} of width {}{}", format_count(s.blocks), stack_kind_name(s.kind), s.width,
                                 s.shared ? ", weights shared" : ""));
  for (const auto& [kind, count] : kinds) lanes.push_back(count > 1 ? fmt::format("{} × {}", count, kind) : kind);
  fmt::print("{}\n", dir.string());
  fmt::print("  family       N-BEATS, {}\n", format_count(static_cast<int64_t>(m.lanes.size()), "lane"));
  fmt::print("  forecasts    {}, frequency {}, season {}\n", format_count(m.horizon, "point"), m.freq, m.season);
  if (!m.quantiles.empty()) fmt::print("  quantiles    {:g}\n", fmt::join(m.quantiles, ", "));
  fmt::print("  blocks       {}, {}\n", fmt::join(stacks, " + "), format_count(m.layers, "layer"));
  fmt::print("  lanes        {}\n", fmt::join(lanes, "; "));
  fmt::print("  parameters   {}\n", format_count(parameters));
  return 0;
}

int run_show(const std::string& name) {
  if (hub::names_vader(name)) {
    fmt::print("vader: lexicon and rules of vaderSentiment (MIT); labels negative, neutral, positive; no weights\n");
    return 0;
  }
  const auto dir = resolve_model(name, hub::model_search_path(hub::model_roots()));
  if (forecast::is_nbeats(dir)) return show_forecaster(dir);
  hub::HfConfig config;
  const model::ModelShape s = model::read_shape(dir, &config);
  const auto source = hub::WeightSource::open(dir);
  check_params(*source, s, true);
  const auto tokenizer = text::Tokenizer::load(hub::tokenizer_dir(dir));
  if (!hub::is_gliner(dir) || hub::load_gliner_config(dir).labels_encoder.empty())
    model::check_vocabulary(dir, s, tokenizer->vocab_size());  // the markers of a bi-encoder may have no vectors
  fmt::print("{}\n", dir.string());
  fmt::print("  family       {} ({})\n", family_name(s.family), config.model_type);
  fmt::print("  head         {}\n", s.sequence_classes > 0 ? "sequence classification"
                                    : s.token_classes > 0  ? "token classification"
                                    : hub::is_gliner(dir)  ? "entities by label (GLiNER)"
                                                           : "none (plain encoder)");
  fmt::print("  shape        {}, hidden {}, {}, feed-forward {}, vocabulary {}\n", format_count(s.layers, "layer"),
             s.hidden, format_count(s.heads, "head"), s.ffn, format_count(s.vocab));
  fmt::print("  max. length  {} tokens\n", s.max_tokens());
  fmt::print("  parameters   {}\n", format_count(param_count(s)));
  fmt::print("  weights      {} ({}, {})\n", format_bytes(source->file_bytes()), source->where(),
             stored_precision(*source));
  if (s.sequence_classes + s.token_classes > 0) fmt::print("  labels       {}\n", fmt::join(config.id2label, ", "));
  fmt::print("  tokenizer    {}\n", tokenizer->kind());
  if (const double agreement = engine::recorded_int8_agreement(dir); agreement >= 0)
    fmt::print("  int8 labels  agree with fp32 on {:.2f} %\n", agreement * 100);
  return 0;
}

// Signals and full disks leave no incomplete directory.
void prepare_export() {
  stop_on_signals();
  std::signal(SIGXFSZ, SIG_IGN);
}

int run_export(const ModelsFlags& f) {
  const auto precision = ops::precision_from_name(f.precision);
  if (!precision) fail(ErrorCode::usage, "--precision {}: use fp32, fp16, bf16 or int8", f.precision);
  if (hub::names_vader(f.model)) fail(ErrorCode::usage, "brim models export vader: VADER has no weights to export");
  if (f.output.empty()) fail(ErrorCode::usage, "brim models export: --output is required (-o DIR)");
  const auto from = resolve_model(f.model, hub::model_search_path(hub::model_roots()));
  prepare_export();
  const model::ExportReport report = model::export_model(from, f.output, *precision, {}, &stop_requested());
  print_stderr("{}: {}, {} of them int8, {}\n", f.output, format_count(report.tensors, "tensor"), report.quantized,
               format_bytes(report.bytes));
  return 0;
}

int run_merge(const ModelsFlags& f) {
  const auto precision = ops::precision_from_name(f.merged_precision);
  if (!precision) fail(ErrorCode::usage, "--precision {}: use fp32, fp16, bf16 or int8", f.merged_precision);
  if (hub::names_vader(f.model)) fail(ErrorCode::usage, "brim models merge vader: VADER has no weights");
  if (f.output.empty()) fail(ErrorCode::usage, "brim models merge: --output is required (-o DIR)");
  const auto base = resolve_model(f.model, hub::model_search_path(hub::model_roots()));
  prepare_export();
  const model::ExportReport report = model::export_model(base, f.output, *precision, f.adapter, &stop_requested());
  print_stderr("{}: {}, {} of them adapted, {}\n", f.output, format_count(report.tensors, "tensor"), report.adapted,
               format_bytes(report.bytes));
  return 0;
}

struct TuneFlags {
  EngineFlags engine;
  double seconds = 1.5;
};

void add_tune_flags(CLI::App& app, TuneFlags& f) {
  app.add_option("--seconds", f.seconds, "seconds per matrix shape")->capture_default_str();
  f.engine.add_to(app, false);
  app.remove_option(app.get_option("--trace"));
}

int run_tune(const TuneFlags& f) {
  constexpr const char* kNeeds = "brim models tune: requires a GPU and a model other than vader";
  f.engine.refuse_rules(kNeeds);
  const std::shared_ptr<Scorer> scorer = f.engine.open();
  engine::Engine& engine = engine::engine_of(*scorer);
  if (engine.device().kind() != device::DeviceKind::cuda) fail(ErrorCode::usage, "{}", kNeeds);
  for (const auto& line : engine.tune(f.seconds)) fmt::print("{}\n", line);
  return 0;
}

}  // namespace

std::function<int()> setup_tune(CLI::App& app) {
  auto f = std::make_shared<TuneFlags>();
  add_tune_flags(app, *f);
  return [f] {
    log_warning("brim tune is deprecated; use `brim models tune`");
    return run_tune(*f);
  };
}

std::function<int()> setup_models(CLI::App& app) {
  auto f = std::make_shared<ModelsFlags>();
  f->list = app.add_subcommand("list", "list installed and cached models");
  f->show = app.add_subcommand("show", "show architecture, labels and size of a model");
  f->show->add_option("model", f->model, "directory or name")->required();
  f->export_ = app.add_subcommand("export", "export a model in another precision");
  f->export_->add_option("model", f->model, "directory or name")->required();
  f->export_->add_option("--precision", f->precision, "fp32, fp16, bf16 or int8")->capture_default_str();
  f->export_->add_option("-o,--output", f->output, "directory to create");
  f->merge = app.add_subcommand("merge", "add a LoRA adapter to its base model and write the result");
  f->merge->add_option("model", f->model, "base model: directory or name")->required();
  f->merge->add_option("adapter", f->adapter, "directory of the adapter (PEFT)")->required();
  f->merge->add_option("--precision", f->merged_precision, "fp32, fp16, bf16 or int8")->capture_default_str();
  f->merge->add_option("-o,--output", f->output, "directory to create");
  auto tune = std::make_shared<TuneFlags>();
  f->tune = app.add_subcommand("tune", "find the fastest GEMM algorithms for a model on this GPU and save them");
  add_tune_flags(*f->tune, *tune);
  add_environment(*f->tune);
  app.require_subcommand(1);
  return [f, tune] {
    if (f->tune->parsed()) return run_tune(*tune);
    if (f->merge->parsed()) return run_merge(*f);
    return f->list->parsed() ? run_list() : f->show->parsed() ? run_show(f->model) : run_export(*f);
  };
}

}  // namespace brim::cli
