// SPDX-License-Identifier: Apache-2.0
// brim eval: evaluates a model on labelled data. Reports accuracy, macro F1, macro recall, a table by class and the
// confusion matrix; for token models strict entity F1 over CoNLL files. Does not compare models (compare.cc).
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/progress.h"
#include "base/units.h"
#include "cli/engine_flags.h"
#include "cli/entity_flags.h"
#include "cli/verb.h"
#include "cli/zero_shot_flags.h"
#include "engine/precision.h"
#include "hub/model_dir.h"
#include "jobs/evaluate.h"
#include "rows/labels.h"
#include "rows/metrics.h"

namespace brim::cli {
namespace {

struct EvalFlags {
  std::vector<std::string> inputs;
  std::string text_column, pair_column, format = "auto";
  std::vector<std::string> label_columns = {"label"};
  bool json = false, record_agreement = false;
  DialectFlags dialect;
  ZeroShotFlags zero_shot;
  EntityFlags entities;
  EngineFlags engine;
};

nlohmann::ordered_json to_json(const jobs::Evaluation& e) {
  nlohmann::ordered_json j = {{"schema_version", 1},
                              {"rows", e.rows},
                              {"skipped_rows", e.skipped},
                              {"blank_lines", e.blank_lines},
                              {"precision", e.precision}};
  if (e.entities) {
    j["entity_f1"] = e.entities->f1;
    j["entity_precision"] = e.entities->precision;
    j["entity_recall"] = e.entities->recall;
    j["accuracy"] = e.token_accuracy;
    for (const auto& [type, s] : e.entities->per_type)
      j["per_class"][type] = {{"precision", s.precision}, {"recall", s.recall}, {"f1", s.f1}, {"support", s.support}};
    return j;
  }
  if (e.numbers) {
    j["mse"] = e.numbers->mse;
    j["pearson"] = e.numbers->pearson;
    j["spearman"] = e.numbers->spearman;
    return j;
  }
  const rows::ClassificationMetrics& m = e.classes;
  j["accuracy"] = m.accuracy;
  j["macro_f1"] = m.macro_f1;
  j["macro_recall"] = m.macro_recall;
  if (e.multi_label)
    j["multi_label"] = true;
  else
    j["confusion"] = m.confusion;
  for (size_t k = 0; k < e.labels.size(); ++k)
    j["per_class"][e.labels[k]] = {{"precision", m.per_class[k].precision},
                                   {"recall", m.per_class[k].recall},
                                   {"f1", m.per_class[k].f1},
                                   {"support", m.per_class[k].support}};
  j["labels"] = e.labels;
  return j;
}

void print_table(const jobs::Evaluation& e) {
  if (e.entities) {
    fmt::print("{} · entity F1 {:.4f} (precision {:.4f}, recall {:.4f}) · word accuracy {:.4f}\n\n",
               format_count(e.rows, "sentence"), e.entities->f1, e.entities->precision, e.entities->recall,
               e.token_accuracy);
    fmt::print("{:<20} {:>10} {:>10} {:>10} {:>10}\n", "entity", "precision", "recall", "F1", "support");
    for (const auto& [type, s] : e.entities->per_type)
      fmt::print("{:<20} {:>10.4f} {:>10.4f} {:>10.4f} {:>10}\n", type, s.precision, s.recall, s.f1,
                 format_count(s.support));
    return;
  }
  if (e.numbers) {
    fmt::print("{} · mean squared error {:.6g} · Pearson {:.4f} · Spearman {:.4f}\n", format_count(e.rows, "row"),
               e.numbers->mse, e.numbers->pearson, e.numbers->spearman);
    return;
  }
  const rows::ClassificationMetrics& m = e.classes;
  fmt::print("{} · {} {:.4f} · macro F1 {:.4f} · macro recall {:.4f}\n\n", format_count(e.rows, "row"),
             e.multi_label ? "exact match" : "accuracy", m.accuracy, m.macro_f1, m.macro_recall);
  fmt::print("{:<20} {:>10} {:>10} {:>10} {:>10}\n", "class", "precision", "recall", "F1", "support");
  for (size_t k = 0; k < e.labels.size(); ++k)
    fmt::print("{:<20} {:>10.4f} {:>10.4f} {:>10.4f} {:>10}\n", e.labels[k], m.per_class[k].precision,
               m.per_class[k].recall, m.per_class[k].f1, format_count(m.per_class[k].support));
  if (e.labels.size() > 20 || m.confusion.empty()) return;
  fmt::print("\nrows: true label, columns: predicted label\n{:<20}", "");
  for (const auto& label : e.labels) fmt::print(" {:>10.10}", label);
  fmt::print("\n");
  for (size_t k = 0; k < e.labels.size(); ++k) {
    fmt::print("{:<20}", e.labels[k]);
    for (const int64_t n : m.confusion[k]) fmt::print(" {:>10}", format_count(n));
    fmt::print("\n");
  }
}

// Precision in which `brim train` evaluated the model; empty if it was not trained by Brim.
std::string trained_in(const std::filesystem::path& dir) {
  const auto path = dir / "trainer_state.json";
  std::error_code ec;
  if (!std::filesystem::is_regular_file(path, ec)) return "";
  const auto state = nlohmann::json::parse(read_file(path), nullptr, false);
  if (!state.is_object() || !state.contains("precision") || !state["precision"].is_string()) return "";
  const auto precision = state["precision"].get<std::string>();
  return precision == "fp8" ? "bf16" : precision;  // fp8 training evaluates in bf16
}

int run_eval(EvalFlags f) {
  if (f.inputs.empty()) fail(ErrorCode::usage, "brim eval: no input; name a file of labelled rows");
  f.zero_shot.apply(f.engine, {f.engine.model});
  f.entities.apply(f.engine, {f.engine.model});
  stop_on_signals();
  f.engine.start_trace();
  jobs::EvalRequest request;
  request.inputs = f.inputs;
  request.format = f.format;
  request.text_column = f.text_column;
  request.pair_column = f.pair_column;
  request.delimiter = f.dialect.character();
  request.quotes = !f.dialect.no_quotes;
  request.label_columns.clear();
  for (const auto& columns : f.label_columns)
    for (auto& name : rows::split_names(columns, ',')) request.label_columns.push_back(std::move(name));
  if (request.label_columns.empty()) fail(ErrorCode::usage, "--label-column: must not be empty");
  request.stop = &stop_requested();
  Progress progress("evaluating", STDERR_FILENO, f.engine.quiet || f.json);
  request.progress = [&](int64_t rows) { progress.update({0, 0, format_count(rows, "row")}); };
  const auto model = f.engine.open();
  jobs::Evaluation e = evaluate(*model, request);
  progress.finish();
  f.engine.write_trace();
  if (f.record_agreement) {
    if (model->kind() == ModelKind::rules) fail(ErrorCode::usage, "--record-agreement: VADER has no int8 variant");
    if (e.numbers) fail(ErrorCode::usage, "--record-agreement: regression models have no labels to compare");
    EngineFlags wide = f.engine, narrow = f.engine;
    wide.precision = Precision::fp32;
    narrow.precision = Precision::int8;
    wide.device = narrow.device = Device::Kind::cpu;
    const jobs::Evaluation a = evaluate(*wide.open(), request), b = evaluate(*narrow.open(), request);
    int64_t same = 0;
    for (size_t i = 0; i < a.predicted.size(); ++i) same += a.predicted[i] == b.predicted[i];
    const double agreement =
        a.predicted.empty() ? 0 : static_cast<double>(same) / static_cast<double>(a.predicted.size());
    const std::string dir = f.engine.adapter.empty() ? model->model() : find_model(f.engine.adapter);
    engine::record_int8_agreement(dir, agreement, static_cast<int64_t>(a.predicted.size()));
    log_info("int8 and fp32 labels agree on {:.2f} % of {}; recorded in {}", agreement * 100,
             format_count(static_cast<int64_t>(a.predicted.size()), a.multi_label ? "label" : "row"), dir);
  }
  if (f.json)
    std::cout << to_json(e).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  else
    print_table(e);
  if (!f.json && !f.engine.quiet) {
    const bool rules = model->kind() == ModelKind::rules;
    if (e.blank_lines > 0) print_stderr("{} skipped\n", format_count(e.blank_lines, "blank line"));
    print_stderr("{} on {} {}\n", model->model(), model->device(), rules ? "(rules)" : "in " + e.precision);
    const std::string trained = rules ? "" : trained_in(model->model());
    if (!trained.empty() && trained != e.precision)
      print_stderr("this model was evaluated in {} during training; use --precision {} to reproduce its metrics\n",
                   trained, trained);
  }
  return 0;
}

}  // namespace

std::function<int()> setup_eval(CLI::App& app) {
  auto f = std::make_shared<EvalFlags>();
  app.add_option("data", f->inputs, "labelled rows (csv, tsv, jsonl), or tagged words (CoNLL, jsonl) for token models");
  app.add_option("--text-column", f->text_column, "column or key of the text");
  app.add_option("--pair-column", f->pair_column, "column or key of the second text of a pair");
  app.add_option("--label-column", f->label_columns,
                 "column or key of the label (several labels separated by |), or columns a,b,c of 0 or 1")
      ->allow_extra_args(false)
      ->capture_default_str();
  app.add_option("--format", f->format, "auto, csv, tsv, jsonl or conll")->capture_default_str();
  f->dialect.add_to(app);
  app.add_flag("--json", f->json, "print JSON");
  app.add_flag("--record-agreement", f->record_agreement,
               "measure how often int8 and fp32 labels agree and record it in the model directory");
  f->zero_shot.add_to(app);
  f->entities.add_to(app, false);  // tags of words cannot be nested
  f->engine.add_to(app, true);
  return [f] { return run_eval(*f); };
}

}  // namespace brim::cli
