// SPDX-License-Identifier: Apache-2.0
// The profiler: measures the cost of a model on this machine. Covers cold and warm loading, single texts, batches,
// whole data sets through the pipeline, memory compared with the plan, energy, MFU and roofline, and optionally a
// language model running at the same time. Everything is measured through the Engine that users run. Measurement
// (profile*.cc), advice and the two reports are separate, so that reports can be tested with made-up numbers.
#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "brim/brim.h"
#include "engine/run_stats.h"
#include "jobs/spread.h"
#include "report/llm.h"
#include "report/plot.h"

namespace brim::report {

// Texts for measurements, with second texts and labels if their columns are given.
struct ProfileTexts {
  std::string source;  // file name, or "built-in headlines"
  std::vector<std::string> texts, pairs, labels;
};
struct ProfileFile {
  std::string path, format = "auto", text_column, pair_column, label_column;
};
// At most `most` rows; an empty path gives the built-in headlines. Unreadable rows are skipped.
ProfileTexts load_profile_texts(const ProfileFile& file, size_t most);

// Batch sizes are measured in interleaved rounds under the same conditions, so that differences between rounds are
// noise.
struct BatchPoint {
  int64_t batch_size = 0;
  jobs::Spread seconds;                                             // per call
  jobs::Spread rate;                                                // texts per second, per round
  jobs::Spread gain;                                                // relative to single texts, per round
  double items_per_second = 0, tokens_per_second = 0, speedup = 1;  // medians over the rounds
  double busy_seconds = 0;                                          // device time per call
  std::optional<double> mfu;
  double flops = 0, bytes = 0;  // per call, computed
};

struct SizePoint {
  int64_t rows = 0;
  bool repeated = false;   // there were fewer texts, so some were used several times
  jobs::Spread rate;       // texts per second, per run; a small set is run several times
  monitor::RunRecord run;  // the median run
  std::optional<double> joules_per_1000;

  double rows_per_second() const { return run.rows_per_second().value_or(0); }
  double tokens_per_second() const { return run.tokens_per_second().value_or(0); }
};

// Work and time of one kind of op over a run. Time is measured only for ops on the CPU.
struct OpPoint {
  std::string name;
  double flops = 0, bytes = 0, seconds = 0;
};

struct ModelProfile {
  std::string name, dir, type = "sentiment", family, device, precision, precision_reason;
  device::DeviceKind device_kind = device::DeviceKind::cpu;
  std::string pci_bus_id;  // bus id of the GPU; empty for the CPU
  int64_t parameters = 0;
  double cold_load_seconds = 0, warm_load_seconds = 0;
  std::optional<double> cached_share;  // fraction of the files in the page cache before the cold load; 0: fully cold
  jobs::Spread single;
  double mean_tokens = 0;  // per text
  std::vector<BatchPoint> batches;
  std::vector<SizePoint> sizes;
  std::optional<plan::Plan> plan;     // nullopt for VADER
  int64_t before_bytes = 0;           // resident before loading the model
  std::optional<int64_t> held_bytes;  // peak resident or GPU memory
  std::vector<OpPoint> ops;
  TimelinePlot timeline;
  std::vector<std::string> labels;       // possible classes
  std::vector<std::string> predictions;  // label of each text of the largest run, without repeated ones
  std::optional<double> accuracy, macro_f1;
  int64_t labelled_rows = 0;   // rows used for accuracy, the same for every model
  std::vector<int32_t> right;  // 1 or 0 for each of them
  std::vector<std::string> notes;
  bool disturbed = false;  // other processes used cores meanwhile; a note names them

  const BatchPoint* fastest_batch() const;  // highest throughput
  const BatchPoint* best_batch() const;     // the smallest that is nearly as fast; the one to use
  const SizePoint* largest() const { return sizes.empty() ? nullptr : &sizes.back(); }
  // Memory of the model itself: on the GPU, or above the resident memory before loading.
  std::optional<int64_t> own_bytes() const;
};

struct Agreement {
  std::string a, b;
  int64_t rows = 0;
  double share = 0;  // fraction of rows with the same label
};

struct GpuFacts {
  std::string name, driver, pci_bus_id;
  std::optional<double> used_mb, total_mb, utilization_pct;
  std::optional<double> temperature_c = std::nullopt;
};
struct MachineFacts {
  std::string cpu, system, why_no_gpu;
  int cores = 0;
  int64_t memory_bytes = 0;
  std::vector<GpuFacts> cards;                      // all working GPUs, before anything was loaded
  std::optional<GpuFacts> gpu;                      // the measured one, or the first if none was measured
  void choose_card(const std::string& pci_bus_id);  // no-op if unknown or empty
};
MachineFacts machine_facts();

struct Profile {
  std::string generated_at;  // ISO 8601, UTC
  std::string stamp;         // YYYYMMDD_HHMMSS, local time
  std::string mode;
  MachineFacts machine;
  std::string texts_source;
  int64_t texts = 0;
  std::vector<ModelProfile> models;
  std::vector<Agreement> agreement;
  std::optional<LlmProfile> llm;
  std::vector<std::string> recommendations;
  std::vector<std::string> notes;

  std::string device_name() const;  // the GPU or CPU that was measured
};

struct ProfileOptions {
  std::vector<std::pair<std::string, std::filesystem::path>> models;  // name, directory; an empty directory means VADER
  ScorerOptions engine;                                               // device, precision, threads, limit
  std::vector<int64_t> batch_sizes = {1, 5, 10, 20, 50, 100};
  std::vector<int64_t> sizes = {1000, 5000};
  bool sizes_given = false;  // else sizes that would take over a minute are left out
  double seconds = 1;        // per measurement
  std::optional<LlmOptions> llm;
  const std::atomic<bool>* stop = nullptr;
  std::function<void(double done, double total, const std::string& what)> progress;
};

// Runs all measurements. Throws if a model cannot be opened or, at the start, if the language model does not respond.
// Without a language model at its default address, a run with classifiers notes this and measures only them.
// Throws interrupted when `stop` is set.
Profile run_profile(const ProfileOptions& options, const std::string& mode, const ProfileTexts& texts);

// Accuracy of every model over the same rows: those with a label and a prediction from every model. A label unknown to
// a model counts as wrong.
void measure_accuracy(std::vector<ModelProfile>& models, const std::vector<std::string>& truth);
// Pairs of models over rows labelled by both; labels are compared case-insensitively.
std::vector<Agreement> agreements(const std::vector<ModelProfile>& models);
std::vector<std::string> recommendations(const Profile& profile);

std::string profile_json(const Profile& profile);
std::string profile_html(const Profile& profile);
std::string profile_table(const Profile& profile);  // for the terminal

struct ProfileFiles {
  std::filesystem::path json, html;
};
// Writes DIR/gpu_profile_YYYYMMDD_HHMMSS.json and .html, with a number added if the name exists. Creates DIR.
ProfileFiles write_profile(const Profile& profile, const std::filesystem::path& dir);

// Parses "1k", "2.5k", "1M", "200". nullopt if invalid or below 1.
std::optional<int64_t> parse_count(std::string_view text);

}  // namespace brim::report
