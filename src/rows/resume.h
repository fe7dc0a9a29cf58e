// SPDX-License-Identifier: Apache-2.0
// The output of a run over rows, which can be killed at any moment and resumed. OUT.part holds whole rows; the sidecar
// OUT.part.json records how far they reach (bytes of .part, position in the input) and identifies the run. Both are
// made durable together every few seconds; resuming cuts .part back to the recorded size and seeks the reader to the
// next row, so no row is lost or repeated. OUT itself appears, or is replaced, only by the last rename.
//
// The sidecar is written before .part is created, so a .part without one is not ours: such files, and anything that is
// not a regular file with one hard link, are refused. A run that cannot be resumed writes to a file with a random name.
//
// Compressed output ends a gzip member or zstd frame about every MiB, at places that depend on the rows alone: a killed
// and continued run gives the same bytes as one that was not. A run stopped in order (Ctrl-C, a bad row) ends one
// early.
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

// What must be the same for rows of two runs to belong together.
struct RunIdentity {
  std::vector<std::string> inputs;                // paths: their size, time of change and first MiB are compared
  std::string model;                              // anything that names the weights
  std::map<std::string, std::string> options;     // those that change the output, by flag
  std::vector<std::string> model_files;           // compared as the inputs are
  std::map<std::string, std::string> may_change;  // from this value, by option: rows so far are the same with any
};

struct RowOutputOptions {
  bool resume = false;
  double checkpoint_seconds = 2;  // after a kill about this much is done again; compressed: or the last member.
                                  // 0: as often as possible
  const std::atomic<bool>* stop = nullptr;  // set by a signal: a full pipe is then not waited for
  size_t member_bytes = size_t{1} << 20;    // a gzip member or zstd frame ends after so many bytes before compression,
  size_t member_rows = 4096;                // or so many rows
};

// An option of the interrupted run that `resume` would continue: empty if it had none of that name, nothing if there is
// no such run or its state cannot be read.
std::optional<std::string> option_of_run(const std::string& path, const std::string& name);

class RowOutput {
 public:
  // `path` "-" is stdout; a pipe or device is written directly. Throws cannot_write if it cannot be written, usage if
  // `resume` is asked for where it cannot be (stdin, stdout, a device) or the run before was another one.
  RowOutput(const std::string& path, RunIdentity identity, RowOutputOptions options);
  // Without commit() the rows so far are kept for resume, as suspend() does; never throws.
  ~RowOutput();
  RowOutput(const RowOutput&) = delete;
  RowOutput& operator=(const RowOutput&) = delete;

  // Where to go on: pass to RowReader::seek and set the counters from it. Empty: a fresh start, write the header.
  struct Progress {
    RowPosition position;
    std::map<std::string, int64_t> counters;  // the caller's: rows written, rows skipped, labels …
  };
  const std::optional<Progress>& resumed() const { return resumed_; }

  void write_header(std::string_view bytes);
  // The bytes of one row (none for a skipped row), after which the input stands at `position`.
  void write_row(std::string_view bytes, const RowPosition& position);
  // What to store beside the position at each checkpoint. Read at the end of write_row and in suspend, so count a row
  // before writing it; must outlive this object.
  void keep_counters(const std::map<std::string, int64_t>* counters) { counters_ = counters; }

  void flush();    // hands what is written to the system, for those who watch (stdout)
  void suspend();  // makes all rows so far durable, to be continued; nothing may be written afterwards
  void commit();   // the output is whole: rename it into place and remove the sidecar

  bool resumable() const { return resumable_; }
  // The rows of a run that cannot be resumed, after suspend(); empty if there are none.
  std::filesystem::path kept_rows() const;
  const std::filesystem::path& path() const { return path_; }

 private:
  struct Mark {  // a row boundary up to which the file is whole
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
  std::string fingerprint_;  // of the identity, as the sidecar holds it
  RowOutputOptions options_;
  io::Compression compression_ = io::Compression::none;
  bool regular_ = false, resumable_ = false, finished_ = false;
  bool failed_ = false;  // a write: the file may end inside a row
  bool lost_ = false;    // what reached the system may never reach the disk
  std::optional<Progress> resumed_;
  std::optional<io::AtomicFile> file_;  // none: stdout
  std::unique_ptr<io::ByteSink> sink_;

  std::string rows_;      // whole rows not yet given to the sink; of compressed output, the whole next member
  size_t row_count_ = 0;  // in rows_
  RowPosition position_;  // after the last row
  Mark safe_;             // the last boundary that has reached the system
  Mark durable_;          // and the disk
  int64_t next_save_ns_ = 0;
  const std::map<std::string, int64_t>* counters_ = nullptr;
};

}  // namespace brim::rows
