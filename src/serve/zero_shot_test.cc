// SPDX-License-Identifier: Apache-2.0
// Zero-shot classification over HTTP: answers equal transformers' pipeline, limits, metrics and access log.
#include "serve/zero_shot.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "serve/service_fixture.h"

namespace brim::serve {
namespace {

std::string zero_shot_body(const Json& inputs, const Json& parameters) {
  return Json({{"inputs", inputs}, {"parameters", parameters}}).dump();
}

class ServeZeroShot : public ServiceTest {
 protected:
  void SetUp() override {
    ServerOptions o = tiny();
    const Json golden = Json::parse(std::ifstream(std::string(BRIM_SOURCE_DIR) + "/tests/data/zero_shot.json"));
    texts_ = golden["texts"].get<std::vector<std::string>>();
    case_ = golden["cases"][0];
    model::put_golden_model(temp_.path() / "bert_pair", "bert_pair");
    Json config = Json::parse(get_file(temp_.path() / "bert_pair/config.json"));
    for (size_t i = 0; i < 3; ++i) config["id2label"][std::to_string(i)] = case_["model_labels"][i];
    config.erase("label2id");
    put_file(temp_.path() / "bert_pair/config.json", config.dump());
    o.models.push_back({"nli", "nli", "5", open("bert_pair")});
    ScorerOptions gliner;
    gliner.model = std::string(BRIM_SOURCE_DIR) + "/tests/data/gliner/span_rnn";
    gliner.device = "cpu";
    gliner.precision = "fp32";
    gliner.threads = 1;
    gliner.memory_limit = "512MiB";
    o.models.push_back({"gliner", "gliner", "6", Scorer::open(gliner)});
    o.access_log = (temp_.path() / "access.log").string();
    o.state_dir = (temp_.path() / "state").string();
    o.queues.push_back({.name = "news", .model = "nli", .flush_size = 2});
    configure(o);
    start(std::move(o));
  }
  virtual void configure(ServerOptions&) {}
  // The output of a job, one object per row.
  std::vector<Json> job_rows(const std::string& query, const std::string& file) {
    const RawAnswer made = post("/jobs?" + query, file);
    EXPECT_EQ(made.status, 201) << made.body;
    const std::string id = Json::parse(made.body)["id"];
    Json job;
    wait_until([&] {
      job = Json::parse(get("/jobs/" + id).body);
      return job["status"] == "completed" || job["status"] == "failed";
    });
    EXPECT_EQ(job["status"], "completed") << job;
    std::istringstream lines(get("/jobs/" + id + "/output").body);
    std::vector<Json> rows;
    for (std::string line; std::getline(lines, line);) rows.push_back(Json::parse(line));
    return rows;
  }
  // The best label of a text and its score.
  void expect_best(const Json& label, const Json& score, size_t text) {
    const auto scores = case_["scores"][text].get<std::vector<double>>();
    const auto best = std::max_element(scores.begin(), scores.end());
    EXPECT_EQ(label, case_["labels"][static_cast<size_t>(best - scores.begin())]);
    EXPECT_NEAR(score.get<double>(), *best, 1e-4);
  }
  void expect_golden(const Json& found, size_t text) {
    EXPECT_EQ(found["sequence"], texts_[text]);
    ASSERT_EQ(found["labels"].size(), 3u);
    for (size_t k = 0; k < 3; ++k) {
      const auto at = static_cast<size_t>(
          std::find(case_["labels"].begin(), case_["labels"].end(), found["labels"][k]) - case_["labels"].begin());
      EXPECT_NEAR(found["scores"][k].get<double>(), case_["scores"][text][at].get<double>(), 1e-4);
      EXPECT_GE(found["scores"][0].get<double>(), found["scores"][k].get<double>());
    }
  }
  Json case_;
  std::vector<std::string> texts_;
};

TEST_F(ServeZeroShot, AnswersLikeHuggingFace) {
  const Json labels = {{"candidate_labels", case_["labels"]}};
  expect_golden(good("/models/nli", zero_shot_body(texts_[0], labels)), 0);
  const Json batch = good("/models/nli", zero_shot_body({texts_[0], texts_[7]}, labels));
  ASSERT_EQ(batch.size(), 2u);
  expect_golden(batch[0], 0);
  expect_golden(batch[1], 7);
  expect_golden(good("/models/nli", zero_shot_body(texts_[1], {{"candidate_labels", "w10, w20 w21,w30"}})), 1);
  const Json independent =
      good("/models/nli", zero_shot_body(texts_[0], {{"candidate_labels", {"w10", "w30"}}, {"multi_label", true}}));
  EXPECT_NEAR(independent["scores"][0].get<double>(), 0.1143264, 1e-4);
  const RawAnswer answer = post("/models/nli", zero_shot_body("w5", {{"candidate_labels", {"w10"}}, {"labels", 1}}));
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.fields.at("x-brim-ignored"), "parameters.labels");
  // Without labels it stays a classifier of its own classes.
  EXPECT_EQ(good("/models/nli", R"({"inputs":"w5"})")[0].size(), 3u);
}

TEST_F(ServeZeroShot, ScoresRowsOfFilesByLabels) {
  const std::string query = "/score?model=nli&format=txt&output_format=jsonl&all_scores=true",
                    labels = "&candidate_labels=w10,w20%20w21,w30";
  const RawAnswer answer = post(query + labels, texts_[0] + "\n" + texts_[7] + "\n");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const size_t end = answer.body.find('\n');
  for (const auto& [line, text] :
       {std::pair(answer.body.substr(0, end), 0), std::pair(answer.body.substr(end + 1), 7)}) {
    const Json row = Json::parse(line);
    for (size_t k = 0; k < 3; ++k)
      EXPECT_NEAR(row["scores"][case_["labels"][k].get<std::string>()].get<double>(),
                  case_["scores"][text][k].get<double>(), 1e-4);
    EXPECT_EQ(row["scores"][row["label"].get<std::string>()], row["score"]);
  }
  const auto again = [&](const std::string& path) {  // a rejected stream ends its connection
    client_ = std::make_unique<RawClient>(server_->port());
    return post(path, "w5\n");
  };
  EXPECT_EQ(again(query + "&candidate_labels=a,a").status, 422);
  EXPECT_EQ(again(query + "&multi_label=true").status, 422);
  EXPECT_EQ(again(query + labels + "&multi_label=x").status, 422);
  EXPECT_EQ(again(query + labels + "&pair_column=b").status, 422);
  const RawAnswer refused = again("/score?model=cls&format=txt" + labels);
  EXPECT_EQ(refused.status, 424);
  EXPECT_HAS(refused.body, "NLI");
}

TEST_F(ServeZeroShot, JobsScoreByLabelsOfTheRequest) {
  const std::vector<Json> rows =
      job_rows("model=nli&format=txt&output_format=jsonl&all_scores=true&candidate_labels=w10,w20%20w21,w30",
               texts_[0] + "\n" + texts_[7] + "\n");
  ASSERT_EQ(rows.size(), 2u);
  for (const auto& [row, text] : {std::pair(rows[0], 0u), std::pair(rows[1], 7u)}) {
    expect_best(row["label"], row["score"], text);
    for (size_t k = 0; k < 3; ++k)
      EXPECT_NEAR(row["scores"][case_["labels"][k].get<std::string>()].get<double>(),
                  case_["scores"][text][k].get<double>(), 1e-4);
  }
}

TEST_F(ServeZeroShot, QueuesScoreByLabelsOfTheRequest) {
  const Json items = {{{"text", texts_[0]}, {"item", {{"id", 0}}}}, {{"text", texts_[7]}, {"item", {{"id", 7}}}}};
  const Json scored =
      good("/queues/news/score_or_queue", Json({{"items", items}, {"candidate_labels", case_["labels"]}}).dump());
  ASSERT_EQ(scored["items"].size(), 2u);
  for (const Json& item : scored["items"])
    expect_best(item["sentiment_label"], item["sentiment_confidence"], item["id"].get<size_t>());
}

// A ladder whose first rung is an NLI model with configured labels.
class ServeZeroShotLadder : public ServeZeroShot {
 protected:
  void configure(ServerOptions& o) override {
    ScorerOptions topics = scorer_options(temp_.path() / "bert_pair");
    topics.raw_scores = false;
    topics.zero_shot = ZeroShot{.labels = case_["labels"].get<std::vector<std::string>>()};
    o.models.push_back({"topics", "topics", "7", Scorer::open(topics)});
    o.models.back().label_cost = label_cost(*topics.zero_shot);
    LadderRules rules;
    rules.name = "ladder";
    rules.rungs = {{"topics", {}}, {"cls", {}}};
    o.ladders.push_back(std::make_shared<Ladder>(rules));
    o.queues.push_back({.name = "mixed", .model = "ladder", .flush_size = 2});
  }
};

TEST_F(ServeZeroShotLadder, AnswersWithConfiguredLabels) {
  const RawAnswer answer = post("/classify", Json({{"input", {texts_[0], texts_[7]}}}).dump());
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_HAS(answer.fields.at("x-brim-model"), "topics@");
  const Json found = Json::parse(answer.body);
  for (const auto& [i, text] : {std::pair(0u, 0u), std::pair(1u, 7u)})
    expect_best(found["data"][i][0]["label"], found["data"][i][0]["score"], text);
  const Json items = {{{"text", texts_[0]}, {"item", {{"id", 0}}}}, {{"text", texts_[7]}, {"item", {{"id", 7}}}}};
  const Json queued = good("/queues/mixed/score_or_queue", Json({{"items", items}}).dump());
  ASSERT_EQ(queued["items"].size(), 2u);
  for (const Json& item : queued["items"])
    expect_best(item["sentiment_label"], item["sentiment_confidence"], item["id"].get<size_t>());
  EXPECT_HAS(get("/metrics").body, "brim_pairs_total{model=\"topics\"} 12\n");
}

TEST_F(ServeZeroShotLadder, LabelsOfARequestReplaceConfiguredOnes) {
  const Json labels = {{"candidate_labels", {"w30", "w10"}}};
  const Json found = good("/models/ladder", zero_shot_body(texts_[0], labels));
  EXPECT_EQ(found["labels"].size(), 2u);
  EXPECT_HAS(get("/metrics").body, "brim_pairs_total{model=\"topics\"} 2\n");
  EXPECT_EQ(post("/admin/ladders/ladder/pin?rung=cls", "").status, 200);
  bad("/models/ladder", zero_shot_body(texts_[0], labels), 424, "Backend", "NLI");
}

TEST_F(ServeZeroShot, RejectsInvalidRequests) {
  const auto refused = [&](const Json& parameters, const char* message) {
    bad("/models/nli", zero_shot_body("w5", parameters), 422, "Validation", message);
  };
  refused({{"candidate_labels", Json::array()}}, "at least one label");
  refused({{"candidate_labels", {"a", "a"}}}, "duplicate label");
  refused({{"candidate_labels", {"a", " "}}}, "label 2 is empty");
  refused({{"candidate_labels", {1}}}, "list of strings");
  refused({{"candidate_labels", 1}}, "list of strings");
  refused({{"candidate_labels", {"a"}}, {"hypothesis_template", "{x}"}}, "hypothesis_template");
  refused({{"candidate_labels", {"a"}}, {"multi_label", 1}}, "multi_label");
  refused({{"multi_label", true}}, "requires `candidate_labels`");
  refused({{"candidate_labels", {std::string(ZeroShotLimits::kLabelBytes + 1, 'a')}}}, "bytes, the limit is 256");
  refused({{"candidate_labels", {"a"}}, {"hypothesis_template", std::string(2000, 'a') + "{}"}}, "the limit is 1024");
  Json many = Json::array(), texts = Json::array();
  for (size_t i = 0; i < ZeroShotLimits::kLabels + 1; ++i) many.push_back("w" + std::to_string(i));
  refused({{"candidate_labels", many}}, "257 labels, the limit is 256");
  many.erase(0);
  for (int i = 0; i < 33; ++i) texts.push_back("w5");
  bad("/models/nli", zero_shot_body(texts, {{"candidate_labels", many}}), 422, "Validation", "8448 pairs");
  for (const char* model : {"cls", "vader", "ner", "emb"})
    EXPECT_EQ(post(std::string("/models/") + model, zero_shot_body("w5", {{"candidate_labels", {"a"}}})).status, 424)
        << model;
  bad("/models/cls", zero_shot_body("w5", {{"candidate_labels", {"a"}}}), 424, "Backend", "NLI");
}

TEST_F(ServeZeroShot, FindsEntitiesByLabel) {
  const Json golden =
      Json::parse(std::ifstream(std::string(BRIM_SOURCE_DIR) + "/tests/data/gliner/span_rnn/golden.json"));
  const Json& c = golden["cases"][7];
  const size_t at = golden["texts"].size() - 3;  // one window
  const Json &text = golden["texts"][at], &wanted = c["entities"][at];
  Json body = {{"model", "gliner"}, {"inputs", text}, {"labels", c["labels"]}, {"nested", true}};
  body["threshold"] = c["threshold"];
  for (int repeat = 0; repeat < 2; ++repeat) {  // the second time with kept labels
    const Json found = good("/ner", body.dump());
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i]["start"], wanted[i][0]);
      EXPECT_EQ(found[i]["entity_group"], wanted[i][2]);
      EXPECT_NEAR(found[i]["score"].get<double>(), wanted[i][3].get<double>(), 1e-4);
    }
  }
  const auto refused = [&](const Json& changes, int status, const char* type, const char* message) {
    Json changed = body;
    changed.update(changes);
    bad("/ner", changed.dump(), status, type, message);
  };
  refused({{"labels", {"a", "a"}}}, 422, "Validation", "duplicate label");
  refused({{"threshold", 2}}, 422, "Validation", "threshold 2");
  refused({{"threshold", "x"}}, 422, "Validation", "must be a number");
  refused({{"labels", nullptr}}, 422, "Validation", "requires `labels`");
  refused({{"model", "ner"}}, 424, "Backend", "GLiNER");
}

