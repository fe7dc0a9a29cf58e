// SPDX-License-Identifier: Apache-2.0
// brim._brim.train: trains on its own thread and reports progress on the caller's. Ctrl-C stops it like the program:
// the checkpoint is written before KeyboardInterrupt is raised. Settings are checked by the library.
#include "training.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "brim/train.h"
#include "interruptible.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace brim::python {
namespace {

nb::dict dict_of(const TrainReport& r) {
  nb::dict out;
  out["steps"] = r.steps;
  out["samples"] = r.samples;
  out["tokens"] = r.tokens;
  out["seconds"] = r.seconds;
  out["final_loss"] = r.final_loss;
  out["best_metric"] = r.best_step ? nb::cast(r.best_metric) : nb::none();
  out["best_metric_name"] = r.best_metric_name;
  out["best_step"] = r.best_step;
  out["limited_by"] = r.limited_by;
  out["planned_bytes"] = r.planned_bytes;
  out["held_bytes"] = r.held_bytes;
  out["limit_bytes"] = r.limit_bytes;
  out["stopped_early"] = r.stopped_early;
  out["interrupted"] = r.interrupted;
  return out;
}

// `heard(done, total, text, lines)` is called a few times per second.
nb::dict train(const std::vector<std::pair<std::string, std::string>>& settings, const nb::object& on_progress) {
  NewsBox box;
  BoxListener<TrainListener> news(box);
  return dict_of(run_interruptibly([&](std::stop_token stop) { return run_training({settings}, news, stop); },
                                   [&] { box.report(on_progress); }));
}

}  // namespace

void bind_training(nb::module_& m) { m.def("train", &train, "settings"_a, "heard"_a); }

}  // namespace brim::python
