// SPDX-License-Identifier: Apache-2.0
// Options common to all scoring routes, and the texts of their bodies.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "serve/call.h"
#include "serve/models.h"

namespace brim::serve {

// From the body, headers or query of a request.
struct RequestOptions : ModelChoice {
  bool bulk = false, keep_end = false, raw = false, null_errors = false;
  std::optional<LongText> long_text;
  double timeout_ms = 0;  // 0: none
  size_t top_k = SIZE_MAX;
  std::optional<Aggregation> aggregation;             // for taggers
  int32_t overlap = -1;                               // tokens shared by neighbouring windows
  bool entities = false;                              // classifiers with a tagger's head: also return entities
  std::shared_ptr<const ZeroShotLabels> labels = {};  // zero-shot classification by these
  LabelCost label_cost;                               // cost of these, or of the model's own zero-shot labels
};

struct InputText {
  int model;
  std::string_view text;
  std::optional<std::string_view> pair = {};
  std::vector<int32_t> ids = {};  // used instead of the text
};

// Parses the body, unless a helper thread has done so, and notes its unknown keys. Throws Refusal.
nlohmann::json body_of(Call& call);
// Without a model name, the ladder chooses, or the first model of these kinds answers. Throws Refusal.
RequestOptions request_options(RequestContext& context, const nlohmann::json& body, ModelKinds kinds);

// A string or a list of strings, as views into `body`.
std::vector<std::string_view> texts_of(const nlohmann::json& body, const char* key);
// The same, but token ids are allowed: a text, a list of ids, or a list of either.
std::vector<InputText> texts_or_ids(const nlohmann::json& body, const char* key, int model);
std::vector<InputText> as_inputs(const std::vector<std::string_view>& texts, int model);

// Appends the labels of prediction `i`, best first; null after an error.
void write_labels(rows::JsonWriter& json, const Call& call, size_t i, size_t top_k);

}  // namespace brim::serve
