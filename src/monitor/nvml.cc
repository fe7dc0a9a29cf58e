// SPDX-License-Identifier: Apache-2.0
#include "monitor/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>

#include "base/clock.h"
#include "base/env.h"
#include "monitor/nvml_abi.h"

namespace brim::monitor {
namespace {

using namespace nvml_abi;

struct ThrottleBit {
  unsigned long long bit;
  const char* name;
};
constexpr ThrottleBit kThrottleBits[] = {
    {0x1, "idle"},
    {0x2, "application clocks"},
    {0x4, "power cap"},
    {0x8, "hardware slowdown"},
    {0x10, "sync boost"},
    {0x20, "software thermal"},
    {0x40, "hardware thermal"},
    {0x80, "power brake"},
    {0x100, "display clocks"},
};

std::vector<std::string> throttle_names(unsigned long long bits) {
  std::vector<std::string> names;
  for (const auto& [bit, name] : kThrottleBits) {
    if (bits & bit) names.emplace_back(name);
    bits &= ~bit;
  }
  if (bits != 0) names.push_back(fmt::format("reason {:#x}", bits));
  return names;
}

std::string process_name(int64_t pid) {
  std::ifstream in(fmt::format("/proc/{}/comm", pid));
  std::string name;
  std::getline(in, name);
  return name;
}

// Domain, bus and device of "0000:65:00.0" or "00000000:65:00.0".
std::optional<std::array<unsigned, 3>> pci_address(const std::string& text) {
  std::array<unsigned, 3> a = {};
  if (std::sscanf(text.c_str(), "%x:%x:%x", &a[0], &a[1], &a[2]) != 3) return std::nullopt;
  return a;
}

// GPM metrics cover the time between two samples, which must be at least 0.1 s apart.
constexpr int64_t kGpmLeastNs = 100'000'000;

}  // namespace

const char* gpu_state_name(GpuState state) {
  static const char* const names[] = {"ok", "lost", "no permission", "failed"};
  return names[static_cast<int>(state)];
}

bool same_card(const std::string& a, const std::string& b) {
  const auto x = pci_address(a), y = pci_address(b);
  return x && y && *x == *y;
}

const char* nvml_state_name(NvmlState state) {
  static const char* const names[] = {"ready", "no library", "no driver", "no permission", "failed"};
  return names[static_cast<int>(state)];
}

struct Nvml::Library {
  void* handle = nullptr;
  bool initialised = false;
  NvmlState state = NvmlState::failed;
  std::string why, driver;

  // Constant properties and the GPM samples of one GPU.
  struct Card {
    Device device = nullptr;
    std::string name, uuid, pci_bus_id;
    bool gpm_supported = false;
    GpmSample previous = nullptr, current = nullptr;
    int64_t previous_ns = 0;
  };
  std::vector<Card> cards;
  GpmMetrics gpm_request = {};

  // One pointer per function; null if the driver lacks it.
  Return (*init)() = nullptr;
  Return (*shutdown)() = nullptr;
  const char* (*error_string)(Return) = nullptr;
  Return (*driver_version)(char*, unsigned) = nullptr;
  Return (*device_count)(unsigned*) = nullptr;
  Return (*device_handle)(unsigned, Device*) = nullptr;
  Return (*device_name)(Device, char*, unsigned) = nullptr;
  Return (*device_uuid)(Device, char*, unsigned) = nullptr;
  Return (*pci_info)(Device, PciInfo*) = nullptr;
  Return (*utilization)(Device, Utilization*) = nullptr;
  Return (*memory)(Device, Memory*) = nullptr;
  Return (*memory_with_reserved)(Device, MemoryWithReserved*) = nullptr;
  Return (*temperature)(Device, unsigned, unsigned*) = nullptr;
  Return (*temperature_struct)(Device, Temperature*) = nullptr;
  Return (*power)(Device, unsigned*) = nullptr;
  Return (*power_limit)(Device, unsigned*) = nullptr;
  Return (*clock)(Device, unsigned, unsigned*) = nullptr;
  Return (*max_clock)(Device, unsigned, unsigned*) = nullptr;
  Return (*throttle)(Device, unsigned long long*) = nullptr;
  Return (*pcie_generation)(Device, unsigned*) = nullptr;
  Return (*pcie_width)(Device, unsigned*) = nullptr;
  Return (*pcie_throughput)(Device, unsigned, unsigned*) = nullptr;
  Return (*energy)(Device, unsigned long long*) = nullptr;
  Return (*compute_processes)(Device, unsigned*, ProcessInfo*) = nullptr;
  Return (*old_compute_processes)(Device, unsigned*, OldProcessInfo*) = nullptr;
  Return (*gpm_support)(Device, GpmSupport*) = nullptr;
  Return (*gpm_alloc)(GpmSample*) = nullptr;
  Return (*gpm_free)(GpmSample) = nullptr;
  Return (*gpm_get)(Device, GpmSample) = nullptr;
  Return (*gpm_metrics)(GpmMetrics*) = nullptr;

