// SPDX-License-Identifier: Apache-2.0
#include "serve/serve.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "hub/model_dir.h"
#include "io/sha256.h"
#include "monitor/host.h"
#include "monitor/nvml.h"

namespace brim::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kRefusalSeconds = 0.5;  // time for clients to read the refusals
constexpr int kLostSamples = 3;  // samples with a lost GPU before the server exits, so that a supervisor can restart it

template <class T>
Json reading_json(const std::optional<T>& value, double scale = 1) {
  return value ? Json(static_cast<double>(*value) * scale) : Json(nullptr);
}

bool is_on_gpu(const Served& model) { return !model->scorer->device().starts_with("cpu"); }

GpuReadings readings_of(const std::vector<monitor::GpuSample>& gpus, const monitor::Watch& watch, bool on_gpu,
                        const MemoryPlan& planned, std::optional<int64_t> held) {
  constexpr double kMiB = 1.0 / (1 << 20);
  GpuReadings readings;
  for (size_t i = 0; i < watch.active().size(); ++i)
    readings.warnings.push_back({watch.active_kinds()[i].name, watch.active()[i], watch.active_kinds()[i].fault});
  const bool over = on_gpu && planned.limit_bytes > 0 && held.value_or(0) > planned.limit_bytes;
  if (over)
    readings.warnings.push_back({"held", fmt::format("{} of GPU memory in use, the limit is {}", format_bytes(*held),
                                                     format_bytes(planned.limit_bytes))});
  const monitor::GpuSample* first = gpus.empty() ? nullptr : &gpus[0];
  readings.computes = on_gpu;
  readings.healthy = !on_gpu || first == nullptr || first->state == monitor::GpuState::ok;
  const Json block = {{"healthy", readings.healthy && !watch.faulty() && !over},
                      {"gpu_available", first != nullptr && first->state == monitor::GpuState::ok},
                      {"name", first != nullptr ? Json(first->name) : Json(nullptr)},
                      {"driver", first != nullptr ? Json(first->driver) : Json(nullptr)},
                      {"utilization_pct", first != nullptr ? reading_json(first->utilization, 100) : Json(nullptr)},
                      {"vram_used_mb", first != nullptr ? reading_json(first->used_bytes, kMiB) : Json(nullptr)},
                      {"vram_total_mb", first != nullptr ? reading_json(first->total_bytes, kMiB) : Json(nullptr)},
                      {"vram_free_mb", first != nullptr ? reading_json(first->free_bytes, kMiB) : Json(nullptr)},
                      {"temperature_c", first != nullptr ? reading_json(first->temperature_c) : Json(nullptr)},
                      {"power_w", first != nullptr ? reading_json(first->power_w) : Json(nullptr)},
                      {"sm_clock_mhz", first != nullptr ? reading_json(first->sm_clock_mhz) : Json(nullptr)},
                      {"planned_mb", on_gpu ? Json(static_cast<double>(planned.peak_bytes) * kMiB) : Json(nullptr)},
                      {"limit_mb", on_gpu ? Json(static_cast<double>(planned.limit_bytes) * kMiB) : Json(nullptr)},
                      {"mfu_pct", nullptr},
                      {"device_busy_pct", nullptr},
                      {"warnings", sentences(readings.warnings)}};
  readings.health_json = block.dump(-1, ' ', false, Json::error_handler_t::replace);
  MetricsText text;
  const auto reading = [&](const char* name, const char* type, const char* help, const auto& value, double scale) {
    text.family(name, type, help);
    for (const monitor::GpuSample& gpu : gpus) {
      const auto found = value(gpu);
      const std::string index = std::to_string(gpu.index);
      const std::pair<std::string_view, std::string_view> labels[] = {
          {"gpu", index}, {"uuid", gpu.uuid}, {"pci_bus_id", gpu.pci_bus_id}};
      if (found) text.value(name, labels, static_cast<double>(*found) * scale);
    }
  };
  if (!gpus.empty()) {
    reading(
        "brim_gpu_utilization_ratio", "gauge", "share of time with a kernel running",
        [](const monitor::GpuSample& g) { return g.utilization; }, 1);
    reading(
        "brim_gpu_memory_used_bytes", "gauge", "GPU memory used by all processes",
        [](const monitor::GpuSample& g) { return g.used_bytes; }, 1);
    reading(
        "brim_gpu_temperature_celsius", "gauge", "GPU temperature",
        [](const monitor::GpuSample& g) { return g.temperature_c; }, 1);
    reading(
        "brim_gpu_power_watts", "gauge", "current GPU power draw",
        [](const monitor::GpuSample& g) { return g.power_w; }, 1);
    reading(
        "brim_gpu_energy_joules_total", "counter", "GPU energy since the driver was loaded",
        [](const monitor::GpuSample& g) { return g.energy_mj; }, 1e-3);
    reading(
        "brim_gpu_sm_clock_hertz", "gauge", "clock of the multiprocessors",
        [](const monitor::GpuSample& g) { return g.sm_clock_mhz; }, 1e6);
  }
  readings.metrics_text = text.take();
  return readings;
}

