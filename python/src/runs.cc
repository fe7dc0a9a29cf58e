// SPDX-License-Identifier: Apache-2.0
// Plans, comparisons, shards, forecasts and readings of GPUs. Arguments are checked by python/brim.
#include "runs.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "brim/compare.h"
#include "brim/forecast.h"
#include "brim/monitor.h"
#include "brim/plan.h"
#include "brim/shards.h"
#include "interruptible.h"
#include "requests.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace brim::python {
namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;

std::string plan(const std::string& model, bool training, const std::string& device, const std::string& precision,
                 const std::string& memory_limit, int64_t max_length, int64_t typical_length) {
  PlanOptions options{.model = model, .training = training, .device = device};
  options.precision = precision;
  options.memory_limit = memory_limit;
  options.max_length = max_length;
  options.typical_length = typical_length;
  const nb::gil_scoped_release released;
  return plan_model(options).json;
}

std::string compare(const std::vector<std::string>& models, const std::vector<std::string>& data,
                    const std::string& text_column, const std::string& label_column, double max_loss,
                    const std::string& device, const std::string& precision, const std::string& memory_limit,
                    const std::string& leave_free, int threads, int64_t max_length, const std::string& long_text) {
  CompareOptions options;
  options.data = data;
  options.text_column = text_column;
  options.label_column = label_column;
  options.max_loss = max_loss;
  for (const std::string& model : models) {
    ScorerOptions& scorer = options.models.emplace_back();
    scorer.model = model;
    scorer.device = device;
    scorer.precision = precision;
    scorer.memory_limit = memory_limit;
    scorer.leave_free = leave_free;
    scorer.threads = threads;
    scorer.max_length = max_length;
    scorer.long_text = long_text_of(long_text);
  }
  return run_interruptibly([&](std::stop_token stop) { return compare_models(options, stop).json; }, [] {});
}

nb::list gpus() {
  std::vector<GpuReading> readings;
  {
    const nb::gil_scoped_release released;
    readings = read_gpus();
  }
  nb::list out;
  for (const GpuReading& r : readings) {
    nb::dict gpu;
    gpu["index"] = r.index;
    gpu["name"] = r.name;
    gpu["driver"] = r.driver;
    gpu["healthy"] = r.healthy;
    gpu["utilization"] = nb::cast(r.utilization);
    gpu["used_bytes"] = nb::cast(r.used_bytes);
    gpu["free_bytes"] = nb::cast(r.free_bytes);
    gpu["total_bytes"] = nb::cast(r.total_bytes);
    gpu["temperature_c"] = nb::cast(r.temperature_c);
    gpu["power_w"] = nb::cast(r.power_w);
    out.append(gpu);
  }
  return out;
}

void score_shard(const std::string& folder, int64_t shard, int threads) {
  run_interruptibly(
      [&](std::stop_token stop) {
        run_shard(folder, shard, threads, stop);
        return 0;
      },
      [] {});
}

// Runs `call(spec, listener, stop)` of brim/forecast.h.
template <class Call>
auto forecast(Call call, const Settings& settings, const nb::object& on_progress) {
  NewsBox box;
  BoxListener<ForecastListener> news(box);
  const ForecastSpec spec{settings};
  return run_interruptibly([&](std::stop_token stop) { return call(spec, news, stop); },
                           [&] { box.report(on_progress); });
}

nb::dict dict_of(Forecasts forecasts) {
  nb::dict out;
  out["unique_id"] = forecasts.ids;
  out["ds"] = forecasts.times;
  if (!forecasts.cutoffs.empty()) out["cutoff"] = forecasts.cutoffs;
  for (size_t c = 0; c < forecasts.columns.size(); ++c) {
    auto* values = new std::vector<double>(std::move(forecasts.values[c]));
    const nb::capsule owner(values, [](void* p) noexcept { delete static_cast<std::vector<double>*>(p); });
    out[forecasts.columns[c].c_str()] =
        nb::ndarray<nb::numpy, double, nb::ndim<1>>(values->data(), {values->size()}, owner);
  }
  return out;
}

}  // namespace

void bind_runs(nb::module_& m) {
  m.def("plan_model", &plan, "model"_a, "training"_a, "device"_a, "precision"_a, "memory_limit"_a, "max_length"_a,
        "typical_length"_a);
  m.def("compare_models", &compare, "models"_a, "data"_a, "text_column"_a, "label_column"_a, "max_loss"_a, "device"_a,
        "precision"_a, "memory_limit"_a, "leave_free"_a, "threads"_a, "max_length"_a, "long_text"_a);
  m.def("read_gpus", &gpus);
  m.def("run_shard", &score_shard, "folder"_a, "shard"_a, "threads"_a);
  m.def("finish_shards", &finish_shards, "folder"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "train_forecaster",
      [](const Settings& settings, const nb::object& on_progress) {
        forecast(
            [](const ForecastSpec& spec, ForecastListener& listener, std::stop_token stop) {
              train_forecaster(spec, listener, stop);
              return 0;
            },
            settings, on_progress);
      },
      "settings"_a, "on_progress"_a.none());
  m.def(
      "predict_series",
      [](const Settings& settings, const nb::object& on_progress) {
        return dict_of(forecast(&predict_series, settings, on_progress));
      },
      "settings"_a, "on_progress"_a.none());
  m.def(
      "roll_forecaster",
      [](const Settings& settings, const nb::object& on_progress) {
        return dict_of(forecast(&roll_forecaster, settings, on_progress));
      },
      "settings"_a, "on_progress"_a.none());
  m.def(
      "evaluate_forecasts",
      [](const Settings& settings, const nb::object& on_progress) {
        return forecast(&evaluate_forecasts, settings, on_progress);
      },
      "settings"_a, "on_progress"_a.none());
}

}  // namespace brim::python
