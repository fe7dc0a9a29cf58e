// SPDX-License-Identifier: Apache-2.0
// Interface for scoring texts: an encoder on a device (Engine) or VADER's rules. Does not cover single requests
// (brim::Scorer).
#pragma once
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/label.h"
#include "engine/run_stats.h"
#include "model/pass.h"

namespace brim::engine {

class Engine;

class TextModel {
 public:
  virtual ~TextModel() = default;
  virtual std::string name() const = 0;  // its directory, or "vader"
  virtual const std::vector<std::string>& labels() const = 0;
  virtual const std::vector<std::string>& score_names() const { return labels(); }
  virtual model::Output output() const = 0;
  virtual int64_t width() const = 0;  // floats per text in a result (token outputs: per token)
  virtual bool multi_label() const { return false; }
  virtual Choice choose(const float* scores) const = 0;
  virtual std::string device_name() const = 0;
  virtual std::string precision_text() const = 0;  // "bf16", "exact"
  virtual int64_t planned_bytes() const { return 0; }
  // The reason it cannot score pairs of texts, if any.
  virtual std::optional<Error> why_no_pairs() const = 0;

  // Last run: throughput, MFU, device utilisation, memory, bottleneck.
  virtual RunStats stats() const = 0;
  void set_counted(const PipelineStats& counted) {
    std::lock_guard lock(counted_mutex_);
    counted_ = counted;
  }

  // The engine behind this model; null for rules, which run on the tokenizer threads.
  virtual Engine* engine() { return nullptr; }

 protected:
  PipelineStats counted() const {
    std::lock_guard lock(counted_mutex_);
    return counted_;
  }

 private:
  mutable std::mutex counted_mutex_;
  PipelineStats counted_;
};

class RulesModel final : public TextModel {
 public:
  std::string name() const override { return "vader"; }
  const std::vector<std::string>& labels() const override { return vader_labels(); }
  const std::vector<std::string>& score_names() const override { return vader_score_names(); }
  model::Output output() const override { return model::Output::sequence_scores; }
  int64_t width() const override { return kVaderWidth; }
  Choice choose(const float* scores) const override { return choose_vader_label(scores); }
  std::string device_name() const override { return "cpu"; }
  std::string precision_text() const override { return "exact"; }
  std::optional<Error> why_no_pairs() const override {
    return Error(ErrorCode::usage, "VADER's rules do not support pairs", {"use a model directory"});
  }
  RunStats stats() const override {
    RunStats s = run_stats(nullptr, nullptr, counted());
    s.tokens = 0;
    s.peak_bytes = monitor::peak_resident_bytes();
    return s;
  }
};

}  // namespace brim::engine
