// SPDX-License-Identifier: Apache-2.0
// One request from its head to the end of its response, and the route that handles it.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "brim/brim.h"
#include "rows/json_writer.h"
#include "serve/answers.h"
#include "serve/auth.h"
#include "serve/http_names.h"
#include "serve/served_model.h"

namespace brim::serve {

struct Call;
struct ServerParts;

// A response of a route.
struct Reply {
  int status = 200;
  std::string body = {};
  const char* content_type = "application/json";
  std::string fields = {};  // further header lines, each "Name: value\r\n"
  // For the access log; empty model: as set in the call.
  std::string model = {};
  size_t texts = 0;
  int64_t tokens = 0;
  size_t pairs = 0;
};
// Returned by a route that responds later, through the Dispatcher or its stream.
inline constexpr std::nullopt_t kRespondsLater = std::nullopt;

// The I/O threads of a server. `post` runs work on one of them.
struct IoThreads {
  int count = 0;
  std::function<void(int thread, std::function<void()> work)> post;
};

struct RequestContext {
  Call& call;
  ServerParts& server;
};

// A request whose body or response is streamed. Used by one I/O thread only; work on other threads holds a reference,
// and posts back through a weak pointer.
class Stream {
 public:
  explicit Stream(Call& call) : call_(&call) {}
  virtual ~Stream() = default;
  virtual void take(std::string_view) {}  // part of the body
  virtual void ended() {}                 // end of the body
  virtual void sent() {}                  // the client has read everything so far
  void leave() { call_ = nullptr; }

 protected:
  Call* call_;  // null: the exchange is over
};

struct Route {
  const char* method;
  const char* path;  // {name} matches one path segment, a final * the rest
  Scope scope;
  ErrorShape shape;
  bool scores;  // takes texts, so a draining server rejects it
  // Either throws Refusal or Error, or returns a reply. Null if `begin` is set.
  std::optional<Reply> (*handle)(RequestContext& context);
  // If set, the body has any type and is streamed to the returned object.
  std::shared_ptr<Stream> (*begin)(RequestContext& context) = nullptr;
};
using Routes = std::span<const Route>;

// A body handed to another thread. Either that thread or the disconnect handler takes it first, so that bodies of
// disconnected clients are freed before their turn.
struct HeldBody {
  std::string text;
  std::atomic<bool> taken{false};
  bool take() { return !taken.exchange(true); }
};

// Writes the body of the response, once all predictions are there.
using WriteAnswer = std::function<void(rows::JsonWriter& json, Call& call)>;

// State of one request. Used by its I/O thread only.
struct Call {
  Exchange* exchange = nullptr;
  int thread = 0;
  uint32_t slot = 0;  // in the CallTable of its thread
  const Route* route = nullptr;
  std::string key_name;  // empty: no key was needed
  std::string id;
  int model = -1;
  Served served, other;  // keep the models alive; `other`: a second model's
  const char* reason = nullptr;
  std::string instead_of;  // see ModelChoice
  bool ended = false;      // the exchange is over
  bool done = false;       // the response was passed to the exchange
  bool counted = false;    // included in ServerState::requests
  int broken = 0;          // status of an aborted response, for the log; 0: not aborted
  // Scoring:
  size_t left = 0;  // results still missing
  std::vector<Prediction> predictions;
  std::stop_source stop{std::nostopstate};
  bool bulk = false, null_errors = false;
  double timeout_ms = 0;
  size_t characters = 0, tokens = 0;
  size_t rows = 0;   // scored rows of a stream or queue
  size_t pairs = 0;  // texts and rows times zero-shot labels
  int passes = 0;    // passes over each text, if two models contribute to a response
  int64_t parsed_ns = 0, finished_ns = 0;
  int64_t submitted_ns = 0;  // 0: submitted by a helper
  WriteAnswer write;
  std::shared_ptr<Stream> stream;
  std::shared_ptr<HeldBody> held_body;     // while another thread is to parse it
  std::shared_ptr<nlohmann::json> parsed;  // body parsed by a helper
  std::string ignored;                     // unknown keys of the body or the query
};

// Calls of one I/O thread, which alone uses it. Exchange::tag is the slot plus one.
class CallTable {
 public:
  Call& add() {
    if (free_.empty()) {
      calls_.emplace_back();
      free_.reserve(calls_.capacity());  // so that erase() never allocates
      free_.push_back(static_cast<uint32_t>(calls_.size() - 1));
    }
    const uint32_t slot = free_.back();
    calls_[slot] = std::make_unique<Call>();
    free_.pop_back();
    calls_[slot]->slot = slot;
    return *calls_[slot];
  }
  Call& at(uint32_t slot) { return *calls_[slot]; }
  Call* of(const Exchange& exchange) {
    return exchange.tag == 0 ? nullptr : calls_[static_cast<size_t>(exchange.tag - 1)].get();
  }
  void erase(const Call& call) noexcept {
    const uint32_t slot = call.slot;
    calls_[slot].reset();
    free_.push_back(slot);
  }
  std::vector<Call*> all() const {
    std::vector<Call*> calls;
    for (const auto& call : calls_)
      if (call != nullptr) calls.push_back(call.get());
    return calls;
  }
  void clear() { calls_.clear(); }

 private:
  std::vector<std::unique_ptr<Call>> calls_;
  std::vector<uint32_t> free_;
};

}  // namespace brim::serve
