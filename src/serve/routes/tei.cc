// SPDX-License-Identifier: Apache-2.0
// Routes of text-embeddings-inference, with its response formats.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>
#include <utility>

#include "rows/json_writer.h"
#include "serve/routes/routes.h"
#include "serve/server_parts.h"

namespace brim::serve {
namespace {

using Body = nlohmann::json;

// A re-ranker is a classifier with a single output.
bool ranks(const Scorer& scorer) { return scorer.kind() == ModelKind::classifier && scorer.labels().size() == 1; }

void refuse_prompts(const Body& body) {
  if (const auto prompt = body.find("prompt_name"); prompt != body.end() && !prompt->is_null())
    throw invalid("`prompt_name` is not supported (the model's default prompt is always used)");
}

const char* pooling_name(std::optional<Pooling> pooling) {
  return pooling == Pooling::cls ? "cls" : pooling == Pooling::none ? "none" : "mean";
}

size_t dimensions_of(const Body& body) {
  const auto found = body.find("dimensions");
  if (found == body.end() || found->is_null()) return 0;
  if (!found->is_number_integer() || found->get<int64_t>() < 1) throw invalid("`dimensions` must be positive");
  return static_cast<size_t>(found->get<int64_t>());
}

std::optional<Reply> predict(RequestContext& context) {
  Call& call = context.call;
  const Body body = body_of(call);
  const RequestOptions w = request_options(context, body, {ModelKind::classifier, ModelKind::rules});
  context.server.models.require_kind(w.model, {ModelKind::classifier, ModelKind::rules}, "a classifier model");
  const auto found = body.find("inputs");
  if (found == body.end()) throw invalid("missing field `inputs`");
  std::vector<InputText> texts;
  const auto text_in = [](const Body& value) -> std::string_view {
    if (!value.is_string()) throw invalid("`inputs` must contain strings");
    return value.get_ref<const std::string&>();
  };
  const auto add = [&](const Body& list) {  // one or two strings
    texts.push_back({w.model, text_in(list.front())});
    if (list.size() == 2) texts.back().pair = text_in(list.back());
  };
  bool batch = false;
  if (found->is_string()) {
    texts.push_back({w.model, text_in(*found)});
  } else if (!found->is_array()) {
    throw invalid("`inputs` must be a string, a list of one or two strings, or a list of such lists");
  } else if (!found->empty() && found->front().is_string()) {  // a flat list is one text or a pair
    if (found->size() > 2)
      throw invalid(
          fmt::format("`inputs` is a flat list of {} strings, at most 2 (a pair) allowed; send a batch as a list "
                      "of lists: [[\"a\"],[\"b\"]]",
                      found->size()));
    add(*found);
  } else {
    batch = true;
    for (const Body& one : *found) {
      if (!one.is_array() || one.empty() || one.size() > 2)
        throw invalid("a batch must be a list of lists of one or two strings: [[\"a\"],[\"b\"]]");
      add(one);
    }
  }
  return context.server.dispatcher.score(call, w, texts, [batch, top_k = w.top_k](rows::JsonWriter& json, Call& c) {
    if (!batch) return write_labels(json, c, 0, top_k);
    json.begin_array();
    for (size_t i = 0; i < c.predictions.size(); ++i) write_labels(json, c, i, top_k);
    json.end_array();
  });
}

std::optional<Reply> embed(RequestContext& context) {
  Call& call = context.call;
  const Body body = body_of(call);
  const RequestOptions w = request_options(context, body, {ModelKind::embedder});
  context.server.models.require_kind(w.model, {ModelKind::embedder}, "an embedding model");
  refuse_prompts(body);
  const bool normalize = bool_or(body, "normalize", true);
  const size_t dimensions = dimensions_of(body);
  return context.server.dispatcher.score(call, w, texts_or_ids(body, "inputs", w.model),
                                         [normalize, dimensions](rows::JsonWriter& json, Call& c) {
                                           write_embeddings(json, c.predictions, dimensions, normalize);
                                         });
}

std::optional<Reply> rerank(RequestContext& context) {
  Call& call = context.call;
  Body body = body_of(call);
  if (!body.is_object()) throw invalid("the body must be a JSON object");
  const auto model = body.find("model");
  const bool named = (model != body.end() && !model->is_null()) ||
                     !call.exchange->head().find("x-brim-model").empty() ||
                     !query_value(call.exchange->query(), "model").empty();
  const std::vector<Served> all = context.server.models.loaded();
  const auto ranker = std::find_if(all.begin(), all.end(), [](const Served& m) { return ranks(*m->scorer); });
  if (!named && ranker != all.end()) body["model"] = (*ranker)->name;
  RequestOptions w = request_options(context, body, {ModelKind::classifier});
  if (!ranks(*w.served->scorer)) throw Refusal{424, "Backend", "Backend error: Model is not a re-ranker model"};
  const auto query = texts_of(body, "query"), texts = texts_of(body, "texts");
  if (query.size() != 1 || body["query"].is_array()) throw invalid("`query` must be a string");
  if (texts.empty()) throw Refusal{400, "Empty", "Input validation error: `texts` cannot be empty"};
  // Every text is paired with the query and tokenized on the I/O thread.
  const size_t bytes = std::accumulate(texts.begin(), texts.end(), texts.size() * query[0].size(),
                                       [](size_t sum, std::string_view text) { return sum + text.size(); });
  if (bytes > context.server.options.payload_bytes())
    throw Refusal{413, "Validation",
                  fmt::format("query and texts have {} bytes as pairs, at most {} allowed", bytes,
                              context.server.options.payload_bytes())};
  std::vector<InputText> pairs;
  for (const std::string_view text : texts) pairs.push_back({w.model, query[0], text});
  std::vector<std::string> returned;
  if (bool_or(body, "return_text", false)) returned.assign(texts.begin(), texts.end());
  // Scores are a sigmoid of the logit unless the request wants it raw, whatever the model's files say.
  const bool raw = std::exchange(w.raw, true);
  return context.server.dispatcher.score(
      call, w, pairs, [raw, returned = std::move(returned)](rows::JsonWriter& json, Call& c) {
        std::vector<size_t> order(c.predictions.size());
        std::iota(order.begin(), order.end(), size_t{0});
        const auto logit = [&](size_t i) {
          return c.predictions[i].error ? -std::numeric_limits<float>::infinity() : c.predictions[i].scores[0];
        };
        std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logit(a) > logit(b); });
        json.begin_array();
        for (const size_t i : order) {
          json.begin_object().member("index", i);
          if (!returned.empty()) json.member("text", returned[i]);
          json.key("score");
          if (c.predictions[i].error)
            json.null();
          else
            json.value(raw ? logit(i) : 1 / (1 + std::exp(-logit(i))));
          json.end_object();
        }
        json.end_array();
      });
}

