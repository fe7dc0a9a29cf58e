// SPDX-License-Identifier: Apache-2.0
// OpenAI-compatible routes.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "rows/json_writer.h"
#include "serve/routes/routes.h"
#include "serve/server_parts.h"

namespace brim::serve {
namespace {

using OrderedJson = nlohmann::ordered_json;

const char* task_name(ModelKind kind) {
  switch (kind) {
    case ModelKind::tagger:
      return "token-classification";
    case ModelKind::embedder:
      return "feature-extraction";
    default:
      return "text-classification";
  }
}

std::optional<Reply> embeddings(RequestContext& context) {
  Call& call = context.call;
  const nlohmann::json body = body_of(call);
  RequestOptions w = request_options(context, body, {ModelKind::embedder});
  context.server.models.require_kind(w.model, {ModelKind::embedder}, "an embedding model");
  bool base64 = false;
  if (const auto format = body.find("encoding_format"); format != body.end() && !format->is_null()) {
    if (*format != "float" && *format != "base64") throw invalid("`encoding_format` must be float or base64");
    base64 = *format == "base64";
  }
  size_t dimensions = 0;
  if (const auto value = body.find("dimensions"); value != body.end() && !value->is_null()) {
    // Clients of infinity always send a value, with 0 for the full size.
    if (!value->is_number_integer() || value->get<int64_t>() < 0)
      throw invalid("`dimensions` must be a non-negative integer (0: full size)");
    dimensions = static_cast<size_t>(value->get<int64_t>());
  }
  w.null_errors = false;
  return context.server.dispatcher.score(
      call, w, texts_or_ids(body, "input", w.model), [base64, dimensions](rows::JsonWriter& json, Call& c) {
        static_assert(std::endian::native == std::endian::little, "base64 carries little-endian floats");
        json.begin_object().member("object", "list").key("data").begin_array();
        for (size_t i = 0; i < c.predictions.size(); ++i) {
          const std::vector<float> embedding = shaped_embedding(c.predictions[i], dimensions, true);
          json.begin_object().member("object", "embedding").key("embedding");
          if (base64)
            json.value(
                base64_text({reinterpret_cast<const char*>(embedding.data()), embedding.size() * sizeof(float)}));
          else
            json.value(embedding);
          json.member("index", i).end_object();
        }
        json.end_array().member("model", c.served->name);
        write_usage(json, c.tokens);
        json.end_object();
      });
}

OrderedJson described_models(const ServerParts& server) {
  OrderedJson data = OrderedJson::array();
  for (size_t index = 0; index < server.models.size(); ++index) {
    const ModelStatus status = server.models.status(index);
    if (status.served == nullptr) {
      data.push_back({{"id", server.models.name(index)},
                      {"object", "model"},
                      {"created", server.state.started_unix},
                      {"owned_by", "brim"},
                      {"task", status.opened ? OrderedJson(task_name(status.kind)) : OrderedJson(nullptr)},
                      {"state", status.state}});
      if (!status.fault.empty()) data.back()["fault"] = status.fault;
      if (const std::string& base = server.models.base(index); !base.empty()) data.back()["parent"] = base;
      continue;
    }
    const ServedModel& m = *status.served;
    const MemoryPlan plan = m.scorer->plan();
    OrderedJson bytes = OrderedJson::object();
    for (const auto& [purpose, n] : plan.bytes) bytes[purpose] = n;
    std::vector<std::string> ladders;  // that contain the model
    for (const auto& ladder : server.models.ladders())
      if (ladder->has(m.name)) ladders.push_back(ladder->rules().name);
    data.push_back({{"id", m.name},
                    {"object", "model"},
                    {"created", server.state.started_unix},
                    {"owned_by", "brim"},
                    {"task", task_name(m.scorer->kind())},
                    {"state", status.state},
                    {"labels", m.scorer->labels()},
                    {"max_length", m.scorer->max_length()},
                    {"precision", m.scorer->precision()},
                    {"bytes", bytes},
                    {"shared_bytes", plan.shared_bytes},
                    {"token_budget", plan.tokens_per_interactive_batch},
                    {"ladder", ladders}});
    if (!m.base.empty()) data.back()["parent"] = m.base;
  }
  for (const auto& ladder : server.models.ladders()) {
    std::vector<std::string> rungs;
    for (const RungRules& rung : ladder->rules().rungs) rungs.push_back(rung.model);
    data.push_back({{"id", ladder->rules().name},
                    {"object", "model"},
                    {"created", server.state.started_unix},
                    {"owned_by", "brim"},
                    {"task", "text-classification"},
                    {"rungs", rungs}});
  }
  return data;
}

std::optional<Reply> list_models(RequestContext& context) {
  const OrderedJson list{{"object", "list"}, {"data", described_models(context.server)}};
  return Reply{.body = list.dump(-1, ' ', false, OrderedJson::error_handler_t::replace)};
}

std::optional<Reply> show_model(RequestContext& context) {
  Call& call = context.call;
  const std::string name = percent_decoded(call.exchange->path().substr(std::string_view("/v1/models/").size()));
  OrderedJson all = described_models(context.server);  // models, then ladders
  const auto named = std::find_if(all.begin(), all.end(), [&](const OrderedJson& m) { return m["id"] == name; });
  OrderedJson one;
  if (named != all.end()) {
    one = *named;
  } else {  // find() also accepts a model's id, and throws if the name is unknown
    const auto index = static_cast<size_t>(context.server.models.find(name));
    if (index >= all.size()) all = described_models(context.server);  // just added
    one = all.at(index);
  }
  return Reply{.body = one.dump(-1, ' ', false, OrderedJson::error_handler_t::replace)};
}

constexpr auto kOpenAi = ErrorShape::openai;
constexpr Route kOpenAiRoutes[] = {
    {"POST", "/v1/embeddings", Scope::score, kOpenAi, true, embeddings},
    {"POST", "/embeddings", Scope::score, kOpenAi, true, embeddings},
    {"GET", "/v1/models", Scope::score, kOpenAi, false, list_models},
    {"GET", "/v1/models/*", Scope::score, kOpenAi, false, show_model},
};

}  // namespace

Routes openai_routes() { return kOpenAiRoutes; }

}  // namespace brim::serve
