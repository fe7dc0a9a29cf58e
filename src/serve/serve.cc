// SPDX-License-Identifier: Apache-2.0
#include "serve/serve.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "hub/model_dir.h"
#include "hub/model_files.h"
#include "io/sha256.h"
#include "monitor/host.h"
#include "monitor/nvml.h"
#include "serve/router.h"

namespace brim::serve {
namespace {

constexpr double kRefusalSeconds = 0.5;  // time for clients to read the refusals
constexpr int kLostSamples = 3;  // samples with a lost GPU before the server exits, so that a supervisor can restart it

bool is_on_gpu(const Served& model) { return !model->scorer->device().starts_with("cpu"); }

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
  Sampler(ServerParts& server, const ServerOptions& options)
      : server_(server),
        limits_(options.watch),
        tick_seconds_(options.tick_seconds),
        gpu_log_seconds_(options.gpu_log_seconds),
        thread_([this] { run(); }) {}
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
      std::vector<Served> models = server_.models.loaded();
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
      log_gpus(gpus);
      std::optional<int64_t> held;
      if (!on_gpu) held = monitor::own_resident_bytes();
      if (on_gpu && nvml.ready()) held = nvml.own_bytes(*own_gpu);
      GpuReadings readings = readings_of(gpus, watch, on_gpu, server_.models.planned(), held);
      readings.lost = resident && !gpus.empty() && gpus[0].state == monitor::GpuState::lost;
      lost_samples = readings.lost ? lost_samples + 1 : 0;
      readings.gone = lost_samples >= kLostSamples;
      server_.telemetry.set_gpu(std::move(readings));
      server_.telemetry.sample(held);
      server_.models.maintain(server_.state.idle());
      lock.lock();
      changed_.wait_for(lock, std::chrono::duration<double>(tick_seconds_), [this] { return ending_; });
    }
  }
  void log_gpus(const std::vector<monitor::GpuSample>& gpus) {
    if (gpu_log_seconds_ <= 0 || (logged_ns_ > 0 && seconds_since(logged_ns_) < gpu_log_seconds_)) return;
    logged_ns_ = now_ns();
    for (const monitor::GpuSample& gpu : gpus) log_info("{}", log_line(gpu));
    if (gpus.empty()) log_info("no GPU");
  }

  ServerParts& server_;
  const monitor::WatchLimits limits_;
  const double tick_seconds_, gpu_log_seconds_;
  int64_t logged_ns_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::thread thread_;
};

