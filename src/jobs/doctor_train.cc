// SPDX-License-Identifier: Apache-2.0
#include "jobs/doctor_train.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"

namespace brim::jobs {
namespace {

std::string share_of_run(double seconds, const TimelineSummary& s) {
  return fmt::format("{:.0f} %", s.seconds() > 0 ? 100 * seconds / s.seconds() : 0);
}

int64_t tokens_a_step(const RunRecord& r) { return r.stats.tokens / std::max<int64_t>(1, r.training->steps); }

std::string memory_name(const std::string& recompute, const std::string& optimizer, bool moments_on_host) {
  return fmt::format("recompute {}, {}{}", recompute, optimizer, moments_on_host ? " with its state on the host" : "");
}

// Scales the steps' part of the run to another speed; work per micro-batch shrinks with their number, and evaluations
// and checkpoints stay.
double at_speed(const TimelineSummary& s, double share_of_time, double share_of_batches) {
  const double steps = s.busy - s.evaluate_busy,
               per_batch = s.charged[index_of(Cause::launch)] + s.charged[index_of(Cause::copy)];
  const double left =
      s.seconds() - (1 - std::min(1.0, share_of_time)) * steps - (1 - std::min(1.0, share_of_batches)) * per_batch;
  return std::min(s.seconds(), std::max(left, s.pack));
}

}  // namespace

namespace {

// The same for lanes: windows are drawn on the device, so nothing is packed or copied between steps.
void describe_lanes_idle(Finding& f, const RunRecord& r, const TimelineSummary& s, const std::string& idle) {
  const bool rolls = r.verb == "forecast roll";
  switch (f.cause) {
    case Cause::copy:
    case Cause::packer:
      f.evidence = fmt::format("{}; preparing lanes, {}", idle, format_count(r.training->waves, "wave"));
      f.change = r.training->waves > 1 && r.training->free_lanes > r.training->lanes / r.training->waves
                     ? "use fewer and larger waves: `memory_limit=auto`"
                     : "no setting helps; more steps or larger blocks would hide it";
      if (f.change.starts_with("use fewer")) f.settings = {{"memory_limit", "auto"}};
      break;
    case Cause::launch:
      f.evidence = fmt::format("{}; launching took {} of the time, with {} at a time", idle, share_of_run(s.launch, s),
                               format_count(r.training->lanes / std::max<int64_t>(1, r.training->waves), "lane"));
      f.change = "train more lanes at a time (`repeats`) or use a larger `batch_size`; both change the models";
      break;
    case Cause::writer:
      f.evidence =
          fmt::format("{}; {} took {} of the time", idle, format_count(s.saves, "save"), share_of_run(s.save, s));
      f.change = "save less often (a larger `save_steps`) or to a faster disk";
      break;
    case Cause::sync:
      f.evidence = fmt::format("{}; the host read back losses while the device queue was empty", idle);
      f.change = "unset BRIM_SYNC and CUDA_LAUNCH_BLOCKING if they are set";
      f.settings = {{"sync", ""}};
      break;
    case Cause::evaluation:
      f.evidence =
          fmt::format("{}; {} took {} of the time", idle,
                      format_count(s.evaluations, rolls ? "forecast" : "evaluation"), share_of_run(s.evaluate, s));
      f.change = rolls ? "these are the requested forecasts; a larger `step` reduces their number"
                       : "validate less often (a larger `val_check_steps`)";
      break;
    default:
      break;
  }
}

}  // namespace

void describe_train_idle(Finding& f, const RunRecord& r, const TimelineSummary& s, const std::string& idle) {
  if (r.trains_lanes()) return describe_lanes_idle(f, r, s, idle);
  const monitor::TrainingRecord& t = *r.training;
  const bool limited =
      r.free_limit_bytes > r.limit_bytes.value_or(0) && r.free_token_budget > r.token_budget.value_or(0);
  switch (f.cause) {
    case Cause::packer:
      f.evidence =
          fmt::format("{}; packing {} took one core {} of the time, tokens {}", idle,
                      r.stats.batches == 1 ? "one micro-batch" : format_count(r.stats.batches) + " micro-batches",
                      share_of_run(s.pack, s), t.token_placement);
      if (t.token_placement == "streamed") {
        f.change = "`token_set=staged`: keep the tokens in host memory, not in the mapped cache file";
        f.settings = {{"token_set", "staged"}};
      } else {
        f.change = "no setting helps; a larger model or longer texts would hide it";
      }
      break;
    case Cause::copy:
      f.evidence = fmt::format("{}; copies of micro-batches took {} of the time", idle, share_of_run(s.copy, s));
      f.change = t.token_placement == "resident"
                     ? "the link to the GPU is slow or shared; check its PCIe width (brim monitor)"
                     : "keep the tokens in GPU memory (`token_set=resident`) or check the PCIe width (brim monitor)";
      break;
    case Cause::launch:
      f.evidence =
          fmt::format("{}; launching took {} of the time, with {} tokens per micro-batch", idle,
                      share_of_run(s.launch, s), format_count(r.stats.tokens / std::max<int64_t>(1, r.stats.batches)));
      if (limited) {
        f.change = "larger micro-batches need fewer launches: `memory_limit=auto`";
        f.settings = {{"memory_limit", "auto"}};
      } else {
        f.change = "use a larger `per_device_train_batch_size`; this changes training, so tune the learning rate again";
      }
      break;
    case Cause::writer:
      f.evidence =
          fmt::format("{}; {} took {} of the time{}", idle, format_count(s.saves, "save"), share_of_run(s.save, s),
                      f.idle_seconds > 1.1 * s.save ? ", most of the rest the report of the run" : "");
      f.change = "save less often (`save_strategy=steps` and a larger `save_steps`) or to a faster disk";
      break;
    case Cause::sync:
      f.evidence = fmt::format("{}; the host read back or reported losses while the device queue was empty", idle);
      f.change = r.precision == "fp16"
                     ? "use `precision=bf16`; fp16 waits for the gradient norm of every step to set the loss scale"
                     : "unset BRIM_SYNC and CUDA_LAUNCH_BLOCKING if they are set; a larger `logging_steps` "
                       "synchronizes less often";
      if (r.precision != "fp16") f.settings = {{"sync", ""}};
      break;
    case Cause::evaluation:
      f.evidence = fmt::format("{}; {} took {} of the time, with the device busy {} of it", idle,
                               format_count(s.evaluations, "evaluation"), share_of_run(s.evaluate, s),
                               s.evaluate > 0 ? fmt::format("{:.0f} %", 100 * s.evaluate_busy / s.evaluate) : "none");
      f.change = "evaluate less often (a larger `eval_steps` or `eval_strategy=epoch`) or on fewer rows";
      break;
    default:
      break;
  }
}

std::vector<Finding> advise_on_train_plan(const RunRecord& r, const TimelineSummary& s) {
  const monitor::TrainingRecord& t = *r.training;
  std::vector<Finding> all;
  const double now = r.plan_tokens_per_second;
  const int64_t budget = r.token_budget.value_or(0), limit = r.limit_bytes.value_or(0);
  if (now <= 0 || budget <= 0 || r.stats.batches == 0) return all;
  const double per_batch = static_cast<double>(r.stats.tokens) / static_cast<double>(r.stats.batches);
  const bool pressed =
      t.recompute != t.free_recompute || t.moments_on_host != t.free_moments_on_host || t.optimizer != t.free_optimizer;
  if (r.free_tokens_per_second > now && (pressed || r.free_token_budget >= 2 * budget)) {
    const bool others = others_hold_memory(r);
    Finding f;
    f.cause = pressed || others ? Cause::memory : Cause::small_batch;
    const double free_batch = static_cast<double>(std::min(r.free_token_budget, tokens_a_step(r)));
    f.predicted_seconds = at_speed(s, now / r.free_tokens_per_second, per_batch / std::max(1.0, free_batch));
    f.evidence = fmt::format(
        "{}: micro-batches of {} tokens, {}; with {}: {} tokens, {}, {:.2f} times as fast (predicted from the plan)",
        format_bytes(limit), format_count(budget), memory_name(t.recompute, t.optimizer, t.moments_on_host),
        format_bytes(r.free_limit_bytes), format_count(r.free_token_budget),
        memory_name(t.free_recompute, t.free_optimizer, t.free_moments_on_host), r.free_tokens_per_second / now);
    const bool only_recompute = t.recompute != t.free_recompute && t.moments_on_host == t.free_moments_on_host &&
                                t.optimizer == t.free_optimizer;
    if (only_recompute && !others && t.free_planned_bytes > 0)
      f.evidence = fmt::format(
          "recomputing activations (`recompute={}`) costs {:.0f} % of the step time; not required with {} of memory "
          "(predicted from the plan)",
          t.recompute, 100 * (1 - now / r.free_tokens_per_second), format_bytes(t.free_planned_bytes));
    if (others) {
      f.change =
          fmt::format("other processes use {} of GPU memory; stop or move them", format_bytes(*r.card.other_bytes));
    } else {
      if (r.free_limit_bytes > limit) {
        f.change = "`memory_limit=auto`";
        f.settings = {{"memory_limit", "auto"}};
      }
      if (t.recompute_asked && t.recompute != t.free_recompute) {
        f.change += f.change.empty() ? "`recompute=auto`" : " `recompute=auto`";
        f.settings.push_back({"recompute", "auto"});
      }
    }
    if (!f.change.empty()) all.push_back(std::move(f));
  }
  // Steps too short for the device. The step size affects training results, so no setting is changed, and a small gain
  // does not justify another learning rate.
  constexpr double kWorthRelearning = 1.1;
  if (t.wide_tokens_per_second > kWorthRelearning * now && t.wide_batch_tokens >= 2 * tokens_a_step(r)) {
    Finding f;
    f.cause = Cause::small_batch;
    const auto steps = static_cast<double>(tokens_a_step(r)) / static_cast<double>(t.wide_batch_tokens);
    f.predicted_seconds = at_speed(s, now / t.wide_tokens_per_second, steps);
    f.evidence = fmt::format(
        "{} tokens per step; steps of {} would be {:.2f} times as fast under the same limit (predicted from the plan)",
        format_count(tokens_a_step(r)), format_count(t.wide_batch_tokens), t.wide_tokens_per_second / now);
    f.change =
        "use a larger `per_device_train_batch_size`; this changes training, so tune the learning rate again "
        "(`lr_scaling` helps)";
    all.push_back(std::move(f));
  }
  return all;
}

std::vector<std::string> train_facts(const RunRecord& r, const TimelineSummary& s) {
  const double steps = std::max(0.0, s.seconds() - s.evaluating - s.saving);
  std::vector<std::string> facts = {
      fmt::format("of {}, steps took {} ({}), evaluation {} ({}), saving {} ({})", format_duration(s.seconds()),
                  format_duration(steps), share_of_run(steps, s), format_duration(s.evaluating),
                  share_of_run(s.evaluating, s), format_duration(s.saving), share_of_run(s.saving, s))};
  const monitor::TrainingRecord& t = *r.training;
  if (r.trains_lanes() && t.waves > 1)
    facts.push_back(fmt::format("{} in {} under {}{}", format_count(t.lanes, "lane"), format_count(t.waves, "wave"),
                                format_bytes(r.limit_bytes.value_or(0)),
                                t.free_lanes > t.lanes / t.waves
                                    ? fmt::format("; {} would fit {} at a time (`memory_limit=auto`)",
                                                  format_bytes(r.free_limit_bytes), format_count(t.free_lanes))
                                    : ""));
  if (r.trains_lanes() && t.recompute != "none")
    facts.push_back("the memory limit requires recomputation of blocks in the backward pass");
  if (t.teacher_seconds > 0.1 * s.seconds())
    facts.push_back(fmt::format("the teachers took {} before the first step; their scores are cached for the next run",
                                format_duration(t.teacher_seconds)));
  if (s.evaluate_busy > 0.1 * s.seconds())
    facts.push_back(fmt::format("{} kept the device busy for {} of the run; evaluate less to shorten it",
                                format_count(s.evaluations, "evaluation"), share_of_run(s.evaluate_busy, s)));
  return facts;
}

}  // namespace brim::jobs
