// SPDX-License-Identifier: Apache-2.0
// Options common to all scoring routes, and the choice of model.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "serve/service.h"

namespace brim::serve {

using Body = nlohmann::json;

int Service::find_model(const std::string& name) const {
  std::vector<std::string> names;
  for (size_t m = 0; m < options_.models.size(); ++m) {
    const ServedModel& model = options_.models[m];
    if (model.name == name || model.id == name) return static_cast<int>(m);
    names.push_back(model.name);
  }
  for (const auto& ladder : options_.ladders) names.push_back(ladder->rules().name);
  throw Refusal{404, "NotFound",
                fmt::format("model {} not found (available: {})", name.substr(0, 200), fmt::join(names, ", "))};
}

int Service::index_of(std::string_view name) const {
  for (size_t m = 0; m < options_.models.size(); ++m)
    if (options_.models[m].name == name) return static_cast<int>(m);
  return -1;
}

int Service::first_model(Kinds kinds, bool loaded) const {
  for (size_t m = 0; m < options_.models.size(); ++m) {
    if (std::find(kinds.begin(), kinds.end(), slots_[m]->kind) == kinds.end()) continue;
    std::lock_guard lock(slots_[m]->mutex);
    if (!loaded || slots_[m]->served != nullptr) return static_cast<int>(m);
  }
  return -1;
}

void Service::require_kind(int model, Kinds kinds, const char* what) const {
  if (std::find(kinds.begin(), kinds.end(), slots_[static_cast<size_t>(model)]->kind) == kinds.end())
    throw Refusal{424, "Backend", fmt::format("Backend error: Model is not {}", what)};
}

void Service::choose_model(RequestOptions& w, const std::string& model, const std::string& source, Kinds kinds) {
  // Ladders choose classifiers only; any model with a tokenizer can handle token routes.
  const bool classifies = std::all_of(kinds.begin(), kinds.end(), [](ModelKind kind) {
    return kind == ModelKind::classifier || kind == ModelKind::rules;
  });
  const auto ladder = std::find_if(options_.ladders.begin(), options_.ladders.end(), [&](const auto& l) {
    return model.empty() ? classifies : l->rules().name == model;
  });
  if (ladder == options_.ladders.end()) {
    w.model = model.empty() ? std::max(0, first_model(kinds)) : find_model(model);
    // For token routes, any loaded model will do.
    const bool any_kind = !classifies && kinds.size() > 1;
    if (const int loaded_model = first_model(kinds, true); model.empty() && any_kind && loaded_model >= 0)
      w.model = loaded_model;
    w.reason = model.empty() ? "default" : "requested";
    w.served = model_at(w.model, w.may_wait);
    return;
  }
  LadderRequest request;
  request.source = source;
  if (w.timeout_ms > 0) request.deadline_ms = w.timeout_ms;
  request.may_spill = !w.bulk;
  const Ladder::Wait wait = [this](const std::string& name) { return queue_seconds(find_model(name)) * 1e3; };
  Choice choice;
  try {
    choice = (*ladder)->choose(request, {unix_now(), now_ns()}, wait);
  } catch (const Error& error) {  // no rung is available
    throw Refusal{503, "Unhealthy", error.what(), retry_after(options_.load_retry_seconds)};
  }
  w.model = find_model(choice.model);
  w.reason = reason_name(choice.reason);
  w.instead_of = choice.instead_of;
  w.served = model_at(w.model, w.may_wait);
}

Service::RequestOptions Service::request_options(Call& call, const Body& body, Kinds kinds) {
  if (!body.is_object()) throw invalid("the body must be a JSON object");
  const RequestHead& head = call.exchange->head();
  RequestOptions w;
  const auto text_of = [&](const char* key, std::string_view field) -> std::string {
    const auto found = body.find(key);
    if (found == body.end() || found->is_null()) return std::string(head.find(field));
    if (!found->is_string()) throw invalid(fmt::format("`{}` must be a string", key));
    // An empty model or source means the default.
    const bool may_be_empty = key == std::string_view("model") || key == std::string_view("source");
    if (!may_be_empty && found->get_ref<const std::string&>().empty())
      throw invalid(fmt::format("`{}` must not be empty", key));
    return found->get<std::string>();
  };
  const auto truth_of = [&](const char* key, bool fallback) {
    const auto found = body.find(key);
    if (found == body.end() || found->is_null()) return fallback;
    if (!found->is_boolean()) throw invalid(fmt::format("`{}` must be true or false", key));
    return found->get<bool>();
  };
  std::string model = text_of("model", "x-brim-model");
  if (const std::string value = query_value(call.exchange->query(), "model"); !value.empty()) model = value;
  const std::string priority = text_of("priority", "x-brim-priority");
  if (!priority.empty() && priority != "interactive" && priority != "bulk")
    throw invalid("`priority` must be interactive or bulk");
  w.bulk = priority == "bulk";
  const std::string_view envoy = head.find("x-envoy-expected-rq-timeout-ms");
  if (const auto value = body.find("timeout_ms"); value != body.end() && !value->is_null()) {
    if (!value->is_number() || value->get<double>() <= 0 || value->get<double>() > 86'400'000)
      throw invalid("`timeout_ms` must be a number of milliseconds, up to a day");
    w.timeout_ms = value->get<double>();
  } else if (!envoy.empty() && envoy.size() < 10 &&
             std::all_of(envoy.begin(), envoy.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    w.timeout_ms = std::stod(std::string(envoy));
  }
  choose_model(w, model, text_of("source", "x-brim-source"), kinds);
  const std::string direction = text_of("truncation_direction", "");
  if (!direction.empty() && !same_ignoring_case(direction, "left") && !same_ignoring_case(direction, "right"))
    throw invalid("`truncation_direction` must be left or right");
  w.keep_end = same_ignoring_case(direction, "left");
  if (!truth_of("truncate", options_.truncates))
    w.long_text = LongText::error;
  else if (body.contains("truncate") && !body["truncate"].is_null())
    w.long_text = LongText::truncate;
  const std::string long_text = text_of("long_text", "");
  if (!long_text.empty()) {
    if (long_text == "truncate")
      w.long_text = LongText::truncate;
    else if (long_text == "window-mean")
      w.long_text = LongText::window_mean;
    else if (long_text == "window-max")
      w.long_text = LongText::window_max;
    else if (long_text == "error")
      w.long_text = LongText::error;
    else
      throw invalid("`long_text` must be truncate, window-mean, window-max or error");
  }
  w.overlap = stride_of(body);
  w.raw = truth_of("raw_scores", false);
  const std::string on_error = text_of("on_error", "");
  if (!on_error.empty() && on_error != "fail" && on_error != "null") throw invalid("`on_error` must be fail or null");
  w.null_errors = on_error == "null";
  if (const auto top = body.find("top_k"); top != body.end() && !top->is_null()) {
    if (!top->is_number_integer() || top->get<int64_t>() < 1) throw invalid("`top_k` must be a positive integer");
    w.top_k = static_cast<size_t>(top->get<int64_t>());
  }
  return w;
}

}  // namespace brim::serve
