// SPDX-License-Identifier: Apache-2.0
// Replacing a model when the limit does not allow loading both, over real sockets.
#include <functional>
#include <thread>

#include "serve/service_fixture.h"

namespace brim::serve {
namespace {

class ReplaceTest : public ServiceTest {
 protected:
  // Options with a limit that fits one model but not two.
  ScorerOptions tight(std::initializer_list<const char*> models) {
    ScorerOptions o = scorer_options(temp_.path() / "cls");
    int64_t limit = 0;
    for (const char* model : models) {
      std::filesystem::remove_all(o.model);
      model::put_golden_model(o.model, model);
      o.memory_limit = "1GiB";
      const MemoryPlan plan = Scorer::open(o)->plan();
      const int64_t own = plan.peak_bytes - plan.shared_bytes;
      for (bool fits = false; !fits;) {
        o.memory_limit = fmt::format("{}B", limit += own / 2);
        try {
          Scorer::open(o);
          fits = true;
        } catch (const Error& error) {
          if (error.code() != ErrorCode::does_not_fit || limit > int64_t{1} << 30) throw;
        }
      }
    }
    return o;
  }
  ServerOptions changing(std::initializer_list<const char*> models = {"bert_sequence"}) {
    options_ = tight(models);
    ServerOptions o = loopback_options();
    o.io_threads = 2;
    o.max_queue_ms = 60'000;
    o.models.push_back({"cls", "cls", "1", Scorer::open(options_)});
    o.models.push_back({"vader", "vader", "1", Scorer::open({.model = "vader"})});
    o.revision_of = [this](const std::string& name) { return name == "cls" ? std::to_string(revision_.load()) : "1"; };
    o.reopen = [this](const std::string& name, const Scorer* beside, bool stays) {
      if (!stays) {
        ++replaced_;
        if (during_replacement_) during_replacement_();
      }
      return ServedModel{name, name, std::to_string(revision_.load()),
                         beside != nullptr ? open_beside(*beside, options_, stays) : Scorer::open(options_)};
    };
    return o;
  }
  // Renames, because the loaded model reads its old files.
  void change_files(const char* model = "bert_sequence") {
    const auto dir = temp_.path() / "cls", new_dir = temp_.path() / "coming";
    const auto before = std::filesystem::last_write_time(dir / "model.safetensors");
    model::put_golden_model(new_dir, model);
    std::filesystem::last_write_time(new_dir / "model.safetensors", before + std::chrono::seconds(2));
    std::filesystem::rename(dir, temp_.path() / fmt::format("before{}", revision_.load()));
    std::filesystem::rename(new_dir, dir);
    ++revision_;
  }
  std::string state() { return Json::parse(get("/v1/models").body)["data"][0]["state"]; }
  RawAnswer predict(const std::string& model = "cls") {
    return post("/predict", R"({"inputs":"w6 w7","model":")" + model + "\"}");
  }

  ScorerOptions options_;
  std::atomic<int> revision_{1}, replaced_{0};
  std::function<void()> during_replacement_;  // called between unloading and loading, on the admin thread
};

TEST_F(ReplaceTest, RequestsWaitDuringReplacement) {
  start(changing());
  const std::string before = predict().body;
  change_files();
  RawClient waiting(server_->port()), leaving(server_->port());
  during_replacement_ = [&] {
    waiting.post("/predict", R"({"inputs":"w6 w7","model":"cls"})");
    leaving.post("/predict", R"({"inputs":"w6 w7","model":"cls"})");
    EXPECT_EQ(predict("vader").status, 200) << "other models respond";
    EXPECT_EQ(get("/health/ready").status, 503);
    leaving.close();
  };
  RawClient administrator(server_->port());
  administrator.post("/admin/reload", "");
  EXPECT_EQ(administrator.read().status, 200);
  EXPECT_EQ(replaced_, 1);
  RawAnswer answer = waiting.read();
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.fields["x-brim-model"], "cls@2");
  EXPECT_EQ(answer.body, before);
  EXPECT_EQ(state(), "resident");
  EXPECT_EQ(Json::parse(get("/health").body)["status"], "ok");
}

TEST_F(ReplaceTest, StreamsAndJobsWaitDuringReplacement) {
  ServerOptions o = changing();
  o.state_dir = (temp_.path() / "state").string();
  start(std::move(o));
  change_files();
  RawClient stream(server_->port());
  std::string job;
  during_replacement_ = [&] {
    stream.post("/score?format=txt&model=cls", "w6 w7\n");
    const RawAnswer made = post("/jobs?format=txt&model=cls", "w6 w7\n");
    EXPECT_EQ(made.status, 201) << made.body;
    job = Json::parse(made.body).value("id", "");
  };
  RawClient administrator(server_->port());
  administrator.post("/admin/reload", "");
  EXPECT_EQ(administrator.read().status, 200);
  EXPECT_EQ(replaced_, 1);
  RawAnswer rows = stream.read();
  EXPECT_EQ(rows.status, 200) << rows.body;
  EXPECT_EQ(rows.fields["x-brim-model"], "cls@2");
  EXPECT_NE(rows.body.find("\nw6 w7,"), std::string::npos) << rows.body;
  wait_until([&] { return Json::parse(get("/jobs/" + job).body).value("status", "") == "completed"; });
}

