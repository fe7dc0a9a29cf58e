// SPDX-License-Identifier: Apache-2.0
// A scripted fake of NVML, loaded instead of the real library in tests (BRIM_NVML_LIBRARY). The script is in
// BRIM_NVML_SCENARIO: GPUs separated by |, each a list of key=value separated by commas:
//   name=H200  pci=65 (bus, hexadecimal; default: index + 1)  util=87 (percent)
//   mem=20000/144000 (used/total MiB)  temp=54  power=412  throttle=4 (bits)  pid=1234
//   no=power+energy+gpm (not supported)  deny=pcie+processes (no permission)  lose=2 (lost after that many samples)
// "init=N" alone makes nvmlInit return N. BRIM_NVML_OLD builds only the entry points of an old driver.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "monitor/nvml_abi.h"

using namespace brim::monitor::nvml_abi;

namespace {

struct FakeCard {
  std::map<std::string, std::string> keys;
  int samples = 0;

  std::string text(const char* key, const char* otherwise) const { return keys.count(key) ? keys.at(key) : otherwise; }
  double number(const char* key, double otherwise) const {
    return keys.count(key) ? std::atof(keys.at(key).c_str()) : otherwise;
  }
  bool lists(const char* key, const std::string& word) const {
    return ("+" + text(key, "") + "+").find("+" + word + "+") != std::string::npos;
  }
};

std::vector<FakeCard> cards;
Return init_answer = kSuccess;

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts;
  size_t at = 0;
  while (at <= text.size()) {
    const size_t end = std::min(text.find(by, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

void read_scenario() {
  const char* scenario = std::getenv("BRIM_NVML_SCENARIO");
  cards.clear();
  init_answer = kSuccess;
  if (scenario == nullptr || *scenario == '\0') return;
  if (std::strncmp(scenario, "init=", 5) == 0) {
    init_answer = std::atoi(scenario + 5);
    return;
  }
  for (const std::string& part : split(scenario, '|')) {
    FakeCard card;
    for (const std::string& pair : split(part, ','))
      card.keys[pair.substr(0, pair.find('='))] = pair.substr(std::min(pair.size(), pair.find('=') + 1));
    cards.push_back(card);
  }
}

FakeCard& card_of(Device device) { return cards[reinterpret_cast<size_t>(device) - 1]; }

Return answer(Device device, const char* reading) {
  const FakeCard& card = card_of(device);
  if (card.keys.count("lose") && card.samples > card.number("lose", 0)) return kGpuIsLost;
  if (card.lists("deny", reading)) return kNoPermission;
  return card.lists("no", reading) ? kNotSupported : kSuccess;
}

// Returns the status of `reading` and, on success, stores the value.
template <class T>
Return give(Device device, const char* reading, T* out, double value) {
  const Return code = answer(device, reading);
  if (code == kSuccess) *out = static_cast<T>(value);
  return code;
}

double memory_part(const FakeCard& card, bool total) {
  const std::string text = card.text("mem", "1000/8000");
  return std::atof(total ? text.substr(text.find('/') + 1).c_str() : text.c_str()) * (1 << 20);
}

}  // namespace

extern "C" {

const char* nvmlErrorString(Return code) {
  switch (code) {
    case kNoPermission:
      return "Insufficient Permissions";
    case kGpuIsLost:
      return "GPU is lost";
    case kDriverNotLoaded:
      return "Driver Not Loaded";
    default:
      return "Unknown Error";
  }
}
Return nvmlShutdown() { return kSuccess; }
Return nvmlSystemGetDriverVersion(char* text, unsigned size) {
  return std::snprintf(text, size, "580.00.01") > 0 ? kSuccess : kNotFound;
}
Return nvmlDeviceGetName(Device d, char* text, unsigned size) {
  return std::snprintf(text, size, "%s", card_of(d).text("name", "Fake").c_str()) >= 0 ? kSuccess : kNotFound;
}
Return nvmlDeviceGetUUID(Device d, char* text, unsigned size) {
  return std::snprintf(text, size, "GPU-%zu", reinterpret_cast<size_t>(d)) > 0 ? kSuccess : kNotFound;
}
static Return give_pci(Device d, PciInfo* p) {
  const Return code = answer(d, "pci");
  const std::string bus = card_of(d).text("pci", "");
  if (code == kSuccess) {
    *p = {};
    p->bus = bus.empty() ? static_cast<unsigned>(reinterpret_cast<size_t>(d))
                         : static_cast<unsigned>(std::strtoul(bus.c_str(), nullptr, 16));
  }
  return code;
}
Return nvmlDeviceGetUtilizationRates(Device d, Utilization* u) {
  ++card_of(d).samples;
  const Return code = answer(d, "utilization");
  if (code == kSuccess) *u = {static_cast<unsigned>(card_of(d).number("util", 50)), 31};
  return code;
}
Return nvmlDeviceGetMemoryInfo(Device d, Memory* m) {
  const Return code = answer(d, "memory");
  const auto used = static_cast<unsigned long long>(memory_part(card_of(d), false)),
             total = static_cast<unsigned long long>(memory_part(card_of(d), true));
  if (code == kSuccess) *m = {total, total - used, used};
  return code;
}
Return nvmlDeviceGetTemperature(Device d, unsigned, unsigned* c) {
  return give(d, "temperature", c, card_of(d).number("temp", 54));
}
Return nvmlDeviceGetPowerUsage(Device d, unsigned* mw) {
  return give(d, "power", mw, 1000 * card_of(d).number("power", 200));
}
Return nvmlDeviceGetClockInfo(Device d, unsigned type, unsigned* mhz) {
  return give(d, "clocks", mhz, type == kSmClock ? 1755 : 3201);
}
Return nvmlDeviceGetMaxClockInfo(Device d, unsigned, unsigned* mhz) { return give(d, "clocks", mhz, 1980); }
Return nvmlDeviceGetCurrentClocksThrottleReasons(Device d, unsigned long long* bits) {
  return give(d, "throttle", bits, card_of(d).number("throttle", 0));
}

#ifdef BRIM_NVML_OLD

Return nvmlDeviceGetPciInfo(Device d, PciInfo* p) { return give_pci(d, p); }
Return nvmlInit() {
  read_scenario();
  return init_answer;
}
Return nvmlDeviceGetCount(unsigned* n) { return *n = static_cast<unsigned>(cards.size()), kSuccess; }
Return nvmlDeviceGetHandleByIndex(unsigned i, Device* d) {
  return *d = reinterpret_cast<Device>(size_t{i} + 1), kSuccess;
}
Return nvmlDeviceGetComputeRunningProcesses(Device d, unsigned* n, OldProcessInfo* infos) {
  const Return code = answer(d, "processes");
  if (code != kSuccess) return code;
  infos[0] = {static_cast<unsigned>(card_of(d).number("pid", ::getpid())), 300ULL << 20};
  *n = 1;
  return kSuccess;
}

#else

Return nvmlDeviceGetPciInfo_v3(Device d, PciInfo* p) { return give_pci(d, p); }
Return nvmlInit_v2() {
  read_scenario();
  return init_answer;
}
Return nvmlDeviceGetCount_v2(unsigned* n) { return *n = static_cast<unsigned>(cards.size()), kSuccess; }
Return nvmlDeviceGetHandleByIndex_v2(unsigned i, Device* d) {
  if (cards[i].lists("deny", "card")) return kNoPermission;
  return *d = reinterpret_cast<Device>(size_t{i} + 1), kSuccess;
}
Return nvmlDeviceGetMemoryInfo_v2(Device d, MemoryWithReserved* m) {
  if (m->version != kMemoryWithReservedVersion) return 25;  // argument version mismatch
  const Return code = answer(d, "memory");
  const auto used = static_cast<unsigned long long>(memory_part(card_of(d), false)),
             total = static_cast<unsigned long long>(memory_part(card_of(d), true));
  if (code == kSuccess) {
    m->total = total;
    m->used = used;
    m->reserved = 600ULL << 20;
    m->free = total - used - (600ULL << 20);
  }
  return code;
}
Return nvmlDeviceGetEnforcedPowerLimit(Device d, unsigned* mw) { return give(d, "power", mw, 700'000); }
Return nvmlDeviceGetCurrPcieLinkGeneration(Device d, unsigned* g) { return give(d, "pcie", g, 5); }
Return nvmlDeviceGetCurrPcieLinkWidth(Device d, unsigned* w) { return give(d, "pcie", w, 16); }
Return nvmlDeviceGetPcieThroughput(Device d, unsigned counter, unsigned* kb) {
  return give(d, "pcie", kb, counter == kPcieRx ? 2048 : 1024);
}
Return nvmlDeviceGetTotalEnergyConsumption(Device d, unsigned long long* mj) {
  return give(d, "energy", mj, 1e6 + 1e3 * card_of(d).samples);
}
// Returns forty processes for pid=many, so that the caller must enlarge its buffer.
Return nvmlDeviceGetComputeRunningProcesses_v3(Device d, unsigned* n, ProcessInfo* infos) {
  const Return code = answer(d, "processes");
  if (code != kSuccess) return code;
  const unsigned found = card_of(d).text("pid", "") == "many" ? 40 : 2;
  const unsigned capacity = *n;
  *n = found;
  if (capacity < found) return kInsufficientSize;
  for (unsigned i = 0; i < found; ++i) infos[i] = {4'000'000 + i, (i + 1ULL) << 20, ~0U, ~0U};
  if (found == 2) {
    infos[0] = {static_cast<unsigned>(card_of(d).number("pid", ::getpid())), 300ULL << 20, ~0U, ~0U};
    infos[1].used_bytes = kNotAvailable;
  }
  return kSuccess;
}
Return nvmlGpmQueryDeviceSupport(Device d, GpmSupport* s) {
  if (s->version != 1) return 25;
  return s->supported = card_of(d).lists("no", "gpm") ? 0 : 1, kSuccess;
}
Return nvmlGpmSampleAlloc(GpmSample* s) { return *s = new int(0), kSuccess; }
Return nvmlGpmSampleFree(GpmSample s) { return delete static_cast<int*>(s), kSuccess; }
Return nvmlGpmSampleGet(Device d, GpmSample s) {
  const Return code = answer(d, "gpm");
  if (code == kSuccess) *static_cast<int*>(s) = card_of(d).samples;
  return code;
}
Return nvmlGpmMetricsGet(GpmMetrics* m) {
  if (m->version != 1 || *static_cast<int*>(m->first) >= *static_cast<int*>(m->second))
    return 2;  // samples in the wrong order
  for (unsigned i = 0; i < m->count; ++i) {
    GpmMetric& metric = m->metrics[i];
    metric.result = metric.id == kGpmDram ? kNotSupported : kSuccess;
    metric.value = metric.id == kGpmSm ? 91 : metric.id == kGpmTensor ? 44 : 37;
  }
  return kSuccess;
}

#endif
}
