// SPDX-License-Identifier: Apache-2.0
// Measures the accuracy gates of ladders in the background, again after any of their models has changed.
#pragma once
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "serve/gate_run.h"

namespace brim::serve {

class GateQueue {
 public:
  GateQueue(const std::vector<std::shared_ptr<Ladder>>& ladders, GateModels models)
      : ladders_(ladders), models_(std::move(models)) {}

  // Measures what the ladders' rungs lose in accuracy; load does not select a rung before that. One thread. With
  // `repeat`, repeats for every loaded or replaced model until stopped, and logs faults. `cache` returns the results
  // directory, and is called before each measurement; empty: none.
  using Cache = std::function<std::filesystem::path()>;
  void measure(const std::stop_token& stop, bool repeat, const Cache& cache);
  void measure_again(const std::string& model);  // for ladders that contain it
  // Discards results of a model, once it can no longer be measured. Stops a running measurement, which holds it.
  void forget(const std::string& model);
  std::vector<std::string> faults() const;

 private:
  void measure_one(Ladder& ladder, const Cache& cache, const std::stop_token& stop, bool warns);

  const std::vector<std::shared_ptr<Ladder>>& ladders_;
  const GateModels models_;
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable_any changed_;
  std::vector<Ladder*> unmeasured_;
  std::stop_source measuring_{std::nostopstate};
  std::map<std::string, std::vector<std::string>> faults_;  // by ladder
};

}  // namespace brim::serve
