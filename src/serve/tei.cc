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

#include "rows/jsonl.h"
#include "serve/service.h"
#include "text/vader/vader.h"

namespace brim::serve {
namespace {

using Body = nlohmann::json;

// A re-ranker is a classifier with a single output.
bool ranks(const Scorer& scorer) { return scorer.kind() == ModelKind::classifier && scorer.labels().size() == 1; }

bool truth_or(const Body& body, const char* key, bool fallback) {
  const auto found = body.find(key);
  if (found == body.end() || found->is_null()) return fallback;
  if (!found->is_boolean()) throw invalid(fmt::format("`{}` must be true or false", key));
  return found->get<bool>();
}

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

}  // namespace

// A string or a list of strings, as views into `body`.
std::vector<std::string_view> Service::texts_of(const Body& body, const char* key) const {
  const auto found = body.find(key);
  if (found == body.end()) throw invalid(fmt::format("missing field `{}`", key));
  std::vector<std::string_view> texts;
  const auto add = [&](const Body& value) {
    if (!value.is_string()) throw invalid(fmt::format("`{}` must be a string or a list of strings", key));
    texts.push_back(value.get_ref<const std::string&>());
  };
  if (found->is_array())
    for (const Body& value : *found) add(value);
  else
    add(*found);
  return texts;
}

std::vector<Service::Text> Service::texts_or_ids(const Body& body, const char* key, int model) const {
  const auto found = body.find(key);
  if (found == body.end()) throw invalid(fmt::format("missing field `{}`", key));
  std::vector<Text> texts;
  const auto add = [&](const Body& value) {
    Text& text = texts.emplace_back(Text{model, {}});
    if (value.is_array())
      text.ids = token_ids(value, key);
    else if (value.is_string())
      text.text = value.get_ref<const std::string&>();
    else
      throw invalid(fmt::format("`{}` must be a string, a list of token ids, or a list of these", key));
  };
  if (found->is_array() && (found->empty() || !found->front().is_number()))
    for (const Body& value : *found) add(value);
  else
    add(*found);
  return texts;
}

void Service::append_labels(std::string& out, const Call& call, size_t i, size_t top_k) const {
  const Prediction& p = call.predictions[i];
  const Scorer& scorer = *call.served->scorer;
  if (p.error) {
    out += "null";
  } else if (scorer.kind() == ModelKind::rules) {
    const text::VaderLabelScores shares = text::vader_label_scores(p.scores[3]);
    append_scores(
        out, scorer.labels(),
        {static_cast<float>(shares.negative), static_cast<float>(shares.neutral), static_cast<float>(shares.positive)},
        top_k);
  } else {
    append_scores(out, scorer.score_names(), p.scores, top_k);
  }
}

void Service::predict(Call& call) {
  const Body body = body_of(call);
  const RequestOptions w = request_options(call, body, {ModelKind::classifier, ModelKind::rules});
  require_kind(w.model, {ModelKind::classifier, ModelKind::rules}, "a classifier model");
  const auto found = body.find("inputs");
  if (found == body.end()) throw invalid("missing field `inputs`");
  std::vector<Text> texts;
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
  score(call, w, texts, [this, batch, top_k = w.top_k](std::string& out, Call& c) {
    if (!batch) return append_labels(out, c, 0, top_k);
    out += '[';
    for (size_t i = 0; i < c.predictions.size(); ++i) {
      if (i > 0) out += ',';
      append_labels(out, c, i, top_k);
    }
    out += ']';
  });
}

void Service::embed(Call& call) {
  const Body body = body_of(call);
  const RequestOptions w = request_options(call, body, {ModelKind::embedder});
  require_kind(w.model, {ModelKind::embedder}, "an embedding model");
  refuse_prompts(body);
  const bool normalize = truth_or(body, "normalize", true);
  const size_t dimensions = dimensions_of(body);
  score(call, w, texts_or_ids(body, "inputs", w.model), [normalize, dimensions](std::string& out, Call& c) {
    out += '[';
    for (size_t i = 0; i < c.predictions.size(); ++i) {
      if (i > 0) out += ',';
      if (c.predictions[i].error)
        out += "null";
      else
        append_floats(out, shaped_embedding(c.predictions[i], dimensions, normalize));
    }
    out += ']';
  });
}

void Service::rerank(Call& call) {
  Body body = body_of(call);
  if (!body.is_object()) throw invalid("the body must be a JSON object");
  const auto model = body.find("model");
  const bool named = (model != body.end() && !model->is_null()) ||
                     !call.exchange->head().find("x-brim-model").empty() ||
                     !query_value(call.exchange->query(), "model").empty();
  const std::vector<Served> all = loaded();
  const auto ranker = std::find_if(all.begin(), all.end(), [](const Served& m) { return ranks(*m->scorer); });
  if (!named && ranker != all.end()) body["model"] = (*ranker)->name;
  RequestOptions w = request_options(call, body, {ModelKind::classifier});
  if (!ranks(*w.served->scorer)) throw Refusal{424, "Backend", "Backend error: Model is not a re-ranker model"};
  const auto query = texts_of(body, "query"), texts = texts_of(body, "texts");
  if (query.size() != 1 || body["query"].is_array()) throw invalid("`query` must be a string");
  if (texts.empty()) throw Refusal{400, "Empty", "Input validation error: `texts` cannot be empty"};
  // Every text is paired with the query and tokenized on the I/O thread.
  const size_t bytes = std::accumulate(texts.begin(), texts.end(), texts.size() * query[0].size(),
                                       [](size_t sum, std::string_view text) { return sum + text.size(); });
  if (bytes > options_.payload_bytes)
    throw Refusal{
        413, "Validation",
        fmt::format("query and texts have {} bytes as pairs, at most {} allowed", bytes, options_.payload_bytes)};
  std::vector<Text> pairs;
  for (const std::string_view text : texts) pairs.push_back({w.model, query[0], text});
  std::vector<std::string> returned;
  if (truth_or(body, "return_text", false)) returned.assign(texts.begin(), texts.end());
  // Scores are a sigmoid of the logit unless the request wants it raw, whatever the model's files say.
  const bool raw = std::exchange(w.raw, true);
  score(call, w, pairs, [raw, returned = std::move(returned)](std::string& out, Call& c) {
    std::vector<size_t> order(c.predictions.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto logit = [&](size_t i) {
      return c.predictions[i].error ? -std::numeric_limits<float>::infinity() : c.predictions[i].scores[0];
    };
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logit(a) > logit(b); });
    out += '[';
    for (size_t i = 0; i < order.size(); ++i) {
      out += fmt::format("{}{{\"index\":{}", i > 0 ? "," : "", order[i]);
      if (!returned.empty()) {
        out += ",\"text\":";
        rows::append_json_string(out, returned[order[i]]);
      }
      out += ",\"score\":";
      if (c.predictions[order[i]].error)
        out += "null";
      else
        rows::append_json_number(out, raw ? logit(order[i]) : 1 / (1 + std::exp(-logit(order[i]))));
      out += '}';
    }
    out += ']';
  });
}

