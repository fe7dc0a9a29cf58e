// SPDX-License-Identifier: Apache-2.0
// Options for opening a model and for tokenizing a text.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "brim/brim.h"
#include "device/device.h"
#include "model/pass.h"
#include "plan/resolve.h"

namespace brim::engine {

std::optional<LongText> long_text_from_name(std::string_view name);
// What a model in `dir` computes for this pooling.
model::Output embedding_output(const std::filesystem::path& dir, Pooling pooling);

struct EngineOptions {
  std::filesystem::path model_dir;
  device::DeviceChoice device;
  plan::PrecisionWish precision;
  int threads = 0;
  plan::MemoryLimit memory_limit;
  int64_t max_length = 0;  // 0: the model's own
  LongText long_text = LongText::truncate;
  std::optional<model::Output> output;  // default: what the model's head gives
  std::optional<Pooling> pooling;       // set: vectors of texts, by the directory's sentence-transformers files
  std::string prompt_name;              // one of those files' prompts; empty: their default
  bool fill = false;
  bool raw_scores = false;   // a classifier computes logits; merge_windows() makes scores of them
  int64_t batch_tokens = 0;  // above 0: no interactive batch has more, unless one text has
  // A tagger with this classifier's encoder (model::same_encoder): its head is loaded too, and Heads::both gives both.
  std::filesystem::path tagger_dir;
  double bulk_seconds = 0;  // above 0: no bulk batch takes longer, by prediction
  int64_t input_bytes = 0;  // above 0: no more text will come, so that a card is prepared for no more
  Aggregation aggregation = Aggregation::first;
  std::map<std::string, std::string> labels;  // other names for the model's own
  // A text's scores do not depend on the texts beside it, to the last bit. Of models that share a device: the first's.
  bool deterministic = false;
  int64_t parked_bytes = 0;  // of models that share a device: the first's, for all of them
};

// Heads that compute an interactive text: the model's own, or both of a classifier with a tagger.
enum class Heads : uint8_t { own, both };

// Options of one text.
struct TextOptions {
  LongText long_text = LongText::truncate;
  bool keep_end = false;  // truncation removes the beginning
  int32_t overlap = -1;   // tokens shared by neighbouring windows; negative: a quarter window for taggers, else 0
  bool tags = false;      // windows as a tagger has them, whatever the model is
  std::string_view prompt = {};  // put before the text
};

}  // namespace brim::engine
