// SPDX-License-Identifier: Apache-2.0
#include "serve/zero_shot.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "hub/gliner_config.h"
#include "rows/json_writer.h"
#include "serve/answers.h"

namespace brim::serve {
namespace {

using Json = nlohmann::json;

bool is_given(const Json& parameters, const char* key) {
  return parameters.is_object() && parameters.contains(key) && !parameters[key].is_null();
}

// A list of strings, or one string with commas, within the limits of a request.
std::vector<std::string> labels_of(const Json& given, const char* key) {
  std::vector<std::string> labels;
  if (given.is_string()) {
    const auto& all = given.get_ref<const std::string&>();
    for (size_t at = 0; at <= all.size();) {
      const size_t end = std::min(all.find(',', at), all.size());
      std::string label = all.substr(at, end - at);
      label.erase(0, std::min(label.find_first_not_of(" \t\r\n"), label.size()));
      label.erase(label.find_last_not_of(" \t\r\n") + 1);
      if (!label.empty()) labels.push_back(std::move(label));
      at = end + 1;
    }
  } else {
    const auto is_text = [](const Json& label) { return label.is_string(); };
    if (!given.is_array() || !std::all_of(given.begin(), given.end(), is_text))
      throw invalid(fmt::format("`{}` must be a list of strings, or one string with commas", key));
    labels = given.get<std::vector<std::string>>();
  }
  if (labels.size() > ZeroShotLimits::kLabels)
    throw invalid(fmt::format("`{}` has {} labels, the limit is {}", key, labels.size(), ZeroShotLimits::kLabels));
  for (size_t i = 0; i < labels.size(); ++i)
    if (labels[i].size() > ZeroShotLimits::kLabelBytes)
      throw invalid(fmt::format("label {} of `{}` has {} bytes, the limit is {}", i + 1, key, labels[i].size(),
                                ZeroShotLimits::kLabelBytes));
  return labels;
}

}  // namespace

std::optional<ZeroShot> zero_shot_of(const Json& parameters) {
  if (!is_given(parameters, "candidate_labels")) {
    for (const char* key : {"hypothesis_template", "multi_label"})
      if (is_given(parameters, key)) throw invalid(fmt::format("`{}` requires `candidate_labels`", key));
    return std::nullopt;
  }
  ZeroShot request;
  request.labels = labels_of(parameters["candidate_labels"], "candidate_labels");
  if (is_given(parameters, "hypothesis_template")) {
    const Json& pattern = parameters["hypothesis_template"];
    if (!pattern.is_string()) throw invalid("`hypothesis_template` must be a string");
    request.text_template = pattern.get<std::string>();
    if (request.text_template.size() > ZeroShotLimits::kTemplateBytes)
      throw invalid(fmt::format("`hypothesis_template` has {} bytes, the limit is {}", request.text_template.size(),
                                ZeroShotLimits::kTemplateBytes));
  }
  request.multi_label = bool_or(parameters, "multi_label", false);
  return request;
}

std::optional<EntityLabels> entity_labels_of(const Json& body) {
  if (!is_given(body, "labels")) {
    for (const char* key : {"threshold", "nested"})
      if (is_given(body, key)) throw invalid(fmt::format("`{}` requires `labels`", key));
    return std::nullopt;
  }
  EntityLabels request;
  request.labels = labels_of(body["labels"], "labels");
  if (is_given(body, "threshold")) {
    if (!body["threshold"].is_number()) throw invalid("`threshold` must be a number from 0 to 1");
    request.threshold = body["threshold"].get<float>();
  }
  request.nested = bool_or(body, "nested", false);
  return request;
}

LabelCost label_cost(const ZeroShot& zero_shot) {
  LabelCost cost;
  cost.labels = zero_shot.labels.size();
  for (const std::string& label : zero_shot.labels) {
    const size_t bytes = zero_shot.text_template.size() + label.size();
    cost.hypothesis_bytes += bytes;
    cost.longest_hypothesis = std::max(cost.longest_hypothesis, bytes);
  }
  return cost;
}

LabelCost label_cost(const EntityLabels& entities, const std::string& model) {
  LabelCost cost;
  try {
    if (!hub::load_gliner_config(find_model(model)).labels_encoder.empty()) return cost;
  } catch (const Error&) {
    return cost;
  }
  cost.hypothesis_bytes = kBytesPerToken;  // marker before the text
  for (const std::string& label : entities.labels) cost.hypothesis_bytes += kBytesPerToken + label.size();
  return cost;
}

size_t most_pairs(const LabelCost& cost, size_t text_bytes, int64_t part_tokens, int32_t overlap) {
  constexpr size_t kSpecialTokens = 4;  // at most, in a pair
  if (part_tokens <= 0) return cost.labels;
  const size_t taken = kSpecialTokens + cost.longest_hypothesis;  // a token has at least one byte
  const auto part = static_cast<size_t>(std::max<int64_t>(1, part_tokens - static_cast<int64_t>(taken)));
  const size_t step = part - std::min(static_cast<size_t>(std::max(0, overlap)), part / 2);
  return cost.labels * (text_bytes <= part ? 1 : 1 + (text_bytes - part + step - 1) / step);
}

void limit_pairs(const LabelCost& cost, size_t texts, size_t pairs) {
  if (pairs <= ZeroShotLimits::kPairs) return;
  const bool in_parts = pairs > texts * cost.labels;
  throw invalid(fmt::format("{} texts with {} labels {} {} pairs, the limit per request is {}{}", texts, cost.labels,
                            in_parts ? "may need" : "are", pairs, ZeroShotLimits::kPairs,
                            in_parts ? " (shorten the texts, or set `long_text` to truncate)" : ""));
}

std::shared_ptr<const ZeroShotLabels> LabelCache::find(const std::shared_ptr<Scorer>& scorer,
                                                       const std::string& request) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.request == request && !entry.scorer.owner_before(scorer) && !scorer.owner_before(entry.scorer);
  });
  if (found == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found);
  return found->labels;
}