// A GLiNER model with configured labels.
class ServeEntities : public ServiceTest {
 protected:
  void SetUp() override {
    const std::string dir = std::string(BRIM_SOURCE_DIR) + "/tests/data/gliner/bi_span";
    const Json golden = Json::parse(std::ifstream(dir + "/golden.json"));
    const Json& c = golden["cases"][3];
    texts_ = golden["texts"].get<std::vector<std::string>>();
    texts_ = {texts_.begin() + 15, texts_.end() - 2};  // plain words that fit in one window
    wanted_.assign(c["entities"].begin() + 15, c["entities"].end() - 2);
    ScorerOptions gliner;
    gliner.model = dir;
    gliner.device = "cpu";
    gliner.precision = "fp32";
    gliner.threads = 1;
    gliner.memory_limit = "512MiB";
    gliner.entities = EntityLabels{c["labels"].get<std::vector<std::string>>(), c["threshold"].get<float>(), false};
    ServerOptions o = loopback_options();
    o.state_dir = (temp_.path() / "state").string();
    o.models.push_back({"names", "names", "1", Scorer::open(gliner)});
    o.queues.push_back({.name = "news", .model = "names", .flush_size = static_cast<int64_t>(texts_.size())});
    start(std::move(o));
  }
  void expect_entities(const Json& found, size_t text) {
    SCOPED_TRACE(texts_[text]);
    ASSERT_EQ(found.size(), wanted_[text].size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i]["start"], wanted_[text][i][0]);
      EXPECT_EQ(found[i]["end"], wanted_[text][i][1]);
      EXPECT_EQ(found[i]["entity_group"], wanted_[text][i][2]);
      EXPECT_NEAR(found[i]["score"].get<double>(), wanted_[text][i][3].get<double>(), 1e-4);
    }
  }
  std::vector<std::string> texts_;
  std::vector<Json> wanted_;
};

