// SPDX-License-Identifier: Apache-2.0
// Error responses, and helpers that parse requests and format answers.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "brim/brim.h"
#include "rows/json_writer.h"
#include "serve/http_names.h"

namespace brim::serve {

// Error bodies: text-embeddings-inference's {"error", "error_type"}, or OpenAI's nested form, which also repeats
// message, type and code at the top level.
enum class ErrorShape : uint8_t { tei, openai };

// Thrown while a request is processed; becomes its error response.
struct Refusal {
  int status = 400;
  const char* type = "Validation";  // error_type: Empty, Syntax, Validation, Backend, Overloaded, …
  std::string message;
  std::string fields = {};  // response header lines, each "Name: value\r\n"
  std::string extra = {};   // additional JSON members of the body: ",\"queue_ms\":12"
};

// The requested model is being replaced. Requests that can wait are held until it is loaded.
struct ModelBeingReplaced : Refusal {
  int model = 0;
};

std::string retry_after(double seconds);    // "Retry-After: 3\r\n"
Refusal invalid(std::string_view problem);  // 422 Validation, in the wording of text-embeddings-inference
Refusal too_large(size_t bytes, size_t max_bytes);
Response error_response(const Refusal& refusal, ErrorShape shape);

// Parses the body as JSON, with limits on depth and number of values, rejecting duplicate keys. Throws Refusal: 400
// Syntax with line and column, or 422 beyond a limit.
nlohmann::json parse_body(std::string_view text);

// Keys of a body that its route does not read, comma-separated. Empty for a body that is not an object.
std::string ignored_keys(std::string_view route_path, const nlohmann::json& body);
// Keys of a query string that are not in `known`, in the same form.
std::string ignored_query_keys(std::string_view query, std::span<const std::string_view> known);
std::string ignored_field(const std::string& keys);  // "X-Brim-Ignored: topk\r\n"; empty without keys

std::vector<int32_t> token_ids(const nlohmann::json& list, const char* key);  // throws Refusal (422)
// A boolean member of a body; `fallback` if missing or null. Throws Refusal (422).
bool bool_or(const nlohmann::json& object, const char* key, bool fallback);
// Number of tokens shared by neighbouring windows of a long text; -1 if not given. Throws Refusal (422).
int32_t stride_of(const nlohmann::json& object);

// The first `dimensions` (0: all) components of the embedding; token vectors are averaged. `normalize` scales to length
// 1.
std::vector<float> shaped_embedding(const Prediction& prediction, size_t dimensions, bool normalize);
// The shaped embeddings as a list; null for texts with an error.
void write_embeddings(rows::JsonWriter& json, std::span<const Prediction> predictions, size_t dimensions,
                      bool normalize);

// Sentiment as one number in [-1, 1]: VADER's compound, else p(positive) - p(negative). Empty for other models.
std::optional<float> compound_of(const Scorer& scorer, std::span<const float> scores);

std::string percent_decoded(std::string_view text);
// Value of NAME=VALUE in a query string, decoded; empty if missing.
std::string query_value(std::string_view query, std::string_view name);

void write_scores(rows::JsonWriter& json, const std::vector<std::string>& names, const std::vector<float>& scores,
                  size_t top_k);  // [{"score":0.9,"label":"a"},…], highest first
void write_entities(rows::JsonWriter& json, const std::vector<Entity>& entities);
std::string base64_text(std::string_view bytes);
// "usage":{"prompt_tokens":7,"total_tokens":7}
void write_usage(rows::JsonWriter& json, int64_t tokens);

}  // namespace brim::serve
