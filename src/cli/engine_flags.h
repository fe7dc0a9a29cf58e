// SPDX-License-Identifier: Apache-2.0
// Flags shared by all commands that open a model, and their conversion into an Engine. Does not define flags of single
// commands.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/settings.h"
#include "engine/engine.h"
#include "hub/model_dir.h"
#include "plan/resolve.h"
#include "rows/row_reader.h"

namespace CLI {
class App;
}

namespace brim::cli {

struct EngineFlags {
  std::string model;
  device::DeviceChoice device;
  plan::PrecisionRequest precision;
  plan::MemoryLimit memory_limit;
  LongText long_text = LongText::truncate;
  int threads = 0;
  int64_t max_length = 0;
  bool fill = false, deterministic = false;
  bool quiet = false;
  std::string trace;

  // `models`: if --model may be repeated.
  void add_to(CLI::App& app, bool with_vader, std::vector<std::string>* models = nullptr);
  bool is_vader() const { return hub::names_vader(model); }
  engine::EngineOptions settings() const;  // everything but the model
  engine::EngineOptions options() const;
  ScorerOptions scorer_options() const;  // same for the public interface
  std::unique_ptr<engine::TextModel> open() const;
  // For commands that need a device; `output` overrides the head's output. Throws usage for VADER.
  std::unique_ptr<engine::Engine> open_engine() const;
  std::unique_ptr<engine::Engine> open_embedder(Pooling pooling, const std::string& prompt_name) const;
  void start_trace() const;
  void write_trace(const std::string& record = "") const;  // `record`: see jobs/doctor_trace.h
};

const SettingsTable<EngineFlags>& engine_settings();

// Warns if no model is given and the default model is not installed next to this program, so that VADER's rules are
// used.
void warn_of_rules_by_default(const CLI::App& verb);

// GPU_MIN_FREE_VRAM_MB in the format of `leave_free`; empty if unset, 0, or if `device` resolves to the CPU.
std::string leave_free_of_env(std::string_view device);

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

}  // namespace brim::cli