TEST_F(ServeEntities, AnswersWithConfiguredLabels) {
  for (size_t t = 0; t < texts_.size(); ++t) expect_entities(good("/ner", Json({{"inputs", texts_[t]}}).dump()), t);
}

TEST_F(ServeEntities, JobsFindEntities) {
  std::string file;
  for (const std::string& text : texts_) file += Json({{"text", text}}).dump() + "\n";
  const RawAnswer made = post("/jobs?model=names&format=jsonl&output_format=jsonl", file);
  ASSERT_EQ(made.status, 201) << made.body;
  const std::string id = Json::parse(made.body)["id"];
  Json job;
  wait_until([&] {
    job = Json::parse(get("/jobs/" + id).body);
    return job["status"] == "completed" || job["status"] == "failed";
  });
  ASSERT_EQ(job["status"], "completed") << job;
  std::istringstream lines(get("/jobs/" + id + "/output").body);
  std::string line;
  size_t rows = 0;
  while (std::getline(lines, line)) expect_entities(Json::parse(line)["entities"], rows++);
  EXPECT_EQ(rows, texts_.size());
}

TEST_F(ServeEntities, StreamsFindEntities) {
  std::string file;
  for (const std::string& text : texts_) file += Json({{"text", text}}).dump() + "\n";
  const RawAnswer answer = post("/score?model=names&format=jsonl&output_format=jsonl", file);
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_HAS(answer.fields.at("x-brim-model"), "names@");
  std::istringstream lines(answer.body);
  size_t rows = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json row = Json::parse(line);
    EXPECT_EQ(row["text"], texts_[rows]);
    expect_entities(row["entities"], rows++);
  }
  EXPECT_EQ(rows, texts_.size());
}

