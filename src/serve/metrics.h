// SPDX-License-Identifier: Apache-2.0
// Counters and histograms of the server, and their Prometheus text format. Each I/O thread has its own shard and all
// other threads share one; reading sums them.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "brim/brim.h"
#include "serve/ladder.h"

namespace brim::serve {

// Logarithmic buckets from 50 µs to 50 s with a ratio of 1.5.
class Histogram {
 public:
  static constexpr size_t kBounds = 36;
  static const std::array<double, kBounds>& bounds();  // in seconds; the last is above 50
  void add(double seconds);
  void merge(const Histogram& other);
  uint64_t count() const { return count_; }
  double sum() const { return sum_; }
  uint64_t bucket(size_t i) const { return buckets_[i]; }  // i == kBounds: above all bounds
  // Linear interpolation within a bucket; 0 if empty.
  double quantile(double share) const;
  Histogram since(const Histogram& earlier) const;  // values added after `earlier`

 private:
  std::array<uint64_t, kBounds + 1> buckets_{};
  uint64_t count_ = 0;
  double sum_ = 0;
};

enum class Stage : uint8_t { parse, tokenize, queue, infer, write };
constexpr size_t kStages = 5;
const char* stage_name(Stage stage);

enum class Rejection : uint8_t { overloaded, deadline, draining, loading, body, auth };
constexpr size_t kRejections = 6;

// Number of texts of a model: interactive and bulk, by Reason.
using TextCounts = std::array<std::array<uint64_t, kReasonCount>, 2>;

struct Counts {
  // Keyed by route index, model index and status.
  std::map<std::tuple<int, int, int>, uint64_t> requests;
  std::map<int, Histogram> durations;  // by route
  std::array<Histogram, kStages> stages;
  std::array<Histogram, kStages> slowest;  // total duration, by slowest stage
  std::vector<Histogram> models;           // total duration, by model
  std::vector<TextCounts> texts;           // by model
  std::vector<uint64_t> tokens;            // by model
  std::vector<uint64_t> pairs;             // zero-shot pairs, by model
  std::array<uint64_t, kRejections> rejected{};
  uint64_t cancelled = 0, deadlines_missed = 0;
  void merge(const Counts& other);
  uint64_t texts_of(size_t model) const;
  uint64_t texts_by(Reason reason) const;
};

// Sums the work of several models. Models of one device queue share its idle time, which is counted once.
ScorerWork work_of_all(std::span<const ScorerWork> works);
constexpr size_t kIdleCauses = 4;
std::array<std::pair<const char*, double>, kIdleCauses> by_cause(const ScorerWork::Idle& idle);

class Metrics {
 public:
  explicit Metrics(size_t models);
  void set_threads(int threads);  // call before counting

  // Calls `fn` with the thread's counts.
  template <class Fn>
  void count(int thread, Fn&& fn) {
    Shard& shard = *shards_[static_cast<size_t>(thread)];
    std::lock_guard lock(shard.mutex);
    fn(shard.counts);
  }
  // The same for threads other than I/O threads, such as those of queues, jobs and row streams.
  template <class Fn>
  void count_off_thread(Fn&& fn) {
    std::lock_guard lock(off_thread_.mutex);
    fn(off_thread_.counts);
  }
  Counts total() const;

 private:
  struct Shard {
    explicit Shard(size_t models);
    mutable std::mutex mutex;
    Counts counts;
  };
  std::vector<std::unique_ptr<Shard>> shards_;
  Shard off_thread_;
  size_t models_;
};

// Writer of the Prometheus text format.
class MetricsText {
 public:
  void family(std::string_view name, std::string_view type, std::string_view help);
  using Labels = std::span<const std::pair<std::string_view, std::string_view>>;
  void value(std::string_view name, Labels labels, double value);
  void histogram(std::string_view name, Labels labels, const Histogram& histogram);
  void histogram(std::string_view name, Labels labels, const ValueCounts& values);
  void summary(std::string_view name, Labels labels, int64_t count, double sum);
  std::string take() { return std::move(out_); }

 private:
  void labels(Labels labels, std::string_view bound);
  template <class CountAt>
  void buckets(std::string_view name, Labels labels, std::span<const double> bounds, const CountAt& counts, double sum);
  std::string out_;
};

}  // namespace brim::serve