std::optional<Reply> similarity(RequestContext& context) {
  Call& call = context.call;
  Body body = body_of(call);
  if (!body.is_object()) throw invalid("the body must be a JSON object");
  const Body parameters = body.value("parameters", Body());
  if (!parameters.is_null() && !parameters.is_object()) throw invalid("`parameters` must be an object");
  for (const char* key : {"truncate", "truncation_direction", "prompt_name"})
    if (parameters.contains(key)) body[key] = parameters[key];
  RequestOptions w = request_options(context, body, {ModelKind::embedder});
  context.server.models.require_kind(w.model, {ModelKind::embedder}, "an embedding model");
  refuse_prompts(body);
  const auto inputs = body.find("inputs");
  if (inputs == body.end() || !inputs->is_object())
    throw invalid("`inputs` must be an object of `source_sentence` and `sentences`");
  std::vector<std::string_view> texts = texts_of(*inputs, "source_sentence");
  if (texts.size() != 1) throw invalid("`source_sentence` must be a string");
  const auto sentences = texts_of(*inputs, "sentences");
  if (sentences.empty()) throw Refusal{400, "Empty", "Input validation error: `sentences` cannot be empty"};
  texts.insert(texts.end(), sentences.begin(), sentences.end());
  w.null_errors = false;
  return context.server.dispatcher.score(call, w, texts, [](rows::JsonWriter& json, Call& c) {
    const std::vector<float> source = shaped_embedding(c.predictions[0], 0, true);
    std::vector<float> cosines;
    for (size_t i = 1; i < c.predictions.size(); ++i) {
      const std::vector<float> other = shaped_embedding(c.predictions[i], 0, true);
      double sum = 0;
      for (size_t d = 0; d < source.size(); ++d) sum += static_cast<double>(source[d]) * other[d];
      cosines.push_back(static_cast<float>(sum));
    }
    json.value(cosines);
  });
}

std::string tokens_json(const Scorer& scorer, const std::vector<std::string_view>& texts, bool special) {
  constexpr size_t kMaxBytes = size_t{64} << 20;
  std::string out;
  rows::JsonWriter json(out);
  json.begin_array();
  for (const std::string_view text : texts) {
    json.begin_array();
    for (const TextToken& token : scorer.tokenize(text)) {
      if (token.special && !special) continue;
      json.begin_object().member("id", token.id).member("text", token.text).member("special", token.special);
      if (token.special)
        json.key("start").null().key("stop").null();
      else
        json.member("start", token.start).member("stop", token.end);
      json.end_object();
    }
    json.end_array();
    if (out.size() > kMaxBytes)
      throw invalid(fmt::format("response larger than {} bytes; send fewer texts", kMaxBytes));
  }
  json.end_array();
  return out;
}

