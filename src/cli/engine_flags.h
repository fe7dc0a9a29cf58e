// SPDX-License-Identifier: Apache-2.0
// Flags shared by every verb that opens a model, and the one way to turn them into an Engine.
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
  plan::PrecisionWish precision;
  plan::MemoryLimit memory_limit;
  LongText long_text = LongText::truncate;
  int threads = 0;
  int64_t max_length = 0;
  bool fill = false, deterministic = false;
  bool quiet = false;
  std::string trace;

  // `models`: where --model may be given several times.
  void add_to(CLI::App& app, bool with_vader, std::vector<std::string>* models = nullptr);
  bool is_vader() const { return hub::names_vader(model); }
  engine::EngineOptions settings() const;  // all but the model
  engine::EngineOptions options() const;
  ScorerOptions scorer_options() const;  // the same, for the library's door
  std::unique_ptr<engine::TextModel> open() const;
  // For verbs that need a device: `output` overrides what the head gives. Throws usage for VADER.
  std::unique_ptr<engine::Engine> open_engine() const;
  std::unique_ptr<engine::Engine> open_embedder(Pooling pooling, const std::string& prompt_name) const;
  void start_trace() const;
  void write_trace(const std::string& record = "") const;  // `record`: see jobs/doctor_trace.h
};

const SettingsTable<EngineFlags>& engine_settings();

// Warns where nobody named a model and the default one is not beside this program: VADER's rules stand in for it.
void warn_of_rules_by_default(const CLI::App& verb);

// GPU_MIN_FREE_VRAM_MB as `leave_free` takes it; empty where it is not set, 0, or `device` will be the CPU.
std::string leave_free_of_env(std::string_view device);

// How the records of csv and tsv inputs are written.
struct DialectFlags {
  std::string delimiter;
  bool no_quotes = false;

  void add_to(CLI::App& app);
  char character() const;  // 0: the format's own
  void apply(rows::RowReaderOptions& options) const {
    options.delimiter = character();
    options.quotes = !no_quotes;
  }
};

}  // namespace brim::cli
