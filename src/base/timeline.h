// SPDX-License-Identifier: Apache-2.0
// The timeline: every stage and op opens a zone from one list. A zone costs one relaxed load if disabled; if enabled,
// two clock reads and a store into a thread-local block, without locks and with one allocation every kBlockEvents
// zones. Summaries, --trace, the monitor and the doctor read these events.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"

namespace brim {

// X(enumerator, name). An op, its test, its benchmark and its zone share one name.
// clang-format off
#define BRIM_ZONES(X) \
  X(read, "read") \
  X(tokenize, "tokenize") \
  X(pack, "pack") \
  X(stage, "stage") \
  X(copy, "copy") \
  X(compute, "compute") \
  X(collect, "collect") \
  X(write, "write") \
  X(wait_input, "wait_input") \
  X(wait_output, "wait_output") \
  X(wait_room, "wait_room") \
  X(wait_device, "wait_device") \
  X(load_model, "load_model") \
  X(unload_model, "unload_model") \
  X(plan, "plan") \
  X(warm_up, "warm_up") \
  X(linear, "linear") \
  X(attention, "attention") \
  X(layer_norm, "layer_norm") \
  X(embedding, "embedding") \
  X(gelu, "gelu") \
  X(softmax, "softmax") \
  X(gather_rows, "gather_rows") \
  X(pool, "pool") \
  X(convert, "convert") \
  X(gather_tokens, "gather_tokens") \
  X(loss, "loss") \
  X(dropout, "dropout") \
  X(adamw, "adamw") \
  X(grad_norm, "grad_norm") \
  X(reduce, "reduce") \
  X(forward, "forward") \
  X(backward, "backward") \
  X(optimizer, "optimizer") \
  X(evaluate, "evaluate") \
  X(checkpoint, "checkpoint") \
  X(device_busy, "device_busy")
// clang-format on

enum class Zone : uint8_t {
#define BRIM_ZONE_ENUM(id, name) id,
  BRIM_ZONES(BRIM_ZONE_ENUM)
#undef BRIM_ZONE_ENUM
      count
};
const char* zone_name(Zone zone);
// Whether a zone is an op of a model, not a stage of a run.
constexpr bool is_op(Zone zone) { return zone >= Zone::linear && zone <= Zone::reduce; }

struct ZoneEvent {
  int64_t begin_ns, end_ns;
  Zone zone;
  int32_t thread;  // dense index, see Timeline::thread_names
  int64_t detail;  // tokens, rows or bytes; 0 when unused
};

class Timeline {
 public:
  static bool enabled() { return (mode() & kRecord) != 0; }
  static void enable(bool on);
  // Also emits ranges for an external profiler (NVTX); set by a backend if a profiler is attached, otherwise off.
  static void set_ranges(void (*push)(const char* name), void (*pop)());
  static void name_thread(std::string name);  // names the calling thread
  static void record(Zone zone, int64_t begin_ns, int64_t end_ns, int64_t detail = 0);
  // A lane that is not a thread (a device stream). Each call creates a new one, which is kept until the process ends.
  // Only one thread at a time may record into it.
  struct Lane;
  static Lane* add_lane(const std::string& name);
  static void record(Lane* lane, Zone zone, int64_t begin_ns, int64_t end_ns, int64_t detail = 0);
  static std::vector<ZoneEvent> events();  // all events so far, by begin time; safe during recording
  static std::vector<std::string> thread_names();
  static void clear();
  // Chrome/Perfetto trace for ui.perfetto.dev. `record`, a JSON value, is stored under otherData.brim.
  static std::string chrome_trace(const std::string& record = "");
  // A lane with more ops than this keeps only stages, so that long runs stay bounded and their stages complete.
  static constexpr size_t kMostOpsPerLane = 500'000;
  static constexpr size_t kBlockEvents = 2048;

 private:
  friend class ScopedZone;
  static constexpr uint8_t kRecord = 1, kRanges = 2;
  static uint8_t mode() { return mode_.load(std::memory_order_relaxed); }
  static void push_range(Zone zone);
  static void pop_range();
  static std::atomic<uint8_t> mode_;
};

class ScopedZone {
 public:
  explicit ScopedZone(Zone zone, int64_t detail = 0) : zone_(zone), detail_(detail) {
    const uint8_t mode = Timeline::mode();
    if (mode == 0) [[likely]]
      return;
    if (mode & Timeline::kRanges) {
      Timeline::push_range(zone);
      pushed_ = true;
    }
    if (mode & Timeline::kRecord) begin_ns_ = now_ns();
  }
  ~ScopedZone() {
    if (begin_ns_ != 0) Timeline::record(zone_, begin_ns_, now_ns(), detail_);
    if (pushed_) Timeline::pop_range();
  }
  void set_detail(int64_t detail) { detail_ = detail; }
  ScopedZone(const ScopedZone&) = delete;
  ScopedZone& operator=(const ScopedZone&) = delete;

 private:
  int64_t begin_ns_ = 0;
  Zone zone_;
  bool pushed_ = false;
  int64_t detail_;
};

}  // namespace brim
