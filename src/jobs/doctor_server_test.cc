// SPDX-License-Identifier: Apache-2.0
#include "jobs/doctor_server.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace brim::jobs {
namespace {

// Server counters in round numbers; a test changes only the ones it names.
struct MadeServer {
  std::map<std::string, double> stage_ms = {
      {"parse", 0.01}, {"tokenize", 0.1}, {"queue", 0.1}, {"infer", 5}, {"write", 0.01}};
  double requests = 1000, refused = 0, busy = 0.5, switching = 0, collecting = 0, fill = 0.5, loads = 0;

  MetricValues after(double seconds) const {
    std::string text = "# HELP brim_texts_total texts\nbrim_connections{state=\"busy\"} 1\nbrim_odd NaN\n";
    for (const auto& [stage, ms] : stage_ms)
      text += fmt::format(
          "brim_stage_duration_seconds_sum{{stage=\"{0}\"}} {1}\nbrim_stage_duration_seconds_count{{stage=\"{0}\"}} "
          "{2}\n",
          stage, ms * 1e-3 * requests, requests);
    text += fmt::format(
        "brim_rejected_total{{reason=\"overloaded\"}} {}\nbrim_texts_total{{model=\"a b\",class=\"interactive\"}} {}\n"
        "brim_texts_total{{model=\"c\",class=\"bulk\"}} 50\nbrim_texts_total_other 7\nbrim_tokens_total{{model=\"a "
        "b\"}} {}\n",
        refused, requests, 25 * requests);
    text += fmt::format(
        "brim_device_busy_seconds_total{{model=\"a b\"}} {}\nbrim_device_idle_seconds_total{{cause=\"switch\"}} {}\n"
        "brim_device_idle_seconds_total{{cause=\"collect\"}} {}\n",
        busy * seconds, switching * seconds, collecting * seconds);
    text += fmt::format(
        "brim_batches_total{{model=\"a b\",kind=\"graph\"}} 100\nbrim_batch_tokens_sum{{model=\"a b\"}} 25000\n"
        "brim_batch_tokens_count{{model=\"a b\"}} 100\nbrim_batch_fill_ratio_sum{{model=\"a b\"}} {}\n"
        "brim_batch_fill_ratio_count{{model=\"a b\"}} 100\nbrim_model_load_seconds_count{{model=\"a b\"}} {}\n",
        100 * fill, loads);
    return read_metrics(text);
  }
  ServerDiagnosis diagnosis() const {
    const MetricValues before = read_metrics("brim_connections{state=\"busy\"} 1\n");
    return diagnose_server(before, after(10), 10);
  }
  std::string first() const { return diagnosis().findings.front().what; }
};

TEST(ServerDoctor, CountsIncreasesBetweenSnapshots) {
  MadeServer server;
  server.loads = 3;
  const ServerDiagnosis d = server.diagnosis();
  EXPECT_EQ(d.requests, 1000);
  EXPECT_EQ(d.texts, 1050) << "sums all labels, but no metrics with longer names";
  EXPECT_EQ(d.tokens, 25000);
  EXPECT_EQ(d.batch_tokens, 250);
  EXPECT_DOUBLE_EQ(d.batch_fill, 0.5);
  EXPECT_DOUBLE_EQ(d.busy, 0.5);
  EXPECT_EQ(d.loads, 3);
  EXPECT_NEAR(d.stages[3].mean_ms, 5, 1e-9);
  EXPECT_NEAR(d.stages[3].share, 5 / 5.22, 1e-9);
  EXPECT_EQ(diagnose_server(server.after(10), server.after(10), 10).requests, 0);
  // Restart in between: counters that fell count as 0.
  MadeServer fresh;
  fresh.requests = 10;
  EXPECT_EQ(diagnose_server(server.after(10), fresh.after(10), 10).requests, 0);
  const auto json = to_json(d);
  EXPECT_EQ(json["stages"][3]["stage"], "infer");
  EXPECT_EQ(json["findings"].size(), d.findings.size());
  EXPECT_NE(to_text(d).find("infer         5.000 ms   96 %"), std::string::npos) << to_text(d);
}

TEST(ServerDoctor, NamesWhatRequestsWaitFor) {
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  MadeServer server;
  EXPECT_TRUE(has(server.first(), "no bottleneck found: inference takes 96 % of the request time")) << server.first();
  server.busy = 0.97;
  server.stage_ms["queue"] = 50;
  EXPECT_TRUE(has(server.first(), "saturated: busy 97 % of the time")) << server.first();
  EXPECT_TRUE(has(server.diagnosis().findings[0].change, "lower precision"));
  server.refused = 500;
  EXPECT_TRUE(has(server.first(), "33 % of the requests were rejected")) << server.first();
  EXPECT_TRUE(has(server.diagnosis().findings[1].what, "busy 97 %")) << "and why";
  server.requests = server.busy = 0;
  EXPECT_TRUE(has(server.first(), "of the requests were rejected")) << server.first();
  server = {};
  server.busy = 0.9;
  server.fill = 0.02;
  EXPECT_TRUE(has(server.diagnosis().findings[0].change, "batches are small"));
  server = {};
  server.switching = 0.4;
  server.loads = 12;
  EXPECT_TRUE(has(server.first(), "idle for 40 % of the time while models were loaded (12 loads")) << server.first();
  server = {};
  server.stage_ms["queue"] = 50;
  EXPECT_TRUE(has(server.diagnosis().findings[0].change, "in bursts"));
  server.collecting = 0.4;
  EXPECT_TRUE(has(server.diagnosis().findings[0].change, "lacks CPU time"));
  server = {};
  server.stage_ms["tokenize"] = 20;
  EXPECT_TRUE(has(server.first(), "tokenization takes 80 %")) << server.first();
  server = {};
  server.stage_ms["write"] = 20;
  EXPECT_TRUE(has(server.diagnosis().findings[0].change, "/score"));
  EXPECT_TRUE(has(diagnose_server(server.after(10), server.after(10), 10).findings[0].what, "no requests"));
}

TEST(ServerDoctor, RejectsOtherServers) {
  for (const char* text : {"", "<html>", "up 1\n", "brim_connections{state=\"busy\"} many\n", " 1\n"})
    EXPECT_THROW(read_metrics(text), Error) << text;
}

}  // namespace
}  // namespace brim::jobs
