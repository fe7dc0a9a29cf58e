// SPDX-License-Identifier: Apache-2.0
#include "report/llm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "net/http_client.h"
#include "report/html.h"

namespace brim::report {
namespace {

using net::http_fetch;
using net::HttpAnswer;
using net::HttpEnd;
using net::HttpRequest;

using nlohmann::json;

constexpr size_t kLongestLine = size_t{1} << 20;

// Error message of a server: {"error":"…"} (Ollama) or {"error":{"message":"…"}}, else the shortened body.
std::string error_text(std::string_view body) {
  const json j = json::parse(body, nullptr, false);
  if (j.is_object() && j.contains("error")) {
    const json& e = j["error"];
    if (e.is_string()) return shortened(e.get<std::string>(), 300);
    if (e.is_object() && e.contains("message") && e["message"].is_string())
      return shortened(e["message"].get<std::string>(), 300);
  }
  if (j.is_object() && j.contains("detail") && j["detail"].is_string())
    return shortened(j["detail"].get<std::string>(), 300);
  std::string line(body.substr(0, body.find('\n')));
  return line.empty() ? "no message" : shortened(line, 120);
}

std::string base_of(std::string url) {
  if (url.find("://") == std::string::npos) url = "http://" + url;
  while (!url.empty() && url.back() == '/') url.pop_back();
  for (const std::string_view tail : {"/chat/completions", "/completions", "/api/generate", "/api/chat", "/api", "/v1"})
    if (url.ends_with(tail)) url.resize(url.size() - tail.size());
  return url;
}

const char* wanted_url(LlmApi api) { return api == LlmApi::ollama ? "/api/generate" : "/v1/chat/completions"; }

[[noreturn]] void fail_unreachable(const std::string& url, const HttpAnswer& a) {
  if (a.end == HttpEnd::stopped) fail(ErrorCode::interrupted, "interrupted");
  if (a.end == HttpEnd::unavailable) fail(ErrorCode::usage, "`llm_url={}`: {}", url, a.why);
  fail(ErrorCode::usage, Remedy{"start the server or correct the URL"}, "`llm_url={}`: no server responds ({})", url,
       a.why);
}

bool reached(const HttpAnswer& a) { return a.end == HttpEnd::complete || a.end == HttpEnd::cut; }

}  // namespace

std::string default_llm_url() {
  const std::string host = env("OLLAMA_HOST").value_or("127.0.0.1");
  const size_t scheme = host.find("://"), name = scheme == std::string::npos ? 0 : scheme + 3;
  return (name == 0 ? "http://" : "") + host + (host.find(':', name) == std::string::npos ? ":11434" : "");
}

const char* llm_api_name(LlmApi api) { return api == LlmApi::ollama ? "ollama" : "openai"; }

LlmStream::LlmStream(LlmApi api, int64_t most_tokens, std::function<int64_t()> clock)
    : api_(api), most_tokens_(most_tokens), clock_(std::move(clock)) {}

bool LlmStream::fail_with(std::string problem) {
  if (problem_.empty()) problem_ = std::move(problem);
  return false;
}

void LlmStream::piece() {
  last_ns_ = clock_();
  if (first_ns_ == 0) first_ns_ = last_ns_;
  ++pieces_;
}

bool LlmStream::feed(std::string_view bytes) {
  if (!problem_.empty() || cut_) return false;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    if (pending_.size() + std::min(end, bytes.size()) > kLongestLine)
      return fail_with("a line of the stream exceeds 1 MiB");
    pending_.append(bytes.substr(0, end));
    if (end == std::string_view::npos) return true;
    bytes.remove_prefix(end + 1);
    std::string line;
    line.swap(pending_);
    if (!take_line(line)) return false;
  }
  return true;
}

void LlmStream::end() {
  if (!problem_.empty() || cut_ || pending_.empty()) return;
  std::string line;
  line.swap(pending_);
  take_line(line);
}

