// SPDX-License-Identifier: Apache-2.0
// Long calls from Python on another thread, so that Ctrl-C can stop them and progress is reported on the caller's.
#pragma once
#include <nanobind/nanobind.h>

#include <chrono>
#include <future>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "brim/error.h"

namespace brim::python {

// Runs `work(stop_token)` and calls `report()` a few times per second. A signal stops the work, which may first save
// its state, before its exception is raised.
template <class Work, class Report>
auto run_interruptibly(Work&& work, Report&& report) {
  constexpr std::chrono::milliseconds kPollInterval{50};
  std::stop_source stop;
  auto run = std::async(std::launch::async, [&] { return work(stop.get_token()); });
  const auto ended = [&] {
    const nanobind::gil_scoped_release released;
    return run.wait_for(kPollInterval) == std::future_status::ready;
  };
  try {
    while (!ended()) {
      if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
      report();
    }
    report();
  } catch (...) {
    stop.request_stop();
    {
      const nanobind::gil_scoped_release released;
      run.wait();
    }
    try {
      run.get();
    } catch (const Error& error) {  // only a warning, because the interrupt is raised
      if (error.code() != ErrorCode::interrupted && PyErr_WarnEx(PyExc_RuntimeWarning, error.what(), 1) != 0)
        PyErr_Clear();
    }
    throw;
  }
  return run.get();
}

// Progress and lines of a run, until the caller's thread polls. Thread-safe.
class NewsBox {
 public:
  void set_progress(double done, double total, std::string_view text) {
    const std::lock_guard lock(mutex_);
    done_ = done;
    total_ = total;
    text_ = text;
  }
  void add_line(std::string_view text) {
    const std::lock_guard lock(mutex_);
    lines_.emplace_back(text);
  }
  // Calls `on_progress(done, total, text, lines)`, unless it is None.
  void report(const nanobind::object& on_progress) {
    double done = 0, total = 0;
    std::string text;
    std::vector<std::string> lines;
    {
      const std::lock_guard lock(mutex_);
      done = done_;
      total = total_;
      text = text_;
      lines = std::exchange(lines_, {});
    }
    if (!on_progress.is_none()) on_progress(done, total, text, lines);
  }

 private:
  std::mutex mutex_;
  double done_ = 0, total_ = 0;
  std::string text_;
  std::vector<std::string> lines_;
};

// A TrainListener or ForecastListener that puts what it receives into a box.
template <class Listener>
class BoxListener final : public Listener {
 public:
  explicit BoxListener(NewsBox& box) : box_(box) {}
  void progress(double done, double total, std::string_view text) override { box_.set_progress(done, total, text); }
  void line(std::string_view text) override { box_.add_line(text); }

 private:
  NewsBox& box_;
};

}  // namespace brim::python
