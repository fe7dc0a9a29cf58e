// SPDX-License-Identifier: Apache-2.0
#include "cli/engine_flags.h"

#include <CLI/CLI.hpp>

#include "base/env.h"
#include "base/error.h"
#include "base/timeline.h"
#include "base/units.h"
#include "cli/verb.h"
#include "io/atomic_file.h"
#include "ops/linear.h"
#include "plan/plan.h"

namespace brim {

void EngineFlags::add_to(CLI::App& app, bool with_vader, std::vector<std::string>* models) {
  model = default_model();
  if (with_vader) model = env("SENTIMENT_MODEL_NAME").value_or(model);
  std::string help =
      with_vader ? "model directory or name (vader, finbert, distilbert, roberta, …)" : "model directory or name";
  if (models != nullptr) {
    *models = {model};
    help += "; given again, the rows get both models' columns, each with its model's name or NAME of NAME=MODEL";
    app.add_option("-m,--model", *models, help)->allow_extra_args(false)->capture_default_str();
  } else {
    app.add_option("-m,--model", model, help)->capture_default_str();
  }
  app.add_option("--device", device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--precision", precision, "auto, fp32, tf32, bf16, fp16, fp8 or int8")->capture_default_str();
  app.add_option("--memory-limit", memory_limit, "bytes this process may hold on the device: 6GiB, 90% or auto")
      ->capture_default_str();
  app.add_option("--threads", threads, "CPU threads; 0 takes all cores")->capture_default_str();
  app.add_option("--max-length", max_length, "longest text in tokens; 0 takes the model's own")->capture_default_str();
  app.add_option("--long-text", long_text, "texts that are longer: truncate, window-mean, window-max or error")
      ->capture_default_str();
  app.add_flag("--fill", fill, "use all allowed memory, even where it is no faster");
  app.add_flag("-q,--quiet", quiet, "no progress, no summary");
  app.add_option("--trace", trace, "write a timeline of the run to this file (open it in ui.perfetto.dev)");
}

EngineOptions EngineFlags::options() const {
  const auto policy = long_text_from_name(long_text);
  if (!policy) fail(ErrorCode::usage, "--long-text {}: use truncate, window-mean, window-max or error", long_text);
  if (max_length < 0) fail(ErrorCode::usage, "--max-length {}: must not be negative", max_length);
  if (is_vader()) {  // nothing else looks at them
    check_threads(threads);
    if (device != "auto" && device != "cpu" && device != "cuda" && !device.starts_with("cuda:"))
      fail(ErrorCode::usage, "--device {}: unknown device; use auto, cpu, cuda or cuda:N", device);
    if (!same_word(precision, "auto") && !precision_from_name(precision))
      fail(ErrorCode::usage, "--precision {}: use auto, fp32, tf32, bf16, fp16, fp8 or int8", precision);
    (void)MemoryLimit::resolve(memory_limit, {}, "cpu");
  }
  EngineOptions options;
  if (!is_vader()) options.model_dir = resolve_model(model, model_places(model_roots()));
  options.device = device;
  options.precision = lower_case(precision);
  options.threads = threads;
  options.memory_limit = memory_limit;
  options.max_length = max_length;
  options.long_text = *policy;
  options.fill = fill;
  return options;
}

void DialectFlags::add_to(CLI::App& app) {
  app.add_option(
      "--delimiter", delimiter,
      "what separates the columns of csv and tsv inputs, where it is neither comma nor tab: ';', '|', …, or tab");
  app.add_flag("--no-quotes", no_quotes, "quotes in csv and tsv inputs are characters like any other");
}

char DialectFlags::character() const {
  if (delimiter.empty()) return 0;
  const auto character = parse_delimiter(delimiter);
  if (!character)
    fail(ErrorCode::usage, "--delimiter {}: give one character that is no letter, digit or quote, or tab", delimiter);
  return *character;
}

void check_threads(int threads) {
  if (threads < 0 || threads > 1024)
    fail(ErrorCode::usage, "--threads {}: give a number from 1 to 1024, or 0 for all cores", threads);
}

std::unique_ptr<Engine> EngineFlags::open(std::optional<Output> output) const {
  EngineOptions all = options();  // checks the flags, VADER's too
  if (is_vader()) return nullptr;
  all.output = output;
  return Engine::open(all);
}

void EngineFlags::start_trace() const {
  if (trace.empty()) return;
  require_writable(trace);
  Timeline::enable(true);
  Timeline::name_thread("main");
}

void EngineFlags::write_trace(const std::string& record) const {
  if (trace.empty()) return;
  Timeline::enable(false);
  write_file_atomically(trace, Timeline::chrome_trace(record));
}

}  // namespace brim
