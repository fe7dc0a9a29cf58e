// SPDX-License-Identifier: Apache-2.0
// Zero-shot classification in POST /models/{name}, as in Hugging Face's API: reads parameters.candidate_labels within
// limits, keeps tokenized label sets for later requests, and formats the answer. Scores are computed by the model's
// scorer (engine/zero_shot.h).
#pragma once
#include <list>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "rows/json_writer.h"
#include "serve/served_model.h"

namespace brim::serve {

// Limits of a request; each text is computed once per label.
struct ZeroShotLimits {
  static constexpr size_t kLabels = 256, kLabelBytes = 256, kTemplateBytes = 1024, kPairs = 8192;
};

// The request's labels; nullopt without candidate_labels. Throws Refusal (422) for other types and above the limits.
std::optional<ZeroShot> zero_shot_of(const nlohmann::json& parameters);

// The labels, threshold and nested of a request to POST /ner for a GLiNER model; nullopt without labels. Throws
// Refusal.
std::optional<EntityLabels> entity_labels_of(const nlohmann::json& body);

LabelCost label_cost(const ZeroShot& zero_shot);
// Cost of configured entities of a GLiNER model; nothing for a bi-encoder, which reads them once, and for a model that
// cannot be read: opening it reports the error.
LabelCost label_cost(const EntityLabels& entities, const std::string& model);
// An upper bound on the pairs that a text needs: one per label, and per part if it may be read in parts of at most
// `part_tokens` tokens, including its hypothesis. 0: it is truncated.
size_t most_pairs(const LabelCost& cost, size_t text_bytes, int64_t part_tokens, int32_t overlap);
// Throws Refusal (422) if a request with this many texts may need more pairs than a request may have.
void limit_pairs(const LabelCost& cost, size_t texts, size_t pairs);

// Recently used label sets. Thread-safe.
class LabelCache {
 public:
  // Throws Refusal: 422 for invalid labels, 424 if the model is no NLI model.
  std::shared_ptr<const ZeroShotLabels> prepare(const std::shared_ptr<Scorer>& scorer, const ZeroShot& request);
  // 424 if it is no GLiNER model. May run an encoder.
  std::shared_ptr<const ZeroShotLabels> prepare(const std::shared_ptr<Scorer>& scorer, const EntityLabels& request);
  // The labels of an earlier call with the same arguments; null if they are not kept.
  std::shared_ptr<const ZeroShotLabels> kept(const std::shared_ptr<Scorer>& scorer, const EntityLabels& request) {
    return find(scorer, key_of(request));
  }

 private:
  static constexpr size_t kMaxEntries = 64;
  struct Entry {
    std::weak_ptr<Scorer> scorer;  // its labels must not be used after it is destroyed
    std::string request;
    std::shared_ptr<const ZeroShotLabels> labels;
  };
  static std::string key_of(const EntityLabels& request);
  std::shared_ptr<const ZeroShotLabels> find(const std::shared_ptr<Scorer>& scorer, const std::string& request);
  void add(const std::shared_ptr<Scorer>& scorer, std::string request, std::shared_ptr<const ZeroShotLabels> labels);
  std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
};

// {"sequence":"…","labels":["a",…],"scores":[0.9,…]}, best label first.
void write_zero_shot(rows::JsonWriter& json, std::string_view text, const ZeroShotLabels& labels,
                     const Prediction& prediction);

}  // namespace brim::serve
