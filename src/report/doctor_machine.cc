// SPDX-License-Identifier: Apache-2.0
#include "report/doctor_machine.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/thread_pool.h"
#include "base/units.h"
#include "monitor/host.h"
#include "monitor/nvml.h"

namespace brim {
namespace {

using State = MachineCheck::State;

void check_cards(std::vector<MachineCheck>& checks) {
  Nvml nvml;
  if (!nvml.ready()) {
    checks.push_back({State::notice, "card", nvml.why(), "runs go to the CPU; with a card, install NVIDIA's driver"});
    return;
  }
  GpuSampleOptions options;
  options.pcie_throughput = options.gpm = false;
  for (const GpuSample& card : nvml.sample(options)) {
    const std::string name = fmt::format("card {}", card.index);
    if (card.state != GpuState::ok) {
      checks.push_back({State::problem, name, fmt::format("{}: {}", gpu_state_name(card.state), card.why), "reset the card or reboot"});
      continue;
    }
    checks.push_back({State::fine, name, fmt::format("{}, driver {}", card.name, card.driver.empty() ? "not told" : card.driver), ""});
    if (card.sm_clock_mhz && card.max_sm_clock_mhz)
      checks.push_back({State::fine, name + " clock", fmt::format("{} of {} MHz now (an idle card clocks down)", *card.sm_clock_mhz, *card.max_sm_clock_mhz), ""});
    if (card.throttle) {
      std::vector<std::string> reasons;
      for (const auto& reason : *card.throttle)
        if (reason.find("idle") == std::string::npos && reason.find("setting") == std::string::npos) reasons.push_back(reason);
      if (!reasons.empty())
        checks.push_back({State::problem, name + " throttle", fmt::format("{}", fmt::join(reasons, ", ")), "better cooling, or a higher power limit"});
    }
    if (card.free_bytes && card.total_bytes) {
      const bool short_of = *card.free_bytes < *card.total_bytes / 2;
      checks.push_back({short_of ? State::notice : State::fine, name + " memory", fmt::format("{} of {} free", format_bytes(*card.free_bytes), format_bytes(*card.total_bytes)),
                        short_of ? "others hold more than half of it: plans get smaller" : ""});
    }
    if (card.processes && !card.processes->empty()) {
      std::vector<std::string> who;
      for (const GpuProcess& p : *card.processes)
        who.push_back(fmt::format("{} (pid {}{})", p.name.empty() ? "?" : p.name, p.pid, p.bytes ? ", " + format_bytes(*p.bytes) : ""));
      checks.push_back({State::problem, name + " processes", fmt::format("{}", fmt::join(who, ", ")), "they take memory and time of the card: end those that are not needed"});
    }
  }
}

void check_host(std::vector<MachineCheck>& checks, const std::string& directory, double seconds) {
  HostSampler sampler(directory);
  (void)sampler.sample();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const HostSample host = sampler.sample();
  const auto cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  const bool bound = host.cores < cores;
  checks.push_back({bound ? State::notice : State::fine, "cores", fmt::format("{} of {} usable, {}", host.cores, cores, host.cpu_name),
                    bound ? "affinity or a cgroup quota keeps the others away" : ""});
  if (host.cpu) {
    const double others = std::max(0.0, *host.cpu * cores - host.self_cpu.value_or(0));
    const bool busy = others > 0.15 * cores;
    checks.push_back({busy ? State::problem : State::fine, "load", fmt::format("other processes use {:.1f} of {} cores", others, cores),
                      busy ? "end or renice them: they take time from tokenizing, and on the CPU from computing" : ""});
  }
  if (host.memory_available_bytes && host.memory_total_bytes) {
    const bool low = *host.memory_available_bytes < std::max<int64_t>(int64_t{1} << 30, *host.memory_total_bytes / 20);
    checks.push_back({low ? State::problem : State::fine, "memory", fmt::format("{} of {} free", format_bytes(*host.memory_available_bytes), format_bytes(*host.memory_total_bytes)),
                      low ? "the system will start to swap" : ""});
  }
  if (host.disk_free_bytes) {
    const bool low = *host.disk_free_bytes < (int64_t{1} << 30);
    checks.push_back({low ? State::problem : State::fine, "disk space", fmt::format("{} free at {}", format_bytes(*host.disk_free_bytes), directory), low ? "outputs may not fit" : ""});
  }
}

// Writes 64 MiB, makes them reach the disk, and tells how fast that was. Reading would mostly measure the page cache.
void check_disk(std::vector<MachineCheck>& checks, const std::string& directory) {
  constexpr size_t kBlock = size_t{1} << 20;
  constexpr int kBlocks = 64;
  std::string path = directory + "/.brim_disk_XXXXXX";
  const int fd = ::mkstemp(path.data());
  if (fd < 0) {
    checks.push_back({State::problem, "disk", fmt::format("{} cannot be written", directory), "choose another place for outputs"});
    return;
  }
  (void)::unlink(path.c_str());
  std::string block(kBlock, '\0');
  for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<char>(i * 2654435761u >> 13);
  const int64_t since = now_ns();
  bool ok = true;
  for (int i = 0; i < kBlocks && ok; ++i) ok = ::write(fd, block.data(), block.size()) == static_cast<ssize_t>(block.size());
  ok = ok && ::fsync(fd) == 0;
  const double speed = static_cast<double>(kBlock * kBlocks) / std::max(1e-9, seconds_since(since));
  (void)::close(fd);
  if (!ok) {
    checks.push_back({State::problem, "disk", fmt::format("{}: 64 MiB cannot be written", directory), "free some space"});
    return;
  }
  const bool slow = speed < 20e6;
  checks.push_back({slow ? State::notice : State::fine, "disk", fmt::format("{:.0f} MB/s to {}", speed / 1e6, directory), slow ? "slow for reading and writing rows" : ""});
}

double tokens_per_second(Engine& engine, int64_t tokens, int64_t length, double seconds) {
  const std::vector<int32_t> ids(static_cast<size_t>(length), std::max(0, engine.tokenizer().unk_id()));
  const auto fill = [&](PackedBatch& batch) {
    batch.clear();
    while (batch.tokens() + length <= std::max(tokens, length) && batch.sequences() < engine.plan().max_sequences)
      batch.add({ids.data(), static_cast<int32_t>(length), 0}, engine.shape().position_offset);
    batch.finish();
  };
  const auto drop = [](const PackedBatch&, const float*) {};
  PackedBatch batch;
  fill(batch);
  engine.batches().submit(batch, drop);  // the first one warms caches and clocks
  engine.batches().finish(drop);
  int64_t done = 0;
  const int64_t since = now_ns();
  while (seconds_since(since) < seconds) {
    fill(batch);
    done += batch.tokens();
    engine.batches().submit(batch, drop);
  }
  engine.batches().finish(drop);
  return static_cast<double>(done) / seconds_since(since);
}

}  // namespace

const char* check_state_name(State state) {
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
    out += fmt::format("  {:<8} {:<16} {}{}\n", c.state == State::fine ? "ok" : check_state_name(c.state), c.what, c.found, c.advice.empty() ? "" : ": " + c.advice);
  return out;
}

BudgetProbe measure_budgets(const TracedRun& r, double seconds) {
  EngineOptions options;
  options.model_dir = r.model;
  options.device = r.on_card ? fmt::format("cuda:{}", r.device_index) : "cpu";
  options.precision = r.precision;
  options.threads = r.threads;
  options.max_length = r.max_length;
  const auto engine = Engine::open(options);
  const int64_t length = std::clamp<int64_t>(r.stats.tokens / std::max<int64_t>(1, r.stats.rows), 1, engine->plan().max_length);
  const int64_t now = r.stats.tokens / std::max<int64_t>(1, r.stats.batches);
  return {tokens_per_second(*engine, std::min(now, engine->plan().token_budget), length, seconds),
          tokens_per_second(*engine, engine->plan().token_budget, length, seconds)};
}

}  // namespace brim