std::string model_revision(const std::string& directory, const std::optional<ZeroShot>& labels,
                           const std::optional<EntityLabels>& entities, const std::string& adapter) {
  std::string facts = hub::names_vader(directory) ? std::string("vader ") + version()
                                                  : hub::model_facts(hub::ModelFiles(directory, adapter));
  if (labels) {
    facts += fmt::format("\n{}\n{}", labels->text_template, labels->multi_label);
    for (const std::string& label : labels->labels) facts += "\n" + label;
  }
  if (entities)
    facts +=
        fmt::format("\nentities {} {}\n{}", entities->threshold, entities->nested, fmt::join(entities->labels, "\n"));
  return io::sha256_hex(facts).substr(0, 8);
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

class Server::Impl {
 public:
  explicit Impl(ServerOptions options);
  ~Impl();
  void start();
  uint16_t port() const;
  std::string address() const;
  bool run(const std::atomic<bool>& stop, std::atomic<bool>* reload, const std::function<void()>& draining);
  void drain();
  std::vector<std::string> check();

 private:
  ServerOptions options_;  // the parts own the models
  std::unique_ptr<AccessLog> log_;
  std::unique_ptr<ServerParts> parts_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<Sampler> sampler_;
  std::jthread gates_;
};

Server::Impl::Impl(ServerOptions options) : options_(std::move(options)) {
  require_allowed(options_);
  const ListenAddress address = address_of(options_);
  if (!address.host.empty()) options_.allowed_hosts.push_back(address.host);
  // An inherited socket only has a numeric address; also allow the host name of `listen`.
  if (options_.socket)
    if (const ListenAddress listen = parse_listen_address(options_.listen); !listen.host.empty())
      options_.allowed_hosts.push_back(listen.host);
  ServerHooks hooks;
  if (!options_.access_log.empty()) {
    log_ = std::make_unique<AccessLog>(options_.access_log);
    hooks.access_log = [this](std::string_view line) { log_->add(line); };
  }
  HttpOptions http;
  if (options_.tls_cert.empty() != options_.tls_key.empty())
    fail(ErrorCode::usage, "TLS needs both `tls_cert` and `tls_key`");
  if (!options_.tls_cert.empty()) {
    http.tls = TlsContext::load(options_.tls_cert, options_.tls_key);
    hooks.read_certificate = [this] { http_->set_tls(TlsContext::load(options_.tls_cert, options_.tls_key)); };
  }
  std::vector<ServedModel> models = std::exchange(options_.models, {});  // so that unloading frees memory
  parts_ = std::make_unique<ServerParts>(options_, std::move(models), Router::routes(), std::move(hooks));
  router_ = std::make_unique<Router>(*parts_);
  http.threads = options_.io_threads > 0 ? options_.io_threads : default_io_threads(parts_->models.loaded());
  http.proxies = options_.proxies;
  http.connections_per_address = static_cast<size_t>(options_.connections_per_address);
  http.head_seconds = options_.head_seconds;
  http.connections = std::max(http.connections, http.connections_per_address);
  http.framing.body = static_cast<uint64_t>(options_.payload_limit);
  http.body_bytes = std::max<int64_t>(http.body_bytes, 2 * options_.payload_limit);
  http_ = std::make_unique<HttpServer>(address, http, *router_);
  parts_->attach(*http_);
}

Server::Impl::~Impl() {
  gates_ = {};  // stops the measurement
  sampler_.reset();
  http_->stop();
  parts_.reset();  // before the I/O loops, which late results would wake
}

void Server::Impl::start() {
  sampler_ = std::make_unique<Sampler>(*parts_, options_);
  http_->start();
  gates_ = std::jthread([this](const std::stop_token& stop) { parts_->measure_gates(stop, true); });
}

std::vector<std::string> Server::Impl::check() {
  parts_->measure_gates({}, false);
  return sentences(parts_->telemetry.health({}).warnings);
}

uint16_t Server::Impl::port() const { return http_->port(); }

std::string Server::Impl::address() const {
  ListenAddress address = address_of(options_);
  if (!address.unix_path.empty()) return address.text();
  address.port = http_->port();
  return (options_.tls_cert.empty() ? "http://" : "https://") + address.text();
}

bool Server::Impl::run(const std::atomic<bool>& stop, std::atomic<bool>* reload,
                       const std::function<void()>& draining) {
  const auto is_lost = [this] { return parts_->models.device_lost() || parts_->telemetry.gpu().gone; };
  while (!stop && !is_lost() && !parts_->state.drain_wanted) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (reload != nullptr && reload->exchange(false)) parts_->request_reload();
  }
  const bool lost = is_lost();
  if (draining) draining();
  drain();
  return !lost;
}

void Server::Impl::drain() {
  gates_.request_stop();
  http_->close_after_answers();
  if (options_.socket) {  // a new server accepts connections; answer the existing ones
    http_->stop_accepting();
  } else {
    parts_->state.refusing = true;
  }
  parts_->begin_drain();
  const int64_t since = now_ns();
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(10)); };
  const auto settled = [&] { return options_.socket && http_->connections() == 0; };
  while (seconds_since(since) < options_.lame_duck_seconds && !settled()) pause();
  parts_->state.refusing = true;
  http_->stop_listening();
  while (http_->busy() > 0 && seconds_since(since) < options_.drain_seconds) pause();
  if (http_->busy() > 0) parts_->refuse_all();
  for (const int64_t refused = now_ns(); http_->busy() > 0 && seconds_since(refused) < kRefusalSeconds;) pause();
  http_->stop();
}

Server::Server(ServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Server::~Server() = default;
void Server::start() { impl_->start(); }
uint16_t Server::port() const { return impl_->port(); }
std::string Server::address() const { return impl_->address(); }
bool Server::run(const std::atomic<bool>& stop, std::atomic<bool>* reload, const std::function<void()>& draining) {
  return impl_->run(stop, reload, draining);
}
void Server::drain() { impl_->drain(); }
std::vector<std::string> Server::check() { return impl_->check(); }

}  // namespace brim::serve
