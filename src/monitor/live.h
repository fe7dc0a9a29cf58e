// SPDX-License-Identifier: Apache-2.0
// A running Brim publishes its figures in a small mapped file, <runtime_dir>/<pid>.live, for `brim monitor` to show.
// Writing is a copy of a few hundred bytes under a sequence lock, so readers wait for nobody and never see half an
// update. No file can be made? Then nothing is published and nothing else changes.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace brim::monitor {

// Plain memory, the same in writer and reader: a field is added at the end, with a new kLiveVersion. Negative: unknown.
struct LiveFigures {
  struct Stage {
    char name[16];
    double busy;  // share of the time since the start
  };
  int64_t pid = 0, start_unix_ns = 0, updated_unix_ns = 0;
  char command[16] = {}, model[128] = {}, device[64] = {}, precision[8] = {};
  int64_t rows = 0, tokens = 0;
  double rows_per_s = -1, tokens_per_s = -1;  // since the start
  double mfu = -1, busy = -1;                 // shares
  int64_t planned_bytes = -1, peak_bytes = -1, limit_bytes = -1, token_budget = -1;
  int64_t step = -1, total_steps = -1;
  double loss = -1, done = -1;  // done: share of the whole job
  int64_t stage_count = 0;
  std::array<Stage, 8> stages = {};
  char pci_bus_id[24] = {};       // of its card; empty: none, or not told
  int64_t mfu_of_data_sheet = 0;  // 1: the rate that mfu is a share of was not measured

  void set_text(char* field, size_t size, std::string_view text);
  void set_command(std::string_view text) { set_text(command, sizeof command, text); }
  void set_model(std::string_view text) { set_text(model, sizeof model, text); }
  void set_device(std::string_view text) { set_text(device, sizeof device, text); }
  void set_precision(std::string_view text) { set_text(precision, sizeof precision, text); }
  void set_pci_bus_id(std::string_view text) { set_text(pci_bus_id, sizeof pci_bus_id, text); }
  void add_stage(std::string_view name, double busy_share);  // past the eighth: dropped
};

class LivePublisher {
 public:
  // Makes the file; `dir` is runtime_dir() except in tests. pid and times are filled in.
  explicit LivePublisher(const std::filesystem::path& dir = {});
  ~LivePublisher();  // takes the file away
  LivePublisher(const LivePublisher&) = delete;
  LivePublisher& operator=(const LivePublisher&) = delete;

  bool active() const { return memory_ != nullptr; }
  void publish(const LiveFigures& figures);  // one thread at a time

 private:
  std::filesystem::path path_;
  void* memory_ = nullptr;
  int64_t start_unix_ns_ = 0;
};

// Figures of every Brim running on this machine as this user, oldest first. Files of processes that are gone are
// removed.
std::vector<LiveFigures> read_live(const std::filesystem::path& dir = {});
std::optional<LiveFigures> read_live_file(const std::filesystem::path& path);

}  // namespace brim::monitor
