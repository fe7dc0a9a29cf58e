// SPDX-License-Identifier: Apache-2.0
#include "serve/answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>

#include "io/json_text.h"
#include "rows/json_writer.h"

namespace brim::serve {
namespace {

using Body = nlohmann::json;

constexpr size_t kMaxBodyDepth = 32;
constexpr size_t kMaxBodyValues = 600'000;  // enough for 1,024 texts of 512 token ids
constexpr size_t kMaxObjectKeys = 1000;     // queues keep object keys in order, so each lookup is linear

// Builds a value and enforces the limits above.
class BodyBuilder final : public Body::json_sax_t {
 public:
  explicit BodyBuilder(std::string_view text) : text_(text) {}
  Body take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(Body::object()); }
  bool start_array(size_t) override { return open(Body::array()); }
  bool key(string_t& name) override {
    auto& object = *stack_.back();
    if (object.size() == kMaxObjectKeys) throw invalid(fmt::format("an object has more than {} keys", kMaxObjectKeys));
    const auto [entry, inserted] = object.get_ref<Body::object_t&>().emplace(std::move(name), nullptr);
    if (!inserted) throw invalid(fmt::format("duplicate key `{}`", entry->first.substr(0, 100)));
    member_ = &entry->second;
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    throw Refusal{
        400, "Syntax",
        fmt::format("the body is not JSON: line:column {}: {}",
                    io::line_and_column(text_, position > 0 ? position - 1 : 0), io::json_reason(error.what()))};
  }

 private:
  Body* insert(Body value) {
    if (++values_ > kMaxBodyValues) throw invalid(fmt::format("the body has more than {} values", kMaxBodyValues));
    Body* inserted;
    if (stack_.empty()) {
      root_ = std::move(value);
      inserted = &root_;
    } else if (stack_.back()->is_array()) {
      auto& items = stack_.back()->get_ref<Body::array_t&>();
      items.push_back(std::move(value));
      inserted = &items.back();
    } else {
      *member_ = std::move(value);
      inserted = member_;
    }
    return inserted;
  }
  bool put(Body value) {
    insert(std::move(value));
    return true;
  }
  // Growing an array moves its values, but only the last value can be open, and it is inserted after growing.
  bool open(Body value) {
    if (stack_.size() == kMaxBodyDepth) throw invalid(fmt::format("the body is nested deeper than {}", kMaxBodyDepth));
    stack_.push_back(insert(std::move(value)));
    return true;
  }
  bool close() {
    stack_.pop_back();
    return true;
  }

