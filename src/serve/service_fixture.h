// SPDX-License-Identifier: Apache-2.0
// Test fixture: an in-process server with tiny models, or with a scorer that responds on request.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/test_files.h"
#include "engine/testing.h"
#include "http/raw_client.h"
#include "model/golden_models.h"
#include "serve/serve.h"

namespace brim::serve {

using Json = nlohmann::json;
using http::RawAnswer;
using http::RawClient;

// Holds requests until the test completes them.
class HeldScorer : public Scorer {
 public:
  ModelKind kind() const override { return ModelKind::classifier; }
  const std::vector<std::string>& labels() const override { return labels_; }
  const std::vector<std::string>& score_names() const override { return labels_; }
  std::string device() const override { return gpu.empty() ? "cpu" : "cuda:0"; }
  std::string pci_bus_id() const override { return gpu; }
  std::string precision() const override { return "fp32"; }
  MemoryPlan plan() const override { return {}; }
  int64_t max_length() const override { return 16; }
  ScorerLoad load() const override {
    std::lock_guard lock(mutex_);
    return load_;
  }
  std::vector<TextToken> tokenize(std::string_view) const override { return {}; }
  void submit(std::span<const Request> requests, Completion& completion) override {
    std::lock_guard lock(mutex_);
    for (const Request& request : requests) held_.push_back({request, &completion});
  }
  Predictions score(std::span<const std::string_view> texts, std::stop_token,
                    const std::function<void(size_t)>&) override {
    ++scoring;
    wait_until([&] { return !hold_scores; });
    const size_t n = texts.size();
    Predictions predictions{
        .rows = n, .width = 2, .labels = std::vector<int32_t>(n, 1), .scores = {}, .label_scores = {}};
    predictions.label_scores.assign(n, 0.75f);
    predictions.truncated.assign(n, 0);
    for (size_t i = 0; i < n; ++i) predictions.scores.insert(predictions.scores.end(), {0.25f, 0.75f});
    return predictions;
  }
  void close() override { answer_all(Error(ErrorCode::cancelled, "closed")); }

  void wait_held(size_t n) {
    wait_until([&] {
      std::lock_guard lock(mutex_);
      return held_.size() == n;
    });
  }
  std::vector<uint64_t> clients() {  // clients of held requests
    std::lock_guard lock(mutex_);
    std::vector<uint64_t> all;
    for (const Held& h : held_) all.push_back(h.request.client);
    return all;
  }
  bool all_stopped() {
    std::lock_guard lock(mutex_);
    return std::all_of(held_.begin(), held_.end(), [](const Held& h) { return h.request.stop.stop_requested(); });
  }
  void answer_all(std::optional<Error> error = {}) {
    std::vector<Held> held;
    {
      std::lock_guard lock(mutex_);
      held.swap(held_);
    }
    for (const Held& h : held) {
      Answer answer;
      answer.ticket = h.request.ticket;
      answer.prediction.error = error;
      answer.prediction.scores = {0.25f, 0.75f};
      answer.prediction.tokens = 3;
      h.completion->done({&answer, 1});
    }
  }
  std::atomic<int> scoring{0};  // calls of score() so far
  std::atomic<bool> hold_scores{false};
  std::string gpu;  // reported PCI address; set it before starting the server
  void set_load(const ScorerLoad& load) {
    std::lock_guard lock(mutex_);
    load_ = load;
  }

 private:
  struct Held {
    Request request;
    Completion* completion;
  };
  const std::vector<std::string> labels_ = {"no", "yes"};
  mutable std::mutex mutex_;
  std::vector<Held> held_;
  ScorerLoad load_;
};

// A server on a free port of this machine.
inline ServerOptions loopback_options() {
  ServerOptions o;
  o.listen = "127.0.0.1:0";
  o.lame_duck_seconds = 0;
  return o;
}

// As the server opens models, on one CPU thread.
inline ScorerOptions scorer_options(const std::filesystem::path& model, std::optional<Pooling> pooling = {}) {
  ScorerOptions o = engine::cpu_options(model);
  o.threads = 1;
  o.pooling = pooling;
  o.raw_scores = !pooling;
  return o;
}

class ServiceTest : public ::testing::Test {
 protected:
  std::shared_ptr<Scorer> open(const char* model, std::optional<Pooling> pooling = {}) {
    const auto dir = temp_.path() / model;
    if (!std::filesystem::exists(dir)) model::put_golden_model(dir, model);
    return Scorer::open(scorer_options(dir, pooling));
  }
  ServerOptions tiny() {
    ServerOptions o = loopback_options();
    o.io_threads = 2;
    o.max_queue_ms = 60'000;
    o.models.push_back({"cls", "org/cls", "12345678", open("bert_sequence")});
    o.models.push_back({"ner", "ner", "1", open("bert_token")});
    o.models.push_back({"emb", "emb", "2", open("bert_sequence", Pooling::mean)});
    o.models.push_back({"vader", "vader", "3", Scorer::open({.model = "vader"})});
    return o;
  }
  static ServerOptions serving(const char* name, std::shared_ptr<Scorer> scorer) {
    ServerOptions o = loopback_options();
    o.models.push_back({name, name, "1", std::move(scorer)});
    return o;
  }
  ServerOptions held() {
    scorer_ = std::make_shared<HeldScorer>();
    return serving("held", scorer_);
  }
  void start(ServerOptions options) {
    options.head_seconds = 60;  // client_ may stay silent while a slow test prepares its first request
    server_ = std::make_unique<Server>(std::move(options));
    server_->start();
    client_ = std::make_unique<RawClient>(server_->port());
  }
  RawAnswer get(const std::string& path, const std::string& fields = "") {
    client_->get(path, fields);
    return client_->read();
  }
  RawAnswer post(const std::string& path, const std::string& body, const std::string& fields = "") {
    client_->post(path, body, fields);
    return client_->read();
  }
  Json good(const std::string& path, const std::string& body) {
    const RawAnswer answer = post(path, body);
    EXPECT_EQ(answer.status, 200) << path << " " << body << " " << answer.body;
    return answer.status == 200 ? Json::parse(answer.body) : Json();
  }
  void bad(const std::string& path, const std::string& body, int status, const std::string& type,
           const std::string& message = "") {
    const RawAnswer answer = post(path, body);
    EXPECT_EQ(answer.status, status) << path << " " << body << " " << answer.body;
    const Json json = Json::parse(answer.body);
    EXPECT_EQ(json.value("error_type", json.value("type", "")), type) << answer.body;
    EXPECT_NE(answer.body.find(message), std::string::npos) << answer.body;
    EXPECT_TRUE(answer.fields.count("x-request-id"));
  }

  RawAnswer del(const std::string& path) {
    client_->send("DELETE " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    return client_->read();
  }

  TempDir temp_;
  std::shared_ptr<HeldScorer> scorer_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<RawClient> client_;
};

}  // namespace brim::serve
