// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/units.h"
#include "cli/measurements.h"
#include "cli/render.h"
#include "engine/option_types.h"
#include "engine/scorer_access.h"
#include "jobs/overlap.h"
#include "jobs/spread.h"
#include "monitor/host.h"

namespace brim::cli {

using batch::PackedBatch;

namespace {

// A model's texts, packed into batches of at most `tokens` tokens.
std::vector<PackedBatch> make_batches(const engine::Engine& engine, const std::vector<std::string>& texts,
                                      int64_t tokens, size_t most) {
  engine::TokenizedTexts all;
  for (const auto& text : texts)
    if (const auto error = engine.tokenize(text, all)) throw *error;
  std::vector<PackedBatch> batches;
  int64_t open = 0;
  PackedBatch batch;
  for (const auto& w : all.windows) {
    if (open + w.length > tokens && !batch.tickets.empty()) {
      batch.finish();
      batches.push_back(std::move(batch));
      batch = {};
      open = 0;
      if (batches.size() == most) return batches;
    }
    batch.add({all.ids.data() + w.begin, w.length, 0}, engine.shape().position_offset);
    open += w.length;
  }
  if (!batch.tickets.empty()) {
    batch.finish();
    batches.push_back(std::move(batch));
  }
  return batches;
}

// Tokens per second over about `seconds`. Batches are staged again each time; results are discarded.
double run_alone(engine::Engine& engine, const std::vector<PackedBatch>& batches, double seconds) {
  const auto bulk = engine.bulk([](const PackedBatch&, const float*) {});
  const int64_t begin = now_ns();
  int64_t tokens = 0;
  PackedBatch copy;
  for (size_t i = 0; seconds_since(begin) < seconds; i = (i + 1) % batches.size()) {
    copy = batches[i];
    tokens += copy.tokens();
    bulk->wait_room();
    bulk->submit(copy);
  }
  bulk->finish();
  return static_cast<double>(tokens) / seconds_since(begin);
}

constexpr int kOverlapRounds = 7;

struct Overlap {
  jobs::OverlapPoint point;
  double slowest = 0;  // tokens per second of the slowest model alone
};

// Both variants alternate within a round, so that they run under the same conditions. Calls `round_begins` with the
// number of the round.
Overlap measure_overlap(const std::vector<engine::Engine*>& engines, const std::vector<std::string>& texts,
                        int64_t tokens, double seconds, const std::function<void(int)>& round_begins) {
  const size_t n = engines.size();
  std::vector<std::vector<PackedBatch>> batches;
  for (const auto& e : engines) batches.push_back(make_batches(*e, texts, tokens, 64));
  for (size_t i = 0; i < n; ++i)
    (void)run_alone(*engines[i], batches[i], std::min(0.2, seconds));  // warms up caches and clocks
  std::vector<std::vector<double>> alone(n), together(n);
  std::vector<double> gains;
  double slowest = HUGE_VAL;
  for (int round = 0; round < kOverlapRounds; ++round) {
    round_begins(round);
    for (size_t i = 0; i < n; ++i) {
      alone[i].push_back(run_alone(*engines[i], batches[i], seconds / kOverlapRounds));
      slowest = std::min(slowest, alone[i].back());
    }
    std::vector<std::thread> threads;
    for (auto& rates : together) rates.push_back(0);
    for (size_t i = 0; i < n; ++i)
      threads.emplace_back(
          [&, i] { together[i].back() = run_alone(*engines[i], batches[i], seconds / kOverlapRounds); });
    for (auto& t : threads) t.join();
    // When taking turns each model has the device for part of the time; concurrently it has it all the time at a lower
    // rate.
    gains.push_back(0);
    for (size_t i = 0; i < n; ++i) gains.back() += together[i].back() / alone[i].back();
    for (size_t i = 0; i < n; ++i) alone[i].back() /= static_cast<double>(n);
  }
  const auto medians = [](const std::vector<std::vector<double>>& rates) {
    std::vector<std::string> words;
    for (const auto& of_model : rates) words.push_back(format_si(jobs::spread_of(of_model).p50));
    return fmt::format("{}", fmt::join(words, " + "));
  };
  round_begins(kOverlapRounds);
  jobs::OverlapPoint p{tokens, jobs::spread_of(gains)};
  fmt::print("{:>16}  {:>34}  {:>34}  {:>7.2f}×  {:.2f}× to {:.2f}×\n", format_count(tokens), medians(alone),
             medians(together), p.gain.p50, p.gain.least, p.gain.most);
  return {p, slowest};
}

}  // namespace

int measure_streams(const MeasureFlags& f) {
  if (f.models.size() < 2) fail(ErrorCode::usage, "brim profile streams: needs two models (--models A,B)");
  std::vector<ScorerOptions> options;
  for (const auto& model : f.models) {
    EngineFlags flags = f.engine;
    flags.model = model;
    flags.refuse_rules("brim profile streams: VADER does not use the device; choose other models");
    options.push_back(flags.scorer_options());
  }
  // Opened separately, each with its own stream and part of the limit: models opened together would take turns.
  const auto device = device::open_device(engine::device_choice(f.engine.device), f.engine.threads);
  const int64_t limit =
      engine::memory_limit(f.engine.memory_limit, f.engine.leave_free).on(device->memory(), device->name());
  std::vector<std::shared_ptr<Scorer>> scorers;
  std::vector<engine::Engine*> engines;
  int64_t planned = 0;
  for (ScorerOptions& o : options) {
    o.memory_limit = MemoryLimit::of_bytes(limit / static_cast<int64_t>(options.size()));
    scorers.push_back(Scorer::open(o));
    engines.push_back(&engine::engine_of(*scorers.back()));
    planned += engines.back()->plan().peak_bytes;
  }
  fmt::print("{} on {}, {} planned in total\n\n", fmt::join(f.models, " and "), device->name(), format_bytes(planned));
  const auto texts = read_texts(f.texts, 20'000);
  fmt::print("{:>16}  {:>34}  {:>34}  {:>8}  {}\n", "tokens per batch", "taking turns, tokens/s",
             "concurrent, tokens/s", "gain", "range");
  monitor::OtherProcesses others;
  std::vector<jobs::OverlapPoint> points;
  constexpr std::array<int64_t, 5> kSizes = {32, 256, 2048, 16384, 65536};
  Progress progress("measuring", STDERR_FILENO, f.engine.quiet);
  double slowest = HUGE_VAL;
  for (size_t i = 0; i < kSizes.size(); ++i) {
    int64_t tokens = kSizes[i];
    for (const auto& e : engines) tokens = std::min(tokens, e->plan().token_budget);
    if (!points.empty() && tokens == points.back().tokens) break;
    if (const double batch = static_cast<double>(tokens) / slowest; batch > f.seconds) {
      progress.clear();
      log_info("skipping batches of {} and more: one takes about {}, longer than --seconds {}",
               format_count(tokens, "token"), format_duration(batch), f.seconds);
      break;
    }
    const auto report = [&](int round) {
      if (round == kOverlapRounds) return progress.clear();  // a line of the table follows
      progress.update(
          {static_cast<double>(i) + static_cast<double>(round) / kOverlapRounds, static_cast<double>(kSizes.size()),
           fmt::format("{} per batch, round {} of {}", format_count(tokens, "token"), round + 1, kOverlapRounds)});
    };
    const Overlap measured = measure_overlap(engines, texts, tokens, f.seconds, report);
    points.push_back(measured.point);
    slowest = measured.slowest;
  }
  progress.finish();
  const bool card = engines[0]->device().kind() == device::DeviceKind::cuda;
  fmt::print("\n{}\n", rendered(overlap_verdict(points, card ? "this GPU" : "this CPU")));
  if (const auto load = others.load(); load.disturbs()) fmt::print("note: during the measurement {}\n", load.text());
  return 0;
}

}  // namespace brim::cli