TEST_F(ServeEntities, QueuesFindEntities) {
  Json items = Json::array();
  for (size_t t = 0; t < texts_.size(); ++t) items.push_back({{"text", texts_[t]}, {"item", {{"id", t}}}});
  const Json scored = good("/queues/news/score_or_queue", Json({{"items", items}}).dump());
  ASSERT_EQ(scored["items"].size(), texts_.size());
  for (size_t t = 0; t < texts_.size(); ++t) {
    const Json& item = scored["items"][t];
    EXPECT_EQ(item["id"], t);
    EXPECT_EQ(item["model"], "names");
    EXPECT_FALSE(item.contains("sentiment_label")) << item;
    expect_entities(item["entities"], t);
  }
}

TEST_F(ServeZeroShot, CountsPairs) {
  const RawAnswer answer =
      post("/models/nli", zero_shot_body({"w5 w6", "w7"}, {{"candidate_labels", {"w10", "w30", "w40"}}}));
  ASSERT_EQ(answer.status, 200) << answer.body;
  // [CLS] text [SEP] this example is LABEL . [SEP], once per label
  EXPECT_GE(std::stoi(answer.fields.at("x-compute-tokens")), 3 * (2 + 1) + 6 * 4);
  const std::string metrics = get("/metrics").body;
  EXPECT_NE(metrics.find("brim_pairs_total{model=\"nli\"} 6\n"), std::string::npos);
  const auto pairs = [&](int total) {  // jobs and streams are counted off the thread that answers
    const std::string line = fmt::format("brim_pairs_total{{model=\"nli\"}} {}\n", total);
    wait_until([&] { return get("/metrics").body.find(line) != std::string::npos; });
  };
  const std::string query = "model=nli&format=txt&output_format=jsonl&candidate_labels=w10,w30,w40,w50";
  EXPECT_EQ(post("/score?" + query, "w5\nw6\nw7\n").status, 200);
  pairs(6 + 3 * 4);
  EXPECT_EQ(job_rows(query, "w5\nw6\n").size(), 2u);
  pairs(6 + 5 * 4);
  const Json items = {{{"text", "w5"}}, {{"text", "w6"}}};
  good("/queues/news/score_or_queue", Json({{"items", items}, {"candidate_labels", "w10,w20,w30,w40,w50"}}).dump());
  pairs(6 + 5 * 4 + 2 * 5);
  server_.reset();  // writes the rest of the log
  const std::string log = get_file(temp_.path() / "access.log");
  EXPECT_NE(log.find("\"pairs\":6,\"texts\":2,"), std::string::npos) << log;
  EXPECT_NE(log.find("\"pairs\":12,\"texts\":3,"), std::string::npos) << log;
  EXPECT_NE(log.find("\"pairs\":10,\"texts\":2,"), std::string::npos) << log;
}

