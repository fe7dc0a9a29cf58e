// SPDX-License-Identifier: Apache-2.0
#include "serve/gate_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "base/error.h"
#include "base/log.h"
#include "io/sha256.h"

namespace brim::serve {

void GateQueue::measure(const std::stop_token& stop, bool repeat, const Cache& cache) {
  for (const auto& ladder : ladders_) measure_again(ladder->rules().rungs.front().model);
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    if (repeat) changed_.wait(lock, stop, [this] { return !unmeasured_.empty(); });
    if (unmeasured_.empty()) return;
    Ladder& ladder = *unmeasured_.front();
    unmeasured_.erase(unmeasured_.begin());
    std::stop_source measuring;
    measuring_ = measuring;
    lock.unlock();
    {
      const std::stop_callback ending(stop, [&measuring] { measuring.request_stop(); });
      measure_one(ladder, cache, measuring.get_token(), repeat);
    }
    lock.lock();
  }
}

void GateQueue::measure_one(Ladder& ladder, const Cache& cache, const std::stop_token& stop, bool warns) {
  const std::string& name = ladder.rules().name;
  std::vector<std::string> faults;
  try {
    std::filesystem::path file;
    if (cache) file = cache() / (io::sha256_hex(name).substr(0, 16) + ".json");
    faults = measure_gate(ladder, models_, file, stop);
  } catch (const std::exception& error) {
    if (stop.stop_requested()) return measure_again(ladder.rules().rungs.front().model);
    faults.push_back(fmt::format("ladder {}: cannot measure the gate: {}", name, error.what()));
  }
  if (warns)
    for (const std::string& fault : faults) log_warning("{}", fault);
  for (const RungView& rung : ladder.view(std::time(nullptr)).rungs)
    if (rung.gate.figures)
      log_info("ladder {}: {} {}: {}", name, rung.model, verdict_name(rung.gate.verdict), rung.gate.why);
  std::lock_guard lock(mutex_);
  faults_[name] = std::move(faults);
}

void GateQueue::measure_again(const std::string& model) {
  {
    std::lock_guard lock(mutex_);
    for (const auto& ladder : ladders_)
      if (ladder->has(model) && !ladder->rules().gate.data.empty() &&
          std::find(unmeasured_.begin(), unmeasured_.end(), ladder.get()) == unmeasured_.end())
        unmeasured_.push_back(ladder.get());
  }
  changed_.notify_all();
}

void GateQueue::forget(const std::string& model) {
  for (const auto& ladder : ladders_)
    if (ladder->has(model)) ladder->forget_gate(model);
  measure_again(model);
  std::stop_source measuring{std::nostopstate};
  {
    std::lock_guard lock(mutex_);
    measuring = measuring_;
  }
  measuring.request_stop();
}

std::vector<std::string> GateQueue::faults() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> all;
  for (const auto& [ladder, faults] : faults_) all.insert(all.end(), faults.begin(), faults.end());
  return all;
}

}  // namespace brim::serve
