// SPDX-License-Identifier: Apache-2.0
// The measurements that go through the library's Scorer, and the subcommands of all measurements.
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
#include "cli/measurements.h"
#include "engine/score_rows.h"
#include "io/compress.h"
#include "jobs/spread.h"
#include "monitor/host.h"
#include "rows/row_reader.h"

namespace brim::cli {
namespace {

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

}  // namespace

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

int measure_latency(const MeasureFlags& f) {
  if (f.count < 1) fail(ErrorCode::usage, "--count {}: must be at least 1", f.count);
  const auto scorer = f.engine.open();
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

int measure_deterministic(const MeasureFlags& f) {
  f.engine.refuse_rules("brim profile deterministic: needs a classifier other than vader; choose one with --model");
  const auto texts = read_texts(f.texts, SIZE_MAX);
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const auto n = static_cast<double>(texts.size());
  const size_t alone = std::min(texts.size(), static_cast<size_t>(std::max<int64_t>(1, f.count)));
  struct Variant {
    std::shared_ptr<Scorer> scorer;
    std::vector<double> rates, ms;
    size_t other_bits = 0;
  };
  std::array<Variant, 2> variants;  // default, deterministic
  std::vector<double> many_ratio, one_ratio;
  for (size_t w = 0; w < 2; ++w) {
    ScorerOptions options = f.engine.scorer_options();
    options.deterministic = w == 1;
    variants[w].scorer = Scorer::open(options);
  }
  Prediction prediction;
  for (int round = 0; round <= f.rounds; ++round) {  // the first round warms up
    for (Variant& variant : variants) {
      const int64_t begin = now_ns();
      const Predictions together = variant.scorer->score(views);
      variant.rates.push_back(n / seconds_since(begin));
      std::vector<double> ms;
      variant.other_bits = 0;
      for (size_t i = 0; i < alone; ++i) {
        ms.push_back(submit_and_wait(*variant.scorer, texts[i], prediction));
        variant.other_bits +=
            !std::equal(prediction.scores.begin(), prediction.scores.end(), &together.scores[i * together.width]);
      }
      variant.ms.push_back(jobs::spread_of(std::move(ms)).p50);
      if (round == 0) {
        variant.rates.clear();
        variant.ms.clear();
      }
    }
    if (round == 0) continue;
    many_ratio.push_back(variants[1].rates.back() / variants[0].rates.back());
    one_ratio.push_back(variants[1].ms.back() / variants[0].ms.back());
  }
  fmt::print("{} on {}, {}, {} rounds\n", format_count(static_cast<int64_t>(texts.size()), "text"),
             variants[0].scorer->device(), variants[0].scorer->precision(), f.rounds);
  const char* const names[] = {"default", "deterministic"};
  for (size_t w = 0; w < 2; ++w)
    fmt::print("{:<14} {:>10} texts/s in batches, {:.3f} ms alone (p50); scores of {} of {} texts differ when alone\n",
               names[w], format_si(jobs::spread_of(variants[w].rates).p50), jobs::spread_of(variants[w].ms).p50,
               variants[w].other_bits, alone);
  const jobs::Spread many = jobs::spread_of(many_ratio), one = jobs::spread_of(one_ratio);
  fmt::print("overhead: {:.3f}× the speed in batches ({:.3f} to {:.3f}), {:.3f}× the time alone ({:.3f} to {:.3f})\n",
             many.p50, many.least, many.most, one.p50, one.least, one.most);
  if (variants[1].other_bits > 0) fail(ErrorCode::internal, "deterministic scores depend on batch composition");
  return 0;
}

int measure_library(const MeasureFlags& f) {
  f.engine.refuse_rules("brim profile library: needs a classifier other than vader; choose one with --model");
  if (f.callers < 1) fail(ErrorCode::usage, "--callers {}: must be at least 1", f.callers);
  const auto texts = read_texts(f.texts, SIZE_MAX);
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  std::string bytes;
  for (const auto& text : texts) bytes += text + "\n";
  const auto n = static_cast<double>(texts.size());
  const auto from_rows = f.engine.open(), scorer = f.engine.open();
  std::vector<int32_t> from_file;
  std::vector<double> file, many, callers, many_ratio, callers_ratio, waits;
  for (int round = 0; round <= f.rounds; ++round) {  // the first round warms up
    int64_t begin = now_ns();
    rows::RowReaderOptions lines;
    lines.format = rows::RowFormat::txt;
    rows::RowReader reader(io::memory_source("texts", bytes), lines);
    from_file.clear();
    engine::score_rows(*from_rows, reader,
                       [&](engine::ScoredChunk& chunk) {
                         for (const engine::Choice& choice : chunk.choices) from_file.push_back(choice.label);
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

std::vector<Measurement> add_measurements(CLI::App& app, MeasureFlags& f) {
  CLI::App* streams = app.add_subcommand("streams", "two models on one device: concurrently and taking turns");
  streams->add_option("--models", f.models, "models that share the device")->delimiter(',')->required();
  streams->add_option("--seconds", f.seconds, "seconds per measurement, in seven rounds")->capture_default_str();
  CLI::App* latency = app.add_subcommand("latency", "latency of single texts through the library");
  latency->add_option("--count", f.count, "number of texts")->capture_default_str();
  CLI::App* library =
      app.add_subcommand("library", "library calls with many texts or many callers, compared with a file");
  library->add_option("--callers", f.callers, "threads that submit one text at a time")->capture_default_str();
  library->add_option("--rounds", f.rounds, "number of measurements")->capture_default_str();
  CLI::App* deterministic = app.add_subcommand("deterministic", "overhead of --deterministic");
  deterministic->add_option("--count", f.count, "number of texts to score alone")->capture_default_str();
  deterministic->add_option("--rounds", f.rounds, "number of measurements")->capture_default_str();
  return {{streams, measure_streams},
          {latency, measure_latency},
          {library, measure_library},
          {deterministic, measure_deterministic}};
}

void add_measurement_input(CLI::App& app, MeasureFlags& f) {
  app.add_option("--texts", f.texts, "file of texts")->required();
  f.engine.add_to(app, false);
  app.remove_option(app.get_option("--trace"));
}

}  // namespace brim::cli
