// SPDX-License-Identifier: Apache-2.0
// What is said when a request cannot be done, and the pieces that answers are written from.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "brim/brim.h"
#include "serve/http_names.h"

namespace brim::serve {

// Bodies that speak of errors: text-embeddings-inference's {"error", "error_type"}, or OpenAI's nested form, which has
// the flat one's fields beside it.
enum class ErrorShape : uint8_t { tei, openai };

// Thrown while a request is read; one answer.
struct Refusal {
  int status = 400;
  const char* type = "Validation";  // error_type: Empty, Syntax, Validation, Backend, Overloaded, …
  std::string message;
  std::string fields = {};  // of the head, each "Name: value\r\n"
  std::string extra = {};   // of the body: ",\"queue_ms\":12"
};

// The model it wants is being replaced. What can waits for that instead.
struct ModelIsComing : Refusal {
  int model = 0;
};

std::string retry_after(double seconds);       // "Retry-After: 3\r\n"
Refusal invalid(std::string_view problem);     // 422 Validation, in text-embeddings-inference's words
Refusal too_large(size_t bytes, size_t most);  // of a text
Response error_response(const Refusal& refusal, ErrorShape shape);

// The body as one JSON value: bounded in depth and number of values, no key twice. Throws Refusal (400 Syntax, with
// line and column; 422 where a bound is passed).
nlohmann::json parse_body(std::string_view text);

std::vector<int32_t> token_ids(const nlohmann::json& list, const char* key);  // throws Refusal (422)
// The tokens that windows of a long text share; -1 where nothing is said of them. Throws Refusal (422).
int32_t stride_of(const nlohmann::json& object);

// The first `dimensions` numbers (0: all) of a text's vector, or of its tokens' mean; of length 1 where asked.
std::vector<float> shaped_embedding(const Prediction& prediction, size_t dimensions, bool normalize);

// One number between -1 and 1 for models of sentiment: VADER's own, else p(positive) - p(negative).
std::optional<float> compound_of(const Scorer& scorer, std::span<const float> scores);

std::string percent_decoded(std::string_view text);  // of a target's part
// The value of NAME=VALUE in a target's query, decoded; empty where there is none.
std::string query_value(std::string_view query, std::string_view name);

void append_scores(std::string& out, const std::vector<std::string>& names, const std::vector<float>& scores,
                   size_t most);  // [{"score":0.9,"label":"a"},…], highest first
void append_floats(std::string& out, const std::vector<float>& values);
void append_entities(std::string& out, const std::vector<Entity>& entities);
void append_base64(std::string& out, std::string_view bytes);

}  // namespace brim::serve
