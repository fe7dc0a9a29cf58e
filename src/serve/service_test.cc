// SPDX-License-Identifier: Apache-2.0
// The server in this process, over real sockets, with tiny models: shapes, errors, overload, clients that leave.
#include "serve/service.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/fuzz_driver.h"
#include "base/test_files.h"
#include "io/sha256.h"
#include "serve/service_fixture.h"

#define LLVMFuzzerTestOneInput fuzz_body
#include "serve/body_fuzz.cc"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_routes
#include "serve/routes_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::serve {
namespace {

TEST_F(ServiceTest, PredictAnswersAsTextEmbeddingsInferenceDoes) {
  start(tiny());
  const auto scorer = open("bert_sequence");
  RawAnswer answer = post("/predict", R"({"inputs":"w6 w7 w8"})", "X-Request-Id: abc\r\n");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Said one = Said::parse(answer.body);
  ASSERT_TRUE(one.is_array());
  ASSERT_EQ(one.size(), scorer->labels().size());
  const Prediction expected = scorer->submit({.text = "w6 w7 w8"}).get();
  EXPECT_EQ(one[0]["label"], expected.label);
  EXPECT_NEAR(one[0]["score"].get<double>(), expected.score, 1e-5);
  EXPECT_GE(one[0]["score"].get<double>(), one[1]["score"].get<double>());
  EXPECT_EQ(answer.body.find("{\"score\":"), 1u) << "score comes first";
  EXPECT_EQ(answer.fields["x-request-id"], "abc");
  EXPECT_EQ(answer.fields["x-brim-model"], "cls@12345678");
  EXPECT_EQ(answer.fields["x-brim-reason"], "default");
  EXPECT_EQ(answer.fields["x-compute-tokens"], "5");
  EXPECT_EQ(answer.fields["x-compute-characters"], "8");
  EXPECT_NE(answer.fields["server-timing"].find("infer;dur="), std::string::npos);
  EXPECT_EQ(good("/predict", R"({"inputs":["w6 w7 w8"]})")[0]["label"], expected.label);
  const Said batch = good("/predict", R"({"inputs":[["w6 w7 w8"],["w9"]]})");
  ASSERT_EQ(batch.size(), 2u);
  EXPECT_EQ(batch[0][0]["label"], expected.label);
  EXPECT_EQ(good("/", R"({"inputs":"w6 w7 w8"})")[0]["label"], expected.label);

  double sum = 0;
  const Said raw = good("/predict", R"({"inputs":"w6 w7 w8","raw_scores":true})");
  for (const Said& label : raw) sum += std::exp(label["score"].get<double>());
  EXPECT_NEAR(std::exp(raw[0]["score"].get<double>()) / sum, expected.score, 1e-4);
  EXPECT_EQ(good("/predict", R"({"inputs":"w6","top_k":1})").size(), 1u);
  EXPECT_EQ(post("/predict?model=vader", R"({"inputs":"I love it"})").fields["x-brim-model"], "vader@3");
  EXPECT_EQ(good("/predict", R"({"inputs":"I love it","model":"vader"})")[0]["label"], "positive");
}

TEST_F(ServiceTest, PairsAndRanks) {
  ServerOptions o = tiny();
  o.models.push_back({"rank", "rank", "4", open("bert_rerank")});
  o.models.push_back({"nli", "nli", "5", open("bert_pair")});
  start(o);
  const auto rank = o.models[4].scorer, nli = o.models[5].scorer;
  const Prediction expected = nli->submit({.text = "w6 w7", .pair = "w8"}).get();
  const Said one = good("/predict", R"({"inputs":["w6 w7","w8"],"model":"nli"})");
  EXPECT_EQ(one[0]["label"], expected.label);
  EXPECT_NEAR(one[0]["score"].get<double>(), expected.score, 1e-5);
  const Said batch = good("/predict", R"({"inputs":[["w6 w7","w8"],["w9"]],"model":"nli"})");
  ASSERT_EQ(batch.size(), 2u);
  EXPECT_EQ(batch[0], one);

  const std::vector<std::string> texts = {"w20 w21", "w30", "w40 w41 w42"};
  const std::string body = R"({"query":"w6 w7","texts":["w20 w21","w30","w40 w41 w42"])";
  const Said raw = good("/rerank", body + R"(,"raw_scores":true,"return_text":true})");
  ASSERT_EQ(raw.size(), 3u);
  double last = INFINITY;
  for (const Said& item : raw) {
    const std::string& text = texts[item["index"].get<size_t>()];
    const Prediction p = rank->submit({.text = "w6 w7", .raw_scores = true, .pair = text}).get();
    EXPECT_EQ(item["text"], text);
    EXPECT_NEAR(item["score"].get<double>(), p.scores[0], 1e-5);
    EXPECT_LE(item["score"].get<double>(), last);
    last = item["score"].get<double>();
  }
  const Said scores = good("/rerank", body + "}");
  EXPECT_FALSE(scores[0].contains("text"));
  EXPECT_EQ(scores[0]["index"], raw[0]["index"]);
  EXPECT_NEAR(scores[0]["score"].get<double>(), 1 / (1 + std::exp(-raw[0]["score"].get<double>())), 1e-5);
  bad("/rerank", R"({"query":"a","texts":[]})", 400, "Empty", "`texts`");
  bad("/rerank", R"({"query":["a"],"texts":["b"]})", 422, "Validation", "`query`");
  bad("/rerank", R"({"texts":["b"]})", 422, "Validation", "`query`");
  bad("/rerank", R"({"query":"a","texts":["b"],"model":"nli"})", 424, "Backend", "re-ranker");
  client_->get("/info");
  EXPECT_NE(client_->read().body.find("\"reranker\""), std::string::npos);
  // A query counts with every text: a body of a megabyte would be a gigabyte to read.
  const std::string query(1 << 20, 'w');
  bad("/rerank", Said{{"query", query}, {"texts", std::vector<std::string>(1000, "w6")}}.dump(), 413, "Validation",
      "as pairs, at most 16777216");
  EXPECT_EQ(good("/rerank", Said{{"query", query}, {"texts", {"w6", "w7"}}}.dump()).size(), 2u);
}

TEST_F(ServiceTest, ErrorsAreThoseOfTheTable) {
  ServerOptions o = tiny();
  o.max_client_batch_size = 3;
  start(o);
  bad("/predict", R"({"inputs":["a","b"],"model":"vader"})", 424, "Backend", "single texts");
  bad("/predict", R"({"inputs":[["a",""]]})", 400, "Empty");
  bad("/predict", R"({"inputs":[["a","b","c"]]})", 422, "Validation");
  bad("/predict", R"({"inputs":["a","b","c"]})", 422, "Validation", R"([[\"a\"],[\"b\"]])");
  bad("/predict", R"({"inputs":""})", 400, "Empty", "`inputs` cannot be empty");
  bad("/predict", R"({"inputs":[]})", 400, "Empty");
  bad("/predict", R"({"inputs":5})", 422, "Validation");
  bad("/predict", R"({})", 422, "Validation", "inputs");
  bad("/predict", R"([])", 422, "Validation");
  bad("/predict", "{\"inputs\":\n  x}", 400, "Syntax", "2:3");
  bad("/predict", R"({"inputs":"a","inputs":"b"})", 422, "Validation", "twice");
  bad("/predict", "{\"inputs\":\"\xFF\"}", 400, "Syntax");
  bad("/predict", R"({"inputs":[["a"],["b"],["c"],["d"]]})", 422, "Validation", "batch size 4 > maximum allowed");
  bad("/predict", R"({"inputs":"a","truncate":"x"})", 422, "Validation", "truncate");
  bad("/predict", R"({"inputs":"a","truncation_direction":"up"})", 422, "Validation");
  bad("/predict", R"({"inputs":"a","priority":"high"})", 422, "Validation");
  bad("/predict", R"({"inputs":"a","priority":""})", 422, "Validation", "must not be empty");
  bad("/predict", R"({"inputs":"a","timeout_ms":-1})", 422, "Validation");
  bad("/predict", R"({"inputs":"a","model":"other"})", 404, "NotFound", "cls, ner, emb, vader");
  bad("/predict", R"({"inputs":"a","model":"emb"})", 424, "Backend", "Model is not a classifier model");
  bad("/embed", R"({"inputs":"a","model":"cls"})", 424, "Backend", "Model is not an embedding model");
  bad("/embed", R"({"inputs":[1,-2],"model":"emb"})", 422, "Validation", "token ids");
  bad("/embed", R"({"inputs":[1,"a"],"model":"emb"})", 422, "Validation", "token ids");
  bad("/embed", R"({"inputs":["a",1],"model":"emb"})", 422, "Validation", "token ids");
  bad("/embed", R"({"inputs":[1,960],"model":"emb"})", 422, "Validation", "960 is no token");
  bad("/embed", R"({"inputs":[[1],[]],"model":"emb"})", 400, "Empty");
  bad("/predict", R"({"inputs":[1,2]})", 422, "Validation");
  bad("/similarity",
      R"({"inputs":{"source_sentence":"a","sentences":["b"]},"parameters":{"truncate":1},"model":"emb"})", 422,
      "Validation", "truncate");
  bad("/rerank", R"({"query":"a","texts":["b"]})", 424, "Backend", "re-ranker");
  const std::string large = Said{{"inputs", std::string((1 << 20) + 1, 'a')}}.dump();
  bad("/predict", large, 422, "Validation", "at most 1048576 are taken");
  bad("/tokenize", large, 422, "Validation", "at most 1048576 are taken");
  bad("/predict", std::string(40, '[') + std::string(40, ']'), 422, "Validation", "nested deeper");
  std::string long_text;
  for (int i = 0; i < 600; ++i) long_text += "w6 ";
  bad("/predict", R"({"truncate":false,"inputs":")" + long_text + "\"}", 422, "Validation", "tokens. Given: 602");
  EXPECT_TRUE(good("/predict", R"({"truncate":true,"inputs":")" + long_text + "\"}").is_array());
  EXPECT_TRUE(good("/predict", R"({"long_text":"window-mean","inputs":")" + long_text + "\"}").is_array());

  client_->post("/predic", "{}");
  RawAnswer answer = client_->read();
  EXPECT_EQ(answer.status, 404);
  EXPECT_NE(answer.body.find("did you mean /predict"), std::string::npos) << answer.body;
  client_ = std::make_unique<RawClient>(server_->port());  // its body was not read
  answer = get("/predict");
  EXPECT_EQ(answer.status, 405);
  EXPECT_EQ(answer.fields["allow"], "POST");
  client_->send("POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}");
  answer = client_->read();
  EXPECT_EQ(answer.status, 415);
  client_ = std::make_unique<RawClient>(server_->port());
  EXPECT_EQ(post("/predict", R"({"inputs":"a"})", "Content-Encoding: gzip\r\n").status, 415);
}

