// SPDX-License-Identifier: Apache-2.0
// Token decoding and token embeddings, as in text-embeddings-inference.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "rows/jsonl.h"
#include "serve/service.h"

namespace brim::serve {

using Body = nlohmann::json;

void Service::decode(Call& call) {
  const Body body = body_of(call);
  const RequestOptions w = request_options(call, body, {ModelKind::classifier, ModelKind::tagger, ModelKind::embedder});
  require_kind(w.model, {ModelKind::classifier, ModelKind::tagger, ModelKind::embedder}, "a model with a tokenizer");
  const auto found = body.find("ids");
  if (found == body.end() || !found->is_array())
    throw invalid("`ids` must be a list of token ids, or a list of such lists");
  if (found->empty()) throw Refusal{400, "Empty", "Input validation error: `ids` cannot be empty"};
  bool skip_special = true;
  if (const auto skip = body.find("skip_special_tokens"); skip != body.end() && !skip->is_null()) {
    if (!skip->is_boolean()) throw invalid("`skip_special_tokens` must be true or false");
    skip_special = skip->get<bool>();
  }
  const bool batch = found->front().is_array();
  if (batch && found->size() > options_.texts_per_request)
    throw invalid(
        fmt::format("batch size {} > maximum allowed batch size {}", found->size(), options_.texts_per_request));
  std::string out = "[";
  for (size_t i = 0; i < (batch ? found->size() : 1); ++i) {
    const Body& list = batch ? (*found)[i] : *found;
    if (!list.is_array()) throw invalid("`ids` must be a list of token ids, or a list of such lists");
    if (i > 0) out += ',';
    rows::append_json_string(out, w.served->scorer->decode(token_ids(list, "ids"), skip_special));
  }
  out += ']';
  call.model = w.model;
  answer(call, std::move(out));
}

void Service::embed_all(Call& call) {
  const Body body = body_of(call);
  const RequestOptions w = request_options(call, body, {ModelKind::embedder});
  require_kind(w.model, {ModelKind::embedder}, "an embedding model");
  if (w.served->pooling != Pooling::none)
    throw Refusal{
        424, "Backend",
        "Backend error: this model returns one vector per text; serve it with `pooling=none` for token vectors"};
  score(call, w, texts_or_ids(body, "inputs", w.model), [](std::string& out, Call& c) {
    out += '[';
    for (size_t i = 0; i < c.predictions.size(); ++i) {
      const Prediction& p = c.predictions[i];
      if (i > 0) out += ',';
      if (p.error) {
        out += "null";
        continue;
      }
      const size_t width = p.embedding.size() / static_cast<size_t>(std::max(1, p.vectors));
      out += '[';
      for (auto vector = p.embedding.begin(); vector != p.embedding.end();
           vector += static_cast<std::ptrdiff_t>(width)) {
        if (vector != p.embedding.begin()) out += ',';
        append_floats(out, {vector, vector + static_cast<std::ptrdiff_t>(width)});
      }
      out += ']';
    }
    out += ']';
  });
}

}  // namespace brim::serve
