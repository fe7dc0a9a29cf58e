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
#include "jobs/score_models.h"

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
  facts.model = digest_of(models, adapter_of(RecordedOptions(facts.options)));
  return plan_job(job.folder, job.model_name, facts, reading, format);
}

// As that of `brim score --shard`, so that either continues the other's drafts.
rows::RunIdentity identity_of(const ShardJob& job, const std::vector<std::string>& inputs, const ScoreModels& models) {
  std::map<std::string, std::string> options = job.facts.options;
  options.erase("precision");
  return run_identity(inputs, std::move(options), models, adapter_of(RecordedOptions(job.facts.options)));
}

void score_part(const ShardJob& job, const rows::RowReaderOptions& reading, const std::vector<NamedModel>& models,
                int threads, ShardPart& part, const std::atomic<bool>& stop) {
  constexpr int64_t kRepeatedBytes = 64 << 20;
  const RecordedOptions recorded(job.facts.options);
  std::vector<std::string> inputs;
  for (const auto& input : job.facts.inputs) inputs.push_back(input.first);
  rows::RowReader reader(inputs, job.reading(reading, part.shard()));
  const ScoreModels opened{models, open_together(options_of(models, recorded, threads))};
  const std::vector<Scorer*> all = opened.all();
  std::vector<ScoredModel> scored_models;
  for (size_t m = 0; m < all.size(); ++m) {
    if (!reading.pair_column.empty())
      if (auto problem = all[m]->why_no_pairs()) throw *problem;
    scored_models.push_back({all[m], models[m].name});
  }
  ScoredRows scored(scored_models, reader.schema(), rows::parse_output_format(recorded.text("output-format")),
                    recorded.is_yes("all-scores"));
  rows::RowOutputOptions output;
  output.resume = part.resumable();
  output.notes_new_run = false;
  output.stop = &stop;
  const auto file = open_score_file(part.draft(), identity_of(job, inputs, opened), output, reader, scored, true);
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

ShardJob plan_shards(const ShardPlan& plan) {
  ShardFacts facts;
  facts.count = plan.count;
  facts.options = plan.options;
  std::vector<std::string> names;
  for (const std::string& input : plan.inputs)
    names.push_back(std::filesystem::absolute(input).lexically_normal().string());
  const rows::RowReader reader(names, plan.reading);  // checks that all exist and have one format
  for (const std::string& name : names) facts.inputs.emplace_back(name, input_signature(name));
  facts.model = digest_of(plan.models, plan.adapter);
  const rows::OutputFormat format = plan.output_format == "auto"
                                        ? output_format_of(plan.folder.string(), reader.schema().format)
                                        : rows::parse_output_format(plan.output_format);
  facts.options["output-format"] = output_format_name(format);
  return plan_job(plan.folder, model_list(plan.models), facts, plan.reading, output_format_name(format));
}

void run_shard(const ShardJob& job, int64_t index, int threads, const std::atomic<bool>& stop) {
  if (index < 0 || index >= static_cast<int64_t>(job.shards.size()))
    fail(ErrorCode::usage, "shard {} is out of range, must be below {}", index, job.shards.size());
  if (!job.by_bytes)
    fail(ErrorCode::usage, Remedy{"run its shards with brim.bulk"}, "{}: a job of Parquet files", job.folder.string());
  const RecordedOptions recorded(job.facts.options);
  const std::vector<NamedModel> models = read_model_list(job.model_name);
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