TEST_F(ServiceTest, OneBadTextHarmsNoOther) {
  start(tiny());
  std::string long_text;
  for (int i = 0; i < 600; ++i) long_text += "w6 ";
  RawAnswer answer =
      post("/classify", R"({"on_error":"null","truncate":false,"input":["w6","",")" + long_text + R"(","w7"]})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Said said = Said::parse(answer.body);
  EXPECT_TRUE(said["data"][0].is_array());
  EXPECT_TRUE(said["data"][1].is_null());
  EXPECT_TRUE(said["data"][2].is_null());
  EXPECT_TRUE(said["data"][3].is_array());
  EXPECT_EQ(said["errors"][0]["index"], 1);
  EXPECT_EQ(said["errors"][1]["index"], 2);
  EXPECT_EQ(answer.fields["x-brim-errors"], "2");
  EXPECT_EQ(good("/predict", R"({"on_error":"null","inputs":[[""]]})"), Said::parse("[null]"));
}

TEST_F(ServiceTest, OtherShapes) {
  start(tiny());
  const Said embedded = good("/embed", R"({"inputs":["w6 w7","w8"],"model":"emb"})");
  ASSERT_EQ(embedded.size(), 2u);
  double squares = 0;
  for (const Said& v : embedded[0]) squares += v.get<double>() * v.get<double>();
  EXPECT_NEAR(squares, 1, 1e-4);
  EXPECT_EQ(good("/embed", R"({"inputs":"w6","model":"emb","dimensions":4})")[0].size(), 4u);
  EXPECT_EQ(good("/v1/embeddings", R"({"input":"w6","model":"emb","dimensions":0})")["data"][0]["embedding"].size(),
            48u);
  const Said cosines =
      good("/similarity", R"({"inputs":{"source_sentence":"w6 w7","sentences":["w6 w7","w9 w10 w11"]},"model":"emb"})");
  EXPECT_NEAR(cosines[0].get<double>(), 1, 1e-4);
  EXPECT_LT(cosines[1].get<double>(), 0.9999);

  const Said openai = good("/v1/embeddings", R"({"input":["w6 w7","w8"],"model":"emb"})");
  EXPECT_EQ(openai["object"], "list");
  EXPECT_EQ(openai["data"][1]["index"], 1);
  EXPECT_EQ(openai["data"][0]["embedding"], embedded[0]);
  EXPECT_EQ(openai["usage"]["prompt_tokens"], 7);
  const Said base64 = good("/v1/embeddings", R"({"input":"w8","model":"emb","encoding_format":"base64"})");
  EXPECT_EQ(base64["data"][0]["embedding"].get<std::string>().size(), (embedded[1].size() * 4 + 2) / 3 * 4);
  RawAnswer wrong = post("/v1/embeddings", R"({"input":"w8","model":"none"})");
  EXPECT_EQ(wrong.status, 404);
  EXPECT_EQ(Said::parse(wrong.body)["error"]["code"], 404);
  EXPECT_EQ(Said::parse(wrong.body)["code"], 404);

  const Said tokens = good("/tokenize", R"({"inputs":"w6 w7"})");
  Said ids = Said::array();
  for (const Said& token : tokens[0]) ids.push_back(token["id"]);
  EXPECT_EQ(good("/embed", Said{{"inputs", ids}, {"model", "emb"}}.dump()), Said::array({embedded[0]}));
  EXPECT_EQ(good("/embed", Said{{"inputs", {ids, "w8"}}, {"model", "emb"}}.dump()), embedded);
  EXPECT_EQ(good("/v1/embeddings", Said{{"input", {ids, ids}}, {"model", "emb"}}.dump())["data"][1]["embedding"],
            embedded[0]);
  ASSERT_EQ(tokens[0].size(), 4u);
  EXPECT_EQ(tokens[0][0]["special"], true);
  EXPECT_TRUE(tokens[0][0]["start"].is_null());
  EXPECT_EQ(tokens[0][2]["text"], "w7");
  EXPECT_EQ(tokens[0][2]["start"], 3);
  EXPECT_EQ(tokens[0][2]["stop"], 5);
  EXPECT_EQ(good("/tokenize", R"({"inputs":["w6","w7"],"add_special_tokens":false})")[1].size(), 1u);

  const Said classified = good("/classify", R"({"input":"I hate it","model":"vader"})");
  EXPECT_EQ(classified["object"], "classify");
  EXPECT_EQ(classified["data"][0][0]["label"], "negative");
  EXPECT_LT(classified["compound"][0].get<double>(), 0);

  EXPECT_TRUE(good("/ner", R"({"inputs":"w6 w7 w8 w9"})").is_array());
  EXPECT_EQ(good("/ner", R"({"inputs":["w6 w7","w8"]})").size(), 2u);
  const Said analyzed = good("/analyze", R"({"inputs":["w6 w7","w8"]})");
  ASSERT_EQ(analyzed.size(), 2u);
  EXPECT_TRUE(analyzed[0]["labels"].is_array());
  EXPECT_TRUE(analyzed[1]["entities"].is_array());

  // Entities come from the whole of a long text: 100 words of which the model takes 42.
  std::string words;
  for (int i = 0; i < 100; ++i) words += fmt::format("w{} ", 5 + i * 37 % 91);
  const auto last_start = [](const Said& entities) {
    return entities.empty() ? 0 : entities.back()["start"].get<int>();
  };
  const Said whole = good("/ner", Said{{"inputs", words}}.dump());
  const Said cut = good("/ner", Said{{"inputs", words}, {"truncate", true}}.dump());
  const auto forty_two_words = static_cast<int>(words.find(fmt::format("w{} ", 5 + 42 * 37 % 91)));
  EXPECT_GT(last_start(whole), forty_two_words) << whole;
  EXPECT_LT(last_start(cut), forty_two_words) << cut;
  EXPECT_EQ(good("/analyze", Said{{"inputs", words}}.dump())["entities"], whole);
  for (const char* strategy : {"simple", "first", "average", "max"})
    EXPECT_EQ(good("/ner", Said{{"inputs", words}, {"parameters", {{"aggregation_strategy", strategy}}}}.dump()), whole)
        << "each word is one token";
  EXPECT_TRUE(good("/ner", Said{{"inputs", words}, {"parameters", {{"stride", 0}}}}.dump()).is_array());
  bad("/ner", R"({"inputs":"w6","parameters":{"stride":-1}})", 422, "Validation", "stride");
  bad("/ner", R"({"inputs":"w6","parameters":{"aggregation_strategy":"all"}})", 422, "Validation", "none, simple");
  const Said alone = good("/ner", Said{{"inputs", words}, {"parameters", {{"aggregation_strategy", "none"}}}}.dump());
  ASSERT_GE(alone.size(), whole.size());
  for (const Said& token : alone) {
    const size_t place = token["index"].get<size_t>();
    EXPECT_EQ(token["word"], fmt::format("w{}", 5 + (place - 1) * 37 % 91)) << token;  // [CLS] is token 0
    EXPECT_FALSE(token.contains("entity_group"));
    EXPECT_NE(token["entity"], "O");
  }

  const Said nested = good("/models/cls", R"({"inputs":"w6 w7","parameters":{"top_k":1}})");
  ASSERT_EQ(nested.size(), 1u);
  EXPECT_EQ(nested[0].size(), 1u);
  EXPECT_EQ(good("/models/org/cls", R"({"inputs":["w6","w7"]})").size(), 2u);
  bad("/models/other", R"({"inputs":"w6"})", 404, "NotFound");
}

TEST_F(ServiceTest, ATaggerCutsTextsWhereThatWasAskedFor) {
  ServerOptions o = tiny();
  o.tags_whole_texts = false;
  start(std::move(o));
  std::string words;
  for (int i = 0; i < 100; ++i) words += fmt::format("w{} ", 5 + i * 37 % 91);
  const Said cut = good("/ner", Said{{"inputs", words}}.dump());
  EXPECT_EQ(cut, good("/ner", Said{{"inputs", words}, {"truncate", true}}.dump()));
  EXPECT_NE(cut, good("/ner", Said{{"inputs", words}, {"long_text", "window-mean"}}.dump()));
}

TEST_F(ServiceTest, SaysHowItIs) {
  start(tiny());
  EXPECT_EQ(get("/ping").status, 200);
  EXPECT_EQ(Said::parse(get("/health/live").body)["status"], "ok");
  EXPECT_EQ(Said::parse(get("/health/ready").body)["status"], "ok");
  const Said health = Said::parse(get("/health").body);
  EXPECT_EQ(health["status"], "ok");
  EXPECT_EQ(health["queue"]["tokens"], 0);
  EXPECT_TRUE(health.contains("gpu"));
  const Said info = Said::parse(get("/info").body);
  EXPECT_EQ(info["model_id"], "org/cls");
  EXPECT_EQ(info["max_client_batch_size"], 1024);
  EXPECT_TRUE(info["model_type"]["classifier"]["id2label"].is_object());
  EXPECT_EQ(info["models"].size(), 4u);
  const Said models = Said::parse(get("/v1/models").body);
  EXPECT_EQ(models["data"][1]["task"], "token-classification");
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
        "brim_connections{state=\"busy\"} 1\n"})
    EXPECT_NE(metrics.body.find(line), std::string::npos) << line << metrics.body;
}

