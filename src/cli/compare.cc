// SPDX-License-Identifier: Apache-2.0
// brim compare: runs several models over the same rows, one after another without sharing the machine. The comparison
// itself is in jobs/compare.h.
#include "jobs/compare.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/progress.h"
#include "base/units.h"
#include "cli/engine_flags.h"
#include "cli/verb.h"
#include "cli/zero_shot_flags.h"
#include "engine/label.h"
#include "engine/scorer_access.h"
#include "hub/model_files.h"
#include "io/atomic_file.h"
#include "io/compress.h"
#include "jobs/evaluate.h"
#include "rows/jsonl.h"

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

std::string json_string(std::string_view text) {
  std::string out;
  rows::append_json_string(out, text);
  return out;
}

rows::RowReader open_rows(const CompareFlags& f, const std::string& label_column) {
  rows::RowReaderOptions options;
  options.format = rows::parse_row_format(f.format);
  options.text_column = f.text_column;
  options.pair_column = f.pair_column;
  if (!label_column.empty()) options.label_columns = {label_column};
  return rows::RowReader(f.data, options);
}

// The requested column, or `label` if the data has it, or none.
std::string find_label_column(const CompareFlags& f) {
  if (!f.label_column.empty()) return f.label_column;
  const auto columns = open_rows(f, "").schema().columns;
  return std::find(columns.begin(), columns.end(), "label") != columns.end() ? "label" : "";
}

// Checks all models before the first one runs, which may take an hour.
jobs::MatchedClasses check_models(const CompareFlags& f) {
  std::vector<std::vector<std::string>> all;
  for (size_t m = 0; m < f.models.size(); ++m) {
    const std::string& name = f.models[m];
    const ScorerOptions options = flags_of(f, m).scorer_options();
    const std::string dir = find_model(options.model);
    std::vector<std::string> labels = engine::vader_labels();
    if (options.zero_shot) {
      labels = options.zero_shot->labels;
    } else if (!dir.empty()) {
      const auto [config, weights] = hub::open_model({dir, options.adapter});
      const hub::HeadKind head = head_kind(config, weights->names());
      if (head == hub::HeadKind::token ||
          (head == hub::HeadKind::sequence && config.problem_type == "multi_label_classification"))
        fail(ErrorCode::usage, "{}: assigns several labels or tags, compare needs one class per text; use `brim eval`",
             name);
      if (head == hub::HeadKind::sequence && config.id2label.size() == 1)
        fail(ErrorCode::usage, "{}: predicts a number, compare needs one class per text; use `brim eval`", name);
      if (head != hub::HeadKind::sequence)
        fail(ErrorCode::bad_model, "{}: no classification head; add one with `brim train`", name);
      labels = config.id2label;
    }
    all.push_back(std::move(labels));
  }
  return jobs::match_classes(f.models, all);
}

jobs::ModelRun run_model(const CompareFlags& f, size_t number, const std::string& label_column,
                         const jobs::MatchedClasses& classes, std::vector<std::string>* expected) {
  const EngineFlags flags = flags_of(f, number);
  const std::string& name = f.models[number];
  engine::reset_peak_resident();
  const int64_t opened = now_ns();
  const auto model = flags.open();
  if (!f.pair_column.empty()) {
    if (auto problem = model->why_no_pairs()) throw *problem;
  }
  jobs::ModelRun run;
  const double load_seconds = seconds_since(opened);
  run.name = name;
  run.labels = model->labels();
  rows::RowReader reader = open_rows(f, label_column);
  Progress progress("comparing " + name, STDERR_FILENO, f.engine.quiet || f.json);
  engine::PipelineOptions options;
  options.stop = &stop_requested();
  const engine::RowReport report = engine::score_rows(
      *model, reader,
      [&](engine::ScoredChunk& chunk) {
        for (size_t row = 0; row < chunk.rows.size(); ++row) {
          if (const Error* error = chunk.error(row)) throw placed_error(reader.inputs(), chunk.rows, row, *error);
          run.predicted.push_back(chunk.choices[row].label);
          if (expected == nullptr || label_column.empty()) continue;
          const std::string_view label = chunk.rows.labels[row];
          if (!classes.find(label))
            fail(ErrorCode::bad_data, "{}:{}: label '{}' is unknown to the models, which have {}",
                 f.data[chunk.rows.input], chunk.rows.lines[row], label, fmt::join(classes.labels, ", "));
          expected->emplace_back(label);
        }
      },
      [&](const engine::PipelineStats& now) {
        progress.update({static_cast<double>(now.file_bytes),
                         static_cast<double>(std::max<int64_t>(0, reader.bytes_total())),
                         format_count(now.rows, "row")});
      },
      options);
  progress.finish();
  if (stop_requested()) fail(ErrorCode::interrupted, "interrupted");
  run.record = engine::record_of(*model, report.models[0]);
  run.record.load_seconds = load_seconds;
  return run;
}

