// SPDX-License-Identifier: Apache-2.0
// brim score: labels the texts of files or stdin. The pipeline is in engine/pipeline.h; rows are read and written in
// src/rows.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/units.h"
#include "cli/config_file.h"
#include "cli/engine_flags.h"
#include "cli/live_run.h"
#include "cli/summary.h"
#include "cli/verb.h"
#include "device/built_with_cuda.h"
#include "engine/label.h"
#include "engine/pipeline.h"
#include "hub/model_dir.h"
#include "io/atomic_file.h"
#include "jobs/doctor_trace.h"
#include "jobs/shards.h"
#include "monitor/host.h"
#include "plan/auto_device.h"
#include "rows/file_checks.h"
#include "rows/resume.h"
#include "rows/row_writer.h"

namespace brim::cli {

using engine::Engine;

namespace {

struct ScoreFlags {
  std::vector<std::string> inputs, models;
  std::string output = "-", format = "auto", output_format = "auto", text_column, pair_column, on_error = "stop",
              summary_json, config, shard;
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

// Models of a run in the given order. Names are prefixes of their columns; a single model needs none.
struct Models {
  std::vector<std::string> names, given;
  std::vector<std::unique_ptr<engine::TextModel>> owned;
  std::vector<engine::TextModel*> all;
  bool cpu_by_prediction = false;  // on the CPU because of the prediction or of the resumed run

