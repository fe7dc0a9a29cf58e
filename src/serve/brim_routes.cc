// SPDX-License-Identifier: Apache-2.0
// Brim's own routes, and Hugging Face's inference API.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "rows/jsonl.h"
#include "serve/service.h"

namespace brim::serve {
namespace {

using Body = nlohmann::json;

void append_errors(std::string& out, const std::vector<Prediction>& predictions) {
  out += '[';
  bool first = true;
  for (size_t i = 0; i < predictions.size(); ++i) {
    if (!predictions[i].error) continue;
    out += fmt::format("{}{{\"index\":{},\"error\":", std::exchange(first, false) ? "" : ",", i);
    rows::append_json_string(out, predictions[i].error->what());
    out += ",\"error_type\":";
    rows::append_json_string(out, predictions[i].error->code() == ErrorCode::bad_data    ? "Validation"
                                  : predictions[i].error->code() == ErrorCode::timed_out ? "Timeout"
                                                                                         : "Backend");
    out += '}';
  }
  out += ']';
}

struct EntityOptions {
  std::vector<std::string> ignored = {"O"};
  std::optional<Aggregation> aggregation;
  int32_t overlap = -1;
};

EntityOptions entity_options(const Body& body) {
  constexpr std::pair<const char*, Aggregation> kStrategies[] = {{"first", Aggregation::first},
                                                                 {"simple", Aggregation::simple},
                                                                 {"average", Aggregation::average},
                                                                 {"max", Aggregation::max},
                                                                 {"none", Aggregation::none}};
  EntityOptions w;
  const auto parameters = body.find("parameters");
  if (parameters == body.end() || parameters->is_null()) return w;
  if (!parameters->is_object()) throw invalid("`parameters` must be an object");
  if (const auto strategy = parameters->find("aggregation_strategy");
      strategy != parameters->end() && !strategy->is_null()) {
    for (const auto& [name, aggregation] : kStrategies)
      if (*strategy == name) w.aggregation = aggregation;
    if (!w.aggregation) throw invalid("`aggregation_strategy` must be none, simple, first, average or max");
  }
  w.overlap = stride_of(*parameters);
  if (const auto ignored = parameters->find("ignore_labels"); ignored != parameters->end() && !ignored->is_null()) {
    if (!ignored->is_array() ||
        std::any_of(ignored->begin(), ignored->end(), [](const Body& label) { return !label.is_string(); }))
      throw invalid("`ignore_labels` must be a list of strings");
    w.ignored = ignored->get<std::vector<std::string>>();
  }
  return w;
}

// Applies the request's entity options, also to the scorer's options.
template <class Options>
EntityOptions apply_entity_options(const Body& body, Options& w) {
  EntityOptions e = entity_options(body);
  w.aggregation = e.aggregation;
  if (e.overlap >= 0) w.overlap = e.overlap;
  return e;
}

// Function applied to raw scores in place of the model's own.
enum class ScoreFunction : uint8_t { own, none, softmax, sigmoid };

ScoreFunction score_function(const Body& body) {
  const Body name = body.value("function_to_apply", Body());
  if (name.is_null() || name == "default") return ScoreFunction::own;
  if (name == "none") return ScoreFunction::none;
  if (name == "softmax") return ScoreFunction::softmax;
  if (name == "sigmoid") return ScoreFunction::sigmoid;
  throw invalid("`function_to_apply` must be softmax, sigmoid or none");
}

void apply(ScoreFunction function, std::vector<float>& scores) {
  if (scores.empty()) return;
  const float largest = *std::max_element(scores.begin(), scores.end());
  float sum = 0;
  for (float& score : scores) {
    if (function == ScoreFunction::sigmoid) score = 1 / (1 + std::exp(-score));
    if (function == ScoreFunction::softmax) sum += score = std::exp(score - largest);
  }
  if (function != ScoreFunction::softmax) return;
  for (float& score : scores) score /= sum;
}

void append_filtered_entities(std::string& out, const Prediction& p, const EntityOptions& w) {
  if (p.error) {
    out += "null";
    return;
  }
  std::vector<Entity> kept;
  for (const Entity& e : p.entities)
    if (std::find(w.ignored.begin(), w.ignored.end(), e.group) == w.ignored.end()) kept.push_back(e);
  append_entities(out, kept);
}

}  // namespace

void Service::classify(Call& call) {
  const Body body = body_of(call);
  const RequestOptions w = request_options(call, body, {ModelKind::classifier, ModelKind::rules});
  require_kind(w.model, {ModelKind::classifier, ModelKind::rules}, "a classifier model");
  const auto texts =
      texts_of(body, body.is_object() && !body.contains("input") && body.contains("inputs") ? "inputs" : "input");
  score(call, w, texts, [this, top_k = w.top_k](std::string& out, Call& c) {
    const ServedModel& model = *c.served;
    out += "{\"object\":\"classify\",\"id\":";
    rows::append_json_string(out, c.id);
    out += fmt::format(",\"created\":{},\"model\":", std::time(nullptr));
    rows::append_json_string(out, model.name);
    out += ",\"data\":[";
    std::string compounds;
    for (size_t i = 0; i < c.predictions.size(); ++i) {
      if (i > 0) out += ',';
      append_labels(out, c, i, top_k);
      std::optional<float> compound;
      if (!c.predictions[i].error) compound = compound_of(*model.scorer, c.predictions[i].scores);
      compounds += i > 0 ? "," : "";
      if (compound)
        rows::append_json_number(compounds, *compound);
      else
        compounds += "null";
    }
    out += fmt::format("],\"compound\":[{}]", compounds);
    if (std::any_of(c.predictions.begin(), c.predictions.end(),
                    [](const Prediction& p) { return p.error.has_value(); })) {
      out += ",\"errors\":";
      append_errors(out, c.predictions);
    }
    out += fmt::format(",\"usage\":{{\"prompt_tokens\":{0},\"total_tokens\":{0}}}}}", c.tokens);
  });
}

void Service::ner(Call& call) {
  const Body body = body_of(call);
  RequestOptions w = request_options(call, body, {ModelKind::tagger});
  require_kind(w.model, {ModelKind::tagger}, "a token classification model");
  const char* key = body.contains("inputs") ? "inputs" : "input";
  const bool batch = body.contains(key) && body[key].is_array();
  const EntityOptions entities = apply_entity_options(body, w);
  score(call, w, texts_of(body, key), [batch, e = entities](std::string& out, Call& c) {
    if (!batch) return append_filtered_entities(out, c.predictions[0], e);
    out += '[';
    for (size_t i = 0; i < c.predictions.size(); ++i) {
      if (i > 0) out += ',';
      append_filtered_entities(out, c.predictions[i], e);
    }
    out += ']';
  });
}

// Labels and entities of the same texts in one answer: one pass if both heads share an encoder, else one pass per
// model. Merging window labels needs the classifier's own windows, so it takes two passes.
void Service::analyze(Call& call) {
  const Body body = body_of(call);
  RequestOptions w = request_options(call, body, {ModelKind::classifier, ModelKind::rules});
  int tagger = first_model({ModelKind::tagger});
  require_kind(w.model, {ModelKind::classifier, ModelKind::rules}, "a classifier model");
  if (!w.served->tagger.empty()) tagger = find_model(w.served->tagger);
  if (tagger < 0) throw Refusal{424, "Backend", "Backend error: this server has no token classification model"};
  const char* key = body.contains("inputs") ? "inputs" : "input";
  const bool batch = body.contains(key) && body[key].is_array();
  const auto inputs = texts_of(body, key);
  const bool merges = w.long_text ? *w.long_text == LongText::window_mean || *w.long_text == LongText::window_max
                                  : options_.merges_windows;
  w.entities =
      !w.keep_end && !merges && !w.served->tagger.empty() && model_at(tagger)->revision == w.served->tagger_revision;
  call.passes = w.entities ? 1 : 2;
  std::vector<Text> texts;
  for (const std::string_view text : inputs) texts.push_back({w.model, text});
  for (const std::string_view text : inputs)
    if (!w.entities) texts.push_back({tagger, text});
  const EntityOptions entities = apply_entity_options(body, w);
  score(call, w, texts, [this, batch, top_k = w.top_k, e = entities](std::string& out, Call& c) {
    const auto passes = static_cast<size_t>(c.passes);
    const size_t n = c.predictions.size() / passes;
    if (batch) out += '[';
    for (size_t i = 0; i < n; ++i) {
      out += i > 0 ? ",{\"labels\":" : "{\"labels\":";
      append_labels(out, c, i, top_k);
      out += ",\"entities\":";
      append_filtered_entities(out, c.predictions[(passes - 1) * n + i], e);
      out += '}';
    }
    if (batch) out += ']';
  });
}

// POST /models/{name}: labels and vectors form a list even for a single text, as in Hugging Face's API.
void Service::hugging_face(Call& call) {
  Body body = body_of(call);
  if (!body.is_object()) throw invalid("the body must be a JSON object");
  body["model"] = percent_decoded(call.exchange->path().substr(std::string_view("/models/").size()));
  const Body parameters = body.value("parameters", Body());
  if (parameters.is_object()) {
    for (const char* key : {"top_k", "truncate", "stride"})
      if (parameters.contains(key)) body[key] = parameters[key];
    body["function_to_apply"] = parameters.value("function_to_apply", Body());
  }
  const ScoreFunction function = score_function(body);
  if (function != ScoreFunction::own) body["raw_scores"] = true;
  RequestOptions w = request_options(call, body, {slots_[0]->kind});
  const auto texts = texts_of(body, "inputs");
  const bool batch = body["inputs"].is_array();
  EntityOptions entities;
  switch (w.served->scorer->kind()) {
    case ModelKind::tagger:
      entities = apply_entity_options(body, w);
      return score(call, w, texts, [batch, e = entities](std::string& out, Call& c) {
        if (batch) out += '[';
        for (size_t i = 0; i < c.predictions.size(); ++i) {
          if (i > 0) out += ',';
          append_filtered_entities(out, c.predictions[i], e);
        }
        if (batch) out += ']';
      });
    case ModelKind::embedder:
      return score(call, w, texts, [](std::string& out, Call& c) {
        out += '[';
        for (size_t i = 0; i < c.predictions.size(); ++i) {
          if (i > 0) out += ',';
          if (c.predictions[i].error)
            out += "null";
          else
            append_floats(out, shaped_embedding(c.predictions[i], 0, false));
        }
        out += ']';
      });
    default:
      return score(call, w, texts, [this, function, top_k = w.top_k](std::string& out, Call& c) {
        const bool rules = c.served->scorer->kind() == ModelKind::rules;  // VADER has no raw scores
        out += '[';
        for (size_t i = 0; i < c.predictions.size(); ++i) {
          if (i > 0) out += ',';
          if (!rules) apply(function, c.predictions[i].scores);
          append_labels(out, c, i, top_k);
        }
        out += ']';
      });
  }
}

}  // namespace brim::serve