TEST_F(ServiceTest, OverloadIsSaidAtOnce) {
  start(held());
  scorer_->set_load({.texts = 100, .tokens = 5000, .tokens_per_second = 1000, .wait_seconds = 5});
  RawAnswer answer = post("/predict", R"({"inputs":"a"})");
  EXPECT_EQ(answer.status, 429);
  EXPECT_EQ(answer.fields["retry-after"], "5");
  const Said said = Said::parse(answer.body);
  EXPECT_EQ(said["error_type"], "Overloaded");
  EXPECT_EQ(said["error"], "Model is overloaded");
  EXPECT_EQ(said["queue_ms"], 5000);
  EXPECT_EQ(said["limit_ms"], 1000);
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
    wait_until([&] {  // the last is counted once its answer is on its way
      return get("/metrics").body.find(fmt::format("brim_rejected_total{{reason=\"{}\"}} 1\n", reason)) !=
             std::string::npos;
    });
}

TEST_F(ServiceTest, ErrorsOfTheScorerAreNamed) {
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
  scorer_->answer_all(Error(ErrorCode::device_lost, "gone"));
  EXPECT_EQ(client_->read().status, 424);
  EXPECT_EQ(get("/health").status, 503);
  EXPECT_EQ(get("/health/ready").status, 503);
  EXPECT_EQ(get("/health/live").status, 200);
  std::atomic<bool> never{false};
  EXPECT_FALSE(server_->run(never)) << "it ends by itself";
}

