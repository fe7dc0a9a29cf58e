// SPDX-License-Identifier: Apache-2.0
// Input and output byte streams: a file, stdin or stdout ("-"), gzip and zstd. Input compression is detected by the
// first bytes, so a compressed pipe or a misnamed file works; output compression is chosen by the name. Consecutive
// gzip members or zstd frames form one stream, and an output can be truncated at such a boundary and continued later
// (see resume.h).
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace brim::io {

class AtomicFile;

enum class Compression { none, gzip, zstd };

Compression compression_of(std::string_view path);            // by the suffix: .gz, .zst
std::string_view without_compression(std::string_view path);  // "a.csv.gz" → "a.csv"

// Whether the path is a file that can be read again from the start; stdin, pipes and devices cannot.
bool is_rereadable(const std::string& path);

// How a source waits for data that has not arrived yet (pipes, terminals).
struct InputWait {
  std::function<bool()> ended;   // polled; once true, waiting ends with Error(interrupted)
  std::function<void()> begins;  // called when a wait begins
};

class ByteSource {
 public:
  explicit ByteSource(std::string name) : name_(std::move(name)) {}
  virtual ~ByteSource() = default;
  // Reads at most `capacity` bytes; returns 0 only at the end. Throws bad_data with name and offset if the stream is
  // broken.
  virtual size_t read(char* into, size_t capacity) = 0;
  // Whether read() would return immediately. False for a pipe without data.
  virtual bool ready() { return true; }
  // Skips the next `bytes` bytes of the (decompressed) stream; plain files seek.
  virtual void skip(int64_t bytes);
  virtual int64_t position() const = 0;  // bytes of the file consumed so far (compressed size if compressed)
  virtual int64_t size() const = 0;      // file size; -1 if unknown (pipes)
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

// Opens a path or "-". Throws Error(usage) if the file is missing or unreadable, Error(bad_data) if it is broken.
std::unique_ptr<ByteSource> open_source(const std::string& path, std::shared_ptr<const InputWait> wait = nullptr);
// Returns the first `bytes` bytes of open_source's stream, or fewer if it ends or breaks before.
std::string read_head(const std::string& path, size_t bytes);
// Decompresses `inner` if its first bytes (or its name) indicate compression. Used by open_source.
std::unique_ptr<ByteSource> decompressed(std::unique_ptr<ByteSource> inner);
// The `bytes` bytes of `inner` that start at offset `begin`.
std::unique_ptr<ByteSource> range_of(std::unique_ptr<ByteSource> inner, int64_t begin, int64_t bytes);
// Bytes in memory, returned at most `piece` at a time; for tests.
std::unique_ptr<ByteSource> memory_source(std::string name, std::string bytes, size_t piece = SIZE_MAX);

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual void write(std::string_view bytes) = 0;
  // Flushes everything to the file and ends the current gzip member or zstd frame, if any: the file is a complete
  // stream up to position().
  virtual void end_member() = 0;
  virtual int64_t position() const = 0;  // bytes in the file, including those not yet passed to the system
};

// Neither owns its target. Every write is checked (cannot_write). Once `stop` is set, writes no longer wait for a
// blocked reader (interrupted).
std::unique_ptr<ByteSink> make_sink(AtomicFile& file, Compression compression);
std::unique_ptr<ByteSink> make_sink(int fd, std::string name, const std::atomic<bool>* stop = nullptr);

}  // namespace brim::io
