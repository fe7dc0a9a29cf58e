// SPDX-License-Identifier: Apache-2.0
// brim._brim.train: trains on its own thread and reports progress on the caller's. Ctrl-C stops it like the program:
// the checkpoint is written before KeyboardInterrupt is raised. Settings are checked by the library.
#include "training.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "brim/train.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace brim::python {
namespace {

constexpr std::chrono::milliseconds kPollInterval{50};

struct TrainNews {
  double done = 0, total = 0;
  std::string text;
  std::vector<std::string> lines;
};

// Buffers events of the training thread until the caller's thread polls.
class NewsBox : public TrainListener {
 public:
  void progress(double done, double total, std::string_view text) override {
    const std::lock_guard lock(mutex_);
    news_.done = done;
    news_.total = total;
    news_.text = text;
  }
  void line(std::string_view text) override {
    const std::lock_guard lock(mutex_);
    news_.lines.emplace_back(text);
  }
  TrainNews take() {
    const std::lock_guard lock(mutex_);
    TrainNews taken = news_;
    news_.lines.clear();
    return taken;
  }

 private:
  std::mutex mutex_;
  TrainNews news_;
};

nb::dict dict_of(const TrainReport& r) {
  nb::dict out;
  out["steps"] = r.steps;
  out["samples"] = r.samples;
  out["tokens"] = r.tokens;
  out["seconds"] = r.seconds;
  out["final_loss"] = r.final_loss;
  out["best_metric"] = r.best_step < 0 ? nb::none() : nb::cast(r.best_metric);
  out["best_metric_name"] = r.best_metric_name;
  out["best_step"] = r.best_step < 0 ? nb::none() : nb::cast(r.best_step);
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
  std::stop_source stop;
  auto run = std::async(std::launch::async, [&] { return run_training({settings}, box, stop.get_token()); });
  const auto ended = [&](std::chrono::milliseconds time) {
    const nb::gil_scoped_release released;
    return run.wait_for(time) == std::future_status::ready;
  };
  const auto report_news = [&] {
    const TrainNews news = box.take();
    on_progress(news.done, news.total, news.text, news.lines);
  };
  try {
    while (!ended(kPollInterval)) {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      report_news();
    }
    report_news();
  } catch (...) {
    stop.request_stop();
    {
      const nb::gil_scoped_release released;
      run.wait();  // finishes and saves the current step
    }
    try {
      run.get();
    } catch (const std::exception& error) {  // the save failed: only a warning, because the interrupt is raised
      if (PyErr_WarnEx(PyExc_RuntimeWarning, error.what(), 1) != 0) PyErr_Clear();
    }
    throw;
  }
  return dict_of(run.get());
}

}  // namespace

void bind_training(nb::module_& m) { m.def("train", &train, "settings"_a, "heard"_a); }

}  // namespace brim::python
