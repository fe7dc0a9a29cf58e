// SPDX-License-Identifier: Apache-2.0
// brim compare: flags and output. The models run in jobs/compare_run.h.
#include "jobs/compare.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/progress.h"
#include "cli/engine_flags.h"
#include "cli/verb.h"
#include "cli/zero_shot_flags.h"
#include "hub/model_files.h"
#include "io/atomic_file.h"
#include "jobs/compare_run.h"
#include "jobs/evaluate.h"

namespace brim::cli {
namespace {

struct CompareFlags {
  std::vector<std::string> models, data, adapters;
  std::string base;  // model of the adapters, whose names are the last ones of `models`
  std::string text_column, pair_column, label_column, format = "auto", disagreements, max_loss = "1%";
  bool json = false;
  ZeroShotFlags zero_shot;
  EngineFlags engine;
};

EngineFlags flags_of(const CompareFlags& f, size_t number) {
  const size_t models = f.models.size() - f.adapters.size();
  EngineFlags flags = f.engine;
  flags.model = number < models ? f.models[number] : f.base;
  if (number >= models) flags.adapter = f.models[number];
  return flags;
}

// Adds the adapters to the models. Their base model is compared too if it has a classification head.
void add_adapters(CompareFlags& f) {
  if (f.adapters.empty()) return;
  if (f.models.empty()) fail(ErrorCode::usage, "--adapter {}: requires --models with its base model", f.adapters[0]);
  f.base = f.models[0];
  const std::string dir = find_model(f.base);
  if (dir.empty()) fail(ErrorCode::usage, "--adapter {}: VADER has no adapters; name another model", f.adapters[0]);
  const auto [config, weights] = hub::open_model(dir);
  if (head_kind(config, weights->names()) == hub::HeadKind::encoder) f.models.erase(f.models.begin());
  f.models.insert(f.models.end(), f.adapters.begin(), f.adapters.end());
}

jobs::CompareSpec spec_of(const CompareFlags& f) {
  jobs::CompareSpec spec;
  for (size_t m = 0; m < f.models.size(); ++m) spec.models.push_back({f.models[m], flags_of(f, m).scorer_options()});
  spec.data = f.data;
  spec.text_column = f.text_column;
  spec.pair_column = f.pair_column;
  spec.label_column = f.label_column;
  spec.format = f.format;
  spec.max_loss = jobs::parse_share(f.max_loss);
  spec.stop = &stop_requested();
  return spec;
}

int run_compare(CompareFlags f) {
  add_adapters(f);
  if (f.models.size() < 2) fail(ErrorCode::usage, "brim compare: needs at least two models (--models vader,default)");
  if (f.data.empty()) fail(ErrorCode::usage, "brim compare: --data is required");
  if (f.zero_shot.multi_label)
    fail(ErrorCode::usage, "--multi-label: compare needs one class per text; use `brim eval`");
  f.zero_shot.apply(f.engine, f.models);
  stop_on_signals();
  jobs::CompareSpec spec = spec_of(f);
  std::unique_ptr<Progress> progress;
  std::string shown;
  spec.progress = [&](const std::string& model, double done, double total, const std::string& text) {
    if (progress == nullptr || model != shown) {
      progress = std::make_unique<Progress>("comparing " + model, STDERR_FILENO, f.engine.quiet || f.json);
      shown = model;
    }
    progress->update({done, total, text});
  };
  std::optional<io::AtomicFile> differing;  // created now, so that an unwritable path fails early
  if (!f.disagreements.empty() && f.disagreements != "-") differing.emplace(f.disagreements);
  const jobs::Comparison c = run_comparison(spec);
  progress.reset();
  if (differing) {
    differing->write(disagreeing_rows(spec, c));
    differing->commit();
  } else if (f.disagreements == "-")
    fmt::print("{}", disagreeing_rows(spec, c));
  fmt::print("{}", f.json ? to_json(c) + "\n" : to_text(c));
  return 0;
}

}  // namespace

std::function<int()> setup_compare(CLI::App& app) {
  auto f = std::make_shared<CompareFlags>();
  app.add_option("--models", f->models, "two or more models, separated by commas: vader, names or directories")
      ->delimiter(',');
  app.add_option("--data", f->data, "files of rows (txt, csv, tsv, jsonl; also .gz and .zst)");
  app.add_option("--text-column", f->text_column, "column or key of the text");
  app.add_option("--pair-column", f->pair_column, "column or key of the second text of a pair");
  app.add_option("--label-column", f->label_column,
                 "column or key of the label (default: label, if present); without labels no accuracy is shown");
  app.add_option("--format", f->format, "auto, txt, csv, tsv or jsonl")->capture_default_str();
  app.add_option("--disagreements", f->disagreements,
                 "write rows with different labels to this file, one JSON object per line");
  app.add_option("--max-loss", f->max_loss, "accuracy that a recommended faster model may lose")->capture_default_str();
  app.add_flag("--json", f->json, "print JSON");
  f->zero_shot.add_to(app);
  f->engine.add_to(app, true);
  app.remove_option(app.get_option("--model"));
  app.remove_option(app.get_option("--adapter"));
  app.add_option("--adapter", f->adapters,
                 "LoRA adapter in PEFT's format: also compare the first model with it; repeat for several")
      ->allow_extra_args(false);
  app.remove_option(app.get_option("--trace"));
  return [f] { return run_compare(*f); };
}

}  // namespace brim::cli
