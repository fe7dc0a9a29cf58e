// SPDX-License-Identifier: Apache-2.0
#include "serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace brim::serve {

const std::array<double, Histogram::kBounds>& Histogram::bounds() {
  static const std::array<double, kBounds> all = [] {
    std::array<double, kBounds> b;
    for (size_t i = 0; i < kBounds; ++i) {
      const double exact = 50e-6 * std::pow(1.5, static_cast<double>(i));
      const double scale = std::pow(10.0, 3 - std::ceil(std::log10(exact)));
      b[i] = std::round(exact * scale) / scale;  // three significant digits
    }
    return b;
  }();
  return all;
}

void Histogram::add(double seconds) {
  const auto bucket = std::lower_bound(bounds().begin(), bounds().end(), seconds) - bounds().begin();
  ++buckets_[static_cast<size_t>(bucket)];
  ++count_;
  sum_ += seconds;
}

void Histogram::merge(const Histogram& other) {
  for (size_t i = 0; i <= kBounds; ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
  sum_ += other.sum_;
}

double Histogram::quantile(double share) const {
  const double target = share * static_cast<double>(count_);
  uint64_t below = 0;
  for (size_t i = 0; i < kBounds; ++i) {
    const double before = static_cast<double>(below), from = i == 0 ? 0 : bounds()[i - 1];
    below += buckets_[i];
    if (buckets_[i] > 0 && static_cast<double>(below) >= target)
      return from + (bounds()[i] - from) * std::max(0.0, target - before) / static_cast<double>(buckets_[i]);
  }
  return count_ == 0 ? 0 : bounds().back();
}

Histogram Histogram::since(const Histogram& earlier) const {
  Histogram after = *this;
  for (size_t i = 0; i <= kBounds; ++i) after.buckets_[i] -= earlier.buckets_[i];
  after.count_ -= earlier.count_;
  after.sum_ -= earlier.sum_;
  return after;
}

const char* stage_name(Stage stage) {
  constexpr const char* kNames[] = {"parse", "tokenize", "queue", "infer", "write"};
  return kNames[static_cast<size_t>(stage)];
}

void Counts::merge(const Counts& other) {
  for (const auto& [key, n] : other.requests) requests[key] += n;
  for (const auto& [route, histogram] : other.durations) durations[route].merge(histogram);
  for (size_t i = 0; i < kStages; ++i) stages[i].merge(other.stages[i]);
  for (size_t i = 0; i < kStages; ++i) slowest[i].merge(other.slowest[i]);
  for (size_t m = 0; m < texts.size(); ++m) {
    for (size_t c = 0; c < texts[m].size(); ++c)
      for (size_t r = 0; r < kReasonCount; ++r) texts[m][c][r] += other.texts[m][c][r];
    tokens[m] += other.tokens[m];
    pairs[m] += other.pairs[m];
    models[m].merge(other.models[m]);
  }
  for (size_t i = 0; i < kRejections; ++i) rejected[i] += other.rejected[i];
  cancelled += other.cancelled;
  deadlines_missed += other.deadlines_missed;
}

uint64_t Counts::texts_of(size_t model) const {
  uint64_t n = 0;
  for (const auto& by_reason : texts[model]) n = std::accumulate(by_reason.begin(), by_reason.end(), n);
  return n;
}

uint64_t Counts::texts_by(Reason reason) const {
  uint64_t n = 0;
  for (const TextCounts& model : texts)
    for (const auto& by_reason : model) n += by_reason[static_cast<size_t>(reason)];
  return n;
}

ScorerWork work_of_all(std::span<const ScorerWork> works) {
  ScorerWork all;
  std::vector<uint64_t> queues;
  const auto add = [](ValueCounts& to, const ValueCounts& more) {
    if (to.counts.empty()) {
      to = more;
      return;
    }
    for (size_t i = 0; i < more.counts.size(); ++i) to.counts[i] += more.counts[i];
    to.sum += more.sum;
  };
  for (const ScorerWork& work : works) {
    all.batches += work.batches;
    all.graph_batches += work.graph_batches;
    all.tokens += work.tokens;
    all.padding_tokens += work.padding_tokens;
    all.busy_seconds += work.busy_seconds;
    all.flops += work.flops;
    all.flops_per_second = std::max(all.flops_per_second, work.flops_per_second);
    all.loads += work.loads;
    all.load_seconds += work.load_seconds;
    add(all.batch_tokens, work.batch_tokens);
    add(all.batch_sequences, work.batch_sequences);
    add(all.batch_fill, work.batch_fill);
    add(all.prediction_error, work.prediction_error);
    if (work.queue == 0 || std::find(queues.begin(), queues.end(), work.queue) != queues.end()) continue;
    queues.push_back(all.queue = work.queue);
    all.idle.no_work += work.idle.no_work;
    all.idle.pack += work.idle.pack;
    all.idle.collect += work.idle.collect;
    all.idle.switching += work.idle.switching;
  }
  return all;
}

std::array<std::pair<const char*, double>, kIdleCauses> by_cause(const ScorerWork::Idle& idle) {
  return {{{"no_work", idle.no_work}, {"pack", idle.pack}, {"collect", idle.collect}, {"switch", idle.switching}}};
}

Metrics::Shard::Shard(size_t models) {
  counts.texts.resize(models);
  counts.tokens.resize(models);
  counts.pairs.resize(models);
  counts.models.resize(models);
}

Metrics::Metrics(size_t models) : off_thread_(models), models_(models) {}

void Metrics::set_threads(int threads) {
  for (int i = 0; i < threads; ++i) shards_.push_back(std::make_unique<Shard>(models_));
}

Counts Metrics::total() const {
  Shard sum(models_);
  const auto add = [&](const Shard& shard) {
    std::lock_guard lock(shard.mutex);
    sum.counts.merge(shard.counts);
  };
  add(off_thread_);
  for (const auto& shard : shards_) add(*shard);
  return std::move(sum.counts);
}

void MetricsText::family(std::string_view name, std::string_view type, std::string_view help) {
  fmt::format_to(std::back_inserter(out_), "# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

void MetricsText::labels(Labels all, std::string_view bound) {
  if (all.empty() && bound.empty()) return;
  out_ += '{';
  bool first = true;
  const auto add = [&](std::string_view name, std::string_view text) {
    if (!std::exchange(first, false)) out_ += ',';
    out_ += name;
    out_ += "=\"";
    for (const char c : text) {
      if (c == '\n') {
        out_ += "\\n";
        continue;
      }
      if (c == '\\' || c == '"') out_ += '\\';
      out_ += c;
    }
    out_ += '"';
  };
  for (const auto& [name, text] : all) add(name, text);
  if (!bound.empty()) add("le", bound);
  out_ += '}';
}

void MetricsText::value(std::string_view name, Labels all, double value) {
  out_ += name;
  labels(all, "");
  fmt::format_to(std::back_inserter(out_), " {}\n", value);
}

void MetricsText::summary(std::string_view name, Labels all, int64_t count, double sum) {
  value(fmt::format("{}_sum", name), all, sum);
  value(fmt::format("{}_count", name), all, static_cast<double>(count));
}

template <class CountAt>
void MetricsText::buckets(std::string_view name, Labels all, std::span<const double> bounds, const CountAt& counts,
                          double sum) {
  int64_t below = 0;
  for (size_t i = 0; i <= bounds.size(); ++i) {
    below += static_cast<int64_t>(counts(i));
    out_ += name;
    out_ += "_bucket";
    labels(all, i < bounds.size() ? fmt::format("{}", bounds[i]) : "+Inf");
    fmt::format_to(std::back_inserter(out_), " {}\n", below);
  }
  summary(name, all, below, sum);
}

void MetricsText::histogram(std::string_view name, Labels all, const Histogram& histogram) {
  buckets(
      name, all, Histogram::bounds(), [&](size_t i) { return histogram.bucket(i); }, histogram.sum());
}

void MetricsText::histogram(std::string_view name, Labels all, const ValueCounts& values) {
  buckets(
      name, all, values.bounds, [&](size_t i) { return values.counts[i]; }, values.sum);
}

}  // namespace brim::serve
