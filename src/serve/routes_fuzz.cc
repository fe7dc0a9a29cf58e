// SPDX-License-Identifier: Apache-2.0
// Fuzz entry: any bytes as the body of any route (the first byte: which), sent to a server of tiny models. Whatever is
// asked, there is an answer in JSON that blames nobody but the client, and the connection goes on.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "serve/service_fixture.h"

namespace brim::serve::routes_fuzz {

inline const std::vector<std::string>& paths() {
  static const std::vector<std::string> all = {"/predict",
                                               "/embed",
                                               "/embed_all",
                                               "/rerank",
                                               "/similarity",
                                               "/tokenize",
                                               "/decode",
                                               "/v1/embeddings",
                                               "/classify",
                                               "/ner",
                                               "/analyze",
                                               "/models/ner",
                                               "/models/emb",
                                               "/invocations",
                                               "/queues/news/score_or_queue",
                                               "/queues/news/flush_and_apply"};
  return all;
}

class FuzzedServer {
 public:
  FuzzedServer() {
    ServerOptions o;
    o.listen = "127.0.0.1:0";
    o.lame_duck_seconds = 0;
    o.io_threads = 1;
    o.max_queue_ms = 60'000;
    for (const char* model : {"bert_sequence", "bert_token"}) model::put_golden_model(temp_.path() / model, model);
    const auto add = [&](const char* name, const char* model, std::optional<Pooling> pooling) {
      ScorerOptions s;
      s.model = (temp_.path() / model).string();
      s.device = "cpu";
      s.precision = "fp32";
      s.threads = 1;
      s.memory_limit = "1GiB";
      s.pooling = pooling;
      s.raw_scores = !pooling;
      o.models.push_back({name, name, "1", Scorer::open(s), pooling});
    };
    add("cls", "bert_sequence", {});
    add("ner", "bert_token", {});
    add("emb", "bert_sequence", Pooling::none);
    o.models.push_back({"vader", "vader", "3", Scorer::open({.model = "vader"})});
    o.state_dir = (temp_.path() / "state").string();
    o.queues.emplace_back();
    o.queues[0].name = "news";
    o.queues[0].model = "vader";
    o.queues[0].flush_size = 3;
    server_ = std::make_unique<Server>(std::move(o));
    server_->start();
    client_ = std::make_unique<RawClient>(server_->port());
  }
  void ask(std::string_view path, std::string_view body) {
    static const std::set<int> kAnswers = {200, 202, 400, 404, 413, 422, 424, 504};  // 504: its own timeout_ms
    client_->post(path, body);
    const RawAnswer answer = client_->read();
    if (kAnswers.contains(answer.status) && nlohmann::json::accept(answer.body)) return;
    std::fprintf(stderr, "%.*s: %d %s\n", static_cast<int>(path.size()), path.data(), answer.status,
                 answer.body.c_str());
    std::abort();
  }

 private:
  TempDir temp_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<RawClient> client_;
};

}  // namespace brim::serve::routes_fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brim::serve::routes_fuzz;
  static FuzzedServer server;
  if (size == 0) return 0;
  server.ask(paths()[data[0] % paths().size()], {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}
