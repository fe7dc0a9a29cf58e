// SPDX-License-Identifier: Apache-2.0
#include "cli/score_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/units.h"
#include "cli/live_run.h"
#include "cli/summary.h"
#include "cli/verb.h"
#include "device/built_with_cuda.h"
#include "io/atomic_file.h"
#include "jobs/doctor_trace.h"
#include "monitor/host.h"
#include "rows/resume.h"

namespace brim::cli {

namespace {

plan::AutoFacts auto_facts(const ScoreFlags& f, const rows::RowReader& reader) {
  plan::AutoFacts facts;
  facts.free = f.engine.device == Device() && f.engine.precision == Precision() &&
               f.engine.memory_limit == MemoryLimit() && f.shard.empty();
  facts.card_expected = device::built_with_cuda() && device::nvidia_driver_present();
  const bool packed = std::any_of(f.inputs.begin(), f.inputs.end(), [](const std::string& input) {
    return io::compression_of(input) != io::Compression::none;
  });
  if (!packed) facts.bytes = reader.bytes_total();
  if (!f.resume) return facts;
  if (const auto device = rows::option_of_run(f.output, "device")) facts.on_cpu = *device == "cpu";
  return facts;
}

jobs::ScoreModels open_models(const ScoreFlags& f, const rows::RowReader& reader) {
  const plan::AutoFacts facts = auto_facts(f, reader);
  const auto named = jobs::name_models(f.models);
  jobs::ScoreModels models = open_score_models(named, f.scorer_options(named, facts.bytes), facts);
  if (!models.why_cpu.empty() && !f.engine.quiet)
    log_info("using the CPU: {} (use the GPU with --device cuda)", models.why_cpu);
  if (!f.pair_column.empty())
    for (const auto& scorer : models.scorers)
      if (auto problem = scorer->why_no_pairs()) throw *problem;
  return models;
}

std::vector<jobs::ScoredModel> scored_models(const jobs::ScoreModels& models, bool all_scores) {
  std::vector<jobs::ScoredModel> scored;
  for (size_t m = 0; m < models.scorers.size(); ++m) {
    scored.push_back({models.scorers[m].get(), models.named[m].name});
    if (all_scores && models.scorers[m]->kind() == ModelKind::tagger)
      log_warning("--all-scores: no effect for {}, whose entities always have scores", models.named[m].model);
  }
  return scored;
}

// Saves the rows written so far and rethrows the error, such as a full disk, with a hint to use --resume.
[[noreturn]] void stop_at_write_error(const Error& error, rows::RowOutput& output) {
  try {
    output.suspend();
  } catch (const Error& again) {  // an earlier state remains
    log_warning("{}", again.what());
  }
  if (output.saved_rows() == 0) throw error;
  throw Error(error.code(), fmt::format("{}; {} are saved; repeat the command with --resume to continue", error.what(),
                                        format_count(output.saved_rows(), "row")));
}

std::unique_ptr<jobs::ScoreFile> open_file(const ScoreFlags& f, const jobs::ScoreModels& models,
                                           rows::OutputFormat format, rows::RowReader& reader, jobs::ScoredRows& scored,
                                           bool is_shard) {
  rows::RowOutputOptions options;
  options.resume = f.resume;
  options.notes_new_run = !is_shard && !f.engine.quiet;  // shards always resume
  options.checkpoint_seconds = f.checkpoint_seconds;
  options.stop = &stop_requested();
  std::map<std::string, std::string> settings = f.output_settings();
  settings["output-format"] = output_format_name(format);
  return open_score_file(f.output, run_identity(f.inputs, std::move(settings), models, f.adapter_dir()), options,
                         reader, scored, is_shard);
}

// Observes a run for --trace; does nothing without it.
class RunObserver {
 public:
  RunObserver(const ScoreFlags& f, const jobs::ScoreModels& models) : flags_(f), models_(models) {
    if (f.engine.trace.empty()) return;
    if (models.device() == device::DeviceKind::cuda) card_.emplace(models.pci_bus_id());
    others_.emplace();
  }
  void write_trace(const engine::RowReport& report, double load_seconds) {
    if (!others_) return;
    jobs::RunRecord record = jobs::make_record("score", *models_.scorers[0], report.all, load_seconds);
    record.inputs = flags_.inputs;
    record.output = flags_.output;
    record.others = others_->load().text();
    if (card_) record.card = card_->stop();
    flags_.engine.write_trace(to_json(record));
  }

 private:
  const ScoreFlags& flags_;
  const jobs::ScoreModels& models_;
  std::optional<jobs::CardWatch> card_;
  std::optional<monitor::OtherProcesses> others_;
};

class ScoreRun {
 public:
  ScoreRun(const ScoreFlags& f, const rows::RowReaderOptions& reading, jobs::ShardPart* part)
      : f_(f), part_(part), reader_(f.inputs, reading) {}

