// SPDX-License-Identifier: Apache-2.0
// Downloads of models from Python, with Ctrl-C and progress.
#include "download.h"

#include <nanobind/stl/string.h>

#include <atomic>

#include "brim/pull.h"
#include "interruptible.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace brim::python {
namespace {

// `on_progress(done, total)` gets bytes. The part file of an interrupted download is kept for the next call.
std::string pull(const std::string& model, const nb::object& on_progress) {
  std::atomic<int64_t> done{0}, total{0};
  const auto note = [&](int64_t now, int64_t all) {
    done = now;
    total = all;
  };
  return run_interruptibly([&](std::stop_token stop) { return pull_model(model, note, stop); },
                           [&] {
                             if (!on_progress.is_none() && total > 0) on_progress(done.load(), total.load());
                           });
}

}  // namespace

void bind_download(nb::module_& m) { m.def("pull_model", &pull, "model"_a, "progress"_a.none()); }

}  // namespace brim::python
