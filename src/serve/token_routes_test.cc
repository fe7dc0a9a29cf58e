// SPDX-License-Identifier: Apache-2.0
// Token ids and vectors, unloading and reloading idle models, traces and the OpenAPI description, over real sockets.
#include <limits>
#include <thread>

#include "base/mapped_file.h"
#include "hub/edit_weight.h"
#include "serve/router.h"
#include "serve/service_fixture.h"

namespace brim::serve {
namespace {

class TokenRoutesTest : public ServiceTest {
 protected:
  ServerOptions embedders() {
    ServerOptions o = tiny();
    o.models.push_back({"all", "all", "4", open("bert_sequence", Pooling::none), Pooling::none});
    return o;
  }
  // A classifier and a tagger that share an encoder, and a separate tagger. `damaged` get a NaN in this tensor.
  ServerOptions both_heads(const std::vector<std::string>& damaged = {}, const std::string& tensor = "",
                           size_t index = 0) {
    ServerOptions o = loopback_options();
    ScorerOptions s = scorer_options(temp_.path() / "cls");
    model::put_golden_model(s.model, "bert_sequence");
    s.tagger = (temp_.path() / "tags").string();
    model::put_tagger_twin(s.tagger, "bert_sequence");
    for (const std::string& model : damaged)
      hub::edit_weight(temp_.path() / model, tensor, index, std::numeric_limits<float>::quiet_NaN());
    ServedModel both{"cls", "cls", "1", Scorer::open(s)};
    both.tagger = "tags";
    both.tagger_revision = "2";
    s.model = std::exchange(s.tagger, "");
    o.models = {both, {"ner", "ner", "3", open("bert_token")}, {"tags", "tags", "2", Scorer::open(s)}};
    return o;
  }
  std::string state(const std::string& model) {
    const Json models = Json::parse(get("/v1/models").body);
    for (const Json& m : models["data"])
      if (m["id"] == model) return m["state"];
    return "";
  }
};

TEST_F(TokenRoutesTest, BothHeadsOfOneEncoderUseOnePass) {
  start(both_heads());
  std::string words;
  for (int i = 0; i < 100; ++i) words += fmt::format("w{} ", 5 + i * 37 % 91);
  for (const std::string& text : {std::string("w6 w7 w8"), words}) {
    const RawAnswer one = post("/analyze", Json{{"inputs", text}}.dump());
    EXPECT_EQ(one.fields.at("x-brim-passes"), "1");
    const Json json = Json::parse(one.body), labels = good("/predict", Json{{"inputs", text}}.dump());
    EXPECT_EQ(json["labels"][0]["label"], labels[0]["label"]);
    EXPECT_NEAR(json["labels"][0]["score"].get<double>(), labels[0]["score"].get<double>(), 1e-5);
    const Json entities = good("/ner", Json{{"inputs", text}, {"model", "tags"}}.dump());
    ASSERT_EQ(json["entities"].size(), entities.size()) << one.body;
    for (size_t i = 0; i < entities.size(); ++i) EXPECT_EQ(json["entities"][i]["word"], entities[i]["word"]);
    for (const char* mode : {"window-mean", "window-max"})  // labels from all windows need the classifier's own pass
      EXPECT_EQ(post("/analyze", Json{{"inputs", text}, {"long_text", mode}}.dump()).fields.at("x-brim-passes"), "2");
  }
  const RawAnswer several =
      post("/analyze", R"({"inputs":["w6 w7","w8"],"parameters":{"aggregation_strategy":"none"}})");
  EXPECT_EQ(several.fields.at("x-brim-passes"), "1");
  EXPECT_EQ(Json::parse(several.body).size(), 2u);
  bad("/analyze", Json{{"inputs", words}, {"truncate", false}}.dump(), 422, "Validation", "44");
  ServerOptions merging = both_heads();
  merging.merges_windows = true;  // default handling of long texts
  start(std::move(merging));
  const std::string body = Json{{"inputs", words}}.dump();
  const RawAnswer merged = post("/analyze", body);
  EXPECT_EQ(merged.fields.at("x-brim-passes"), "2");
  EXPECT_EQ(post("/analyze", Json{{"inputs", words}, {"long_text", "truncate"}}.dump()).fields.at("x-brim-passes"),
            "1");
}

TEST_F(TokenRoutesTest, AnalyzeFailsIfAnyHeadIsNotFinite) {
  const char *text = R"({"inputs":"w7 w8"})", *other = R"({"inputs":"w5 w6"})";
  const auto fails = [&](const char* body) {
    bad("/analyze", body, 424, "Backend", "the model's output is not finite");
  };
  start(both_heads({"cls", "tags"}, "bert.embeddings.word_embeddings.weight", 7 * 48));
  fails(text);
  const RawAnswer sound = post("/analyze", other);
  EXPECT_EQ(sound.status, 200) << sound.body;
  EXPECT_EQ(sound.fields.at("x-brim-passes"), "1");
  EXPECT_EQ(Json::parse(get("/health").body)["status"], "degraded");
  for (const char* model : {"cls", "tags"}) {
    SCOPED_TRACE(model);
    server_.reset();
    start(both_heads({model}, "classifier.bias", 1));
    fails(other);
    EXPECT_EQ(post("/predict", other).status, std::string(model) == "cls" ? 424 : 200);
  }
}

TEST_F(TokenRoutesTest, DoesNotUseReplacedHead) {
  ServerOptions o = tiny();
  o.models[0].tagger = "ner";
  o.models[0].tagger_revision = "0";  // differs from the tagger's current revision
  start(std::move(o));
  EXPECT_EQ(post("/analyze", R"({"inputs":"w6"})").fields.at("x-brim-passes"), "2");
}

TEST_F(TokenRoutesTest, HeadsUseOnePassAfterSharingAgain) {
  ServerOptions o = both_heads();
  std::atomic<bool> share{true};
  o.tagger_of = [&](const std::string& name) { return name == "cls" && share ? "tags" : ""; };
  o.revision_of = [](const std::string& name) { return name == "ner" ? "3" : name == "tags" ? "2" : "1"; };
  o.reopen = [&, dir = temp_.path()](const std::string& name, const Scorer* beside, bool) {
    EXPECT_EQ(name, "cls") << "no other model changed";
    ScorerOptions s = scorer_options(dir / name);
    if (share) s.tagger = (dir / "tags").string();
    ServedModel model{name, name, "1", open_beside(*beside, s)};
    if (share) model.tagger = "tags";
    if (share) model.tagger_revision = "2";
    return model;
  };
  start(std::move(o));
  for (const bool now : {true, false, true}) {
    share = now;
    EXPECT_EQ(post("/admin/reload", "").status, 200);
    EXPECT_EQ(post("/analyze", R"({"inputs":"w6 w7"})").fields.at("x-brim-passes"), now ? "1" : "2");
  }
}

TEST_F(TokenRoutesTest, DecodesIds) {
  start(tiny());
  const Json tokens = good("/tokenize", R"({"inputs":"w6 w7"})");
  const Json many =
      good("/tokenize", Json{{"inputs", std::vector<std::string>(1000, "w6 w7" + std::string(40, ' '))}}.dump());
  ASSERT_EQ(many.size(), 1000u) << "by a helper";
  EXPECT_EQ(many[999], tokens[0]);
  bad("/tokenize", Json{{"inputs", std::vector<std::string>(3, std::string(500'000, '!'))}}.dump(), 422, "Validation");
  Json ids = Json::array();
  for (const Json& token : tokens[0]) ids.push_back(token["id"]);
  const Json one = good("/decode", Json{{"ids", ids}}.dump());
  EXPECT_EQ(one.size(), 1u);
  const Json two = good("/decode", Json{{"ids", {ids, ids}}, {"skip_special_tokens", false}}.dump());
  ASSERT_EQ(two.size(), 2u);
  EXPECT_NE(two[0], one[0]) << "with special tokens";
  EXPECT_NE(two[0].get<std::string>().find("w7"), std::string::npos);
  bad("/decode", R"({"ids":[]})", 400, "Empty");
  bad("/decode", R"({"ids":["a"]})", 422, "Validation", "`ids`");
  bad("/decode", R"({"ids":[[1],2]})", 422, "Validation", "`ids`");
  bad("/decode", R"({"ids":[-1]})", 422, "Validation");
  bad("/decode", R"({"ids":[1],"skip_special_tokens":1})", 422, "Validation");
  bad("/decode", R"({"ids":[1],"model":"vader"})", 424, "Backend");
}

TEST_F(TokenRoutesTest, TokenizeUsesLoadedModel) {
  start(tiny());
  const Json tokens = good("/tokenize", R"({"inputs":"w6 w7"})");
  ASSERT_EQ(post("/admin/models/cls/unload", "").status, 200);
  EXPECT_EQ(good("/tokenize", R"({"inputs":"w6 w7"})"), tokens) << "uses the next model";
  bad("/tokenize", R"({"inputs":"w6 w7","model":"cls"})", 503, "Unhealthy");
}

TEST_F(TokenRoutesTest, EmbedsEveryToken) {
  start(embedders());
  const Json all = good("/embed_all", R"({"inputs":["w6 w7","w8"],"model":"all"})");
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].size(), 4u) << "special tokens too";
  EXPECT_EQ(all[1].size(), 3u);
  const Json mean = good("/embed", R"({"inputs":"w8","model":"all","normalize":false})"),
             other = good("/embed", R"({"inputs":"w8","model":"emb","normalize":false})");
  ASSERT_EQ(mean[0].size(), other[0].size());
  for (size_t d = 0; d < mean[0].size(); ++d) EXPECT_NEAR(mean[0][d].get<double>(), other[0][d].get<double>(), 1e-5);
  bad("/embed_all", R"({"inputs":"w8","model":"emb"})", 424, "Backend", "pooling=none");
  bad("/embed_all", R"({"inputs":"w8","model":"cls"})", 424, "Backend");
  bad("/embed_all", R"({"inputs":"","model":"all"})", 400, "Empty");
  EXPECT_EQ(Json::parse(get("/info").body)["models"][4]["model_type"]["embedding"]["pooling"], "none");
}

TEST_F(TokenRoutesTest, UnloadsAndReloadsIdleModels) {
  ServerOptions o = tiny();
  o.models[0].keep_alive_seconds = 0;
  start(std::move(o));
  const Json before = good("/predict", R"({"inputs":"w6 w7"})");
  wait_until([&] { return state("cls") != "resident"; });
  EXPECT_EQ(state("cls"), "disk") << "on a CPU";
  EXPECT_EQ(state("ner"), "resident") << "stays loaded";
  EXPECT_EQ(Json::parse(get("/health").body)["status"], "ok");
  EXPECT_EQ(good("/predict", R"({"inputs":"w6 w7"})"), before);

  EXPECT_EQ(Json::parse(post("/admin/models/ner/park", "").body)["state"], "disk");
  EXPECT_NE(get("/metrics").body.find("brim_model_state{model=\"ner\",state=\"disk\"} 1"), std::string::npos);
  EXPECT_TRUE(good("/ner", R"({"inputs":"w6"})").is_array());
  EXPECT_EQ(state("ner"), "resident");
  EXPECT_EQ(Json::parse(post("/admin/models/vader/park", "").body)["state"], "resident") << "VADER uses no memory";
}

TEST_F(TokenRoutesTest, ReloadedModelSharesQueue) {
  ServerOptions o = tiny();
  std::atomic<const Scorer*> beside{nullptr};
  const auto dir = (temp_.path() / "bert_sequence").string();
  o.reopen = [&beside, dir](const std::string& name, const Scorer* other, bool) {
    beside = other;
    return ServedModel{name, dir, "again", open_beside(*other, scorer_options(dir))};
  };
  const Scorer* old = o.models[0].scorer.get();
  const Scorer* ner = o.models[1].scorer.get();
  start(std::move(o));
  const Json before = good("/predict", R"({"inputs":"w6"})");
  EXPECT_EQ(post("/admin/models/cls/reload", "").status, 200);
  EXPECT_EQ(beside, old) << "queue of the replaced model";
  EXPECT_EQ(good("/predict", R"({"inputs":"w6"})"), before);
  EXPECT_EQ(post("/admin/models/cls/unload", "").status, 200);
  EXPECT_EQ(post("/admin/models/cls/load", "").status, 200);
  EXPECT_EQ(beside, ner) << "or of another loaded model";
  EXPECT_EQ(good("/predict", R"({"inputs":"w6"})"), before);
}

TEST_F(TokenRoutesTest, OpenApiDescribesAllRoutes) {
  start(held());
  const Json document = Json::parse(get("/openapi.json").body);
  EXPECT_EQ(document["info"]["version"], version());
  std::vector<std::pair<std::string, std::string>> described;
  for (const auto& [path, methods] : document["paths"].items())
    for (const auto& [method, operation] : methods.items()) {
      std::string upper = method;
      for (char& c : upper) c = static_cast<char>(std::toupper(c));
      described.emplace_back(upper, path);
      EXPECT_TRUE(operation["responses"].is_object()) << path;
    }
  const auto matches = [](const std::pair<std::string, std::string>& route, const auto& one) {  // * matches any suffix
    const bool begins = route.second.ends_with('*');
    return route.first == one.first && (begins ? one.second.starts_with(route.second.substr(0, route.second.size() - 1))
                                               : one.second == route.second);
  };
  const auto routes = Router::route_names();
  for (const auto& route : routes)
    EXPECT_TRUE(std::any_of(described.begin(), described.end(), [&](const auto& one) { return matches(route, one); }))
        << route.first << " " << route.second << " is not described";
  for (const auto& one : described)
    EXPECT_TRUE(std::any_of(routes.begin(), routes.end(), [&](const auto& route) { return matches(route, one); }))
        << one.first << " " << one.second << " is missing";
}

TEST_F(TokenRoutesTest, TraceRecordsConcurrentWork) {
  start(tiny());
  client_->get("/trace?seconds=0.3");
  RawClient other(server_->port());
  for (int i = 0; i < 40; ++i) {
    other.post("/predict", R"({"inputs":"w6 w7"})");
    ASSERT_EQ(other.read().status, 200);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const RawAnswer answer = client_->read();
  ASSERT_EQ(answer.status, 200);
  const Json trace = Json::parse(answer.body);
  EXPECT_TRUE(std::any_of(trace["traceEvents"].begin(), trace["traceEvents"].end(),
                          [](const Json& event) { return event["name"] == "compute"; }));
  for (const char* seconds : {"0", "-1", "31", "x", "1x", "nan"})
    EXPECT_EQ(get(std::string("/trace?seconds=") + seconds).status, 422) << seconds;
  client_->get("/trace?seconds=30");
  other.post("/admin/reload", "");
  EXPECT_EQ(other.read().status, 200) << "does not wait for the trace";
  std::thread draining([this] { server_->drain(); });
  EXPECT_EQ(client_->read().status, 200) << "a drain ends it";
  draining.join();
}

// All metrics used by the Grafana dashboard in docs exist.
TEST_F(TokenRoutesTest, GrafanaMetricsExist) {
  ServerOptions o = tiny();
  LadderRules ladder;
  ladder.name = "ladder";
  ladder.rungs = {{"vader", std::nullopt}};
  o.ladders.push_back(std::make_shared<Ladder>(ladder));
  o.state_dir = (temp_.path() / "state").string();
  o.queues.emplace_back();
  o.queues[0].name = "news";
  o.queues[0].model = "vader";
  start(std::move(o));
  good("/predict", R"({"inputs":"w6"})");
  std::string there = get("/metrics").body;
  // GPU metrics exist only with a GPU.
  for (const char* source : {"gpu_readings.cc", "metrics_text.cc"})
    there += read_file(std::filesystem::path(BRIM_SOURCE_DIR) / "src/serve" / source);
  const Json board = Json::parse(read_file(std::filesystem::path(BRIM_SOURCE_DIR) / "docs/grafana.json"));
  size_t count = 0;
  for (const Json& panel : board["panels"])
    for (const Json& target : panel["targets"]) {
      const std::string expression = target["expr"];
      for (size_t at = 0; (at = expression.find("brim_", at)) != std::string::npos; ++count) {
        const size_t end = std::min(expression.find_first_not_of("abcdefghijklmnopqrstuvwxyz_", at), expression.size());
        const std::string name = expression.substr(at, end - at);
        EXPECT_TRUE(there.find(name + "{") != std::string::npos || there.find(name + " ") != std::string::npos ||
                    there.find('"' + name + '"') != std::string::npos)
            << name << " of " << panel["title"];
        at = end;
      }
    }
  EXPECT_GT(count, 20u);
}

}  // namespace
}  // namespace brim::serve