bool LlmStream::take_line(std::string_view line) {
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
  if (line.empty() || done_) return true;
  if (api_ == LlmApi::openai) {
    if (line.starts_with("data:")) {
      line.remove_prefix(5);
      while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
      if (line == "[DONE]") return done_ = true;
    } else if (line.front() != '{') {
      return true;  // comments, event names, ids
    }
  }
  const json j = json::parse(line, nullptr, false);
  if (!j.is_object()) return fail_with(fmt::format("the stream is not JSON: {}", shortened(line, 60)));
  if (j.contains("error")) {
    refused_ = true;
    return fail_with(error_text(line));
  }
  const auto number = [](const json& o, const char* key) -> std::optional<double> {
    return o.is_object() && o.contains(key) && o[key].is_number() ? std::optional(o[key].get<double>()) : std::nullopt;
  };
  bool known = false, text = false;
  if (api_ == LlmApi::ollama) {
    for (const char* key : {"response", "thinking"})
      if (j.contains(key) && j[key].is_string()) {
        known = true;
        text = text || !j[key].get_ref<const std::string&>().empty();
      }
    if (j.contains("done") && j["done"].is_boolean()) {
      known = true;
      done_ = j["done"].get<bool>();
    }
    if (done_) {
      if (const auto n = number(j, "eval_count"); n && *n >= 0 && *n < 1e9) server_tokens_ = static_cast<int64_t>(*n);
      if (const auto ns = number(j, "eval_duration"); ns && *ns > 0 && server_tokens_)
        server_rate_ = static_cast<double>(*server_tokens_) / (*ns * 1e-9);
      if (const auto ns = number(j, "load_duration"); ns && *ns >= 0) load_seconds_ = *ns * 1e-9;
    }
  } else {
    if (j.contains("usage")) {
      known = true;
      if (const auto n = number(j["usage"], "completion_tokens"); n && *n >= 0 && *n < 1e9)
        server_tokens_ = static_cast<int64_t>(*n);
    }
    if (j.contains("choices") && j["choices"].is_array()) {
      known = true;
      for (const json& choice : j["choices"]) {
        if (!choice.is_object() || !choice.contains("delta") || !choice["delta"].is_object()) continue;
        for (const char* key : {"content", "reasoning_content", "reasoning"})
          if (choice["delta"].contains(key) && choice["delta"][key].is_string())
            text = text || !choice["delta"][key].get_ref<const std::string&>().empty();
      }
    }
  }
  if (!known)
    return fail_with(fmt::format("the stream is not in {} format: {}", llm_api_name(api_), shortened(line, 60)));
  if (text) piece();
  if (pieces_ >= most_tokens_ && !done_) {
    cut_ = true;
    return false;
  }
  return true;
}

LlmClient::LlmClient(const LlmOptions& options)
    : options_(options), base_(base_of(options.url.empty() ? default_llm_url() : options.url)) {
  if (options.requests < 1 || options.max_tokens < 1)
    fail(ErrorCode::usage, "`llm_requests` and `llm_max_tokens` must be at least 1");
  for (const auto& [name, seconds] : {std::pair{"connect_timeout", options.connect_s},
                                      {"first_token_timeout", options.first_token_s},
                                      {"timeout", options.total_s}})
    if (!(seconds > 0)) fail(ErrorCode::usage, "`llm_{}={:g}`: must be above 0 seconds", name, seconds);
  const bool known = options.api == "auto" || options.api == "ollama" || options.api == "openai";
  if (!known) fail(ErrorCode::usage, "unknown `llm_api={}`; use auto, ollama or openai", options.api);
  detect_api();
  if (options.model.empty()) choose_model();
}

HttpAnswer LlmClient::probe(const char* path) const {
  HttpRequest request;
  request.connect_s = options_.connect_s;
  request.first_s = request.total_s = std::min(options_.total_s, 10.0);
  request.headers = headers();
  request.most_bytes = size_t{4} << 20;
  request.stop = options_.stop;
  request.url = base_ + path;
  HttpAnswer a = http_fetch(request);
  if (reached(a)) return a;
  if (!options_.url.empty()) fail_unreachable(options_.url, a);
  if (a.end == HttpEnd::stopped) fail(ErrorCode::interrupted, "interrupted");
  throw NoLlmServer(fmt::format("no server responds at the default address {} ({}); set {}", base_, a.why,
                                options_.model.empty() ? "`llm_url` and `llm_model`" : "`llm_url`"));
}

void LlmClient::detect_api() {
  const LlmOptions& options = options_;
  HttpAnswer a = probe("/api/version");
  if (options.api != "auto") {
    api_ = options.api == "ollama" ? LlmApi::ollama : LlmApi::openai;
    return;
  }
  const json version = json::parse(a.text, nullptr, false);
  if (a.status == 200 && version.is_object() && version.contains("version")) {
    api_ = LlmApi::ollama;
    return;
  }
  a = probe("/v1/models");
  const json models = json::parse(a.text, nullptr, false);
  if (a.status == 401 || a.status == 403)
    fail(ErrorCode::usage, "`llm_url={}`: requires a key ({}); set BRIM_LLM_KEY", base_, error_text(a.text));
  if (a.status != 200 || !models.is_object())
    fail(ErrorCode::bad_data, Remedy{"set `llm_api`"},
         "`llm_url={}`: neither an Ollama server (/api/version) nor an OpenAI-compatible one (/v1/models, status {})",
         base_, a.status);
  api_ = LlmApi::openai;
}

