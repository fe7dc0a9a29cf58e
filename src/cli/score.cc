// SPDX-License-Identifier: Apache-2.0
// brim score: labels for the texts of files or stdin.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/units.h"
#include "cli/engine_flags.h"
#include "cli/live_run.h"
#include "cli/summary.h"
#include "cli/verb.h"
#include "engine/pipeline.h"
#include "io/atomic_file.h"
#include "io/file_checks.h"
#include "io/model_dir.h"
#include "io/resume.h"
#include "io/row_writer.h"
#include "monitor/host.h"
#include "report/doctor_trace.h"
#include "text/vader.h"

namespace brim {
namespace {

struct ScoreFlags {
  std::vector<std::string> inputs;
  std::string output = "-", format = "auto", output_format = "auto", text_column, on_error = "stop", summary_json;
  bool all_scores = false, resume = false;
  int tokenizer_threads = 0;
  double checkpoint_seconds = 2;
  DialectFlags dialect;
  EngineFlags engine;
};

enum class OnError { stop, skip, null };

OnError parse_on_error(const std::string& text) {
  if (text == "stop") return OnError::stop;
  if (text == "skip") return OnError::skip;
  if (text == "null") return OnError::null;
  fail(ErrorCode::usage, "--on-error {}: use stop, skip or null", text);
}

// One scored chunk to bytes of rows.
class RowSink {
 public:
  // `counters` must outlive `output`, which stores them at its end too.
  RowSink(const ScoreFlags& flags, const Engine* engine, const RowReader& reader, RowWriter& writer, RowOutput& output,
          std::map<std::string, int64_t>& counters)
      : engine_(engine),
        reader_(reader),
        writer_(writer),
        output_(output),
        counters_(counters),
        on_error_(parse_on_error(flags.on_error)),
        all_scores_(flags.all_scores),
        watched_(flags.output == "-") {
    output_.keep_counters(&counters_);
    if (output_.resumed()) counters_ = output_.resumed()->counters;
  }

  void operator()(ScoredChunk& chunk) {
    for (size_t row = 0; row < chunk.rows.size(); ++row) {
      bytes_.clear();
      ++counters_["rows"];
      if (const Error* error = chunk.error(row))
        bad_row(chunk, row, *error);
      else
        good_row(chunk, row);
      output_.write_row(bytes_, chunk.rows.position_after(row));
    }
    if (watched_) output_.flush();
  }

 private:
  void bad_row(const ScoredChunk& chunk, size_t row, const Error& error) {
    const std::string where = placed_error(reader_.inputs(), chunk.rows, row, error).what();
    if (on_error_ == OnError::stop) throw Error(error.code(), where + "; --on-error skip or null goes on");
    ++counters_["bad rows"];
    if (counters_["bad rows"] <= 3) log_warning("{}", where);
    if (on_error_ == OnError::null) writer_.null_row(bytes_, chunk.rows, row);
  }

  void good_row(const ScoredChunk& chunk, size_t row) {
    if (!chunk.entities.empty()) {
      spans_.clear();
      for (const Entity& e : chunk.entities[row]) spans_.push_back({e.group, e.score, e.word, e.start, e.end});
      counters_["entities"] += static_cast<int64_t>(spans_.size());
      writer_.entities(bytes_, chunk.rows, row, spans_);
      return;
    }
    const std::span<const float> scores(&chunk.scores[row * static_cast<size_t>(chunk.width)],
                                        static_cast<size_t>(chunk.width));
    std::string_view label;
    float score = 0;
    if (engine_ == nullptr) {
      // The compound reached us as a float; its four decimals survive that.
      const double compound = scores[3];
      label = vader_label(compound);
      const VaderLabelScores shares = vader_label_scores(compound);
      score = static_cast<float>(std::max({shares.negative, shares.neutral, shares.positive}));
    } else {
      const auto best = static_cast<size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
      label = engine_->labels()[best];
      score = scores[best];
    }
    ++counters_[fmt::format("label {}", label)];
    writer_.labelled(bytes_, chunk.rows, row, label, score, all_scores_ ? scores : std::span<const float>());
  }

