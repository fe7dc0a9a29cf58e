// SPDX-License-Identifier: Apache-2.0
// Responses and errors of each API dialect, over real sockets.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/test_files.h"
#include "serve/router.h"
#include "serve/service_fixture.h"

namespace brim::serve {
namespace {

TEST_F(ServiceTest, PredictMatchesTextEmbeddingsInference) {
  start(tiny());
  const auto scorer = open("bert_sequence");
  RawAnswer answer = post("/predict", R"({"inputs":"w6 w7 w8"})", "X-Request-Id: abc\r\n");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json one = Json::parse(answer.body);
  ASSERT_TRUE(one.is_array());
  ASSERT_EQ(one.size(), scorer->labels().size());
  const Prediction expected = scorer->submit({.text = "w6 w7 w8"}).get();
  EXPECT_EQ(one[0]["label"], expected.label);
  EXPECT_NEAR(one[0]["score"].get<double>(), expected.score, 1e-5);
  EXPECT_GE(one[0]["score"].get<double>(), one[1]["score"].get<double>());
  EXPECT_EQ(answer.body.find("{\"score\":"), 1u) << "score is the first key";
  EXPECT_EQ(answer.fields["x-request-id"], "abc");
  EXPECT_EQ(answer.fields["x-brim-model"], "cls@12345678");
  EXPECT_EQ(answer.fields["x-brim-reason"], "default");
  EXPECT_EQ(answer.fields["x-compute-tokens"], "5");
  EXPECT_EQ(answer.fields["x-compute-characters"], "8");
  EXPECT_NE(answer.fields["server-timing"].find("infer;dur="), std::string::npos);
  EXPECT_EQ(good("/predict", R"({"inputs":["w6 w7 w8"]})")[0]["label"], expected.label);
  const Json batch = good("/predict", R"({"inputs":[["w6 w7 w8"],["w9"]]})");
  ASSERT_EQ(batch.size(), 2u);
  EXPECT_EQ(batch[0][0]["label"], expected.label);
  EXPECT_EQ(good("/", R"({"inputs":"w6 w7 w8"})")[0]["label"], expected.label);

  double sum = 0;
  const Json raw = good("/predict", R"({"inputs":"w6 w7 w8","raw_scores":true})");
  for (const Json& label : raw) sum += std::exp(label["score"].get<double>());
  EXPECT_NEAR(std::exp(raw[0]["score"].get<double>()) / sum, expected.score, 1e-4);
  EXPECT_EQ(good("/predict", R"({"inputs":"w6","top_k":1})").size(), 1u);
  EXPECT_EQ(post("/predict?model=vader", R"({"inputs":"I love it"})").fields["x-brim-model"], "vader@3");
  EXPECT_EQ(good("/predict", R"({"inputs":"I love it","model":"vader"})")[0]["label"], "positive");
}

TEST_F(ServiceTest, ScoresAndRanksPairs) {
  ServerOptions o = tiny();
  o.models.push_back({"rank", "rank", "4", open("bert_rerank")});
  o.models.push_back({"nli", "nli", "5", open("bert_pair")});
  start(o);
  const auto rank = o.models[4].scorer, nli = o.models[5].scorer;
  const Prediction expected = nli->submit({.text = "w6 w7", .pair = "w8"}).get();
  const Json one = good("/predict", R"({"inputs":["w6 w7","w8"],"model":"nli"})");
  EXPECT_EQ(one[0]["label"], expected.label);
  EXPECT_NEAR(one[0]["score"].get<double>(), expected.score, 1e-5);
  const Json batch = good("/predict", R"({"inputs":[["w6 w7","w8"],["w9"]],"model":"nli"})");
  ASSERT_EQ(batch.size(), 2u);
  EXPECT_EQ(batch[0], one);

  const std::vector<std::string> texts = {"w20 w21", "w30", "w40 w41 w42"};
  const std::string body = R"({"query":"w6 w7","texts":["w20 w21","w30","w40 w41 w42"])";
  const Json raw = good("/rerank", body + R"(,"raw_scores":true,"return_text":true})");
  ASSERT_EQ(raw.size(), 3u);
  double last = INFINITY;
  for (const Json& item : raw) {
    const std::string& text = texts[item["index"].get<size_t>()];
    const Prediction p = rank->submit({.text = "w6 w7", .raw_scores = true, .pair = text}).get();
    EXPECT_EQ(item["text"], text);
    EXPECT_NEAR(item["score"].get<double>(), p.scores[0], 1e-5);
    EXPECT_LE(item["score"].get<double>(), last);
    last = item["score"].get<double>();
  }
  const Json scores = good("/rerank", body + "}");
  EXPECT_FALSE(scores[0].contains("text"));
  EXPECT_EQ(scores[0]["index"], raw[0]["index"]);
  EXPECT_NEAR(scores[0]["score"].get<double>(), 1 / (1 + std::exp(-raw[0]["score"].get<double>())), 1e-5);
  bad("/rerank", R"({"query":"a","texts":[]})", 400, "Empty", "`texts`");
  bad("/rerank", R"({"query":["a"],"texts":["b"]})", 422, "Validation", "`query`");
  bad("/rerank", R"({"texts":["b"]})", 422, "Validation", "`query`");
  bad("/rerank", R"({"query":"a","texts":["b"],"model":"nli"})", 424, "Backend", "re-ranker");
  client_->get("/info");
  EXPECT_NE(client_->read().body.find("\"reranker\""), std::string::npos);
  // The query counts for every text: a body of a megabyte could mean a gigabyte of input.
  const std::string query(1 << 20, 'w');
  bad("/rerank", Json{{"query", query}, {"texts", std::vector<std::string>(1000, "w6")}}.dump(), 413, "Validation",
      "as pairs, at most 16777216");
  EXPECT_EQ(good("/rerank", Json{{"query", query}, {"texts", {"w6", "w7"}}}.dump()).size(), 2u);
}

TEST_F(ServiceTest, ReturnsDocumentedErrors) {
  ServerOptions o = tiny();
  o.max_client_batch_size = 3;
  start(o);
  bad("/predict", R"({"inputs":["a","b"],"model":"vader"})", 424, "Backend", "do not support pairs");
  bad("/predict", R"({"inputs":[["a",""]]})", 400, "Empty");
  bad("/predict", R"({"inputs":[["a","b","c"]]})", 422, "Validation");
  bad("/predict", R"({"inputs":["a","b","c"]})", 422, "Validation", R"([[\"a\"],[\"b\"]])");
  bad("/predict", R"({"inputs":""})", 400, "Empty", "`inputs` cannot be empty");
  bad("/predict", R"({"inputs":[]})", 400, "Empty");
  bad("/predict", R"({"inputs":5})", 422, "Validation");
  bad("/predict", R"({})", 422, "Validation", "inputs");
  bad("/predict", R"([])", 422, "Validation");
  bad("/predict", "{\"inputs\":\n  x}", 400, "Syntax", "2:3");
  bad("/predict", R"({"inputs":"a","inputs":"b"})", 422, "Validation", "duplicate key");
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
  bad("/embed", R"({"inputs":[1,960],"model":"emb"})", 422, "Validation", "token id 960 is out of range");
  bad("/embed", R"({"inputs":[[1],[]],"model":"emb"})", 400, "Empty");
  bad("/predict", R"({"inputs":[1,2]})", 422, "Validation");
  bad("/similarity",
      R"({"inputs":{"source_sentence":"a","sentences":["b"]},"parameters":{"truncate":1},"model":"emb"})", 422,
      "Validation", "truncate");
  bad("/rerank", R"({"query":"a","texts":["b"]})", 424, "Backend", "re-ranker");
  const std::string large = Json{{"inputs", std::string((1 << 20) + 1, 'a')}}.dump();
  bad("/predict", large, 422, "Validation", "at most 1048576 allowed");
  bad("/tokenize", large, 422, "Validation", "at most 1048576 allowed");
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
  client_ = std::make_unique<RawClient>(server_->port());  // the body was not read
  answer = get("/predict");
  EXPECT_EQ(answer.status, 405);
  EXPECT_EQ(answer.fields["allow"], "POST");
  client_->send("POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}");
  answer = client_->read();
  EXPECT_EQ(answer.status, 415);
  client_ = std::make_unique<RawClient>(server_->port());
  EXPECT_EQ(post("/predict", R"({"inputs":"a"})", "Content-Encoding: gzip\r\n").status, 415);
}

TEST_F(ServiceTest, BadTextDoesNotAffectOthers) {
  start(tiny());
  std::string long_text;
  for (int i = 0; i < 600; ++i) long_text += "w6 ";
  RawAnswer answer =
      post("/classify", R"({"on_error":"null","truncate":false,"input":["w6","",")" + long_text + R"(","w7"]})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json json = Json::parse(answer.body);
  EXPECT_TRUE(json["data"][0].is_array());
  EXPECT_TRUE(json["data"][1].is_null());
  EXPECT_TRUE(json["data"][2].is_null());
  EXPECT_TRUE(json["data"][3].is_array());
  EXPECT_EQ(json["errors"][0]["index"], 1);
  EXPECT_EQ(json["errors"][1]["index"], 2);
  EXPECT_EQ(answer.fields["x-brim-errors"], "2");
  EXPECT_EQ(good("/predict", R"({"on_error":"null","inputs":[[""]]})"), Json::parse("[null]"));
  const Json vectors = good("/models/emb", R"({"on_error":"null","inputs":["","w6"]})");
  EXPECT_TRUE(vectors[0].is_null() && vectors[1].size() > 1) << vectors.dump();
}

TEST_F(ServiceTest, EmbedsAndTokenizes) {
  start(tiny());
  const Json embedded = good("/embed", R"({"inputs":["w6 w7","w8"],"model":"emb"})");
  ASSERT_EQ(embedded.size(), 2u);
  double squares = 0;
  for (const Json& v : embedded[0]) squares += v.get<double>() * v.get<double>();
  EXPECT_NEAR(squares, 1, 1e-4);
  EXPECT_EQ(good("/embed", R"({"inputs":"w6","model":"emb","dimensions":4})")[0].size(), 4u);
  EXPECT_EQ(good("/v1/embeddings", R"({"input":"w6","model":"emb","dimensions":0})")["data"][0]["embedding"].size(),
            48u);
  const Json cosines =
      good("/similarity", R"({"inputs":{"source_sentence":"w6 w7","sentences":["w6 w7","w9 w10 w11"]},"model":"emb"})");
  EXPECT_NEAR(cosines[0].get<double>(), 1, 1e-4);
  EXPECT_LT(cosines[1].get<double>(), 0.9999);

  const Json openai = good("/v1/embeddings", R"({"input":["w6 w7","w8"],"model":"emb"})");
  EXPECT_EQ(openai["object"], "list");
  EXPECT_EQ(openai["data"][1]["index"], 1);
  EXPECT_EQ(openai["data"][0]["embedding"], embedded[0]);
  EXPECT_EQ(openai["usage"]["prompt_tokens"], 7);
  const Json base64 = good("/v1/embeddings", R"({"input":"w8","model":"emb","encoding_format":"base64"})");
  EXPECT_EQ(base64["data"][0]["embedding"].get<std::string>().size(), (embedded[1].size() * 4 + 2) / 3 * 4);
  RawAnswer wrong = post("/v1/embeddings", R"({"input":"w8","model":"none"})");
  EXPECT_EQ(wrong.status, 404);
  EXPECT_EQ(Json::parse(wrong.body)["error"]["code"], 404);
  EXPECT_EQ(Json::parse(wrong.body)["code"], 404);

  const Json tokens = good("/tokenize", R"({"inputs":"w6 w7"})");
  Json ids = Json::array();
  for (const Json& token : tokens[0]) ids.push_back(token["id"]);
  EXPECT_EQ(good("/embed", Json{{"inputs", ids}, {"model", "emb"}}.dump()), Json::array({embedded[0]}));
  EXPECT_EQ(good("/embed", Json{{"inputs", {ids, "w8"}}, {"model", "emb"}}.dump()), embedded);
  EXPECT_EQ(good("/v1/embeddings", Json{{"input", {ids, ids}}, {"model", "emb"}}.dump())["data"][1]["embedding"],
            embedded[0]);
  ASSERT_EQ(tokens[0].size(), 4u);
  EXPECT_EQ(tokens[0][0]["special"], true);
  EXPECT_TRUE(tokens[0][0]["start"].is_null());
  EXPECT_EQ(tokens[0][2]["text"], "w7");
  EXPECT_EQ(tokens[0][2]["start"], 3);
  EXPECT_EQ(tokens[0][2]["stop"], 5);
  EXPECT_EQ(good("/tokenize", R"({"inputs":["w6","w7"],"add_special_tokens":false})")[1].size(), 1u);
}

TEST_F(ServiceTest, ClassifiesAndTags) {
  start(tiny());
  const Json classified = good("/classify", R"({"input":"I hate it","model":"vader"})");
  EXPECT_EQ(classified["object"], "classify");
  EXPECT_EQ(classified["data"][0][0]["label"], "negative");
  EXPECT_LT(classified["compound"][0].get<double>(), 0);

  EXPECT_TRUE(good("/ner", R"({"inputs":"w6 w7 w8 w9"})").is_array());
  EXPECT_EQ(good("/ner", R"({"inputs":["w6 w7","w8"]})").size(), 2u);
  const Json analyzed = good("/analyze", R"({"inputs":["w6 w7","w8"]})");
  ASSERT_EQ(analyzed.size(), 2u);
  EXPECT_TRUE(analyzed[0]["labels"].is_array());
  EXPECT_TRUE(analyzed[1]["entities"].is_array());

  // Entities cover all of a long text: 100 words, of which the model accepts 42.
  std::string words;
  for (int i = 0; i < 100; ++i) words += fmt::format("w{} ", 5 + i * 37 % 91);
  const auto last_start = [](const Json& entities) {
    return entities.empty() ? 0 : entities.back()["start"].get<int>();
  };
  const Json whole = good("/ner", Json{{"inputs", words}}.dump());
  const Json cut = good("/ner", Json{{"inputs", words}, {"truncate", true}}.dump());
  const auto forty_two_words = static_cast<int>(words.find(fmt::format("w{} ", 5 + 42 * 37 % 91)));
  EXPECT_GT(last_start(whole), forty_two_words) << whole;
  EXPECT_LT(last_start(cut), forty_two_words) << cut;
  EXPECT_EQ(good("/analyze", Json{{"inputs", words}}.dump())["entities"], whole);
  for (const char* strategy : {"simple", "first", "average", "max"})
    EXPECT_EQ(good("/ner", Json{{"inputs", words}, {"parameters", {{"aggregation_strategy", strategy}}}}.dump()), whole)
        << "each word is one token";
  EXPECT_TRUE(good("/ner", Json{{"inputs", words}, {"parameters", {{"stride", 0}}}}.dump()).is_array());
  bad("/ner", R"({"inputs":"w6","parameters":{"stride":-1}})", 422, "Validation", "stride");
  bad("/classify", R"({"input":"w6","stride":1.5})", 422, "Validation", "stride");
  EXPECT_EQ(good("/ner", Json{{"inputs", words}, {"stride", 0}}.dump()),
            good("/ner", Json{{"inputs", words}, {"parameters", {{"stride", 0}}}}.dump()));
  bad("/ner", R"({"inputs":"w6","parameters":{"aggregation_strategy":"all"}})", 422, "Validation", "none, simple");
  const Json alone = good("/ner", Json{{"inputs", words}, {"parameters", {{"aggregation_strategy", "none"}}}}.dump());
  ASSERT_GE(alone.size(), whole.size());
  for (const Json& token : alone) {
    const size_t place = token["index"].get<size_t>();
    EXPECT_EQ(token["word"], fmt::format("w{}", 5 + (place - 1) * 37 % 91)) << token;  // [CLS] is token 0
    EXPECT_FALSE(token.contains("entity_group"));
    EXPECT_NE(token["entity"], "O");
  }
}

TEST_F(ServiceTest, SupportsModelRoutesAndScoreFunctions) {
  start(tiny());
  const Json nested = good("/models/cls", R"({"inputs":"w6 w7","parameters":{"top_k":1}})");
  ASSERT_EQ(nested.size(), 1u);
  EXPECT_EQ(nested[0].size(), 1u);
  EXPECT_EQ(good("/models/org/cls", R"({"inputs":["w6","w7"]})").size(), 2u);
  EXPECT_EQ(good("/models/org%2Fcl%73", R"({"inputs":["w6","w7"]})").size(), 2u);
  EXPECT_EQ(post("/admin/models/cl%73/park", "").status, 200);

  // Both functions of the same raw scores.
  const auto scores_by = [&](const char* function) {
    const Json json =
        good("/models/cls", fmt::format(R"({{"inputs":"w6 w7","parameters":{{"function_to_apply":{}}}}})", function));
    std::map<std::string, double> by_label;
    for (const Json& label : json[0]) by_label[label["label"]] = label["score"];
    return by_label;
  };
  const auto raw = scores_by("\"none\""), own = scores_by("null"), soft = scores_by("\"softmax\""),
             each = scores_by("\"sigmoid\"");
  double sum = 0;
  for (const auto& [label, score] : raw) sum += std::exp(score);
  for (const auto& [label, score] : raw) {
    EXPECT_NEAR(soft.at(label), std::exp(score) / sum, 1e-6);
    EXPECT_NEAR(own.at(label), soft.at(label), 1e-6);
    EXPECT_NEAR(each.at(label), 1 / (1 + std::exp(-score)), 1e-6);
  }
  bad("/models/cls", R"({"inputs":"w6","parameters":{"function_to_apply":"softplus"}})", 422, "Validation", "softmax");
  bad("/models/other", R"({"inputs":"w6"})", 404, "NotFound");
}

TEST_F(ServiceTest, TaggerTruncatesIfRequested) {
  ServerOptions o = tiny();
  o.tags_whole_texts = false;
  start(std::move(o));
  std::string words;
  for (int i = 0; i < 100; ++i) words += fmt::format("w{} ", 5 + i * 37 % 91);
  const Json cut = good("/ner", Json{{"inputs", words}}.dump());
  EXPECT_EQ(cut, good("/ner", Json{{"inputs", words}, {"truncate", true}}.dump()));
  EXPECT_NE(cut, good("/ner", Json{{"inputs", words}, {"long_text", "window-mean"}}.dump()));
}

}  // namespace
}  // namespace brim::serve
