// SPDX-License-Identifier: Apache-2.0
// brim bench streams: does running two models at once on one card pay? Measured, for batches of several sizes.
// brim bench latency: one text at a time, text in to label out.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/engine_flags.h"
#include "cli/render.h"
#include "cli/verb.h"
#include "io/row_reader.h"
#include "monitor/host.h"
#include "report/overlap.h"
#include "report/spread.h"

namespace brim {
namespace {

struct BenchFlags {
  CLI::App *streams = nullptr, *latency = nullptr;
  EngineFlags engine;
  std::vector<std::string> models;
  std::string texts;
  double seconds = 1;
  int64_t count = 2000;
};

std::vector<std::string> read_texts(const std::string& path, size_t most) {
  RowReader reader({path}, {});
  std::vector<std::string> texts;
  RowChunk chunk;
  while (texts.size() < most && reader.next_chunk(chunk))
    for (size_t i = 0; i < chunk.size() && texts.size() < most; ++i)
      if (!chunk.texts[i].empty()) texts.emplace_back(chunk.texts[i]);
  if (texts.empty()) fail(ErrorCode::bad_data, "{}: no texts", path);
  return texts;
}

// The texts of a model, cut into batches of at most `tokens` tokens.
std::vector<PackedBatch> make_batches(const Engine& engine, const std::vector<std::string>& texts, int64_t tokens,
                                      size_t most) {
  TokenizedTexts all;
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

// Tokens per second over about `seconds`. Batches are staged again each time: only results are thrown away.
double run_alone(Engine& engine, const std::vector<PackedBatch>& batches, double seconds) {
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

// In turns, so that both ways meet the same machine: one round against another is noise.
OverlapPoint measure_overlap(const std::vector<std::unique_ptr<Engine>>& engines, const std::vector<std::string>& texts,
                             int64_t tokens, double seconds) {
  constexpr int kRounds = 7;
  const size_t n = engines.size();
  std::vector<std::vector<PackedBatch>> batches;
  for (const auto& e : engines) batches.push_back(make_batches(*e, texts, tokens, 64));
  for (size_t i = 0; i < n; ++i)
    (void)run_alone(*engines[i], batches[i], std::min(0.2, seconds));  // warm caches, clocks
  std::vector<std::vector<double>> alone(n), together(n);
  std::vector<double> gains;
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < n; ++i) alone[i].push_back(run_alone(*engines[i], batches[i], seconds / kRounds));
    std::vector<std::thread> threads;
    for (auto& rates : together) rates.push_back(0);
    for (size_t i = 0; i < n; ++i)
      threads.emplace_back([&, i] { together[i].back() = run_alone(*engines[i], batches[i], seconds / kRounds); });
    for (auto& t : threads) t.join();
    // In turn each model has the device for part of the time; at once it has it all the time, at a lower rate.
    gains.push_back(0);
    for (size_t i = 0; i < n; ++i) gains.back() += together[i].back() / alone[i].back();
    for (size_t i = 0; i < n; ++i) alone[i].back() /= static_cast<double>(n);
  }
  const auto medians = [](const std::vector<std::vector<double>>& rates) {
    std::vector<std::string> words;
    for (const auto& of_model : rates) words.push_back(format_si(spread_of(of_model).p50));
    return fmt::format("{}", fmt::join(words, " + "));
  };
  OverlapPoint p{tokens, spread_of(gains)};
  fmt::print("{:>16}  {:>34}  {:>34}  {:>7.2f}×  {:.2f}× to {:.2f}×\n", format_count(tokens), medians(alone),
             medians(together), p.gain.p50, p.gain.least, p.gain.most);
  return p;
}

int run_streams(const BenchFlags& f) {
  if (f.models.size() < 2) fail(ErrorCode::usage, "brim bench streams: name two models with --models A,B");
  std::vector<EngineOptions> options;
  for (const auto& model : f.models) {
    EngineFlags flags = f.engine;
    flags.model = model;
    if (flags.is_vader()) fail(ErrorCode::usage, "brim bench streams: VADER needs no stream");
    options.push_back(flags.options());
  }
  const auto engines = Engine::open_together(options);
  int64_t held = 0;
  for (const auto& e : engines) held += e->plan().peak_bytes - e->plan().device.context_bytes;
  fmt::print("{} on {}, {} planned together\n\n", fmt::join(f.models, " and "), engines[0]->device().name(),
             format_bytes(held + engines[0]->plan().device.context_bytes));
  const auto texts = read_texts(f.texts, 20'000);
  fmt::print("{:>16}  {:>34}  {:>34}  {:>8}  {}\n", "tokens per batch", "in turn, tokens/s", "at once, tokens/s",
             "gain", "range");
  OtherProcesses others;
  std::vector<OverlapPoint> points;
  for (int64_t tokens : {32, 256, 2048, 16384, 65536}) {
    for (const auto& e : engines) tokens = std::min(tokens, e->plan().token_budget);
    if (!points.empty() && tokens == points.back().tokens) break;
    points.push_back(measure_overlap(engines, texts, tokens, f.seconds));
  }
  const bool card = engines[0]->device().kind() == DeviceKind::cuda;
  fmt::print("\n{}\n", rendered(overlap_verdict(points, card ? "this card" : "this CPU")));
  if (const auto load = others.load(); load.disturbs()) fmt::print("note: {} meanwhile\n", load.text());
  return 0;
}

int run_latency(const BenchFlags& f) {
  if (f.engine.is_vader()) fail(ErrorCode::usage, "brim bench latency: name a model with a head");
  if (f.count < 1) fail(ErrorCode::usage, "--count {}: must be at least 1", f.count);
  const auto engine = f.engine.open();
  const auto texts = read_texts(f.texts, static_cast<size_t>(f.count));
  OtherProcesses others;
  std::vector<double> ms;
  for (int round = 0; round < 2; ++round) {  // the first warms up
    ms.clear();
    for (int64_t i = 0; i < f.count; ++i) {
      const std::string_view text = texts[static_cast<size_t>(i) % texts.size()];
      const int64_t begin = now_ns();
      (void)engine->score({&text, 1});
      ms.push_back(seconds_since(begin) * 1e3);
    }
  }
  const Spread s = spread_of(std::move(ms));
  if (const auto load = others.load(); load.disturbs()) log_info("{} meanwhile", load.text());
  fmt::print("{} one at a time on {}, {}: p50 {:.3f} ms, p95 {:.3f} ms, p99 {:.3f} ms, most {:.3f} ms\n",
             format_count(f.count, "text"), engine->device().name(), precision_name(engine->precision()), s.p50, s.p95,
             s.p99, s.most);
  return 0;
}

}  // namespace

std::function<int()> setup_bench(CLI::App& app) {
  auto f = std::make_shared<BenchFlags>();
  f->streams = app.add_subcommand("streams", "two models at once on one device, against in turn");
  f->streams->add_option("--models", f->models, "models that share the device")->delimiter(',')->required();
  f->streams->add_option("--seconds", f->seconds, "time for each measurement, in seven rounds")->capture_default_str();
  f->latency = app.add_subcommand("latency", "one text at a time, text in to label out");
  f->latency->add_option("--count", f->count, "how many")->capture_default_str();
  app.add_option("--texts", f->texts, "file of texts")->required();
  f->engine.add_to(app, false);
  app.remove_option(app.get_option("--trace"));
  app.require_subcommand(1);
  app.fallthrough();
  f->streams->fallthrough();
  f->latency->fallthrough();
  return [f] { return f->streams->parsed() ? run_streams(*f) : run_latency(*f); };
}

}  // namespace brim
