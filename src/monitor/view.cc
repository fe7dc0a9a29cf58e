// SPDX-License-Identifier: Apache-2.0
#include "monitor/view.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "base/utf8.h"

namespace brim::monitor {
namespace {

// ASCII, Latin, Greek, Cyrillic and the symbols drawn by the view take one column; all other characters (for example in
// process names) are counted as two, which at worst leaves a gap.
int columns_of(char32_t c) { return c < 0x0500 || (c >= 0x2010 && c < 0x2030) || (c >= 0x2500 && c < 0x25A0) ? 1 : 2; }

enum class Tone : uint8_t { plain, dim, bold, good, fair, bad };
constexpr const char* kTones[] = {"", "\x1b[2m", "\x1b[1m", "\x1b[32m", "\x1b[33m", "\x1b[31m"};

Tone tone_of(double share) { return share < 0.7 ? Tone::good : share < 0.9 ? Tone::fair : Tone::bad; }

// A line of limited width: text that does not fit is cut, and control characters in external names are removed.
class Line {
 public:
  Line(int width, bool color, int rank) : width_(width), color_(color), rank_(rank) {}

  Line& add(std::string_view text, Tone tone = Tone::plain) {
    std::string kept;
    const std::string valid = replace_invalid_utf8(text);
    for (size_t at = 0; at < valid.size();) {
      const auto c = decode_valid(valid, at);
      const bool control = c.value < 0x20 || (c.value >= 0x7F && c.value < 0xA0);
      const int columns = control ? 1 : columns_of(c.value);
      if (used_ + columns > width_) {
        used_ = width_;  // nothing after a cut
        break;
      }
      used_ += columns;
      if (control)
        kept += '?';
      else
        kept.append(valid, at, static_cast<size_t>(c.bytes));
      at += static_cast<size_t>(c.bytes);
    }
    if (color_ && tone != Tone::plain && !kept.empty())
      text_ += kTones[static_cast<int>(tone)] + kept + "\x1b[0m";
    else
      text_ += kept;
    return *this;
  }
  Line& pad_to(int column) {
    if (column > used_) add(std::string(static_cast<size_t>(column - used_), ' '));
    return *this;
  }
  Line& right(std::string_view text, Tone tone = Tone::plain) {
    const int columns = display_width(text);
    if (columns == 0 || used_ + columns + 1 > width_) return *this;
    return pad_to(width_ - columns).add(text, tone);
  }
  int remaining() const { return width_ - used_; }
  int rank() const { return rank_; }
  const std::string& text() const { return text_; }

