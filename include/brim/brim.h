// SPDX-License-Identifier: Apache-2.0
// Brim as a library: open a model, submit texts from any thread, or score many at once. Uses standard types only. The
// library prints nothing, handles no signals, sets no environment variable and starts no thread before open().
//
//   auto scorer = brim::Scorer::open({.model = "finbert"});
//   for (const auto& p : ...) scorer->submit({.text = p}).get().label;
#pragma once
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "brim/error.h"
#include "brim/options.h"
#include "brim/pool.h"
#include "brim/scorer.h"

namespace brim {

BRIM_API const char* version();  // "0.1.0"

// Directory of a model given as in ScorerOptions::model; empty for rules. Throws usage if it does not exist.
BRIM_API std::string find_model(const std::string& model);

// Kind of a model according to its files; embedder if it has no head. `adapter`: LoRA adapter, which may add one.
BRIM_API ModelKind model_kind(const std::string& model, const std::string& adapter = "");

// Prompts of an embedding model, by name, from its sentence-transformers files; default_name is empty if it has none.
struct Prompts {
  std::map<std::string, std::string> texts;
  std::string default_name;
};
BRIM_API Prompts find_prompts(const std::string& model);

// Whether a classifier and a tagger are two heads on one encoder, as written by training both at once (OUT and
// OUT/ner).
BRIM_API bool share_encoder(const std::string& classifier, const std::string& tagger);

// Sets the receiver of log lines (why a GPU is not used, contradictions in a model's files). `sink` is called from any
// thread, without a lock; without a sink, lines are dropped.
BRIM_API void set_log(std::function<void(bool is_warning, std::string_view line)> sink);

}  // namespace brim