  // Binds the first available of several names: newer entry points before older ones.
  template <class Function>
  void bind(Function*& function, std::initializer_list<const char*> names) {
    for (const char* name : names)
      if (void* symbol = ::dlsym(handle, name)) {
        function = reinterpret_cast<Function*>(symbol);
        return;
      }
  }
  void bind_all();
  void open(const std::string& library);
  void open_cards();
  void close();

  std::string words(Return code) const {
    return error_string != nullptr ? error_string(code) : fmt::format("NVML error {}", code);
  }
  void not_ready(NvmlState s, std::string sentence) {
    state = s;
    why = std::move(sentence);
  }

  // Calls `function` and records a lost GPU or a refused reading in the sample.
  template <class Function, class... Args>
  bool query(GpuSample& s, const char* reading, Function* function, Args... args) const {
    if (function == nullptr || s.state == GpuState::lost) return false;
    const Return code = function(args...);
    if (code == kGpuIsLost) {
      s.state = GpuState::lost;
      s.why = words(code);
    }
    if (code == kNoPermission) s.refused.emplace_back(reading);
    return code == kSuccess;
  }

  GpuSample sample(int index, const GpuSampleOptions& options);
  void sample_memory(GpuSample& s, Device device) const;
  void sample_clocks(GpuSample& s, Device device) const;
  void sample_pcie(GpuSample& s, Device device, bool throughput) const;
  void sample_processes(GpuSample& s, Device device) const;
  void sample_gpm(GpuSample& s, Card& card);
};

void Nvml::Library::bind_all() {
  bind(init, {"nvmlInit_v2", "nvmlInit"});
  bind(shutdown, {"nvmlShutdown"});
  bind(error_string, {"nvmlErrorString"});
  bind(driver_version, {"nvmlSystemGetDriverVersion"});
  bind(device_count, {"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"});
  bind(device_handle, {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"});
  bind(device_name, {"nvmlDeviceGetName"});
  bind(device_uuid, {"nvmlDeviceGetUUID"});
  bind(pci_info, {"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"});
  bind(utilization, {"nvmlDeviceGetUtilizationRates"});
  bind(memory, {"nvmlDeviceGetMemoryInfo"});
  bind(memory_with_reserved, {"nvmlDeviceGetMemoryInfo_v2"});
  bind(temperature, {"nvmlDeviceGetTemperature"});
  bind(temperature_struct, {"nvmlDeviceGetTemperatureV"});
  bind(power, {"nvmlDeviceGetPowerUsage"});
  bind(power_limit, {"nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit"});
  bind(clock, {"nvmlDeviceGetClockInfo"});
  bind(max_clock, {"nvmlDeviceGetMaxClockInfo"});
  bind(throttle, {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"});
  bind(pcie_generation, {"nvmlDeviceGetCurrPcieLinkGeneration"});
  bind(pcie_width, {"nvmlDeviceGetCurrPcieLinkWidth"});
  bind(pcie_throughput, {"nvmlDeviceGetPcieThroughput"});
  bind(energy, {"nvmlDeviceGetTotalEnergyConsumption"});
  bind(compute_processes, {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"});
  bind(old_compute_processes, {"nvmlDeviceGetComputeRunningProcesses"});
  bind(gpm_support, {"nvmlGpmQueryDeviceSupport"});
  bind(gpm_alloc, {"nvmlGpmSampleAlloc"});
  bind(gpm_free, {"nvmlGpmSampleFree"});
  bind(gpm_get, {"nvmlGpmSampleGet"});
  bind(gpm_metrics, {"nvmlGpmMetricsGet"});
}

void Nvml::Library::open(const std::string& library) {
  handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    return not_ready(NvmlState::no_library, fmt::format("no NVIDIA driver ({} not found)", library));
  bind_all();
  if (init == nullptr || shutdown == nullptr || device_count == nullptr || device_handle == nullptr)
    return not_ready(NvmlState::no_library, fmt::format("{} is not NVIDIA's management library", library));
  const Return code = init();
  if (code == kDriverNotLoaded || code == kLibraryNotFound)
    return not_ready(NvmlState::no_driver, "the NVIDIA driver is not loaded: " + words(code));
  if (code == kNoPermission)
    return not_ready(NvmlState::no_permission, "no permission to query the NVIDIA driver: " + words(code));
  if (code != kSuccess) return not_ready(NvmlState::failed, "the NVIDIA driver does not respond: " + words(code));
  initialised = true;
  state = NvmlState::ready;
  open_cards();
}

void Nvml::Library::open_cards() {
  char text[kTextSize] = {};
  if (driver_version != nullptr && driver_version(text, sizeof text) == kSuccess) driver = text;
  unsigned n = 0;
  if (const Return code = device_count(&n); code != kSuccess)
    return not_ready(NvmlState::failed, "cannot count GPUs: " + words(code));
  cards.resize(n);
  for (unsigned i = 0; i < n; ++i) {
    Card& card = cards[i];
    if (device_handle(i, &card.device) != kSuccess) {  // retried at each sample
      card.device = nullptr;
      continue;
    }
    if (device_name != nullptr && device_name(card.device, text, sizeof text) == kSuccess) card.name = text;
    if (device_uuid != nullptr && device_uuid(card.device, text, sizeof text) == kSuccess) card.uuid = text;
    PciInfo pci = {};
    if (pci_info != nullptr && pci_info(card.device, &pci) == kSuccess)
      card.pci_bus_id = fmt::format("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
    GpmSupport support = {1, 0};
    card.gpm_supported = gpm_alloc != nullptr && gpm_free != nullptr && gpm_get != nullptr && gpm_metrics != nullptr &&
                         gpm_support != nullptr && gpm_support(card.device, &support) == kSuccess &&
                         support.supported != 0;
  }
}

void Nvml::Library::close() {
  for (Card& card : cards)
    for (GpmSample sample : {card.previous, card.current})
      if (sample != nullptr) gpm_free(sample);
  if (initialised) shutdown();
  if (handle != nullptr) ::dlclose(handle);
}

void Nvml::Library::sample_memory(GpuSample& s, Device device) const {
  MemoryWithReserved m = {kMemoryWithReservedVersion, 0, 0, 0, 0};
  if (query(s, "memory", memory_with_reserved, device, &m)) {
    s.reserved_bytes = static_cast<int64_t>(m.reserved);
    s.total_bytes = static_cast<int64_t>(m.total);
    s.free_bytes = static_cast<int64_t>(m.free);
    s.used_bytes = static_cast<int64_t>(m.used);
    return;
  }
  Memory old = {};
  if (query(s, "memory", memory, device, &old)) {
    s.total_bytes = static_cast<int64_t>(old.total);
    s.free_bytes = static_cast<int64_t>(old.free);
    s.used_bytes = static_cast<int64_t>(old.used);
  }
}

void Nvml::Library::sample_clocks(GpuSample& s, Device device) const {
  unsigned value = 0;
  if (query(s, "temperature", temperature, device, 0U, &value)) {
    s.temperature_c = value;
  } else {
    nvml_abi::Temperature t = {kTemperatureVersion, 0, 0};
    if (query(s, "temperature", temperature_struct, device, &t)) s.temperature_c = t.celsius;
  }
  if (query(s, "power", power, device, &value)) s.power_w = value * 1e-3;
  if (query(s, "power limit", power_limit, device, &value)) s.power_limit_w = value * 1e-3;
  if (query(s, "clocks", clock, device, static_cast<unsigned>(kSmClock), &value))
    s.sm_clock_mhz = static_cast<int>(value);
  if (query(s, "clocks", max_clock, device, static_cast<unsigned>(kSmClock), &value))
    s.max_sm_clock_mhz = static_cast<int>(value);
  if (query(s, "clocks", clock, device, static_cast<unsigned>(kMemoryClock), &value))
    s.memory_clock_mhz = static_cast<int>(value);
  unsigned long long bits = 0;
  if (query(s, "throttle reasons", throttle, device, &bits)) s.throttle = throttle_names(bits);
  unsigned long long mj = 0;
  if (query(s, "energy", energy, device, &mj)) s.energy_mj = static_cast<int64_t>(mj);
}

void Nvml::Library::sample_pcie(GpuSample& s, Device device, bool throughput) const {
  unsigned value = 0;
  if (query(s, "PCIe link", pcie_generation, device, &value)) s.pcie_generation = static_cast<int>(value);
  if (query(s, "PCIe link", pcie_width, device, &value)) s.pcie_width = static_cast<int>(value);
  if (!throughput) return;
  if (query(s, "PCIe throughput", pcie_throughput, device, static_cast<unsigned>(kPcieRx), &value))
    s.pcie_rx_bytes_per_s = value * 1024.0;
  if (query(s, "PCIe throughput", pcie_throughput, device, static_cast<unsigned>(kPcieTx), &value))
    s.pcie_tx_bytes_per_s = value * 1024.0;
}

void Nvml::Library::sample_processes(GpuSample& s, Device device) const {
  const auto collect = [&]<class Info>(Return (*list)(Device, unsigned*, Info*)) {
    std::vector<Info> infos(16);
    for (int attempt = 0; attempt < 4; ++attempt) {  // the list may grow between calls
      auto n = static_cast<unsigned>(infos.size());
      const Return code = list(device, &n, infos.data());
      if (code == kInsufficientSize) {
        infos.resize(std::max<size_t>(n, infos.size()) + 16);
        continue;
      }
      if (code == kGpuIsLost) {
        s.state = GpuState::lost;
        s.why = words(code);
      }
      if (code == kNoPermission) s.refused.emplace_back("processes");
      if (code != kSuccess) return;
      std::vector<GpuProcess> found;
      for (unsigned i = 0; i < std::min<size_t>(n, infos.size()); ++i) {
        GpuProcess p;
        p.pid = infos[i].pid;
        p.name = process_name(p.pid);
        if (infos[i].used_bytes != kNotAvailable) p.bytes = static_cast<int64_t>(infos[i].used_bytes);
        found.push_back(std::move(p));
      }
      s.processes = std::move(found);
      return;
    }
  };
  if (s.state == GpuState::lost) return;
  if (compute_processes != nullptr)
    collect(compute_processes);
  else if (old_compute_processes != nullptr)
    collect(old_compute_processes);
}

void Nvml::Library::sample_gpm(GpuSample& s, Card& card) {
  if (!card.gpm_supported || s.state == GpuState::lost) return;
  if (card.previous == nullptr && gpm_alloc(&card.previous) != kSuccess) card.previous = nullptr;
  if (card.current == nullptr && gpm_alloc(&card.current) != kSuccess) card.current = nullptr;
  if (card.previous == nullptr || card.current == nullptr) return;
  const int64_t now = now_ns();
  if (card.previous_ns != 0 && now - card.previous_ns < kGpmLeastNs) return;
  if (!query(s, "GPM counters", gpm_get, card.device, card.current)) {
    if (!s.refused.empty() && s.refused.back() == "GPM counters") card.previous_ns = 0;
    return;
  }
  if (card.previous_ns != 0) {
    constexpr unsigned ids[] = {kGpmSm, kGpmSmOccupancy, kGpmTensor, kGpmDram};
    gpm_request.version = 1;
    gpm_request.count = 4;
    gpm_request.first = card.previous;
    gpm_request.second = card.current;
    for (int i = 0; i < 4; ++i) gpm_request.metrics[i] = {ids[i], kNotSupported, 0, nullptr, nullptr, nullptr};
    if (query(s, "GPM counters", gpm_metrics, &gpm_request)) {
      const auto share = [&](int i) -> std::optional<double> {
        if (gpm_request.metrics[i].result != kSuccess) return std::nullopt;
        return gpm_request.metrics[i].value * 0.01;
      };
      s.gpm = GpmActivity{share(0), share(1), share(2), share(3)};
    }
  }
  std::swap(card.previous, card.current);
  card.previous_ns = now;
}

GpuSample Nvml::Library::sample(int index, const GpuSampleOptions& options) {
  Card& card = cards[static_cast<size_t>(index)];
  GpuSample s;
  s.index = index;
  s.name = card.name;
  s.uuid = card.uuid;
  s.driver = driver;
  s.pci_bus_id = card.pci_bus_id;
  if (card.device == nullptr) {
    const Return code = device_handle(static_cast<unsigned>(index), &card.device);
    if (code != kSuccess) {
      card.device = nullptr;
      s.state = code == kGpuIsLost      ? GpuState::lost
                : code == kNoPermission ? GpuState::no_permission
                                        : GpuState::failed;
      s.why = words(code);
      return s;
    }
  }
  Utilization u = {};
  if (query(s, "utilization", utilization, card.device, &u)) {
    s.utilization = u.gpu * 0.01;
    s.memory_utilization = u.memory * 0.01;
  }
  sample_memory(s, card.device);
  sample_clocks(s, card.device);
  sample_pcie(s, card.device, options.pcie_throughput);
  if (options.processes) sample_processes(s, card.device);
  if (options.gpm) sample_gpm(s, card);
  std::sort(s.refused.begin(), s.refused.end());
  s.refused.erase(std::unique(s.refused.begin(), s.refused.end()), s.refused.end());
  if (s.state == GpuState::lost) {  // values read before it was lost are no longer valid
    GpuSample lost;
    lost.index = index;
    lost.state = GpuState::lost;
    lost.why = s.why;
    lost.name = card.name;
    lost.uuid = card.uuid;
    lost.driver = driver;
    lost.pci_bus_id = card.pci_bus_id;
    return lost;
  }
  return s;
}

Nvml::Nvml() : Nvml(env("BRIM_NVML_LIBRARY").value_or("libnvidia-ml.so.1")) {}
Nvml::Nvml(const std::string& library) : library_(std::make_unique<Library>()) { library_->open(library); }
Nvml::~Nvml() { library_->close(); }

NvmlState Nvml::state() const { return library_->state; }
const std::string& Nvml::why() const { return library_->why; }
int Nvml::count() const { return static_cast<int>(library_->cards.size()); }

std::vector<GpuSample> Nvml::sample(const GpuSampleOptions& options) {
  std::vector<GpuSample> samples;
  if (!ready()) return samples;
  for (int i = 0; i < count(); ++i) samples.push_back(library_->sample(i, options));
  return samples;
}

std::optional<int> Nvml::find(const std::string& pci_bus_id) const {
  const auto& cards = library_->cards;
  for (size_t i = 0; i < cards.size(); ++i)
    if (same_card(cards[i].pci_bus_id, pci_bus_id)) return static_cast<int>(i);
  // If one side has no bus id and there is only one GPU, assume that one.
  const bool both_known = cards.size() == 1 && !cards[0].pci_bus_id.empty() && !pci_bus_id.empty();
  return ready() && cards.size() == 1 && !both_known ? std::optional(0) : std::nullopt;
}

std::optional<GpuSample> Nvml::sample_card(const std::string& pci_bus_id, const GpuSampleOptions& options) {
  const auto index = find(pci_bus_id);
  return index ? std::optional(library_->sample(*index, options)) : std::nullopt;
}

std::optional<int64_t> Nvml::own_bytes(const std::string& pci_bus_id) {
  const auto card = sample_card(pci_bus_id, {.pcie_throughput = false, .processes = true, .gpm = false});
  return card ? brim::monitor::own_bytes(*card) : std::nullopt;
}

std::optional<int64_t> own_bytes(const GpuSample& card) {
  if (!card.processes) return std::nullopt;
  for (const GpuProcess& p : *card.processes)
    if (p.pid == ::getpid() && p.bytes) return p.bytes;
  // In a container the pids are those of the host; a single process on the GPU must be this one.
  return card.processes->size() == 1 ? card.processes->front().bytes : std::nullopt;
}

std::optional<int64_t> Nvml::energy_mj(int index) {
  unsigned long long mj = 0;
  if (!ready() || index < 0 || index >= count() || library_->energy == nullptr) return std::nullopt;
  Device device = library_->cards[static_cast<size_t>(index)].device;
  if (device == nullptr || library_->energy(device, &mj) != kSuccess) return std::nullopt;
  return static_cast<int64_t>(mj);
}

std::optional<int64_t> Nvml::used_bytes(int index) {
  if (!ready() || index < 0 || index >= count()) return std::nullopt;
  Device device = library_->cards[static_cast<size_t>(index)].device;
  if (device == nullptr) return std::nullopt;
  GpuSample s;
  library_->sample_memory(s, device);
  return s.used_bytes;
}

}  // namespace brim::monitor