  int run() {
    const int64_t opened = now_ns();
    const jobs::ScoreModels models = open_models(f_, reader_);
    load_seconds_ = seconds_since(opened);
    const rows::OutputFormat format = f_.written_as(reader_);
    jobs::ScoredRows scored(scored_models(models, f_.all_scores), reader_.schema(), format, f_.all_scores);
    stop_on_signals();  // nothing to save or remove before this point
    const auto file = open_file(f_, models, format, reader_, scored, part_ != nullptr);
    if (file->resumed()) log_info("resuming after row {}", format_count(file->resumed()->position.rows));
    RunObserver observer(f_, models);
    const engine::RowReport report = score(models, *file);
    const bool interrupted = ended_early_;
    std::map<std::string, int64_t>& counters = file->counters();
    if (part_ != nullptr && !interrupted) part_->publish(counters["rows"], counters["bad rows"]);
    observer.write_trace(report, load_seconds_);
    if (interrupted) fail_interrupted(file->output(), counters["rows"]);
    counters["blank lines"] = reader_.blank_lines();
    std::vector<std::string> names;
    for (const jobs::NamedModel& named : models.named) names.push_back(named.name);
    const Summary summary = summarize(models.all(), names, report, counters, load_seconds_);
    if (!f_.engine.quiet) put_stderr(summary.text());
    if (!f_.summary_json.empty()) summary.write_json(f_.summary_json);
    return 0;
  }

 private:
  // Scores all rows and commits the file; if stopped, sets ended_early_ and suspends it.
  engine::RowReport score(const jobs::ScoreModels& models, jobs::ScoreFile& file) {
    rows::RowOutput& output = file.output();
    const jobs::BadRows bad_rows = f_.bad_rows();
    const bool watched = f_.output == "-";  // stdout: flush rows immediately
    const auto sink = [&](engine::ScoredChunk& chunk) {
      file.write(chunk, bad_rows);
      if (watched) output.flush();
    };
    Progress progress("scoring", STDERR_FILENO, f_.engine.quiet);
    LiveRun live("score", models.all());
    const int64_t started = now_ns();
    const auto on_progress = [&](const engine::PipelineStats& now) { report_progress(now, started, progress, live); };
    engine::PipelineOptions options;
    options.stop = &stop_requested();
    options.repeated_bytes = f_.cache.bytes();
    options.tokenizer_threads = f_.tokenizer_threads == 0 && models.device() == device::DeviceKind::null
                                    ? f_.engine.threads
                                    : f_.tokenizer_threads;  // they are VADER's threads
    engine::RowReport report;
    try {
      report = engine::score_rows(models.all(), reader_, sink, on_progress, options);
      progress.finish();
      ended_early_ = stop_requested();
      if (ended_early_)
        output.suspend();
      else
        output.commit();  // before other writes that may fail
    } catch (const Error& error) {
      if (error.code() != ErrorCode::cannot_write || !output.resumable() || part_ != nullptr) throw;
      stop_at_write_error(error, output);
    }
    return report;
  }

  void report_progress(const engine::PipelineStats& now, int64_t started, Progress& progress, LiveRun& live) const {
    const auto total = static_cast<double>(reader_.bytes_total());
    live.update(now, total > 0 ? std::optional(static_cast<double>(now.file_bytes) / total) : std::nullopt);
    const double rate = static_cast<double>(now.rows) / std::max(1e-9, seconds_since(started));
    progress.update(
        {static_cast<double>(now.file_bytes), std::max(0.0, total),
         fmt::format("{} · {}/s", format_count(now.rows, "row"), format_count(static_cast<int64_t>(rate), "row"))});
  }

  [[noreturn]] void fail_interrupted(const rows::RowOutput& output, int64_t rows) const {
    const std::string kept = output.kept_rows().string();
    fail(ErrorCode::interrupted, "interrupted after {}{}", format_count(rows, "row"),
         part_ != nullptr     ? "; repeat the command to continue"
         : output.resumable() ? "; repeat the command with --resume to continue"
         : !kept.empty()      ? "; the rows are in " + kept + " (a pipe cannot be resumed)"
                              : "");
  }

  const ScoreFlags& f_;
  jobs::ShardPart* const part_;
  rows::RowReader reader_;
  double load_seconds_ = 0;
  bool ended_early_ = false;
};

}  // namespace

int score_rows(const ScoreFlags& flags, const rows::RowReaderOptions& reading, jobs::ShardPart* part) {
  return ScoreRun(flags, reading, part).run();
}

}  // namespace brim::cli
