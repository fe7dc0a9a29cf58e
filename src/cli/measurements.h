// SPDX-License-Identifier: Apache-2.0
// Measurements of one aspect of this machine: `brim profile latency|streams|library|deterministic`. Training and file
// formats are not measured here.
#pragma once
#include <string>
#include <vector>

#include "cli/engine_flags.h"

namespace brim::cli {

struct MeasureFlags {
  EngineFlags engine;
  std::vector<std::string> models;
  std::string texts;
  double seconds = 1;
  int64_t count = 2000;
  int callers = 64, rounds = 5;
};

// Two models running concurrently on one device against taking turns, for several batch sizes.
int measure_streams(const MeasureFlags& flags);
// One text at a time from text to label, through the library.
int measure_latency(const MeasureFlags& flags);
// Single and bulk calls of the library against a file of the same texts, alternating under the same conditions.
int measure_library(const MeasureFlags& flags);
// The overhead of batch-invariant scores: many texts at once, and some of them alone, which must have bitwise equal
// scores.
int measure_deterministic(const MeasureFlags& flags);

// At most `most` texts of a file; throws bad_data if it has none.
std::vector<std::string> read_texts(const std::string& path, size_t most);

// A subcommand that runs one measurement.
struct Measurement {
  CLI::App* app;
  int (*run)(const MeasureFlags& flags);
};
// Adds one subcommand per measurement to `app`, with the flags only it has.
std::vector<Measurement> add_measurements(CLI::App& app, MeasureFlags& flags);
// Adds --texts and the flags of the model and the device.
void add_measurement_input(CLI::App& app, MeasureFlags& flags);

}  // namespace brim::cli
