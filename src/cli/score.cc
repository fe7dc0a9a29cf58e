// SPDX-License-Identifier: Apache-2.0
// brim score: labels the texts of files or stdin. Rows are scored by engine/score_rows.h, read and written in
// src/rows.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/units.h"
#include "cli/config_file.h"
#include "cli/engine_flags.h"
#include "cli/entity_flags.h"
#include "cli/live_run.h"
#include "cli/summary.h"
#include "cli/verb.h"
#include "cli/zero_shot_flags.h"
#include "device/built_with_cuda.h"
#include "engine/scorer_access.h"
#include "hub/model_dir.h"
#include "io/atomic_file.h"
#include "jobs/doctor_trace.h"
#include "jobs/score_file.h"
#include "jobs/shards.h"
#include "monitor/host.h"
#include "plan/auto_device.h"
#include "rows/file_checks.h"
#include "rows/jsonl.h"
#include "rows/resume.h"

namespace brim::cli {

namespace {

struct ScoreFlags {
  std::vector<std::string> inputs, models;
  std::string output = "-", format = "auto", output_format = "auto", text_column, pair_column, on_error = "stop",
              summary_json, config, shard;
  bool all_scores = false, resume = false;
  int tokenizer_threads = 0;
  double checkpoint_seconds = 2;
  DialectFlags dialect;
  ZeroShotFlags zero_shot;
  EntityFlags entities;
  CacheFlag cache;
  EngineFlags engine;
};

jobs::BadRows parse_on_error(const std::string& text) {
  if (text == "stop") return jobs::BadRows::stop;
  if (text == "skip") return jobs::BadRows::skip;
  if (text == "null") return jobs::BadRows::null;
  fail(ErrorCode::usage, "--on-error {}: use stop, skip or null", text);
}

// Models of a run in the given order. Names are prefixes of their columns; a single model needs none.
struct Models {
  std::vector<std::string> names, given;
  std::vector<std::shared_ptr<Scorer>> owned;
  std::vector<Scorer*> all;
  bool cpu_by_prediction = false;  // on the CPU because of the prediction or of the resumed run

