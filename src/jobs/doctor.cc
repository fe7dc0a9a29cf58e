// SPDX-License-Identifier: Apache-2.0
#include "jobs/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/units.h"
#include "io/compress.h"
#include "jobs/doctor_sweep.h"
#include "jobs/doctor_train.h"

namespace brim::jobs {
namespace {

// Models the run by its stages and predicts its time if one of them were no bottleneck.
class Predictor {
 public:
  Predictor(const RunRecord& r, const TimelineSummary& s)
      : r_(r), s_(s), vader_(r.model == "vader"), train_(r.trains()), cores_(std::max(1, r.cores)) {}

  int more_tokenizers() const {
    const int most = vader_ || !r_.on_card ? r_.cores : std::max(1, r_.cores - 2);
    return std::max(most, r_.stats.tokenizers);
  }

  // Run time without the idle time attributed to `cause`, bounded below by the other stages.
  double without(Cause cause) const {
    if (train_) return train_without(cause);
    double read = s_.read, write = s_.write, tokenize = s_.tokenize / std::max(1, r_.stats.tokenizers);
    if (cause == Cause::reader) read = std::min(read, r_.stats.read_cpu_seconds);
    if (cause == Cause::writer) write = std::min(write, r_.stats.sink_cpu_seconds);
    if (cause == Cause::tokenizer) tokenize = tokenize_work() / more_tokenizers();
    double compute = vader_ ? 0 : r_.on_card ? std::max(s_.busy, s_.host) : s_.busy + s_.host;
    if (cause == Cause::packer || cause == Cause::launch) compute = s_.busy;
    const double left = s_.seconds() - s_.charged[index_of(cause)];
    double least = std::max({read, write, tokenize, compute});
    if (!r_.on_card) least = std::max(least, cpu() / cores_);
    return std::min(s_.seconds(), std::max(left, least));
  }

  // Larger batches: device time scales with its speed, host work per batch with the number of batches; the other stages
  // are unchanged. On a GPU, launch gaps inside a batch count as busy, so the speed includes them.
  double with_larger_batches(double share_of_time, double share_of_batches) const {
    double per_batch = 0;
    for (const Cause cause : {Cause::packer, Cause::copy, Cause::launch, Cause::sync})
      per_batch += s_.charged[index_of(cause)];
    const double left = with_device_at(share_of_time) - (1 - std::min(1.0, share_of_batches)) * per_batch;
    const double tokenize = tokenize_work() / std::max(1, std::min(r_.stats.tokenizers, r_.cores));
    return std::min(s_.seconds(), std::max({left, s_.read, s_.write, tokenize}));
  }

  // Run time with a faster device that was busy but slow.
  double with_device_at(double share_of_time) const {
    return s_.seconds() - (1 - std::min(1.0, share_of_time)) * device_seconds();
  }
  // Cores used by other processes do not count as available.
  double with_all_cores() const {
    const double others = s_.seconds() > 0 ? r_.stats.other_cpu_seconds.value_or(0) / s_.seconds() : 0;
    const double free = std::clamp(r_.machine_cores - others, static_cast<double>(r_.threads), cores_);
    const double least = std::max({s_.read, s_.write, cpu() / cores_});
    return std::min(s_.seconds(), std::max(with_device_at(r_.threads / free), least));
  }
  double device_seconds() const { return vader_ ? s_.seconds() : s_.busy; }

  // Time that runnable threads waited for a core, excluding waits caused by threads of this process.
  double lost_to_others() const {
    const engine::PipelineStats& p = r_.stats;
    if (!p.run_delay_seconds || !p.other_cpu_seconds) return 0;
    return std::min(std::max(0.0, *p.run_delay_seconds - s_.crowded), *p.other_cpu_seconds);
  }
  double without_other_processes() const {
    const double lost = lost_to_others();
    if (r_.stats.run_delay_seconds && lost <= 0) return s_.seconds();  // its threads always had a core
    if (r_.on_card) return std::max(s_.seconds() - lost / std::max(1, r_.stats.tokenizers), s_.busy);
    const double left = s_.seconds() - lost / able();
    if (vader_ || s_.busy < 0.8 * s_.seconds()) return std::max(left, cpu() / cores_);
    // A preempted thread makes the others wait at the end of each layer: without preemption only the work itself
    // remains.
    return std::min(left, undisturbed_cpu() / able());
  }

