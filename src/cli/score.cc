// SPDX-License-Identifier: Apache-2.0
// brim score: labels the texts of files or stdin, or one shard of them. score_run.h scores the rows.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/config_file.h"
#include "cli/score_flags.h"
#include "cli/score_run.h"
#include "cli/verb.h"
#include "io/atomic_file.h"
#include "jobs/shard_run.h"

namespace brim::cli {

namespace {

// The job described by these flags, in the folder of -o.
jobs::ShardJob plan_job(const ScoreFlags& f, const rows::RowReaderOptions& reading, int64_t count) {
  jobs::ShardPlan plan{
      f.output, f.inputs, jobs::name_models(f.models), f.adapter_dir(), f.output_settings(), f.output_format,
      reading,  count};
  plan.options["precision"] = engine_settings().find("precision")->value.get(f.engine);
  return plan_shards(plan);
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
  const rows::RowReaderOptions reading = f.reading();
  const jobs::ShardJob job = plan_job(f, reading, count);
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
  f.check();
  f.engine.start_trace();
  if (!f.shard.empty()) return run_shard(f);
  return score_rows(f, f.reading(), nullptr);
}

}  // namespace

std::function<int()> setup_score(CLI::App& app) {
  auto f = std::make_shared<ScoreFlags>();
  f->add_to(app);
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
