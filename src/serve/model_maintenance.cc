// SPDX-License-Identifier: Apache-2.0
// Periodic maintenance of the models, once a second: parks idle models, loads the next model of a schedule ahead of
// time, retries failed loads, closes unused devices, and trims the heap.
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
  std::vector<std::string> needed;  // pinned or scheduled soon: load and keep
  const Ladder::Wait wait = [this](const std::string& name) { return queue_seconds(find_model(name)) * 1e3; };
  for (const auto& ladder : options_.ladders) {
    ladder->update_load(now_ns(), wait);
    if (auto pinned = ladder->pinned()) needed.push_back(std::move(*pinned));
    if (auto next = ladder->coming(unix_now())) needed.push_back(next->model);
  }
  for (size_t m = 0; m < slots_.size(); ++m) {
    Slot& slot = *slots_[m];
    if (slot.kind == ModelKind::rules) continue;
    std::lock_guard lock(slot.mutex);
    if (slot.served == nullptr) continue;
    const bool is_needed = std::find(needed.begin(), needed.end(), options_.models[m].name) != needed.end();
    slot.served->scorer->keep_loaded(is_needed);
    const bool retry = slot.failed_ns > 0 && seconds_since(slot.failed_ns) >= options_.load_retry_seconds;
    const bool unloaded = slot.served->scorer->residence() != Residence::resident;
    if (retry || (is_needed && unloaded && slot.failed_ns == 0))
      load_in_background(slot, m);
    else if (!is_needed)
      park_if_idle(slot, m);
  }
  close_idle_device();
  trim_heap();
}

// These two require the slot's lock. Queued tasks hold only weak pointers, because the model may be replaced first.
void Service::load_in_background(Slot& slot, size_t index) {
  if (std::exchange(slot.moving, true)) return;
  admin_.call([this, index, weak = std::weak_ptr(slot.served)] {
    const Served served = weak.lock();
    try {
      if (served != nullptr) {
        served->scorer->load_weights();
        note_loaded(index);
      }
    } catch (const std::exception& error) {
      note_not_loaded(index, error.what());
    }
    std::lock_guard done(slots_[index]->mutex);
    slots_[index]->moving = false;
  });
}

void Service::park_if_idle(Slot& slot, size_t index) {
  const double keep = options_.models[index].keep_alive_seconds;
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
  admin_.call([this, index, weak = std::weak_ptr(slot.served)] {
    const Served served = weak.lock();
    try {
      if (served != nullptr) {
        served->scorer->park();
        log_info("{} was idle and is now {}", served->name,
                 served->scorer->residence() == Residence::parked ? "parked" : "on disk");
      }
    } catch (const std::exception& error) {
      log_warning("cannot park {}: {}", served->name, error.what());
    }
    std::lock_guard done(slots_[index]->mutex);
    slots_[index]->moving = false;
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
  // Closes the device once, and again after any model has been loaded since, even if it is already unloaded.
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
    } catch (const std::exception& error) {  // the device was lost in the meantime
      return log_warning("cannot close the device: {}", error.what());
    }
    if (closed) log_info("closed the device: no encoder was used for {} s", options_.release_device_seconds);
  });
}

// Each thread's heap keeps its peak size, so return unused memory to the system while the server is idle.
void Service::trim_heap() {
  constexpr int64_t kMinTrimBytes = 4 << 20;
  const bool idle = outstanding_ == 0 && at_work_ == 0;
  if (!std::exchange(idle_, idle) || !idle) return;  // a busy server may look idle once by chance
  const int64_t held = monitor::own_resident_bytes();
  least_held_ = std::min(least_held_, held);
  if (held - least_held_ < kMinTrimBytes) return;
  ::malloc_trim(0);
  least_held_ = monitor::own_resident_bytes();
}

// Until the model loads, the ladder uses another rung.
void Service::note_not_loaded(size_t index, const std::string& why) {
  const std::string& name = options_.models[index].name;
  Slot& slot = *slots_[index];
  {
    std::lock_guard lock(slot.mutex);
    if (slot.failed_ns == 0) log_warning("cannot load {}: {}", name, why);
    slot.failed_ns = now_ns();
    slot.fault = why;
  }
  report_fault(name, why);
}

void Service::note_loaded(size_t index) {
  const std::string& name = options_.models[index].name;
  Slot& slot = *slots_[index];
  {
    std::lock_guard lock(slot.mutex);
    if (std::exchange(slot.failed_ns, 0) == 0) return;
    log_info("{} is loaded again", name);
    slot.fault.clear();
  }
  report_fault(name, "");
  measure_again(name);  // its measurement may have failed too
}

}  // namespace brim::serve