void Service::similarity(Call& call) {
  Body body = body_of(call);
  if (!body.is_object()) throw invalid("the body must be a JSON object");
  const Body parameters = body.value("parameters", Body());
  if (!parameters.is_null() && !parameters.is_object()) throw invalid("`parameters` must be an object");
  for (const char* key : {"truncate", "truncation_direction", "prompt_name"})
    if (parameters.contains(key)) body[key] = parameters[key];
  RequestOptions w = request_options(call, body, {ModelKind::embedder});
  require_kind(w.model, {ModelKind::embedder}, "an embedding model");
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
  score(call, w, texts, [](std::string& out, Call& c) {
    const std::vector<float> source = shaped_embedding(c.predictions[0], 0, true);
    std::vector<float> cosines;
    for (size_t i = 1; i < c.predictions.size(); ++i) {
      const std::vector<float> other = shaped_embedding(c.predictions[i], 0, true);
      double sum = 0;
      for (size_t d = 0; d < source.size(); ++d) sum += static_cast<double>(source[d]) * other[d];
      cosines.push_back(static_cast<float>(sum));
    }
    append_floats(out, cosines);
  });
}

namespace {

std::string tokens_json(const Scorer& scorer, const std::vector<std::string_view>& texts, bool special) {
  constexpr size_t kMaxBytes = size_t{64} << 20;
  std::string out = "[";
  for (size_t i = 0; i < texts.size(); ++i) {
    out += i > 0 ? ",[" : "[";
    bool first = true;
    for (const TextToken& token : scorer.tokenize(texts[i])) {
      if (token.special && !special) continue;
      out += first ? "{\"id\":" : ",{\"id\":";
      first = false;
      rows::append_json_number(out, int64_t{token.id});
      out += ",\"text\":";
      rows::append_json_string(out, token.text);
      if (token.special)
        out += ",\"special\":true,\"start\":null,\"stop\":null}";
      else
        out += fmt::format(",\"special\":false,\"start\":{},\"stop\":{}}}", token.start, token.end);
    }
    out += ']';
    if (out.size() > kMaxBytes)
      throw invalid(fmt::format("response larger than {} bytes; send fewer texts", kMaxBytes));
  }
  return out + ']';
}

}  // namespace