  const Engine* engine_;
  const RowReader& reader_;
  RowWriter& writer_;
  RowOutput& output_;
  std::map<std::string, int64_t>& counters_;
  OnError on_error_;
  bool all_scores_;
  bool watched_;  // stdout: its reader gets rows as they are done, not a block of them
  std::string bytes_;
  std::vector<EntitySpan> spans_;
};

RunIdentity identity_of(const ScoreFlags& f, const Engine* engine, OutputFormat format) {
  RunIdentity id;
  id.inputs = f.inputs;
  id.model = engine == nullptr ? "vader" : std::filesystem::absolute(engine->model().dir()).string();
  id.options = {{"format", f.format},
                {"output-format", output_format_name(format)},
                {"text-column", f.text_column},
                {"on-error", f.on_error},
                {"all-scores", f.all_scores ? "yes" : "no"},
                {"long-text", f.engine.long_text},
                {"max-length", std::to_string(f.engine.max_length)}};
  if (!f.dialect.delimiter.empty()) id.options["delimiter"] = f.dialect.delimiter;
  if (f.dialect.no_quotes) id.options["no-quotes"] = "yes";
  if (engine != nullptr) {
    id.model_files = model_files(engine->model().dir());
    id.options["precision"] = precision_name(engine->precision());
  }
  return id;
}

int run_score(const ScoreFlags& given) {
  ScoreFlags f = given;
  if (f.inputs.empty()) {
    if (is_terminal(STDIN_FILENO))
      fail(ErrorCode::usage, "brim score: give a file of texts, or pipe texts in; `brim help score` shows how");
    f.inputs = {"-"};
  }
  if (f.tokenizer_threads < 0)
    fail(ErrorCode::usage, "--tokenizer-threads {}: must not be negative", f.tokenizer_threads);
  (void)parse_on_error(f.on_error);
  if (!(f.checkpoint_seconds >= 0))
    fail(ErrorCode::usage, "--checkpoint-seconds {}: must not be negative", f.checkpoint_seconds);
  f.engine.start_trace();
  if (f.summary_json == "-" && f.output == "-")
    fail(ErrorCode::usage,
         "--summary-json -: stdout takes the labels already; give -o FILE too, or another place for the summary");
  if (!f.summary_json.empty() && f.summary_json != "-") require_writable(f.summary_json);
  refuse_output_over_input(f.output, f.inputs);
  RowReaderOptions reading;
  reading.format = parse_row_format(f.format);
  reading.text_column = f.text_column;
  f.dialect.apply(reading);
  RowReader reader(f.inputs, reading);
  const int64_t opened = now_ns();
  const auto engine = f.engine.open();
  const double load_seconds = seconds_since(opened);

  RowWriterOptions writing;
  writing.format = f.output_format == "auto" ? output_format_of(f.output, reader.schema().format)
                                             : parse_output_format(f.output_format);
  writing.entities = engine != nullptr && is_per_token(engine->output());
  if (f.all_scores && writing.entities)
    log_warning("--all-scores adds nothing here: {} finds entities, each with its score", f.engine.model);
  if (f.all_scores && !writing.entities) {
    if (engine == nullptr) {
      writing.score_names = {"neg", "neu", "pos", "compound"};
      writing.scores_at_top = true;
    } else
      writing.score_names = engine->labels();
  }
  RowWriter writer(reader.schema(), writing);
  RowOutputOptions output_options;
  output_options.resume = f.resume;
  output_options.checkpoint_seconds = f.checkpoint_seconds;
  output_options.stop = &stop_requested();
  std::map<std::string, int64_t> counters;
  RowOutput output(f.output, identity_of(f, engine.get(), writing.format), output_options);
  if (output.resumed()) {
    reader.seek(output.resumed()->position);
    log_info("resuming after row {}", format_count(output.resumed()->position.rows));
  } else {
    std::string header;
    writer.header(header);
    output.write_header(header);
  }

  RowSink sink(f, engine.get(), reader, writer, output, counters);
  Progress progress("scoring", STDERR_FILENO, f.engine.quiet);
  LiveRun live("score", engine.get());
  const int64_t started = now_ns();
  const auto on_progress = [&](const PipelineStats& now) {
    live.update(now, reader.bytes_total() > 0
                         ? static_cast<double>(now.file_bytes) / static_cast<double>(reader.bytes_total())
                         : -1);
    const double rate = static_cast<double>(now.rows) / std::max(1e-9, seconds_since(started));
    progress.update(
        {static_cast<double>(now.file_bytes), static_cast<double>(std::max<int64_t>(0, reader.bytes_total())),
         fmt::format("{} rows · {} rows/s", format_count(now.rows), format_count(static_cast<int64_t>(rate)))});
  };
  PipelineOptions options;
  options.stop = &stop_requested();
  options.tokenizer_threads = f.tokenizer_threads == 0 && engine == nullptr
                                  ? f.engine.threads
                                  : f.tokenizer_threads;  // they are VADER's threads
  std::optional<CardWatch> card;
  if (!f.engine.trace.empty() && engine != nullptr && engine->device().kind() == DeviceKind::cuda)
    card.emplace(engine->device().pci_bus_id());
  std::optional<OtherProcesses> others;
  if (!f.engine.trace.empty()) others.emplace();
  stop_on_signals();  // so far there was nothing to save
  const PipelineStats stats = run_pipeline(
      engine.get(), reader, [&](ScoredChunk& chunk) { sink(chunk); }, on_progress, options);
  progress.finish();
  const bool interrupted = stop_requested();
  if (interrupted)
    output.suspend();
  else
    output.commit();  // before anything else is written that might fail
  if (!f.engine.trace.empty()) {
    TracedRun record = make_record("score", engine.get(), stats, load_seconds);
    record.inputs = f.inputs;
    record.output = f.output;
    record.others = others->load().text();
    if (card) record.card = card->stop();
    f.engine.write_trace(to_json(record));
  }
  if (interrupted) {
    const std::string part = AtomicFile::part_path(f.output).string();
    fail(ErrorCode::interrupted, "interrupted after {} {}{}", format_count(counters["rows"]),
         counters["rows"] == 1 ? "row" : "rows",
         output.resumable()              ? "; the same command with --resume goes on"
         : std::filesystem::exists(part) ? "; they are in " + part + ", and a pipe cannot be resumed"
                                         : "");
  }
  const Summary summary = summarize(engine.get(), stats, counters, load_seconds);
  if (!f.engine.quiet) put_stderr(summary.text());
  if (!f.summary_json.empty()) summary.write_json(f.summary_json);
  return 0;
}

}  // namespace

std::function<int()> setup_score(CLI::App& app) {
  auto f = std::make_shared<ScoreFlags>();
  app.add_option("input", f->inputs, "files of texts (txt, csv, tsv, jsonl; .gz and .zst too); - is stdin");
  app.add_option("-o,--output", f->output, "where the labels go; - is stdout")->capture_default_str();
  app.add_option("--text-column", f->text_column,
                 "column or key that holds the text (default: text, else the only one)");
  app.add_option("--format", f->format, "auto, txt, csv, tsv or jsonl")->capture_default_str();
  f->dialect.add_to(app);
  app.add_option("--output-format", f->output_format, "auto, csv, tsv or jsonl")->capture_default_str();
  app.add_flag("--all-scores", f->all_scores, "a score for every label, not only the best");
  app.add_option("--on-error", f->on_error, "bad rows: stop, skip or null")->capture_default_str();
  app.add_flag("--resume", f->resume, "go on where an interrupted run of the same command stopped");
  app.add_option("--tokenizer-threads", f->tokenizer_threads,
                 "threads that tokenize beside the device; 0 chooses by device and cores")
      ->capture_default_str();
  app.add_option("--checkpoint-seconds", f->checkpoint_seconds,
                 "how often the place for --resume is saved; so much is done again after a kill")
      ->capture_default_str();
  app.add_option("--summary-json", f->summary_json, "write the summary to this file; - is stdout");
  f->engine.add_to(app, true);
  return [f] { return run_score(*f); };
}

}  // namespace brim
