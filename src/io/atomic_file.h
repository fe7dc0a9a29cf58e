// SPDX-License-Identifier: Apache-2.0
// Output that is either whole or absent. Bytes go to a new file beside PATH, which commit() makes durable and renames.
// Every write is checked: a full disk is reported by the write that fills it, or at the latest by commit(). A path that
// is not a regular file (a pipe, /dev/null) is written directly.
#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

namespace brim::io {

class AtomicFile {
 public:
  // Writes to PATH.<random>.part, created exclusively, so that no existing file can be hit. Throws Error(cannot_write)
  // naming the path and the system's reason, here and below.
  explicit AtomicFile(const std::filesystem::path& path);
  // Creates PATH.part, a name that a later run can find; refused if it exists.
  static AtomicFile start_part(const std::filesystem::path& path);
  // Opens and locks an existing PATH.part without changing it; cut_to() must follow. Refused unless it is a regular
  // file with one hard link; the caller must know that an earlier run wrote it.
  static AtomicFile open_part(const std::filesystem::path& path);
  // Continues PATH.part after its first `offset` bytes and removes the rest.
  static AtomicFile resume(const std::filesystem::path& path, uint64_t offset);
  static std::filesystem::path part_path(const std::filesystem::path& path);  // PATH.part beside the target of a link

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
  void cut_to(uint64_t offset);               // goes on writing after `offset` bytes
  void keep_part();                           // an unfinished file stays, as far as it was flushed, for resume()
  const std::filesystem::path& path() const;  // the final name
  const std::filesystem::path& part() const;  // receives the bytes until commit()

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
