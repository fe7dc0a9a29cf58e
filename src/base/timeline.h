// SPDX-License-Identifier: Apache-2.0
// The timeline: every stage and op opens a zone from one list. A zone costs one relaxed load if disabled; if enabled,
// two clock reads and a store into a thread-local block, without locks and with one allocation every kBlockEvents
// zones. Summaries, --trace, the monitor and the doctor read these events.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace brim {

// Stage of a run, or what limits the speed of an op: matrix products, attention, or (row_op) memory bandwidth.
enum class ZoneKind : uint8_t { stage, product, attention, row_op };

// X(enumerator, name, kind). An op, its test, its benchmark and its zone share one name.
// clang-format off
#define BRIM_ZONES(X) \
  X(read, "read", stage) \
  X(tokenize, "tokenize", stage) \
  X(pack, "pack", stage) \
  X(stage, "stage", stage) \
  X(copy, "copy", stage) \
  X(compute, "compute", stage) \
  X(collect, "collect", stage) \
  X(write, "write", stage) \
  X(wait_input, "wait_input", stage) \
  X(wait_output, "wait_output", stage) \
  X(wait_room, "wait_room", stage) \
  X(wait_device, "wait_device", stage) \
  X(load_model, "load_model", stage) \
  X(unload_model, "unload_model", stage) \
  X(plan, "plan", stage) \
  X(warm_up, "warm_up", stage) \
  X(linear, "linear", product) \
  X(attention, "attention", attention) \
  X(layer_norm, "layer_norm", row_op) \
  X(embedding, "embedding", row_op) \
  X(gelu, "gelu", row_op) \
  X(softmax, "softmax", row_op) \
  X(gather_rows, "gather_rows", row_op) \
  X(pool, "pool", row_op) \
  X(convert, "convert", row_op) \
  X(gather_tokens, "gather_tokens", row_op) \
  X(loss, "loss", row_op) \
  X(dropout, "dropout", row_op) \
  X(adamw, "adamw", row_op) \
  X(grad_norm, "grad_norm", row_op) \
  X(reduce, "reduce", row_op) \
  X(forward, "forward", stage) \
  X(backward, "backward", stage) \
  X(optimizer, "optimizer", stage) \
  X(evaluate, "evaluate", stage) \
  X(checkpoint, "checkpoint", stage) \
  X(device_busy, "device_busy", stage)
// clang-format on

enum class Zone : uint8_t {
#define BRIM_ZONE_ENUM(id, name, kind) id,
  BRIM_ZONES(BRIM_ZONE_ENUM)
#undef BRIM_ZONE_ENUM
      count
};
const char* zone_name(Zone zone);

inline constexpr ZoneKind kZoneKinds[] = {
#define BRIM_ZONE_KIND(id, name, kind) ZoneKind::kind,
    BRIM_ZONES(BRIM_ZONE_KIND)
#undef BRIM_ZONE_KIND
};
constexpr ZoneKind zone_kind(Zone zone) { return kZoneKinds[static_cast<int>(zone)]; }
ZoneKind zone_kind(std::string_view name);  // fails for unknown names
constexpr bool is_op(Zone zone) { return zone_kind(zone) != ZoneKind::stage; }

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
