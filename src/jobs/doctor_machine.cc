// SPDX-License-Identifier: Apache-2.0
#include "jobs/doctor_machine.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/clock.h"
#include "base/thread_pool.h"
#include "base/units.h"
#include "engine/scorer_access.h"
#include "monitor/host.h"
#include "monitor/nvml.h"

namespace brim::jobs {
namespace {

using CheckState = MachineCheck::State;

std::string kernel_release() {
  utsname name{};
  return ::uname(&name) == 0 ? name.release : "";
}

void check_cards(std::vector<MachineCheck>& checks) {
  monitor::Nvml nvml;
  if (!nvml.ready()) {
    checks.push_back(
        {CheckState::notice, "GPU", nvml.why(), "runs use the CPU; if there is a GPU, install the NVIDIA driver"});
    return;
  }
  monitor::GpuSampleOptions options;
  options.pcie_throughput = options.gpm = false;
  bool first = true;
  for (const monitor::GpuSample& card : nvml.sample(options)) {
    const std::string name = fmt::format("GPU {}", card.index);
    if (card.state != monitor::GpuState::ok) {
      checks.push_back({CheckState::problem, name, fmt::format("{}: {}", gpu_state_name(card.state), card.why),
                        "reset the GPU or reboot"});
      continue;
    }
    checks.push_back({CheckState::fine, name,
                      fmt::format("{}, driver {}", card.name, card.driver.empty() ? "unknown" : card.driver), ""});
    if (card.sm_clock_mhz && card.max_sm_clock_mhz)
      checks.push_back(
          {CheckState::fine, name + " clock",
           fmt::format("{} of {} MHz now (idle GPUs lower their clocks)", *card.sm_clock_mhz, *card.max_sm_clock_mhz),
           ""});
    if (card.throttle) {
      std::vector<std::string> reasons = *card.throttle;
      if (std::any_of(reasons.begin(), reasons.end(), is_power_cap))
        checks.push_back({CheckState::notice, name + " power", "at its power limit",
                          "the GPU is under load although no run has started; check for other processes"});
      std::erase_if(reasons, [](const std::string& reason) { return !is_slowdown(reason); });
      if (!reasons.empty())
        checks.push_back({CheckState::problem, name + " throttle", fmt::format("{}", fmt::join(reasons, ", ")),
                          "improve cooling and power supply; reset application clocks with nvidia-smi -rac and -rgc"});
    }
    if (card.free_bytes && card.total_bytes) {
      const bool short_of = *card.free_bytes < *card.total_bytes / 2;
      checks.push_back({short_of ? CheckState::notice : CheckState::fine, name + " memory",
                        fmt::format("{} of {} free", format_bytes(*card.free_bytes), format_bytes(*card.total_bytes)),
                        short_of ? "other processes use more than half of it, which makes plans smaller" : ""});
    }
    std::vector<MachineCheck> wsl = check_wsl(kernel_release(), card.free_bytes, card.total_bytes);
    if (!first && !wsl.empty()) wsl.erase(wsl.begin());  // the notice is about the machine
    first = false;
    checks.insert(checks.end(), wsl.begin(), wsl.end());
    if (card.processes && !card.processes->empty()) {
      std::vector<std::string> processes;
      for (const monitor::GpuProcess& p : *card.processes)
        processes.push_back(fmt::format("{} (pid {}{})", p.name.empty() ? "?" : p.name, p.pid,
                                        p.bytes ? ", " + format_bytes(*p.bytes) : ""));
      checks.push_back({CheckState::problem, name + " processes", fmt::format("{}", fmt::join(processes, ", ")),
                        "they use GPU memory and time; stop those that are not needed"});
    }
  }
}

void check_host(std::vector<MachineCheck>& checks, const std::string& directory, double seconds) {
  monitor::OtherProcesses others;
  monitor::HostSampler sampler(directory);
  (void)sampler.sample();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const monitor::HostSample host = sampler.sample();
  const auto cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  const bool bound = host.cores < cores;
  checks.push_back(
      {bound ? CheckState::notice : CheckState::fine, "cores",
       fmt::format("{} of {} usable{}", host.cores, cores, host.cpu_name.empty() ? "" : ", " + host.cpu_name),
       bound ? "the others are excluded by affinity or a cgroup quota" : ""});
  if (host.cpu) {
    const monitor::OtherProcesses::Load load = others.load();
    const bool busy = load.cores > 0.15 * cores;
    checks.push_back({busy ? CheckState::problem : CheckState::fine, "load", load.text(),
                      busy ? "stop or renice them; they compete with tokenization and CPU inference" : ""});
  }
  if (host.memory_available_bytes && host.memory_total_bytes) {
    const bool low = *host.memory_available_bytes < std::max<int64_t>(int64_t{1} << 30, *host.memory_total_bytes / 20);
    checks.push_back({low ? CheckState::problem : CheckState::fine, "memory",
                      fmt::format("{} of {} free", format_bytes(*host.memory_available_bytes),
                                  format_bytes(*host.memory_total_bytes)),
                      low ? "the system may start to swap" : ""});
  }
  if (host.disk_free_bytes) {
    const bool low = *host.disk_free_bytes < (int64_t{1} << 30);
    checks.push_back({low ? CheckState::problem : CheckState::fine, "disk space",
                      fmt::format("{} free at {}", format_bytes(*host.disk_free_bytes), directory),
                      low ? "outputs may not fit" : ""});
  }
}

// Writes and syncs 64 MiB and reports the speed. Reading would mostly measure the page cache.
void check_disk(std::vector<MachineCheck>& checks, const std::string& directory) {
  constexpr size_t kBlock = size_t{1} << 20;
  constexpr int kBlocks = 64;
  std::string path = directory + "/.brim_disk_XXXXXX";
  const int fd = ::mkstemp(path.data());
  if (fd < 0) {
    checks.push_back(
        {CheckState::problem, "disk", fmt::format("{} is not writable", directory), "choose another output directory"});
    return;
  }
  (void)::unlink(path.c_str());
  std::string block(kBlock, '\0');
  for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<char>(i * 2654435761u >> 13);
  const int64_t since = now_ns();
  bool ok = true;
  for (int i = 0; i < kBlocks && ok; ++i)
    ok = ::write(fd, block.data(), block.size()) == static_cast<ssize_t>(block.size());
  ok = ok && ::fsync(fd) == 0;
  const double speed = static_cast<double>(kBlock * kBlocks) / std::max(1e-9, seconds_since(since));
  (void)::close(fd);
  if (!ok) {
    checks.push_back(
        {CheckState::problem, "disk", fmt::format("{}: cannot write 64 MiB", directory), "free some space"});
    return;
  }
  const bool slow = speed < 20e6;
  checks.push_back({slow ? CheckState::notice : CheckState::fine, "disk",
                    fmt::format("{:.0f} MB/s to {}", speed / 1e6, directory),
                    slow ? "slow for reading and writing rows" : ""});
}

// Creates batches of one size from texts with the mean and spread of the run's text lengths.
class BatchMaker {
 public:
  BatchMaker(const engine::Engine& engine, const engine::PipelineStats& stats) : engine_(engine) {
    const auto rows = static_cast<double>(std::max<int64_t>(1, stats.rows));
    const double mean = static_cast<double>(stats.tokens) / rows,
                 spread = std::sqrt(std::max(0.0, stats.sum_squares / rows - mean * mean));
    const auto length = [&](double tokens) {
      return std::clamp<int64_t>(std::llround(tokens), 1, engine.plan().max_length);
    };
    lengths_ = {length(mean - spread), length(mean + spread)};
    const auto words = static_cast<uint64_t>(engine.tokenizer().vocab_size());
    for (uint64_t i = 0; i < 65536; ++i)
      ids_.push_back(static_cast<int32_t>(i * 2654435761 % words));  // spread over the table, like real words
  }
  void fill(batch::PackedBatch& batch, int64_t tokens) const {
    batch.clear();
    for (size_t i = 0; batch.tokens() < tokens && batch.sequences() < engine_.plan().max_sequences; ++i) {
      const int64_t length = std::min(lengths_[i % 2], tokens - batch.tokens());
      const size_t at = (i * 509) % (ids_.size() - static_cast<size_t>(length));
      batch.add({ids_.data() + at, static_cast<int32_t>(length), 0}, engine_.shape().position_offset);
    }
    batch.finish();
  }

