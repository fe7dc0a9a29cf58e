// SPDX-License-Identifier: Apache-2.0
#include "base/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <mutex>

#include "base/error.h"

namespace brim {
namespace {

struct EventBlock {
  std::array<ZoneEvent, Timeline::kBlockEvents> events;
  std::atomic<EventBlock*> next{nullptr};
};

}  // namespace

// One per thread or device lane, never freed, so events of finished threads are kept. The single writer stores an event
// and then increments the count; readers only read counted events, so neither side blocks.
struct Timeline::Lane {
  std::string name;  // guarded by the registry's mutex
  int32_t index = 0;
  EventBlock* first = nullptr;  // set by the writer before its first event is counted
  std::atomic<size_t> count{0};
  std::atomic<uint64_t> epoch{0};  // the value of timeline_epoch for its events
  EventBlock* current = nullptr;   // from here on used only by the writer
  size_t used = 0, ops = 0;        // events in `current`; ops in the lane

  void append(Zone zone, int64_t begin_ns, int64_t end_ns, int64_t detail);
};

namespace {

using Lane = Timeline::Lane;

// Counts calls of clear(). A writer that sees a new value restarts its lane and reuses its blocks.
std::atomic<uint64_t> timeline_epoch{0};

struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<Lane>> lanes;

  Lane* add(std::string name) {
    auto lane = std::make_unique<Lane>();
    lane->index = static_cast<int32_t>(lanes.size());
    lane->name = name.empty() ? fmt::format("thread {}", lane->index) : std::move(name);
    lane->first = lane->current = new EventBlock;  // never freed, like the lane
    lane->epoch = timeline_epoch.load();
    lanes.push_back(std::move(lane));
    return lanes.back().get();
  }
};

Registry& registry() {
  static Registry* r = new Registry;  // never destroyed: threads may record during static destruction
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

}  // namespace

void Timeline::Lane::append(Zone zone, int64_t begin_ns, int64_t end_ns, int64_t detail) {
  size_t n = count.load(std::memory_order_relaxed);
  if (const uint64_t now = timeline_epoch.load(std::memory_order_acquire);
      epoch.load(std::memory_order_relaxed) != now) {
    current = first;
    n = used = ops = 0;
    count.store(0, std::memory_order_relaxed);
    epoch.store(now, std::memory_order_release);
  }
  if (is_op(zone) && ++ops > kMostOpsPerLane) return;
  if (used == kBlockEvents) {
    EventBlock* next = current->next.load(std::memory_order_relaxed);
    if (next == nullptr) current->next.store(next = new EventBlock, std::memory_order_release);
    current = next;
    used = 0;
  }
  current->events[used++] = {begin_ns, end_ns, zone, index, detail};
  count.store(n + 1, std::memory_order_release);
}

std::atomic<uint8_t> Timeline::mode_{0};

const char* zone_name(Zone zone) {
  static const char* const names[] = {
#define BRIM_ZONE_NAME(id, name, kind) name,
      BRIM_ZONES(BRIM_ZONE_NAME)
#undef BRIM_ZONE_NAME
  };
  return names[static_cast<int>(zone)];
}

ZoneKind zone_kind(std::string_view name) {
  for (int z = 0; z < static_cast<int>(Zone::count); ++z)
    if (name == zone_name(static_cast<Zone>(z))) return zone_kind(static_cast<Zone>(z));
  BRIM_CHECK(false, "no zone {}", name);
}

void Timeline::enable(bool on) {
  if (on)
    mode_.fetch_or(kRecord, std::memory_order_relaxed);
  else
    mode_.fetch_and(static_cast<uint8_t>(~kRecord), std::memory_order_relaxed);
}

void Timeline::set_ranges(void (*push)(const char* name), void (*pop)()) {
  push_hook.store(push);
  pop_hook.store(pop);
  if (push != nullptr && pop != nullptr)
    mode_.fetch_or(kRanges);
  else
    mode_.fetch_and(static_cast<uint8_t>(~kRanges));
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
  thread_lane()->append(zone, begin_ns, end_ns, detail);
}

Timeline::Lane* Timeline::add_lane(const std::string& name) {
  std::lock_guard lock(registry().mutex);
  return registry().add(name);
}

void Timeline::record(Lane* lane, Zone zone, int64_t begin_ns, int64_t end_ns, int64_t detail) {
  lane->append(zone, begin_ns, end_ns, detail);
}

std::vector<ZoneEvent> Timeline::events() {
  std::vector<ZoneEvent> all;
  std::lock_guard lock(registry().mutex);  // clear() takes it too, so the epoch cannot change
  const uint64_t epoch = timeline_epoch.load(std::memory_order_relaxed);
  for (const auto& lane : registry().lanes) {
    if (lane->epoch.load(std::memory_order_acquire) != epoch) continue;  // no events since clear()
    size_t left = lane->count.load(std::memory_order_acquire);
    for (const EventBlock* block = lane->first; left > 0; block = block->next.load(std::memory_order_acquire)) {
      const size_t n = std::min(left, kBlockEvents);
      all.insert(all.end(), block->events.begin(), block->events.begin() + static_cast<std::ptrdiff_t>(n));
      left -= n;
    }
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
  timeline_epoch.fetch_add(1, std::memory_order_release);
}

std::string Timeline::chrome_trace(const std::string& record) {
  const auto all = events();
  const auto names = thread_names();
  const int64_t zero = all.empty() ? 0 : all.front().begin_ns;
  std::string out = "{\"schema_version\":1,\"displayTimeUnit\":\"ms\",";
  if (!record.empty()) out += "\"otherData\":{\"brim\":" + record + "},";
  out += "\"traceEvents\":[\n";
  for (size_t i = 0; i < names.size(); ++i)
    fmt::format_to(std::back_inserter(out),
                   "{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":\"{}\"}}}},\n", i,
                   names[i]);
  for (const auto& e : all)
    fmt::format_to(
        std::back_inserter(out),
        "{{\"ph\":\"X\",\"pid\":1,\"tid\":{},\"name\":\"{}\",\"ts\":{:.3f},\"dur\":{:.3f},\"args\":{{\"n\":{}}}}},\n",
        e.thread, zone_name(e.zone), static_cast<double>(e.begin_ns - zero) * 1e-3,
        static_cast<double>(e.end_ns - e.begin_ns) * 1e-3, e.detail);
  out += "{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"brim\"}}\n]}\n";
  return out;
}

}  // namespace brim