// One JSON object per row on which the models differ: position, text, label and each model's result.
std::string disagreeing_rows(const CompareFlags& f, const jobs::Comparison& c, const std::string& label_column) {
  const auto rows = c.disagreements();
  rows::RowReader reader = open_rows(f, label_column);
  rows::RowChunk chunk;
  std::string out;
  size_t next = 0, row = 0;
  while (next < rows.size() && reader.next_chunk(chunk))
    for (size_t i = 0; i < chunk.size(); ++i, ++row) {
      if (next == rows.size() || rows[next] != row) continue;
      ++next;
      out += fmt::format("{{\"file\":{},\"line\":{},\"text\":{}", json_string(f.data[chunk.input]), chunk.lines[i],
                         json_string(chunk.texts[i]));
      if (!f.pair_column.empty()) out += fmt::format(",\"pair\":{}", json_string(chunk.pairs[i]));
      if (!c.expected.empty())
        out += fmt::format(",\"label\":{}", json_string(c.labels[static_cast<size_t>(c.expected[row])]));
      out += ",\"predicted\":{";
      for (size_t m = 0; m < c.models.size(); ++m)
        out += fmt::format("{}{}:{}", m > 0 ? "," : "", json_string(c.models[m].name),
                           json_string(c.labels[static_cast<size_t>(c.models[m].predicted[row])]));
      out += "}}\n";
    }
  return out;
}

int run_compare(CompareFlags f) {
  add_adapters(f);
  if (f.models.size() < 2) fail(ErrorCode::usage, "brim compare: needs at least two models (--models vader,default)");
  if (f.data.empty()) fail(ErrorCode::usage, "brim compare: --data is required");
  for (const auto& path : f.data) {
    std::error_code ignored;
    const bool one_pass = path == "-" || (std::filesystem::exists(path, ignored) &&
                                          !std::filesystem::is_directory(path, ignored) && !io::is_rereadable(path));
    if (one_pass) fail(ErrorCode::usage, "--data {}: must be a file, because every model reads it", path);
  }
  for (size_t i = 0; i < f.models.size(); ++i)
    if (std::find(f.models.begin() + static_cast<std::ptrdiff_t>(i) + 1, f.models.end(), f.models[i]) != f.models.end())
      fail(ErrorCode::usage, "--models: duplicate model {}", f.models[i]);
  const double max_loss = jobs::parse_share(f.max_loss);
  if (f.zero_shot.multi_label)
    fail(ErrorCode::usage, "--multi-label: compare needs one class per text; use `brim eval`");
  f.zero_shot.apply(f.engine, f.models);
  stop_on_signals();
  const std::string label_column = find_label_column(f);
  const jobs::MatchedClasses classes = check_models(f);
  std::optional<io::AtomicFile> differing;  // created now, so that an unwritable path fails early
  if (!f.disagreements.empty() && f.disagreements != "-") differing.emplace(f.disagreements);
  std::vector<std::string> expected;
  std::vector<jobs::ModelRun> runs;
  for (size_t m = 0; m < f.models.size(); ++m)
    runs.push_back(run_model(f, m, label_column, classes, runs.empty() ? &expected : nullptr));
  if (runs[0].predicted.empty()) fail(ErrorCode::bad_data, "{}: no rows", f.data[0]);
  const jobs::Comparison c = compare_models(runs, expected, max_loss);
  if (differing) {
    differing->write(disagreeing_rows(f, c, label_column));
    differing->commit();
  } else if (f.disagreements == "-")
    fmt::print("{}", disagreeing_rows(f, c, label_column));
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
