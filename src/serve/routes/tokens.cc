// SPDX-License-Identifier: Apache-2.0
// Token decoding and token embeddings, as in text-embeddings-inference.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "rows/json_writer.h"
#include "serve/routes/routes.h"
#include "serve/server_parts.h"

namespace brim::serve {
namespace {

using Body = nlohmann::json;

std::optional<Reply> decode(RequestContext& context) {
  Call& call = context.call;
  const Body body = body_of(call);
  const RequestOptions w =
      request_options(context, body, {ModelKind::classifier, ModelKind::tagger, ModelKind::embedder});
  context.server.models.require_kind(w.model, {ModelKind::classifier, ModelKind::tagger, ModelKind::embedder},
                                     "a model with a tokenizer");
  const auto found = body.find("ids");
  if (found == body.end() || !found->is_array())
    throw invalid("`ids` must be a list of token ids, or a list of such lists");
  if (found->empty()) throw Refusal{400, "Empty", "Input validation error: `ids` cannot be empty"};
  const bool skip_special = bool_or(body, "skip_special_tokens", true);
  const bool batch = found->front().is_array();
  if (batch && found->size() > context.server.options.texts_per_request())
    throw invalid(fmt::format("batch size {} > maximum allowed batch size {}", found->size(),
                              context.server.options.texts_per_request()));
  std::string out;
  rows::JsonWriter json(out);
  json.begin_array();
  for (size_t i = 0; i < (batch ? found->size() : 1); ++i) {
    const Body& list = batch ? (*found)[i] : *found;
    if (!list.is_array()) throw invalid("`ids` must be a list of token ids, or a list of such lists");
    json.value(w.served->scorer->decode(token_ids(list, "ids"), skip_special));
  }
  json.end_array();
  call.model = w.model;
  return Reply{.body = std::move(out)};
}

// A list of vectors, one per token; null for a text with an error.
void write_token_vectors(rows::JsonWriter& json, const Prediction& p) {
  if (p.error) {
    json.null();
    return;
  }
  const auto width = static_cast<std::ptrdiff_t>(p.embedding.size()) / std::max(1, p.vectors);
  json.begin_array();
  for (auto vector = p.embedding.begin(); vector != p.embedding.end(); vector += width)
    json.value(std::vector<float>(vector, vector + width));
  json.end_array();
}

std::optional<Reply> embed_all(RequestContext& context) {
  Call& call = context.call;
  const Body body = body_of(call);
  const RequestOptions w = request_options(context, body, {ModelKind::embedder});
  context.server.models.require_kind(w.model, {ModelKind::embedder}, "an embedding model");
  if (w.served->pooling != Pooling::none)
    throw Refusal{
        424, "Backend",
        "Backend error: this model returns one vector per text; serve it with `pooling=none` for token vectors"};
  return context.server.dispatcher.score(call, w, texts_or_ids(body, "inputs", w.model),
                                         [](rows::JsonWriter& json, Call& c) {
                                           json.begin_array();
                                           for (const Prediction& p : c.predictions) write_token_vectors(json, p);
                                           json.end_array();
                                         });
}

constexpr Route kTokenRoutes[] = {
    {"POST", "/embed_all", Scope::score, kTei, true, embed_all},
    {"POST", "/decode", Scope::score, kTei, true, decode},
};

}  // namespace

Routes token_routes() { return kTokenRoutes; }

}  // namespace brim::serve
