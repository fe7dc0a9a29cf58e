// SPDX-License-Identifier: Apache-2.0
// Benchmarks: `brim bench` with these subcommands. Training and file formats are not measured here.
// streams: two models running concurrently on one GPU against taking turns, for several batch sizes.
// latency: one text at a time from text to label, through the library.
// library: bulk calls and many callers against a file of the same texts.
// deterministic: the overhead of batch-invariant scores.
// serve: see bench_serve.cc.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "brim/brim.h"
#include "cli/bench_serve.h"
#include "cli/engine_flags.h"
#include "cli/render.h"
#include "cli/verb.h"
#include "engine/label.h"
#include "engine/pipeline.h"
#include "io/compress.h"
#include "jobs/overlap.h"
#include "jobs/spread.h"
#include "monitor/host.h"
#include "rows/row_reader.h"

namespace brim::cli {

using batch::PackedBatch;

namespace {

struct BenchFlags {
  CLI::App *streams = nullptr, *latency = nullptr, *library = nullptr, *deterministic = nullptr, *serve = nullptr;
  EngineFlags engine;
  std::vector<std::string> models;
  std::string texts;
  double seconds = 1;
  int64_t count = 2000;
  int callers = 64, rounds = 5;
};

std::vector<std::string> read_texts(const std::string& path, size_t most) {
  rows::RowReader reader({path}, {});
  std::vector<std::string> texts;
  rows::RowChunk chunk;
  while (texts.size() < most && reader.next_chunk(chunk))
    for (size_t i = 0; i < chunk.size() && texts.size() < most; ++i)
      if (!chunk.texts[i].empty()) texts.emplace_back(chunk.texts[i]);
  if (texts.empty()) fail(ErrorCode::bad_data, "{}: no texts", path);
  return texts;
}

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

// Both variants alternate within a round, so that they run under the same conditions.
jobs::OverlapPoint measure_overlap(const std::vector<std::unique_ptr<engine::Engine>>& engines,
                                   const std::vector<std::string>& texts, int64_t tokens, double seconds) {
  constexpr int kRounds = 7;
  const size_t n = engines.size();
  std::vector<std::vector<PackedBatch>> batches;
  for (const auto& e : engines) batches.push_back(make_batches(*e, texts, tokens, 64));
  for (size_t i = 0; i < n; ++i)
    (void)run_alone(*engines[i], batches[i], std::min(0.2, seconds));  // warms up caches and clocks
  std::vector<std::vector<double>> alone(n), together(n);
  std::vector<double> gains;
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < n; ++i) alone[i].push_back(run_alone(*engines[i], batches[i], seconds / kRounds));
    std::vector<std::thread> threads;
    for (auto& rates : together) rates.push_back(0);
    for (size_t i = 0; i < n; ++i)
      threads.emplace_back([&, i] { together[i].back() = run_alone(*engines[i], batches[i], seconds / kRounds); });
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
  jobs::OverlapPoint p{tokens, jobs::spread_of(gains)};
  fmt::print("{:>16}  {:>34}  {:>34}  {:>7.2f}×  {:.2f}× to {:.2f}×\n", format_count(tokens), medians(alone),
             medians(together), p.gain.p50, p.gain.least, p.gain.most);
  return p;
}

int run_streams(const BenchFlags& f) {
  if (f.models.size() < 2) fail(ErrorCode::usage, "brim bench streams: needs two models (--models A,B)");
  std::vector<engine::EngineOptions> options;
  for (const auto& model : f.models) {
    EngineFlags flags = f.engine;
    flags.model = model;
    if (flags.is_vader())
      fail(ErrorCode::usage, "brim bench streams: VADER does not use the device; choose other models");
    options.push_back(flags.options());
  }
  // Opened separately, each with its own stream and part of the limit: models opened together would take turns.
  const auto device = device::open_device(options[0].device, options[0].threads);
  const int64_t limit = options[0].memory_limit.on(device->memory(), device->name());
  std::vector<std::unique_ptr<engine::Engine>> engines;
  int64_t planned = 0;
  for (engine::EngineOptions& o : options) {
    o.memory_limit =
        plan::MemoryLimit::read(fmt::format("{}MiB", (limit / static_cast<int64_t>(options.size())) >> 20));
    engines.push_back(engine::Engine::open(o));
    planned += engines.back()->plan().peak_bytes;
  }
  fmt::print("{} on {}, {} planned in total\n\n", fmt::join(f.models, " and "), device->name(), format_bytes(planned));
  const auto texts = read_texts(f.texts, 20'000);
  fmt::print("{:>16}  {:>34}  {:>34}  {:>8}  {}\n", "tokens per batch", "taking turns, tokens/s",
             "concurrent, tokens/s", "gain", "range");
  monitor::OtherProcesses others;
  std::vector<jobs::OverlapPoint> points;
  for (int64_t tokens : {32, 256, 2048, 16384, 65536}) {
    for (const auto& e : engines) tokens = std::min(tokens, e->plan().token_budget);
    if (!points.empty() && tokens == points.back().tokens) break;
    points.push_back(measure_overlap(engines, texts, tokens, f.seconds));
  }
  const bool card = engines[0]->device().kind() == device::DeviceKind::cuda;
  fmt::print("\n{}\n", rendered(overlap_verdict(points, card ? "this GPU" : "this CPU")));
  if (const auto load = others.load(); load.disturbs()) fmt::print("note: during the measurement {}\n", load.text());
  return 0;
}

// Each of `callers` threads submits `texts` one by one and waits for every result. Returns milliseconds per text.
std::vector<double> submit_one_by_one(Scorer& scorer, const std::vector<std::string>& texts, int callers) {
  std::vector<double> ms(texts.size());
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::optional<Error> error;
  const auto call = [&] {
    for (size_t i; (i = next.fetch_add(1)) < texts.size();) {
      const int64_t begin = now_ns();
      const Prediction prediction = scorer.submit({.text = texts[i]}).get();
      ms[i] = seconds_since(begin) * 1e3;
      if (!prediction.error) continue;
      std::lock_guard lock(mutex);
      error = prediction.error;
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < callers; ++t) threads.emplace_back(call);
  for (auto& t : threads) t.join();
  if (error) throw *error;
  return ms;
}

// Completion with a spinning caller, so that the GPU's latency does not include waking a thread.
class Spin final : public Completion {
 public:
  void done(std::span<Answer> answers) noexcept override {
    prediction_ = std::move(answers[0].prediction);
    here_.store(true, std::memory_order_release);
  }
  Prediction wait() {
    while (!here_.load(std::memory_order_acquire)) {
    }
    return std::move(prediction_);
  }

 private:
  Prediction prediction_;
  std::atomic<bool> here_{false};
};

// On the CPU a spinning caller would take a core from the computation: 7.4 instead of 2.5 ms with two cores.
bool may_spin(const Scorer& scorer) { return !scorer.device().starts_with("cpu"); }

// Milliseconds until the caller has its result.
double submit_and_wait(Scorer& scorer, const std::string& text, Prediction& prediction) {
  Spin answer;
  const bool spins = may_spin(scorer);
  const int64_t begin = now_ns();
  if (spins) {
    scorer.submit({.text = text}, answer);
    prediction = answer.wait();
  } else {
    prediction = scorer.submit({.text = text}).get();
  }
  const double ms = seconds_since(begin) * 1e3;
  if (prediction.error) throw *prediction.error;
  return ms;
}

int run_latency(const BenchFlags& f) {
  if (f.count < 1) fail(ErrorCode::usage, "--count {}: must be at least 1", f.count);
  const auto scorer = Scorer::open(f.engine.scorer_options());
  const auto given = read_texts(f.texts, static_cast<size_t>(f.count));
  std::vector<std::string> texts;
  for (size_t i = 0; i < static_cast<size_t>(f.count); ++i) texts.push_back(given[i % given.size()]);
  monitor::OtherProcesses others;
  const double sleeping = jobs::spread_of(submit_one_by_one(*scorer, texts, 1)).p50;  // also warms up
  std::vector<double> ms;
  Prediction prediction;
  for (const std::string& text : texts) ms.push_back(submit_and_wait(*scorer, text, prediction));
  const jobs::Spread s = jobs::spread_of(ms);
  if (const auto load = others.load(); load.disturbs()) log_info("during the measurement {}", load.text());
  fmt::print("{} one at a time on {}, {}: p50 {:.3f} ms, p95 {:.3f} ms, p99 {:.3f} ms, max {:.3f} ms{}\n",
             format_count(f.count, "text"), scorer->device(), scorer->precision(), s.p50, s.p95, s.p99, s.most,
             may_spin(*scorer) ? fmt::format("; p50 {:.3f} ms without spinning", sleeping) : "");
  return 0;
}

// Alternates between both modes: many texts at once, and some of them alone, which must have bitwise equal scores.
int run_deterministic(const BenchFlags& f) {
  if (f.engine.is_vader())
    fail(ErrorCode::usage, "brim bench deterministic: needs a classifier other than vader; choose one with --model");
  const auto texts = read_texts(f.texts, SIZE_MAX);
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const auto n = static_cast<double>(texts.size());
  const size_t alone = std::min(texts.size(), static_cast<size_t>(std::max<int64_t>(1, f.count)));
  struct Way {
    std::shared_ptr<Scorer> scorer;
    std::vector<double> rates, ms;
    size_t other_bits = 0;
  };
  std::array<Way, 2> ways;  // default, deterministic
  std::vector<double> many_ratio, one_ratio;
  for (size_t w = 0; w < 2; ++w) {
    ScorerOptions options = f.engine.scorer_options();
    options.deterministic = w == 1;
    ways[w].scorer = Scorer::open(options);
  }
  Prediction prediction;
  for (int round = 0; round <= f.rounds; ++round) {  // the first round warms up
    for (Way& way : ways) {
      const int64_t begin = now_ns();
      const Predictions together = way.scorer->score(views);
      way.rates.push_back(n / seconds_since(begin));
      std::vector<double> ms;
      way.other_bits = 0;
      for (size_t i = 0; i < alone; ++i) {
        ms.push_back(submit_and_wait(*way.scorer, texts[i], prediction));
        way.other_bits +=
            !std::equal(prediction.scores.begin(), prediction.scores.end(), &together.scores[i * together.width]);
      }
      way.ms.push_back(jobs::spread_of(std::move(ms)).p50);
      if (round == 0) {
        way.rates.clear();
        way.ms.clear();
      }
    }
    if (round == 0) continue;
    many_ratio.push_back(ways[1].rates.back() / ways[0].rates.back());
    one_ratio.push_back(ways[1].ms.back() / ways[0].ms.back());
  }
  fmt::print("{} on {}, {}, {} rounds\n", format_count(static_cast<int64_t>(texts.size()), "text"),
             ways[0].scorer->device(), ways[0].scorer->precision(), f.rounds);
  const char* const names[] = {"default", "deterministic"};
  for (size_t w = 0; w < 2; ++w)
    fmt::print("{:<14} {:>10} texts/s in batches, {:.3f} ms alone (p50); scores of {} of {} texts differ when alone\n",
               names[w], format_si(jobs::spread_of(ways[w].rates).p50), jobs::spread_of(ways[w].ms).p50,
               ways[w].other_bits, alone);
  const jobs::Spread many = jobs::spread_of(many_ratio), one = jobs::spread_of(one_ratio);
  fmt::print("overhead: {:.3f}× the speed in batches ({:.3f} to {:.3f}), {:.3f}× the time alone ({:.3f} to {:.3f})\n",
             many.p50, many.least, many.most, one.p50, one.least, one.most);
  if (ways[1].other_bits > 0) fail(ErrorCode::internal, "deterministic scores depend on batch composition");
  return 0;
}

// Compares single and bulk calls of the library with a file, alternating under the same conditions.
int run_library(const BenchFlags& f) {
  if (f.engine.is_vader())
    fail(ErrorCode::usage, "brim bench library: needs a classifier other than vader; choose one with --model");
  if (f.callers < 1) fail(ErrorCode::usage, "--callers {}: must be at least 1", f.callers);
  const auto texts = read_texts(f.texts, SIZE_MAX);
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  std::string bytes;
  for (const auto& text : texts) bytes += text + "\n";
  const auto n = static_cast<double>(texts.size());
  const auto engine = f.engine.open_engine();
  const auto scorer = Scorer::open(f.engine.scorer_options());
  std::vector<int32_t> from_file;
  std::vector<double> file, many, callers, many_ratio, callers_ratio, waits;
  for (int round = 0; round <= f.rounds; ++round) {  // the first round warms up
    int64_t begin = now_ns();
    rows::RowReaderOptions lines;
    lines.format = rows::RowFormat::txt;
    rows::RowReader reader(io::memory_source("texts", bytes), lines);
    from_file.clear();
    run_pipeline(*engine, reader,
                 [&](engine::ScoredChunk& chunk) {
                   const auto width = static_cast<size_t>(chunk.width);
                   for (size_t row = 0; row < chunk.rows.size(); ++row)
                     from_file.push_back(engine::choose_label({&chunk.scores[row * width], width}).label);
                 },
                 nullptr, {});
    const double file_seconds = seconds_since(begin);
    begin = now_ns();
    const Predictions scored = scorer->score(views);
    const double many_seconds = seconds_since(begin);
    // Other batches round differently, which may change a label in a near tie.
    int64_t others = 0;
    for (size_t i = 0; i < texts.size(); ++i) others += scored.labels[i] != from_file.at(i);
    if (static_cast<double>(others) > 0.002 * n)
      fail(ErrorCode::internal, "{} of {} labels differ from those of the file", others, texts.size());
    begin = now_ns();
    const auto ms = submit_one_by_one(*scorer, texts, f.callers);
    const double caller_seconds = seconds_since(begin);
    if (round == 0) continue;
    file.push_back(n / file_seconds);
    many.push_back(n / many_seconds);
    callers.push_back(n / caller_seconds);
    many_ratio.push_back(file_seconds / many_seconds);
    callers_ratio.push_back(file_seconds / caller_seconds);
    waits.push_back(jobs::spread_of(ms).p50);
  }
  const auto line = [](const std::string& what, std::vector<double> rates, std::vector<double> ratios) {
    const jobs::Spread ratio = jobs::spread_of(std::move(ratios));
    fmt::print("{:<36} {:>12} texts/s   {:.3f}× ({:.3f} to {:.3f})\n", what,
               format_si(jobs::spread_of(std::move(rates)).p50), ratio.p50, ratio.least, ratio.most);
  };
  fmt::print("{} on {}, {}, {} rounds\n", format_count(static_cast<int64_t>(texts.size()), "text"), scorer->device(),
             scorer->precision(), f.rounds);
  line("lines of a file", file, std::vector<double>(file.size(), 1.0));
  line("Scorer::score", many, many_ratio);
  line(fmt::format("Scorer::submit, {} threads", f.callers), callers, callers_ratio);
  fmt::print("latency of a submitted text: p50 {:.3f} ms\n", jobs::spread_of(waits).p50);
  return 0;
}

}  // namespace

std::function<int()> setup_bench(CLI::App& app) {
  auto f = std::make_shared<BenchFlags>();
  f->streams = app.add_subcommand("streams", "two models on one device: concurrently and taking turns");
  f->streams->add_option("--models", f->models, "models that share the device")->delimiter(',')->required();
  f->streams->add_option("--seconds", f->seconds, "seconds per measurement, in seven rounds")->capture_default_str();
  f->latency = app.add_subcommand("latency", "latency of single texts through the library");
  f->latency->add_option("--count", f->count, "number of texts")->capture_default_str();
  f->library = app.add_subcommand("library", "library calls with many texts or many callers, compared with a file");
  f->library->add_option("--callers", f->callers, "threads that submit one text at a time")->capture_default_str();
  f->library->add_option("--rounds", f->rounds, "number of measurements")->capture_default_str();
  f->deterministic = app.add_subcommand("deterministic", "overhead of --deterministic");
  f->deterministic->add_option("--count", f->count, "number of texts to score alone")->capture_default_str();
  f->deterministic->add_option("--rounds", f->rounds, "number of measurements")->capture_default_str();
#if defined(BRIM_WITH_SERVE)
  f->serve = app.add_subcommand("serve", "a server under load: throughput, latency, rejections; labels are verified");
  auto serve = setup_bench_serve(*f->serve, f->engine, [f](size_t most) { return read_texts(f->texts, most); });
#endif
  app.add_option("--texts", f->texts, "file of texts")->required();
  f->engine.add_to(app, false);
  app.remove_option(app.get_option("--trace"));
  app.require_subcommand(1);
  app.fallthrough();
  f->streams->fallthrough();
  f->latency->fallthrough();
  f->library->fallthrough();
  f->deterministic->fallthrough();
#if defined(BRIM_WITH_SERVE)
  f->serve->fallthrough();
  return [f, serve] {
    if (f->serve->parsed()) return serve();
#else
  return [f] {
#endif
    if (f->streams->parsed()) return run_streams(*f);
    if (f->deterministic->parsed()) return run_deterministic(*f);
    return f->library->parsed() ? run_library(*f) : run_latency(*f);
  };
}

}  // namespace brim::cli