 private:
  const engine::Engine& engine_;
  std::array<int64_t, 2> lengths_;
  std::vector<int32_t> ids_;
};

struct Speed {
  double tokens_per_second = 0;
  bool disturbed = false;  // threads had to wait for cores used by other processes
};

Speed measure_batches(engine::Engine& engine, const BatchMaker& maker, int64_t tokens, double seconds) {
  const auto batches = engine.bulk([](const batch::PackedBatch&, const float*) {});
  const auto waited = [] {
    double sum = 0;
    for (const auto& [task, delay] : engine::CpuClock::task_run_delays()) sum += delay;
    return sum;
  };
  batch::PackedBatch batch;
  int64_t done = 0;
  const double waited_before = waited();
  const int64_t since = now_ns();
  while (seconds_since(since) < seconds) {
    maker.fill(batch, std::max<int64_t>(1, tokens));
    done += batch.tokens();
    batches->wait_room();
    batches->submit(batch);
  }
  batches->finish();
  const double took = seconds_since(since);
  return {static_cast<double>(done) / took, waited() - waited_before > 0.1 * took};
}

}  // namespace

std::vector<MachineCheck> check_wsl(const std::string& kernel, std::optional<int64_t> gpu_free,
                                    std::optional<int64_t> gpu_total) {
  constexpr int64_t kHeadroom = int64_t{2} << 30;  // residency was seen to fail with this much reported free
  if (kernel.find("microsoft") == std::string::npos) return {};  // "5.15.153.1-microsoft-standard-WSL2"
  std::vector<MachineCheck> checks = {{CheckState::notice, "WSL2",
                                       fmt::format("kernel {}; Windows programs use the same GPU memory", kernel),
                                       "leave memory for them with `leave_free=2GiB`; see docs/wsl.md"}};
  if (gpu_free && gpu_total && *gpu_free < std::min(kHeadroom, *gpu_total / 2))
    checks.push_back({CheckState::problem, "WSL2 GPU memory",
                      fmt::format("{} of {} free", format_bytes(*gpu_free), format_bytes(*gpu_total)),
                      "the driver moves what does not fit to system memory, which is many times slower; close Windows "
                      "programs that use the GPU"});
  return checks;
}

const char* check_state_name(CheckState state) {
  static const char* const names[] = {"fine", "notice", "problem"};
  return names[static_cast<int>(state)];
}

std::vector<MachineCheck> check_machine(const std::string& directory, double seconds) {
  std::vector<MachineCheck> checks;
  check_cards(checks);
  check_host(checks, directory, seconds);
  check_disk(checks, directory);
  return checks;
}

std::string to_text(const std::vector<MachineCheck>& checks) {
  std::string out;
  for (const MachineCheck& c : checks)
    out += fmt::format("  {:<8} {:<16} {}{}\n", c.state == CheckState::fine ? "ok" : check_state_name(c.state), c.what,
                       c.found, c.advice.empty() ? "" : ": " + c.advice);
  return out;
}

BudgetProbe measure_budgets(const RunRecord& r, double seconds) {
  ScorerOptions options;
  options.model = r.model;
  options.device = r.on_card ? Device(Device::Kind::cuda, r.device_index) : Device::Kind::cpu;
  options.precision = r.precision;
  options.threads = r.threads;
  options.max_length = r.max_length;
  const auto scorer = Scorer::open(options);
  engine::Engine& engine = engine::engine_of(*scorer);
  const BatchMaker maker(engine, r.stats);
  const int64_t now = std::min(engine.plan().token_budget, r.stats.tokens / std::max<int64_t>(1, r.stats.batches)),
                free = engine.plan().token_budget;
  // Alternate between both sizes so that they see the same conditions, and use the median ratio. Rounds disturbed by
  // other processes are skipped unless there are no better ones.
  constexpr int kTurns = 5, kMostTurns = 15;
  std::vector<std::pair<double, BudgetProbe>> quiet, all;
  (void)measure_batches(engine, maker, free, seconds / kTurns);  // warm up caches and clocks
  for (int turn = 0; turn < kMostTurns && quiet.size() < kTurns; ++turn) {
    const Speed a = measure_batches(engine, maker, now, seconds / kTurns),
                b = measure_batches(engine, maker, free, seconds / kTurns);
    const std::pair<double, BudgetProbe> pair{b.tokens_per_second / a.tokens_per_second,
                                              {a.tokens_per_second, b.tokens_per_second}};
    all.push_back(pair);
    if (!a.disturbed && !b.disturbed) quiet.push_back(pair);
  }
  auto& used = quiet.size() >= 2 ? quiet : all;
  const auto by_ratio = [](const auto& x, const auto& y) { return x.first < y.first; };
  std::sort(used.begin(), used.end(), by_ratio);
  return used[used.size() / (quiet.size() >= 2 ? 2 : 8)]
      .second;  // a disturbed machine exaggerates: small batches wait more often
}

}  // namespace brim::jobs
