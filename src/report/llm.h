// SPDX-License-Identifier: Apache-2.0
// Benchmarks a language model behind Ollama's API or an OpenAI-compatible one: time to first token, tokens per second,
// latency, and the cost of sharing the machine with it. Requests are bounded in number, tokens, bytes and time, so that
// a slow, broken or endless stream ends with an error instead of a hang.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "jobs/spread.h"

namespace brim::net {
struct HttpAnswer;
}

namespace brim::report {

enum class LlmApi { ollama, openai };
const char* llm_api_name(LlmApi api);

// $OLLAMA_HOST, else Ollama's default address.
std::string default_llm_url();

struct LlmOptions {
  std::string url, model;    // empty: default_llm_url(), and the server's model if it has only one
  std::string api = "auto";  // auto, ollama, openai
  std::string key;           // sent as a bearer token
  int requests = 8;
  int max_tokens = 64;
  double connect_s = 5, first_token_s = 60, total_s = 120;
  const std::atomic<bool>* stop = nullptr;
  std::function<void(int request, int count)> on_request;  // before each measured one, from 1
};

// Parses a streamed response incrementally. Independent of the network, so that it can be tested with any bytes.
class LlmStream {
 public:
  // Stops after `most_tokens` pieces. `clock` returns nanoseconds.
  LlmStream(LlmApi api, int64_t most_tokens, std::function<int64_t()> clock);
  bool feed(std::string_view bytes);  // false: enough, or broken
  void end();                         // end of input: parses an unfinished rest

  bool done() const { return done_; }  // the server signalled the end
  bool cut() const { return cut_; }    // we stopped the stream
  const std::string& problem() const { return problem_; }
  bool refused() const { return refused_; }  // the server reported an error
  int64_t pieces() const { return pieces_; }
  int64_t tokens() const { return server_tokens_.value_or(pieces_); }
  bool counted_by_server() const { return server_tokens_.has_value(); }
  int64_t first_ns() const { return first_ns_; }  // 0 if none yet
  int64_t last_ns() const { return last_ns_; }
  std::optional<double> server_load_seconds() const { return load_seconds_; }
  std::optional<double> server_tokens_per_second() const { return server_rate_; }

 private:
  bool take_line(std::string_view line);
  bool fail_with(std::string problem);
  void piece();

  LlmApi api_;
  int64_t most_tokens_;
  std::function<int64_t()> clock_;
  std::string pending_, problem_;
  bool done_ = false, cut_ = false, refused_ = false;
  int64_t pieces_ = 0, first_ns_ = 0, last_ns_ = 0;
  std::optional<int64_t> server_tokens_;
  std::optional<double> load_seconds_, server_rate_;
};

// Thrown if no URL was given and nothing responds at default_llm_url().
struct NoLlmServer : Error {
  explicit NoLlmServer(const std::string& problem) : Error(ErrorCode::usage, problem) {}
};

struct LlmCall {
  double first_token_s = 0, seconds = 0;
  int64_t tokens = 0;
  double tokens_per_second = 0;  // after the first token; 0 if there are too few
  bool counted_by_server = false, cut = false;
  std::optional<double> server_load_seconds;
};

class LlmClient {
 public:
  // Detects the API and the model. Throws usage if nothing responds (or libcurl cannot be loaded), bad_data if the
  // response matches neither API.
  explicit LlmClient(const LlmOptions& options);
  LlmApi api() const { return api_; }
  const LlmOptions& options() const { return options_; }
  const std::string& base() const { return base_; }
  // One request. Throws bad_model if the server does not know the model, bad_data if the response is broken or too
  // late, usage if nothing responds any more, interrupted.
  LlmCall generate(const std::string& prompt) const;

 private:
  std::vector<std::string> headers() const;
  net::HttpAnswer probe(const char* path) const;
  void detect_api();
  void choose_model();
  LlmOptions options_;
  std::string base_;  // URL without path and trailing slash
  LlmApi api_ = LlmApi::ollama;
};

struct LlmRun {
  jobs::Spread first_token_s, seconds, tokens_per_second;
  int64_t calls = 0, tokens = 0, cut = 0, failed = 0;
  int64_t skipped = 0;                   // not sent, because the others took longer than total_s
  double overall_tokens_per_second = 0;  // all tokens divided by the total time, including waits
  bool counted_by_server = true;
  std::string last_failure;
};

struct LlmProcess {
  int64_t pid = 0;
  std::string name;
  std::optional<int64_t> bytes;
  bool ours = false;
};

struct SharingCost {
  std::string sentiment_model;
  double items_alone = 0, items_together = 0;  // per second
  LlmRun together;
};

struct LlmProfile {
  std::string api, url, model;
  int max_tokens = 0;
  double first_request_s = 0;           // the warm-up request, which may load the model
  std::optional<double> server_load_s;  // as reported by the server
  LlmRun alone;
  std::optional<std::vector<LlmProcess>> vram;  // nullopt if NVML is missing or has no data
  std::optional<int64_t> server_bytes;          // on the GPU, for processes that look like the server
  std::optional<SharingCost> sharing;
  std::vector<std::string> notes;
};

// Up to `count` sequential requests over `prompts`; none starts later than total_s after the first. Failures are
// counted; throws if all fail, or when stopped.
LlmRun measure_llm(const LlmClient& client, const std::vector<std::string>& prompts, int count);
// One warm-up request, then measure_llm, then memory by process.
LlmProfile profile_llm(const LlmClient& client, const std::vector<std::string>& prompts);
// The same requests while `step` (scores some texts, returns how many) runs on another thread; before that, `step`
// alone for `seconds`.
SharingCost measure_sharing(const LlmClient& client, const std::vector<std::string>& prompts,
                            const std::function<int64_t()>& step, double seconds);
std::vector<std::string> llm_prompts(const std::vector<std::string>& texts, int count);

}  // namespace brim::report