 private:
  // Micro-batches are prepared concurrently with the device (on the CPU on the same cores); everything else alternates
  // with it.
  double train_without(Cause cause) const {
    const double pack = cause == Cause::packer ? 0 : s_.pack;
    double least = std::max(s_.busy, pack);
    if (!r_.on_card) least = std::max(least, (s_.busy * r_.threads + pack) / cores_);
    return std::min(s_.seconds(), std::max(s_.seconds() - s_.charged[index_of(cause)], least));
  }

  double cpu() const { return r_.stats.cpu_seconds; }
  // Cores the run can keep busy while computing.
  double able() const { return r_.threads > 0 ? std::min<double>(r_.threads, cores_) : cores_; }
  // Work takes more CPU time on shared cores, because caches are cold after each switch; the plan's figure assumes
  // exclusive cores. The midpoint matched the one machine it was tried on (docs/doctor-method.md).
  double undisturbed_cpu() const {
    const double around = r_.stats.read_cpu_seconds + r_.stats.tokenize_cpu_seconds + r_.stats.sink_cpu_seconds;
    const double compute = std::max(0.0, cpu() - around);
    const double planned = r_.plan_tokens_per_second > 0
                               ? static_cast<double>(r_.stats.tokens) / r_.plan_tokens_per_second * able()
                               : compute;
    return around + 0.5 * (compute + std::clamp(planned, 0.5 * compute, compute));
  }
  // Tokenizer threads on shared cores took longer than their CPU time.
  double tokenize_work() const {
    return r_.stats.tokenize_cpu_seconds > 0 ? std::min(s_.tokenize, r_.stats.tokenize_cpu_seconds) : s_.tokenize;
  }

  const RunRecord& r_;
  const TimelineSummary& s_;
  bool vader_, train_;
  double cores_;
};

class DiagnosisBuilder {
 public:
  DiagnosisBuilder(const RunTrace& trace, const std::optional<BudgetProbe>& probe)
      : r_(trace.record), s_(sweep(trace)), predict_(r_, s_), probe_(probe) {}

  Diagnosis build() {
    d_.seconds = s_.seconds();
    d_.busy_seconds = s_.busy;
    d_.idle_seconds = s_.idle;
    d_.idle = s_.charged;
    for (const Cause cause : {Cause::reader, Cause::tokenizer, Cause::packer, Cause::copy, Cause::launch, Cause::writer,
                              Cause::sync, Cause::evaluation})
      if (s_.charged[index_of(cause)] > 0) add(cause, predict_.without(cause));
    if (train_)
      training_plan();
    else
      small_batches();
    throttled();
    paging();
    other_processes();
    unused_cores();
    std::stable_sort(d_.findings.begin(), d_.findings.end(), [](const Finding& a, const Finding& b) {
      return a.gain != b.gain ? a.gain > b.gain : a.idle_seconds > b.idle_seconds;
    });
    if (d_.seconds < kShort && !d_.findings.empty())
      d_.facts.push_back(fmt::format(
          "the run took only {}, so overhead between threads dominates; use more rows for a reliable diagnosis",
          format_duration(d_.seconds)));
    d_.verdict = verdict();
    return d_;
  }

 private:
  void training_plan() {
    for (Finding& advice : advise_on_train_plan(r_, s_)) {
      const size_t had = d_.findings.size();
      add(advice.cause, advice.predicted_seconds);
      if (d_.findings.size() == had) continue;
      Finding& f = d_.findings.back();
      f.evidence = std::move(advice.evidence);
      f.change = std::move(advice.change);
      f.settings = std::move(advice.settings);
    }
    d_.facts = train_facts(r_, s_);
  }

