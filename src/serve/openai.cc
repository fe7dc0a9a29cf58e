// SPDX-License-Identifier: Apache-2.0
// OpenAI-compatible routes.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "rows/jsonl.h"
#include "serve/service.h"

namespace brim::serve {
namespace {

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

}  // namespace

void Service::embeddings(Call& call) {
  const nlohmann::json body = body_of(call);
  RequestOptions w = request_options(call, body, {ModelKind::embedder});
  require_kind(w.model, {ModelKind::embedder}, "an embedding model");
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
  score(call, w, texts_or_ids(body, "input", w.model), [this, base64, dimensions](std::string& out, Call& c) {
    static_assert(std::endian::native == std::endian::little, "base64 carries little-endian floats");
    out += "{\"object\":\"list\",\"data\":[";
    for (size_t i = 0; i < c.predictions.size(); ++i) {
      const std::vector<float> embedding = shaped_embedding(c.predictions[i], dimensions, true);
      out += i > 0 ? ",{\"object\":\"embedding\",\"embedding\":" : "{\"object\":\"embedding\",\"embedding\":";
      if (base64) {
        out += '"';
        append_base64(out, {reinterpret_cast<const char*>(embedding.data()), embedding.size() * sizeof(float)});
        out += '"';
      } else {
        append_floats(out, embedding);
      }
      out += fmt::format(",\"index\":{}}}", i);
    }
    out += "],\"model\":";
    rows::append_json_string(out, options_.models[static_cast<size_t>(c.model)].name);
    out += fmt::format(",\"usage\":{{\"prompt_tokens\":{0},\"total_tokens\":{0}}}}}", c.tokens);
  });
}

nlohmann::ordered_json Service::described_models() const {
  using Json = nlohmann::ordered_json;
  Json data = Json::array();
  for (size_t index = 0; index < slots_.size(); ++index) {
    const Slot& slot = *slots_[index];
    Served served;
    std::string state, fault;
    bool opened;
    {
      std::lock_guard lock(slot.mutex);
      served = slot.served;
      state = slot.state_now();
      fault = slot.fault;
      opened = slot.opened;
    }
    if (served == nullptr) {
      data.push_back({{"id", options_.models[index].name},
                      {"object", "model"},
                      {"created", started_unix_},
                      {"owned_by", "brim"},
                      {"task", opened ? Json(task_name(slot.kind)) : Json(nullptr)},
                      {"state", state}});
      if (!fault.empty()) data.back()["fault"] = fault;
      continue;
    }
    const ServedModel& m = *served;
    const MemoryPlan plan = m.scorer->plan();
    Json bytes = Json::object();
    for (const auto& [purpose, n] : plan.bytes) bytes[purpose] = n;
    std::vector<std::string> ladders;  // that contain the model
    for (const auto& ladder : options_.ladders)
      if (ladder->has(m.name)) ladders.push_back(ladder->rules().name);
    data.push_back({{"id", m.name},
                    {"object", "model"},
                    {"created", started_unix_},
                    {"owned_by", "brim"},
                    {"task", task_name(m.scorer->kind())},
                    {"state", state},
                    {"labels", m.scorer->labels()},
                    {"max_length", m.scorer->max_length()},
                    {"precision", m.scorer->precision()},
                    {"bytes", bytes},
                    {"shared_bytes", plan.shared_bytes},
                    {"token_budget", plan.tokens_per_interactive_batch},
                    {"ladder", ladders}});
  }
  for (const auto& ladder : options_.ladders) {
    std::vector<std::string> rungs;
    for (const RungRules& rung : ladder->rules().rungs) rungs.push_back(rung.model);
    data.push_back({{"id", ladder->rules().name},
                    {"object", "model"},
                    {"created", started_unix_},
                    {"owned_by", "brim"},
                    {"task", "text-classification"},
                    {"rungs", rungs}});
  }
  return data;
}

void Service::list_models(Call& call) {
  using Json = nlohmann::ordered_json;
  const Json list{{"object", "list"}, {"data", described_models()}};
  answer(call, list.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void Service::show_model(Call& call) {
  using Json = nlohmann::ordered_json;
  const std::string name = percent_decoded(call.exchange->path().substr(std::string_view("/v1/models/").size()));
  const Json all = described_models();  // models, then ladders
  auto one = std::find_if(all.begin(), all.end(), [&](const Json& m) { return m["id"] == name; });
  if (one == all.end()) one = all.begin() + find_model(name);  // find_model() also knows the model's other names
  answer(call, one->dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace brim::serve
