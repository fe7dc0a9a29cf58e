// SPDX-License-Identifier: Apache-2.0
// Downloads of models from Python, with Ctrl-C and progress.
#include "download.h"

#include <nanobind/stl/string.h>

#include <atomic>
#include <chrono>
#include <future>

#include "brim/pull.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace brim::python {
namespace {

constexpr std::chrono::milliseconds kPollInterval{100};

// Downloads on another thread and polls, so that Ctrl-C ends the call. `on_progress(done, total)` gets bytes.
std::string pull(const std::string& model, const nb::object& on_progress) {
  std::atomic<int64_t> done{0}, total{0};
  std::stop_source stop;
  const auto note = [&](int64_t now, int64_t all) {
    done = now;
    total = all;
  };
  auto run = std::async(std::launch::async, [&] { return pull_model(model, note, stop.get_token()); });
  const auto ended = [&] {
    const nb::gil_scoped_release released;
    return run.wait_for(kPollInterval) == std::future_status::ready;
  };
  const auto report = [&] {
    if (!on_progress.is_none() && total > 0) on_progress(done.load(), total.load());
  };
  try {
    while (!ended()) {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      report();
    }
    report();
  } catch (...) {
    stop.request_stop();
    {
      const nb::gil_scoped_release released;
      run.wait();  // its part file is kept for the next call
    }
    throw;
  }
  return run.get();
}

}  // namespace

void bind_download(nb::module_& m) { m.def("pull_model", &pull, "model"_a, "progress"_a.none()); }

}  // namespace brim::python
