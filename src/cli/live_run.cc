// SPDX-License-Identifier: Apache-2.0
#include "cli/live_run.h"

#include <algorithm>

#include "base/clock.h"

namespace brim::cli {
namespace {

constexpr int64_t kBetweenNs = 200'000'000;

}  // namespace

LiveRun::LiveRun(const char* command, const std::vector<Scorer*>& models)
    : engines_(engine::engines_of(models)), several_(models.size() > 1), started_ns_(now_ns()) {
  std::string names;
  for (const Scorer* model : models) names += (names.empty() ? "" : ", ") + model->model();
  const auto first =
      std::find_if(models.begin(), models.end(), [](const Scorer* m) { return m->kind() != ModelKind::rules; });
  record_.device = "cpu";
  if (first != models.end()) {
    // GPU memory is allocated when the model is opened, so it is read once; resident memory is read each time.
    record_ = engine::record_of(**first, {});
    std::vector<const plan::Plan*> plans;
    for (const engine::Engine* engine : engines_) plans.push_back(&engine->plan());
    record_.planned_bytes = planned_bytes(plans);
  }
  record_.verb = command;
  record_.model = names;
  record_.stats = {};
  record_.device_busy.reset();
  record_.mfu.reset();
  publisher_.publish(record_);
}

void LiveRun::update(const engine::PipelineStats& now, std::optional<double> done) {
  const int64_t time = now_ns();
  if (!publisher_.active() || time - last_ns_ < kBetweenNs) return;
  last_ns_ = time;
  engine::PipelineStats counted = now;
  counted.seconds = seconds_since(started_ns_);
  const bool rules = engines_.empty();
  const monitor::RunRecord r = rules ? engine::record_of(nullptr, nullptr, counted)
                                     : engine::record_of(&engines_[0]->shape(), &engines_[0]->plan(), counted);
  record_.stats = counted;
  if (!several_) record_.mfu = r.mfu;  // the tokens per model are only known at the end
  record_.mfu_of_data_sheet = r.mfu_of_data_sheet;
  record_.device_busy = r.device_busy;
  record_.done = done;
  if (!record_.on_card)
    record_.peak_bytes = monitor::peak_resident_bytes();
  else if (!record_.peak_bytes)
    record_.peak_bytes = engine::held_bytes(engines_[0]->device());
  const auto share = [&](double seconds) { return seconds / counted.seconds; };
  record_.stages = {{"read", share(now.read_seconds)},
                    {"tokenize", now.tokenizers > 0 ? share(now.tokenize_seconds) / now.tokenizers : 0},
                    {"pack, collect", share(now.host_seconds)},
                    {"compute", share(now.compute_seconds)},
                    {"write", share(now.sink_seconds)}};
  publisher_.publish(record_);
}

}  // namespace brim::cli
