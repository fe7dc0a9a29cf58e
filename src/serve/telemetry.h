// SPDX-License-Identifier: Apache-2.0
// Health, metrics, dashboard figures and events of a server. Reads the other parts and changes none of them.
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "serve/dashboard.h"
#include "serve/durable/blocking_work.h"
#include "serve/events.h"
#include "serve/gpu_readings.h"
#include "serve/metrics.h"
#include "serve/models.h"
#include "serve/server_state.h"

namespace brim::serve {

struct RouteLabel {
  std::string_view path;
  bool scores;  // takes texts
};

struct HealthView {
  const char* status = "ok";
  bool dead = false;
  std::vector<Warning> warnings;
  std::vector<LadderView> ladders;
  double wait_seconds = 0;
  int64_t texts = 0, tokens = 0;
};

class Telemetry {
 public:
  // `routes`: by the route index of Counts::requests. The arguments must outlive it.
  Telemetry(const ServerOptions& options, const ModelRegistry& models, const ServerState& state,
            std::vector<RouteLabel> routes);
  void attach(const IoThreads& threads, const HttpServer* server);  // `server`: for the connections; may be null
  void set_durable(BlockingWork* durable) { durable_ = durable; }   // null: no state directory

  Metrics& counters() { return metrics_; }
  EventHub& events() { return events_; }

  void set_gpu(GpuReadings readings);  // thread-safe
  GpuReadings gpu() const;
  HealthView health() const { return health(gpu()); }
  HealthView health(const GpuReadings& gpu) const;
  std::string health_json(const GpuReadings& gpu, const HealthView& view) const;
  std::string metrics_text() const;

  // Updates the dashboard's figures; call every second, from one thread.
  void sample(std::optional<int64_t> held_bytes);
  void note_rung(size_t ladder);  // counts and announces a change of its active rung since the last call
  std::string snapshot() const;
  std::string history(int64_t minutes) const { return history_.json(minutes); }

 private:
  // Earlier counter values.
  struct Sample {
    int64_t ns = 0;
    uint64_t requests = 0;
    Counts counts;
    ScorerWork work;                 // sum over all models
    std::vector<uint64_t> texts;     // by model
    std::vector<size_t> scored;      // by model, with the texts of running bulk calls
    Histogram requests_by_duration;  // scoring requests only
  };
  DashboardSnapshot figures(std::optional<int64_t> held_bytes, const HealthView& health, const GpuReadings& gpu);
  Sample take_sample(DashboardSnapshot& s) const;
  void add_totals(DashboardSnapshot& s, const Sample& now, const HealthView& health) const;
  static void add_rates(DashboardSnapshot& s, const Sample& previous, const Sample& now);
  static void add_device_rates(DashboardSnapshot& s, const Sample& previous, const Sample& now, double seconds);
  static void add_histograms(DashboardSnapshot& s, const Sample& oldest, const Sample& now);
  void add_ladders(DashboardSnapshot& s, const HealthView& health, const Counts& oldest, const Counts& now) const;
  void add_durable(DashboardSnapshot& s) const;

  // Sections of /metrics.
  struct Readings;
  Readings read_models() const;
  void put_requests(MetricsText& text, const Counts& counts) const;
  void put_models(MetricsText& text, const Counts& counts, const Readings& now) const;
  void put_memory(MetricsText& text) const;
  void put_ladders(MetricsText& text) const;
  void put_durable(MetricsText& text) const;
  void put_process(MetricsText& text, const Counts& counts) const;
  void put_aliases(MetricsText& text, const Counts& counts, const Readings& now) const;
  std::string_view path_of(int route) const;

  const ServerOptions& options_;
  const ModelRegistry& models_;
  const ServerState& state_;
  const std::vector<RouteLabel> routes_;
  BlockingWork* durable_ = nullptr;
  const HttpServer* server_ = nullptr;
  Metrics metrics_;
  EventHub events_;
  mutable std::mutex gpu_mutex_;
  GpuReadings gpu_;
  std::deque<Sample> recent_, minutes_;  // owned by the sampling thread, as is the next
  std::set<std::string> warned_;         // kinds of current warnings
  DashboardHistory history_;
  mutable std::mutex snapshot_mutex_;  // guards the following
  std::vector<std::string> active_rungs_;
  std::deque<DashboardSnapshot::Switch> switches_;
  std::string snapshot_ = "null";
  std::optional<double> busy_, mfu_;
  std::optional<int64_t> held_bytes_;
  std::vector<std::array<uint64_t, kReasonCount>> ladder_switches_;  // by ladder and reason
};

}  // namespace brim::serve
