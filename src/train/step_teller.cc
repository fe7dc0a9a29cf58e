// SPDX-License-Identifier: Apache-2.0
#include "train/step_teller.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/units.h"

namespace brim {
namespace {

std::string share_text(double share) {
  return std::isnan(share) ? "not available" : fmt::format("{:.1f} %", 100 * share);
}

// Utilisation, memory, temperature and power as the driver tells them; what it does not tell is said so, and null in
// the log.
std::string card_reading(const GpuSample& sample, LogRow& row) {
  const auto put = [&](const char* name, const auto& value) {
    row.emplace_back(name, value ? static_cast<double>(*value) : NAN);
  };
  put("gpu_utilization", sample.utilization);
  put("gpu_memory_used_bytes", sample.used_bytes);
  put("gpu_temperature_c", sample.temperature_c);
  put("gpu_power_w", sample.power_w);
  const std::string none = "not available";
  return fmt::format("GPU {} | memory {} | {} | {}",
                     sample.utilization ? fmt::format("{:.0f} %", 100 * *sample.utilization) : none,
                     sample.used_bytes && sample.total_bytes
                         ? format_bytes(*sample.used_bytes) + " / " + format_bytes(*sample.total_bytes)
                         : none,
                     sample.temperature_c ? fmt::format("{:.0f} °C", *sample.temperature_c) : none,
                     sample.power_w ? fmt::format("{:.0f} W", *sample.power_w) : none);
}

}  // namespace

StepTeller::StepTeller(const TrainJob& job, const StepSchedule& schedule, const TrainCallbacks& callbacks,
                       RunRecord& record, std::function<int64_t()> counted_bytes)
    : job_(job),
      schedule_(schedule),
      callbacks_(callbacks),
      record_(record),
      counted_bytes_(std::move(counted_bytes)),
      held_(held_bytes()) {}

void StepTeller::step_done(const StepReading& p, double seconds) {
  seconds = std::max(1e-9, seconds);
  samples_ += p.rows;
  tokens_ += p.tokens;
  squares_ += p.sum_squares;
  window_loss_ += p.loss;
  ++window_steps_;
  window_rows_ += p.rows;
  window_tokens_ += p.tokens;

  window_squares_ += p.sum_squares;
  if (p.number % job_.settings.logging_steps == 0 || p.number == schedule_.total_steps()) log_window(p, seconds);
  if (callbacks_.progress)
    callbacks_.progress(
        static_cast<double>(p.number), static_cast<double>(schedule_.total_steps()),
        fmt::format("step {} · loss {:.4f} · lr {:.2e} · {} samples/s · {} tokens/s · MFU {} · memory {} of {}",
                    format_count(p.number), p.loss, p.lr,
                    format_count(static_cast<int64_t>(static_cast<double>(samples_) / seconds)),
                    format_si(static_cast<double>(tokens_) / seconds), share_text(mfu(seconds)), format_bytes(held_),
                    format_bytes(job_.plan.peak_bytes)));
  publish(p, seconds);
}

double StepTeller::mfu(int64_t tokens, double squares, double seconds) const {
  const double rate = job_.plan.device.rate(job_.precision);
  return rate > 0 ? 3 * forward_flops(job_.shape, static_cast<double>(tokens), squares) / seconds / rate : NAN;
}

void StepTeller::log_window(const StepReading& p, double now) {
  const double seconds = std::max(1e-9, now - window_since_);
  const double share = mfu(window_tokens_, window_squares_, seconds);
  const double loss = window_loss_ / static_cast<double>(std::max<int64_t>(1, window_steps_));
  const std::optional<GpuSample> sample = sample_card();
  held_ = held_bytes(sample);
  LogRow row = {{"step", static_cast<double>(p.number)},
                {"epoch", schedule_.epochs_done(p.number)},
                {"loss", loss},
                {"learning_rate", p.lr},
                {"grad_norm", p.norm},
                {"samples_per_second", static_cast<double>(window_rows_) / seconds},
                {"tokens_per_second", static_cast<double>(window_tokens_) / seconds},
                {"mfu", share},
                {"memory_used_bytes", static_cast<double>(held_)},
                {"memory_planned_bytes", static_cast<double>(job_.plan.peak_bytes)},
                {"train_seconds", now}};
  std::string card = "card: not available";
  if (job_.device->kind() == DeviceKind::cuda) card = card_reading(sample.value_or(GpuSample{}), row);
  record_.add(row);
  if (callbacks_.say)
    callbacks_.say(
        fmt::format("step {} · loss {:.4f} · lr {:.2e} · {} samples/s · MFU {} · memory {} of {} planned · {}",
                    format_count(p.number), loss, p.lr,
                    format_count(static_cast<int64_t>(static_cast<double>(window_rows_) / seconds)), share_text(share),
                    format_bytes(held_), format_bytes(job_.plan.peak_bytes), card));
  window_loss_ = window_squares_ = 0;
  window_steps_ = window_rows_ = window_tokens_ = 0;
  window_since_ = now;
}

std::optional<GpuSample> StepTeller::sample_card() {
  if (job_.device->kind() != DeviceKind::cuda) return std::nullopt;
  if (!nvml_) nvml_ = std::make_unique<Nvml>();
  return nvml_->sample_card(job_.device->pci_bus_id(), {.pcie_throughput = false, .processes = true, .gpm = false});
}

int64_t StepTeller::held_bytes(const std::optional<GpuSample>& card) const {
  const std::optional<int64_t> told = card ? own_bytes(*card) : std::nullopt;
  return told ? *told : counted_bytes_();
}

// Five times a second.
void StepTeller::publish(const StepReading& p, double seconds) {
  if (callbacks_.live == nullptr || now_ns() - published_ns_ < 200'000'000) return;
  published_ns_ = now_ns();
  LiveFigures f;
  f.set_command("train");
  f.set_model(job_.model_dir.string());
  const bool cuda = job_.device->kind() == DeviceKind::cuda;
  f.set_device(cuda ? fmt::format("cuda:{} {}", job_.device->index(), job_.device->name()) : job_.device->name());
  f.set_pci_bus_id(job_.device->pci_bus_id());
  f.set_precision(precision_name(job_.precision));
  f.rows = samples_;
  f.tokens = tokens_;
  f.rows_per_s = static_cast<double>(f.rows) / seconds;
  f.tokens_per_s = static_cast<double>(f.tokens) / seconds;
  const double share = mfu(seconds);
  if (!std::isnan(share)) f.mfu = share;
  f.planned_bytes = job_.plan.peak_bytes;
  f.limit_bytes = job_.plan.limit_bytes;

  f.token_budget = job_.plan.token_budget;
  f.peak_bytes = held_;
  f.step = p.number;
  f.total_steps = schedule_.total_steps();
  f.loss = p.loss;
  f.busy = std::min(1.0, p.busy_seconds / seconds);
  f.add_stage("compute", f.busy);
  f.add_stage("wait for batch", std::min(1.0, p.wait_seconds / seconds));
  callbacks_.live->publish(f);
}

}  // namespace brim
