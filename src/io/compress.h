// SPDX-License-Identifier: Apache-2.0
// Byte streams in and out: a file, stdin or stdout ("-"), gzip and zstd. What comes in is recognised by its first
// bytes, so a compressed pipe or an oddly named file works; what goes out is chosen by the name. Several gzip members
// or zstd frames in a row are one stream, and an output can be cut at such a boundary and continued later (see
// resume.h).
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

// Whether the path names a file that can be read again from the start; stdin, pipes and devices cannot.
bool is_rereadable(const std::string& path);

// How a source waits for bytes that have not come yet: pipes, terminals.
struct InputWait {
  std::function<bool()> ended;   // asked now and then; once true, waiting ends with Error(interrupted)
  std::function<void()> begins;  // called when a wait begins
};

class ByteSource {
 public:
  explicit ByteSource(std::string name) : name_(std::move(name)) {}
  virtual ~ByteSource() = default;
  // At most `capacity` bytes; 0 only at the end. Throws bad_data with name and offset when the stream is broken.
  virtual size_t read(char* into, size_t capacity) = 0;
  // Whether read() would return at once. A pipe that has nothing yet says no.
  virtual bool ready() { return true; }
  // Drops the next `bytes` bytes of the (decompressed) stream; plain files seek.
  virtual void skip(int64_t bytes);
  virtual int64_t position() const = 0;  // bytes of the file used so far (compressed bytes of a compressed one)
  virtual int64_t size() const = 0;      // of the file; -1 where unknown (pipes)
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

// Opens a path or "-". A missing or unreadable file is an Error(usage), a broken one Error(bad_data).
std::unique_ptr<ByteSource> open_source(const std::string& path, std::shared_ptr<const InputWait> wait = nullptr);
// The first `bytes` bytes of what open_source gives, or all there are, or all before the stream breaks.
std::string read_head(const std::string& path, size_t bytes);
// Decompresses `inner` if its first bytes (or its name) say so. open_source does this.
std::unique_ptr<ByteSource> decompressed(std::unique_ptr<ByteSource> inner);
// Of `inner`, `bytes` bytes from the `begin`th on.
std::unique_ptr<ByteSource> range_of(std::unique_ptr<ByteSource> inner, int64_t begin, int64_t bytes);
// Bytes in memory, handed out at most `piece` at a time; for tests.
std::unique_ptr<ByteSource> memory_source(std::string name, std::string bytes, size_t piece = SIZE_MAX);

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual void write(std::string_view bytes) = 0;
  // Everything so far reaches the file, and the gzip member or zstd frame, if one was begun, ends: the file is a whole
  // stream up to position().
  virtual void end_member() = 0;
  virtual int64_t position() const = 0;  // bytes in the file, those not yet handed to the system included
};

// Both write to what they are given and do not own it. Every write is checked (cannot_write). Once `stop` is set, a
// reader that takes nothing is not waited for (interrupted).
std::unique_ptr<ByteSink> make_sink(AtomicFile& file, Compression compression);
std::unique_ptr<ByteSink> make_sink(int fd, std::string name, const std::atomic<bool>* stop = nullptr);

}  // namespace brim::io
