// SPDX-License-Identifier: Apache-2.0
#include "cli/live_run.h"

#include <fmt/format.h>

#include "base/clock.h"

namespace brim::cli {
namespace {

constexpr int64_t kBetweenNs = 200'000'000;

}  // namespace

LiveRun::LiveRun(const char* command, const std::vector<engine::TextModel*>& models)
    : several_(models.size() > 1), started_ns_(now_ns()) {
  figures_.set_command(command);
  figures_.set_device("cpu");
  std::string names;
  std::vector<const plan::Plan*> plans;
  for (engine::TextModel* model : models) {
    names += (names.empty() ? "" : ", ") + model->name();
    engine::Engine* engine = model->engine();
    if (engine == nullptr) continue;
    const plan::Plan& plan = engine->plan();
    plans.push_back(&plan);
    if (engine_ != nullptr) continue;
    engine_ = engine;
    device::Device& device = engine->device();
    const bool cuda = device.kind() == device::DeviceKind::cuda;
    figures_.set_device(cuda ? fmt::format("cuda:{} {}", device.index(), device.name()) : device.name());
    figures_.set_pci_bus_id(device.pci_bus_id());
    figures_.set_precision(precision_name(engine->precision()));
    figures_.limit_bytes = plan.limit_bytes;
    figures_.token_budget = plan.token_budget;
  }
  if (!plans.empty()) figures_.planned_bytes = planned_bytes(plans);
  figures_.set_model(names);
  publisher_.publish(figures_);
}

void LiveRun::update(const engine::PipelineStats& now, double done) {
  const int64_t time = now_ns();
  if (!publisher_.active() || time - last_ns_ < kBetweenNs) return;
  last_ns_ = time;
  engine::PipelineStats counted = now;
  counted.seconds = seconds_since(started_ns_);
  const engine::RunStats r = run_stats(engine_ != nullptr ? &engine_->shape() : nullptr,
                                       engine_ != nullptr ? &engine_->plan() : nullptr, counted);
  figures_.rows = r.rows;
  figures_.tokens = r.tokens;
  figures_.rows_per_s = r.rows_per_second;
  if (engine_ != nullptr) figures_.tokens_per_s = r.tokens_per_second;
  figures_.mfu = several_ ? -1 : r.mfu;  // the tokens per model are only known at the end
  figures_.mfu_of_data_sheet = !r.mfu_note.empty();
  figures_.busy = r.device_busy;
  figures_.done = done;
  // GPU memory is allocated before the first batch, so it is queried once; resident memory is read each time.
  const device::DeviceKind kind = engine_ != nullptr ? engine_->device().kind() : device::DeviceKind::cpu;
  if (kind == device::DeviceKind::cpu || figures_.peak_bytes < 0)
    figures_.peak_bytes = engine_ != nullptr ? engine::held_bytes(engine_->device()) : monitor::peak_resident_bytes();
  figures_.stage_count = 0;
  const auto share = [&](double seconds) { return seconds / counted.seconds; };
  figures_.add_stage("read", share(now.read_seconds));
  figures_.add_stage("tokenize", now.tokenizers > 0 ? share(now.tokenize_seconds) / now.tokenizers : 0);
  figures_.add_stage("pack, collect", share(now.host_seconds));
  figures_.add_stage("compute", share(now.compute_seconds));
  figures_.add_stage("write", share(now.sink_seconds));
  publisher_.publish(figures_);
}

}  // namespace brim::cli
