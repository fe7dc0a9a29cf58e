// SPDX-License-Identifier: Apache-2.0
// Output files that are either complete or absent. Bytes go to a new file next to PATH, which commit() makes durable
// and renames. Every write is checked: a full disk is reported by the write that fills it, or by commit() at the
// latest. A path that is not a regular file (a pipe, /dev/null) is written directly.
#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

namespace brim::io {

class AtomicFile {
 public:
  // Writes to PATH.<random>.part, created exclusively, so that no existing file is overwritten. This and the functions
  // below throw Error(cannot_write) naming the path and the system's reason.
  explicit AtomicFile(const std::filesystem::path& path);
  // Creates PATH.part, a name that a later run can find; fails if it exists.
  static AtomicFile start_part(const std::filesystem::path& path);
  // Opens and locks an existing PATH.part without changing it; cut_to() must follow. Fails unless it is a regular file
  // with one hard link; the caller must know that an earlier run wrote it.
  static AtomicFile open_part(const std::filesystem::path& path);
  // Continues PATH.part after its first `offset` bytes and removes the rest.
  static AtomicFile resume(const std::filesystem::path& path, uint64_t offset);
  static std::filesystem::path part_path(const std::filesystem::path& path);  // next to a link's target

  AtomicFile(AtomicFile&&) noexcept;
  AtomicFile& operator=(AtomicFile&&) noexcept;
  ~AtomicFile();  // without commit(): removes the .part file, or leaves it if keep_part() was called

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  uint64_t position() const;  // bytes accepted so far, including buffered ones
  void flush();               // passes buffered bytes to the system
  void sync();                // flush, then fsync: the data survives a crash
  void commit();              // sync, close, rename over PATH, make the rename durable
  // Once `stop` is set, writes no longer wait for a full pipe (throws interrupted).
  void stop_by(const std::atomic<bool>* stop);
  void cut_to(uint64_t offset);               // truncates to `offset` bytes and continues writing there
  void keep_part();                           // keeps the flushed part of an unfinished file for resume()
  const std::filesystem::path& path() const;  // the final name
  const std::filesystem::path& part() const;  // receives the bytes until commit()

 private:
  struct State;
  explicit AtomicFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Throws like AtomicFile would, but before the run whose results are written there.
void require_writable(const std::filesystem::path& path);

// Writes a small file at once.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

}  // namespace brim::io
