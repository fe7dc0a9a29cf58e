// SPDX-License-Identifier: Apache-2.0
#include "jobs/shard_run.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/settings.h"
#include "engine/scorer_access.h"
#include "engine/zero_shot.h"
#include "hub/gliner_config.h"
#include "hub/model_dir.h"
#include "hub/model_files.h"
#include "jobs/score_file.h"

namespace brim::jobs {
namespace {

// Options of the output, as recorded by the job. Absent ones have their defaults.
class RecordedOptions {
 public:
  explicit RecordedOptions(const std::map<std::string, std::string>& options) : options_(options) {}
  std::string text(const std::string& name, const std::string& otherwise = "") const {
    const auto found = options_.find(name);
    return found == options_.end() ? otherwise : found->second;
  }
  bool is_yes(const std::string& name) const { return text(name) == "yes"; }
  bool has(const std::string& name) const { return options_.contains(name); }
  std::vector<std::string> list(const std::string& name) const { return nlohmann::json::parse(text(name)); }

 private:
  const std::map<std::string, std::string>& options_;
};

rows::RowReaderOptions reading_of(const RecordedOptions& options) {
  rows::RowReaderOptions reading;
  reading.format = rows::parse_row_format(options.text("format", "auto"));
  reading.text_column = options.text("text-column");
  reading.pair_column = options.text("pair-column");
  if (options.has("delimiter")) reading.delimiter = rows::parse_delimiter(options.text("delimiter")).value_or('\0');
  reading.quotes = !options.is_yes("no-quotes");
  return reading;
}

BadRows bad_rows_of(const std::string& name) {
  return name == "skip" ? BadRows::skip : name == "null" ? BadRows::null : BadRows::stop;
}

LongText long_text_of(const std::string& name) {
  if (name == "window-mean") return LongText::window_mean;
  if (name == "window-max") return LongText::window_max;
  return name == "error" ? LongText::error : LongText::truncate;
}

bool is_nli(const hub::ModelFiles& files) {
  return engine::find_nli_classes(hub::open_model(files).config.id2label).has_value();
}

// Directory of the adapter; empty if there is none.
std::string adapter_of(const RecordedOptions& recorded) {
  return recorded.has("adapter") ? find_model(recorded.text("adapter")) : "";
}

struct NamedModel {
  std::string name, model;  // the name is empty for a single model
};

// Parses "a=models/a,b=models/b", or the name or directory of one model.
std::vector<NamedModel> models_of(const std::string& recorded) {
  std::vector<NamedModel> models;
  for (size_t at = 0; at <= recorded.size();) {
    const size_t end = std::min(recorded.find(',', at), recorded.size());
    const std::string given = recorded.substr(at, end - at);
    at = end + 1;
    const size_t equals = given.find('=');
    const bool named = equals != std::string::npos && equals > 0 && equals < given.find('/');
    models.push_back(named ? NamedModel{given.substr(0, equals), given.substr(equals + 1)} : NamedModel{"", given});
  }
  return models;
}

std::vector<ScorerOptions> options_of(const std::vector<NamedModel>& models, const RecordedOptions& recorded,
                                      int threads) {
  ScorerOptions shared;
  shared.precision = recorded.text("precision", "auto");
  shared.long_text = long_text_of(recorded.text("long-text"));
  shared.max_length = std::stoll(recorded.text("max-length", "0"));
  shared.threads = threads;
  std::vector<ScorerOptions> all;
  for (const NamedModel& named : models) {
    ScorerOptions& options = all.emplace_back(shared);
    const std::string dir = find_model(named.model);
    options.model = dir.empty() ? "vader" : dir;
    options.adapter = adapter_of(recorded);
    if (recorded.has("labels") && !dir.empty() && is_nli({dir, options.adapter}))
      options.zero_shot = ZeroShot{recorded.list("labels"), recorded.text("template"), recorded.is_yes("multi-label")};
    if (recorded.has("entities") && !dir.empty() && hub::is_gliner(dir))
      options.entities =
          EntityLabels{recorded.list("entities"), std::stof(recorded.text("threshold")), recorded.is_yes("nested")};
  }
  return all;
}

// The job again, from the files of today: throws usage if they differ from those it was planned with.
ShardJob checked_job(const ShardJob& job, const std::vector<NamedModel>& models, const rows::RowReaderOptions& reading,
                     const std::string& format) {
  ShardFacts facts = job.facts;
  for (auto& [path, signature] : facts.inputs) signature = input_signature(path);
  facts.model.clear();
  for (const NamedModel& named : models) {
    const std::string dir = find_model(named.model);
    facts.model += (facts.model.empty() ? "" : ",") + (named.name.empty() ? "" : named.name + "=");
    facts.model += dir.empty() ? "rules" : model_digest(dir);
    if (const std::string adapter = adapter_of(RecordedOptions(facts.options)); !adapter.empty())
      facts.model += "+" + model_digest(adapter);
  }
  return plan_job(job.folder, job.model_name, facts, reading, format);
}

// As that of `brim score --shard`, so that either continues the other's drafts.
rows::RunIdentity identity_of(const ShardJob& job, const std::vector<NamedModel>& models,
                              const std::vector<std::shared_ptr<Scorer>>& scorers) {
  rows::RunIdentity id;
  for (const auto& input : job.facts.inputs) id.inputs.push_back(input.first);
  id.options = job.facts.options;
  id.options.erase("precision");
  id.may_change["on-error"] = "stop";
  std::string precisions;
  for (size_t m = 0; m < scorers.size(); ++m) {
    const bool rules = scorers[m]->kind() == ModelKind::rules;
    id.model += (m > 0 ? ", " : "") + (models[m].name.empty() ? "" : models[m].name + "=");
    id.model += rules ? scorers[m]->model() : std::filesystem::absolute(scorers[m]->model()).string();
    if (rules) continue;
    for (auto& file : hub::model_files(scorers[m]->model())) id.model_files.push_back(std::move(file));
    if (const std::string adapter = adapter_of(RecordedOptions(job.facts.options)); !adapter.empty())
      for (auto& file : hub::model_files(adapter)) id.model_files.push_back(std::move(file));
    precisions += (precisions.empty() ? "" : ", ") + scorers[m]->precision();
  }
  if (!precisions.empty()) id.options["precision"] = precisions;
  return id;
}

// A draft of a run with other options starts again.
std::unique_ptr<ScoreFile> open_draft(const ShardPart& part, const rows::RunIdentity& identity, rows::RowReader& reader,
                                      ScoredRows& scored, const std::atomic<bool>& stop) {
  rows::RowOutputOptions options;
  options.resume = part.resumable();
  options.notes_new_run = false;
  options.stop = &stop;
  try {
    return std::make_unique<ScoreFile>(part.draft(), identity, options, reader, scored);
  } catch (const Error& error) {
    if (!options.resume || error.code() != ErrorCode::usage) throw;
  }
  options.resume = false;
  return std::make_unique<ScoreFile>(part.draft(), identity, options, reader, scored);
}

void score_part(const ShardJob& job, const rows::RowReaderOptions& reading, const std::vector<NamedModel>& models,
                int threads, ShardPart& part, const std::atomic<bool>& stop) {
  constexpr int64_t kRepeatedBytes = 64 << 20;
  const RecordedOptions recorded(job.facts.options);
  std::vector<std::string> inputs;
  for (const auto& input : job.facts.inputs) inputs.push_back(input.first);
  rows::RowReader reader(inputs, job.reading(reading, part.shard()));
  const auto scorers = open_together(options_of(models, recorded, threads));
  std::vector<Scorer*> all;
  std::vector<ScoredModel> scored_models;
  for (size_t m = 0; m < scorers.size(); ++m) {
    if (!reading.pair_column.empty())
      if (auto problem = scorers[m]->why_no_pairs()) throw *problem;
    all.push_back(scorers[m].get());
    scored_models.push_back({scorers[m].get(), models[m].name});
  }
  ScoredRows scored(scored_models, reader.schema(), rows::parse_output_format(recorded.text("output-format")),
                    recorded.is_yes("all-scores"));
  const auto file = open_draft(part, identity_of(job, models, scorers), reader, scored, stop);
  const BadRows bad_rows = bad_rows_of(recorded.text("on-error"));
  engine::PipelineOptions options;
  options.stop = &stop;
  options.repeated_bytes = kRepeatedBytes;
  engine::score_rows(
      all, reader, [&](engine::ScoredChunk& chunk) { file->write(chunk, bad_rows); }, {}, options);
  if (stop) {
    file->output().suspend();
    fail(ErrorCode::interrupted, Remedy{"run the shard again to continue"}, "interrupted");
  }
  file->output().commit();
  part.publish(file->counters()["rows"], file->counters()["bad rows"]);
}

}  // namespace

void run_shard(const ShardJob& job, int64_t index, int threads, const std::atomic<bool>& stop) {
  if (index < 0 || index >= static_cast<int64_t>(job.shards.size()))
    fail(ErrorCode::usage, "shard {} is out of range, must be below {}", index, job.shards.size());
  if (!job.by_bytes)
    fail(ErrorCode::usage, Remedy{"run its shards with brim.bulk"}, "{}: a job of Parquet files", job.folder.string());
  const RecordedOptions recorded(job.facts.options);
  const std::vector<NamedModel> models = models_of(job.model_name);
  const rows::RowReaderOptions reading = reading_of(recorded);
  const ShardJob checked = checked_job(job, models, reading, recorded.text("output-format"));
  ShardPart part(checked, index);
  if (part.is_done()) return;
  try {
    score_part(checked, reading, models, threads, part, stop);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::interrupted) part.note_failure(error);
    throw;
  }
}

}  // namespace brim::jobs
