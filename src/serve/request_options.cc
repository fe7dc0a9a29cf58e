// SPDX-License-Identifier: Apache-2.0
#include "serve/request_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "serve/server_parts.h"
#include "text/vader/vader.h"

namespace brim::serve {
namespace {

using Body = nlohmann::json;

// Reads options from the body, or from a header if the body does not have them.
class OptionReader {
 public:
  OptionReader(const Body& body, const RequestHead& head) : body_(body), head_(head) {}

  std::string text(const char* key, std::string_view field) const {
    const auto found = body_.find(key);
    if (found == body_.end() || found->is_null()) return std::string(head_.find(field));
    if (!found->is_string()) throw invalid(fmt::format("`{}` must be a string", key));
    // An empty model or source means the default.
    const bool may_be_empty = key == std::string_view("model") || key == std::string_view("source");
    if (!may_be_empty && found->get_ref<const std::string&>().empty())
      throw invalid(fmt::format("`{}` must not be empty", key));
    return found->get<std::string>();
  }
  double timeout_ms() const {
    const std::string_view envoy = head_.find("x-envoy-expected-rq-timeout-ms");
    if (const auto value = body_.find("timeout_ms"); value != body_.end() && !value->is_null()) {
      if (!value->is_number() || value->get<double>() <= 0 || value->get<double>() > 86'400'000)
        throw invalid("`timeout_ms` must be a number of milliseconds, up to a day");
      return value->get<double>();
    }
    const bool number = !envoy.empty() && envoy.size() < 10 &&
                        std::all_of(envoy.begin(), envoy.end(), [](char c) { return c >= '0' && c <= '9'; });
    return number ? std::stod(std::string(envoy)) : 0;
  }
  std::optional<LongText> long_text(bool truncates) const {
    constexpr std::pair<std::string_view, LongText> kNames[] = {{"truncate", LongText::truncate},
                                                                {"window-mean", LongText::window_mean},
                                                                {"window-max", LongText::window_max},
                                                                {"error", LongText::error}};
    std::optional<LongText> result;
    if (!bool_or(body_, "truncate", truncates))
      result = LongText::error;
    else if (const auto given = body_.find("truncate"); given != body_.end() && !given->is_null())
      result = LongText::truncate;
    const std::string name = text("long_text", "");
    if (name.empty()) return result;
    const auto* found = std::ranges::find(kNames, name, &std::pair<std::string_view, LongText>::first);
    if (found == std::end(kNames)) throw invalid("`long_text` must be truncate, window-mean, window-max or error");
    return found->second;
  }
  size_t top_k() const {
    const auto top = body_.find("top_k");
    if (top == body_.end() || top->is_null()) return SIZE_MAX;
    if (!top->is_number_integer() || top->get<int64_t>() < 1) throw invalid("`top_k` must be a positive integer");
    return static_cast<size_t>(top->get<int64_t>());
  }

 private:
  const Body& body_;
  const RequestHead& head_;
};

}  // namespace

nlohmann::json body_of(Call& call) {
  const auto parsed = std::exchange(call.parsed, nullptr);
  nlohmann::json body = parsed != nullptr ? std::move(*parsed) : parse_body(call.exchange->body());
  call.ignored = ignored_keys(call.route->path, body);
  return body;
}

RequestOptions request_options(RequestContext& context, const Body& body, ModelKinds kinds) {
  if (!body.is_object()) throw invalid("the body must be a JSON object");
  const Exchange& exchange = *context.call.exchange;
  const OptionReader read(body, exchange.head());
  RequestOptions w;
  std::string model = read.text("model", "x-brim-model");
  if (const std::string value = query_value(exchange.query(), "model"); !value.empty()) model = value;
  const std::string priority = read.text("priority", "x-brim-priority");
  if (!priority.empty() && priority != "interactive" && priority != "bulk")
    throw invalid("`priority` must be interactive or bulk");
  w.bulk = priority == "bulk";
  w.timeout_ms = read.timeout_ms();
  const std::string source = read.text("source", "x-brim-source");
  static_cast<ModelChoice&>(w) = context.server.models.choose(
      {.model = model, .source = source, .timeout_ms = w.timeout_ms, .bulk = w.bulk}, kinds);
  w.label_cost = w.served->label_cost;
  const std::string direction = read.text("truncation_direction", "");
  if (!direction.empty() && !same_ignoring_case(direction, "left") && !same_ignoring_case(direction, "right"))
    throw invalid("`truncation_direction` must be left or right");
  w.keep_end = same_ignoring_case(direction, "left");
  w.long_text = read.long_text(context.server.options.truncates);
  w.overlap = stride_of(body);
  w.raw = bool_or(body, "raw_scores", false);
  const std::string on_error = read.text("on_error", "");
  if (!on_error.empty() && on_error != "fail" && on_error != "null") throw invalid("`on_error` must be fail or null");
  w.null_errors = on_error == "null";
  w.top_k = read.top_k();
  return w;
}

std::vector<std::string_view> texts_of(const Body& body, const char* key) {
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

std::vector<InputText> texts_or_ids(const Body& body, const char* key, int model) {
  const auto found = body.find(key);
  if (found == body.end()) throw invalid(fmt::format("missing field `{}`", key));
  std::vector<InputText> texts;
  const auto add = [&](const Body& value) {
    InputText& text = texts.emplace_back(InputText{model, {}});
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

void write_labels(rows::JsonWriter& json, const Call& call, size_t i, size_t top_k) {
  const Prediction& p = call.predictions[i];
  const Scorer& scorer = *call.served->scorer;
  if (p.error) {
    json.null();
  } else if (scorer.kind() == ModelKind::rules) {
    const text::VaderLabelScores shares = text::vader_label_scores(p.scores[3]);
    write_scores(
        json, scorer.labels(),
        {static_cast<float>(shares.negative), static_cast<float>(shares.neutral), static_cast<float>(shares.positive)},
        top_k);
  } else {
    write_scores(json, scorer.score_names(), p.scores, top_k);
  }
}

std::vector<InputText> as_inputs(const std::vector<std::string_view>& texts, int model) {
  std::vector<InputText> inputs;
  inputs.reserve(texts.size());
  for (const std::string_view text : texts) inputs.push_back({model, text});
  return inputs;
}

}  // namespace brim::serve