  // The device of the models that have one; models opened together share it.
  device::DeviceKind device() const {
    const std::vector<engine::Engine*> engines = engine::engines_of(all);
    return engines.empty() ? device::DeviceKind::null : engines[0]->device().kind();
  }
  std::string pci_bus_id() const {
    for (const Scorer* model : all)
      if (!model->pci_bus_id().empty()) return model->pci_bus_id();
    return {};
  }
};

// "ner=models/ner" is the model models/ner with the name ner; "models/ner" is named after its directory.
void add_model(Models& models, const std::string& given, bool needs_name) {
  const size_t equals = given.find('=');
  const bool named = equals != std::string::npos && equals > 0 && equals < given.find('/') &&
                     !std::filesystem::exists(given);  // unless a directory has this name
  std::string name = named ? given.substr(0, equals) : "", model = named ? given.substr(equals + 1) : given;
  if (name.empty() && needs_name && hub::names_vader(model)) name = "vader";
  if (name.empty() && needs_name) {
    std::filesystem::path path = std::filesystem::absolute(model).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();
    name = path.filename().string();
  }
  if (needs_name && std::find(models.names.begin(), models.names.end(), name) != models.names.end())
    fail(ErrorCode::usage, "--model {}: duplicate name {}; set another one with --model NAME={}", given, name, model);
  models.names.push_back(name);
  models.given.push_back(model);
}

Models open_models(const ScoreFlags& f, const Device& device, int64_t input_bytes) {
  Models models;
  for (const std::string& given : f.models) add_model(models, given, f.models.size() > 1);
  if (!f.engine.adapter.empty() && models.given.size() > 1)
    fail(ErrorCode::usage, "--adapter {}: supports one --model, not {}", f.engine.adapter, models.given.size());
  EngineFlags shared = f.engine;
  f.zero_shot.apply(shared, models.given);
  f.entities.apply(shared, models.given);
  std::vector<ScorerOptions> options;
  for (const std::string& model : models.given) {
    EngineFlags flags = shared;
    flags.model = model;
    flags.device = device;
    options.push_back(flags.scorer_options());
    options.back().input_bytes = std::max<int64_t>(0, input_bytes);
  }
  models.owned = open_together(options);
  for (const auto& scorer : models.owned) models.all.push_back(scorer.get());
  return models;
}

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

// `auto` selects the CPU if it can score a small input before a GPU has started, and if such a run is resumed.
Models open_models(const ScoreFlags& f, const rows::RowReader& reader) {
  const plan::AutoFacts facts = auto_facts(f, reader);
  const plan::AutoDevice wanted = plan::auto_device(facts);
  if (wanted == plan::AutoDevice::usual) {
    Models models = open_models(f, f.engine.device, facts.bytes);
    models.cpu_by_prediction = facts.on_cpu.value_or(false) && models.device() == device::DeviceKind::cpu;
    return models;
  }
  Models models;
  try {
    models = open_models(f, Device::Kind::cpu, facts.bytes);
  } catch (const Error& error) {
    if (wanted == plan::AutoDevice::cpu || error.code() != ErrorCode::does_not_fit) throw;
    return open_models(f, f.engine.device, facts.bytes);
  }
  std::vector<double> rates;
  for (const Scorer* model : models.all)
    if (model->kind() != ModelKind::rules) rates.push_back(model->plan().tokens_per_second);
  const double seconds = plan::predicted_seconds(facts.bytes, rates);
  if (wanted == plan::AutoDevice::if_faster && !plan::faster_on_cpu(seconds)) {
    models = {};  // release them before the GPU's are opened
    return open_models(f, f.engine.device, facts.bytes);
  }
  models.cpu_by_prediction = !rates.empty();
  if (models.cpu_by_prediction && !f.engine.quiet)
    log_info("using the CPU: {} (use the GPU with --device cuda)",
             wanted == plan::AutoDevice::cpu
                 ? "the resumed run used it"
                 : fmt::format("it needs about {}, less than starting the GPU", format_duration(seconds)));
  return models;
}

std::vector<jobs::ScoredModel> scored_models(const Models& models, bool all_scores) {
  std::vector<jobs::ScoredModel> scored;
  for (size_t m = 0; m < models.all.size(); ++m) {
    scored.push_back({models.all[m], models.names[m]});
    if (all_scores && models.all[m]->kind() == ModelKind::tagger)
      log_warning("--all-scores: no effect for {}, whose entities always have scores", models.given[m]);
  }
  return scored;
}

std::string json_text(const std::vector<std::string>& values) {
  std::string out = "[";
  for (const std::string& value : values) {
    if (out.size() > 1) out += ",";
    rows::append_json_string(out, value);
  }
  return out + "]";
}

// Settings that change the output rows, by flag.
std::map<std::string, std::string> output_settings(const ScoreFlags& f, rows::OutputFormat format) {
  std::map<std::string, std::string> options = {{"format", f.format},
                                                {"output-format", output_format_name(format)},
                                                {"text-column", f.text_column},
                                                {"on-error", f.on_error},
                                                {"all-scores", f.all_scores ? "yes" : "no"},
                                                {"long-text", engine_settings().find("long_text")->value.get(f.engine)},
                                                {"max-length", std::to_string(f.engine.max_length)}};
  if (!f.pair_column.empty()) options["pair-column"] = f.pair_column;
  if (const auto zero_shot = f.zero_shot.read()) {
    options["labels"] = json_text(zero_shot->labels);
    options["template"] = zero_shot->text_template;
    options["multi-label"] = zero_shot->multi_label ? "yes" : "no";
  }
  if (const auto entities = f.entities.read()) {
    options["entities"] = json_text(entities->labels);
    options["threshold"] = fmt::format("{}", entities->threshold);
    options["nested"] = entities->nested ? "yes" : "no";
  }
  if (!f.engine.adapter.empty())
    options["adapter"] = std::filesystem::absolute(find_model(f.engine.adapter)).lexically_normal().string();
  if (!f.dialect.delimiter.empty()) options["delimiter"] = f.dialect.delimiter;
  if (f.dialect.no_quotes) options["no-quotes"] = "yes";
  return options;
}

rows::RunIdentity identity_of(const ScoreFlags& f, const Models& models, rows::OutputFormat format) {
  rows::RunIdentity id;
  id.inputs = f.inputs;
  id.options = output_settings(f, format);
  id.may_change["on-error"] = "stop";  // such a run has written no bad rows
  std::string precisions;
  for (size_t m = 0; m < models.all.size(); ++m) {
    const Scorer& model = *models.all[m];
    const std::string named = models.names[m].empty() ? "" : models.names[m] + "=";
    id.model += (m > 0 ? ", " : "") + named;
    const bool rules = model.kind() == ModelKind::rules;
    id.model += rules ? model.model() : std::filesystem::absolute(model.model()).string();
    if (rules) continue;
    for (auto& file : hub::model_files(model.model())) id.model_files.push_back(std::move(file));
    if (!f.engine.adapter.empty())
      for (auto& file : hub::model_files(find_model(f.engine.adapter))) id.model_files.push_back(std::move(file));
    precisions += (precisions.empty() ? "" : ", ") + model.precision();
  }
  if (!precisions.empty()) id.options["precision"] = precisions;
  if (models.cpu_by_prediction) id.options["device"] = "cpu";  // auto keeps the CPU on resume
  return id;
}

rows::RowReaderOptions reading_of(const ScoreFlags& f) {
  rows::RowReaderOptions reading;
  reading.format = rows::parse_row_format(f.format);
  reading.text_column = f.text_column;
  reading.pair_column = f.pair_column;
  f.dialect.apply(reading);
  return reading;
}

rows::OutputFormat output_format(const ScoreFlags& f, const rows::RowReader& reader) {
  return f.output_format == "auto" ? output_format_of(f.output, reader.schema().format)
                                   : rows::parse_output_format(f.output_format);
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

// A shard that was started on another kind of device starts again: the rows would not match.
std::unique_ptr<jobs::ScoreFile> open_file(const ScoreFlags& f, const Models& models, rows::OutputFormat format,
                                           rows::RowReader& reader, jobs::ScoredRows& scored, bool is_shard) {
  rows::RowOutputOptions options;
  options.resume = f.resume;
  options.notes_new_run = !is_shard && !f.engine.quiet;  // shards always resume
  options.checkpoint_seconds = f.checkpoint_seconds;
  options.stop = &stop_requested();
  const auto open = [&] {
    return std::make_unique<jobs::ScoreFile>(f.output, identity_of(f, models, format), options, reader, scored);
  };
  try {
    return open();
  } catch (const Error& error) {
    if (!is_shard || !f.resume || error.code() != ErrorCode::usage) throw;
  }
  options.resume = false;
  return open();
}

// Observes a run for --trace; does nothing without it.
class RunObserver {
 public:
  RunObserver(const ScoreFlags& f, const Models& models) : flags_(f), models_(models) {
    if (f.engine.trace.empty()) return;
    if (models.device() == device::DeviceKind::cuda) card_.emplace(models.pci_bus_id());
    others_.emplace();
  }
  void write_trace(const engine::RowReport& report, double load_seconds) {
    if (!others_) return;
    jobs::RunRecord record = jobs::make_record("score", *models_.all[0], report.all, load_seconds);
    record.inputs = flags_.inputs;
    record.output = flags_.output;
    record.others = others_->load().text();
    if (card_) record.card = card_->stop();
    flags_.engine.write_trace(to_json(record));
  }

 private:
  const ScoreFlags& flags_;
  const Models& models_;
  std::optional<jobs::CardWatch> card_;
  std::optional<monitor::OtherProcesses> others_;
};

// `part`: part of a shard, or null.
int score_rows(const ScoreFlags& f, const rows::RowReaderOptions& reading, jobs::ShardPart* part) {
  rows::RowReader reader(f.inputs, reading);
  const int64_t opened = now_ns();
  const Models models = open_models(f, reader);
  const double load_seconds = seconds_since(opened);
  if (!f.pair_column.empty()) {
    for (const auto& model : models.all) {
      if (auto problem = model->why_no_pairs()) throw *problem;
    }
  }

  const rows::OutputFormat format = output_format(f, reader);
  const jobs::BadRows bad_rows = parse_on_error(f.on_error);
  jobs::ScoredRows scored(scored_models(models, f.all_scores), reader.schema(), format, f.all_scores);
  stop_on_signals();  // nothing to save or remove before this point
  const auto file = open_file(f, models, format, reader, scored, part != nullptr);
  rows::RowOutput& output = file->output();
  std::map<std::string, int64_t>& counters = file->counters();
  if (file->resumed()) log_info("resuming after row {}", format_count(file->resumed()->position.rows));
  const bool watched = f.output == "-";  // stdout: flush rows immediately
  const auto sink = [&](engine::ScoredChunk& chunk) {
    file->write(chunk, bad_rows);
    if (watched) output.flush();
  };

  Progress progress("scoring", STDERR_FILENO, f.engine.quiet);
  LiveRun live("score", models.all);
  const int64_t started = now_ns();
  const auto on_progress = [&](const engine::PipelineStats& now) {
    const auto total = static_cast<double>(reader.bytes_total());
    live.update(now, total > 0 ? std::optional(static_cast<double>(now.file_bytes) / total) : std::nullopt);
    const double rate = static_cast<double>(now.rows) / std::max(1e-9, seconds_since(started));
    progress.update(
        {static_cast<double>(now.file_bytes), static_cast<double>(std::max<int64_t>(0, reader.bytes_total())),
         fmt::format("{} · {}/s", format_count(now.rows, "row"), format_count(static_cast<int64_t>(rate), "row"))});
  };
  engine::PipelineOptions options;
  options.stop = &stop_requested();
  options.repeated_bytes = f.cache.bytes();
  options.tokenizer_threads = f.tokenizer_threads == 0 && models.device() == device::DeviceKind::null
                                  ? f.engine.threads
                                  : f.tokenizer_threads;  // they are VADER's threads
  RunObserver observer(f, models);
  engine::RowReport report;
  bool interrupted = false;
  try {
    report = engine::score_rows(models.all, reader, sink, on_progress, options);
    progress.finish();
    interrupted = stop_requested();
    if (interrupted)
      output.suspend();
    else
      output.commit();  // before other writes that may fail
  } catch (const Error& error) {
    if (error.code() != ErrorCode::cannot_write || !output.resumable() || part != nullptr) throw;
    stop_at_write_error(error, output);
  }
  if (part != nullptr && !interrupted) part->publish(counters["rows"], counters["bad rows"]);
  observer.write_trace(report, load_seconds);
  if (interrupted) {
    const std::string kept = output.kept_rows().string();
    fail(ErrorCode::interrupted, "interrupted after {}{}", format_count(counters["rows"], "row"),
         part != nullptr      ? "; repeat the command to continue"
         : output.resumable() ? "; repeat the command with --resume to continue"
         : !kept.empty()      ? "; the rows are in " + kept + " (a pipe cannot be resumed)"
                              : "");
  }
  counters["blank lines"] = reader.blank_lines();
  const Summary summary = summarize(models.all, models.names, report, counters, load_seconds);
  if (!f.engine.quiet) put_stderr(summary.text());
  if (!f.summary_json.empty()) summary.write_json(f.summary_json);
  return 0;
}

// The job described by these flags, in the folder of -o.
jobs::ShardJob plan_shards(const ScoreFlags& f, const rows::RowReaderOptions& reading, int64_t count) {
  jobs::ShardFacts facts;
  facts.count = count;
  std::vector<std::string> names;
  for (const std::string& input : f.inputs)
    names.push_back(std::filesystem::absolute(input).lexically_normal().string());
  const rows::RowReader reader(names, reading);  // checks that all exist and have one format
  for (const std::string& name : names) facts.inputs.emplace_back(name, jobs::input_signature(name));
  Models models;
  for (const std::string& given : f.models) add_model(models, given, f.models.size() > 1);
  std::vector<std::string> named;  // absolute path: shards may run from other directories
  for (size_t m = 0; m < models.given.size(); ++m) {
    EngineFlags flags = f.engine;
    flags.model = models.given[m];
    named.push_back((models.names[m].empty() ? "" : models.names[m] + "=") +
                    (std::filesystem::is_directory(flags.model)
                         ? std::filesystem::absolute(flags.model).lexically_normal().string()
                         : flags.model));
    facts.model += (m > 0 ? "," : "") + (models.names[m].empty() ? "" : models.names[m] + "=");
    const std::string dir = find_model(flags.model);
    facts.model += dir.empty() ? "rules" : jobs::model_digest(dir);
    if (!f.engine.adapter.empty()) facts.model += "+" + jobs::model_digest(find_model(f.engine.adapter));
  }
  const rows::OutputFormat format = output_format(f, reader);
  facts.options = output_settings(f, format);
  facts.options["precision"] = engine_settings().find("precision")->value.get(f.engine);
  return plan_job(f.output, fmt::format("{}", fmt::join(named, ",")), facts, reading, output_format_name(format));
}

int run_shard(ScoreFlags f) {
  if (f.output == "-") fail(ErrorCode::usage, "--shard {}: requires an output directory (-o DIR)", f.shard);
  if (f.resume) fail(ErrorCode::usage, "--resume: not needed with --shard, which resumes automatically; remove it");
  for (const std::string& input : f.inputs)
    if (!io::is_rereadable(input))
      fail(ErrorCode::usage, "--shard {}: {} is not a file and cannot be divided", f.shard, input);
  std::error_code ignored;
  if (std::filesystem::exists(f.output) && !std::filesystem::is_directory(f.output, ignored))
    fail(ErrorCode::usage, "-o {}: is a file; --shard requires a directory", f.output);
  const auto there = jobs::find_job(f.output);
  const jobs::ShardChoice choice = jobs::read_shard(f.shard, env, there.has_value());
  const int64_t count = choice.count ? *choice.count : there->facts.count;
  if (choice.index >= count)
    fail(ErrorCode::usage, "--shard {}: shard {} is out of range, must be below {}", f.shard, choice.index, count);
  const rows::RowReaderOptions reading = reading_of(f);
  const jobs::ShardJob job = plan_shards(f, reading, count);
  for (size_t i = 0; i < f.inputs.size(); ++i) f.inputs[i] = job.facts.inputs[i].first;
  f.output_format = job.facts.options.at("output-format");
  jobs::ShardPart part(job, choice.index);
  const std::string name = (std::filesystem::path(f.output) / part.shard().part).string();
  if (part.is_done()) {
    if (!f.engine.quiet) log_info("{} already exists", name);
    return 0;
  }
  f.output = part.draft();
  f.resume = part.resumable();
  try {
    return score_rows(f, job.reading(reading, part.shard()), &part);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::interrupted) part.note_failure(error);
    throw;
  }
}

int run_score(const ScoreFlags& given) {
  ScoreFlags f = given;
  if (f.inputs.empty()) {
    if (is_terminal(STDIN_FILENO))
      fail(ErrorCode::usage, "brim score: no input; name a file of texts or pipe texts in (see `brim score --help`)");
    f.inputs = {"-"};
  }
  if (f.tokenizer_threads < 0)
    fail(ErrorCode::usage, "--tokenizer-threads {}: must not be negative", f.tokenizer_threads);
  (void)parse_on_error(f.on_error);
  (void)f.zero_shot.read();
  (void)f.entities.read();
  (void)f.cache.bytes();
  if (!(f.checkpoint_seconds >= 0))
    fail(ErrorCode::usage, "--checkpoint-seconds {}: must not be negative", f.checkpoint_seconds);
  if (!f.engine.trace.empty() && f.models.size() > 1)
    fail(ErrorCode::usage, "--trace: supports one model; run each --model separately");
  f.engine.start_trace();
  if (f.summary_json == "-" && f.output == "-")
    fail(ErrorCode::usage,
         "--summary-json -: stdout is used for the labels; set -o FILE or write the summary to a file");
  if (!f.summary_json.empty() && f.summary_json != "-") io::require_writable(f.summary_json);
  rows::refuse_output_over_input(f.output, f.inputs);
  if (!f.shard.empty()) return run_shard(f);
  return score_rows(f, reading_of(f), nullptr);
}

}  // namespace

std::function<int()> setup_score(CLI::App& app) {
  auto f = std::make_shared<ScoreFlags>();
  app.add_option("input", f->inputs, "files of texts (txt, csv, tsv, jsonl; also .gz and .zst); -: stdin");
  app.add_option("-o,--output", f->output, "output file; -: stdout")->capture_default_str();
  app.add_option("--text-column", f->text_column, "column or key of the text (default: text, else the only one)");
  app.add_option("--pair-column", f->pair_column, "column or key of the second text of a pair (NLI, rerankers)");
  app.add_option("--format", f->format, "auto, txt, csv, tsv or jsonl")->capture_default_str();
  f->dialect.add_to(app);
  app.add_option("--output-format", f->output_format, "auto, csv, tsv or jsonl")->capture_default_str();
  app.add_flag("--all-scores", f->all_scores, "write the scores of all labels, not only the best one");
  app.add_option("--on-error", f->on_error, "what to do with bad rows: stop, skip or null")->capture_default_str();
  app.add_flag("--resume", f->resume, "continue an interrupted run of the same command");
  app.add_option("--shard", f->shard,
                 "score shard I of N into its own file in the directory -o; auto or auto/N: I from a Slurm array or a "
                 "Kubernetes job; status, missing (as sbatch --array expects) or check: report on the job in -o");
  app.add_option("--tokenizer-threads", f->tokenizer_threads, "tokenizer threads; 0: chosen by device and cores")
      ->capture_default_str();
  app.add_option("--checkpoint-seconds", f->checkpoint_seconds,
                 "seconds between saved positions for --resume; work since the last one is repeated")
      ->capture_default_str();
  app.add_option("--summary-json", f->summary_json, "write the summary to this file; -: stdout");
  app.add_option("--config", f->config,
                 "YAML file with these flags as keys; command line and environment take precedence");
  f->zero_shot.add_to(app);
  f->entities.add_to(app, true);
  f->cache.add_to(app);
  f->engine.add_to(app, true, &f->models);
  return [f, &app] {
    if (!f->config.empty()) apply_config(app, f->config);
    if (is_shard_report(f->shard)) {
      if (!f->inputs.empty()) fail(ErrorCode::usage, "--shard {}: takes no input file", f->shard);
      return report_shards(f->shard, f->output);
    }
    warn_of_rules_by_default(app);
    return run_score(*f);
  };
}

}  // namespace brim::cli
