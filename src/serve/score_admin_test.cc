// SPDX-License-Identifier: Apache-2.0
// Streams of rows, and reloading models and keys, over real sockets.
#include <atomic>
#include <thread>

#include "base/log.h"
#include "base/mapped_file.h"
#include "io/atomic_file.h"
#include "io/compress.h"
#include "io/sha256.h"
#include "serve/service_fixture.h"

namespace brim::serve {
namespace {

class ScoreRouteTest : public ServiceTest {
 protected:
  ServerOptions rules(const std::string& revision = "1") {
    ServerOptions o = loopback_options();
    o.models.push_back({"mood", "vader", revision, Scorer::open({.model = "vader"})});
    return o;
  }
  void send(RawClient& client, const std::string& query, const std::string& body, const std::string& fields = "") {
    client.send("POST /score?" + query + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\n" + fields + "\r\n" + body);
  }
  RawAnswer score(const std::string& query, const std::string& body, const std::string& fields = "") {
    client_ = std::make_unique<RawClient>(server_->port());
    send(*client_, query, body, fields);
    return client_->read();
  }
};

TEST_F(ScoreRouteTest, ReportsIgnoredQueryKeys) {
  start(rules());
  EXPECT_EQ(score("format=txt&sourse=wire&path=a.csv&a%0d%0ab=1", "good\n").fields["x-brim-ignored"],
            "sourse, path, a%0d%0ab");
  EXPECT_FALSE(score("format=txt&source=wire&model=mood", "good\n").fields.contains("x-brim-ignored"));
}

TEST_F(ScoreRouteTest, ReturnsRowsWithScores) {
  start(rules());
  RawAnswer answer = score("format=csv&text_column=t", "id,t\n1,I love it\n2,\"I hate it, really\"\n");
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.fields["content-type"], "text/csv; charset=utf-8");
  EXPECT_EQ(answer.fields["x-brim-model"], "mood@1");
  EXPECT_EQ(answer.body.find("id,t,label,score\n1,I love it,positive,"), 0u) << answer.body;
  EXPECT_NE(answer.body.find("\n2,\"I hate it, really\",negative,"), std::string::npos) << answer.body;
  answer = score("", "{\"text\":\"I love it\",\"n\":1}\nno json\n");
  EXPECT_EQ(answer.fields["content-type"], "application/x-ndjson");
  const size_t line = answer.body.find('\n');
  EXPECT_EQ(Json::parse(answer.body.substr(0, line))["label"], "positive");
  EXPECT_EQ(std::count(answer.body.begin(), answer.body.end(), '\n'), 2) << "a bad row keeps its position";
  EXPECT_EQ(score("", "a\nb\n", "Content-Type: text/plain\r\n").body.substr(0, 16), "text,label,score");
  EXPECT_EQ(score("", "").status, 200);
  answer = score("", "id,text\n1,I love it\n");
  EXPECT_EQ(answer.status, 422) << answer.body;
  EXPECT_NE(answer.body.find("the first row is not JSON; set `format`"), std::string::npos) << answer.body;
  EXPECT_NE(get("/metrics").body.find("brim_texts_total{model=\"mood\",class=\"bulk\",reason=\"default\"} 5"),
            std::string::npos);

