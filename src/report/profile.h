// SPDX-License-Identifier: Apache-2.0
// The profiler: what a model costs on this machine. Loading cold and warm, one text at a time, batches, whole data sets
// through the pipeline, memory against the plan, energy, MFU and roofline; a language model beside it if one is named.
// Everything is measured through the Engine that users run. Measuring (profile*.cc), advice and the two reports are
// apart, so that reports can be tested on made-up numbers.
#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/pipeline.h"
#include "jobs/spread.h"
#include "report/llm.h"
#include "report/plot.h"

namespace brim::report {

// Texts to measure with, and the second texts and labels where their columns were named.
struct ProfileTexts {
  std::string source;  // file name, or "built-in headlines"
  std::vector<std::string> texts, pairs, labels;
};
struct ProfileFile {
  std::string path, format = "auto", text_column, pair_column, label_column;
};
// At most `most` rows; an empty path gives the built-in headlines. Rows that cannot be read are left out.
ProfileTexts load_profile_texts(const ProfileFile& file, size_t most);

// Sizes are measured in turns, so that all meet the same machine: what one round gives against another is noise.
struct BatchPoint {
  int64_t batch_size = 0;
  jobs::Spread seconds;                                             // of one call
  jobs::Spread rate;                                                // texts per second of each round
  jobs::Spread gain;                                                // over one text at a time, round by round
  double items_per_second = 0, tokens_per_second = 0, speedup = 1;  // medians over the rounds
  double busy_seconds = 0;                                          // device time a call
  double mfu = -1;                                                  // negative: unknown
  double flops = 0, bytes = 0;                                      // of one call, as computed
};

struct SizePoint {
  int64_t rows = 0;
  bool repeated = false;          // the texts were fewer and were taken again
  jobs::Spread rate;              // texts per second of each run; a short set is run several times
  engine::PipelineStats counted;  // of the run in the middle
  engine::RunStats run;
  std::optional<double> joules_per_1000;
};

// Work and time of one kind of op over a run. Time is measured where ops run on this machine's cores.
struct OpPoint {
  std::string name;
  double flops = 0, bytes = 0, seconds = 0;
};

struct ModelProfile {
  std::string name, dir, type = "sentiment", family, device, precision, precision_reason;
  device::DeviceKind device_kind = device::DeviceKind::cpu;
  std::string pci_bus_id;  // of the card; empty: the CPU
  int64_t parameters = 0;
  double cold_load_seconds = 0, warm_load_seconds = 0;
  std::optional<double> cached_share;  // of the files in memory when the cold load began; 0: truly cold
  jobs::Spread single;
  double mean_tokens = 0;  // of a text
  std::vector<BatchPoint> batches;
  std::vector<SizePoint> sizes;
  std::optional<plan::Plan> plan;  // none for VADER
  int64_t before_bytes = 0;        // resident before the model was loaded
  int64_t held_bytes = -1;         // resident peak, or on the card; negative: not known
  std::vector<OpPoint> ops;
  TimelinePlot timeline;
  std::vector<std::string> labels;       // the classes it can give
  std::vector<std::string> predictions;  // label of each text of the largest run, the repeated ones left out
  std::optional<double> accuracy, macro_f1;
  int64_t labelled_rows = 0;   // that accuracy is taken over: the same rows for every model
  std::vector<int32_t> right;  // 1 or 0 for each of them
  std::vector<std::string> notes;
  bool disturbed = false;  // other processes took cores meanwhile; a note names them

  const BatchPoint* best_batch() const;  // most items a second
  const SizePoint* largest() const { return sizes.empty() ? nullptr : &sizes.back(); }
  // What the model itself holds: on the card, or above what was resident before.
  std::optional<int64_t> own_bytes() const;
};

struct Agreement {
  std::string a, b;
  int64_t rows = 0;
  double share = 0;  // of rows with the same label
};

struct GpuFacts {
  std::string name, driver, pci_bus_id;
  std::optional<double> used_mb, total_mb, utilization_pct;
};
struct MachineFacts {
  std::string cpu, system, why_no_gpu;
  int cores = 0;
  int64_t memory_bytes = 0;
  std::vector<GpuFacts> cards;                      // all that work, before anything was loaded
  std::optional<GpuFacts> gpu;                      // the one that was measured; the first where none was
  void choose_card(const std::string& pci_bus_id);  // unknown or empty: nothing changes
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
};

struct ProfileOptions {
  std::vector<std::pair<std::string, std::filesystem::path>> models;  // name, directory; an empty directory is VADER
  engine::EngineOptions engine;                                       // device, precision, threads, limit
  std::vector<int64_t> batch_sizes = {1, 5, 10, 20, 50, 100};
  std::vector<int64_t> sizes = {1000, 5000};
  bool sizes_given = false;  // else sizes that would take over a minute are left out
  double seconds = 1;        // for each measurement
  std::optional<LlmOptions> llm;
  const std::atomic<bool>* stop = nullptr;
  std::function<void(double done, double total, const std::string& what)> progress;
};

// Measures. A model that cannot be opened ends it with that error; so does a language model that does not answer, at
// the start. Throws interrupted when `stop` is set.
Profile run_profile(const ProfileOptions& options, const std::string& mode, const ProfileTexts& texts);

// Accuracy of every model over the same rows: those that have a label and that every model answered. A row whose label
// a model does not have is a wrong answer of it.
void measure_accuracy(std::vector<ModelProfile>& models, const std::vector<std::string>& truth);
// Pairs of models over rows both labelled; labels are compared without regard to case.
std::vector<Agreement> agreements(const std::vector<ModelProfile>& models);
std::vector<std::string> recommendations(const Profile& profile);

std::string profile_json(const Profile& profile);
std::string profile_html(const Profile& profile);
std::string profile_table(const Profile& profile);  // for the terminal

struct ProfileFiles {
  std::filesystem::path json, html;
};
// DIR/gpu_profile_YYYYMMDD_HHMMSS.json and .html; a number is added where that name is taken. Makes DIR.
ProfileFiles write_profile(const Profile& profile, const std::filesystem::path& dir);

// "1k", "2.5k", "1M", "200". Nothing if it is no such number or below 1.
std::optional<int64_t> parse_count(std::string_view text);

}  // namespace brim::report