// Prepares labels on request and records the largest predicted number of tokens.
class HeldNliScorer final : public HeldScorer {
 public:
  std::shared_ptr<const ZeroShotLabels> prepare_labels(const ZeroShot& zero_shot) const override {
    ++preparing;
    wait_until([&] { return !waits.load(); });
    return std::make_shared<Labels>(zero_shot.labels);
  }
  ClientWait wait_of(uint64_t, int64_t tokens, bool,
                     std::optional<std::chrono::steady_clock::time_point>) const override {
    predicted = std::max(predicted.load(), tokens);
    return {};
  }
  mutable std::atomic<int> preparing{0};
  mutable std::atomic<int64_t> predicted{0};
  std::atomic<bool> waits{false};

 private:
  struct Labels final : ZeroShotLabels {
    explicit Labels(std::vector<std::string> given) : names(std::move(given)) {}
    const std::vector<std::string>& labels() const override { return names; }
    bool multi_label() const override { return false; }
    const std::vector<std::string> names;
  };
};

class ServeHeldNli : public ServiceTest {
 protected:
  ServerOptions held_nli() {
    nli_ = std::make_shared<HeldNliScorer>();
    scorer_ = nli_;
    ServerOptions o = serving("nli", nli_);
    o.io_threads = 1;
    o.access_log = (temp_.path() / "access.log").string();
    return o;
  }
  int answered(size_t texts) {
    scorer_->wait_held(texts);
    scorer_->answer_all();
    return client_->read().status;
  }
  std::shared_ptr<HeldNliScorer> nli_;
};

