// SPDX-License-Identifier: Apache-2.0
// brim embed and brim tokenize: one JSON object per line and text. Labels are written by brim score.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <map>
#include <memory>
#include <span>

#include "base/clock.h"
#include "base/error.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "base/units.h"
#include "cli/engine_flags.h"
#include "cli/setting_flags.h"
#include "cli/summary.h"
#include "cli/verb.h"
#include "engine/label.h"
#include "engine/score_rows.h"
#include "hub/model_dir.h"
#include "io/compress.h"
#include "rows/file_checks.h"
#include "rows/jsonl.h"
#include "rows/resume.h"
#include "rows/row_reader.h"

namespace brim::cli {
namespace {

struct TextFlags {
  std::vector<std::string> inputs;
  std::string output = "-", format = "auto", text_column;
  DialectFlags dialect;
  void add_to(CLI::App& app) {
    app.add_option("input", inputs, "files of texts; -: stdin");
    app.add_option("-o,--output", output, "output file of JSON lines; -: stdout")->capture_default_str();
    app.add_option("--format", format, "auto, txt, csv, tsv or jsonl")->capture_default_str();
    dialect.add_to(app);
    app.add_option("--text-column", text_column, "column or key of the text");
  }
  rows::RowReader open(const char* verb) {
    if (inputs.empty()) {
      if (is_terminal(STDIN_FILENO)) fail(ErrorCode::usage, "brim {}: no input; name a file or pipe texts in", verb);
      inputs = {"-"};
    }
    rows::RowReaderOptions options;
    options.format = rows::parse_row_format(format);
    options.text_column = text_column;
    dialect.apply(options);
    rows::refuse_output_over_input(output, inputs);
    return rows::RowReader(inputs, options);
  }
};

// One bad row fails these commands: there is no meaningful empty vector.
void throw_first(const std::vector<std::string>& inputs, const rows::RowChunk& rows,
                 const std::vector<rows::RowError>& errors) {
  if (errors.empty()) return;
  throw placed_error(inputs, rows, errors.front().row, errors.front().error);
}

struct EmbedFlags {
  TextFlags text;
  CacheFlag cache;
  EngineFlags engine;
  std::string pooling = "auto", prompt_name;
  bool normalize = false;
};

int run_embed(EmbedFlags f) {
  static const std::map<std::string, Pooling> poolings = {
      {"auto", Pooling::automatic}, {"mean", Pooling::mean}, {"cls", Pooling::cls}};
  const auto pooling = poolings.find(f.pooling);
  if (pooling == poolings.end()) fail(ErrorCode::usage, "--pooling {}: use auto, mean or cls", f.pooling);
  (void)f.cache.bytes();
  f.engine.refuse_rules("--model vader: VADER has no embeddings; choose a model directory");
  f.engine.start_trace();
  rows::RowReader reader = f.text.open("embed");
  const int64_t opened = now_ns();
  f.engine.pooling = pooling->second;
  f.engine.prompt_name = f.prompt_name;
  const std::shared_ptr<Scorer> scorer = f.engine.open();
  const double load_seconds = seconds_since(opened);
  rows::RowOutputOptions output_options;
  output_options.stop = &stop_requested();
  rows::RowOutput output(f.text.output, {}, output_options);
  std::string line;
  const auto sink = [&](engine::ScoredChunk& chunk) {
    throw_first(f.text.inputs, chunk.rows, chunk.errors);
    for (size_t row = 0; row < chunk.rows.size(); ++row) {
      const auto width = static_cast<size_t>(chunk.width);
      const std::span<float> vector(&chunk.scores[row * width], width);
      if (f.normalize) engine::normalize(vector);
      line = "{\"embedding\":[";
      for (const float value : vector) {
        char digits[32];
        if (line.back() != '[') line += ',';
        line.append(digits, static_cast<size_t>(std::to_chars(digits, digits + sizeof digits, value).ptr - digits));
      }
      line += "]}\n";
      output.write_row(line, chunk.rows.position_after(row));
    }
    if (f.text.output == "-") output.flush();
  };
  Progress progress("embedding", STDERR_FILENO, f.engine.quiet);
  const auto on_progress = [&](const engine::PipelineStats& now) {
    progress.update({static_cast<double>(now.file_bytes),
                     static_cast<double>(std::max<int64_t>(0, reader.bytes_total())), format_count(now.rows, "row")});
  };
  engine::PipelineOptions options;
  options.stop = &stop_requested();
  options.repeated_bytes = f.cache.bytes();
  stop_on_signals();
  const engine::RowReport report = engine::score_rows(*scorer, reader, sink, on_progress, options);
  progress.finish();
  f.engine.write_trace();
  if (stop_requested()) fail(ErrorCode::interrupted, "interrupted after {}", format_count(report.all.rows, "row"));
  output.commit();
  if (!f.engine.quiet)
    put_stderr(summarize({scorer.get()}, {""}, report, {{"blank lines", reader.blank_lines()}}, load_seconds).text());
  return 0;
}

struct TokenizeFlags {
  TextFlags text;
  std::string model;
  EngineFlags engine;  // only its thread count is used
};

void append_encoding(std::string& out, const text::Encoding& e) {
  out += "{\"ids\":[";
  for (size_t i = 0; i < e.ids.size(); ++i) fmt::format_to(std::back_inserter(out), "{}{}", i > 0 ? "," : "", e.ids[i]);
  out += "],\"tokens\":[";
  for (size_t i = 0; i < e.tokens.size(); ++i) {
    if (i > 0) out += ',';
    rows::append_json_string(out, e.tokens[i]);
  }
  out += "],\"offsets\":";
  if (e.offsets.empty() && !e.ids.empty()) {
    out += "null}\n";  // fastBPE tokenizers have no offsets
    return;
  }
  out += '[';
  for (size_t i = 0; i < e.offsets.size(); ++i)
    fmt::format_to(std::back_inserter(out), "{}[{},{}]", i > 0 ? "," : "", e.offsets[i].first, e.offsets[i].second);
  out += "]}\n";
}

int run_tokenize(TokenizeFlags f) {
  if (f.model.empty() || hub::names_vader(f.model))
    fail(ErrorCode::usage, "--model {}: must be a model directory", f.model);
  const auto tokenizer = text::Tokenizer::load(resolve_model(f.model, hub::model_search_path(hub::model_roots())));
  rows::RowReader reader = f.text.open("tokenize");
  rows::RowOutput output(f.text.output, {}, {});
  ThreadPool pool(f.engine.threads > 0 ? f.engine.threads : hardware_threads());
  rows::RowChunk chunk;
  std::vector<std::string> lines;
  while (reader.next_chunk(chunk)) {
    throw_first(f.text.inputs, chunk, chunk.errors);
    lines.assign(chunk.size(), {});
    pool.parallel_for(chunk.size(),
                      [&](size_t row, int) { append_encoding(lines[row], tokenizer->encode(chunk.texts[row])); });
    for (size_t row = 0; row < chunk.size(); ++row) output.write_row(lines[row], chunk.position_after(row));
    if (f.text.output == "-") output.flush();
  }
  output.commit();
  return 0;
}

}  // namespace

std::function<int()> setup_embed(CLI::App& app) {
  auto f = std::make_shared<EmbedFlags>();
  f->text.add_to(app);
  app.add_option("--pooling", f->pooling,
                 "mean of the token vectors, cls (vector of the first token), or auto: from the model's "
                 "sentence-transformers files, else mean")
      ->capture_default_str();
  app.add_option("--prompt-name", f->prompt_name,
                 "prompt from the model's sentence-transformers files (default: their default prompt)");
  app.add_flag("--normalize", f->normalize, "scale vectors to length 1");
  f->cache.add_to(app);
  f->engine.add_to(app, false);
  return [f] { return run_embed(*f); };
}

std::function<int()> setup_tokenize(CLI::App& app) {
  auto f = std::make_shared<TokenizeFlags>();
  f->text.add_to(app);
  app.add_option("-m,--model", f->model, "directory with tokenizer files")->required();
  add_flags(app, engine_settings(), f->engine, {"threads"});
  return [f] { return run_tokenize(*f); };
}

}  // namespace brim::cli
