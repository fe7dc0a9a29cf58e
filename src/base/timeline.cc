// SPDX-License-Identifier: Apache-2.0
#include "base/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>

namespace brim {
namespace {

// One per thread or device lane; lives as long as the process, so events of ended threads are kept.
struct Lane {
  std::string name;
  int32_t index;
  std::mutex mutex;  // uncontended except while a snapshot is taken
  std::vector<ZoneEvent> events;
  size_t ops = 0;
};

struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<Lane>> lanes;
  std::map<std::string, Lane*> named;

  Lane* add(std::string name) {
    auto lane = std::make_unique<Lane>();
    lane->index = static_cast<int32_t>(lanes.size());
    lane->name = name.empty() ? fmt::format("thread {}", lane->index) : std::move(name);
    lanes.push_back(std::move(lane));
    return lanes.back().get();
  }
};

Registry& registry() {
  static Registry* r = new Registry;  // never destroyed: threads may record while statics go
  return *r;
}

thread_local Lane* this_lane = nullptr;

std::atomic<void (*)(const char*)> push_hook{nullptr};
std::atomic<void (*)()> pop_hook{nullptr};

Lane* thread_lane() {
  if (this_lane == nullptr) {
    std::lock_guard lock(registry().mutex);
    this_lane = registry().add("");
  }
  return this_lane;
}

void append(Lane* lane, Zone zone, int64_t begin_ns, int64_t end_ns, int64_t detail) {
  std::lock_guard lock(lane->mutex);
  if (is_op(zone) && ++lane->ops > Timeline::kMostOpsPerLane) return;
  lane->events.push_back({begin_ns, end_ns, zone, lane->index, detail});
}

}  // namespace

std::atomic<uint8_t> Timeline::mode_{0};

const char* zone_name(Zone zone) {
  static const char* const names[] = {
#define BRIM_ZONE_NAME(id, name) name,
      BRIM_ZONES(BRIM_ZONE_NAME)
#undef BRIM_ZONE_NAME
  };
  return names[static_cast<int>(zone)];
}

void Timeline::enable(bool on) {
  if (on) mode_.fetch_or(kRecord, std::memory_order_relaxed);
  else mode_.fetch_and(static_cast<uint8_t>(~kRecord), std::memory_order_relaxed);
}

void Timeline::set_ranges(void (*push)(const char* name), void (*pop)()) {
  push_hook.store(push), pop_hook.store(pop);
  if (push != nullptr && pop != nullptr) mode_.fetch_or(kRanges);
  else mode_.fetch_and(static_cast<uint8_t>(~kRanges));
}

void Timeline::push_range(Zone zone) {
  if (const auto push = push_hook.load()) push(zone_name(zone));
}

void Timeline::pop_range() {
  if (const auto pop = pop_hook.load()) pop();
}

void Timeline::name_thread(std::string name) {
  Lane* lane = thread_lane();
  std::lock_guard lock(registry().mutex);
  lane->name = std::move(name);
}

void Timeline::record(Zone zone, int64_t begin_ns, int64_t end_ns, int64_t detail) {
  append(thread_lane(), zone, begin_ns, end_ns, detail);
}

void Timeline::record_lane(const std::string& name, Zone zone, int64_t begin_ns, int64_t end_ns, int64_t detail) {
  Lane* lane;
  {
    std::lock_guard lock(registry().mutex);
    auto& slot = registry().named[name];
    if (slot == nullptr) slot = registry().add(name);
    lane = slot;
  }
  append(lane, zone, begin_ns, end_ns, detail);
}

std::vector<ZoneEvent> Timeline::events() {
  std::vector<ZoneEvent> all;
  std::lock_guard lock(registry().mutex);
  for (auto& lane : registry().lanes) {
    std::lock_guard lane_lock(lane->mutex);
    all.insert(all.end(), lane->events.begin(), lane->events.end());
  }
  std::sort(all.begin(), all.end(), [](const ZoneEvent& a, const ZoneEvent& b) { return a.begin_ns < b.begin_ns; });
  return all;
}

std::vector<std::string> Timeline::thread_names() {
  std::lock_guard lock(registry().mutex);
  std::vector<std::string> names;
  for (auto& lane : registry().lanes) names.push_back(lane->name);
  return names;
}

void Timeline::clear() {
  std::lock_guard lock(registry().mutex);
  for (auto& lane : registry().lanes) {
    std::lock_guard lane_lock(lane->mutex);
    lane->events.clear();
    lane->ops = 0;
  }
}

std::string Timeline::chrome_trace(const std::string& record) {
  const auto all = events();
  const auto names = thread_names();
  const int64_t zero = all.empty() ? 0 : all.front().begin_ns;
  std::string out = "{\"displayTimeUnit\":\"ms\",";
  if (!record.empty()) out += "\"otherData\":{\"brim\":" + record + "},";
  out += "\"traceEvents\":[\n";
  for (size_t i = 0; i < names.size(); ++i)
    fmt::format_to(std::back_inserter(out),
                   "{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":\"{}\"}}}},\n", i, names[i]);
  for (const auto& e : all)
    fmt::format_to(std::back_inserter(out),
                   "{{\"ph\":\"X\",\"pid\":1,\"tid\":{},\"name\":\"{}\",\"ts\":{:.3f},\"dur\":{:.3f},\"args\":{{\"n\":{}}}}},\n",
                   e.thread, zone_name(e.zone), static_cast<double>(e.begin_ns - zero) * 1e-3,
                   static_cast<double>(e.end_ns - e.begin_ns) * 1e-3, e.detail);
  out += "{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"brim\"}}\n]}\n";
  return out;
}

}  // namespace brim