  EXPECT_EQ(score("format=csv&text_column=none", "id,t\n1,a\n").status, 422);
  EXPECT_EQ(score("format=xml", "a").status, 422);
  EXPECT_EQ(score("model=none", "a").status, 404);
  EXPECT_EQ(score("", "a", "Origin: http://elsewhere\r\n").status, 403);
  EXPECT_EQ(score("", "{\"text\":\"a\"}", "Origin: http://localhost\r\n").status, 200);
  EXPECT_EQ(get("/ping").status, 200) << "the connection is usable after a stream";
}

TEST_F(ScoreRouteTest, ScoresPairs) {
  ServerOptions o = rules();
  o.models.push_back({"nli", "nli", "5", open("bert_pair")});
  const auto nli = o.models.back().scorer;
  o.models.push_back({"one_type", "one_type", "6", open("roberta_sequence")});
  start(std::move(o));
  const std::string rows = "{\"a\":\"w6 w7\",\"b\":\"w8\"}\n{\"a\":\"w6\"}\n{\"a\":\"w8\",\"b\":\"w6 w7\"}\n";
  const RawAnswer answer = score("model=nli&text_column=a&pair_column=b&all_scores=true", rows);
  ASSERT_EQ(answer.status, 200) << answer.body;
  std::vector<Json> scored;
  for (size_t at = 0; at < answer.body.size(); at = answer.body.find('\n', at) + 1)
    scored.push_back(Json::parse(answer.body.substr(at, answer.body.find('\n', at) - at)));
  ASSERT_EQ(scored.size(), 3u);
  EXPECT_TRUE(scored[1]["label"].is_null()) << "incomplete pair";
  for (const size_t row : {0, 2}) {
    const Prediction want = nli->submit({.text = row == 0 ? "w6 w7" : "w8", .pair = row == 0 ? "w8" : "w6 w7"}).get();
    EXPECT_EQ(scored[row]["label"], want.label);
    EXPECT_NEAR(scored[row]["score"].get<double>(), want.score, 1e-6);
  }
  EXPECT_EQ(score("model=nli&text_column=a&pair_column=c", rows).status, 422);
  EXPECT_EQ(score("model=mood&text_column=a&pair_column=b", rows).status, 422);
  const RawAnswer refused = score("model=one_type&text_column=a&pair_column=b", rows);
  EXPECT_EQ(refused.status, 424);
  EXPECT_NE(refused.body.find("token type 1"), std::string::npos) << refused.body;
}

TEST_F(ScoreRouteTest, RejectsDecompressionBombs) {
  start(rules());
  const auto packed = [&](const std::string& rows) {
    const auto path = temp_.path() / "rows.csv.gz";
    io::AtomicFile file(path);
    const auto sink = io::make_sink(file, io::Compression::gzip);
    sink->write(rows);
    sink->end_member();
    file.commit();
    return read_file(path);
  };
  const std::string head = "t,filling\n";
  const RawAnswer answer =
      score("format=csv&text_column=t", packed(head + "good," + std::string(20 << 20, 'x') + "\n"));
  EXPECT_EQ(answer.status, 422) << answer.body;
  std::string rows = head;
  for (int i = 0; i < 300; ++i) rows += "good," + std::string(100'000, 'x') + "\n";
  // Once a response has started, its status cannot change: the stream is aborted.
  RawClient begun(server_->port());
  const std::string first = packed(head + "so good,\n"), second = packed(rows.substr(head.size()));
  begun.send("POST /score?format=csv&text_column=t HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
             std::to_string(first.size() + second.size()) + "\r\n\r\n" + first);
  ASSERT_EQ(begun.read_head().status, 200);
  std::string chunk;
  ASSERT_TRUE(begun.read_chunk(chunk));
  EXPECT_NE(chunk.find("so good,,positive"), std::string::npos) << chunk;
  std::thread more([&] { begun.send(second); });
  while (begun.read_chunk(chunk)) ASSERT_NE(chunk, "") << "the stream ended";
  more.join();
  RawClient client(server_->port());
  std::thread sending([&] { send(client, "format=csv&text_column=t", rows); });
  EXPECT_EQ(client.read().status, 200) << "uncompressed rows are accepted";
  sending.join();
}

TEST_F(ScoreRouteTest, LimitsConcurrentStreams) {
  start(rules());
  const auto begin = [&](RawClient& client) {
    client.send(
        "POST /score?format=txt HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\na\r\nI love it\n\r\n");
    return client.read_head();
  };
  std::vector<std::unique_ptr<RawClient>> streams;
  for (int i = 0; i < 16; ++i) {
    streams.push_back(std::make_unique<RawClient>(server_->port()));
    ASSERT_EQ(begin(*streams.back()).status, 200) << i;
  }
  const RawAnswer refused = begin(*client_);
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.fields.at("retry-after"), "1");
  streams[0]->send("0\r\n\r\n");
  wait_until([&] {
    RawClient next(server_->port());
    return begin(next).status == 200;
  });
}

TEST_F(ScoreRouteTest, RejectsOverlongRow) {
  start(rules());
  RawClient client(server_->port());
  std::thread sending([&] { send(client, "format=txt", std::string((16 << 20) + 1, 'x')); });
  const RawAnswer answer = client.read();
  EXPECT_EQ(answer.status, 422);
  EXPECT_NE(answer.body.find("line 1: the record is longer than 16"), std::string::npos);
  sending.join();
}

TEST_F(ScoreRouteTest, RespondsDuringUpload) {
  start(rules());
  RawClient client(server_->port());
  client.send("POST /score?format=txt HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  std::string rows, chunk;
  for (const char* text : {"I love it", "I hate it"}) {
    client.send("a\r\n" + std::string(text) + "\n\r\n");
    if (rows.empty()) {
      EXPECT_EQ(client.read_head().status, 200);
    }
    while (rows.find(text) == std::string::npos) {
      ASSERT_TRUE(client.read_chunk(chunk));
      rows += chunk;
    }
  }
  client.send("0\r\n\r\n");
  EXPECT_TRUE(client.read_chunk(chunk));
  EXPECT_EQ(chunk, "");
}

// A complete body: the first rows are returned while the others are processed.
TEST_F(ScoreRouteTest, StreamsRowsInChunksWithSlowModel) {
  class SlowScorer final : public HeldScorer {
   public:
    Predictions score(std::span<const std::string_view> texts, std::stop_token,
                      const std::function<void(size_t)>&) override {
      if (calls++ > 0) wait_until([&] { return go_on.load(); });
      Predictions p;
      p.rows = texts.size();
      p.labels.assign(p.rows, 1);
      p.label_scores.assign(p.rows, 0.75f);
      return p;
    }
    std::atomic<int> calls{0};
    std::atomic<bool> go_on{false};
  };
  const auto slow = std::make_shared<SlowScorer>();
  ServerOptions o = rules();
  o.models = {{"slow", "slow", "1", slow}};
  start(std::move(o));
  std::string rows, got, chunk;
  for (int i = 0; i < 5000; ++i) rows += fmt::format("row {}\n", i);
  RawClient client(server_->port());
  send(client, "format=txt&output_format=jsonl", rows);
  EXPECT_EQ(client.read_head().status, 200);
  while (got.find("\"row 0\"") == std::string::npos) {
    ASSERT_TRUE(client.read_chunk(chunk));
    got += chunk;
  }
  slow->go_on = true;
  while (client.read_chunk(chunk) && !chunk.empty()) got += chunk;
  EXPECT_EQ(std::count(got.begin(), got.end(), '\n'), 5000);
  EXPECT_NE(got.find("\"row 4999\""), std::string::npos);
  EXPECT_LT(slow->calls, 10) << "pieces grow if the device is fast";
}

TEST_F(ScoreRouteTest, LogsAndCountsAbortedStreams) {
  class FailingScorer final : public HeldScorer {
   public:
    Predictions score(std::span<const std::string_view> texts, std::stop_token stop,
                      const std::function<void(size_t)>&) override {
      if (calls++ > 0 && fails) throw Error(ErrorCode::device_lost, "the card is gone");
      if (calls > 1) wait_until([&] { return stop.stop_requested(); });
      Predictions p;
      p.rows = texts.size();
      p.labels.assign(p.rows, 1);
      p.label_scores.assign(p.rows, 0.75f);
      p.tokens = static_cast<int64_t>(2 * p.rows);
      return p;
    }
    std::atomic<int> calls{0};
    std::atomic<bool> fails{true};
  };
  const auto failing = std::make_shared<FailingScorer>();
  ServerOptions o = rules();
  o.models = {{"failing", "failing", "1", failing}};
  o.access_log = (temp_.path() / "access.log").string();
  std::mutex mutex;
  std::string log_lines;
  const LogSink before = set_log_sink([&](LogLevel, std::string_view line) {
    std::lock_guard lock(mutex);
    log_lines += line;
  });
  start(o);
  std::string rows, chunk;
  for (int i = 0; i < 5000; ++i) rows += fmt::format("secret {}\n", i);
  RawClient client(server_->port());
  send(client, "format=txt", rows, "X-Request-Id: halfway\r\n");
  EXPECT_EQ(client.read_head().status, 200);
  while (client.read_chunk(chunk)) ASSERT_FALSE(chunk.empty()) << "it has no end";
  failing->fails = false;
  failing->calls = 0;
  RawClient leaving(server_->port());
  send(leaving, "format=txt", rows);
  EXPECT_EQ(leaving.read_head().status, 200);
  leaving.close();
  std::string metrics;
  wait_until([&] { return (metrics = get("/metrics").body).find("brim_cancelled_total 1\n") != std::string::npos; });
  for (const char* code : {"424", "499"})
    EXPECT_NE(
        metrics.find(fmt::format("brim_requests_total{{route=\"/score\",model=\"failing\",code=\"{}\"}} 1\n", code)),
        std::string::npos)
        << metrics;
  server_.reset();
  set_log_sink(before);
  EXPECT_NE(log_lines.find("/score halfway: response aborted: Backend error: the card is gone"), std::string::npos)
      << log_lines;
  EXPECT_EQ(log_lines.find("secret"), std::string::npos);
  const std::string log = get_file(o.access_log);
  const Json entry = Json::parse(log.substr(0, log.find('\n')));
  EXPECT_EQ(entry["id"], "halfway");
  EXPECT_EQ(entry["code"], 424);
  EXPECT_GT(entry["texts"], 0);
  EXPECT_EQ(entry["tokens"], 2 * entry["texts"].get<int>());
}

TEST_F(ScoreRouteTest, WaitsForSlowReader) {
  start(rules());
  std::string rows;
  for (int i = 0; i < 400'000; ++i) rows += "some day " + std::to_string(i) + "\n";
  RawClient client(server_->port(), 4096);
  std::thread sending(
      [&] { send(client, "format=txt", rows); });  // cannot be sent completely before the response is read
  const RawAnswer answer = client.read();
  sending.join();
  EXPECT_EQ(std::count(answer.body.begin(), answer.body.end(), '\n'), 400'001);
  EXPECT_NE(answer.body.find("\nsome day 399999,"), std::string::npos);
  RawClient leaving(server_->port());
  leaving.send("POST /score?format=txt HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n" + rows);
  leaving.read_head();
  leaving.close();
  server_.reset();  // does not wait for the stream
}

class AdminTest : public ScoreRouteTest {
 protected:
  ServerOptions changing() {
    ServerOptions o = rules();
    o.reopen = [this](const std::string& name, const Scorer*, bool) {
      if (broken_) fail(ErrorCode::bad_model, "{}: its files are broken", name);
      return ServedModel{name, "vader", std::to_string(revision_.load()), Scorer::open({.model = "vader"})};
    };
    o.revision_of = [this](const std::string&) { return std::to_string(revision_.load()); };
    return o;
  }
  RawAnswer admin(const std::string& what, const std::string& fields = "") {
    return post("/admin/" + what, "", fields);
  }
  std::string answering() { return post("/predict", R"({"inputs":"good"})").fields["x-brim-model"]; }

  std::atomic<int> revision_{1};
  std::atomic<bool> broken_{false};
};

// Records the threads that use and destroy it.
class NotedScorer final : public HeldScorer {
 public:
  struct Threads {
    std::atomic<std::thread::id> submits, frees;
  };
  explicit NotedScorer(Threads& threads) : threads_(threads) {}
  ~NotedScorer() override { threads_.frees = std::this_thread::get_id(); }
  void submit(std::span<const Request> requests, Completion& completion) override {
    threads_.submits = std::this_thread::get_id();
    HeldScorer::submit(requests, completion);
  }

 private:
  Threads& threads_;
};

TEST_F(AdminTest, IoThreadsDoNotFreeModels) {
  NotedScorer::Threads threads;
  auto noted = std::make_shared<NotedScorer>(threads);
  NotedScorer* const scorer = noted.get();
  start(serving("noted", std::move(noted)));
  client_->post("/predict", R"({"inputs":"good"})");
  scorer->wait_held(1);
  RawClient administrator(server_->port());
  administrator.post("/admin/models/noted/unload", "");
  EXPECT_EQ(administrator.read().status, 200) << "waits for a second, then continues";
  EXPECT_EQ(threads.frees.load(), std::thread::id()) << "the request has it";
  scorer->answer_all();
  EXPECT_EQ(client_->read().status, 200);
  wait_until([&] { return threads.frees.load() != std::thread::id(); });
  EXPECT_NE(threads.frees.load(), threads.submits.load());
}

TEST_F(AdminTest, ClosesUnloadedModelsInUseWhenItStops) {
  start(held());
  client_->post("/predict", R"({"inputs":"good"})");
  scorer_->wait_held(1);
  RawClient administrator(server_->port());
  administrator.post("/admin/models/held/unload", "");
  EXPECT_EQ(administrator.read().status, 200);
  server_.reset();
  EXPECT_TRUE(scorer_->clients().empty()) << "a later result would use a destroyed server";
}

TEST_F(AdminTest, LoadsUnloadsAndReloadsModels) {
  ServerOptions o = changing();
  LadderRules ladder;
  ladder.name = "ladder";
  ladder.rungs = {{"mood", std::nullopt}};
  o.ladders.push_back(std::make_shared<Ladder>(ladder));
  start(std::move(o));
  EXPECT_EQ(answering(), "mood@1");
  EXPECT_EQ(Json::parse(get("/v1/models").body)["data"][0]["ladder"], Json::array({"ladder"}));
  EXPECT_EQ(get("/health/ready").status, 200);
  EXPECT_EQ(Json::parse(admin("models/mood/unload").body)["state"], "disk");
  EXPECT_EQ(get("/health/ready").status, 503) << "the default model is not loaded";
  EXPECT_EQ(post("/predict", R"({"inputs":"good","model":"mood"})").status, 503);
  EXPECT_EQ(post("/predict", R"({"inputs":"good"})").status, 503) << "no rung of the ladder is available";
  EXPECT_EQ(Json::parse(get("/v1/models").body)["data"][0]["state"], "disk");
  EXPECT_EQ(Json::parse(get("/health").body)["status"], "degraded");
  revision_ = 2;
  EXPECT_EQ(Json::parse(admin("models/mood/load").body)["state"], "resident");
  EXPECT_EQ(get("/health/ready").status, 200);
  EXPECT_EQ(admin("models/mood/load").status, 200);
  EXPECT_EQ(answering(), "mood@2");
  broken_ = true;
  EXPECT_EQ(admin("models/mood/reload").status, 409);
  EXPECT_EQ(answering(), "mood@2") << "the old model stays in use";
  EXPECT_NE(get("/health").body.find("its files are broken"), std::string::npos);
  broken_ = false;
  revision_ = 3;
  EXPECT_EQ(admin("models/mood/reload?wait=false").status, 202);
  wait_until([&] { return answering() == "mood@3"; });
  EXPECT_EQ(admin("models/none/load").status, 404);
  EXPECT_EQ(Json::parse(admin("models/mood/park").body)["state"], "resident") << "VADER is always resident";
  EXPECT_EQ(admin("models/mood/fly").status, 404);
  EXPECT_EQ(admin("nothing").status, 404);
  EXPECT_EQ(admin("ladders/ladder/pin?rung=none").status, 422);
  EXPECT_EQ(admin("ladders/none/pin?rung=mood").status, 404);
  EXPECT_EQ(admin("ladders/ladder/fly").status, 404);
  EXPECT_EQ(Json::parse(admin("ladders/ladder/pin?rung=mood").body)["reason"], "pinned");
  EXPECT_EQ(post("/predict", R"({"inputs":"good"})").fields["x-brim-reason"], "pinned");
  EXPECT_EQ(Json::parse(admin("ladders/ladder/unpin").body)["reason"], "default");
  EXPECT_EQ(admin("drain", "Origin: http://elsewhere\r\n").status, 403);
}

TEST_F(AdminTest, FailedModelDoesNotAffectOthers) {
  ServerOptions o = changing();
  ServedModel broken{"bad", "org/bad", "", nullptr};
  broken.fault = "its disk is not there";
  o.models.insert(o.models.begin(), broken);
  LadderRules ladder;
  ladder.name = "ladder";
  ladder.rungs = {{"bad", std::nullopt}, {"mood", std::nullopt}};
  o.ladders.push_back(std::make_shared<Ladder>(ladder));
  start(std::move(o));
  const auto listed = [&] { return Json::parse(get("/v1/models").body)["data"][0]; };
  const auto status = [&] { return Json::parse(get("/health").body)["status"]; };
  EXPECT_EQ(answering(), "mood@1");
  EXPECT_EQ(listed()["state"], "failed");
  EXPECT_EQ(listed()["fault"], "its disk is not there");
  EXPECT_TRUE(listed()["task"].is_null()) << "unknown";
  EXPECT_EQ(Json::parse(get("/info").body)["served_model_name"], "mood");
  EXPECT_EQ(status(), "degraded");
  EXPECT_NE(get("/health").body.find("bad is unavailable: its disk is not there"), std::string::npos);
  bad("/predict", R"({"inputs":"good","model":"bad"})", 503, "Unhealthy", "its disk is not there");
  bad("/ner", R"({"inputs":"good","model":"org/bad"})", 503, "Unhealthy", "its disk is not there");
  broken_ = true;
  EXPECT_EQ(admin("models/bad/load").status, 409);
  EXPECT_EQ(admin("reload").status, 424) << "it is tried again";
  EXPECT_EQ(listed()["fault"], "bad: its files are broken");
  broken_ = false;
  EXPECT_EQ(Json::parse(admin("models/bad/load").body)["state"], "resident");
  EXPECT_EQ(answering(), "bad@1");
  EXPECT_EQ(listed()["task"], "text-classification");
  EXPECT_EQ(status(), "ok");
}

TEST_F(AdminTest, ReloadsKeysAndChangedModels) {
  ServerOptions o = changing();
  std::atomic<int> times{0};
  o.read_keys = [&] {
    if (++times == 2) fail(ErrorCode::usage, "keys:1: is no key");
    return ApiKeys::parse("a:score,admin:" + io::sha256_hex(times == 1 ? "new" : "newer") + "\n", "keys");
  };
  o.keys =
      ApiKeys::parse("a:score,admin:" + io::sha256_hex("old") + "\nb:score:" + io::sha256_hex("web") + "\n", "keys");
  start(std::move(o));
  const auto with = [](const std::string& key) { return "Authorization: Bearer " + key + "\r\n"; };
  EXPECT_EQ(admin("reload").status, 401);
  EXPECT_EQ(admin("reload", with("web")).status, 403);
  EXPECT_EQ(admin("reload", with("old")).status, 200);
  EXPECT_EQ(get("/info", with("old")).status, 401);
  EXPECT_EQ(Json::parse(get("/info", with("new")).body)["model_sha"], "1") << "unchanged files";
  revision_ = 2;
  EXPECT_EQ(admin("reload", with("new")).status, 424) << "the keys cannot be read";
  EXPECT_EQ(Json::parse(get("/info", with("new")).body)["model_sha"], "2");
}

TEST_F(AdminTest, ReportsExceptions) {
  ServerOptions o = rules();
  o.reopen = [](const std::string&, const Scorer*, bool) -> ServedModel { throw std::bad_alloc(); };
  o.revision_of = [](const std::string&) -> std::string { throw std::runtime_error("no revision"); };
  o.read_keys = []() -> ApiKeys { throw std::runtime_error("no keys"); };
  start(std::move(o));
  EXPECT_EQ(admin("models/mood/reload").status, 409);
  EXPECT_EQ(admin("models/mood/reload?wait=false").status, 202);
  const RawAnswer answer = admin("reload");
  EXPECT_EQ(answer.status, 424);
  EXPECT_EQ(Json::parse(answer.body)["problems"], Json::array({"no keys", "no revision"})) << answer.body;
  EXPECT_EQ(answering(), "mood@1");
}

TEST_F(AdminTest, ReloadsUnderLoadWithoutFailedRequests) {
  start(changing());
  std::atomic<bool> ending{false};
  std::vector<std::thread> clients;
  for (int t = 0; t < 3; ++t)
    clients.emplace_back([&] {
      RawClient client(server_->port());
      while (!ending) {
        client.post("/predict", R"({"inputs":[["good"],["bad"]]})");
        ASSERT_EQ(client.read().status, 200);
      }
    });
  for (int i = 0; i < 20; ++i) {
    ++revision_;
    ASSERT_EQ(admin("models/mood/reload").status, 200);
  }
  ending = true;
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(answering(), "mood@21");
}

TEST_F(AdminTest, DrainsOnRequest) {
  start(changing());
  const std::atomic<bool> stop{false};
  std::atomic<bool> reload{true};
  std::thread running([&] { EXPECT_TRUE(server_->run(stop, &reload)); });
  wait_until([&] { return !reload; });  // as with SIGHUP
  EXPECT_EQ(admin("drain").status, 200);
  running.join();
}

// Socket handed from one server to the next, as by a supervisor.
TEST_F(AdminTest, ConsecutiveServersOnOneSocketFailNoRequest) {
  const Listener kept(parse_listen_address("127.0.0.1:0"));
  ListenAddress address = parse_listen_address("127.0.0.1:0");
  address.port = kept.port();
  std::atomic<bool> ending{false};
  std::atomic<int> answered{0};
  std::vector<std::thread> clients;
  const auto open = [&] {
    ServerOptions o = rules();
    o.lame_duck_seconds = 30;  // ends earlier, with the last connection
    address.descriptor = ::dup(kept.descriptor());
    o.socket = address;
    start(std::move(o));
    client_.reset();
  };
  open();
  EXPECT_EQ(server_->port(), kept.port());
  for (int t = 0; t < 3; ++t)
    clients.emplace_back([&] {
      while (!ending) {
        RawClient client(kept.port());
        std::string connection;
        while (connection != "close" && !ending) {
          client.post("/predict", R"({"inputs":[["good"],["bad"]]})");
          RawAnswer answer = client.read();
          ASSERT_EQ(answer.status, 200);
          connection = answer.fields["connection"];
          ++answered;
        }
      }
    });
  for (int i = 0; i < 10; ++i) {
    wait_until([&] { return answered >= i * 30 || HasFailure(); });
    server_->drain();
    open();
  }
  ending = true;
  for (std::thread& client : clients) client.join();
}

}  // namespace
}  // namespace brim::serve
