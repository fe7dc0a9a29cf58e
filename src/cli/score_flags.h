// SPDX-License-Identifier: Apache-2.0
// Flags of `brim score`, and the settings of readers, outputs and scorers that follow from them. Does not score.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "cli/engine_flags.h"
#include "cli/entity_flags.h"
#include "cli/zero_shot_flags.h"
#include "jobs/score_file.h"
#include "jobs/score_models.h"

namespace brim::cli {

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

  void add_to(CLI::App& app);
  void check() const;  // throws usage for flags that contradict each other
  jobs::BadRows bad_rows() const;
  rows::RowReaderOptions reading() const;
  rows::OutputFormat written_as(const rows::RowReader& reader) const;
  std::string adapter_dir() const;  // empty without an adapter
  // Settings that change the output rows, by flag, except for the output format.
  std::map<std::string, std::string> output_settings() const;
  std::vector<ScorerOptions> scorer_options(const std::vector<jobs::NamedModel>& models, int64_t input_bytes) const;
};

}  // namespace brim::cli
