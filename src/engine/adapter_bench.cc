// SPDX-License-Identifier: Apache-2.0
// Benchmarks adapters that share a base: bursts of texts with random ids for one adapter, and for random ones of
// several. Prints one JSON line per number of texts and adapters. Uses copies of one adapter, whose speed does not
// differ. Usage: adapter_bench MODEL_DIR ADAPTER_DIR PRECISION DEVICE SECONDS ADAPTERS TEXTSxTOKENS …
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <random>

#include "base/clock.h"
#include "base/error.h"
#include "brim/brim.h"
#include "engine/engine.h"
#include "engine/scorer_access.h"
#include "rows/metrics.h"

namespace {

using namespace brim;
using namespace brim::engine;

struct Burst {
  int texts = 0, tokens = 0;
};

void measure(std::span<const std::shared_ptr<Scorer>> scorers, const Burst& burst, double seconds) {
  std::mt19937 random(1);
  const auto vocab = static_cast<uint32_t>(engine_of(*scorers[0]).shape().vocab);
  std::vector<std::vector<int32_t>> ids(static_cast<size_t>(burst.texts));
  for (auto& text : ids)
    for (int i = 0; i < burst.tokens; ++i) text.push_back(static_cast<int32_t>(5 + random() % (vocab - 5)));
  std::vector<double> times;
  std::vector<std::future<Prediction>> answers;
  const auto counted = [&] {
    std::pair<int64_t, int64_t> sum;
    for (const auto& scorer : scorers) {
      const Engine& engine = engine_of(*scorer);
      const ModelHost::Work work = engine_of(*scorer).scheduler().work_of(engine.host());
      sum.first += work.batches;
      sum.second += work.shared_batches;
    }
    return sum;
  };
  auto before = counted();
  for (int64_t begin = now_ns(), warm = 3; warm > 0 || seconds_since(begin) < seconds;) {
    const int64_t since = now_ns();
    for (const auto& text : ids) answers.push_back(scorers[random() % scorers.size()]->submit({.ids = text}));
    for (auto& answer : answers)
      if (const Prediction p = answer.get(); p.error) throw Error(*p.error);
    answers.clear();
    if (warm == 0) times.push_back(seconds_since(since));
    if (warm > 0 && --warm == 0) {
      begin = now_ns();
      before = counted();
    }
  }
  const auto after = counted();
  std::sort(times.begin(), times.end());
  const double median = rows::percentile(times, 0.5), bursts = static_cast<double>(times.size());
  fmt::print(
      "{{\"precision\": \"{}\", \"adapters\": {}, \"texts\": {}, \"tokens\": {}, \"seconds\": {:.6g}, "
      "\"texts_per_second\": {:.5g}, \"parts_per_burst\": {:.4g}, \"shared_parts_per_burst\": {:.4g}}}\n",
      scorers[0]->precision(), scorers.size(), burst.texts, burst.tokens, median, burst.texts / median,
      static_cast<double>(after.first - before.first) / bursts,
      static_cast<double>(after.second - before.second) / bursts);
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  if (argc < 8) fail(ErrorCode::usage, "adapter_bench MODEL_DIR ADAPTER_DIR PRECISION DEVICE SECONDS ADAPTERS NxT …");
  ScorerOptions options;
  options.model = argv[1];
  options.adapter = argv[2];
  options.precision = argv[3];
  options.device = argv[4];
  options.share_base = true;
  const double seconds = std::atof(argv[5]);
  const int most = std::max(1, std::atoi(argv[6]));
  const auto scorers = open_together(std::vector<ScorerOptions>(static_cast<size_t>(most), options));
  for (int a = 7; a < argc; ++a) {
    Burst burst;
    if (std::sscanf(argv[a], "%dx%d", &burst.texts, &burst.tokens) != 2 || burst.texts < 1 || burst.tokens < 1 ||
        burst.tokens > scorers[0]->max_length())
      fail(ErrorCode::usage, "{}: expected texts x tokens, at most {} tokens", argv[a], scorers[0]->max_length());
    measure({scorers.data(), 1}, burst, seconds);
    measure(scorers, burst, seconds);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const brim::Error& e) {
    fmt::print(stderr, "{}\n", e.what());
    return brim::exit_code(e.code());
  }
}
