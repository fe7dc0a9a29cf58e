// SPDX-License-Identifier: Apache-2.0
// The dashboard: a self-contained page, and the figures it shows. The page requests /history once, then follows
// /events. Unknown values are null, never zero.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/ladder.h"

namespace brim::serve {

std::string_view dashboard_html();
// Content-Security-Policy of the page: its own script and style by hash, and requests to its own origin.
const std::string& dashboard_policy();

struct LatencyBucket {
  double le_ms = 0;
  std::map<std::string, uint64_t> stages;  // number of requests by their slowest stage
};

struct DashboardModel {
  std::string id, state, precision;
  std::optional<int64_t> bytes, token_budget;
  std::optional<double> texts_s, p99_ms, keep_alive_s;  // keep_alive_s: negative means forever
  std::string base;                                     // model of an adapter; empty: not an adapter
};

struct RungSpan {
  int64_t from_unix = 0, to_unix = 0;
  std::string rung;
};
// A ladder's schedule for the local day that contains `unix_seconds`; empty without a schedule.
std::vector<RungSpan> schedule_of_day(const Ladder& ladder, int64_t unix_seconds);

struct DashboardLadder {
  LadderView view;
  std::vector<RungSpan> today;
  std::optional<double> spill_share;
  std::string zone;  // time zone of the schedule: "America/New_York"; empty without one
};

struct DashboardSnapshot {
  int64_t t_unix_ms = 0;
  std::string state = "ok", version, model, reason;
  double uptime_s = 0;
  std::optional<double> texts_s, tokens_s, requests_s;
  int64_t texts = 0, tokens = 0, requests = 0;  // since the start, as in /metrics
  std::optional<double> p50_ms, p95_ms, p99_ms;
  std::vector<LatencyBucket> buckets;
  struct Queue {
    std::optional<double> wait_ms, limit_ms;
    int64_t interactive_tokens = 0, bulk_tokens = 0, rejected = 0, cancelled = 0, late = 0;
  } queue;
  struct Device {
    std::string name;
    std::optional<double> busy, mfu;
    std::optional<int64_t> planned, held, limit;
    std::vector<std::pair<std::string, int64_t>> tags;
    nlohmann::ordered_json gpu;  // as in /health, or null
  } device;
  struct Batches {
    std::optional<double> fill, graph_share, mean_tokens, batches_s;
    std::vector<std::pair<std::string, double>> idle;  // shares of time, by cause
    int64_t batches = 0;                               // since the start, as in /metrics
    std::vector<std::pair<std::optional<double>, int64_t>>
        tokens;  // batch count by upper bound of tokens; no bound: the rest
  } batches;
  std::vector<DashboardModel> models;
  std::vector<DashboardLadder> ladders;
  std::vector<nlohmann::ordered_json> queues, jobs;  // as described by their own routes
  struct Switch {
    int64_t t_unix_ms = 0;
    std::string text;
  };
  std::vector<Switch> switches;  // newest first
  std::vector<std::string> warnings;
};
nlohmann::ordered_json to_json(const DashboardSnapshot& snapshot);

// The last 15 minutes, one snapshot every few seconds, so that a newly opened page has curves. Thread-safe.
class DashboardHistory {
 public:
  void add(const DashboardSnapshot& snapshot);
  std::string json(int64_t minutes) const;  // JSON array, oldest first

 private:
  mutable std::mutex mutex_;
  std::deque<std::pair<int64_t, std::string>> moments_;
};

}  // namespace brim::serve