 private:
  int width_, used_ = 0;
  bool color_;
  int rank_;
  std::string text_;
};

std::string bar(double share, int width) {
  static const char* const ends[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * 8 * width));
  std::string text;
  for (int i = 0; i < eighths / 8; ++i) text += "█";
  text += ends[eighths % 8];
  for (int i = (eighths + 7) / 8; i < width; ++i) text += "░";
  return text;
}

std::string spark_of(std::optional<double> share) {
  static const char* const steps[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  return !share ? "·" : steps[std::clamp(static_cast<int>(*share * 8), 0, 7)];
}

std::string sparkline(const History::Readings& series, int width) {
  std::string text;
  const size_t n = std::min(series.size(), static_cast<size_t>(std::max(0, width)));
  for (size_t i = series.size() - n; i < series.size(); ++i) text += spark_of(series[i]);
  return text;
}

std::string percent(const std::optional<double>& share) {
  return share ? fmt::format("{:.0f} %", *share * 100) : "not available";
}
template <class T>
std::string unit(const std::optional<T>& value, const char* name) {
  return value ? fmt::format("{:.0f}{}", static_cast<double>(*value), name) : "–";
}
std::string bytes_text(const std::optional<int64_t>& value) { return value ? format_bytes(*value) : "–"; }
std::string rate_text(const std::optional<double>& value) {
  return value ? format_bytes(static_cast<int64_t>(*value)) + "/s" : "–";
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

class View {
 public:
  View(const Snapshot& s, const History& history, const ViewOptions& o) : s_(s), history_(history), o_(o) {}

  std::vector<std::string> lines() {
    head();
    for (const auto& gpu : s_.gpus) card(gpu);
    if (s_.gpus.empty()) no_card();
    host();
    runs();
    for (const auto& warning : s_.warnings) line(9).add("warning: ", Tone::bad).add(warning);
    return fitted();
  }

 private:
  // Lines with a lower `rank` are dropped first if there is not enough height.
  Line& line(int rank) { return lines_.emplace_back(o_.width, o_.color, rank); }

  // A labelled bar with its text and, if there is enough width, its history.
  void gauge(int rank, const char* name, const std::optional<double>& share, const std::string& text,
             const std::string& series, bool hot) {
    Line& l = line(rank).add("  ").add(name, Tone::dim).pad_to(15);
    const int width =
        std::clamp(std::min(o_.width / 5, o_.width - 69), 6, 40);  // so that the memory text still fits in 80 columns
    if (share) l.add(bar(*share, width), hot ? tone_of(*share) : Tone::good).add(" ");
    l.add(text);
    const int left = l.remaining() - 2;
    if (left >= 8 && !series.empty()) {
      const auto& values = history_.series(series);
      const int shown = std::min({left, 60, static_cast<int>(values.size())});
      if (shown > 1) l.right(sparkline(values, shown), Tone::dim);
    }
  }

  void head() {
    std::string driver;
    for (const auto& g : s_.gpus)
      if (!g.driver.empty()) driver = "driver " + g.driver;
    Line& l = line(10).add("brim monitor", Tone::bold);
    l.add(fmt::format("  {:%H:%M:%S}", fmt::localtime(static_cast<std::time_t>(s_.unix_ns / 1'000'000'000))));
    if (o_.interval_s > 0) l.add(fmt::format("  every {:g} s, q quits", o_.interval_s), Tone::dim);
    l.right(driver, Tone::dim);
  }

  void no_card() {
    line(9)
        .add("GPU", Tone::bold)
        .add("  none: ")
        .add(s_.nvml_why.empty() ? "the NVIDIA driver lists no GPU" : s_.nvml_why);
  }

  void card(const GpuSample& g) {
    Line& title = line(9).add(fmt::format("GPU {}", g.index), Tone::bold).add("  ");
    if (g.state != GpuState::ok)
      title.add(gpu_state_name(g.state), Tone::bad).add(g.why.empty() ? "  " : " (" + g.why + ")  ");
    title.add(g.name.empty() ? "unnamed" : g.name);
    if (g.state != GpuState::ok) return;
    title.right(fmt::format("{}  {} of {}  {} of {} MHz", unit(g.temperature_c, " °C"), unit(g.power_w, ""),
                            unit(g.power_limit_w, " W"), unit(g.sm_clock_mhz, ""), unit(g.max_sm_clock_mhz, "")));
    const std::string series = fmt::format("gpu{}.", g.index);
    gauge(8, "utilisation", g.utilization, percent(g.utilization), series + "utilization", true);
    std::optional<double> full;
    if (g.used_bytes && g.total_bytes && *g.total_bytes > 0)
      full = static_cast<double>(*g.used_bytes) / static_cast<double>(*g.total_bytes);
    std::string memory = full ? fmt::format("{} of {}, {} free", format_bytes(*g.used_bytes),
                                            format_bytes(*g.total_bytes), bytes_text(g.free_bytes))
                              : "not available";
    if (full && g.reserved_bytes) memory += fmt::format(", {} reserved", format_bytes(*g.reserved_bytes));
    gauge(8, "memory", full, memory, series + "memory", true);
    const RunRecord* run = run_on(s_, g);
    if (run != nullptr && run->mfu)
      gauge(7, "MFU", run->mfu,
            fmt::format("{:.1f} % of {}", *run->mfu * 100, run->mfu_of_data_sheet ? "the data sheet" : "peak compute"),
            series + "mfu", false);
    else
      line(3)
          .add("  ")
          .add("MFU", Tone::dim)
          .pad_to(15)
          .add(run != nullptr ? "not available" : "no Brim run on this GPU", Tone::dim);
    activity(g);
    links(g);
    if (!g.refused.empty())
      line(4).add("  ").add("no permission", Tone::dim).pad_to(15).add(" ").add(joined(g.refused));
    processes(g);
  }

  void activity(const GpuSample& g) {
    if (!g.gpm) {
      line(2).add("  ").add("activity", Tone::dim).pad_to(15).add("not available", Tone::dim);
      return;
    }
    line(5)
        .add("  ")
        .add("activity", Tone::dim)
        .pad_to(15)
        .add(fmt::format("SM {}, occupancy {}, tensor {}, DRAM {}", percent(g.gpm->sm), percent(g.gpm->sm_occupancy),
                         percent(g.gpm->tensor), percent(g.gpm->dram)));
  }

  void links(const GpuSample& g) {
    Line& l = line(6).add("  ").add("clocks", Tone::dim).pad_to(15);
    if (!g.throttle)
      l.add("throttle reasons not available");
    else if (g.throttle->empty())
      l.add("not limited");
    else {
      const bool only_idle = g.throttle->size() == 1 && g.throttle->front() == "idle";
      l.add(only_idle ? "" : "limited by: ").add(joined(*g.throttle), only_idle ? Tone::dim : Tone::fair);
    }
    l.add(fmt::format(", memory {}", unit(g.memory_clock_mhz, " MHz")));
    Line& p = line(5).add("  ").add("PCIe", Tone::dim).pad_to(15);
    if (g.pcie_generation && g.pcie_width) p.add(fmt::format("gen {} ×{}, ", *g.pcie_generation, *g.pcie_width));
    p.add(fmt::format("in {}, out {}", rate_text(g.pcie_rx_bytes_per_s), rate_text(g.pcie_tx_bytes_per_s)));
    if (g.memory_utilization) p.add(fmt::format(", memory bus {:.0f} %", *g.memory_utilization * 100));
  }

  void processes(const GpuSample& g) {
    if (!g.processes) {
      line(2).add("  ").add("processes", Tone::dim).pad_to(15).add("not available", Tone::dim);
      return;
    }
    for (const GpuProcess& p : *g.processes)
      line(4)
          .add("  ")
          .add("process", Tone::dim)
          .pad_to(15)
          .add(fmt::format("{:>8}  {}  {}", p.pid, p.bytes ? format_bytes(*p.bytes) : "memory not available", p.name));
  }

  void host() {
    const HostSample& h = s_.host;
    line(8)
        .add("HOST", Tone::bold)
        .add(fmt::format("   {} core{}", h.cores, h.cores == 1 ? "" : "s"))
        .add(h.cpu_name.empty() ? "" : ", " + h.cpu_name);
    gauge(8, "CPU", h.cpu, percent(h.cpu) + (h.load_1m ? fmt::format(", load {:.2f}", *h.load_1m) : ""), "cpu", true);
    if (h.core.size() > 1) {
      std::string cores;
      for (const double share : h.core) cores += spark_of(share);
      line(3).add("  ").add("cores", Tone::dim).pad_to(15).add(cores);
    }
    if (h.memory_total_bytes && h.memory_available_bytes && *h.memory_total_bytes > 0) {
      const int64_t used = *h.memory_total_bytes - *h.memory_available_bytes;
      std::string text = fmt::format("{} of {}", format_bytes(used), format_bytes(*h.memory_total_bytes));
      if (h.swap_total_bytes && *h.swap_total_bytes > 0)
        text += fmt::format(", swap {} of {}", bytes_text(h.swap_used_bytes), format_bytes(*h.swap_total_bytes));
      gauge(7, "memory", static_cast<double>(used) / static_cast<double>(*h.memory_total_bytes), text, "", true);
    }
    line(5)
        .add("  ")
        .add("disk", Tone::dim)
        .pad_to(15)
        .add(fmt::format("{} free of {}, read {}, write {}", bytes_text(h.disk_free_bytes),
                         bytes_text(h.disk_total_bytes), rate_text(h.disk_read_bytes_per_s),
                         rate_text(h.disk_write_bytes_per_s)));
    if (h.self_cpu)
      line(1)
          .add("  ")
          .add("this monitor", Tone::dim)
          .pad_to(15)
          .add(fmt::format("{:.2f} % of a core, {}", *h.self_cpu * 100, format_bytes(h.self_rss_bytes)), Tone::dim);
  }

  void runs() {
    if (s_.runs.empty()) {
      line(2).add("BRIM", Tone::bold).add("   no run on this machine", Tone::dim);
      return;
    }
    for (const RunRecord& r : s_.runs) run(r);
  }

  void run(const RunRecord& r) {
    const double seconds = static_cast<double>(s_.unix_ns - r.start_unix_ns.value_or(s_.unix_ns)) * 1e-9;
    // A long path would push device and time out of the line; the last component is the most informative.
    std::string model = r.model;
    const std::string device = r.device_title();
    const size_t slash = model.rfind('/');
    constexpr size_t kRest = 40;  // width of the line without model and device
    if (slash != std::string::npos && slash > 0 && model.size() + device.size() + kRest > static_cast<size_t>(o_.width))
      model = "…" + model.substr(slash);
    Line& title = line(8)
                      .add("BRIM", Tone::bold)
                      .add(fmt::format("   {} {}", r.pid.value_or(0), r.verb), Tone::bold)
                      .add(fmt::format("  {}", model));
    title.add("  " + device, Tone::dim).add(r.precision.empty() ? "" : " in " + r.precision, Tone::dim);
    title.right(format_duration(std::max(0.0, seconds)), Tone::dim);
    progress(r);
    speed(r);
    if (r.planned_bytes) memory_of(r);
    if (!r.stages.empty()) {
      Line& stages = line(6).add("  ").add("stages busy", Tone::dim).pad_to(15);
      for (size_t i = 0; i < r.stages.size(); ++i)
        stages.add(fmt::format("{}{} {:.0f} %", i == 0 ? "" : ", ", r.stages[i].first, r.stages[i].second * 100));
    }
  }

  // On a GPU a plan covers all memory of the process; in host memory the program and the page cache are added.
  void memory_of(const RunRecord& r) {
    const std::string held = bytes_text(r.peak_bytes), planned = format_bytes(*r.planned_bytes);
    std::string text = r.on_card ? fmt::format("{} of {} planned", held, planned)
                                 : fmt::format("{} planned, process {}", planned, held);
    std::optional<double> part;
    if (r.limit_bytes.value_or(0) > 0) {
      text += fmt::format(", limit {}", format_bytes(*r.limit_bytes));
      if (r.peak_bytes) part = static_cast<double>(*r.peak_bytes) / static_cast<double>(*r.limit_bytes);
    }
    gauge(6, "memory", part, text, "", false);
  }

  void progress(const RunRecord& r) {
    const std::optional<double> share = r.share_done();
    std::string text;
    if (share) {
      text += fmt::format("{:.0f} %, ", 100 * *share);
      if (*share < 1 && r.seconds_left && *r.seconds_left < 1e9)
        text += fmt::format("{} left, ", format_duration(*r.seconds_left));
    }
    text += r.step ? fmt::format("step {} of {}, loss {}", format_count(*r.step),
                                 r.total_steps ? format_count(*r.total_steps) : "?",
                                 r.loss ? fmt::format("{:.4f}", *r.loss) : "–")
                   : format_count(r.stats.rows, "row");
    gauge(8, "done", share, text, "", false);
  }

  void speed(const RunRecord& r) {
    Line& l = line(7).add("  ").add("speed", Tone::dim).pad_to(15);
    const auto rows = r.rows_per_second(), tokens = r.tokens_per_second();
    l.add(rows ? format_count(static_cast<int64_t>(*rows), "row") + "/s" : "measuring");
    if (tokens) l.add(fmt::format(", {} tokens/s", format_si(*tokens)));
    l.add(r.mfu ? fmt::format(", MFU {:.1f} %", *r.mfu * 100) : ", MFU not available");
    if (r.device_busy) l.add(fmt::format(", busy {:.0f} %", *r.device_busy * 100));
    constexpr std::string_view kDataSheet = " (MFU of the data sheet)";
    if (r.mfu && r.mfu_of_data_sheet && l.remaining() >= static_cast<int>(kDataSheet.size()))
      l.add(kDataSheet, Tone::dim);
  }

  std::vector<std::string> fitted() {
    size_t hidden = 0;
    if (o_.height > 0 && lines_.size() > static_cast<size_t>(o_.height)) {
      const auto max_lines =
          static_cast<size_t>(std::max(1, o_.height - 1));  // one line shows the number of omitted lines
      while (lines_.size() > max_lines) {
        auto least = lines_.begin();
        for (auto it = lines_.begin(); it != lines_.end(); ++it)
          if (it->rank() <= least->rank()) least = it;
        lines_.erase(least);
        ++hidden;
      }
    }
    std::vector<std::string> texts;
    for (const Line& l : lines_) texts.push_back(l.text());
    if (hidden > 0 && o_.height > 1)
      texts.push_back(
          Line(o_.width, o_.color, 0).add(fmt::format("{} more lines (enlarge the window)", hidden), Tone::dim).text());
    return texts;
  }

  const Snapshot& s_;
  const History& history_;
  const ViewOptions& o_;
  std::deque<Line> lines_;
};

}  // namespace

int display_width(std::string_view line) {
  int columns = 0;
  const std::string valid = replace_invalid_utf8(line);
  for (size_t at = 0; at < valid.size();) {
    if (valid[at] == '\x1b') {
      while (at < valid.size() && !std::isalpha(static_cast<unsigned char>(valid[at]))) ++at;
      ++at;
      continue;
    }
    const auto c = decode_valid(valid, at);
    columns += columns_of(c.value);
    at += static_cast<size_t>(c.bytes);
  }
  return columns;
}

std::vector<std::string> render(const Snapshot& snapshot, const History& history, const ViewOptions& options) {
  return View(snapshot, history, options).lines();
}

}  // namespace brim::monitor
