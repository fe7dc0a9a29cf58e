// SPDX-License-Identifier: Apache-2.0
#include "serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace brim::serve {

const std::array<double, Histogram::kBounds>& Histogram::bounds() {
  static const std::array<double, kBounds> all = [] {
    std::array<double, kBounds> b;
    for (size_t i = 0; i < kBounds; ++i) {
      const double exact = 50e-6 * std::pow(1.5, static_cast<double>(i));
      const double scale = std::pow(10.0, 3 - std::ceil(std::log10(exact)));
      b[i] = std::round(exact * scale) / scale;  // three digits
    }
    return b;
  }();
  return all;
}

void Histogram::add(double seconds) {
  const auto place = std::lower_bound(bounds().begin(), bounds().end(), seconds) - bounds().begin();
  ++buckets_[static_cast<size_t>(place)];
  ++count_;
  sum_ += seconds;
}

void Histogram::merge(const Histogram& other) {
  for (size_t i = 0; i <= kBounds; ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
  sum_ += other.sum_;
}

double Histogram::quantile(double share) const {
  const double wanted = share * static_cast<double>(count_);
  uint64_t below = 0;
  for (size_t i = 0; i < kBounds; ++i) {
    const double before = static_cast<double>(below), from = i == 0 ? 0 : bounds()[i - 1];
    below += buckets_[i];
    if (buckets_[i] > 0 && static_cast<double>(below) >= wanted)
      return from + (bounds()[i] - from) * std::max(0.0, wanted - before) / static_cast<double>(buckets_[i]);
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
    texts[m][0] += other.texts[m][0];
    texts[m][1] += other.texts[m][1];
    tokens[m] += other.tokens[m];
    models[m].merge(other.models[m]);
  }
  for (size_t i = 0; i < kRejections; ++i) rejected[i] += other.rejected[i];
  for (size_t i = 0; i < reasons.size(); ++i) reasons[i] += other.reasons[i];
  cancelled += other.cancelled;
  deadlines_missed += other.deadlines_missed;
}

Metrics::Metrics(int threads, size_t models) : models_(models) {
  for (int i = 0; i < threads; ++i) {
    auto& shard = shards_.emplace_back(std::make_unique<Shard>());
    shard->counts.texts.resize(models);
    shard->counts.tokens.resize(models);
    shard->counts.models.resize(models);
  }
}

Counts Metrics::total() const {
  Counts sum;
  sum.texts.resize(models_);
  sum.tokens.resize(models_);
  sum.models.resize(models_);
  for (const auto& shard : shards_) {
    std::lock_guard lock(shard->mutex);
    sum.merge(shard->counts);
  }
  return sum;
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

void MetricsText::histogram(std::string_view name, Labels all, const Histogram& histogram) {
  uint64_t below = 0;
  for (size_t i = 0; i <= Histogram::kBounds; ++i) {
    below += histogram.bucket(i);
    out_ += name;
    out_ += "_bucket";
    labels(all, i < Histogram::kBounds ? fmt::format("{}", Histogram::bounds()[i]) : "+Inf");
    fmt::format_to(std::back_inserter(out_), " {}\n", below);
  }
  out_ += name;
  out_ += "_sum";
  labels(all, "");
  fmt::format_to(std::back_inserter(out_), " {}\n", histogram.sum());
  out_ += name;
  out_ += "_count";
  labels(all, "");
  fmt::format_to(std::back_inserter(out_), " {}\n", histogram.count());
}

}  // namespace brim::serve