// The only model of the server: {"models":[{"name":…}]} (Ollama) or {"data":[{"id":…}]}.
void LlmClient::choose_model() {
  const bool ollama = api_ == LlmApi::ollama;
  const HttpAnswer a = probe(ollama ? "/api/tags" : "/v1/models");
  const json j = json::parse(a.text, nullptr, false);
  const char *list = ollama ? "models" : "data", *key = ollama ? "name" : "id";
  std::vector<std::string> names;
  if (j.is_object() && j.contains(list) && j[list].is_array())
    for (const json& model : j[list])
      if (model.is_object() && model.contains(key) && model[key].is_string())
        names.push_back(model[key].get<std::string>());
  if (names.size() == 1) {
    options_.model = names[0];
    return;
  }
  if (names.empty()) fail(ErrorCode::usage, "`llm_model` is required: {} lists no models", base_);
  const size_t all = names.size();
  names.resize(std::min<size_t>(all, 10));
  for (std::string& name : names) name = shortened(name, 60);
  fail(ErrorCode::usage, "`llm_model` is required: {} has {} models ({}{})", base_, all, fmt::join(names, ", "),
       all > names.size() ? ", …" : "");
}

std::vector<std::string> LlmClient::headers() const {
  if (options_.key.empty()) return {};
  return {"Authorization: Bearer " + options_.key};
}

LlmCall LlmClient::generate(const std::string& prompt) const {
  json body = {{"model", options_.model}, {"stream", true}};
  if (api_ == LlmApi::ollama) {
    body["prompt"] = prompt;
    body["options"] = {{"num_predict", options_.max_tokens}, {"temperature", 0}, {"seed", 1}};
  } else {
    body["messages"] = json::array({{{"role", "user"}, {"content", prompt}}});
    body["max_tokens"] = options_.max_tokens;
    body["temperature"] = 0;
    body["stream_options"] = {{"include_usage", true}};
  }
  // Servers count tokens differently; only one that ignores the limit gets far past it.
  LlmStream stream(api_, int64_t{2} * options_.max_tokens + 16, [] { return now_ns(); });
  HttpRequest request;
  request.url = base_ + wanted_url(api_);
  request.body = body.dump(-1, ' ', false, json::error_handler_t::replace);
  request.headers = headers();
  request.connect_s = options_.connect_s;
  request.first_s = options_.first_token_s;
  request.total_s = options_.total_s;
  request.first_seen = [&] { return stream.first_ns() != 0; };
  request.stop = options_.stop;
  const int64_t started = now_ns();
  const HttpAnswer a = http_fetch(request, [&](std::string_view bytes) { return stream.feed(bytes); });
  const double seconds = seconds_since(started);
  if (a.end == HttpEnd::complete) stream.end();

  const std::string& where = request.url;
  if (a.end == HttpEnd::stopped) fail(ErrorCode::interrupted, "interrupted");
  if (a.end == HttpEnd::no_connection || a.end == HttpEnd::connect_timeout || a.end == HttpEnd::unavailable)
    fail_unreachable(base_, a);
  if (a.status == 404 && reached(a))
    fail(ErrorCode::bad_model, "{}: model '{}': {}", where, options_.model, error_text(a.text));
  if (a.status != 0 && a.status != 200)
    fail(ErrorCode::bad_data, "{}: status {}: {}", where, a.status, error_text(a.text));
  if (stream.refused()) {
    const bool missing = stream.problem().find("not found") != std::string::npos;
    fail(missing ? ErrorCode::bad_model : ErrorCode::bad_data, "{}: model '{}': {}", where, options_.model,
         stream.problem());
  }
  if (!stream.problem().empty()) fail(ErrorCode::bad_data, "{}: {}", where, stream.problem());
  if (a.end == HttpEnd::first_timeout)
    fail(ErrorCode::bad_data, Remedy{"increase `llm_first_token_timeout`"}, "{}: no token within {:g} s", where,
         options_.first_token_s);
  if (a.end == HttpEnd::broken)
    fail(ErrorCode::bad_data, "{}: the stream was interrupted after {} tokens ({})", where, stream.pieces(), a.why);
  if (stream.pieces() == 0) {
    if (a.end == HttpEnd::total_timeout)
      fail(ErrorCode::bad_data, Remedy{"increase `llm_timeout`"}, "{}: {}", where, a.why);
    fail(ErrorCode::bad_data, "{}: the response contains no tokens", where);
  }
  if (a.end == HttpEnd::complete && !stream.done())
    fail(ErrorCode::bad_data, "{}: the stream ended after {} tokens without an end marker", where, stream.pieces());

  LlmCall call;
  call.cut = !stream.done();  // stopped by us or by the timeout; what was received counts
  call.first_token_s = static_cast<double>(stream.first_ns() - started) * 1e-9;
  call.seconds = seconds;
  call.tokens = stream.tokens();
  call.counted_by_server = stream.counted_by_server();
  call.server_load_seconds = stream.server_load_seconds();
  const double streaming = static_cast<double>(stream.last_ns() - stream.first_ns()) * 1e-9;
  if (stream.server_tokens_per_second())
    call.tokens_per_second = *stream.server_tokens_per_second();
  else if (call.tokens > 1 && streaming > 0)
    call.tokens_per_second = static_cast<double>(call.tokens - 1) / streaming;
  return call;
}

}  // namespace brim::report
