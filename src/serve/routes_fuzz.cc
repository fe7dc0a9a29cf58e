// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any body on any route (chosen by the first byte), sent to a server with tiny models. Every request must
// get a JSON answer that is not a server error, and the connection must stay usable. For /score and /jobs the first
// line is the query and the rest the rows; for a job's output the bytes are the `Range` header.
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
                                               "/queues/news/flush_and_apply",
                                               "/score",
                                               "/jobs",
                                               "/jobs/ID/output",
                                               "/models/nli",
                                               "/models/gliner"};
  return all;
}

class FuzzedServer {
 public:
  FuzzedServer() {
    ServerOptions o = loopback_options();
    o.io_threads = 1;
    o.max_queue_ms = 60'000;
    for (const char* model : {"bert_sequence", "bert_token"}) model::put_golden_model(temp_.path() / model, model);
    const auto add = [&](const char* name, const char* model, std::optional<Pooling> pooling) {
      o.models.push_back({name, name, "1", Scorer::open(scorer_options(temp_.path() / model, pooling)), pooling});
    };
    add("cls", "bert_sequence", {});
    add("ner", "bert_token", {});
    add("emb", "bert_sequence", Pooling::none);
    model::put_golden_model(temp_.path() / "nli", "bert_pair");
    nlohmann::json config = nlohmann::json::parse(get_file(temp_.path() / "nli/config.json"));
    config["id2label"] = {{"0", "entailment"}, {"1", "neutral"}, {"2", "contradiction"}};
    config.erase("label2id");
    put_file(temp_.path() / "nli/config.json", config.dump());
    add("nli", "nli", {});
    o.models.push_back(
        {"gliner", "gliner", "1",
         Scorer::open(scorer_options(std::string(BRIM_SOURCE_DIR) + "/tests/data/gliner/span_rnn", {}))});
    o.models.push_back({"vader", "vader", "3", Scorer::open({.model = "vader"})});
    o.state_dir = (temp_.path() / "state").string();
    o.jobs_root = (temp_.path() / "bert_sequence").string();
    o.queues.emplace_back();
    o.queues[0].name = "news";
    o.queues[0].model = "vader";
    o.queues[0].flush_size = 3;
    server_ = std::make_unique<Server>(std::move(o));
    server_->start();
    client_ = std::make_unique<RawClient>(server_->port());
    client_->post("/jobs?format=txt&model=vader", "I love it\nI hate it\n");
    job_ = "/jobs/" + nlohmann::json::parse(client_->read().body)["id"].get<std::string>();
    wait_until([&] {
      client_->get(job_);
      return nlohmann::json::parse(client_->read().body)["status"] == "completed";
    });
    client_->get(job_ + "/output");
    output_ = client_->read().body;
  }
  void send(std::string_view path, std::string_view body) {
    static const std::set<int> kAnswers = {200, 202, 400, 404, 413, 422, 424, 504};  // 504: its own timeout_ms
    if (path == "/score" || path == "/jobs") return send_rows(path, body);
    if (path == "/jobs/ID/output") return send_range(body);
    client_->post(path, body);
    const RawAnswer answer = client_->read();
    require(kAnswers.contains(answer.status) && nlohmann::json::accept(answer.body), path, answer);
  }

 private:
  static void require(bool valid, std::string_view path, const RawAnswer& answer) {
    if (valid) return;
    std::fprintf(stderr, "%.*s: %d %s\n", static_cast<int>(path.size()), path.data(), answer.status,
                 answer.body.c_str());
    std::abort();
  }
  // The response has the rows, or status 0 if it ended early because later rows could not be read.
  void send_rows(std::string_view path, std::string_view input) {
    static const std::set<int> kAnswers = {0, 200, 201, 400, 403, 404, 413, 422, 424};
    const size_t line = std::min(input.find('\n'), input.size());
    std::string target(path);
    target += '?';
    for (const unsigned char c : input.substr(0, std::min<size_t>(line, 1000)))
      target += c > 0x20 && c < 0x7F && c != '#' ? std::string(1, static_cast<char>(c)) : fmt::format("%{:02x}", c);
    RawClient client(server_->port());
    client.post(target, input.substr(std::min(line + 1, input.size())));
    const RawAnswer answer = client.read();
    const bool json = answer.status > 201 || path == "/jobs";
    require(kAnswers.contains(answer.status) && (!json || nlohmann::json::accept(answer.body)), target, answer);
    if (answer.status != 201) return;
    const std::string job = "/jobs/" + nlohmann::json::parse(answer.body)["id"].get<std::string>();
    for (int i = 0; i < 2; ++i) {  // cancels, then removes
      client_->send("DELETE " + job + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
      client_->read();
    }
  }
  void send_range(std::string_view input) {
    std::string range;
    for (const char c : input.substr(0, std::min<size_t>(input.size(), 1000)))
      if (c >= 0x20 && c < 0x7F) range += c;
    client_->get(job_ + "/output", "Range: " + range + "\r\n");
    const RawAnswer answer = client_->read();
    unsigned long long first = 0, last = 0;
    const bool part = answer.status == 206 &&
                      std::sscanf(answer.fields.at("content-range").c_str(), "bytes %llu-%llu/", &first, &last) == 2;
    require(answer.status == 416 || (answer.status == 200 && answer.body == output_) ||
                (part && first <= last && answer.body == output_.substr(first, last - first + 1)),
            range, answer);
  }

  std::string job_, output_;
  TempDir temp_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<RawClient> client_;
};

}  // namespace brim::serve::routes_fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brim::serve::routes_fuzz;
  static FuzzedServer server;
  if (size == 0) return 0;
  server.send(paths()[data[0] % paths().size()], {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}