  void add(Cause cause, double predicted) {
    Finding f;
    f.cause = cause;
    f.idle_seconds = s_.charged[index_of(cause)];
    f.predicted_seconds = predicted;
    f.gain = d_.seconds > 0 ? std::max(0.0, 1 - predicted / d_.seconds) : 0;
    if (f.gain < kWorthwhile) return;
    describe(f);
    d_.findings.push_back(std::move(f));
  }

  double share(double seconds) const { return d_.seconds > 0 ? seconds / d_.seconds : 0; }

  void describe(Finding& f) const {
    const engine::PipelineStats& p = r_.stats;
    const std::string idle = fmt::format("the device waited {} ({} of the run) for it", format_duration(f.idle_seconds),
                                         percent(share(f.idle_seconds)));
    if (train_) return describe_train_idle(f, r_, s_, idle);
    switch (f.cause) {
      case Cause::reader:
        f.evidence = fmt::format("{}; the reader was active {} of the time and used its core {}", idle,
                                 percent(share(s_.read)), percent(share(p.read_cpu_seconds)));
        f.change = reader_advice();
        break;
      case Cause::writer:
        f.evidence = fmt::format("{}; the writer was active {} of the time and used its core {}", idle,
                                 percent(share(s_.write)), percent(share(p.sink_cpu_seconds)));
        f.change = writer_advice();
        break;
      case Cause::tokenizer: {
        f.evidence = fmt::format("{}; {} tokenizer thread{} busy {} of the time on {} usable cores", idle, p.tokenizers,
                                 p.tokenizers == 1 ? " was" : "s were",
                                 percent(share(s_.tokenize / std::max(1, p.tokenizers))), r_.cores);
        const int threads = predict_.more_tokenizers();
        if (threads > p.tokenizers) {
          f.change = fmt::format("`tokenizer_threads={}`", threads);
          f.settings = {{"tokenizer_threads", std::to_string(threads)}};
        } else if (r_.machine_cores > r_.cores) {
          f.change = fmt::format("allow the process more of the {} cores (limited to {} by affinity or a cgroup)",
                                 r_.machine_cores, r_.cores);
        } else {
          f.change = "all cores are used; add cores or stop other processes";
        }
        break;
      }
      case Cause::packer:
        f.evidence = fmt::format("{}; packing and collecting took {}", idle, percent(share(s_.host)));
        f.change = "no setting helps; a larger model or longer texts would hide it";
        break;
      case Cause::copy:
        f.evidence = fmt::format(
            "{}; copies took {} of the time{}", idle, percent(share(s_.copy)),
            r_.staging_depth == 1 ? ", and with one batch in flight neither copies nor host work overlap with compute"
                                  : "");
        if (r_.staging_depth == 1) {
          f.change = "unset BRIM_STAGING_DEPTH to keep three batches in flight";
          f.settings = {{"staging_depth", ""}};
        } else {
          f.change = "the link to the GPU is slow or shared; check its PCIe width (brim monitor)";
        }
        break;
      case Cause::launch:
        f.evidence = fmt::format("{}; launching took {} of the time", idle, percent(share(s_.launch)));
        f.change = "larger batches need fewer launches: `memory_limit=auto`";
        if (r_.free_limit_bytes > r_.limit_bytes.value_or(0)) f.settings = {{"memory_limit", "auto"}};
        break;
      case Cause::sync:
        f.evidence = fmt::format("{}; the host waited for an idle device", idle);
        f.change = "unset BRIM_SYNC and CUDA_LAUNCH_BLOCKING if they are set";
        f.settings = {{"sync", ""}};
        break;
      default:
        break;
    }
  }