void Service::tokenize(Call& call) {
  const auto parsed = std::make_shared<const Body>(body_of(call));
  const Body& body = *parsed;
  const RequestOptions w = request_options(call, body, {ModelKind::classifier, ModelKind::tagger, ModelKind::embedder});
  require_kind(w.model, {ModelKind::classifier, ModelKind::tagger, ModelKind::embedder}, "a model with a tokenizer");
  refuse_prompts(body);
  const bool special = truth_or(body, "add_special_tokens", true);
  const auto texts = texts_of(body, "inputs");
  if (texts.empty()) throw Refusal{400, "Empty", "Input validation error: `inputs` cannot be empty"};
  if (texts.size() > options_.texts_per_request)
    throw invalid(
        fmt::format("batch size {} > maximum allowed batch size {}", texts.size(), options_.texts_per_request));
  for (const std::string_view text : texts)
    if (text.size() > options_.text_bytes) throw too_large(text.size(), options_.text_bytes);
  call.model = w.model;
  if (call.exchange->body().size() <= kHelperBytes) return answer(call, tokens_json(*w.served->scorer, texts, special));
  run_on(helpers_, call, [served = w.served, parsed, texts, special] {
    return BlockingAnswer{200, tokens_json(*served->scorer, texts, special)};
  });
}

// Dispatches by the kind of the default model.
void Service::by_task(Call& call) {
  const auto body = std::make_shared<Body>(body_of(call));
  const ModelKind kind = request_options(call, *body, {slots_[0]->kind}).served->scorer->kind();
  const bool ranks = body->contains("query");
  call.parsed = body;  // avoids parsing twice
  switch (kind) {
    case ModelKind::embedder:
      return embed(call);
    case ModelKind::tagger:
      return ner(call);
    default:
      return ranks ? rerank(call) : predict(call);
  }
}

void Service::embed_sparse(Call&) {
  throw Refusal{424, "Backend", "Backend error: sparse embeddings are not supported"};
}

void Service::info(Call& call) {
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
  for (const Served& served : loaded()) {
    const ServedModel& m = *served;
    models.push_back({{"name", m.name},
                      {"id", m.id},
                      {"sha", m.revision},
                      {"precision", m.scorer->precision()},
                      {"model_type", model_type(m)}});
  }
  const std::vector<Served> all_loaded = loaded();
  const Served served = all_loaded.empty() ? model_at(0) : all_loaded[0];
  const ServedModel& first = *served;
  const MemoryPlan plan = first.scorer->plan();
  const nlohmann::ordered_json all = {{"model_id", first.id},
                                      {"model_sha", first.revision},
                                      {"model_dtype", first.scorer->precision()},
                                      {"served_model_name", first.name},
                                      {"model_type", model_type(first)},
                                      {"max_concurrent_requests", options_.requests > 0 ? options_.requests : 1024},
                                      {"max_input_length", first.scorer->max_length()},
                                      {"max_batch_tokens", plan.tokens_per_interactive_batch},
                                      {"max_batch_requests", nullptr},
                                      {"max_client_batch_size", options_.texts_per_request},
                                      {"auto_truncate", options_.truncates},
                                      {"tokenization_workers", server_ == nullptr ? 0 : server_->threads()},
                                      {"version", version()},
                                      {"sha", nullptr},
                                      {"docker_label", nullptr},
                                      {"models", models}};
  answer(call, all.dump(-1, ' ', false, Body::error_handler_t::replace));
}

}  // namespace brim::serve
