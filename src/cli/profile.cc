// SPDX-License-Identifier: Apache-2.0
// brim profile: costs of models on this machine, alone and together with a language model; writes a JSON file and a
// page of plots. The measurements are in report/profile.h, those of its subcommands in cli/measurements.h.
#include "report/profile.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/engine_flags.h"
#include "cli/measurements.h"
#include "cli/render.h"
#include "cli/setting_flags.h"
#include "cli/verb.h"
#include "hub/model_dir.h"
#include "report/profile_change.h"

namespace brim::cli {
namespace {

struct ProfileFlags {
  std::string mode = "sentiment", models, sentiment_model, batch_sizes = "1,5,10,20,50,100", sizes, output_dir = ".",
              baseline;
  report::ProfileFile texts;
  double seconds = 1;
  bool json = false, quiet = false;
  EngineFlags engine;
  report::LlmOptions llm;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const size_t first = text.find_first_not_of(' ', at), last = text.find_last_not_of(' ', end == 0 ? 0 : end - 1);
    if (end > at && first < end) parts.push_back(text.substr(first, last - first + 1));
    at = end + 1;
  }
  return parts;
}

std::vector<int64_t> counts(const std::string& flag, const std::string& text) {
  std::vector<int64_t> out;
  for (const auto& part : split(text)) {
    const auto n = report::parse_count(part);
    if (!n) fail(ErrorCode::usage, "{} {}: '{}' is not a count such as 20, 5k or 1M", flag, text, part);
    out.push_back(*n);
  }
  if (out.empty()) fail(ErrorCode::usage, "{}: needs at least one number", flag);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

void in_flags(report::Profile& p) {
  const auto render = [](std::vector<std::string>& lines) {
    for (std::string& line : lines) line = rendered(line);
  };
  render(p.recommendations);
  render(p.notes);
  for (report::ModelProfile& m : p.models) {
    render(m.notes);
    for (report::SizePoint& s : m.sizes) s.run.held_back_by = rendered(s.run.held_back_by);
  }
  if (p.llm) render(p.llm->notes);
}

int run(const ProfileFlags& f) {
  if (f.mode != "sentiment" && f.mode != "llm" && f.mode != "full")
    fail(ErrorCode::usage, "--mode {}: use sentiment, llm or full", f.mode);
  if (f.mode == "sentiment" && !f.llm.url.empty())
    fail(ErrorCode::usage, "--llm-url: requires --mode llm or --mode full");
  if (!(f.seconds > 0)) fail(ErrorCode::usage, "--seconds {}: must be above 0", f.seconds);
  std::error_code ec;
  std::filesystem::create_directories(f.output_dir, ec);
  if (::access(f.output_dir.c_str(), W_OK) != 0)
    fail(ErrorCode::cannot_write, "--output-dir {}: cannot be created or written to", f.output_dir);
  const std::string before = f.baseline.empty() ? "" : report::read_profile(f.baseline);
  stop_on_signals();
  report::ProfileOptions options;
  options.engine = f.engine;
  options.seconds = f.seconds;
  options.stop = &stop_requested();
  options.batch_sizes = counts("--batch-sizes", f.batch_sizes);
  if (!f.sizes.empty()) {
    options.sizes = counts("--sizes", f.sizes);
    options.sizes_given = true;
  }
  if (f.mode != "sentiment") {
    options.llm = f.llm;
    options.llm->stop = options.stop;
  }
  if (f.mode != "llm") {
    std::vector<std::string> names = split(f.models);
    for (const auto& name : split(f.sentiment_model)) names.push_back(name);
    if (names.empty()) names = {env("SENTIMENT_MODEL_NAME").value_or(hub::default_model())};
    for (const auto& name : names) {
      if (std::any_of(options.models.begin(), options.models.end(), [&](const auto& m) { return m.first == name; }))
        continue;
      options.models.emplace_back(name, find_model(name));
    }
  }
  const auto most = static_cast<size_t>(std::max<int64_t>(1000, options.sizes.empty() ? 0 : options.sizes.back()));
  const report::ProfileTexts texts = report::load_profile_texts(f.texts, most);
  Progress progress("profiling", STDERR_FILENO, f.quiet);
  options.progress = [&](double done, double total, const std::string& what) { progress.update({done, total, what}); };
  report::Profile profile = run_profile(options, f.mode, texts);
  progress.finish();
  in_flags(profile);
  const report::ProfileFiles files = write_profile(profile, f.output_dir);
  fmt::print("{}", f.json ? profile_json(profile) : profile_table(profile));
  if (!before.empty() && !f.json) fmt::print("{}", report::profile_change(before, profile_json(profile), f.baseline));
  log_info("{} and {} written", files.json.string(), files.html.filename().string());
  return 0;
}

}  // namespace

std::function<int()> setup_profile(CLI::App& app) {
  auto f = std::make_shared<ProfileFlags>();
  app.add_option("--mode", f->mode,
                 "sentiment (classifiers), llm (a language model) or full (both, alone and together)")
      ->capture_default_str();
  // --model comes first so that the environment variable is BRIM_MODEL; BRIM_MODELS is the search path of models.
  app.add_option("-m,--model,--models", f->models,
                 "models to measure, separated by commas (vader, finbert, distilbert, roberta, a directory, …)");
  app.add_option("--sentiment-model", f->sentiment_model, "an additional model: finbert, distilbert, roberta or vader");
  app.add_option("--batch-sizes", f->batch_sizes, "numbers of texts per call")->capture_default_str();
  app.add_option("--sizes", f->sizes, "data set sizes: 1k,5k,50k (default: 1k,5k, if they take less than a minute)");
  app.add_option("--texts", f->texts.path, "file of texts (txt, csv, tsv, jsonl); default: generated headlines");
  app.add_option("--text-column", f->texts.text_column, "column or key of the text");
  app.add_option("--pair-column", f->texts.pair_column, "column or key of the second text of a pair");
  app.add_option("--label-column", f->texts.label_column, "column or key of the true label, for accuracy");
  app.add_option("--format", f->texts.format, "auto, txt, csv, tsv or jsonl")->capture_default_str();
  app.add_option("--output-dir", f->output_dir, "directory for gpu_profile_YYYYMMDD_HHMMSS.json and .html")
      ->capture_default_str();
  app.add_option("--baseline", f->baseline,
                 "earlier gpu_profile_….json to compare with; changes above noise are marked");
  app.add_option("--seconds", f->seconds, "seconds per batch size, in seven rounds")->capture_default_str();
  add_flags(app, engine_settings(), f->engine,
            {"device", "precision", "memory_limit", "leave_free", "threads", "max_length"});
  app.add_option("--llm-url", f->llm.url, "URL of the language model: Ollama or an OpenAI-compatible server");
  app.add_option("--llm-model", f->llm.model, "name of the language model");
  app.add_option("--llm-api", f->llm.api, "API of the language model: auto, ollama or openai")->capture_default_str();
  app.add_option("--llm-key", f->llm.key, "bearer key; set BRIM_LLM_KEY to keep it out of process lists");
  app.add_option("--llm-requests", f->llm.requests, "number of requests")->capture_default_str();
  app.add_option("--llm-max-tokens", f->llm.max_tokens, "maximum tokens per response")->capture_default_str();
  app.add_option("--llm-connect-timeout", f->llm.connect_s, "seconds to connect")->capture_default_str();
  app.add_option("--llm-first-token-timeout", f->llm.first_token_s, "seconds to the first token")
      ->capture_default_str();
  app.add_option("--llm-timeout", f->llm.total_s, "seconds for a whole response; longer ones are cut off")
      ->capture_default_str();
  app.add_flag("--json", f->json, "print JSON instead of the table; both files are always written");
  app.add_flag("-q,--quiet", f->quiet, "print no progress");
  auto single = std::make_shared<MeasureFlags>();
  const std::vector<Measurement> measurements = add_measurements(app, *single);
  for (const Measurement& m : measurements) {
    add_measurement_input(*m.app, *single);
    add_environment(*m.app);
  }
  app.require_subcommand(0, 1);
  return [f, single, measurements] {
    for (const Measurement& m : measurements)
      if (m.app->parsed()) return m.run(*single);
    return run(*f);
  };
}

}  // namespace brim::cli