std::optional<Reply> tokenize(RequestContext& context) {
  Call& call = context.call;
  const auto parsed = std::make_shared<const Body>(body_of(call));
  const Body& body = *parsed;
  const RequestOptions w =
      request_options(context, body, {ModelKind::classifier, ModelKind::tagger, ModelKind::embedder});
  context.server.models.require_kind(w.model, {ModelKind::classifier, ModelKind::tagger, ModelKind::embedder},
                                     "a model with a tokenizer");
  refuse_prompts(body);
  const bool special = bool_or(body, "add_special_tokens", true);
  const auto texts = texts_of(body, "inputs");
  if (texts.empty()) throw Refusal{400, "Empty", "Input validation error: `inputs` cannot be empty"};
  if (texts.size() > context.server.options.texts_per_request())
    throw invalid(fmt::format("batch size {} > maximum allowed batch size {}", texts.size(),
                              context.server.options.texts_per_request()));
  for (const std::string_view text : texts)
    if (text.size() > context.server.options.text_bytes())
      throw too_large(text.size(), context.server.options.text_bytes());
  call.model = w.model;
  if (call.exchange->body().size() <= Dispatcher::kHelperBytes)
    return Reply{.body = tokens_json(*w.served->scorer, texts, special)};
  return context.server.dispatcher.run_on(context.server.dispatcher.helpers(), call,
                                          [served = w.served, parsed, texts, special] {
                                            return Reply{200, tokens_json(*served->scorer, texts, special)};
                                          });
}

// Dispatches by the kind of the default model.
std::optional<Reply> by_task(RequestContext& context) {
  Call& call = context.call;
  const auto body = std::make_shared<Body>(body_of(call));
  const ModelKind kind = request_options(context, *body, {context.server.models.kind(0)}).served->scorer->kind();
  const bool has_query = body->contains("query");
  call.parsed = body;  // avoids parsing twice
  switch (kind) {
    case ModelKind::embedder:
      return embed(context);
    case ModelKind::tagger:
      return ner(context);
    default:
      return has_query ? rerank(context) : predict(context);
  }
}

std::optional<Reply> embed_sparse(RequestContext&) {
  throw Refusal{424, "Backend", "Backend error: sparse embeddings are not supported"};
}

std::optional<Reply> info(RequestContext& context) {
  const auto model_type = [](const ServedModel& model) {
    const Scorer& scorer = *model.scorer;
    Body labels = Body::object(), ids = Body::object();
    for (size_t i = 0; i < scorer.labels().size(); ++i) {
      labels[std::to_string(i)] = scorer.labels()[i];
      ids[scorer.labels()[i]] = i;
    }
    Body named = {{"id2label", labels}, {"label2id", ids}};
    if (scorer.kind() == ModelKind::embedder) return Body{{"embedding", {{"pooling", pooling_name(scorer.pooling())}}}};
    const char* kind = scorer.kind() == ModelKind::tagger ? "token_classifier"
                       : ranks(scorer)                    ? "reranker"
                                                          : "classifier";
    return Body{{kind, named}};
  };
  nlohmann::ordered_json models = nlohmann::ordered_json::array();
  const std::vector<Served> loaded = context.server.models.loaded();
  for (const Served& served : loaded) {
    const ServedModel& m = *served;
    models.push_back({{"name", m.name},
                      {"id", m.id},
                      {"sha", m.revision},
                      {"precision", m.scorer->precision()},
                      {"model_type", model_type(m)}});
  }
  const Served first_loaded = loaded.empty() ? context.server.models.get(0) : loaded[0];
  const ServedModel& first = *first_loaded;
  const MemoryPlan plan = first.scorer->plan();
  const nlohmann::ordered_json all = {
      {"model_id", first.id},
      {"model_sha", first.revision},
      {"model_dtype", first.scorer->precision()},
      {"served_model_name", first.name},
      {"model_type", model_type(first)},
      {"max_concurrent_requests", context.server.options.max_requests > 0 ? context.server.options.max_requests : 1024},
      {"max_input_length", first.scorer->max_length()},
      {"max_batch_tokens", plan.tokens_per_interactive_batch},
      {"max_batch_requests", nullptr},
      {"max_client_batch_size", context.server.options.texts_per_request()},
      {"auto_truncate", context.server.options.truncates},
      {"tokenization_workers", context.server.dispatcher.threads()},
      {"version", version()},
      {"sha", nullptr},
      {"docker_label", nullptr},
      {"models", models}};
  return Reply{.body = all.dump(-1, ' ', false, Body::error_handler_t::replace)};
}

constexpr Route kTeiRoutes[] = {
    {"GET", "/info", Scope::score, kTei, false, info},
    {"POST", "/predict", Scope::score, kTei, true, predict},
    {"POST", "/embed", Scope::score, kTei, true, embed},
    {"POST", "/similarity", Scope::score, kTei, true, similarity},
    {"POST", "/tokenize", Scope::score, kTei, true, tokenize},
    {"POST", "/", Scope::score, kTei, true, by_task},
    {"POST", "/invocations", Scope::score, kTei, true, by_task},
    {"POST", "/rerank", Scope::score, kTei, true, rerank},
    {"POST", "/embed_sparse", Scope::score, kTei, true, embed_sparse},
};

}  // namespace

Routes tei_routes() { return kTeiRoutes; }

}  // namespace brim::serve
