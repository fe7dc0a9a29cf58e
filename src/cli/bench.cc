// SPDX-License-Identifier: Apache-2.0
// brim bench serve, and the former names of the measurements of `brim profile`, which work for one more release.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/log.h"
#include "cli/bench_serve.h"
#include "cli/measurements.h"
#include "cli/verb.h"

namespace brim::cli {

std::function<int()> setup_bench(CLI::App& app) {
  auto f = std::make_shared<MeasureFlags>();
  const std::vector<Measurement> measurements = add_measurements(app, *f);
  for (const Measurement& m : measurements)
    m.app->description(fmt::format("deprecated: use `brim profile {}`", m.app->get_name()));
  std::function<int()> serve;
#if defined(BRIM_WITH_SERVE)
  CLI::App* server =
      app.add_subcommand("serve", "a server under load: throughput, latency, rejections; labels are verified");
  serve = setup_bench_serve(*server, f->engine, [f](size_t most) { return read_texts(f->texts, most); });
#endif
  add_measurement_input(app, *f);
  app.require_subcommand(1);
  app.fallthrough();
  for (CLI::App* inner : app.get_subcommands([](CLI::App*) { return true; })) inner->fallthrough();
  return [f, measurements, serve] {
    for (const Measurement& m : measurements)
      if (m.app->parsed()) {
        log_warning("brim bench {0} is deprecated; use `brim profile {0}`", m.app->get_name());
        return m.run(*f);
      }
    return serve();
  };
}

}  // namespace brim::cli
