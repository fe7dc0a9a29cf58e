// SPDX-License-Identifier: Apache-2.0
// What the server does for its models unasked, once a second: one that nobody asks for leaves the device, the one that
// a schedule will name is loaded before its time, one that could not be loaded is tried again, a device that only rules
// would use is closed, and what requests left in the heap goes back to the system.
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "monitor/host.h"
#include "serve/service.h"

namespace brim::serve {

int64_t Service::unix_now() const { return options_.unix_clock ? options_.unix_clock() : std::time(nullptr); }

void Service::maintain_models() {
  free_retired();
  std::vector<std::string> awaited;  // by a ladder: they stay, or come
  for (const auto& ladder : options_.ladders) {
    if (auto pinned = ladder->pinned()) awaited.push_back(std::move(*pinned));
    if (auto coming = ladder->coming(unix_now())) awaited.push_back(coming->model);
  }
  for (size_t m = 0; m < slots_.size(); ++m) {
    Slot& slot = *slots_[m];
    if (slot.kind == ModelKind::rules) continue;
    std::lock_guard lock(slot.mutex);
    if (slot.served == nullptr) continue;
    const bool waited_for = std::find(awaited.begin(), awaited.end(), options_.models[m].name) != awaited.end();
    slot.served->scorer->keep_loaded(waited_for);
    const bool again = slot.failed_ns > 0 && seconds_since(slot.failed_ns) >= options_.load_retry_seconds;
    const bool away = slot.served->scorer->residence() != Residence::resident;
    if (again || (waited_for && away && slot.failed_ns == 0))
      bring(slot, m);
    else if (!waited_for)
      park_if_idle(slot, m);
  }
  close_idle_device();
  give_back_heap();
}

// The next two: under the slot's lock. What waits for its turn holds no model, which may be replaced before.
void Service::bring(Slot& slot, size_t place) {
  if (std::exchange(slot.moving, true)) return;
  admin_.call([this, place, weak = std::weak_ptr(slot.served)] {
    const Served served = weak.lock();
    try {
      if (served != nullptr) {
        served->scorer->load_weights();
        note_loaded(place);
      }
    } catch (const std::exception& error) {
      note_not_loaded(place, error.what());
    }
    std::lock_guard done(slots_[place]->mutex);
    slots_[place]->moving = false;
  });
}

void Service::park_if_idle(Slot& slot, size_t place) {
  const double keep = options_.models[place].keep_alive_seconds;
  if (keep < 0 || slot.moving) return;
  const Scorer& scorer = *slot.served->scorer;
  const int64_t batches = scorer.work().batches;
  if (batches != slot.batches || slot.used_ns == 0 || scorer.load().texts > 0 ||
      scorer.residence() != Residence::resident) {
    slot.batches = batches;
    slot.used_ns = now_ns();
    return;
  }
  if (seconds_since(slot.used_ns) < keep) return;
  slot.moving = true;
  admin_.call([this, place, weak = std::weak_ptr(slot.served)] {
    const Served served = weak.lock();
    try {
      if (served != nullptr) {
        served->scorer->park();
        log_info("{} is {}: nobody asked for it", served->name,
                 served->scorer->residence() == Residence::parked ? "parked" : "on disk");
      }
    } catch (const std::exception& error) {
      log_warning("{} stays on the device: {}", served->name, error.what());
    }
    std::lock_guard done(slots_[place]->mutex);
    slots_[place]->moving = false;
  });
}

void Service::close_idle_device() {
  if (options_.release_device_seconds < 0) return;
  bool any = false, used = false;
  int64_t loads = 0;
  for (const Served& model : loaded()) {
    if (model->scorer->kind() == ModelKind::rules) continue;
    any = true;
    loads += model->scorer->work().loads;
    used = used || model->scorer->residence() == Residence::resident || model->scorer->load().texts > 0;
  }
  // It is closed once, and again when a model has come since, even if that one left before anybody looked.
  const int64_t closed_now = -1 - loads;
  if (!any || used || (unused_since_ns_ < 0 && unused_since_ns_ != closed_now)) unused_since_ns_ = 0;
  if (!any || used || unused_since_ns_ == closed_now) return;
  if (unused_since_ns_ == 0) unused_since_ns_ = now_ns();
  if (seconds_since(unused_since_ns_) < options_.release_device_seconds) return;
  unused_since_ns_ = closed_now;
  admin_.call([this] {
    bool closed = true;
    try {
      for (const Served& model : loaded())
        if (model->scorer->kind() != ModelKind::rules) closed = model->scorer->close_device() && closed;
    } catch (const std::exception& error) {  // a card that was lost meanwhile
      return log_warning("the device is not closed: {}", error.what());
    }
    if (closed) log_info("the device is closed: rules alone answered for {} s", options_.release_device_seconds);
  });
}

// Each of many threads has a heap that keeps the most its requests ever took: while nobody asks, that is given back.
void Service::give_back_heap() {
  constexpr int64_t kWorthIt = 4 << 20;
  const bool idle = outstanding_ == 0 && at_work_ == 0;
  if (!std::exchange(idle_, idle) || !idle) return;  // one look may find a busy server idle by chance
  const int64_t held = monitor::own_resident_bytes();
  least_held_ = std::min(least_held_, held);
  if (held - least_held_ < kWorthIt) return;
  ::malloc_trim(0);
  least_held_ = monitor::own_resident_bytes();
}

// A ladder's next rung answers until it is there.
void Service::note_not_loaded(size_t place, const std::string& why) {
  const std::string& name = options_.models[place].name;
  Slot& slot = *slots_[place];
  {
    std::lock_guard lock(slot.mutex);
    if (slot.failed_ns == 0) log_warning("{} cannot be loaded: {}", name, why);
    slot.failed_ns = now_ns();
    slot.fault = why;
  }
  report_fault(name, why);
}

void Service::note_loaded(size_t place) {
  const std::string& name = options_.models[place].name;
  Slot& slot = *slots_[place];
  {
    std::lock_guard lock(slot.mutex);
    if (std::exchange(slot.failed_ns, 0) == 0) return;
    log_info("{} is loaded again", name);
    slot.fault.clear();
  }
  report_fault(name, "");
  measure_again(name);  // it may have failed there too
}

}  // namespace brim::serve
