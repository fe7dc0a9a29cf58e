// SPDX-License-Identifier: Apache-2.0
// In-process server with tiny models, over real sockets: overload, disconnecting clients, ladders, queues, draining.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/fuzz_driver.h"
#include "base/test_files.h"
#include "hub/edit_weight.h"
#include "hub/sentence_testing.h"
#include "serve/router.h"
#include "serve/service_fixture.h"

#define LLVMFuzzerTestOneInput fuzz_body
#include "serve/body_fuzz.cc"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_routes
#include "serve/routes_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::serve {
namespace {

TEST_F(ServiceTest, ReportsStatus) {
  start(tiny());
  EXPECT_EQ(get("/ping").status, 200);
  EXPECT_EQ(Json::parse(get("/health/live").body)["status"], "ok");
  EXPECT_EQ(Json::parse(get("/health/ready").body)["status"], "ok");
  const Json health = Json::parse(get("/health").body);
  EXPECT_EQ(health["status"], "ok");
  EXPECT_EQ(health["queue"]["tokens"], 0);
  EXPECT_TRUE(health.contains("gpu"));
  const Json info = Json::parse(get("/info").body);
  EXPECT_EQ(info["model_id"], "org/cls");
  EXPECT_EQ(info["max_client_batch_size"], 1024);
  EXPECT_TRUE(info["model_type"]["classifier"]["id2label"].is_object());
  EXPECT_EQ(info["models"].size(), 4u);
  const Json models = Json::parse(get("/v1/models").body);
  EXPECT_EQ(models["data"][1]["task"], "token-classification");
  EXPECT_EQ(Json::parse(get("/v1/models/ner").body), models["data"][1]);
  EXPECT_EQ(Json::parse(get("/v1/models/org%2Fcls").body), models["data"][0]) << "by directory name";
  EXPECT_EQ(get("/v1/models/nerd").status, 404);
  good("/predict", R"({"inputs":"w6"})");
  bad("/predict", R"({"inputs":""})", 400, "Empty");
  const RawAnswer metrics = get("/metrics");
  EXPECT_EQ(metrics.fields.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  for (const char* line :
       {"brim_requests_total{route=\"/predict\",model=\"cls\",code=\"200\"} 1\n",
        "brim_requests_total{route=\"/predict\",model=\"cls\",code=\"400\"} 1\n",
        "brim_texts_total{model=\"cls\",class=\"interactive\",reason=\"default\"} 1\n",
        "brim_tokens_total{model=\"cls\"} 3\n", "brim_stage_duration_seconds_count{stage=\"infer\"} 1\n",
        "brim_stage_duration_seconds_bucket{stage=\"infer\",le=\"+Inf\"} 1\n", "te_request_success 1\n",
        "te_request_failure 1\n", "te_predict_duration_count 2\n", "te_embed_duration_count 0\n",
        "brim_connections{state=\"busy\"} 1\n"})
    EXPECT_NE(metrics.body.find(line), std::string::npos) << line << metrics.body;
}

TEST_F(ServiceTest, AnswersRepeatedTextsFromTheCache) {
  model::put_golden_model(temp_.path() / "cached", "bert_sequence");
  ScorerOptions options = scorer_options(temp_.path() / "cached");
  options.cache_bytes = 1 << 20;
  start(serving("cls", Scorer::open(options)));
  const Json first = good("/predict", R"({"inputs":"w6 w7"})");
  EXPECT_EQ(good("/predict", R"({"inputs":"w6 w7"})"), first);
  EXPECT_NE(good("/predict", R"({"inputs":"w6 w8"})"), first);
  const std::string metrics = get("/metrics").body;
  EXPECT_NE(metrics.find("brim_cache_hits_total{model=\"cls\"} 1\n"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("brim_cache_misses_total{model=\"cls\"} 2\n"), std::string::npos);
}

TEST_F(ServiceTest, RejectsImmediatelyWhenOverloaded) {
  start(held());
  scorer_->set_load({.texts = 100, .tokens = 5000, .tokens_per_second = 1000, .wait_seconds = 5});
  RawAnswer answer = post("/predict", R"({"inputs":"a"})");
  EXPECT_EQ(answer.status, 429);
  EXPECT_EQ(answer.fields["retry-after"], "5");
  const Json json = Json::parse(answer.body);
  EXPECT_EQ(json["error_type"], "Overloaded");
  EXPECT_EQ(json["error"], "Model is overloaded");
  EXPECT_EQ(json["queue_ms"], 5000);
  EXPECT_EQ(json["limit_ms"], 1000);
  scorer_->set_load({.texts = 1, .tokens = 500, .tokens_per_second = 1000, .wait_seconds = 0.5});
  EXPECT_EQ(post("/predict", R"({"inputs":"a","timeout_ms":300})").status, 429) << "it could not be met";
  client_->post("/predict", R"({"inputs":"a"})");
  scorer_->wait_held(1);
  scorer_->answer_all();
  EXPECT_EQ(client_->read().status, 200);
  EXPECT_NE(get("/metrics").body.find("brim_rejected_total{reason=\"overloaded\"} 2\n"), std::string::npos);

  EXPECT_EQ(post("/admin/models/held/unload", "").status, 200);
  EXPECT_EQ(post("/predict", R"({"inputs":"a"})").status, 503);
  RawClient other(server_->port());
  other.send(
      "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: 99999999\r\n\r\n");
  EXPECT_EQ(other.read().status, 413);
  for (const char* reason : {"loading", "body"})
    wait_until([&] {  // requests are counted after the response is sent
      return get("/metrics").body.find(fmt::format("brim_rejected_total{{reason=\"{}\"}} 1\n", reason)) !=
             std::string::npos;
    });
}

TEST_F(ServiceTest, ReportsScorerErrors) {
  start(held());
  for (const auto& [error, status] : std::vector<std::pair<Error, int>>{{Error(ErrorCode::timed_out, "late"), 504},
                                                                        {Error(ErrorCode::busy, "busy"), 429},
                                                                        {Error(ErrorCode::cancelled, "closed"), 503},
                                                                        {Error(ErrorCode::bad_data, "bad"), 422},
                                                                        {Error(ErrorCode::internal, "broken"), 424}}) {
    client_->post("/predict", R"({"inputs":[["a"],["b"]]})");
    scorer_->wait_held(2);
    scorer_->answer_all(error);
    EXPECT_EQ(client_->read().status, status) << error.what();
  }
  client_->post("/predict", R"({"inputs":"a"})");
  scorer_->wait_held(1);
  scorer_->set_load({.lost = true});
  scorer_->answer_all(Error(ErrorCode::device_lost, "gone"));
  EXPECT_EQ(client_->read().status, 424);
  EXPECT_EQ(get("/health").status, 503);
  EXPECT_EQ(get("/health/ready").status, 503);
  EXPECT_EQ(get("/health/live").status, 200);
  std::atomic<bool> never{false};
  EXPECT_FALSE(server_->run(never)) << "stops without a request to stop";
}

// Rows, queues and jobs have no waiting texts: a hung device is detected by the duration of the batch.
TEST_F(ServiceTest, BatchFarBeyondPredictionIsUnhealthy) {
  start(held());
  scorer_->set_load({.batch_seconds = 4, .batch_predicted_seconds = 0.1});
  EXPECT_EQ(get("/health").status, 200) << "below five seconds";
  scorer_->set_load({.batch_seconds = 6, .batch_predicted_seconds = 1});
  EXPECT_EQ(get("/health").status, 200) << "below ten times the prediction";
  scorer_->set_load({.batch_seconds = 6, .batch_predicted_seconds = 0.1});
  const RawAnswer answer = get("/health");
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(Json::parse(answer.body).at("status"), "unhealthy") << answer.body;
  scorer_->set_load({});
  EXPECT_EQ(get("/health").status, 200);
}

TEST_F(ServiceTest, CancelsTextsOfDisconnectedClient) {
  ServerOptions o = held();
  o.access_log = (temp_.path() / "access.log").string();
  start(o);
  client_->post("/predict", R"({"inputs":[["a"],["b"]]})");
  scorer_->wait_held(2);
  client_->close();
  wait_until([&] { return scorer_->all_stopped(); });
  scorer_->answer_all(Error(ErrorCode::cancelled, "withdrawn"));
  client_ = std::make_unique<RawClient>(server_->port());
  const std::string metrics = get("/metrics").body;
  EXPECT_NE(metrics.find("brim_cancelled_total 1\n"), std::string::npos);
  EXPECT_NE(metrics.find("brim_requests_total{route=\"/predict\",model=\"held\",code=\"499\"} 1\n"), std::string::npos);
  server_.reset();
  const std::string log = get_file(o.access_log);
  const Json entry = Json::parse(log.substr(0, log.find('\n')));
  EXPECT_EQ(entry["route"], "POST /predict");
  EXPECT_EQ(entry["code"], 499);
}

TEST_F(ServiceTest, AccessLogHasModelAndTextsOfQueuesAndJobs) {
  ServerOptions o = tiny();
  o.access_log = (temp_.path() / "access.log").string();
  o.state_dir = (temp_.path() / "state").string();
  o.queues.push_back({.name = "news", .model = "cls", .flush_size = 2});
  start(o);
  EXPECT_EQ(post("/queues/news/score_or_queue", R"({"text":"w6 w7"})").status, 202);
  EXPECT_EQ(post("/queues/news/score_or_queue", R"({"text":"w8"})").status, 200);
  const RawAnswer made = post("/jobs?format=txt&model=vader", "so good\nso bad\nfine\n");
  ASSERT_EQ(made.status, 201) << made.body;
  const std::string job = "/jobs/" + Json::parse(made.body)["id"].get<std::string>();
  wait_until([&] { return Json::parse(get(job).body)["status"] == "completed"; });
  EXPECT_EQ(get(job + "/output").status, 200);
  server_.reset();
  std::istringstream lines(get_file(o.access_log));
  std::map<std::string, Json> last;
  std::vector<Json> queued;
  for (std::string line; std::getline(lines, line);) {
    const Json entry = Json::parse(line);
    if (entry["route"] == "POST /queues/{queue}/score_or_queue") queued.push_back(entry);
    last[entry["route"].get<std::string>()] = entry;
  }
  ASSERT_EQ(queued.size(), 2u);
  EXPECT_EQ(queued[0]["texts"], 1) << "queued";
  EXPECT_TRUE(queued[0]["model"].is_null());
  EXPECT_EQ(queued[1]["texts"], 2) << "scored";
  EXPECT_EQ(queued[1]["model"], "cls");
  EXPECT_GT(queued[1]["tokens"], 4);
  EXPECT_EQ(last["POST /jobs"]["model"], "vader");
  for (const char* route : {"GET /jobs/{id}", "GET /jobs/{id}/output"}) {
    EXPECT_EQ(last[route]["model"], "vader") << route;
    EXPECT_EQ(last[route]["texts"], 3) << route;
  }
}

TEST_F(ServiceTest, ReportsMissingModelOnce) {
  put_file(temp_.path() / "gate.csv", "text,label\nso good,positive\nso bad,negative\n");
  for (const auto& [first, second] : {std::pair("vader", "gone"), std::pair("gone", "vader")}) {
    ServerOptions o = tiny();
    ServedModel gone;
    gone.name = gone.id = "gone";
    gone.fault = "gone: no such directory";
    o.models.push_back(std::move(gone));
    LadderRules rules;
    rules.name = "mood";
    rules.rungs = {{first, {}}, {second, {}}};  // the others are compared with the first
    rules.gate.data = (temp_.path() / "gate.csv").string();
    rules.gate.text = "text";
    rules.gate.label = "label";
    o.ladders = {std::make_shared<Ladder>(rules)};
    Server server(std::move(o));
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(server.check(), std::vector<std::string>{"ladder mood: gone is unavailable: gone: no such directory"});
    EXPECT_EQ(::testing::internal::GetCapturedStderr().find("gone"), std::string::npos) << "not logged as well";
  }
}

TEST_F(ServiceTest, ReportsIgnoredKeys) {
  ServerOptions o = tiny();
  o.state_dir = (temp_.path() / "state").string();
  o.queues.push_back({.name = "news", .model = "vader"});
  start(std::move(o));
  const auto ignored = [&](const std::string& path, const std::string& body) {
    RawAnswer answer = post(path, body);
    EXPECT_LT(answer.status, 300) << path << answer.body;
    return answer.fields.contains("x-brim-ignored") ? answer.fields["x-brim-ignored"] : "";
  };
  EXPECT_EQ(ignored("/predict", R"({"inputs":"w6","topk":1,"top_k":1})"), "topk");
  EXPECT_EQ(ignored("/classify", R"({"input":"w6","user":"me","modle":"cls"})"), "modle, user");
  EXPECT_EQ(ignored("/classify", R"({"input":"w6","a\r\nSet-Cookie: b,c":1})"), "a??Set-Cookie:?b?c");
  EXPECT_EQ(ignored("/ner", R"({"inputs":"w6","parameters":{"stride":1,"strategy":"max"}})"), "parameters.strategy");
  EXPECT_EQ(ignored("/models/vader", R"({"inputs":"w6","options":{"use_cache":true}})"), "options");
  EXPECT_EQ(ignored("/tokenize", R"({"inputs":"w6","model":"cls","special":true})"), "special");
  EXPECT_EQ(ignored("/queues/news/score_or_queue", R"({"text":"a","item":{"any":1},"sourse":"b"})"), "sourse");
  EXPECT_EQ(ignored("/queues/news/flush_and_apply", R"({"item":{}})"), "item");
  const std::string items = R"({"sources":"x","items":[{"text":"a","item":{"any":1},"sourse":"b"},)";
  EXPECT_EQ(ignored("/queues/news/score_or_queue", items + R"({"text":"a","sourse":"b","id":3}]})"),
            "items.id, items.sourse, sources");
  EXPECT_EQ(ignored("/queues/news/flush_and_apply", items + R"({"text":"a","sentiment":1},{"item":2,"id":3}]})"),
            "items.sourse, sources")
      << "an entry without an object `item` is an item";
}

// The keys in openapi.json are those that the routes read.
TEST_F(ServiceTest, IgnoresNoDocumentedKey) {
  start(tiny());
  const Json document = Json::parse(get("/openapi.json").body);
  const std::function<void(const Json&, Json&)> collect = [&](const Json& schema, Json& keys) {
    if (const auto name = schema.value("$ref", ""); !name.empty())
      collect(document.at(Json::json_pointer(name.substr(1))), keys);
    for (const char* list : {"allOf", "oneOf", "anyOf"})
      if (schema.contains(list))
        for (const Json& part : schema[list]) collect(part, keys);
    if (schema.contains("properties"))
      for (const auto& [key, value] : schema["properties"].items()) {
        keys[key] = Json::object();
        if (key == "parameters") collect(value, keys[key]);
      }
  };
  int routes = 0;
  for (const auto& [path, methods] : document["paths"].items()) {
    const Json::json_pointer schema("/post/requestBody/content/application~1json/schema");
    if (!methods.contains(schema) || path == "/embed_sparse") continue;
    Json keys = Json::object();
    collect(methods.at(schema), keys);
    const std::string route = path == "/models/{name}" ? "/models/*" : path;
    EXPECT_EQ(ignored_keys(route, keys), "") << path;
    keys["unknown"] = 1;
    EXPECT_EQ(ignored_keys(route, keys), "unknown") << path;
    ++routes;
  }
  EXPECT_EQ(routes, 17);
}

TEST_F(ServiceTest, LadderReportsChoiceAndReason) {
  ServerOptions o = tiny();
  LadderRules rules;
  rules.name = "sentiment";
  rules.rungs = {{"cls", {}}, {"vader", {}}};
  rules.default_rung = "vader";
  rules.sources.push_back({{"reuters", "bloom*"}, "cls", false});
  o.ladders.push_back(std::make_shared<Ladder>(rules));
  start(o);
  const auto chosen = [&](const std::string& more) {
    RawAnswer answer = post("/predict", R"({"inputs":"w6")" + more + "}");
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.fields["x-brim-model"] + " " + answer.fields["x-brim-reason"];
  };
  EXPECT_EQ(chosen(""), "vader@3 default");
  EXPECT_EQ(chosen(R"(,"model":"sentiment","source":"Reuters")"), "cls@12345678 source");
  EXPECT_EQ(chosen(R"(,"source":"bloomberg")"), "cls@12345678 source");
  EXPECT_EQ(chosen(R"(,"model":"cls")"), "cls@12345678 requested");
  const Json health = Json::parse(get("/health").body);
  EXPECT_EQ(health["ladder"]["sentiment"]["active"], "vader");
  EXPECT_EQ(health["model"], "vader") << "the selected model, not the first one";
  EXPECT_EQ(good("/tokenize", R"({"inputs":"w6"})")[0].size(), 3u)
      << "by the first model with a tokenizer, whatever the rung";
  EXPECT_EQ(good("/decode", R"({"ids":[6]})").size(), 1u);
  EXPECT_NE(get("/metrics").body.find("brim_ladder_rung{ladder=\"sentiment\"} 1\n"), std::string::npos);
  const Json ladder = Json::parse(get("/v1/models").body)["data"].back();
  EXPECT_EQ(ladder["id"], "sentiment");
  EXPECT_EQ(Json::parse(get("/v1/models/sentiment").body), ladder);
  EXPECT_EQ(good("/embed", R"({"inputs":"w6"})").size(), 1u) << "by the embedding model";
}

TEST_F(ServiceTest, QueuesKeepAndScoreItems) {
  ServerOptions o = tiny();
  o.state_dir = (temp_.path() / "state").string();
  QueueRules news;
  news.name = "news";
  news.model = "vader";
  news.flush_size = 3;
  o.queues.push_back(news);
  start(o);
  const std::string first = R"({"text":"I love it","item":{"id":1,"z":0,"a":0}})";
  RawAnswer answer = post("/queues/news/score_or_queue", first);
  EXPECT_EQ(answer.status, 202) << answer.body;
  const std::string metrics = get("/metrics").body;
  EXPECT_NE(metrics.find("brim_queue_items{queue=\"news\"} 1\n"), std::string::npos);
  for (const char* line : {"te_request_success 1\n", "te_request_failure 0\n"})
    EXPECT_NE(metrics.find(line), std::string::npos) << "a waiting item is not a failure: " << line;
  server_.reset();  // acknowledged items are kept
  ServerOptions again = tiny();
  again.state_dir = o.state_dir;
  again.queues = o.queues;
  start(again);
  EXPECT_EQ(post("/queues/news/score_or_queue", R"({"text":"I hate it","item":{"id":2}})").status, 202);
  answer = post("/queues/news/flush_and_apply", "{}");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json flushed = Json::parse(answer.body);
  ASSERT_EQ(flushed["items"].size(), 2u);
  EXPECT_EQ(flushed["items"][0]["id"], 1);
  EXPECT_EQ(flushed["items"][0]["sentiment_label"], "positive");
  EXPECT_GT(flushed["items"][0]["sentiment_score"].get<double>(), 0);
  EXPECT_LT(flushed["items"][1]["sentiment_score"].get<double>(), 0);
  EXPECT_NE(answer.body.find(R"("z":0,"a":0)"), std::string::npos) << "order of keys is preserved";
  EXPECT_EQ(post("/queues/news/flush_and_apply", "", "Origin: https://c.example\r\n").status, 403) << "cross-origin";
  EXPECT_EQ(post("/queues/news/flush_and_apply", "").status, 200);
  EXPECT_EQ(get("/queues/news").status, 200);
  EXPECT_EQ(get("/queues/news/flushes?after=0").status, 200);
  EXPECT_EQ(get("/queues/other").status, 404);
  EXPECT_EQ(get("/queues/news/flushes/x").status, 404);
  bad("/queues/news/score_or_queue", R"({"texts":1})", 422, "Validation");
  bad("/queues/news/score_or_queue", "{", 400, "Syntax");
  const Json item = {{"text", std::string((1 << 20) + 1, 'a')}};
  bad("/queues/news/score_or_queue", item.dump(), 422, "Validation", "at most 1048576");
  bad("/queues/news/flush_and_apply", Json{{"items", {item}}}.dump(), 422, "Validation", "at most 1048576");
  Json wide = Json::object();
  for (int i = 0; i <= 1000; ++i) wide[std::to_string(i)] = i;
  bad("/queues/news/score_or_queue", Json{{"text", "a"}, {"item", wide}}.dump(), 422, "Validation");
  wide.erase("0");
  EXPECT_EQ(post("/queues/news/score_or_queue", Json{{"text", "a"}, {"item", wide}}.dump()).status, 202);
  for (const auto& [path, allow] : {std::pair("/queues/news", "GET"),
                                    {"/queues/news/flush_and_apply", "POST"},
                                    {"/queues/news/flushes", "GET"},
                                    {"/jobs/1/output", "GET"}}) {
    answer = del(path);
    EXPECT_EQ(answer.status, 405) << path;
    EXPECT_EQ(answer.fields["allow"], allow) << path;
  }
  EXPECT_EQ(post("/jobs/1", "{}").fields["allow"], "GET, DELETE");
  client_ = std::make_unique<RawClient>(server_->port());  // the body was not read
  bad("/queues/news/nothing", "{}", 404, "NotFound");
}

TEST_F(ServiceTest, HealthDoesNotWaitBehindTexts) {
  start(held());
  RawClient waiting(server_->port());
  waiting.post("/predict", R"({"inputs":"a"})");
  scorer_->wait_held(1);
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(get("/ping").status, 200);
  scorer_->answer_all();
  EXPECT_EQ(waiting.read().status, 200);
}

TEST_F(ServiceTest, RejectsRequestsBeyondLimit) {
  ServerOptions o = held();
  o.max_requests = 1;
  start(std::move(o));
  RawClient waiting(server_->port());
  waiting.post("/predict", R"({"inputs":"a"})");
  scorer_->wait_held(1);
  bad("/predict", R"({"inputs":"b"})", 429, "Overloaded");
  EXPECT_EQ(get("/health").status, 200);  // does not count
  scorer_->answer_all();
  EXPECT_EQ(waiting.read().status, 200);
  RawClient reader(server_->port());  // a stream without texts does not count
  reader.send("GET /events HTTP/1.1\r\nHost: a\r\n");
  waiting.post("/predict", R"({"inputs":"a"})");
  scorer_->wait_held(1);
  scorer_->answer_all();
  EXPECT_EQ(waiting.read().status, 200);
}

TEST_F(ServiceTest, DrainsWithoutLosingRequests) {
  ServerOptions o = held();
  o.lame_duck_seconds = 0.3;
  start(o);
  RawClient waiting(server_->port());
  waiting.post("/predict", R"({"inputs":"a"})");
  scorer_->wait_held(1);
  std::atomic<bool> stop{false};
  std::thread running([&] { EXPECT_TRUE(server_->run(stop)); });
  stop = true;
  wait_until([&] { return get("/health/ready").status != 200; });
  client_ = std::make_unique<RawClient>(server_->port());  // the answer closed it
  RawAnswer answer = post("/predict", R"({"inputs":"a"})");
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.fields["connection"], "close");
  EXPECT_TRUE(answer.fields.count("retry-after"));
  scorer_->answer_all();
  EXPECT_EQ(waiting.read().status, 200);
  running.join();
}

TEST_F(ServiceTest, RespondsToWaitingClientsAtEndOfDrain) {
  ServerOptions o = held();
  o.drain_seconds = 0.1;
  start(o);
  std::vector<std::unique_ptr<RawClient>> waiting;
  for (size_t i = 1; i <= 3; ++i) {
    waiting.push_back(std::make_unique<RawClient>(server_->port()));
    waiting.back()->post("/predict", R"({"inputs":[["a"],["b"]]})");
    scorer_->wait_held(2 * i);
  }
  server_->drain();
  for (const auto& client : waiting) {
    RawAnswer answer = client->read();
    EXPECT_EQ(answer.status, 503);
    EXPECT_TRUE(answer.fields.count("retry-after"));
    EXPECT_TRUE(client->at_end());
  }
  EXPECT_TRUE(scorer_->all_stopped());
}

TEST_F(ServiceTest, QueueCallCanBeRepeatedAfterDrain) {
  ServerOptions o = held();
  o.drain_seconds = 0.1;
  o.state_dir = (temp_.path() / "state").string();
  o.queues.push_back({.name = "news", .model = "held", .immediate = true});
  start(o);
  const std::string body = R"({"items":[{"text":"a","item":{"n":1}}]})", key = "Idempotency-Key: one\r\n";
  scorer_->hold_scores = true;
  client_->post("/queues/news/score_or_queue", body, key);
  wait_until([&] { return scorer_->scoring == 1; });
  server_->drain();
  EXPECT_TRUE(client_->at_end()) << "not refused: its items are taken";
  scorer_->hold_scores = false;
  server_.reset();
  ServerOptions again = held();
  again.state_dir = o.state_dir;
  again.queues = o.queues;
  start(again);
  const RawAnswer answer = post("/queues/news/score_or_queue", body, key);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(Json::parse(answer.body)["items"][0]["sentiment_label"], "yes") << answer.body;
  EXPECT_EQ(scorer_->scoring, 0) << "results of the first server are not computed again";
}

TEST_F(ServiceTest, ServesManyClients) {
  start(tiny());
  const auto scorer = open("bert_sequence");
  std::vector<std::thread> threads;
  for (int t = 0; t < 12; ++t)
    threads.emplace_back([&, t] {
      RawClient client(server_->port());
      for (int i = 0; i < 40; ++i) {
        const std::string text = "w" + std::to_string(6 + (t * 40 + i) % 80) + " w7";
        if (i % 10 == 9) {  // disconnects before the response
          RawClient other(server_->port());
          other.post("/predict", R"({"inputs":[[")" + text + R"("],["w8"]]})");
        }
        client.post(i % 3 == 0 ? "/classify" : "/predict", (i % 3 == 0 ? R"({"input":")" : R"({"inputs":")") + text +
                                                               R"(","priority":")" +
                                                               (i % 2 == 0 ? "bulk" : "interactive") + "\"}");
        const RawAnswer answer = client.read();
        ASSERT_EQ(answer.status, 200) << answer.body;
        const Json json = Json::parse(answer.body);
        const Json& labels = i % 3 == 0 ? json["data"][0] : json;
        const Prediction expected = scorer->submit({.text = text}).get();
        ASSERT_NEAR(labels[0]["score"].get<double>(), expected.score, 1e-4);
      }
    });
  for (auto& thread : threads) thread.join();
}

TEST(MetricsTest, ComputesBucketsAndQuantiles) {
  Histogram h;
  EXPECT_EQ(h.quantile(0.5), 0);
  for (int i = 1; i <= 1000; ++i) h.add(i * 1e-3);
  EXPECT_EQ(h.count(), 1000u);
  EXPECT_GE(h.quantile(0.5), 0.45);
  EXPECT_LE(h.quantile(0.5), 0.55);
  const Histogram before = h;
  h.add(40);
  EXPECT_EQ(h.since(before).count(), 1u);
  EXPECT_GT(h.since(before).quantile(0.5), 20);
  EXPECT_GE(Histogram::bounds().back(), 50);
  MetricsText text;
  text.family("a_total", "counter", "things");
  const std::pair<std::string_view, std::string_view> labels[] = {{"x", "a\"b\\c\n"}};
  text.value("a_total", labels, 2);
  EXPECT_EQ(text.take(), "# HELP a_total things\n# TYPE a_total counter\na_total{x=\"a\\\"b\\\\c\\n\"} 2\n");
}

TEST(BodyTest, ParsesJson) {
  drive_fuzz(fuzz_body,
             {R"({"inputs":["a","b"],"truncate":null,"x":{"y":[1,2.5,-3e9,true]}})", R"("\u00e4\ud83d\ude00")",
              "[[[[[[]]]]]]", R"({"a":1,"a":2})"},
             20'000);
}

TEST(RoutesTest, RespondsToAnyBody) {
  const char* const bodies[] = {
      R"({"inputs":"w6","model":"cls","truncate":false,"raw_scores":true})",
      R"({"inputs":[["w6","w7"],["w8"]],"top_k":1,"on_error":"null"})",
      R"({"inputs":[[2,6,3],"w7"],"model":"emb","normalize":true,"dimensions":3})",
      R"({"input":[2,6,3],"model":"emb","encoding_format":"base64"})",
      R"({"query":"w6","texts":["w7"],"return_text":true})",
      R"({"inputs":{"source_sentence":"w6","sentences":["w7"]},"parameters":{"truncate":true}})",
      R"({"ids":[[2,6],[3]],"skip_special_tokens":false})",
      R"({"inputs":"w6 w7","parameters":{"aggregation_strategy":"max","stride":2}})",
      R"({"items":[{"text":"good","item":{"id":1}}],"source":"a"})",
      R"({"input":"w6","priority":"bulk","timeout_ms":9,"long_text":"window-max"})"};
  std::vector<std::string> seeds;
  for (size_t route = 0; route < routes_fuzz::paths().size(); ++route)
    for (const char* body : bodies) seeds.push_back(static_cast<char>(route) + std::string(body));
  const std::pair<char, const char*> rows_and_ranges[] = {
      {16, "format=csv&text_column=t&model=vader\nid,t\n1,I love it\n2,\"I hate it\n"},
      {16, "model=cls&all_scores=true&output_format=tsv\n{\"text\":\"w6\"}\nno json\n"},
      {17, "format=txt&model=vader&output_format=csv\nso good\nso bad\n"},
      {17, "format=csv&path=../a\na\n"},
      {18, "bytes=3-9"},
      {18, "bytes=-5"},
      {18, "bytes=18446744073709551615-"},
      {18, "bytes=0-0,2-3"}};
  for (const auto& [route, input] : rows_and_ranges) seeds.push_back(route + std::string(input));
  drive_fuzz(fuzz_routes, seeds, 1'500);
}

TEST_F(ServiceTest, NotFiniteOutputIs424AndDegradesHealth) {
  for (const char* model : {"bert_sequence", "bert_token"}) {
    model::put_golden_model(temp_.path() / model, model);
    hub::edit_weight(temp_.path() / model, "bert.embeddings.word_embeddings.weight", 7 * 48,
                     std::numeric_limits<float>::quiet_NaN());
  }
  start(tiny());
  good("/predict", R"({"inputs":"w5 w6"})");
  EXPECT_EQ(Json::parse(get("/health").body)["status"], "ok");
  const char* problem = "the model's output is not finite";
  bad("/predict", R"({"inputs":"w7"})", 424, "Backend", problem);
  bad("/predict", R"({"inputs":[["w5"],["w7"],["w6"]]})", 424, "Backend", problem);
  bad("/embed", R"({"inputs":"w7","model":"emb"})", 424, "Backend", problem);
  bad("/v1/embeddings", R"({"input":"w7","model":"emb"})", 424, "Backend", problem);
  bad("/ner", R"({"inputs":"w7","model":"ner"})", 424, "Backend", problem);
  const Json health = Json::parse(get("/health").body);
  EXPECT_EQ(health["status"], "degraded");
  EXPECT_EQ(health["warnings"], (Json{"model cls: the output is not finite", "model ner: the output is not finite",
                                      "model emb: the output is not finite"}));
  good("/predict", R"({"inputs":"w5 w6"})");
}

TEST_F(ServiceTest, EmbedsWithSentenceTransformersSettings) {
  model::put_golden_model(temp_.path() / "bert_encoder", "bert_encoder");
  hub::put_modules(temp_.path() / "bert_encoder", hub::kClsPooling);
  ServerOptions options = serving("auto", open("bert_encoder", Pooling::automatic));
  options.models.push_back({"cls", "cls", "2", open("bert_encoder", Pooling::cls)});
  options.models.push_back({"mean", "mean", "3", open("bert_encoder", Pooling::mean)});
  start(std::move(options));
  const auto embed = [&](const char* model) {
    return good("/embed", Json{{"inputs", "w5 w6"}, {"normalize", false}, {"model", model}}.dump());
  };
  EXPECT_EQ(embed("auto"), embed("cls"));
  EXPECT_NE(embed("auto"), embed("mean"));
  const Json info = Json::parse(get("/info").body);
  EXPECT_EQ(info["models"][0]["model_type"]["embedding"]["pooling"], "cls");
}

}  // namespace
}  // namespace brim::serve