  std::string reader_advice() const {
    for (const auto& path : r_.inputs) {
      if (path == "-") return "the program that feeds the pipe is too slow; speed it up or let it write a file";
      if (io::compression_of(path) == io::Compression::gzip)
        return fmt::format("{} is gzip, which uses one core to decompress; decompress it once or store it as .zst",
                           path);
    }
    return "read from a faster disk or from memory (copy the input to /dev/shm)";
  }
  std::string writer_advice() const {
    if (r_.output == "-")
      return "the program that reads the pipe is too slow; speed it up or write to a file with `output`";
    if (io::compression_of(r_.output) == io::Compression::gzip)
      return "write the output uncompressed or as .zst; gzip uses one core";
    return "write to a faster disk";
  }

  void small_batches() {
    const double per_batch =
        static_cast<double>(r_.stats.tokens) / static_cast<double>(std::max<int64_t>(1, r_.stats.batches));
    const int64_t budget = r_.token_budget.value_or(0);
    if (r_.free_token_budget < 2 * budget || r_.stats.batches < 4 || budget == 0) return;
    if (per_batch < 0.25 * static_cast<double>(budget))
      return;  // not caused by the budget: there were not enough rows to fill it
    double now = r_.plan_tokens_per_second, then = r_.free_tokens_per_second;
    if (probe_) {
      now = probe_->tokens_per_second;
      then = probe_->free_tokens_per_second;
    }
    if (now <= 0 || then <= now) return;
    // A limit set by the user can be raised; memory held by other processes cannot be used.
    const bool others = others_hold_memory(r_);
    const size_t had = d_.findings.size();
    add(others ? Cause::memory : Cause::small_batch,
        predict_.with_larger_batches(now / then, per_batch / static_cast<double>(r_.free_token_budget)));
    if (d_.findings.size() == had) return;
    Finding& f = d_.findings.back();
    f.evidence = fmt::format("{} tokens per batch; {} would be {:.2f} times as fast ({})",
                             format_count(static_cast<int64_t>(per_batch)), format_count(r_.free_token_budget),
                             then / now, probe_ ? "measured here" : "predicted from the plan");
    if (others) {
      f.change =
          fmt::format("other processes use {} of GPU memory; stop or move them", format_bytes(*r_.card.other_bytes));
    } else {
      f.change = fmt::format("`memory_limit=auto`; the limit of {} allows only {} tokens",
                             format_bytes(r_.limit_bytes.value_or(0)), format_count(budget));
      f.settings = {{"memory_limit", "auto"}};
    }
  }

  // A GPU under load draws its power limit, so its mean power must be about the limit times the busy share. If power is
  // unknown, a cap that halves the clocks is not credible.
  bool knows_power() const { return r_.card.power_w && r_.card.power_limit_w.value_or(0) > 0; }
  bool power_explains_clocks() const {
    constexpr double kLag = 0.75;  // the driver averages over up to a second, starting from an idle GPU
    const CardRecord& c = r_.card;
    if (!knows_power()) return 2 * *c.sm_clock_mhz >= *c.max_sm_clock_mhz;
    return *c.power_w >= kLag * share(s_.busy) * *c.power_limit_w;
  }

  std::string power_text() const {
    if (!knows_power()) return "";
    return fmt::format(" ({:.0f} of {:.0f} W on average)", *r_.card.power_w, *r_.card.power_limit_w);
  }

