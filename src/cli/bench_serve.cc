// SPDX-License-Identifier: Apache-2.0
// brim bench serve: measures a server under load and compares its responses with Scorer::score. Does not measure the
// library itself (bench.cc).
#include "cli/bench_serve.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "base/units.h"
#include "brim/brim.h"
#include "cli/engine_flags.h"
#include "jobs/spread.h"
#include "monitor/host.h"
#include "serve/load.h"
#include "serve/serve.h"

namespace brim::cli {
namespace {

using serve::LoadOptions;
using serve::LoadResult;

struct BenchServeFlags {
  std::string url, api_key, served_model;
  double rate = 0, seconds = 10, max_queue_ms = 1000;
  int connections = 64, batch = 1;
  bool json = false;
};

// The first label of a response must be the expected one; other batches round differently, which may change a near tie.
LoadOptions predict_requests(const BenchServeFlags& f, const std::vector<std::string>& texts,
                             const std::vector<std::string>& labels) {
  using nlohmann::json;
  LoadOptions load;
  const auto batch = static_cast<size_t>(f.batch);
  const std::string key = f.api_key.empty() ? "" : fmt::format("Authorization: Bearer {}\r\n", f.api_key);
  for (size_t first = 0; first + batch <= texts.size(); first += batch) {
    json inputs = json::array();
    for (size_t i = first; i < first + batch; ++i) inputs.push_back(json::array({texts[i]}));
    json request{{"inputs", batch == 1 ? json(texts[first]) : inputs}};
    if (!f.served_model.empty()) request["model"] = f.served_model;
    const std::string body = request.dump(-1, ' ', false, json::error_handler_t::replace);
    load.requests.push_back(
        fmt::format("POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    "{}Content-Length: {}\r\n\r\n{}",
                    key, body.size(), body));
  }
  load.check = [&labels, batch](size_t request, std::string_view body) {
    // "label" occurs once per class; the first one of each text has the highest score.
    size_t at = 0;
    for (size_t i = 0; i < batch; ++i) {
      at = body.find("[{\"score\":", at);
      if (at == std::string_view::npos) return false;
      const size_t name = body.find("\"label\":\"", at) + 9;
      if (!body.substr(name).starts_with(labels[request * batch + i] + "\"")) return false;
      at = name;
    }
    return true;
  };
  return load;
}

struct BenchServeResult {
  const LoadResult& load;
  double texts_per_second = 0;
  std::vector<double> scorer_rates;  // Scorer::score before and after, if this process started the server
  std::string note;
};

nlohmann::ordered_json json_of(const BenchServeFlags& f, const BenchServeResult& r) {
  const auto times = [](const std::vector<double>& ms) -> nlohmann::ordered_json {
    if (ms.empty()) return nullptr;
    const jobs::Spread s = jobs::spread_of(ms);
    return {{"p50", s.p50}, {"p95", s.p95}, {"p99", s.p99}, {"most", s.most}};
  };
  nlohmann::ordered_json j = {{"schema_version", 1},
                              {"connections", f.connections},
                              {"texts_per_request", f.batch},
                              {"rate", f.rate},
                              {"seconds", r.load.seconds},
                              {"texts_per_second", r.texts_per_second},
                              {"answered", r.load.answered},
                              {"refused", r.load.refused},
                              {"failed", r.load.failed},
                              {"other", r.load.wrong},
                              {"answered_ms", times(r.load.ms)},
                              {"refused_ms", times(r.load.refused_ms)}};
  if (!r.scorer_rates.empty()) j["scorer_texts_per_second"] = r.scorer_rates;
  if (!r.note.empty()) j["note"] = r.note;
  return j;
}

void print(const BenchServeFlags& f, const BenchServeResult& r) {
  fmt::print("{} connections, {} texts per request, {}, {:.1f} s: {} texts/s\n", f.connections, f.batch,
             f.rate > 0 ? fmt::format("{} requests/s at random times", f.rate) : "no pauses between requests",
             r.load.seconds, format_si(r.texts_per_second));
  const auto line = [](const char* what, uint64_t n, const std::vector<double>& ms) {
    fmt::print("{:<11} {:>9}", what, n);
    if (!ms.empty()) {
      const jobs::Spread s = jobs::spread_of(ms);
      fmt::print("   p50 {:.3f} ms, p95 {:.3f} ms, p99 {:.3f} ms, max {:.3f} ms", s.p50, s.p95, s.p99, s.most);
    }
    fmt::print("\n");
  };
  line("answered", r.load.answered, r.load.ms);
  line("rejected", r.load.refused, r.load.refused_ms);
  line("failed", r.load.failed, {});
  line("wrong label", r.load.wrong, {});
  if (!r.scorer_rates.empty())
    fmt::print("Scorer::score before and after: {} and {} texts/s; the server reached {:.2f}× of this\n",
               format_si(r.scorer_rates[0]), format_si(r.scorer_rates[1]),
               2 * r.texts_per_second / (r.scorer_rates[0] + r.scorer_rates[1]));
  if (!r.note.empty()) fmt::print("note: {}\n", r.note);
}

// Rejections are valid responses of an overloaded server; any other error invalidates the measurement.
void require_good(const BenchServeFlags& f, const LoadResult& r) {
  const uint64_t all = r.answered + r.refused + r.failed;
  if (r.failed > 0)
    fail(ErrorCode::bad_data, "{} of {} requests failed{}", r.failed, all,
         r.failed_status == 401 && f.api_key.empty() ? " with status 401; set --api-key"
         : r.failed_status > 0                       ? fmt::format(" with status {}", r.failed_status)
                                                     : ": connections closed or requests timed out");
  if (r.answered == 0) fail(ErrorCode::bad_data, "all {} requests were rejected", all);
  if (static_cast<double>(r.wrong) > 0.002 * static_cast<double>(r.answered) + 1)
    fail(ErrorCode::internal, "{} of {} responses have a different label than Scorer::score", r.wrong, r.answered);
}

// Runs a server and its clients on this machine, or only the clients of an existing server.
int run_bench_serve(const BenchServeFlags& f, const EngineFlags& engine, const std::vector<std::string>& texts) {
  if (f.connections < 1 || f.batch < 1)
    fail(ErrorCode::usage, "--connections {}, --batch {}: must be at least 1", f.connections, f.batch);
  if (!f.served_model.empty() && f.url.empty())
    fail(ErrorCode::usage, "--served-model {}: requires --url", f.served_model);
  if (f.rate < 0) fail(ErrorCode::usage, "--rate {}: must not be negative", f.rate);
  if (!(f.seconds > 0)) fail(ErrorCode::usage, "--seconds {}: must be above 0", f.seconds);
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  ScorerOptions options = engine.scorer_options();
  options.raw_scores = true;
  options.queue_seconds = f.max_queue_ms * 1e-3;
  const std::shared_ptr<Scorer> scorer = Scorer::open(options);
  const auto score_all = [&] {
    const int64_t begin = now_ns();
    const Predictions scored = scorer->score(views);
    const double rate = static_cast<double>(texts.size()) / seconds_since(begin);
    std::vector<std::string> labels;
    for (const int32_t label : scored.labels)
      labels.push_back(label < 0 ? "" : scorer->labels()[static_cast<size_t>(label)]);
    return std::pair(std::move(labels), rate);
  };
  const auto [labels, first_rate] = score_all();
  LoadOptions load = predict_requests(f, texts, labels);
  load.connections = f.connections;
  // More threads than the load needs would take cores from the server.
  load.threads = std::clamp(f.connections / 128, 1, std::max(1, hardware_threads() / 4));
  load.rate = f.rate;
  load.seconds = f.seconds;
  std::optional<serve::Server> server;
  if (f.url.empty()) {
    serve::ServerOptions serving;
    serving.listen = "127.0.0.1:0";
    serving.models.push_back({"model", options.model, "0", scorer});
    serving.max_queue_ms = f.max_queue_ms;
    serving.connections_per_address = std::max<int64_t>(serving.connections_per_address, f.connections);
    serving.max_client_batch_size = std::max(1024, f.batch);
    server.emplace(std::move(serving));
    server->start();
    load.port = server->port();
  } else {
    std::string place = f.url.substr(f.url.starts_with("http://") ? 7 : 0);
    if (place.ends_with('/')) place.pop_back();
    if (place.starts_with("https://") || place.find('/') != std::string::npos)
      fail(ErrorCode::usage, "--url {}: must be http://HOST:PORT, without TLS and path", f.url);
    const serve::ListenAddress address = serve::parse_listen_address(place);
    load.host = address.host;
    load.port = address.port;
  }
  monitor::OtherProcesses others;
  const LoadResult result = serve::run_load(load);
  const auto busy = others.load();
  BenchServeResult all{result, static_cast<double>(result.answered) * f.batch / std::max(1e-9, result.seconds), {}, ""};
  if (f.url.empty()) all.scorer_rates = {first_rate, score_all().second};
  if (busy.disturbs()) all.note = "during the measurement " + busy.text();
  if (f.json)
    fmt::print("{}\n", json_of(f, all).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  else
    print(f, all);
  require_good(f, result);
  return 0;
}

}  // namespace

std::function<int()> setup_bench_serve(CLI::App& app, const EngineFlags& engine,
                                       std::function<std::vector<std::string>(size_t most)> texts) {
  auto f = std::make_shared<BenchServeFlags>();
  app.add_option("--connections", f->connections, "number of concurrent clients")->capture_default_str();
  app.add_option("--rate", f->rate, "requests per second at random (Poisson) times; 0: as many as possible")
      ->capture_default_str();
  app.add_option("--seconds", f->seconds, "seconds to measure")->capture_default_str();
  app.add_option("--batch", f->batch, "texts per request")->capture_default_str();
  app.add_option("--max-queue-ms", f->max_queue_ms, "--max-queue-ms of the started server")->capture_default_str();
  app.add_option("--url", f->url, "existing server, such as http://127.0.0.1:8080 (default: start one)");
  app.add_option("--served-model", f->served_model,
                 "model to request from --url; labels are compared with those of --model");
  app.add_option("--api-key", f->api_key, "key for --url; set BRIM_API_KEY to keep it out of process lists")
      ->envname("BRIM_API_KEY");
  app.add_flag("--json", f->json, "print JSON");
  return [f, &engine, texts] { return run_bench_serve(*f, engine, texts(20'000)); };
}

}  // namespace brim::cli