TEST_F(ReplaceTest, NoRequestFailsUnderLoad) {
  start(changing());
  std::atomic<bool> ending{false};
  std::atomic<int> answered{0};
  std::vector<std::thread> clients;
  for (int t = 0; t < 3; ++t)
    clients.emplace_back([&] {
      RawClient client(server_->port());
      while (!ending) {
        client.post("/predict", R"({"inputs":[["w6 w7"],["w8"]],"model":"cls"})");
        const RawAnswer answer = client.read();
        ASSERT_EQ(answer.status, 200) << answer.body;
        ++answered;
      }
    });
  for (int i = 0; i < 5 && !HasFailure(); ++i) {
    change_files();
    EXPECT_EQ(post("/admin/models/cls/reload", "").status, 200);
    const int seen = answered;
    wait_until([&] { return answered >= seen + 10 || HasFailure(); });
  }
  ending = true;
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(replaced_, 5);
  EXPECT_EQ(predict().fields["x-brim-model"], "cls@6");
}

TEST_F(ReplaceTest, RestoresOldModelOnFailure) {
  start(changing());
  during_replacement_ = [] { fail(ErrorCode::bad_model, "it is broken"); };
  EXPECT_EQ(post("/admin/models/cls/reload", "").status, 409);
  EXPECT_EQ(replaced_, 1);
  EXPECT_EQ(predict().fields["x-brim-model"], "cls@1") << "from its files, which are the same";
  EXPECT_EQ(state(), "resident");
  EXPECT_NE(get("/health").body.find("it is broken"), std::string::npos);
  // New, damaged files: the old model cannot be restored.
  change_files();
  std::filesystem::resize_file(temp_.path() / "cls/model.safetensors", 1000);
  during_replacement_ = {};
  const RawAnswer refused = post("/admin/reload", "");
  EXPECT_EQ(refused.status, 424);
  if (replaced_ == 2) {  // its size is wrong, which is found only after unloading the old model
    EXPECT_EQ(state(), "failed");
    EXPECT_EQ(predict().status, 503);
  }
  EXPECT_EQ(predict("vader").status, 200);
  change_files();
  EXPECT_EQ(post("/admin/models/cls/reload", "").status, 200);
  EXPECT_EQ(predict().status, 200);
  EXPECT_EQ(Json::parse(get("/health").body)["status"], "ok");
}

TEST_F(ReplaceTest, FailsIfOldModelCannotBeRestored) {
  start(changing());
  change_files();
  during_replacement_ = [] { fail(ErrorCode::bad_model, "it is broken"); };
  RawClient waiting(server_->port());
  EXPECT_EQ(post("/admin/models/cls/reload", "").status, 409);
  EXPECT_EQ(state(), "failed");
  EXPECT_EQ(predict().status, 503);
  EXPECT_EQ(predict("vader").status, 200);
  EXPECT_NE(get("/health").body.find("cannot be restored"), std::string::npos);
  during_replacement_ = {};
  EXPECT_EQ(post("/admin/models/cls/load", "").status, 200);
  EXPECT_EQ(predict().fields["x-brim-model"], "cls@2");
}

// A larger model, which does not fit into the queue of the old one.
TEST_F(ReplaceTest, ReplacementUsesWholeLimit) {
  start(changing({"roberta_sequence", "bert_sequence"}));
  change_files("roberta_sequence");
  const RawAnswer answer = post("/admin/models/cls/reload", "");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_GE(replaced_, 1);
  EXPECT_EQ(predict().fields["x-brim-model"], "cls@2");
}

// A stream of rows keeps its model.
TEST_F(ReplaceTest, RejectsReplacementOfModelInUse) {
  ServerOptions o = changing();
  o.max_queue_ms = 1;
  start(std::move(o));
  RawClient stream(server_->port());
  stream.send("POST /score?format=txt&model=cls HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  stream.send("6\r\nw6 w7\n\r\n");
  EXPECT_EQ(stream.read_head().status, 200);
  change_files();
  const RawAnswer answer = post("/admin/models/cls/reload", "");
  EXPECT_EQ(answer.status, 409);
  EXPECT_NE(answer.body.find("still uses"), std::string::npos) << answer.body;
  EXPECT_EQ(predict().fields["x-brim-model"], "cls@1");
  stream.send("0\r\n\r\n");
  std::string chunk;
  while (stream.read_chunk(chunk) && !chunk.empty()) {
  }
  EXPECT_EQ(post("/admin/models/cls/reload", "").status, 200) << "no longer in use";
}

}  // namespace
}  // namespace brim::serve
