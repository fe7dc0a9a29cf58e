// SPDX-License-Identifier: Apache-2.0
// What a run says at its end: how fast, how full, how busy, and the one thing that held it back.
#pragma once
#include <map>
#include <string>

#include "engine/pipeline.h"

namespace brim {

struct Summary {
  std::string model, device, precision, precision_reason;
  PipelineStats counted;
  RunStats stats;
  std::map<std::string, int64_t> counters;  // rows, bad rows, label …
  double load_seconds = 0;
  bool on_card = false;  // peak_bytes is the card's, not the host's

  std::string text() const;
  void write_json(const std::string& path) const;
};

Summary summarize(Engine* engine, const PipelineStats& counted, const std::map<std::string, int64_t>& counters,
                  double load_seconds);

// "device busy 97.1 % · MFU 45.2 % · memory planned 1.2 GiB, held 1.2 GiB, of 8 GiB · budget 65,536 tokens".
std::string device_line(const RunStats& stats, bool on_card);

}  // namespace brim