  void throttled() {
    const CardRecord& c = r_.card;
    const int clock = c.sm_clock_mhz.value_or(0), most = c.max_sm_clock_mhz.value_or(0);
    if (c.throttle.empty() || clock <= 0 || most <= clock) return;
    std::vector<std::string> reasons = c.throttle;
    std::erase_if(reasons, is_power_cap);
    if (reasons.empty() && power_explains_clocks()) {
      at_power_limit_ = true;
      d_.facts.push_back(
          fmt::format("the GPU was at its power limit{} with clocks at {} of {} MHz, which is normal under full load",
                      power_text(), clock, most));
      return;
    }
    // Samples with at most the power cap active show the attainable clock; without any, use the maximum clock.
    const int reached = reasons.empty() ? most : c.unhindered_clock_mhz.value_or(most);
    const size_t had = d_.findings.size();
    add(Cause::throttle, predict_.with_device_at(static_cast<double>(clock) / reached));
    if (d_.findings.size() == had) return;
    Finding& f = d_.findings.back();
    if (reasons.empty()) {
      f.evidence =
          fmt::format("the GPU ran at {} of {} MHz and reports a power cap, but its power draw does not explain it{}",
                      clock, most, power_text());
      f.change = "check the power supply, cables and slot; reset the GPU (nvidia-smi -r, requires root)";
      return;
    }
    f.evidence = fmt::format("the GPU ran at {} of {} MHz because of: {}", clock, reached, fmt::join(reasons, ", "));
    f.change = reasons == std::vector<std::string>{"application clocks"}
                   ? "reset the application clocks (nvidia-smi -rac and -rgc, requires root)"
                   : "improve cooling and power supply; the GPU throttles to protect itself";
  }

  void paging() {
    // A page fault from disk blocks a thread for about a tenth of a millisecond.
    const double lost = std::min(0.5 * d_.seconds, static_cast<double>(r_.stats.major_faults) * 1e-4);
    const size_t had = d_.findings.size();
    add(Cause::memory, d_.seconds - lost);
    if (d_.findings.size() == had) return;
    Finding& f = d_.findings.back();
    f.evidence = fmt::format("{} pages were read back from disk or swap", format_count(r_.stats.major_faults));
    f.change =
        r_.training && r_.training->token_placement == "streamed"
            ? "free host memory so that the token cache file stays cached, or set `token_set=staged` if there is enough"
            : "free host memory: stop other programs or set a smaller `memory_limit`";
  }

  void other_processes() {
    const double used = r_.stats.other_cpu_seconds.value_or(0);
    if (used < 0.1 * d_.seconds) return;
    const size_t had = d_.findings.size();
    add(Cause::other_process, predict_.without_other_processes());
    if (d_.findings.size() == had) return;
    Finding& f = d_.findings.back();
    f.evidence = fmt::format("{}; threads of this process waited {} in total for a core",
                             r_.others.empty()
                                 ? fmt::format("other processes used {:.1f} of {} cores", share(used), r_.machine_cores)
                                 : r_.others,
                             format_duration(r_.stats.run_delay_seconds.value_or(0)));
    f.change = "stop or renice the other processes (see brim monitor or top), or run later";
  }

  // On the CPU: fewer compute threads than cores unused by other processes.
  void unused_cores() {
    if (r_.on_card || r_.model == "vader" || r_.threads < 1 || r_.threads >= r_.cores) return;
    const size_t had = d_.findings.size();
    add(Cause::unused_cores, predict_.with_all_cores());
    if (d_.findings.size() == had) return;
    Finding& f = d_.findings.back();
    f.evidence = fmt::format("{} used of {} cores", format_count(r_.threads, "thread"), r_.cores);
    f.change = fmt::format("`threads={}`", r_.cores);
    f.settings = {{"threads", std::to_string(r_.cores)}};
  }

  std::string verdict() const {
    const double busy = share(s_.busy);
    if (!d_.findings.empty()) {
      const Finding& f = d_.findings.front();
      return fmt::format("limited by {}: without it the run would take {} instead of {} ({:.2f} times as fast)",
                         cause_name(f.cause), format_duration(f.predicted_seconds), format_duration(d_.seconds),
                         d_.seconds / std::max(1e-9, f.predicted_seconds));
    }
    if (at_power_limit_ && busy >= 0.9)
      return fmt::format("no bottleneck found: the GPU is at its power limit{} and was busy {} of the time",
                         power_text(), percent(busy));
    if (d_.seconds < 1 && busy < 0.9)
      return fmt::format(
          "no bottleneck found: the run took only {}, mostly startup and shutdown; use more rows for a reliable "
          "diagnosis",
          format_duration(d_.seconds));
    return fmt::format("no bottleneck found: the device was busy {} of the time, and no stage would save {} or more",
                       percent(busy), percent(kWorthwhile));
  }

