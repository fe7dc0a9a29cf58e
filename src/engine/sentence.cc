// SPDX-License-Identifier: Apache-2.0
// Applies the settings of sentence-transformers directories to an engine that computes embeddings. Does not parse their
// files (src/hub).
#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "engine/engine.h"
#include "text/unicode/unicode.h"

namespace brim::engine {
namespace {

std::string lower_case(std::string_view text) {
  const std::string valid = replace_invalid_utf8(text);
  std::string lower;
  for (size_t at = 0; at < valid.size();) {
    const CodePoint c = decode_valid(valid, at);
    char32_t to[2];
    for (int i = 0, n = text::unicode::to_lower(c.value, to); i < n; ++i) append_utf8(lower, to[i]);
    at += static_cast<size_t>(c.bytes);
  }
  return lower;
}

Pooling resolved(Pooling asked, const hub::SentenceSettings& settings) {
  if (asked != Pooling::automatic) return asked;
  return settings.pooling == hub::SentenceSettings::Pooling::cls ? Pooling::cls : Pooling::mean;
}

// The device cannot average over part of a sequence, so a mean without the prompt is computed on the host.
bool needs_host_pooling(Pooling pooling, const hub::SentenceSettings& settings) {
  return pooling == Pooling::mean && !settings.include_prompt;
}

hub::SentenceSettings settings_for(const std::filesystem::path& dir, Pooling asked) {
  hub::SentenceSettings settings = hub::load_sentence_settings(dir, asked != Pooling::automatic);
  if (asked == Pooling::none) settings.normalize = false, settings.truncate_dim = 0;
  return settings;
}

model::Output output_of(Pooling pooling, const hub::SentenceSettings& settings) {
  if (pooling == Pooling::none || needs_host_pooling(pooling, settings)) return model::Output::hidden;
  return pooling == Pooling::cls ? model::Output::cls_hidden : model::Output::mean_hidden;
}

}  // namespace

model::Output embedding_output(const std::filesystem::path& dir, Pooling pooling) {
  const hub::SentenceSettings settings = settings_for(dir, pooling);
  return output_of(resolved(pooling, settings), settings);
}

void Engine::read_sentence_settings() {
  if (!options_.pooling) return;
  sentence_ = settings_for(options_.model_dir, *options_.pooling);
  pooling_ = resolved(*options_.pooling, sentence_);
  pools_on_host_ = needs_host_pooling(*pooling_, sentence_);
  prompt_ = sentence_.prompt(options_.prompt_name);
  options_.output = output_of(*pooling_, sentence_);
  if (options_.max_length == 0) options_.max_length = sentence_.max_length;
}

std::string_view Engine::sentence_text(std::string_view text, std::string_view prompt, std::string& storage) const {
  if (!prompt.empty()) {
    storage.assign(prompt).append(text);
    text = storage;
  }
  if (sentence_.lower_case) {
    storage = lower_case(text);
    text = storage;
  }
  return text;
}

// sentence-transformers counts the special tokens before the prompt, and all but the last one after it.
int32_t Engine::prompt_tokens(std::string_view prompt) const {
  if (!pools_on_host_ || prompt.empty()) return 0;
  std::string storage;
  std::vector<int32_t> ids;
  tokenizer_->encode_ids(sentence_text({}, prompt, storage), ids);
  return static_cast<int32_t>(ids.size() - std::min<size_t>(tokenizer_->suffix().size(), 1));
}

}  // namespace brim::engine
