// SPDX-License-Identifier: Apache-2.0
// Publishes the figures of a running Brim process in a small mapped file, <runtime_dir>/<pid>.live, for `brim monitor`.
// Writing copies a few hundred bytes under a sequence lock, so readers never block and never see a partial update. If
// the file cannot be created, nothing is published and there is no other effect.
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

// Plain memory shared by writer and reader: add new fields at the end and increase kLiveVersion. Negative values are
// unknown.
struct LiveFigures {
  struct Stage {
    char name[16];
    double busy;  // fraction of the time since the start
  };
  int64_t pid = 0, start_unix_ns = 0, updated_unix_ns = 0;
  char command[16] = {}, model[128] = {}, device[64] = {}, precision[8] = {};
  int64_t rows = 0, tokens = 0;
  double rows_per_s = -1, tokens_per_s = -1;  // since the start
  double mfu = -1, busy = -1;                 // fractions
  int64_t planned_bytes = -1, peak_bytes = -1, limit_bytes = -1, token_budget = -1;
  int64_t step = -1, total_steps = -1;
  double loss = -1, done = -1;  // done: fraction of the whole job
  int64_t stage_count = 0;
  std::array<Stage, 8> stages = {};
  char pci_bus_id[24] = {};       // bus id of its GPU; empty if none or unknown
  int64_t mfu_of_data_sheet = 0;  // 1: mfu is relative to an unmeasured data sheet rate
  double seconds_left = -1;       // set by LivePublisher

  double share_done() const;  // from `done`, else from the steps; negative if unknown
  void set_text(char* field, size_t size, std::string_view text);
  void set_command(std::string_view text) { set_text(command, sizeof command, text); }
  void set_model(std::string_view text) { set_text(model, sizeof model, text); }
  void set_device(std::string_view text) { set_text(device, sizeof device, text); }
  void set_precision(std::string_view text) { set_text(precision, sizeof precision, text); }
  void set_pci_bus_id(std::string_view text) { set_text(pci_bus_id, sizeof pci_bus_id, text); }
  void add_stage(std::string_view name, double busy_share);  // ignored after the eighth
};

class LivePublisher {
 public:
  // Creates the file; `dir` is runtime_dir() except in tests. Sets pid and times.
  explicit LivePublisher(const std::filesystem::path& dir = {});
  ~LivePublisher();  // removes the file
  LivePublisher(const LivePublisher&) = delete;
  LivePublisher& operator=(const LivePublisher&) = delete;

  bool active() const { return memory_ != nullptr; }
  void publish(const LiveFigures& figures);  // not thread-safe

 private:
  std::filesystem::path path_;
  void* memory_ = nullptr;
  int64_t start_unix_ns_ = 0;
  // Share and time of the first figures with a known share: a resumed run starts above 0.
  double first_share_ = -1;
  int64_t first_share_ns_ = 0;
};

// Figures of all Brim processes of this user on this machine, oldest first. Removes files of dead processes.
std::vector<LiveFigures> read_live(const std::filesystem::path& dir = {});
std::optional<LiveFigures> read_live_file(const std::filesystem::path& path);

}  // namespace brim::monitor