int default_io_threads(const std::vector<Served>& models) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const bool on_gpu = std::any_of(models.begin(), models.end(), is_on_gpu);
  return on_gpu ? std::clamp(cores / 2, 1, 8) : std::max(1, cores / 8);
}

}  // namespace

// Reads the GPU once per tick on its own thread, because a driver call may be slow and /health must not be. Also
// samples the dashboard's figures and maintains the models.
class Server::Sampler {
 public:
  Sampler(Service& service, const monitor::WatchLimits& limits, double tick_seconds)
      : service_(service), limits_(limits), tick_seconds_(tick_seconds), thread_([this] { run(); }) {}
  ~Sampler() {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void run() {
    monitor::Nvml nvml;
    monitor::Watch watch{limits_};
    std::optional<std::string> own_gpu;  // PCI address; NVML's order differs from CUDA's, and CUDA may hide GPUs
    int lost_samples = 0;
    const monitor::GpuSampleOptions basic{.pcie_throughput = false, .processes = false, .gpm = false};
    std::unique_lock lock(mutex_);
    while (!ending_) {
      lock.unlock();
      std::vector<Served> models = service_.loaded();
      const auto computing = std::find_if(models.begin(), models.end(), is_on_gpu);
      const bool on_gpu = computing != models.end();
      const bool resident = std::any_of(models.begin(), models.end(), [](const Served& model) {
        return is_on_gpu(model) && model->scorer->residence() == Residence::resident;
      });
      if (on_gpu) own_gpu = (*computing)->scorer->pci_bus_id();
      models.clear();  // do not keep unloaded or replaced models alive during the wait
      // Sample only the models' GPU once it is known, otherwise all GPUs.
      std::vector<monitor::GpuSample> gpus;
      if (nvml.ready() && own_gpu) {
        if (auto gpu = nvml.sample_card(*own_gpu, basic)) gpus.push_back(std::move(*gpu));
      } else if (nvml.ready()) {
        gpus = nvml.sample(basic);
      }
      for (const std::string& warning : watch.check(gpus)) log_warning("{}", warning);
      std::optional<int64_t> held;
      if (!on_gpu) held = monitor::own_resident_bytes();
      if (on_gpu && nvml.ready()) held = nvml.own_bytes(*own_gpu);
      GpuReadings readings = readings_of(gpus, watch, on_gpu, service_.planned(), held);
      readings.lost = resident && !gpus.empty() && gpus[0].state == monitor::GpuState::lost;
      lost_samples = readings.lost ? lost_samples + 1 : 0;
      readings.gone = lost_samples >= kLostSamples;
      service_.set_gpu(std::move(readings));
      service_.sample(held);
      service_.maintain_models();
      lock.lock();
      changed_.wait_for(lock, std::chrono::duration<double>(tick_seconds_), [this] { return ending_; });
    }
  }
  Service& service_;
  const monitor::WatchLimits limits_;
  const double tick_seconds_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::thread thread_;
};

std::string model_revision(const std::string& directory) {
  if (hub::names_vader(directory)) return io::sha256_hex(std::string("vader ") + version()).substr(0, 8);
  return io::sha256_hex(hub::model_facts(directory)).substr(0, 8);
}

namespace {

ListenAddress address_of(const ServerOptions& options) {
  return options.socket ? *options.socket : parse_listen_address(options.listen);
}

}  // namespace

void require_allowed(const ServerOptions& options) {
  const ListenAddress address = address_of(options);
  if (!address.is_loopback() && options.keys.empty() && !options.insecure)
    fail(ErrorCode::usage, Remedy{"set `api_key_file`, or `insecure=true` on a trusted network"},
         "`listen={}`: not a loopback address, and there are no API keys", address.text());
}

Server::Server(ServerOptions options) : options_(std::move(options)) {
  require_allowed(options_);
  const ListenAddress address = address_of(options_);
  ServiceOptions service;
  service.models = std::exchange(options_.models, {});  // the service alone owns them, so that unloading frees memory
  service.ladders = options_.ladders;
  service.queues = options_.queues;
  service.state_dir = options_.state_dir;
  service.state_needed = options_.state_needed;
  service.jobs_root = options_.jobs_root;
  service.keep_jobs_seconds = options_.keep_jobs_seconds;
  service.job_limits = options_.job_limits;
  service.keys = options_.keys;
  service.reopen = options_.reopen;
  service.revision_of = options_.revision_of;
  service.tagger_of = options_.tagger_of;
  service.read_keys = options_.read_keys;
  service.allowed_hosts = options_.allowed_hosts;
  service.cors_origins = options_.cors_origins;
  if (!address.host.empty()) service.allowed_hosts.push_back(address.host);
  // An inherited socket only has a numeric address; also allow the host name of `listen`.
  if (options_.socket)
    if (const ListenAddress listen = parse_listen_address(options_.listen); !listen.host.empty())
      service.allowed_hosts.push_back(listen.host);
  service.queue_seconds = options_.max_queue_ms * 1e-3;
  service.texts_per_request = static_cast<size_t>(options_.max_client_batch_size);
  service.payload_bytes = static_cast<size_t>(options_.payload_limit);
  service.truncates = options_.truncates;
  service.tags_whole_texts = options_.tags_whole_texts;
  service.merges_windows = options_.merges_windows;
  service.requests = static_cast<size_t>(options_.max_requests);
  service.release_device_seconds = options_.release_device_seconds;
  service.load_retry_seconds = options_.load_retry_seconds;
  service.unix_clock = options_.unix_clock;
  if (!options_.access_log.empty()) {
    log_ = std::make_unique<AccessLog>(options_.access_log);
    service.access_log = [this](std::string_view line) { log_->add(line); };
  }
  HttpOptions http;
  if (options_.tls_cert.empty() != options_.tls_key.empty())
    fail(ErrorCode::usage, "TLS needs both `tls_cert` and `tls_key`");
  if (!options_.tls_cert.empty()) {
    http.tls = TlsContext::load(options_.tls_cert, options_.tls_key);
    service.read_certificate = [this] { http_->set_tls(TlsContext::load(options_.tls_cert, options_.tls_key)); };
  }
  service_ = std::make_unique<Service>(std::move(service));
  http.threads = options_.io_threads > 0 ? options_.io_threads : default_io_threads(service_->loaded());
  http.proxies = options_.proxies;
  http.connections_per_address = static_cast<size_t>(options_.connections_per_address);
  http.head_seconds = options_.head_seconds;
  http.connections = std::max(http.connections, http.connections_per_address);
  http.framing.body = static_cast<uint64_t>(options_.payload_limit);
  http.body_bytes = std::max<int64_t>(http.body_bytes, 2 * options_.payload_limit);
  http_ = std::make_unique<HttpServer>(address, http, *service_);
  service_->attach(*http_);
}

Server::~Server() {
  gates_ = {};  // stops the measurement
  sampler_.reset();
  http_->stop();
  service_.reset();  // before the I/O loops, which late results would wake
}

void Server::start() {
  sampler_ = std::make_unique<Sampler>(*service_, options_.watch, options_.tick_seconds);
  http_->start();
  gates_ = std::jthread([this](const std::stop_token& stop) { service_->measure_gates(stop, true); });
}

std::vector<std::string> Server::check() {
  service_->measure_gates({}, false);
  return service_->warnings();
}

uint16_t Server::port() const { return http_->port(); }

std::string Server::address() const {
  ListenAddress address = address_of(options_);
  if (!address.unix_path.empty()) return address.text();
  address.port = http_->port();
  return (options_.tls_cert.empty() ? "http://" : "https://") + address.text();
}

bool Server::run(const std::atomic<bool>& stop, std::atomic<bool>* reload, const std::function<void()>& draining) {
  const auto is_lost = [this] { return service_->device_lost() || service_->gpu_gone(); };
  while (!stop && !is_lost() && !service_->drain_wanted()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (reload != nullptr && reload->exchange(false)) service_->request_reload();
  }
  const bool lost = is_lost();
  if (draining) draining();
  drain();
  return !lost;
}

void Server::drain() {
  gates_.request_stop();
  http_->close_after_answers();
  if (options_.socket) {  // a new server accepts connections; answer the existing ones
    http_->stop_accepting();
    service_->begin_drain();
  } else {
    service_->drain();
  }
  const int64_t since = now_ns();
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(10)); };
  const auto settled = [&] { return options_.socket && http_->connections() == 0; };
  while (seconds_since(since) < options_.lame_duck_seconds && !settled()) pause();
  service_->refuse_texts();
  http_->stop_listening();
  while (http_->busy() > 0 && seconds_since(since) < options_.drain_seconds) pause();
  if (http_->busy() > 0) service_->refuse_all();
  for (const int64_t refused = now_ns(); http_->busy() > 0 && seconds_since(refused) < kRefusalSeconds;) pause();
  http_->stop();
}

}  // namespace brim::serve