  bool per_token(size_t m) const { return is_per_token(all[m]->output()); }
  // The first model that computes on a device, or the first one.
  engine::TextModel& main() const {
    const auto found =
        std::find_if(all.begin(), all.end(), [](engine::TextModel* model) { return model->engine() != nullptr; });
    return found == all.end() ? *all.front() : **found;
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

Models open_models(const ScoreFlags& f, const device::DeviceChoice& device, int64_t input_bytes) {
  Models models;
  for (const std::string& given : f.models) add_model(models, given, f.models.size() > 1);
  std::vector<engine::EngineOptions> options;
  std::vector<bool> vader;
  for (const std::string& model : models.given) {
    EngineFlags flags = f.engine;
    flags.model = model;
    flags.device = device;
    vader.push_back(flags.is_vader());
    if (flags.is_vader()) continue;
    options.push_back(flags.options());
    options.back().input_bytes = std::max<int64_t>(0, input_bytes);
  }
  std::vector<std::unique_ptr<Engine>> engines;
  if (options.size() == 1)
    engines.push_back(Engine::open(options[0]));
  else
    engines = Engine::open_together(options);
  auto next = engines.begin();
  for (const bool rules : vader) {
    if (rules)
      models.owned.push_back(std::make_unique<engine::RulesModel>());
    else
      models.owned.push_back(std::move(*next++));
    models.all.push_back(models.owned.back().get());
  }
  return models;
}

plan::AutoFacts auto_facts(const ScoreFlags& f, const rows::RowReader& reader) {
  plan::AutoFacts facts;
  facts.free = f.engine.device == device::DeviceChoice() && f.engine.precision == plan::PrecisionRequest() &&
               f.engine.memory_limit.text == plan::MemoryLimit().text && f.shard.empty();
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
    const Engine* engine = models.main().engine();
    models.cpu_by_prediction =
        facts.on_cpu.value_or(false) && engine != nullptr && engine->device().kind() == device::DeviceKind::cpu;
    return models;
  }
  Models models;
  try {
    models = open_models(f, {device::DeviceChoice::Kind::cpu}, facts.bytes);
  } catch (const Error& error) {
    if (wanted == plan::AutoDevice::cpu || error.code() != ErrorCode::does_not_fit) throw;
    return open_models(f, f.engine.device, facts.bytes);
  }
  std::vector<double> rates;
  for (engine::TextModel* model : models.all)
    if (const Engine* engine = model->engine()) rates.push_back(engine->plan().tokens_per_second);
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

std::vector<rows::ResultColumns> result_columns(const Models& models, bool all_scores) {
  std::vector<rows::ResultColumns> columns;
  for (size_t m = 0; m < models.all.size(); ++m) {
    rows::ResultColumns& added = columns.emplace_back();
    added.name = models.names[m];
    added.entities = models.per_token(m);
    if (!all_scores) continue;
    if (added.entities) {
      log_warning("--all-scores: no effect for {}, whose entities always have scores", models.given[m]);
    } else {
      added.score_names = models.all[m]->score_names();
      added.scores_at_top = models.all[m]->engine() == nullptr;  // rule scores are not label scores
    }
  }
  return columns;
}

// Names of models and labels may combine to duplicate columns.
void require_distinct(const std::vector<std::string>& columns) {
  for (auto it = columns.begin(); it != columns.end(); ++it)
    if (std::find(columns.begin(), it, *it) != it)
      fail(ErrorCode::usage, "duplicate output column {}; rename a model with --model NAME=MODEL", *it);
}

// Formats scored chunks as rows.
class RowSink {
 public:
  // `counters` must outlive `output`, which also stores them at its end.
  RowSink(const ScoreFlags& flags, const Models& models, const rows::RowReader& reader, rows::RowWriter& writer,
          rows::RowOutput& output, std::map<std::string, int64_t>& counters)
      : models_(models),
        reader_(reader),
        writer_(writer),
        output_(output),
        counters_(counters),
        on_error_(parse_on_error(flags.on_error)),
        all_scores_(flags.all_scores),
        watched_(flags.output == "-"),
        results_(models.all.size()),
        spans_(models.all.size()) {
    output_.keep_counters(&counters_);
    if (output_.resumed()) counters_ = output_.resumed()->counters;
  }

  void operator()(engine::ScoredChunk& chunk) {
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
  void bad_row(const engine::ScoredChunk& chunk, size_t row, const Error& error) {
    const std::string where = placed_error(reader_.inputs(), chunk.rows, row, error).what();
    if (on_error_ == OnError::stop) {
      --counters_["rows"];  // this row is not written
      throw Error(error.code(), where + "; continue with --on-error skip or null");
    }
    ++counters_["bad rows"];
    if (counters_["bad rows"] <= 3) log_warning("{}", where);
    if (on_error_ == OnError::null) writer_.null_row(bytes_, chunk.rows, row);
  }

  void good_row(const engine::ScoredChunk& chunk, size_t row) {
    for (size_t m = 0; m < results_.size(); ++m)
      results_[m] = models_.per_token(m) ? entities(chunk.of(m), row, m) : labelled(chunk.of(m), row, m);
    writer_.row(bytes_, chunk.rows, row, results_);
  }

  rows::RowResult entities(const engine::ChunkScores& found, size_t row, size_t m) {
    spans_[m].clear();
    for (const Entity& e : found.entities[row]) spans_[m].push_back({e.group, e.score, e.word, e.start, e.end});
    counters_[counter_name(models_.names[m], "entities")] += static_cast<int64_t>(spans_[m].size());
    return {.entities = spans_[m]};
  }

  rows::RowResult labelled(const engine::ChunkScores& found, size_t row, size_t m) {
    const std::span<const float> scores(&found.scores[row * static_cast<size_t>(found.width)],
                                        static_cast<size_t>(found.width));
    rows::RowResult result;
    const engine::Choice choice = models_.all[m]->choose(scores.data());
    result.label = models_.all[m]->labels()[static_cast<size_t>(choice.label)];
    result.score = choice.score;
    ++counters_[counter_name(models_.names[m], fmt::format("label {}", result.label))];
    if (all_scores_) result.scores = scores;
    return result;
  }

  const Models& models_;
  const rows::RowReader& reader_;
  rows::RowWriter& writer_;
  rows::RowOutput& output_;
  std::map<std::string, int64_t>& counters_;
  OnError on_error_;
  bool all_scores_;
  bool watched_;  // stdout: flush rows immediately
  std::string bytes_;
  std::vector<rows::RowResult> results_;  // by model, like the spans
  std::vector<std::vector<rows::EntitySpan>> spans_;
};

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
    Engine* engine = models.all[m]->engine();
    const std::string named = models.names[m].empty() ? "" : models.names[m] + "=";
    id.model += (m > 0 ? ", " : "") + named;
    id.model += engine == nullptr ? models.all[m]->name() : std::filesystem::absolute(engine->model_dir()).string();
    if (engine == nullptr) continue;
    for (auto& file : hub::model_files(engine->model_dir())) id.model_files.push_back(std::move(file));
    precisions += (precisions.empty() ? "" : ", ") + std::string(precision_name(engine->precision()));
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

  rows::RowWriterOptions writing;
  writing.format = output_format(f, reader);
  writing.results = result_columns(models, f.all_scores);
  rows::RowWriter writer(reader.schema(), writing);
  require_distinct(writer.added());
  rows::RowOutputOptions output_options;
  output_options.resume = f.resume;
  output_options.checkpoint_seconds = f.checkpoint_seconds;
  output_options.stop = &stop_requested();
  std::map<std::string, int64_t> counters;
  stop_on_signals();  // nothing to save or remove before this point
  std::optional<rows::RowOutput> opened_output;
  try {
    opened_output.emplace(f.output, identity_of(f, models, writing.format), output_options);
  } catch (const Error& error) {
    if (part == nullptr || !f.resume || error.code() != ErrorCode::usage) throw;
    output_options.resume = false;  // started on another kind of device: the rows would not match
    opened_output.emplace(f.output, identity_of(f, models, writing.format), output_options);
  }
  rows::RowOutput& output = *opened_output;
  if (output.resumed()) {
    reader.seek(output.resumed()->position);
    log_info("resuming after row {}", format_count(output.resumed()->position.rows));
  } else {
    std::string header;
    writer.header(header);
    output.write_header(header);
  }

  RowSink sink(f, models, reader, writer, output, counters);
  Progress progress("scoring", STDERR_FILENO, f.engine.quiet);
  LiveRun live("score", models.all);
  const int64_t started = now_ns();
  const auto on_progress = [&](const engine::PipelineStats& now) {
    live.update(now, reader.bytes_total() > 0
                         ? static_cast<double>(now.file_bytes) / static_cast<double>(reader.bytes_total())
                         : -1);
    const double rate = static_cast<double>(now.rows) / std::max(1e-9, seconds_since(started));
    progress.update(
        {static_cast<double>(now.file_bytes), static_cast<double>(std::max<int64_t>(0, reader.bytes_total())),
         fmt::format("{} · {}/s", format_count(now.rows, "row"), format_count(static_cast<int64_t>(rate), "row"))});
  };
  engine::PipelineOptions options;
  options.stop = &stop_requested();
  Engine* const engine = models.main().engine();
  options.tokenizer_threads = f.tokenizer_threads == 0 && engine == nullptr
                                  ? f.engine.threads
                                  : f.tokenizer_threads;  // they are VADER's threads
  std::optional<jobs::CardWatch> card;
  if (!f.engine.trace.empty() && engine != nullptr && engine->device().kind() == device::DeviceKind::cuda)
    card.emplace(engine->device().pci_bus_id());
  std::optional<monitor::OtherProcesses> others;
  if (!f.engine.trace.empty()) others.emplace();
  const engine::PipelineStats stats = run_pipeline(
      models.all, reader, [&](engine::ScoredChunk& chunk) { sink(chunk); }, on_progress, options);
  progress.finish();
  const bool interrupted = stop_requested();
  if (interrupted)
    output.suspend();
  else
    output.commit();  // before other writes that may fail
  if (part != nullptr && !interrupted) part->publish(counters["rows"], counters["bad rows"]);
  if (!f.engine.trace.empty()) {
    jobs::TracedRun record = jobs::make_record("score", models.main(), stats, load_seconds);
    record.inputs = f.inputs;
    record.output = f.output;
    record.others = others->load().text();
    if (card) record.card = card->stop();
    f.engine.write_trace(to_json(record));
  }
  if (interrupted) {
    const std::string kept = output.kept_rows().string();
    fail(ErrorCode::interrupted, "interrupted after {}{}", format_count(counters["rows"], "row"),
         part != nullptr      ? "; repeat the command to continue"
         : output.resumable() ? "; repeat the command with --resume to continue"
         : !kept.empty()      ? "; the rows are in " + kept + " (a pipe cannot be resumed)"
                              : "");
  }
  counters["blank lines"] = reader.blank_lines();
  const Summary summary = summarize(models.all, models.names, stats, counters, load_seconds);
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
    facts.model += flags.is_vader() ? "rules" : jobs::model_digest(flags.options().model_dir);
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
                 "Kubernetes job");
  app.add_option("--tokenizer-threads", f->tokenizer_threads, "tokenizer threads; 0: chosen by device and cores")
      ->capture_default_str();
  app.add_option("--checkpoint-seconds", f->checkpoint_seconds,
                 "seconds between saved positions for --resume; work since the last one is repeated")
      ->capture_default_str();
  app.add_option("--summary-json", f->summary_json, "write the summary to this file; -: stdout");
  app.add_option("--config", f->config,
                 "YAML file with these flags as keys; command line and environment take precedence");
  f->engine.add_to(app, true, &f->models);
  return [f, &app] {
    if (!f->config.empty()) apply_config(app, f->config);
    warn_of_rules_by_default(app);
    return run_score(*f);
  };
}

}  // namespace brim::cli
