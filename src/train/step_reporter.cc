// SPDX-License-Identifier: Apache-2.0
#include "train/step_reporter.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/units.h"
#include "plan/card_measure.h"

namespace brim::train {

using monitor::GpuSample;

namespace {

std::string share_text(const std::optional<double>& share, const plan::DeviceProfile& device) {
  return share ? fmt::format(" · MFU {:.1f} %{}", 100 * *share, device.mfu_note()) : "";
}

// Utilisation, memory, temperature and power as reported by the driver; missing values are shown as such and logged as
// null.
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

std::string all_labels(const LabelSets& labels) {
  if (labels.token.empty()) return some_of(labels.sequence);
  return labels.sequence.empty() ? some_of(labels.token) : some_of(labels.sequence) + "; tags " + some_of(labels.token);
}

std::string rate_text(const TrainJob& job, const StepSchedule& schedule) {
  const TrainSettings& s = job.settings;
  std::string text = s.max_steps > 0
                         ? fmt::format("{} (max_steps)", format_count(schedule.total_steps(), "step"))
                         : fmt::format("{} epoch{}", s.num_train_epochs, s.num_train_epochs == 1 ? "" : "s");
  text += fmt::format(" · learning rate {:.3g}", schedule.peak_learning_rate());
  if (s.lr_scaling != LrScaling::none)
    text += fmt::format(" ({:.3g} for {}, scaled by {} to {})", s.learning_rate,
                        format_count(s.lr_reference_batch, "row"), setting_text(s, "lr_scaling"),
                        format_count(rows_of_step(s, job.train_set.tokens_per_row()), "row"));
  text += fmt::format(", schedule {}", setting_text(s, "lr_scheduler_type"));
  if (const int64_t warmup = warmup_of(s, schedule.total_steps()); warmup > 0)
    text += fmt::format(", {} of warm-up", format_count(warmup, "step"));
  return text;
}

std::string lora_text(const TrainJob& job) {
  const hub::LoraConfig& lora = job.shape.lora;
  int64_t trained = 0;
  for (const model::ParamSpec& p : model_params(job.shape)) trained += p.frozen ? 0 : p.elements();
  return fmt::format("LoRA of rank {}, alpha {}, on {}: {} trained with the head", lora.rank, lora.alpha,
                     some_of(lora.targets), format_count(trained, "parameter"));
}

std::string evaluation_text(const TrainJob& job) {
  const TrainSettings& s = job.settings;
  const std::string metric = best_metric(s, job.task);
  const std::string kept =
      s.load_best_model_at_end
          ? fmt::format("keeping the model with the {} {}", metric == "loss" || metric == "mse" ? "lowest" : "best",
                        metric == "mean_f1" ? "mean_f1 (of macro_f1 and entity_f1)" : metric)
          : "keeping the last model, not the best";
  return fmt::format("{} evaluated every {} · {}", format_count(job.validation_set.rows(), "validation row"),
                     s.eval_strategy == Strategy::epoch ? "epoch" : format_count(s.eval_steps, "step"), kept);
}

}  // namespace

std::vector<std::string> start_lines(const TrainJob& job, const StepSchedule& schedule) {
  const TrainSettings& s = job.settings;
  const TrainSet& set = job.train_set;
  const plan::Plan& plan = job.plan;
  const bool tokens = s.batch_tokens > 0;
  std::vector<std::string> lines;
  lines.push_back(fmt::format("{}, {} ({:.1f} per row) · {} of {} · {} parameters", format_count(set.rows(), "row"),
                              format_count(set.tokens(), "token"), set.tokens_per_row(),
                              format_count(schedule.total_steps(), "step"),
                              format_count(tokens ? s.batch_tokens : s.global_batch(), tokens ? "token" : "row"),
                              format_count(param_count(job.shape))));
  lines.push_back("labels: " + all_labels(job.labels));
  if (job.shape.lora) lines.push_back(lora_text(job));
  if (!s.teachers.empty()) lines.push_back(teaching_text(job));
  lines.push_back(rate_text(job, schedule));
  if (job.validation_set.rows() > 0 && s.eval_strategy != Strategy::no) lines.push_back(evaluation_text(job));
  lines.push_back(fmt::format("{} in {} ({}) · micro-batch {} · recompute {} · {} · memory planned {} of {}",
                              job.device->name(), precision_name(job.precision), job.precision_reason,
                              format_count(plan.token_budget, "token"), recompute_name(plan.recompute),
                              optimizer_name(plan.optimizer), format_bytes(plan.peak_bytes),
                              format_bytes(plan.limit_bytes)));
  lines.push_back(token_placement_text(job));
  return lines;
}

std::string new_head_line(const TrainJob& job) {
  if (job.task == TrainTask::multi && !job.replaces_head && job.head != hub::HeadKind::encoder) {
    const bool tags = job.head == hub::HeadKind::sequence;
    return fmt::format("keeping the model's {}; adding a new {} for {}", tags ? "classifier" : "tagger",
                       tags ? "tagger" : "classifier", some_of(tags ? job.labels.token : job.labels.sequence));
  }
  if (job.unnamed_head)
    return fmt::format("the labels of the adapter's classifier are unknown; replacing it with a new one for {}",
                       all_labels(job.labels));
  if (!job.replaces_head) return "the model has no classifier; adding a new one for " + all_labels(job.labels);
  return fmt::format("the model's classifier is for {}; replacing it with a new one for {}; other layers are kept",
                     some_of(job.config.id2label), all_labels(job.labels));
}

std::string speed_text(int64_t rows, int64_t tokens, double seconds) {
  seconds = std::max(1e-9, seconds);
  return fmt::format("{}/s · {} tokens/s",
                     format_count(static_cast<int64_t>(static_cast<double>(rows) / seconds), "row"),
                     format_si(static_cast<double>(tokens) / seconds));
}

StepReporter::StepReporter(const TrainJob& job, const StepSchedule& schedule, const TrainCallbacks& callbacks,
                           TrainLog& record, std::function<int64_t()> counted_bytes)
    : job_(job),
      schedule_(schedule),
      callbacks_(callbacks),
      record_(record),
      counted_bytes_(std::move(counted_bytes)),
      held_(held_bytes()) {}

void StepReporter::step_done(const StepReading& p, double seconds) {
  seconds = std::max(1e-9, seconds);
  samples_ += p.rows;
  tokens_ += p.tokens;
  squares_ += p.sum_squares;
  window_loss_ += p.loss;
  window_sequence_loss_.add(p.sequence_loss);
  window_token_loss_.add(p.token_loss);
  ++window_steps_;
  window_rows_ += p.rows;
  window_tokens_ += p.tokens;
  window_squares_ += p.sum_squares;
  if (p.number % job_.settings.logging_steps == 0 || p.number == schedule_.total_steps()) log_window(p, seconds);
  if (callbacks_.progress)
    callbacks_.progress(
        static_cast<double>(p.number), static_cast<double>(schedule_.total_steps()),
        fmt::format("step {} · loss {:.4f} · lr {:.2e} · {}{} · memory {} of {}", format_count(p.number), p.loss, p.lr,
                    speed_text(samples_, tokens_, seconds), share_text(mfu(seconds), job_.plan.device),
                    format_bytes(held_), format_bytes(job_.plan.peak_bytes)));
  publish(p, seconds);
}

std::optional<double> StepReporter::mfu(int64_t tokens, double squares, double seconds) const {
  const double rate = job_.plan.device.rate(job_.precision);
  if (rate <= 0) return std::nullopt;
  return 3 * forward_flops(job_.shape, static_cast<double>(tokens), squares) / seconds / rate;
}

void StepReporter::log_window(const StepReading& p, double now) {
  const double seconds = std::max(1e-9, now - window_since_);
  const std::optional<double> share = mfu(window_tokens_, window_squares_, seconds);
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
                {"mfu", share.value_or(NAN)},
                {"memory_used_bytes", static_cast<double>(held_)},
                {"memory_planned_bytes", static_cast<double>(job_.plan.peak_bytes)},
                {"train_seconds", now}};
  std::string heads;
  if (job_.task == TrainTask::multi) {
    const double sequence = window_sequence_loss_.value(), token = window_token_loss_.value();
    row.emplace_back("sequence_loss", sequence);
    row.emplace_back("token_loss", token);
    heads = fmt::format(" (classifier {:.4f}, tagger {:.4f})", sequence, token);
  }
  std::string card;
  if (job_.device->kind() == device::DeviceKind::cuda) card = " · " + card_reading(sample.value_or(GpuSample{}), row);
  record_.add(row);
  if (callbacks_.say)
    callbacks_.say(fmt::format(
        "step {} · loss {:.4f}{} · lr {:.2e} · {}/s{} · memory {} of {} planned{}", format_count(p.number), loss, heads,
        p.lr, format_count(static_cast<int64_t>(static_cast<double>(window_rows_) / seconds), "row"),
        share_text(share, job_.plan.device), format_bytes(held_), format_bytes(job_.plan.peak_bytes), card));
  window_loss_ = window_squares_ = 0;
  window_sequence_loss_ = window_token_loss_ = {};
  window_steps_ = window_rows_ = window_tokens_ = 0;
  window_since_ = now;
}