// Gates and jobs keep results by revision.
TEST(ModelRevision, DependsOnLabelsAndTemplate) {
  const ZeroShot labels{.labels = {"a", "b"}};
  std::set<std::string> all = {model_revision("vader"), model_revision("vader", labels)};
  ZeroShot other = labels;
  other.text_template = "About {}.";
  all.insert(model_revision("vader", other));
  other.multi_label = true;
  all.insert(model_revision("vader", other));
  all.insert(model_revision("vader", ZeroShot{.labels = {"a", "c"}}));
  EXPECT_EQ(all.size(), 5u);
  EXPECT_EQ(model_revision("vader", labels), model_revision("vader", ZeroShot{.labels = {"a", "b"}}));
}

TEST_F(ServeHeldNli, PredictsTokensOfHypotheses) {
  start(held_nli());
  const std::string pattern = std::string(400, 'x') + " {}.";
  client_->post("/models/nli",
                zero_shot_body("ab", {{"candidate_labels", {"one", "two"}}, {"hypothesis_template", pattern}}));
  EXPECT_EQ(answered(1), 200);
  EXPECT_GE(nli_->predicted, 2 * (2 + 400 + 3) / 4);
}

// A GLiNER model whose labels take 100 tokens, and one with configured labels.
class HeldGlinerScorer final : public HeldScorer {
 public:
  ModelKind kind() const override { return ModelKind::tagger; }
  bool finds_entities_by_label() const override { return true; }
  std::shared_ptr<const ZeroShotLabels> prepare_entities(const EntityLabels& entities) const override {
    return std::make_shared<Labels>(entities.labels);
  }
  ClientWait wait_of(uint64_t, int64_t tokens, bool,
                     std::optional<std::chrono::steady_clock::time_point>) const override {
    predicted = std::max(predicted.load(), tokens);
    return {};
  }
  mutable std::atomic<int64_t> predicted{0};

 private:
  struct Labels final : ZeroShotLabels {
    explicit Labels(std::vector<std::string> given) : names(std::move(given)) {}
    const std::vector<std::string>& labels() const override { return names; }
    bool multi_label() const override { return true; }
    int64_t tokens_per_text() const override { return 100; }
    const std::vector<std::string> names;
  };
};

class ServeHeldGliner : public ServiceTest {
 protected:
  // The largest number of tokens predicted for three texts.
  int64_t predicted(const LabelCost& configured, const Json& labels) {
    const auto gliner = std::make_shared<HeldGlinerScorer>();
    ServerOptions o = serving("gliner", gliner);
    o.models.back().label_cost = configured;
    start(std::move(o));
    Json body = {{"inputs", {"ab", "cd", "ef"}}};
    if (!labels.is_null()) body["labels"] = labels;
    client_->post("/ner", body.dump());
    gliner->wait_held(3);
    gliner->answer_all();
    EXPECT_EQ(client_->read().status, 200);
    client_->post("/ner", body.dump());  // with kept labels
    gliner->wait_held(3);
    gliner->answer_all();
    EXPECT_EQ(client_->read().status, 200);
    EXPECT_EQ(get("/metrics").body.find("brim_pairs_total{model=\"gliner\"} 3"), std::string::npos);
    return gliner->predicted;
  }
};

