// SPDX-License-Identifier: Apache-2.0
// Flags shared by all commands that open a model, and their conversion into scorers. Does not define flags of single
// commands.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/settings.h"
#include "brim/brim.h"
#include "hub/model_dir.h"
#include "plan/resolve.h"
#include "rows/row_reader.h"

namespace CLI {
class App;
}

namespace brim::cli {

struct EngineFlags : ScorerOptions {
  bool quiet = false;
  std::string trace;
  bool zero_shot_if_nli = false;  // zero_shot applies only to models with an entailment class

  // `models`: if --model may be repeated.
  void add_to(CLI::App& app, bool with_vader, std::vector<std::string>* models = nullptr);
  ScorerOptions scorer_options() const;  // with the model's directory
  std::shared_ptr<Scorer> open() const { return Scorer::open(scorer_options()); }
  void refuse_rules(std::string_view problem) const;  // throws usage for VADER
  void start_trace() const;
  void write_trace(const std::string& record = "") const;  // `record`: see jobs/doctor_trace.h
};

const SettingsTable<EngineFlags>& engine_settings();

// Warns if no model is given and the default model is not installed next to this program, so that VADER's rules are
// used.
void warn_of_rules_by_default(const CLI::App& verb);

// GPU_MIN_FREE_VRAM_MB; none if unset, 0, or if `device` resolves to the CPU.
LeaveFree leave_free_of_env(Device::Kind device);

// Dialect of csv and tsv inputs.
struct DialectFlags {
  std::string delimiter;
  bool no_quotes = false;

  void add_to(CLI::App& app);
  char character() const;  // 0: default of the format
  void apply(rows::RowReaderOptions& options) const {
    options.delimiter = character();
    options.quotes = !no_quotes;
  }
};

// Memory for the results of repeated texts in a file.
struct CacheFlag {
  std::string size = "64MiB";

  void add_to(CLI::App& app);
  int64_t bytes() const;  // throws usage
};

}  // namespace brim::cli
