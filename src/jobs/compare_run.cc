// SPDX-License-Identifier: Apache-2.0
#include "jobs/compare_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/clock.h"
#include "base/error.h"
#include "base/units.h"
#include "engine/label.h"
#include "engine/scorer_access.h"
#include "hub/model_files.h"
#include "io/compress.h"
#include "jobs/evaluate.h"
#include "rows/jsonl.h"

namespace brim::jobs {
namespace {

std::string json_string(std::string_view text) {
  std::string out;
  rows::append_json_string(out, text);
  return out;
}

rows::RowReader open_rows(const CompareSpec& f, const std::string& label_column) {
  rows::RowReaderOptions options;
  options.format = rows::parse_row_format(f.format);
  options.text_column = f.text_column;
  options.pair_column = f.pair_column;
  if (!label_column.empty()) options.label_columns = {label_column};
  return rows::RowReader(f.data, options);
}

// The requested column, or `label` if the data has it, or none.
std::string find_label_column(const CompareSpec& f) {
  if (!f.label_column.empty()) return f.label_column;
  const auto columns = open_rows(f, "").schema().columns;
  return std::find(columns.begin(), columns.end(), "label") != columns.end() ? "label" : "";
}

// Checks all models before the first one runs, which may take an hour.
MatchedClasses check_models(const CompareSpec& f) {
  std::vector<std::vector<std::string>> all;
  for (const auto& [name, options] : f.models) {
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
  std::vector<std::string> names;
  for (const ComparedModel& model : f.models) names.push_back(model.name);
  return match_classes(names, all);
}

ModelRun run_model(const CompareSpec& f, const ComparedModel& compared, const std::string& label_column,
                   const MatchedClasses& classes, std::vector<std::string>* expected) {
  engine::reset_peak_resident();
  const int64_t opened = now_ns();
  const auto model = Scorer::open(compared.options);
  if (!f.pair_column.empty()) {
    if (auto problem = model->why_no_pairs()) throw *problem;
  }
  ModelRun run;
  const double load_seconds = seconds_since(opened);
  run.name = compared.name;
  run.labels = model->labels();
  rows::RowReader reader = open_rows(f, label_column);
  engine::PipelineOptions options;
  options.stop = f.stop;
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
        if (f.progress)
          f.progress(compared.name, static_cast<double>(now.file_bytes),
                     static_cast<double>(std::max<int64_t>(0, reader.bytes_total())), format_count(now.rows, "row"));
      },
      options);
  if (f.stop != nullptr && *f.stop) fail(ErrorCode::interrupted, "interrupted");
  run.blank_lines = reader.blank_lines();
  run.record = engine::record_of(*model, report.models[0]);
  run.record.load_seconds = load_seconds;
  return run;
}

}  // namespace

std::string disagreeing_rows(const CompareSpec& f, const Comparison& c) {
  const std::string label_column = find_label_column(f);
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

Comparison run_comparison(const CompareSpec& f) {
  if (f.models.size() < 2) fail(ErrorCode::usage, Remedy{"set `models=vader,default`"}, "fewer than two models");
  if (f.data.empty()) fail(ErrorCode::usage, Remedy{"set `data=FILE`"}, "no data");
  for (const auto& path : f.data) {
    std::error_code ignored;
    const bool one_pass = path == "-" || (std::filesystem::exists(path, ignored) &&
                                          !std::filesystem::is_directory(path, ignored) && !io::is_rereadable(path));
    if (one_pass) fail(ErrorCode::usage, "`data={}`: must be a file, because every model reads it", path);
  }
  for (size_t i = 0; i < f.models.size(); ++i)
    for (size_t j = i + 1; j < f.models.size(); ++j)
      if (f.models[i].name == f.models[j].name)
        fail(ErrorCode::usage, Remedy{"name each model once"}, "`models`: duplicate model {}", f.models[i].name);
  const std::string label_column = find_label_column(f);
  const MatchedClasses classes = check_models(f);
  std::vector<std::string> expected;
  std::vector<ModelRun> runs;
  for (const ComparedModel& model : f.models)
    runs.push_back(run_model(f, model, label_column, classes, runs.empty() ? &expected : nullptr));
  if (runs[0].predicted.empty()) fail(ErrorCode::bad_data, "{}: no rows", f.data[0]);
  return compare_models(runs, expected, f.max_loss);
}

}  // namespace brim::jobs