std::optional<GpuSample> StepReporter::sample_card() {
  if (job_.device->kind() != device::DeviceKind::cuda) return std::nullopt;
  if (!nvml_) nvml_ = std::make_unique<monitor::Nvml>();
  return nvml_->sample_card(job_.device->pci_bus_id(), {.pcie_throughput = false, .processes = true, .gpm = false});
}

int64_t StepReporter::held_bytes(const std::optional<GpuSample>& card) const {
  const bool all_ours = card && !plan::shares_process();
  const std::optional<int64_t> reported = all_ours ? own_bytes(*card) : std::nullopt;
  return reported ? *reported : counted_bytes_();
}

// Publishes at most five times per second.
void StepReporter::publish(const StepReading& p, double seconds) {
  if (callbacks_.live == nullptr || now_ns() - published_ns_ < 200'000'000) return;
  published_ns_ = now_ns();
  monitor::RunRecord r;
  r.verb = "train";
  r.model = job_.model_dir.string();
  r.set_device(*job_.device);
  r.precision = precision_name(job_.precision);
  r.stats.rows = samples_;
  r.stats.tokens = tokens_;
  r.stats.seconds = seconds;
  r.mfu = mfu(seconds);
  r.mfu_of_data_sheet = *job_.plan.device.mfu_note() != 0;
  r.planned_bytes = job_.plan.peak_bytes;
  r.limit_bytes = job_.plan.limit_bytes;
  r.token_budget = job_.plan.token_budget;
  r.peak_bytes = held_;
  r.step = p.number;
  r.total_steps = schedule_.total_steps();
  r.loss = p.loss;
  r.device_busy = std::min(1.0, p.busy_seconds / seconds);
  r.stages = {{"compute", *r.device_busy}, {"wait for batch", std::min(1.0, p.wait_seconds / seconds)}};
  callbacks_.live->publish(std::move(r));
}

}  // namespace brim::train
