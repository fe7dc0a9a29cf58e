// SPDX-License-Identifier: Apache-2.0
// Output that is either whole or absent. Bytes go to PATH.part; commit() makes them durable and renames. Every write
// is checked, so a full disk is met at the write that fills it (or at the latest in commit), never silently. A path
// that is no regular file (a pipe, /dev/null) is written directly.
#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

namespace brim::io {

class AtomicFile {
 public:
  // Starts PATH.part afresh. Throws Error(cannot_write) naming the path and the system's reason, here and below.
  explicit AtomicFile(const std::filesystem::path& path);
  // Continues PATH.part after its first `offset` bytes; what lies beyond is cut off.
  static AtomicFile resume(const std::filesystem::path& path, uint64_t offset);
  static std::filesystem::path part_path(const std::filesystem::path& path);  // beside what a link names

  AtomicFile(AtomicFile&&) noexcept;
  AtomicFile& operator=(AtomicFile&&) noexcept;
  ~AtomicFile();  // without commit(): removes the .part file, or leaves it if keep_part() was called

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  uint64_t position() const;  // bytes accepted so far, those still buffered included
  void flush();               // hands buffered bytes to the system
  void sync();                // flush, then fsync: what was written survives a crash
  void commit();              // sync, close, rename over PATH, make the rename durable
  // Once `stop` is set, a pipe that stays full is not waited for any longer (interrupted).
  void stop_by(const std::atomic<bool>* stop);
  void keep_part();                           // an unfinished file stays, as far as it was flushed, for resume()
  const std::filesystem::path& path() const;  // the final name

 private:
  struct State;
  explicit AtomicFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Throws as AtomicFile would, now rather than after the run whose figures are to be written there.
void require_writable(const std::filesystem::path& path);

// The whole of a small file at once.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

}  // namespace brim::io
