// SPDX-License-Identifier: Apache-2.0
// Brim's own routes, and Hugging Face's inference API.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "rows/json_writer.h"
#include "serve/routes/routes.h"
#include "serve/server_parts.h"

namespace brim::serve {
namespace {

using Body = nlohmann::json;

const char* error_type(ErrorCode code) {
  return code == ErrorCode::bad_data ? "Validation" : code == ErrorCode::timed_out ? "Timeout" : "Backend";
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
EntityOptions apply_entity_options(const Body& body, RequestOptions& options) {
  EntityOptions e = entity_options(body);
  options.aggregation = e.aggregation;
  if (e.overlap >= 0) options.overlap = e.overlap;
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

void write_filtered_entities(rows::JsonWriter& json, const Prediction& p, const EntityOptions& w) {
  if (p.error) {
    json.null();
    return;
  }
  std::vector<Entity> kept;
  for (const Entity& e : p.entities)
    if (std::find(w.ignored.begin(), w.ignored.end(), e.group) == w.ignored.end()) kept.push_back(e);
  write_entities(json, kept);
}

// A list per text if `batch`, else that of the only text.
void write_entity_lists(rows::JsonWriter& json, const Call& call, const EntityOptions& w, bool batch) {
  if (batch) json.begin_array();
  for (const Prediction& p : call.predictions) write_filtered_entities(json, p, w);
  if (batch) json.end_array();
}

struct ClassifyRequest {
  RequestOptions options;
  std::vector<std::string_view> texts;  // in the body
};

ClassifyRequest classify_request(RequestContext& context, const Body& body) {
  ClassifyRequest request{request_options(context, body, {ModelKind::classifier, ModelKind::rules}), {}};
  context.server.models.require_kind(request.options.model, {ModelKind::classifier, ModelKind::rules},
                                     "a classifier model");
  request.texts =
      texts_of(body, body.is_object() && !body.contains("input") && body.contains("inputs") ? "inputs" : "input");
  return request;
}

// Response of /classify: labels, compound and error of each text.
struct ClassifyResponse {
  const Call& call;
  size_t top_k;

  void write(rows::JsonWriter& json) const {
    json.begin_object().member("object", "classify").member("id", call.id).member("created", std::time(nullptr));
    json.member("model", call.served->name).key("data").begin_array();
    for (size_t i = 0; i < call.predictions.size(); ++i) write_labels(json, call, i, top_k);
    json.end_array().key("compound").begin_array();
    for (const Prediction& p : call.predictions) write_compound(json, p);
    json.end_array();
    if (std::any_of(call.predictions.begin(), call.predictions.end(),
                    [](const Prediction& p) { return p.error.has_value(); }))
      write_errors(json);
    write_usage(json, call.tokens);
    json.end_object();
  }

 private:
  void write_compound(rows::JsonWriter& json, const Prediction& p) const {
    std::optional<float> compound;
    if (!p.error) compound = compound_of(*call.served->scorer, p.scores);
    compound ? json.value(*compound) : json.null();
  }

  void write_errors(rows::JsonWriter& json) const {
    json.key("errors").begin_array();
    for (size_t i = 0; i < call.predictions.size(); ++i) {
      const auto& error = call.predictions[i].error;
      if (!error) continue;
      json.begin_object().member("index", i).member("error", error->what());
      json.member("error_type", error_type(error->code())).end_object();
    }
    json.end_array();
  }
};

std::optional<Reply> classify(RequestContext& context) {
  const Body body = body_of(context.call);
  const ClassifyRequest request = classify_request(context, body);
  return context.server.dispatcher.score(context.call, request.options, request.texts,
                                         [top_k = request.options.top_k](rows::JsonWriter& json, Call& c) {
                                           ClassifyResponse{c, top_k}.write(json);
                                         });
}

// Labels and entities of the same texts in one answer: one pass if both heads share an encoder, else one pass per
// model. Merging window labels needs the classifier's own windows, so it takes two passes.
std::optional<Reply> analyze(RequestContext& context) {
  Call& call = context.call;
  const Body body = body_of(call);
  RequestOptions w = request_options(context, body, {ModelKind::classifier, ModelKind::rules});
  int tagger = context.server.models.first_of({ModelKind::tagger});
  context.server.models.require_kind(w.model, {ModelKind::classifier, ModelKind::rules}, "a classifier model");
  if (!w.served->tagger.empty()) tagger = context.server.models.find(w.served->tagger);
  if (tagger < 0) throw Refusal{424, "Backend", "Backend error: this server has no token classification model"};
  const char* key = body.contains("inputs") ? "inputs" : "input";
  const bool batch = body.contains(key) && body[key].is_array();
  const auto inputs = texts_of(body, key);
  const bool merges = w.long_text ? *w.long_text == LongText::window_mean || *w.long_text == LongText::window_max
                                  : context.server.options.merges_windows;
  w.entities = !w.keep_end && !merges && !w.served->tagger.empty() &&
               context.server.models.get(tagger)->revision == w.served->tagger_revision;
  call.passes = w.entities ? 1 : 2;
  std::vector<InputText> texts;
  for (const std::string_view text : inputs) texts.push_back({w.model, text});
  for (const std::string_view text : inputs)
    if (!w.entities) texts.push_back({tagger, text});
  const EntityOptions entities = apply_entity_options(body, w);
  return context.server.dispatcher.score(call, w, texts,
                                         [batch, top_k = w.top_k, e = entities](rows::JsonWriter& json, Call& c) {
                                           const auto passes = static_cast<size_t>(c.passes);
                                           const size_t n = c.predictions.size() / passes;
                                           if (batch) json.begin_array();
                                           for (size_t i = 0; i < n; ++i) {
                                             json.begin_object().key("labels");
                                             write_labels(json, c, i, top_k);
                                             json.key("entities");
                                             write_filtered_entities(json, c.predictions[(passes - 1) * n + i], e);
                                             json.end_object();
                                           }
                                           if (batch) json.end_array();
                                         });
}

// A zero-shot request whose labels are being tokenized.
struct ZeroShotRequest {
  RequestOptions options;
  ZeroShot zero_shot;
  std::vector<std::string> texts;  // the answer repeats them, like Hugging Face's
  bool batch = false;

  void prepare(ServerParts& server) {
    options.labels = server.zero_shot_labels.prepare(options.served->scorer, zero_shot);
  }
  std::nullopt_t score(Dispatcher& dispatcher, Call& call) {
    const std::vector<std::string_view> views(texts.begin(), texts.end());
    return dispatcher.score(
        call, options, views,
        [labels = options.labels, sequences = std::move(texts), list = batch](rows::JsonWriter& json, Call& c) {
          if (list) json.begin_array();
          for (size_t i = 0; i < c.predictions.size(); ++i)
            if (c.predictions[i].error)
              json.null();
            else
              write_zero_shot(json, sequences[i], *labels, c.predictions[i]);
          if (list) json.end_array();
        });
  }
};

// Many or long labels are tokenized on a helper.
std::optional<Reply> classify_by(RequestContext& context, ZeroShotRequest request) {
  Dispatcher& dispatcher = context.server.dispatcher;
  request.options.label_cost = label_cost(request.zero_shot);
  if (request.options.label_cost.hypothesis_bytes <= Dispatcher::kHelperBytes) {
    request.prepare(context.server);
    return request.score(dispatcher, context.call);
  }
  const auto held = std::make_shared<ZeroShotRequest>(std::move(request));
  dispatcher.run_on(
      dispatcher.helpers(), context.call,
      [&server = context.server, held] { return server.dispatcher.refusal_from([&] { held->prepare(server); }); },
      [&dispatcher, held](Call& call) {
        if (const auto refusal = dispatcher.refusal_from([&] { held->score(dispatcher, call); }))
          dispatcher.refuse(call, *refusal);
      });
  return kRespondsLater;
}

LabelCost cost_of_entities(const ZeroShotLabels& labels) {
  return {.hypothesis_bytes = kBytesPerToken * static_cast<size_t>(labels.tokens_per_text())};
}

// A request for entities of new labels.
struct EntityRequest {
  RequestOptions options;
  EntityLabels labels;
  EntityOptions entities;
  std::vector<std::string> texts;
  bool batch = false;
};

// Labels are prepared on a helper, because a bi-encoder has to encode them.
std::optional<Reply> find_by(RequestContext& context, EntityRequest request) {
  Dispatcher& dispatcher = context.server.dispatcher;
  const auto held = std::make_shared<EntityRequest>(std::move(request));
  const auto prepare = [&server = context.server, held] {
    return server.dispatcher.refusal_from(
        [&] { held->options.labels = server.zero_shot_labels.prepare(held->options.served->scorer, held->labels); });
  };
  const auto score = [held](Dispatcher& to, Call& call) {
    const std::vector<std::string_view> views(held->texts.begin(), held->texts.end());
    held->options.label_cost = cost_of_entities(*held->options.labels);
    to.score(call, held->options, views,
             [held](rows::JsonWriter& json, Call& c) { write_entity_lists(json, c, held->entities, held->batch); });
  };
  dispatcher.run_on(dispatcher.helpers(), context.call, prepare, [&dispatcher, score](Call& call) {
    if (const auto refusal = dispatcher.refusal_from([&] { score(dispatcher, call); }))
      dispatcher.refuse(call, *refusal);
  });
  return kRespondsLater;
}

// POST /models/{name}: labels and vectors form a list even for a single text, as in Hugging Face's API.
std::optional<Reply> hugging_face(RequestContext& context) {
  Call& call = context.call;
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
  RequestOptions w = request_options(context, body, {context.server.models.kind(0)});
  const auto texts = texts_of(body, "inputs");
  const bool batch = body["inputs"].is_array();
  if (auto zero_shot = zero_shot_of(parameters))
    return classify_by(context, {w, std::move(*zero_shot), {texts.begin(), texts.end()}, batch});
  EntityOptions entities;
  switch (w.served->scorer->kind()) {
    case ModelKind::tagger:
      entities = apply_entity_options(body, w);
      return context.server.dispatcher.score(call, w, texts, [batch, e = entities](rows::JsonWriter& json, Call& c) {
        write_entity_lists(json, c, e, batch);
      });
    case ModelKind::embedder:
      return context.server.dispatcher.score(
          call, w, texts, [](rows::JsonWriter& json, Call& c) { write_embeddings(json, c.predictions, 0, false); });
    default:
      return context.server.dispatcher.score(
          call, w, texts, [function, top_k = w.top_k](rows::JsonWriter& json, Call& c) {
            const bool rules = c.served->scorer->kind() == ModelKind::rules;  // VADER has no raw scores
            json.begin_array();
            for (size_t i = 0; i < c.predictions.size(); ++i) {
              if (!rules) apply(function, c.predictions[i].scores);
              write_labels(json, c, i, top_k);
            }
            json.end_array();
          });
  }
}

constexpr Route kBrimRoutes[] = {
    {"POST", "/classify", Scope::score, kTei, true, classify},
    {"POST", "/ner", Scope::score, kTei, true, ner},
    {"POST", "/analyze", Scope::score, kTei, true, analyze},
    {"POST", "/models/*", Scope::score, kTei, true, hugging_face},
};

}  // namespace

std::optional<Reply> ner(RequestContext& context) {
  Call& call = context.call;
  const Body body = body_of(call);
  RequestOptions w = request_options(context, body, {ModelKind::tagger});
  context.server.models.require_kind(w.model, {ModelKind::tagger}, "a token classification model");
  const char* key = body.contains("inputs") ? "inputs" : "input";
  const bool batch = body.contains(key) && body[key].is_array();
  const EntityOptions entities = apply_entity_options(body, w);
  const auto texts = texts_of(body, key);
  if (auto labels = entity_labels_of(body)) {
    w.labels = context.server.zero_shot_labels.kept(w.served->scorer, *labels);
    if (w.labels == nullptr)
      return find_by(context, {w, std::move(*labels), entities, {texts.begin(), texts.end()}, batch});
    w.label_cost = cost_of_entities(*w.labels);
  }
  return context.server.dispatcher.score(call, w, texts, [batch, e = entities](rows::JsonWriter& json, Call& c) {
    write_entity_lists(json, c, e, batch);
  });
}

Routes brim_routes() { return kBrimRoutes; }

}  // namespace brim::serve