  const RunRecord& r_;
  const bool train_ = r_.trains();
  const TimelineSummary s_;
  const Predictor predict_;
  const std::optional<BudgetProbe>& probe_;
  bool at_power_limit_ = false;
  Diagnosis d_;
};

}  // namespace

std::string percent(double share) { return fmt::format("{:.0f} %", share * 100); }

const char* cause_name(Cause cause) {
  static const char* const names[] = {
#define BRIM_CAUSE_NAME(id, name) name,
      BRIM_CAUSES(BRIM_CAUSE_NAME)
#undef BRIM_CAUSE_NAME
  };
  return names[index_of(cause)];
}

std::optional<Cause> cause_from_name(const std::string& name) {
  for (size_t c = 0; c < index_of(Cause::count); ++c)
    if (name == cause_name(static_cast<Cause>(c))) return static_cast<Cause>(c);
  return std::nullopt;
}

std::string SettingChange::variable() const {
  std::string variable = "BRIM_";
  for (const char c : name) variable += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return variable;
}

double Diagnosis::attributed() const {
  double known = 0;
  for (const double part : idle) known += part;
  return idle_seconds > 0 ? known / idle_seconds : 1;
}

bool wants_probe(const RunTrace& trace) {
  const RunRecord& r = trace.record;
  const int64_t budget = r.token_budget.value_or(0);
  return !r.trains() && budget > 0 && r.free_token_budget >= 2 * budget && r.stats.batches >= 4;
}

Diagnosis diagnose(const RunTrace& trace, const std::optional<BudgetProbe>& probe) {
  return DiagnosisBuilder(trace, probe).build();
}

std::string to_text(const Diagnosis& d) {
  std::string out = d.verdict + "\n\n";
  out += fmt::format("device busy {} of {} ({:.1f} %), idle {}; {}\n", format_duration(d.busy_seconds),
                     format_duration(d.seconds), d.seconds > 0 ? 100 * d.busy_seconds / d.seconds : 0,
                     format_duration(d.idle_seconds),
                     d.attributed() >= 0.9995 ? "all idle time is explained"
                                              : fmt::format("{:.1f} % of it is explained", 100 * d.attributed()));
  for (size_t c = 0; c < d.idle.size(); ++c)
    if (d.idle[c] > 0.005 * d.seconds)
      out += fmt::format("  {:<26} {:>8}  {:>5.1f} % of the run\n", cause_name(static_cast<Cause>(c)),
                         format_duration(d.idle[c]), 100 * d.idle[c] / d.seconds);
  for (const std::string& fact : d.facts) out += fmt::format("note: {}\n", fact);
  int number = 0;
  for (const Finding& f : d.findings)
    out += fmt::format("\n{}. {}: predicted {} instead of {} (saves {:.0f} %)\n   evidence: {}\n   change:   {}\n",
                       ++number, cause_name(f.cause), format_duration(f.predicted_seconds), format_duration(d.seconds),
                       100 * f.gain, f.evidence, f.change);
  return out;
}

std::string to_env_file(const Diagnosis& d) {
  std::string out = "# Written by brim doctor; use it with `env_file`. Command-line flags override it.\n";
  for (const Finding& f : d.findings)
    for (const SettingChange& s : f.settings) {
      out += fmt::format("\n# {}: {}\n", cause_name(f.cause), f.evidence);
      if (s.value.empty())
        out += fmt::format("# unset {} in the environment\n", s.variable());
      else
        out += fmt::format("{}={}\n", s.variable(), s.value);
    }
  return out;
}

}  // namespace brim::jobs
