// SPDX-License-Identifier: Apache-2.0
// X-Brim-Ignored: the keys of a JSON body or a query string that its route does not read.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "serve/answers.h"

namespace brim::serve {
namespace {

using Keys = std::vector<std::string_view>;

constexpr size_t kMaxNameBytes = 64, kMaxListBytes = 512;

// Read by request_options() for all scoring routes.
const Keys kCommon = {"model",     "source", "priority",   "timeout_ms", "truncate", "truncation_direction",
                      "long_text", "stride", "raw_scores", "on_error",   "top_k"};
const Keys kParameters = {"aggregation_strategy", "ignore_labels", "stride",           "top_k", "truncate",
                          "truncation_direction", "prompt_name",   "function_to_apply"};

const Keys kZeroShot = {"candidate_labels", "hypothesis_template", "multi_label"};  // parameters of POST /models/{name}

struct RouteKeys {
  std::string_view path;
  bool common;
  Keys keys;
};

const Keys kAnyTask = {"inputs",     "input",       "query",      "texts",  "return_text", "normalize",
                       "dimensions", "prompt_name", "parameters", "labels", "threshold",   "nested"};
const Keys kEmbeddings = {"input", "encoding_format", "dimensions"};
const Keys kEntities = {"inputs", "input", "parameters"};
const Keys kEntitiesByLabel = {"inputs", "input", "parameters", "labels", "threshold", "nested"};
const Keys kInputs = {"inputs"}, kClassify = {"inputs", "input"}, kIds = {"ids", "skip_special_tokens"};
const Keys kEmbed = {"inputs", "normalize", "dimensions", "prompt_name"};
const Keys kRerank = {"query", "texts", "return_text"};
const Keys kSimilarity = {"inputs", "parameters", "prompt_name"};
const Keys kTokenize = {"inputs", "add_special_tokens", "prompt_name"};
const Keys kHuggingFace = {"inputs", "parameters", "function_to_apply"};
const Keys kQueue = {"text", "item", "source", "items", "candidate_labels", "hypothesis_template", "multi_label"};
const Keys kFlush = {"source", "items", "candidate_labels", "hypothesis_template", "multi_label"};
const Keys kQueueItem = {"text", "item", "source"};

constexpr std::string_view kFlushPath = "/queues/{queue}/flush_and_apply";
const RouteKeys kRoutes[] = {{"/predict", true, kInputs},
                             {"/classify", true, kClassify},
                             {"/embed", true, kEmbed},
                             {"/embed_all", true, kInputs},
                             {"/rerank", true, kRerank},
                             {"/similarity", true, kSimilarity},
                             {"/tokenize", true, kTokenize},
                             {"/decode", true, kIds},
                             {"/ner", true, kEntitiesByLabel},
                             {"/analyze", true, kEntities},
                             {"/v1/embeddings", true, kEmbeddings},
                             {"/embeddings", true, kEmbeddings},
                             {"/", true, kAnyTask},
                             {"/invocations", true, kAnyTask},
                             {"/models/*", true, kHuggingFace},
                             {"/queues/{queue}/score_or_queue", false, kQueue},
                             {kFlushPath, false, kFlush}};

bool contains(const Keys& keys, std::string_view key) { return std::ranges::find(keys, key) != keys.end(); }

// A client chooses these bytes, so only those that cannot end a header line or a list entry are kept.
void append_name(std::string& out, std::string_view prefix, std::string_view key) {
  if (out.size() > kMaxListBytes) return;
  if (!out.empty()) out += ", ";
  out += prefix;
  for (const char c : key.substr(0, kMaxNameBytes)) out += c > 0x20 && c < 0x7F && c != ',' ? c : '?';
}

// Appends unknown keys of a queue's `items`, each once. The keys of a flush entry without an `item` object are free,
// because it is the item itself.
void append_item_keys(std::string& out, const nlohmann::json& items, bool flush) {
  std::set<std::string_view> keys;
  for (const nlohmann::json& entry : items) {
    if (!entry.is_object() || (flush && !(entry.contains("item") && entry.at("item").is_object()))) continue;
    for (const auto& part : entry.items())
      if (!contains(kQueueItem, part.key())) keys.insert(part.key());
  }
  for (const std::string_view key : keys) append_name(out, "items.", key);
}

}  // namespace

std::string ignored_keys(std::string_view route_path, const nlohmann::json& body) {
  const auto* route = std::ranges::find(kRoutes, route_path, &RouteKeys::path);
  if (route == std::end(kRoutes) || !body.is_object()) return "";
  std::string ignored;
  for (const auto& [key, value] : body.items()) {
    if (!contains(route->keys, key) && !(route->common && contains(kCommon, key))) {
      append_name(ignored, "", key);
    } else if (key == "parameters" && value.is_object()) {
      for (const auto& parameter : value.items())
        if (!contains(kParameters, parameter.key()) &&
            !(route->path == "/models/*" && contains(kZeroShot, parameter.key())))
          append_name(ignored, "parameters.", parameter.key());
    } else if (key == "items" && value.is_array()) {
      append_item_keys(ignored, value, route->path == kFlushPath);
    }
  }
  return ignored;
}

std::string ignored_query_keys(std::string_view query, std::span<const std::string_view> known) {
  std::string ignored;
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view part = query.substr(0, end);
    const std::string_view key = part.substr(0, std::min(part.find('='), part.size()));
    if (!key.empty() && std::ranges::find(known, key) == known.end()) append_name(ignored, "", key);
    query.remove_prefix(std::min(query.size(), end + 1));
  }
  return ignored;
}

std::string ignored_field(const std::string& keys) {
  return keys.empty() ? "" : fmt::format("X-Brim-Ignored: {}\r\n", keys);
}

}  // namespace brim::serve
