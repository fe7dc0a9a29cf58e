// SPDX-License-Identifier: Apache-2.0
#include "cli/score_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "io/atomic_file.h"
#include "rows/file_checks.h"
#include "rows/jsonl.h"

namespace brim::cli {
namespace {

std::string json_text(const std::vector<std::string>& values) {
  std::string out = "[";
  for (const std::string& value : values) {
    if (out.size() > 1) out += ",";
    rows::append_json_string(out, value);
  }
  return out + "]";
}

}  // namespace

void ScoreFlags::add_to(CLI::App& app) {
  app.add_option("input", inputs, "files of texts (txt, csv, tsv, jsonl; also .gz and .zst); -: stdin");
  app.add_option("-o,--output", output, "output file; -: stdout")->capture_default_str();
  app.add_option("--text-column", text_column, "column or key of the text (default: text, else the only one)");
  app.add_option("--pair-column", pair_column, "column or key of the second text of a pair (NLI, rerankers)");
  app.add_option("--format", format, "auto, txt, csv, tsv or jsonl")->capture_default_str();
  dialect.add_to(app);
  app.add_option("--output-format", output_format, "auto, csv, tsv or jsonl")->capture_default_str();
  app.add_flag("--all-scores", all_scores, "write the scores of all labels, not only the best one");
  app.add_option("--on-error", on_error, "what to do with bad rows: stop, skip or null")->capture_default_str();
  app.add_flag("--resume", resume, "continue an interrupted run of the same command");
  app.add_option("--shard", shard,
                 "score shard I of N into its own file in the directory -o; auto or auto/N: I from a Slurm array or a "
                 "Kubernetes job; status, missing (as sbatch --array expects) or check: report on the job in -o");
  app.add_option("--tokenizer-threads", tokenizer_threads, "tokenizer threads; 0: chosen by device and cores")
      ->capture_default_str();
  app.add_option("--checkpoint-seconds", checkpoint_seconds,
                 "seconds between saved positions for --resume; work since the last one is repeated")
      ->capture_default_str();
  app.add_option("--summary-json", summary_json, "write the summary to this file; -: stdout");
  app.add_option("--config", config,
                 "YAML file with these flags as keys; command line and environment take precedence");
  zero_shot.add_to(app);
  entities.add_to(app, true);
  cache.add_to(app);
  engine.add_to(app, true, &models);
}

jobs::BadRows ScoreFlags::bad_rows() const {
  if (on_error == "stop") return jobs::BadRows::stop;
  if (on_error == "skip") return jobs::BadRows::skip;
  if (on_error == "null") return jobs::BadRows::null;
  fail(ErrorCode::usage, "--on-error {}: use stop, skip or null", on_error);
}

void ScoreFlags::check() const {
  if (tokenizer_threads < 0) fail(ErrorCode::usage, "--tokenizer-threads {}: must not be negative", tokenizer_threads);
  (void)bad_rows();
  (void)zero_shot.read();
  (void)entities.read();
  (void)cache.bytes();
  if (!(checkpoint_seconds >= 0))
    fail(ErrorCode::usage, "--checkpoint-seconds {}: must not be negative", checkpoint_seconds);
  if (!engine.trace.empty() && models.size() > 1)
    fail(ErrorCode::usage, "--trace: supports one model; run each --model separately");
  if (summary_json == "-" && output == "-")
    fail(ErrorCode::usage,
         "--summary-json -: stdout is used for the labels; set -o FILE or write the summary to a file");
  if (!summary_json.empty() && summary_json != "-") io::require_writable(summary_json);
  rows::refuse_output_over_input(output, inputs);
}

rows::RowReaderOptions ScoreFlags::reading() const {
  rows::RowReaderOptions reading;
  reading.format = rows::parse_row_format(format);
  reading.text_column = text_column;
  reading.pair_column = pair_column;
  dialect.apply(reading);
  return reading;
}

rows::OutputFormat ScoreFlags::written_as(const rows::RowReader& reader) const {
  return output_format == "auto" ? output_format_of(output, reader.schema().format)
                                 : rows::parse_output_format(output_format);
}

std::string ScoreFlags::adapter_dir() const { return engine.adapter.empty() ? "" : find_model(engine.adapter); }

std::map<std::string, std::string> ScoreFlags::output_settings() const {
  std::map<std::string, std::string> options = {{"format", format},
                                                {"text-column", text_column},
                                                {"on-error", on_error},
                                                {"all-scores", all_scores ? "yes" : "no"},
                                                {"long-text", engine_settings().find("long_text")->value.get(engine)},
                                                {"max-length", std::to_string(engine.max_length)}};
  if (!pair_column.empty()) options["pair-column"] = pair_column;
  if (const auto labels = zero_shot.read()) {
    options["labels"] = json_text(labels->labels);
    options["template"] = labels->text_template;
    options["multi-label"] = labels->multi_label ? "yes" : "no";
  }
  if (const auto kinds = entities.read()) {
    options["entities"] = json_text(kinds->labels);
    options["threshold"] = fmt::format("{}", kinds->threshold);
    options["nested"] = kinds->nested ? "yes" : "no";
  }
  if (!engine.adapter.empty())
    options["adapter"] = std::filesystem::absolute(adapter_dir()).lexically_normal().string();
  if (!dialect.delimiter.empty()) options["delimiter"] = dialect.delimiter;
  if (dialect.no_quotes) options["no-quotes"] = "yes";
  return options;
}

std::vector<ScorerOptions> ScoreFlags::scorer_options(const std::vector<jobs::NamedModel>& named,
                                                      int64_t input_bytes) const {
  if (!engine.adapter.empty() && named.size() > 1)
    fail(ErrorCode::usage, "--adapter {}: supports one --model, not {}", engine.adapter, named.size());
  std::vector<std::string> given;
  for (const jobs::NamedModel& one : named) given.push_back(one.model);
  EngineFlags flags = engine;
  zero_shot.apply(flags, given);
  entities.apply(flags, given);
  std::vector<ScorerOptions> options;
  for (const std::string& model : given) {
    flags.model = model;
    options.push_back(flags.scorer_options());
    options.back().input_bytes = std::max<int64_t>(0, input_bytes);
  }
  return options;
}

}  // namespace brim::cli