TEST_F(ServeHeldGliner, PredictsTokensOfLabelsPerText) {
  const int64_t request = predicted({}, {"one", "two"});
  EXPECT_GE(request, 3 * 100);
  EXPECT_LT(request, 3 * 110);
  const std::string gliner = std::string(BRIM_SOURCE_DIR) + "/tests/data/gliner/";
  const EntityLabels labels{.labels = {std::string(40, 'a'), std::string(60, 'b')}};
  const LabelCost cost = label_cost(labels, gliner + "span_rnn");
  EXPECT_EQ(cost.labels, 0u);
  EXPECT_EQ(cost.hypothesis_bytes, 100 + 3 * kBytesPerToken);
  const int64_t configured = predicted(cost, {});
  EXPECT_GE(configured, 3 * (100 / 4 + 3));
  EXPECT_LT(configured, 3 * (100 / 4 + 10));
  EXPECT_EQ(label_cost(labels, gliner + "bi_span").hypothesis_bytes, 0u);
  EXPECT_EQ(label_cost(labels, gliner + "none").hypothesis_bytes, 0u);
}

TEST_F(ServeHeldNli, LargeLabelSetDoesNotBlockOtherConnections) {
  start(held_nli());
  Json labels = Json::array();
  for (int i = 0; i < 100; ++i) labels.push_back(fmt::format("label {}", i));
  nli_->waits = true;
  const std::string pattern = std::string(1000, 'x') + " {}.";
  client_->post("/models/nli", zero_shot_body("ab", {{"candidate_labels", labels}, {"hypothesis_template", pattern}}));
  wait_until([&] { return nli_->preparing == 1; });
  RawClient other(server_->port());  // on the same, single I/O thread
  other.get("/health/live");
  EXPECT_EQ(other.read().status, 200);
  nli_->waits = false;
  EXPECT_EQ(answered(1), 200);
}

TEST_F(ServeHeldNli, LimitsPairsOfTextsReadInParts) {
  start(held_nli());
  const auto long_body = [](size_t bytes, const char* long_text) {
    return Json({{"inputs", std::string(bytes, 'x')},
                 {"long_text", long_text},
                 {"parameters", {{"candidate_labels", {"one", "two"}}}}})
        .dump();
  };
  bad("/models/nli", long_body(5000, "window-mean"), 422, "Validation", "1 texts with 2 labels may need 10000 pairs");
  client_->post("/models/nli", long_body(3000, "window-max"));
  EXPECT_EQ(answered(1), 200);
  client_->post("/models/nli", long_body(5000, "truncate"));
  EXPECT_EQ(answered(1), 200);
}

TEST_F(ServeHeldNli, CountsPairsOfConfiguredLabels) {
  ServerOptions o = held_nli();
  ZeroShot configured;
  for (int i = 0; i < 20; ++i) configured.labels.push_back(fmt::format("label {}", i));
  o.models.back().label_cost = label_cost(configured);
  start(std::move(o));
  Json texts = Json::array({"a", "b"});
  client_->post("/classify", Json({{"input", texts}}).dump());
  EXPECT_EQ(answered(2), 200);
  EXPECT_GE(nli_->predicted, 2 * 20 * 20 / 4);
  EXPECT_NE(get("/metrics").body.find("brim_pairs_total{model=\"nli\"} 40\n"), std::string::npos);
  while (texts.size() < 500) texts.push_back("a");
  bad("/classify", Json({{"input", texts}}).dump(), 422, "Validation", "10000 pairs");
  EXPECT_EQ(post("/score", "{\"text\":\"a\"}\n{\"text\":\"b\"}\n").status, 200);
  EXPECT_NE(get("/metrics").body.find("brim_pairs_total{model=\"nli\"} 80\n"), std::string::npos);
  server_.reset();  // writes the rest of the log
  const std::string log = get_file(temp_.path() / "access.log");
  EXPECT_NE(log.find("\"route\":\"POST /classify\",\"model\":\"nli\",\"pairs\":40,"), std::string::npos) << log;
  EXPECT_NE(log.find("\"route\":\"POST /score\",\"model\":\"nli\",\"pairs\":40,"), std::string::npos) << log;
}

}  // namespace
}  // namespace brim::serve
