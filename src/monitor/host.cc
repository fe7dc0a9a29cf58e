// SPDX-License-Identifier: Apache-2.0
#include "monitor/host.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string_view>

#include "base/clock.h"

namespace brim::monitor {
namespace {

// Files in /proc report size 0, so read until end of file.
std::string slurp(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::ostringstream out;
  out << in.rdbuf();
  return std::move(out).str();
}

template <class Take>
void each_line(std::string_view text, const Take& take) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    take(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  while (true) {
    const size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return words;
    line.remove_prefix(begin);
    const size_t end = std::min(line.find_first_of(" \t"), line.size());
    words.push_back(line.substr(0, end));
    line.remove_prefix(end);
  }
}

int64_t number(std::string_view word) {
  int64_t value = 0;
  std::from_chars(word.data(), word.data() + word.size(), value);
  return value;
}

// sda and nvme0n1 are disks; sda1 and nvme0n1p2 are their partitions and would be counted twice.
bool is_whole_disk(std::string_view name) {
  for (const char* skip : {"loop", "ram", "zram", "dm-", "md", "sr"})
    if (name.starts_with(skip)) return false;
  if (name.starts_with("nvme") || name.starts_with("mmcblk")) return name.find('p') == std::string_view::npos;
  return !name.empty() && !std::isdigit(static_cast<unsigned char>(name.back()));
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace

int64_t own_resident_bytes() {
  const std::string text = slurp("/proc/self/statm");
  const auto words = words_of(text);
  return words.size() > 1 ? number(words[1]) * ::sysconf(_SC_PAGESIZE) : 0;
}

std::optional<int64_t> peak_resident_bytes() {
  std::optional<int64_t> bytes;
  each_line(slurp("/proc/self/status"), [&](std::string_view line) {
    if (line.starts_with("VmHWM:"))
      if (const auto words = words_of(line); words.size() > 1) bytes = number(words[1]) * 1024;
  });
  return bytes;
}

int64_t ResidentGrowth::peak_bytes() {
  const std::optional<int64_t> peak = peak_resident_bytes();
  const int64_t now = peak && peak > peak_before_ ? *peak : own_resident_bytes();
  return largest_ = std::max(largest_, now - before_);
}

HostSampler::HostSampler(std::filesystem::path disk, std::filesystem::path proc)
    : disk_(std::move(disk)), proc_(std::move(proc)) {
  each_line(slurp(proc_ / "cpuinfo"), [&](std::string_view line) {
    if (cpu_name_.empty() && line.starts_with("model name"))
      if (const size_t colon = line.find(": "); colon != std::string_view::npos) cpu_name_ = line.substr(colon + 2);
  });
}

void HostSampler::sample_cpu(HostSample& s) {
  std::vector<Ticks> now;
  each_line(slurp(proc_ / "stat"), [&](std::string_view line) {
    if (!line.starts_with("cpu")) return;
    const auto words = words_of(line);
    Ticks t;
    // user nice system idle iowait irq softirq steal; guest time is already included in user
    for (size_t i = 1; i < std::min<size_t>(words.size(), 9); ++i) {
      t.total += number(words[i]);
      if (i != 4 && i != 5) t.busy += number(words[i]);
    }
    now.push_back(t);
  });
  if (now.size() == last_ticks_.size()) {
    for (size_t i = 0; i < now.size(); ++i) {
      const int64_t total = now[i].total - last_ticks_[i].total;
      const double share =
          total > 0 ? std::clamp(static_cast<double>(now[i].busy - last_ticks_[i].busy) / static_cast<double>(total),
                                 0.0, 1.0)
                    : 0.0;
      if (i > 0)
        s.core.push_back(share);
      else if (total > 0)
        s.cpu = share;
    }
  }
  last_ticks_ = std::move(now);
  const std::string load = slurp(proc_ / "loadavg");
  if (!load.empty()) s.load_1m = std::strtod(load.c_str(), nullptr);
}

void HostSampler::sample_memory(HostSample& s) const {
  std::optional<int64_t> swap_free;
  each_line(slurp(proc_ / "meminfo"), [&](std::string_view line) {
    const auto words = words_of(line);
    if (words.size() < 2) return;
    const int64_t bytes = number(words[1]) * 1024;
    if (words[0] == "MemTotal:")
      s.memory_total_bytes = bytes;
    else if (words[0] == "MemAvailable:")
      s.memory_available_bytes = bytes;
    else if (words[0] == "SwapTotal:")
      s.swap_total_bytes = bytes;
    else if (words[0] == "SwapFree:")
      swap_free = bytes;
  });
  if (s.swap_total_bytes && swap_free) s.swap_used_bytes = *s.swap_total_bytes - *swap_free;
}

void HostSampler::sample_disk(HostSample& s, double seconds) {
  struct statvfs fs {};
  s.disk_path = disk_.string();
  if (::statvfs(disk_.c_str(), &fs) == 0) {
    s.disk_total_bytes = static_cast<int64_t>(fs.f_blocks) * static_cast<int64_t>(fs.f_frsize);
    s.disk_free_bytes = static_cast<int64_t>(fs.f_bavail) * static_cast<int64_t>(fs.f_frsize);
  }
  const std::string text = slurp(proc_ / "diskstats");
  if (text.empty()) return;
  int64_t read = 0, written = 0;
  each_line(text, [&](std::string_view line) {
    const auto words = words_of(line);
    if (words.size() < 10 || !is_whole_disk(words[2])) return;
    read += number(words[5]) * 512;  // sectors are always 512 bytes here
    written += number(words[9]) * 512;
  });
  if (last_read_ >= 0 && seconds > 0) {
    s.disk_read_bytes_per_s = static_cast<double>(std::max<int64_t>(0, read - last_read_)) / seconds;
    s.disk_write_bytes_per_s = static_cast<double>(std::max<int64_t>(0, written - last_written_)) / seconds;
  }
  last_read_ = read;
  last_written_ = written;
}

void HostSampler::sample_self(HostSample& s, double seconds) {
  s.self_rss_bytes = own_resident_bytes();
  const std::string text = slurp("/proc/self/stat");
  const size_t after_name = text.rfind(')');  // the name may contain spaces
  if (after_name == std::string::npos) return;
  const auto words = words_of(std::string_view(text).substr(after_name + 1));
  if (words.size() < 13) return;
  const int64_t ticks = number(words[11]) + number(words[12]);
  if (last_self_ticks_ >= 0 && seconds > 0)
    s.self_cpu = static_cast<double>(ticks - last_self_ticks_) / static_cast<double>(::sysconf(_SC_CLK_TCK)) / seconds;
  last_self_ticks_ = ticks;
}

OtherProcesses::OtherProcesses(std::filesystem::path proc)
    : proc_(std::move(proc)), host_(".", proc_), began_ns_(now_ns()), before_(processes()) {
  (void)host_.sample();
}

std::map<int, OtherProcesses::Process> OtherProcesses::processes() const {
  std::map<int, Process> all;
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator(proc_, ec)) {
    const std::string id = entry.path().filename().string();
    if (id.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string text = slurp(entry.path() / "stat");
    const size_t open = text.find('('), close = text.rfind(')');  // the name may contain parentheses and spaces
    if (open == std::string::npos || close == std::string::npos || close < open) continue;
    const auto words = words_of(std::string_view(text).substr(close + 1));
    if (words.size() < 13) continue;
    all[static_cast<int>(number(id))] = {text.substr(open + 1, close - open - 1),
                                         number(words[11]) + number(words[12])};
  }
  return all;
}

OtherProcesses::Load OtherProcesses::load() {
  const double seconds = std::max(1e-9, static_cast<double>(now_ns() - began_ns_) * 1e-9);
  const HostSample host = host_.sample();
  Load load;
  load.usable_cores = host.cores;
  load.machine_cores = std::max(host.cores, static_cast<int>(host.core.size()));
  load.cores = std::max(0.0, host.cpu.value_or(0) * load.machine_cores - host.self_cpu.value_or(0));
  std::map<std::string, double> by_name;
  for (const auto& [id, process] : processes()) {
    if (id == ::getpid()) continue;
    const auto before = before_.find(id);
    const int64_t ticks = process.ticks - (before != before_.end() ? before->second.ticks : 0);
    by_name[process.name] += static_cast<double>(ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK)) / seconds;
  }
  for (const auto& [name, cores] : by_name)
    if (cores >= 0.05) load.by_name.emplace_back(name, cores);
  std::stable_sort(load.by_name.begin(), load.by_name.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return load;
}

bool OtherProcesses::Load::disturbs() const { return cores > (machine_cores - usable_cores) + 0.1 * usable_cores; }

std::string OtherProcesses::Load::text() const {
  constexpr size_t kMost = 4;
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(kMost, by_name.size()); ++i)
    names.push_back(fmt::format("{} {:.1f}", by_name[i].first, by_name[i].second));
  return fmt::format("other processes used {:.1f} of {} cores{}", cores, machine_cores,
                     names.empty() ? "" : fmt::format(" ({})", fmt::join(names, ", ")));
}

HostSample HostSampler::sample() {
  HostSample s;
  s.cpu_name = cpu_name_;
  s.cores = usable_cores();
  const int64_t now = now_ns();
  const double seconds = last_ns_ != 0 ? static_cast<double>(now - last_ns_) * 1e-9 : 0;
  sample_cpu(s);
  sample_memory(s);
  sample_disk(s, seconds);
  sample_self(s, seconds);
  last_ns_ = now;
  return s;
}

}  // namespace brim::monitor
