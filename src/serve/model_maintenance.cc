// SPDX-License-Identifier: Apache-2.0
// Periodic maintenance of the models, once a second: parks idle models, loads the next model of a schedule ahead of
// time, retries failed loads, closes unused devices, and trims the heap.
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "monitor/host.h"
#include "serve/models.h"

namespace brim::serve {

void ModelRegistry::maintain(bool idle) {
  free_retired();
  std::vector<std::string> needed;  // pinned or scheduled soon: load and keep
  const Ladder::Wait wait = [this](const std::string& name) { return wait_seconds(find(name)) * 1e3; };
  for (const auto& ladder : ladders()) {
    ladder->update_load(now_ns(), wait);
    if (auto pinned = ladder->pinned()) needed.push_back(std::move(*pinned));
    if (auto next = ladder->coming(unix_now())) needed.push_back(next->model);
  }
  for (size_t m = 0; m < size(); ++m) {
    Slot& slot = *slots_[m];
    if (slot.kind == ModelKind::rules) continue;
    std::lock_guard lock(slot.mutex);
    if (slot.served == nullptr) continue;
    const bool is_needed = std::find(needed.begin(), needed.end(), name(m)) != needed.end();
    slot.served->scorer->keep_loaded(is_needed);
    const bool retry = slot.failed_ns > 0 && seconds_since(slot.failed_ns) >= options_.load_retry_seconds;
    const bool unloaded = slot.served->scorer->residence() != Residence::resident;
    if (retry || (is_needed && unloaded && slot.failed_ns == 0))
      load_in_background(slot, m);
    else if (!is_needed)
      park_if_idle(slot, m);
  }
  close_idle_device();
  trim_heap(idle);
}

// These two require the slot's lock. Queued tasks hold only weak pointers, because the model may be replaced first.
void ModelRegistry::load_in_background(Slot& slot, size_t index) {
  if (std::exchange(slot.moving, true)) return;
  thread_.call([this, index, weak = std::weak_ptr(slot.served)] {
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

void ModelRegistry::park_if_idle(Slot& slot, size_t index) {
  const double keep = slot.configured.keep_alive_seconds;
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
  thread_.call([this, index, weak = std::weak_ptr(slot.served)] {
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

void ModelRegistry::close_idle_device() {
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
  thread_.call([this] {
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
void ModelRegistry::trim_heap(bool idle) {
  constexpr int64_t kMinTrimBytes = 4 << 20;
  if (!std::exchange(idle_, idle) || !idle) return;  // a busy server may look idle once by chance
  const int64_t held = monitor::own_resident_bytes();
  least_held_ = std::min(least_held_, held);
  if (held - least_held_ < kMinTrimBytes) return;
  ::malloc_trim(0);
  least_held_ = monitor::own_resident_bytes();
}

}  // namespace brim::serve
