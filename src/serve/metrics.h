// SPDX-License-Identifier: Apache-2.0
// Counters and histograms of the server, and their text in Prometheus's form. Each I/O thread counts in a shard of its
// own, all other threads in one more; reading adds them up.
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

// Log buckets of 50 µs to 50 s by a factor of 1.5, the same for every time.
class Histogram {
 public:
  static constexpr size_t kBounds = 36;
  static const std::array<double, kBounds>& bounds();  // seconds, the last above 50
  void add(double seconds);
  void merge(const Histogram& other);
  uint64_t count() const { return count_; }
  double sum() const { return sum_; }
  uint64_t bucket(size_t i) const { return buckets_[i]; }  // i == kBounds: longer than all
  // Below which this share of the values lies, by a straight line through its bucket; 0 where there are none.
  double quantile(double share) const;
  Histogram since(const Histogram& earlier) const;  // what was added after it was so

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

// Texts of a model: interactive and bulk, by Reason.
using TextCounts = std::array<std::array<uint64_t, kReasonCount>, 2>;

struct Counts {
  // Route and model by their places, the status as it is.
  std::map<std::tuple<int, int, int>, uint64_t> requests;
  std::map<int, Histogram> durations;  // by route
  std::array<Histogram, kStages> stages;
  std::array<Histogram, kStages> slowest;  // whole requests, by the stage that took most of their time
  std::vector<Histogram> models;           // whole requests, by model
  std::vector<TextCounts> texts;           // by the model that answered them
  std::vector<uint64_t> tokens;            // by model
  std::array<uint64_t, kRejections> rejected{};
  uint64_t cancelled = 0, deadlines_missed = 0;
  void merge(const Counts& other);
  uint64_t texts_of(size_t model) const;
  uint64_t texts_by(Reason reason) const;
};

// Of several models: those of one queue have its idle time in common.
ScorerWork work_of_all(std::span<const ScorerWork> works);
uint64_t count_of(const ValueCounts& values);
constexpr size_t kIdleCauses = 4;
std::array<std::pair<const char*, double>, kIdleCauses> by_cause(const ScorerWork::Idle& idle);

class Metrics {
 public:
  explicit Metrics(size_t models);
  void set_threads(int threads);  // before they count

  // Calls `count` with the thread's counts.
  template <class Fn>
  void count(int thread, Fn&& fn) {
    Shard& shard = *shards_[static_cast<size_t>(thread)];
    std::lock_guard lock(shard.mutex);
    fn(shard.counts);
  }
  // The same on any other thread: those of queues, jobs and streams of rows.
  template <class Fn>
  void count_beside(Fn&& fn) {
    std::lock_guard lock(beside_.mutex);
    fn(beside_.counts);
  }
  Counts total() const;

 private:
  struct Shard {
    explicit Shard(size_t models);
    mutable std::mutex mutex;
    Counts counts;
  };
  std::vector<std::unique_ptr<Shard>> shards_;
  Shard beside_;
  size_t models_;
};

// The text form, family by family.
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
