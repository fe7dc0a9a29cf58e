// SPDX-License-Identifier: Apache-2.0
// Fixture of tests of open scorers.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/test_files.h"
#include "brim/brim.h"
#include "engine/testing.h"
#include "model/golden_models.h"

namespace brim::engine {

// Stores results and counts how often each ticket is completed.
class Box : public Completion {
 public:
  explicit Box(size_t tickets) : predictions_(tickets), times_(tickets) {}
  void done(std::span<Answer> answers) noexcept override {
    std::lock_guard lock(mutex_);
    ++calls_;
    for (Answer& a : answers) {
      predictions_[a.ticket] = std::move(a.prediction);
      ++times_[a.ticket];
      ++answered_;
    }
  }
  void wait(size_t answers) {
    wait_until([&] {
      std::lock_guard lock(mutex_);
      return answered_ >= answers;
    });
  }
  bool each_once() {
    std::lock_guard lock(mutex_);
    return std::all_of(times_.begin(), times_.end(), [](int n) { return n == 1; });
  }
  size_t calls() {
    std::lock_guard lock(mutex_);
    return calls_;
  }
  const Prediction& operator[](size_t ticket) const { return predictions_[ticket]; }

 private:
  std::mutex mutex_;
  std::vector<Prediction> predictions_;
  std::vector<int> times_;
  size_t answered_ = 0, calls_ = 0;
};

class ScorerTest : public ::testing::Test {
 protected:
  ScorerOptions options(const char* model = "bert_sequence") {
    const auto dir = temp_.path() / model;
    if (!std::filesystem::exists(dir)) model::put_golden_model(dir, model);
    return cpu_options(dir);
  }

  static std::vector<std::string> make_texts(size_t n, uint32_t seed, size_t most_words = 20) {
    std::mt19937 random(seed);
    std::vector<std::string> texts(n);
    for (std::string& text : texts)
      for (size_t i = 0, words = 1 + random() % most_words; i < words; ++i)
        text += (i > 0 ? " w" : "w") + std::to_string(5 + random() % 91);
    return texts;
  }
  static std::vector<std::string_view> views(const std::vector<std::string>& texts) {
    return {texts.begin(), texts.end()};
  }

  const TempDir temp_;
};

}  // namespace brim::engine
