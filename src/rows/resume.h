// SPDX-License-Identifier: Apache-2.0
// Output of a run over rows that can be killed at any moment and resumed. OUT.part holds complete rows; the sidecar
// OUT.part.json records their extent (bytes of .part, position in the input) and identifies the run. Both are made
// durable together every few seconds; resuming truncates .part to the recorded size and seeks the reader to the next
// row, so no row is lost or repeated. OUT itself is created or replaced only by the final rename.
//
// The sidecar is written before .part is created, so a .part without one belongs to another program: such files, and
// anything that is not a regular file with one hard link, are rejected. A run that cannot be resumed writes to a file
// with a random name.
//
// Compressed output ends a gzip member or zstd frame about every MiB, at positions that depend only on the rows: a
// killed and resumed run produces the same bytes as an uninterrupted one. A run stopped in order (Ctrl-C, a bad row)
// ends one early.
#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/atomic_file.h"
#include "io/compress.h"
#include "rows/row_reader.h"

namespace brim::rows {

// Everything that must match for the rows of two runs to belong together.
struct RunIdentity {
  std::vector<std::string> inputs;                // paths; size, modification time and first MiB are compared
  std::string model;                              // any string that identifies the weights
  std::map<std::string, std::string> options;     // options that change the output, by flag
  std::vector<std::string> model_files;           // compared like the inputs
  std::map<std::string, std::string> may_change;  // by option, a previous value that does not affect the rows so far
};

struct RowOutputOptions {
  bool resume = false;
  bool notes_new_run = true;  // log that there is nothing to resume
  // Work repeated after a kill, approximately; compressed output may repeat its last member. 0: as little as possible.
  double checkpoint_seconds = 2;
  const std::atomic<bool>* stop = nullptr;  // set by a signal: stop waiting for a full pipe
  size_t member_bytes = size_t{1} << 20;    // a gzip member or zstd frame ends after this many uncompressed bytes
  size_t member_rows = 4096;                // or this many rows
};

// Returns an option of the interrupted run that `resume` would continue: empty if the run did not set it, nullopt if
// there is no such run or its state cannot be read.
std::optional<std::string> option_of_run(const std::string& path, const std::string& name);

class RowOutput {
 public:
  // `path` "-" is stdout; a pipe or device is written directly. Throws cannot_write if it cannot be written, usage if
  // `resume` is not possible (stdin, stdout, a device) or the previous run was a different one.
  RowOutput(const std::string& path, RunIdentity identity, RowOutputOptions options);
  // Without commit() the rows so far are kept for resume, as in suspend(); never throws.
  ~RowOutput();
  RowOutput(const RowOutput&) = delete;
  RowOutput& operator=(const RowOutput&) = delete;

  // Position to resume from: pass it to RowReader::seek and restore the counters. Empty for a fresh start; write the
  // header then.
  struct Progress {
    RowPosition position;
    std::map<std::string, int64_t> counters;  // owned by the caller: rows written, rows skipped, labels …
  };
  const std::optional<Progress>& resumed() const { return resumed_; }

  void write_header(std::string_view bytes);
  // Writes the bytes of one row (none for a skipped row); `position` is the input position after it.
  void write_row(std::string_view bytes, const RowPosition& position);
  // Counters stored with the position at each checkpoint. Read at the end of write_row and in suspend, so count a row
  // before writing it; must outlive this object.
  void keep_counters(const std::map<std::string, int64_t>* counters) { counters_ = counters; }

  void flush();    // passes pending rows to the system so that readers of stdout see them
  void suspend();  // makes all rows so far durable for a later resume; nothing may be written afterwards
  void commit();   // completes the output: renames it into place and removes the sidecar

  bool resumable() const { return resumable_; }
  int64_t saved_rows() const { return saved_rows_; }  // after which a resumed run would continue
  // Path of the rows of a run that cannot be resumed, after suspend(); empty if there are none.
  std::filesystem::path kept_rows() const;
  const std::filesystem::path& path() const { return path_; }

 private:
  struct Mark {  // a row boundary up to which the file is complete
    RowPosition position;
    std::map<std::string, int64_t> counters;
    int64_t bytes = 0;
  };
  void open_file();
  void start_part(bool take_over, uint64_t recorded_bytes);
  void open_resumed(const std::string& state);
  void hand_over();
  void sync(const Mark& mark);
  void write_sidecar(const Mark& mark);
  void save(const Mark& mark);
  void drop_sidecar();

  std::filesystem::path path_, sidecar_;
  RunIdentity identity_;
  std::string fingerprint_;  // identity as stored in the sidecar
  RowOutputOptions options_;
  io::Compression compression_ = io::Compression::none;
  bool regular_ = false, resumable_ = false, finished_ = false;
  bool failed_ = false;  // a write failed: the file may end inside a row
  bool lost_ = false;    // written data may never reach the disk
  std::optional<Progress> resumed_;
  std::optional<io::AtomicFile> file_;  // empty for stdout
  std::unique_ptr<io::ByteSink> sink_;

  std::string rows_;      // complete rows not yet passed to the sink; if compressed, the complete next member
  size_t row_count_ = 0;  // in rows_
  RowPosition position_;  // after the last row
  Mark safe_;             // the last boundary passed to the system
  Mark durable_;          // the last boundary synced to disk
  int64_t next_save_ns_ = 0;
  int64_t saved_rows_ = 0;  // in the sidecar
  const std::map<std::string, int64_t>* counters_ = nullptr;
};

}  // namespace brim::rows
