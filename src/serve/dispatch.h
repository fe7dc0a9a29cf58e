// SPDX-License-Identifier: Apache-2.0
// Passes texts of requests to scorers and results back to clients. Owns the calls. I/O threads parse and tokenize;
// results return with one wake-up per I/O thread and batch.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/call.h"
#include "serve/metrics.h"
#include "serve/models.h"
#include "serve/request_options.h"
#include "serve/server_state.h"
#include "serve/workers.h"

namespace brim::serve {

class Dispatcher {
 public:
  // The arguments must outlive it. `access_log`: empty: none.
  Dispatcher(const ServerOptions& options, ModelRegistry& models, ServerState& state, Metrics& metrics, Routes routes,
             std::function<void(std::string_view line)> access_log);
  ~Dispatcher();
  void attach(IoThreads threads);
  int threads() const { return threads_.count; }
  void stop_helpers() { helpers_.stop(); }
  void refuse_all();  // ends waiting requests with 503

  // A call lives until its exchange is over and its last result has arrived.
  Call& begin(Exchange& exchange);
  Call& call_of(const Exchange& exchange) { return *at(exchange.thread()).calls.of(exchange); }
  void answered(Exchange& exchange, int status, size_t bytes) noexcept;
  void gone(Exchange& exchange) noexcept;

  // Responds later with the output of `write`, which receives the predictions.
  std::nullopt_t score(Call& call, const RequestOptions& options, const std::vector<InputText>& texts,
                       WriteAnswer write);
  std::nullopt_t score(Call& call, const RequestOptions& options, const std::vector<std::string_view>& texts,
                       WriteAnswer write);
  // Responds later with the result of work on another thread.
  std::nullopt_t run_on(Workers& workers, Call& call, std::function<Reply()> work);
  // Runs `work` on `workers`, then continues on the call's I/O thread with the refusal or `then`. Neither runs if the
  // client has disconnected.
  void run_on(Workers& workers, Call& call, std::function<std::optional<Refusal>()> work,
              std::function<void(Call&)> then);
  Workers& helpers() { return helpers_; }

  // Longer bodies are parsed on helper threads, and larger inputs tokenized there (about a millisecond each), so that
  // other connections of the I/O thread do not wait.
  static constexpr size_t kHelperBytes = 32 << 10;
  static std::shared_ptr<HeldBody> hold_body(Call& call);
  void parse_on_helper(Call& call, std::function<void(Call&)> then);
  void hold(Call& call, int model, std::function<void(Call&)> then);  // until the model has been replaced
  void post(int thread, std::function<void()> work) { threads_.post(thread, std::move(work)); }
  // Calls `then` and turns an exception into a response.
  void continue_call(Call& call, const std::function<void(Call&)>& then);

  void respond(Call& call, Reply reply);
  void refuse(Call& call, const Refusal& refusal);
  // Aborts a response that has begun: its status line is already sent, so the connection closes early.
  static void abort_response(Call& call, const Refusal& refusal);
  Refusal refusal_of_error(const Error& error) const;
  // Runs `work` and returns its exception, if any, as a refusal.
  std::optional<Refusal> refusal_from(const std::function<void()>& work) const;
  void count_refusal(int thread, int status);
  static uint64_t client_of(const Call& call);
  void refuse_if_full(const Call& call) const;  // throws Refusal

 private:
  class Inbox;
  struct IoThread {
    std::unique_ptr<Inbox> inbox;
    CallTable calls;  // destroyed first: they hold scorers, which may still report to the inbox
  };
  IoThread& at(int thread) { return io_threads_[static_cast<size_t>(thread)]; }

  void prepare(Call& call, const RequestOptions& options, size_t texts, WriteAnswer write) const;
  size_t check_texts(Call& call, const RequestOptions& options, const std::vector<InputText>& texts) const;
  void count_pairs(Call& call, const RequestOptions& options, const std::vector<InputText>& texts) const;
  void refuse_long_wait(const Call& call, const RequestOptions& options, size_t bytes) const;
  void submit(Call& call, const RequestOptions& options, const std::vector<InputText>& texts, bool on_helper);
  static Request common_request(const Call& call, const RequestOptions& options);
  void submit_on_helper(const Served& served, const std::vector<Request>& requests, Inbox& inbox);
  void take_answers(int thread, std::vector<Answer>& answers);
  void finish(Call& call);
  // Returns a held call to its I/O thread; null if its client has disconnected, which ends the call.
  Call* reclaim(int thread, uint32_t slot);
  void release(Call& call) noexcept;
  // `wait` is the prediction that exceeds `limit`.
  static Refusal overloaded(double wait, double limit, double retry_seconds);
  Refusal refusal_of(const Call& call, const Prediction& prediction) const;
  // Time spent in each stage, in seconds.
  static std::array<double, kStages> stages_of(const Call& call, int64_t written_ns);
  static std::string compute_fields(const Call& call);
  // Counts a finished request, answered or not, and writes its access log line.
  void note_end(const Exchange& exchange, const Call* call, int status, size_t bytes) noexcept;
  std::string log_line(const Exchange& exchange, const Call* call, int status, size_t bytes, double seconds) const;

  const ServerOptions& options_;
  ModelRegistry& models_;
  ServerState& state_;
  Metrics& metrics_;
  const Routes routes_;
  const std::function<void(std::string_view line)> access_log_;
  IoThreads threads_;
  std::vector<IoThread> io_threads_;
  Workers helpers_;  // declared last, so that their tasks end before the members they use
};

}  // namespace brim::serve