void LabelCache::add(const std::shared_ptr<Scorer>& scorer, std::string request,
                     std::shared_ptr<const ZeroShotLabels> labels) {
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [](const Entry& entry) { return entry.scorer.expired(); });
  entries_.push_front({scorer, std::move(request), std::move(labels)});
  if (entries_.size() > kMaxEntries) entries_.pop_back();
}

std::shared_ptr<const ZeroShotLabels> LabelCache::prepare(const std::shared_ptr<Scorer>& scorer,
                                                          const ZeroShot& request) {
  const Refusal not_nli{424, "Backend", "Backend error: Model is not an NLI model with a label entailment"};
  if (scorer->kind() != ModelKind::classifier) throw not_nli;
  const std::string key = Json({request.labels, request.text_template, request.multi_label}).dump();
  if (auto found = find(scorer, key)) return found;
  std::shared_ptr<const ZeroShotLabels> labels;
  try {
    labels = scorer->prepare_labels(request);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::usage) throw invalid(error.problem());
    if (error.code() == ErrorCode::bad_model) throw not_nli;
    throw;
  }
  add(scorer, key, labels);
  return labels;
}

std::string LabelCache::key_of(const EntityLabels& request) {
  return Json({request.labels, request.threshold, request.nested}).dump();
}

std::shared_ptr<const ZeroShotLabels> LabelCache::prepare(const std::shared_ptr<Scorer>& scorer,
                                                          const EntityLabels& request) {
  if (!scorer->finds_entities_by_label())
    throw Refusal{424, "Backend", "Backend error: Model is not a GLiNER model, its labels are fixed"};
  const std::string key = key_of(request);
  if (auto found = find(scorer, key)) return found;
  std::shared_ptr<const ZeroShotLabels> labels;
  try {
    labels = scorer->prepare_entities(request);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::usage) throw invalid(error.problem());
    throw;
  }
  add(scorer, key, labels);
  return labels;
}

void write_zero_shot(rows::JsonWriter& json, std::string_view text, const ZeroShotLabels& labels,
                     const Prediction& prediction) {
  std::vector<size_t> order(prediction.scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return prediction.scores[a] > prediction.scores[b]; });
  json.begin_object().member("sequence", text).key("labels").begin_array();
  for (const size_t i : order) json.value(labels.labels()[i]);
  json.end_array().key("scores").begin_array();
  for (const size_t i : order) json.value(prediction.scores[i]);
  json.end_array().end_object();
}

}  // namespace brim::serve
