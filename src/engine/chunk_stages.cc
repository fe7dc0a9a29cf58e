// SPDX-License-Identifier: Apache-2.0
#include "engine/chunk_stages.h"

#include <algorithm>

#include "engine/entities.h"
#include "engine/label.h"

namespace brim::engine {
namespace {

void score_by_rules(const std::vector<size_t>& row_of_text, const rows::RowChunk& rows, ChunkScores& out) {
  out.width = kVaderWidth;
  out.scores.assign(rows.size() * kVaderWidth, 0.0f);
  out.choices.assign(rows.size(), {});
  for (const size_t r : row_of_text) {
    float* const four = &out.scores[r * kVaderWidth];
    score_by_vader(rows.texts[r], four);
    out.choices[r] = choose_vader_label(four);
  }
}

void drop_last_text(ModelTexts& texts) {
  if (texts.tokens.texts.empty()) return;  // VADER
  const TokenizedText last = texts.tokens.texts.back();
  texts.truncated -= last.truncated;
  texts.keep_first(texts.tokens.texts.size() - 1, last.first_window, texts.tokens.windows[last.first_window].begin);
}

// Rows with NaN or infinity in a model's output become errors without a label.
void drop_not_finite(ChunkJob& job, size_t m, const Engine& engine) {
  const ModelTexts& texts = job.models[m];
  const auto K = static_cast<size_t>(engine.row_width());
  std::vector<rows::RowError> failed;
  for (size_t t = 0; t < job.row_of_text.size(); ++t) {
    const auto results = texts.tokens.results_of(t, texts.window_scores, K, is_per_token(engine.output()));
    auto error = engine.check_finite(results);
    if (error && job.out.error(job.row_of_text[t]) == nullptr) failed.push_back({job.row_of_text[t], *error});
  }
  if (failed.empty()) return;
  std::vector<rows::RowError>& errors = job.out.errors;
  errors.insert(errors.end(), failed.begin(), failed.end());
  std::sort(errors.begin(), errors.end(),
            [](const rows::RowError& a, const rows::RowError& b) { return a.row < b.row; });
}

// The class of each word is that of its first token.
void word_tags(std::span<const text::WordSpan> words, const text::Encoding& encoding, const std::vector<float>& scores,
               size_t K, std::vector<int32_t>& tags) {
  for (const size_t token : first_tokens(encoding, words)) {
    if (token == text::kNoToken) {
      tags.push_back(-1);
      continue;
    }
    tags.push_back(choose_label({scores.data() + token * K, K}).label);
  }
}

}  // namespace

ChunkStages::ChunkStages(const std::vector<Engine*>& models, const PipelineOptions& options)
    : models_(models), options_(options) {
  for (size_t m = 0; m < models.size(); ++m)
    if (models[m] != nullptr) encoders_.push_back({m, models[m]});
}

const LabelTask* ChunkStages::zero_shot_of(const Engine& engine) const {
  return options_.zero_shot != nullptr ? options_.zero_shot : engine.zero_shot();
}

void ChunkStages::tokenize(ChunkJob& job) const {
  ScoredChunk& out = job.out;
  job.models.resize(models_.size());
  for (const auto& [m, engine] : encoders_) job.models[m].tokens.zero_shot = zero_shot_of(*engine);
  out.others.resize(models_.size() - 1);
  size_t known = 0;  // index into the reader's errors, by row
  for (size_t r = 0; r < out.rows.size(); ++r) {
    if (known < out.rows.errors.size() && out.rows.errors[known].row == r) {
      out.errors.push_back(out.rows.errors[known++]);
      continue;
    }
    if (!job.slots.empty() && job.slots[r].repeats) continue;
    if (auto error = tokenize_text(out.rows.texts[r], out.rows.pair(r), job.models))
      out.errors.push_back({r, *error});
    else
      job.row_of_text.push_back(r);
  }
  for (size_t m = 0; m < models_.size(); ++m)
    if (models_[m] == nullptr) score_by_rules(job.row_of_text, out.rows, out.of(m));
  for (const auto& [m, engine] : encoders_) {
    ModelTexts& texts = job.models[m];
    out.of(m).width = engine->width_of(texts.tokens);
    job.windows_left += texts.tokens.windows.size();
    const bool per_token = is_per_token(engine->output());
    const size_t results = per_token ? texts.tokens.ids.size() : texts.tokens.windows.size();
    texts.window_scores.resize(results * static_cast<size_t>(engine->row_width()));
  }
}

// Tokenizes one text for every model; if one of them rejects it, it is removed from all.
std::optional<Error> ChunkStages::tokenize_text(std::string_view text, std::optional<std::string_view> pair,
                                                std::vector<ModelTexts>& models) const {
  for (const auto& [m, engine] : encoders_) {
    ModelTexts& texts = models[m];
    TextOptions options = engine->text_options();
    if (options_.prompt) options.prompt = *options_.prompt;
    options.zero_shot = zero_shot_of(*engine);
    if (auto error = engine->tokenize(text, pair, texts.tokens, options)) {
      for (size_t before = 0; before < m; ++before) drop_last_text(models[before]);
      return error;
    }
    texts.truncated += texts.tokens.texts.back().truncated;
    if (is_per_token(engine->output()) && !engine->gliner())
      texts.encodings.push_back(engine->tokenizer().encode(text));
  }
  return std::nullopt;
}

void ChunkStages::finish(ChunkJob& job) const {
  for (const auto& [m, engine] : encoders_) {
    drop_not_finite(job, m, *engine);
    merge(job, *engine, job.models[m], job.out.of(m));
  }
}

// Merges the windows of each text into its result.
void ChunkStages::merge(const ChunkJob& job, const Engine& engine, const ModelTexts& texts, ChunkScores& out) const {
  const rows::RowChunk& rows = job.out.rows;
  const auto K = static_cast<size_t>(out.width);
  out.truncated.assign(rows.size(), 0);
  if (texts.truncated > 0)
    for (size_t t = 0; t < job.row_of_text.size(); ++t)
      out.truncated[job.row_of_text[t]] = texts.tokens.texts[t].truncated;
  if (engine.gliner() != nullptr) return find_entities(job, engine, texts, out);
  if (is_per_token(engine.output())) return merge_tokens(job, engine, texts, out);
  out.scores.assign(rows.size() * K, 0.0f);
  const bool labelled = !engine.pooling();
  if (labelled) out.choices.assign(rows.size(), {});
  for (size_t t = 0; t < job.row_of_text.size(); ++t) {
    const size_t row = job.row_of_text[t];
    if (job.out.error(row) != nullptr) continue;
    const size_t first = texts.tokens.texts[t].first_window * static_cast<size_t>(engine.row_width());
    engine.merge_text(texts.tokens, t, texts.window_scores.data() + first, &out.scores[row * K]);
    if (labelled) out.choices[row] = choose_label({&out.scores[row * K], K});
  }
}

void ChunkStages::merge_tokens(const ChunkJob& job, const Engine& engine, const ModelTexts& texts,
                               ChunkScores& out) const {
  const rows::RowChunk& rows = job.out.rows;
  out.entities.resize(rows.size());
  std::vector<float> tokens;
  for (size_t t = 0; t < job.row_of_text.size(); ++t) {
    const size_t row = job.row_of_text[t];
    if (job.out.error(row) != nullptr) continue;
    engine.token_scores(texts.tokens, t, texts.encodings[t], texts.window_scores, tokens);
    if (options_.words != nullptr) {
      out.tags.resize(rows.size());
      word_tags(options_.words->at(static_cast<size_t>(rows.first_row) + row), texts.encodings[t], tokens,
                static_cast<size_t>(out.width), out.tags[row]);
    } else {
      out.entities[row] = group_entities(rows.texts[row], texts.encodings[t], engine.tokenizer().kind(), tokens.data(),
                                         engine.labels(), engine.aggregation());
    }
  }
}

// Entities by label.
void ChunkStages::find_entities(const ChunkJob& job, const Engine& engine, const ModelTexts& texts,
                                ChunkScores& out) const {
  const rows::RowChunk& rows = job.out.rows;
  std::vector<size_t> which;
  std::vector<std::string_view> raw;
  for (size_t t = 0; t < job.row_of_text.size(); ++t) {
    if (job.out.error(job.row_of_text[t]) != nullptr) continue;
    which.push_back(t);
    raw.push_back(rows.texts[job.row_of_text[t]]);
  }
  out.entities.resize(rows.size());
  if (which.empty()) return;
  const LabelTask& task = *texts.tokens.zero_shot;
  // A CPU's head shares the threads of the encoder: threads of its own would delay those at the end of each layer.
  auto found = task.entities()->find(texts.tokens, which, raw, texts.window_scores.data(), engine.host_pool());
  if (options_.words != nullptr) out.tags.resize(rows.size());
  for (size_t i = 0; i < which.size(); ++i) {
    const size_t row = job.row_of_text[which[i]];
    if (options_.words != nullptr)
      out.tags[row] =
          tags_of_words(options_.words->at(static_cast<size_t>(rows.first_row) + row), found[i], task.labels());
    out.entities[row] = std::move(found[i]);
  }
}

}  // namespace brim::engine