TEST_F(ServiceTest, WithdrawsWhatAClientLeaves) {
  start(held());
  client_->post("/predict", R"({"inputs":[["a"],["b"]]})");
  scorer_->wait_held(2);
  client_->close();
  wait_until([&] { return scorer_->all_stopped(); });
  scorer_->answer_all(Error(ErrorCode::cancelled, "withdrawn"));
  client_ = std::make_unique<RawClient>(server_->port());
  EXPECT_NE(get("/metrics").body.find("brim_cancelled_total 1\n"), std::string::npos);
}

TEST_F(ServiceTest, ALadderChoosesAndSaysWhy) {
  ServerOptions o = tiny();
  LadderRules rules;
  rules.name = "sentiment";
  rules.rungs = {{"cls", {}}, {"vader", {}}};
  rules.default_rung = "vader";
  rules.sources.push_back({{"reuters", "bloom*"}, "cls", false});
  o.ladders.push_back(std::make_shared<Ladder>(rules));
  start(o);
  const auto asked = [&](const std::string& more) {
    RawAnswer answer = post("/predict", R"({"inputs":"w6")" + more + "}");
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.fields["x-brim-model"] + " " + answer.fields["x-brim-reason"];
  };
  EXPECT_EQ(asked(""), "vader@3 default");
  EXPECT_EQ(asked(R"(,"model":"sentiment","source":"Reuters")"), "cls@12345678 source");
  EXPECT_EQ(asked(R"(,"source":"bloomberg")"), "cls@12345678 source");
  EXPECT_EQ(asked(R"(,"model":"cls")"), "cls@12345678 requested");
  const Said health = Said::parse(get("/health").body);
  EXPECT_EQ(health["ladder"]["sentiment"]["active"], "vader");
  EXPECT_NE(get("/metrics").body.find("brim_ladder_rung{ladder=\"sentiment\"} 1\n"), std::string::npos);
  EXPECT_EQ(Said::parse(get("/v1/models").body)["data"].back()["id"], "sentiment");
  EXPECT_EQ(good("/embed", R"({"inputs":"w6"})").size(), 1u) << "of the model that has vectors";
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
  EXPECT_NE(get("/metrics").body.find("brim_queue_items{queue=\"news\"} 1\n"), std::string::npos);
  server_.reset();  // what was acknowledged is still there
  ServerOptions again = tiny();
  again.state_dir = o.state_dir;
  again.queues = o.queues;
  start(again);
  EXPECT_EQ(post("/queues/news/score_or_queue", R"({"text":"I hate it","item":{"id":2}})").status, 202);
  answer = post("/queues/news/flush_and_apply", "{}");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Said flushed = Said::parse(answer.body);
  ASSERT_EQ(flushed["items"].size(), 2u);
  EXPECT_EQ(flushed["items"][0]["id"], 1);
  EXPECT_EQ(flushed["items"][0]["sentiment_label"], "positive");
  EXPECT_GT(flushed["items"][0]["sentiment_score"].get<double>(), 0);
  EXPECT_LT(flushed["items"][1]["sentiment_score"].get<double>(), 0);
  EXPECT_NE(answer.body.find(R"("z":0,"a":0)"), std::string::npos) << "keys keep their order";
  EXPECT_EQ(post("/queues/news/flush_and_apply", "").status, 200);
  EXPECT_EQ(get("/queues/news").status, 200);
  EXPECT_EQ(get("/queues/news/flushes?after=0").status, 200);
  EXPECT_EQ(get("/queues/other").status, 404);
  EXPECT_EQ(get("/queues/news/flushes/x").status, 404);
  bad("/queues/news/score_or_queue", R"({"texts":1})", 422, "Validation");
  for (const auto& [path, allow] : {std::pair("/queues/news", "GET"),
                                    {"/queues/news/flush_and_apply", "POST"},
                                    {"/queues/news/flushes", "GET"},
                                    {"/jobs/1/output", "GET"}}) {
    answer = del(path);
    EXPECT_EQ(answer.status, 405) << path;
    EXPECT_EQ(answer.fields["allow"], allow) << path;
  }
  EXPECT_EQ(post("/jobs/1", "{}").fields["allow"], "GET, DELETE");
  client_ = std::make_unique<RawClient>(server_->port());  // its body was not read
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

TEST_F(ServiceTest, OneRequestTooManyIsRefused) {
  ServerOptions o = held();
  o.max_requests = 1;
  start(std::move(o));
  RawClient waiting(server_->port());
  waiting.post("/predict", R"({"inputs":"a"})");
  scorer_->wait_held(1);
  bad("/predict", R"({"inputs":"b"})", 429, "Overloaded");
  EXPECT_EQ(get("/health").status, 200);  // has no texts
  scorer_->answer_all();
  EXPECT_EQ(waiting.read().status, 200);
  RawClient reader(server_->port());  // has no texts either, however long it stays
  reader.send("GET /events HTTP/1.1\r\nHost: a\r\n");
  waiting.post("/predict", R"({"inputs":"a"})");
  scorer_->wait_held(1);
  scorer_->answer_all();
  EXPECT_EQ(waiting.read().status, 200);
}

TEST_F(ServiceTest, DrainsWithoutLosingARequest) {
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

TEST_F(ServiceTest, KeysAndHosts) {
  ServerOptions o = held();
  o.keys = ApiKeys::parse(
      "web:score:" + io::sha256_hex("secret") + "\nops:metrics,admin:" + io::sha256_hex("other") + "\n", "keys");
  start(o);
  EXPECT_EQ(get("/ping").status, 200);
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(get("/metrics").status, 200) << "from this machine";
  RawAnswer answer = get("/info");
  EXPECT_EQ(answer.status, 401);
  EXPECT_EQ(answer.fields["www-authenticate"], "Bearer");
  EXPECT_EQ(get("/info", "Authorization: Bearer wrong\r\n").status, 401);
  EXPECT_EQ(get("/info", "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(get("/info", "Authorization: Bearer other\r\n").status, 403);
  EXPECT_EQ(get("/metrics", "Authorization: Bearer secret\r\n").status, 403);
  EXPECT_EQ(get("/nothing").status, 401) << "what is there is nobody's business";
  start(held());
  const auto by_host = [&](const std::string& host, const std::string& path) {
    RawClient client(server_->port());
    client.send("GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
    return client.read().status;
  };
  EXPECT_EQ(by_host("localhost:8080", "/info"), 200);
  EXPECT_EQ(by_host("127.0.0.1", "/info"), 200);
  EXPECT_EQ(by_host("[::1]:80", "/info"), 200);
  EXPECT_EQ(by_host("evil.example", "/info"), 403);
  EXPECT_EQ(by_host("10.0.0.7:80", "/info"), 200);
  EXPECT_EQ(by_host("pod.local", "/health/live"), 200);
  ServerOptions named = held();
  named.allowed_hosts = {"Brim.example"};
  start(named);
  EXPECT_EQ(by_host("brim.example:443", "/info"), 200);
  ServerOptions open = held();
  open.listen = "0.0.0.0:0";
  EXPECT_THROW(Server{open}, Error);
  open.insecure = true;
  Server allowed{open};
}

TEST_F(ServiceTest, PagesOfOtherOriginsAreAnsweredWhereTheyAreNamed) {
  ServerOptions o = held();
  o.keys = ApiKeys::parse("web:score,admin:" + io::sha256_hex("secret") + "\n", "keys");
  const auto preflight = [&](const std::string& origin, const std::string& path = "/predict") {
    client_->send("OPTIONS " + path + " HTTP/1.1\r\nHost: localhost\r\nOrigin: " + origin +
                  "\r\nAccess-Control-Request-Method: POST\r\n\r\n");
    return client_->read();
  };
  const std::string page = "Origin: https://a.example\r\nAuthorization: Bearer secret\r\n";
  start(o);
  EXPECT_EQ(preflight("https://a.example").status, 401) << "nobody is named";
  EXPECT_EQ(get("/info", page).fields.count("access-control-allow-origin"), 0u);
  o.models[0].scorer = std::make_shared<HeldScorer>();
  o.cors_origins = {"https://a.example", "http://b.example:8080"};
  start(o);
  RawAnswer asked = preflight("https://a.example");
  EXPECT_EQ(asked.status, 200) << "without the key, which a browser sends only then";
  EXPECT_EQ(asked.fields["access-control-allow-methods"], "POST");
  EXPECT_NE(asked.fields["access-control-allow-headers"].find("Authorization"), std::string::npos);
  EXPECT_EQ(asked.fields["access-control-allow-origin"], "https://a.example");
  EXPECT_EQ(asked.fields["vary"], "Origin");
  for (const char* other : {"https://c.example", "http://a.example", "https://a.example:444", "null"})
    EXPECT_EQ(preflight(other).fields.count("access-control-allow-origin"), 0u) << other;
  EXPECT_EQ(preflight("https://a.example", "/nothing").status, 401);
  RawAnswer answer = get("/info", page);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.fields["access-control-allow-origin"], "https://a.example");
  answer = get("/info", "Origin: https://a.example\r\n");
  EXPECT_EQ(answer.status, 401) << "keys are needed all the same";
  EXPECT_EQ(answer.fields["access-control-allow-origin"], "https://a.example") << "so that the page reads why";
  EXPECT_EQ(get("/info", "Authorization: Bearer secret\r\n").fields.count("access-control-allow-origin"), 0u)
      << "of this request alone";
  EXPECT_EQ(post("/admin/nothing", "", page).status, 404) << "named pages are no strangers";
  client_->send(
      "OPTIONS /predict HTTP/1.1\r\nHost: localhost\r\nOrigin: https://a.example\r\n"
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: x-stainless-os\r\n\r\n");
  EXPECT_EQ(client_->read().fields["access-control-allow-headers"], "x-stainless-os");

  o = held();
  o.cors_origins = {"*"};
  start(o);
  EXPECT_EQ(preflight("https://c.example").status, 200) << "any page may score";
  EXPECT_EQ(post("/admin/drain", "", "Origin: https://c.example\r\n").status, 403) << "and not administer without keys";
  EXPECT_EQ(get("/trace", "Sec-Fetch-Site: cross-site\r\n").status, 403) << "nor by a picture's address";
}

TEST_F(ServiceTest, LogsWithoutTexts) {
  const auto file = (temp_.path() / "access.log").string();
  ServerOptions o = tiny();
  o.access_log = file;
  start(o);
  good("/predict", R"({"inputs":"w6 w7 w8"})");
  get("/nothing/w6");
  get("/ping");  // by now the answers before it were counted and logged
  server_.reset();
  std::ifstream stream(file);
  std::stringstream all;
  all << stream.rdbuf();
  std::string line;
  ASSERT_TRUE(std::getline(all, line));
  const Said entry = Said::parse(line);
  EXPECT_EQ(entry["route"], "POST /predict");
  EXPECT_EQ(entry["model"], "cls");
  EXPECT_EQ(entry["code"], 200);
  EXPECT_EQ(entry["texts"], 1);
  ASSERT_TRUE(std::getline(all, line));
  EXPECT_EQ(Said::parse(line)["code"], 404);
  EXPECT_EQ(all.str().find("w6"), std::string::npos) << all.str();
}

TEST_F(ServiceTest, ManyClientsAtOnce) {
  start(tiny());
  const auto scorer = open("bert_sequence");
  std::vector<std::thread> threads;
  for (int t = 0; t < 12; ++t)
    threads.emplace_back([&, t] {
      RawClient client(server_->port());
      for (int i = 0; i < 40; ++i) {
        const std::string text = "w" + std::to_string(6 + (t * 40 + i) % 80) + " w7";
        if (i % 10 == 9) {  // leaves in the middle
          RawClient other(server_->port());
          other.post("/predict", R"({"inputs":[[")" + text + R"("],["w8"]]})");
        }
        client.post(i % 3 == 0 ? "/classify" : "/predict", (i % 3 == 0 ? R"({"input":")" : R"({"inputs":")") + text +
                                                               R"(","priority":")" +
                                                               (i % 2 == 0 ? "bulk" : "interactive") + "\"}");
        const RawAnswer answer = client.read();
        ASSERT_EQ(answer.status, 200) << answer.body;
        const Said said = Said::parse(answer.body);
        const Said& labels = i % 3 == 0 ? said["data"][0] : said;
        const Prediction expected = scorer->submit({.text = text}).get();
        ASSERT_NEAR(labels[0]["score"].get<double>(), expected.score, 1e-4);
      }
    });
  for (auto& thread : threads) thread.join();
}

TEST(AuthTest, ReadsKeys) {
  const std::string hash = io::sha256_hex("k");
  const ApiKeys keys = ApiKeys::parse("# who\n\nweb:score,queue:" + hash + "\r\n", "keys");
  const ApiKey* key = keys.find("bearer k");
  ASSERT_NE(key, nullptr);
  EXPECT_EQ(key->name, "web");
  EXPECT_TRUE(key->allows(Scope::queue));
  EXPECT_FALSE(key->allows(Scope::admin));
  EXPECT_EQ(keys.find("Bearer "), nullptr);
  EXPECT_EQ(keys.find("k"), nullptr);
  for (const std::string& wrong : std::initializer_list<std::string>{
           "web:score", "web:all:" + hash, ":score:" + hash, "web:score:12",
           "web:score:" + hash + "\nweb:score:" + hash, "web:score:" + std::string(64, 'g')})
    EXPECT_THROW(ApiKeys::parse(wrong, "keys"), Error) << wrong;
}

TEST(MetricsTest, BucketsAndQuantiles) {
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

TEST(BodyTest, TakesWhatIsJson) {
  drive_fuzz(fuzz_body,
             {R"({"inputs":["a","b"],"truncate":null,"x":{"y":[1,2.5,-3e9,true]}})", R"("\u00e4\ud83d\ude00")",
              "[[[[[[]]]]]]", R"({"a":1,"a":2})"},
             20'000);
}

TEST(RoutesTest, AnyBodyHasAnAnswer) {
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
  drive_fuzz(fuzz_routes, seeds, 1'500);
}

}  // namespace
}  // namespace brim::serve
