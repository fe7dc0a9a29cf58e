// SPDX-License-Identifier: Apache-2.0
// Streams, jobs and queues of a model with a result cache: answers equal those of a model without one.
#include "serve/service_fixture.h"

namespace brim::serve {
namespace {

class CacheTest : public ServiceTest {
 protected:
  void SetUp() override {
    model::put_golden_model(temp_.path() / "model", "bert_sequence");
    ServerOptions o = loopback_options();
    o.state_dir = (temp_.path() / "state").string();
    for (const char* name : {"plain", "cached"}) {
      ScorerOptions options = scorer_options(temp_.path() / "model");
      if (name == std::string("cached")) options.cache_bytes = 1 << 20;
      o.models.push_back({name, name, "1", Scorer::open(options)});
      o.queues.push_back({.name = name, .model = name, .flush_size = 3});
    }
    start(std::move(o));
  }
  std::string scored(const std::string& model) {
    const RawAnswer answer =
        post("/score?format=txt&output_format=jsonl&all_scores=true&model=" + model, "w6 w7\nw8\nw6 w7\nw9 w10\n");
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.body;
  }
  std::string job_output(const std::string& model) {
    const RawAnswer made =
        post("/jobs?format=txt&output_format=jsonl&all_scores=true&model=" + model, "w9 w10\nw6 w7\nw11\nw9 w10\n");
    EXPECT_EQ(made.status, 201) << made.body;
    const std::string job = "/jobs/" + Json::parse(made.body)["id"].get<std::string>();
    wait_until([&] { return Json::parse(get(job).body)["status"] == "completed"; });
    return get(job + "/output").body;
  }
  Json flushed(const std::string& model) {
    const Json items = {{{"text", "w8"}}, {{"text", "w12"}}, {{"text", "w12"}}};
    Json found = good("/queues/" + model + "/score_or_queue", Json({{"items", items}}).dump())["items"];
    for (Json& item : found) item.erase("model");
    return found;
  }
  // Texts found in the cache, and the others.
  void expect_counts(int hits, int misses) {
    const std::string metrics = get("/metrics").body;
    for (const auto& [name, n] : {std::pair("hits", hits), std::pair("misses", misses)}) {
      const std::string line = fmt::format("brim_cache_{}_total{{model=\"cached\"}} {}\n", name, n);
      EXPECT_NE(metrics.find(line), std::string::npos) << line << metrics;
    }
  }
};

TEST_F(CacheTest, StreamsJobsAndQueuesGiveTheSameAnswers) {
  const std::string rows = scored("plain"), output = job_output("plain");
  const Json items = flushed("plain");
  EXPECT_EQ(items.size(), 3u);
  EXPECT_EQ(scored("cached"), rows);
  expect_counts(1, 3);
  EXPECT_EQ(scored("cached"), rows);
  expect_counts(5, 3);
  EXPECT_EQ(job_output("cached"), output);
  expect_counts(8, 4);
  EXPECT_EQ(flushed("cached"), items);
  expect_counts(10, 5);
}

}  // namespace
}  // namespace brim::serve