  std::string_view text_;
  Body root_;
  std::vector<Body*> stack_;
  Body* member_ = nullptr;
  size_t values_ = 0;
};

}  // namespace

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit = [](char c) {
      return c >= '0' && c <= '9'   ? c - '0'
             : c >= 'a' && c <= 'f' ? c - 'a' + 10
             : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                    : -1;
    };
    if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0) {
      out += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string retry_after(double seconds) {
  constexpr double kLongest = 86'400;  // also used for infinity and NaN
  return fmt::format("Retry-After: {}\r\n", seconds < kLongest
                                                ? std::max<int64_t>(1, static_cast<int64_t>(std::ceil(seconds)))
                                                : static_cast<int64_t>(kLongest));
}

Refusal invalid(std::string_view problem) {
  return {422, "Validation", fmt::format("Input validation error: {}", problem)};
}

Refusal too_large(size_t bytes, size_t max_bytes) {
  return invalid(fmt::format("text of {} bytes, at most {} allowed", bytes, max_bytes));
}

Response error_response(const Refusal& refusal, ErrorShape shape) {
  Response response;
  response.status = refusal.status;
  response.fields = refusal.fields;
  rows::JsonWriter json(response.body);
  const auto describe = [&] { json.member("message", refusal.message).member("type", refusal.type); };
  json.begin_object();
  if (shape == ErrorShape::tei) {
    json.member("error", refusal.message).member("error_type", refusal.type);
  } else {
    json.key("error").begin_object();
    describe();
    json.key("param").null().member("code", refusal.status).end_object();
    describe();
    json.member("code", refusal.status);
  }
  response.body += refusal.extra;
  json.end_object();
  return response;
}

Body parse_body(std::string_view text) {
  BodyBuilder builder(text);
  Body::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

int32_t stride_of(const nlohmann::json& object) {
  const auto stride = object.find("stride");
  if (stride == object.end() || stride->is_null()) return -1;
  if (!stride->is_number_integer() || stride->get<int64_t>() < 0 || stride->get<int64_t>() > INT32_MAX)
    throw invalid("`stride` (tokens shared by neighbouring windows) must be a non-negative integer");
  return stride->get<int32_t>();
}

bool bool_or(const nlohmann::json& object, const char* key, bool fallback) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return fallback;
  if (!found->is_boolean()) throw invalid(fmt::format("`{}` must be true or false", key));
  return found->get<bool>();
}

std::vector<int32_t> token_ids(const Body& list, const char* key) {
  std::vector<int32_t> ids;
  for (const Body& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX)
      throw invalid(fmt::format("`{}` must be a list of token ids, or a list of such lists", key));
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

std::vector<float> shaped_embedding(const Prediction& prediction, size_t dimensions, bool normalize) {
  const auto vectors = static_cast<size_t>(std::max(1, prediction.vectors));
  const size_t width = prediction.embedding.size() / vectors;
  std::vector<float> out(dimensions == 0 ? width : std::min(dimensions, width));
  for (size_t d = 0; d < out.size(); ++d) {
    double sum = 0;
    for (size_t v = 0; v < vectors; ++v) sum += prediction.embedding[v * width + d];
    out[d] = static_cast<float>(sum / static_cast<double>(vectors));
  }
  if (!normalize) return out;
  double squares = 0;
  for (const float v : out) squares += static_cast<double>(v) * v;
  const auto scale = static_cast<float>(1 / std::max(1e-12, std::sqrt(squares)));
  for (float& v : out) v *= scale;
  return out;
}

void write_embeddings(rows::JsonWriter& json, std::span<const Prediction> predictions, size_t dimensions,
                      bool normalize) {
  json.begin_array();
  for (const Prediction& p : predictions)
    p.error ? json.null() : json.value(shaped_embedding(p, dimensions, normalize));
  json.end_array();
}

std::string query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view part = query.substr(0, end);
    const size_t equals = std::min(part.find('='), part.size());
    if (part.substr(0, equals) == name) return percent_decoded(part.substr(std::min(part.size(), equals + 1)));
    query.remove_prefix(std::min(query.size(), end + 1));
  }
  return "";
}

std::optional<float> compound_of(const Scorer& scorer, std::span<const float> scores) {
  if (scorer.kind() == ModelKind::rules) return scores[3];
  const auto score = [&](std::string_view name) -> std::optional<float> {
    for (size_t k = 0; k < scorer.score_names().size(); ++k)
      if (same_ignoring_case(scorer.score_names()[k], name)) return scores[k];
    return std::nullopt;
  };
  const auto positive = score("positive"), negative = score("negative");
  if (!positive || !negative) return std::nullopt;
  return *positive - *negative;
}

void write_scores(rows::JsonWriter& json, const std::vector<std::string>& names, const std::vector<float>& scores,
                  size_t top_k) {
  std::array<uint32_t, 16> few;
  std::vector<uint32_t> many;
  std::span<uint32_t> order;
  if (scores.size() <= few.size()) {
    order = std::span(few).first(scores.size());
  } else {
    many.resize(scores.size());
    order = many;
  }
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  json.begin_array();
  for (const uint32_t k : order.first(std::min(top_k, order.size())))
    json.begin_object().member("score", scores[k]).member("label", names[k]).end_object();
  json.end_array();
}

void write_entities(rows::JsonWriter& json, const std::vector<Entity>& entities) {
  json.begin_array();
  for (const Entity& e : entities) {
    json.begin_object().member(e.token < 0 ? "entity_group" : "entity", e.group).member("score", e.score);
    if (e.token >= 0) json.member("index", e.token);
    json.member("word", e.word).member("start", e.start).member("end", e.end).end_object();
  }
  json.end_array();
}

std::string base64_text(std::string_view bytes) {
  std::string out;
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t begin = 0; begin < bytes.size(); begin += 3) {
    const auto byte = [&](size_t i) { return begin + i < bytes.size() ? static_cast<uint8_t>(bytes[begin + i]) : 0u; };
    const uint32_t three = byte(0) << 16 | byte(1) << 8 | byte(2);
    out += kDigits[three >> 18];
    out += kDigits[three >> 12 & 63];
    out += begin + 1 < bytes.size() ? kDigits[three >> 6 & 63] : '=';
    out += begin + 2 < bytes.size() ? kDigits[three & 63] : '=';
  }
  return out;
}

void write_usage(rows::JsonWriter& json, int64_t tokens) {
  json.key("usage").begin_object().member("prompt_tokens", tokens).member("total_tokens", tokens).end_object();
}

}  // namespace brim::serve
