// SPDX-License-Identifier: Apache-2.0
#include "io/compress.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/atomic_file.h"
#include "io/descriptor.h"

namespace brim::io {
namespace {

constexpr size_t kInputBlock = size_t{256} << 10;
constexpr size_t kOutputBlock = size_t{256} << 10;

// gzip's default level is 6; 4 is about twice as fast for 5 % more bytes. zstd's default is 3.
constexpr int kGzipLevel = 4;
constexpr int kZstdLevel = 3;

class FileSource : public ByteSource {
 public:
  FileSource(std::string name, int fd, bool owned, std::shared_ptr<const InputWait> wait)
      : ByteSource(std::move(name)), fd_(fd), owned_(owned), wait_(std::move(wait)) {
    struct stat info {};
    if (::fstat(fd_, &info) != 0) return;
    regular_ = S_ISREG(info.st_mode);
    if (regular_) size_ = info.st_size;
    // A redirected stdin may not start at 0.
    if (regular_) start_ = std::max<int64_t>(0, ::lseek(fd_, 0, SEEK_CUR));
#ifdef POSIX_FADV_SEQUENTIAL
    if (regular_) ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
#endif
  }
  ~FileSource() override {
    if (owned_) ::close(fd_);
  }
  size_t read(char* into, size_t capacity) override {
    for (;;) {
      if (!regular_) await_bytes();
      const ssize_t n = ::read(fd_, into, std::min(capacity, size_t{1} << 30));
      if (n >= 0) {
        position_ += n;
        return static_cast<size_t>(n);
      }
      if (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)
        fail(ErrorCode::bad_data, "{}: cannot read at byte {}: {}", name(), position_, std::strerror(errno));
    }
  }
  bool ready() override { return regular_ || wait_until_ready(fd_, POLLIN, 0); }
  void skip(int64_t bytes) override {
    if (!regular_) return ByteSource::skip(bytes);
    if (::lseek(fd_, bytes, SEEK_CUR) < 0)
      fail(ErrorCode::bad_data, "{}: cannot seek to byte {}: {}", name(), position_ + bytes, std::strerror(errno));
    position_ += bytes;
  }
  int64_t position() const override { return position_; }
  int64_t size() const override { return size_ < 0 ? -1 : size_ - start_; }

 private:
  void await_bytes() {
    if (wait_until_ready(fd_, POLLIN, 0)) return;
    if (wait_ && wait_->begins) wait_->begins();
    const bool may_end = wait_ && wait_->ended;
    while (!wait_until_ready(fd_, POLLIN, may_end ? kStopLookMs : -1))
      if (may_end && wait_->ended()) fail(ErrorCode::interrupted, "{}: interrupted", name());
  }

  int fd_;
  bool owned_, regular_ = false;
  std::shared_ptr<const InputWait> wait_;
  int64_t position_ = 0, size_ = -1, start_ = 0;
};

class MemorySource : public ByteSource {
 public:
  MemorySource(std::string name, std::string bytes, size_t piece)
      : ByteSource(std::move(name)), bytes_(std::move(bytes)), piece_(piece) {}
  size_t read(char* into, size_t capacity) override {
    const size_t n = std::min({capacity, piece_, bytes_.size() - at_});
    std::memcpy(into, bytes_.data() + at_, n);
    at_ += n;
    return n;
  }
  int64_t position() const override { return static_cast<int64_t>(at_); }
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }

 private:
  std::string bytes_;
  size_t piece_, at_ = 0;
};

class RangeSource : public ByteSource {
 public:
  RangeSource(std::unique_ptr<ByteSource> inner, int64_t begin, int64_t bytes)
      : ByteSource(inner->name()), inner_(std::move(inner)), bytes_(bytes), left_(bytes) {
    inner_->skip(begin);
  }
  size_t read(char* into, size_t capacity) override {
    const size_t n = left_ == 0 ? 0 : inner_->read(into, std::min(capacity, static_cast<size_t>(left_)));
    left_ -= static_cast<int64_t>(n);
    return n;
  }
  bool ready() override { return left_ == 0 || inner_->ready(); }
  int64_t position() const override { return bytes_ - left_; }
  int64_t size() const override { return bytes_; }

 private:
  std::unique_ptr<ByteSource> inner_;
  int64_t bytes_, left_;
};

// A source that replays bytes already read for format detection.
class PeekedSource : public ByteSource {
 public:
  PeekedSource(std::unique_ptr<ByteSource> inner, std::string head)
      : ByteSource(inner->name()), inner_(std::move(inner)), head_(std::move(head)) {}
  size_t read(char* into, size_t capacity) override {
    if (at_ == head_.size()) return inner_->read(into, capacity);
    const size_t n = std::min(capacity, head_.size() - at_);
    std::memcpy(into, head_.data() + at_, n);
    at_ += n;
    return n;
  }
  bool ready() override { return at_ < head_.size() || inner_->ready(); }
  void skip(int64_t bytes) override {
    const int64_t from_head = std::min<int64_t>(bytes, static_cast<int64_t>(head_.size() - at_));
    at_ += static_cast<size_t>(from_head);
    if (bytes > from_head) inner_->skip(bytes - from_head);
  }
  int64_t position() const override { return inner_->position() - static_cast<int64_t>(head_.size() - at_); }
  int64_t size() const override { return inner_->size(); }

 private:
  std::unique_ptr<ByteSource> inner_;
  std::string head_;
  size_t at_ = 0;
};

// Common part of both decompressors: a block of compressed bytes and the file position for messages.
class PackedSource : public ByteSource {
 public:
  explicit PackedSource(std::unique_ptr<ByteSource> inner)
      : ByteSource(inner->name()), inner_(std::move(inner)), block_(kInputBlock) {}
  bool ready() override { return begin_ < end_ || inner_->ready(); }
  int64_t position() const override { return inner_->position() - static_cast<int64_t>(end_ - begin_); }
  int64_t size() const override { return inner_->size(); }

 protected:
  bool refill() {  // false at the end of the file
    begin_ = 0;
    end_ = inner_->read(block_.data(), block_.size());
    return end_ > 0;
  }
  [[noreturn]] void truncated(const char* kind) {
    fail(ErrorCode::bad_data, "{}: truncated {} data at byte {}; download the file again", name(), kind, position());
  }
  std::unique_ptr<ByteSource> inner_;
  std::vector<char> block_;
  size_t begin_ = 0, end_ = 0;
};

class GzipSource : public PackedSource {
 public:
  explicit GzipSource(std::unique_ptr<ByteSource> inner) : PackedSource(std::move(inner)) {
    if (inflateInit2(&stream_, 15 + 16) != Z_OK) fail(ErrorCode::internal, "zlib: cannot start");
  }
  ~GzipSource() override { inflateEnd(&stream_); }

  size_t read(char* into, size_t capacity) override {
    stream_.next_out = reinterpret_cast<Bytef*>(into);
    stream_.avail_out = static_cast<uInt>(std::min(capacity, size_t{1} << 30));
    const uInt wanted = stream_.avail_out;
    while (stream_.avail_out == wanted) {
      if (begin_ == end_ && !refill()) {
        if (in_member_) truncated("gzip");
        return 0;
      }
      if (!in_member_ && !begin_member()) continue;
      inflate_block();
    }
    return wanted - stream_.avail_out;
  }

 private:
  // Between members: zeros are padding of tapes and block devices, anything else begins the next member.
  bool begin_member() {
    if (members_ > 0) {
      while (begin_ < end_ && block_[begin_] == 0) {
        padded_ = true;
        ++begin_;
      }
      if (begin_ == end_) return false;
      if (padded_ || static_cast<unsigned char>(block_[begin_]) != 0x1F)
        fail(ErrorCode::bad_data, "{}: byte {}: unexpected bytes after the gzip data", name(), position());
      if (inflateReset(&stream_) != Z_OK) fail(ErrorCode::internal, "zlib: cannot reset");
    }
    in_member_ = true;
    return true;
  }

  void inflate_block() {
    stream_.next_in = reinterpret_cast<Bytef*>(block_.data() + begin_);
    stream_.avail_in = static_cast<uInt>(end_ - begin_);
    const int status = inflate(&stream_, Z_NO_FLUSH);
    begin_ = end_ - stream_.avail_in;
    if (status == Z_STREAM_END) {
      in_member_ = false;
      ++members_;
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      fail(ErrorCode::bad_data, "{}: corrupt gzip data near byte {}: {}", name(), position(),
           stream_.msg != nullptr ? stream_.msg : "unknown");
    }
  }

  z_stream stream_{};
  bool in_member_ = true, padded_ = false;  // an empty file counts as truncated
  int64_t members_ = 0;
};

class ZstdSource : public PackedSource {
 public:
  explicit ZstdSource(std::unique_ptr<ByteSource> inner) : PackedSource(std::move(inner)), context_(ZSTD_createDCtx()) {
    if (context_ == nullptr) fail(ErrorCode::internal, "zstd: cannot start");
  }
  ~ZstdSource() override { ZSTD_freeDCtx(context_); }

  size_t read(char* into, size_t capacity) override {
    ZSTD_outBuffer out{into, capacity, 0};
    while (out.pos == 0) {
      // If the output was full, decoded bytes may remain inside; only then may the decoder run without input.
      if (begin_ == end_ && !more_inside_ && !refill()) {
        if (in_frame_) truncated("zstd");
        return 0;
      }
      ZSTD_inBuffer in{block_.data(), end_, begin_};
      const size_t left = ZSTD_decompressStream(context_, &out, &in);
      if (ZSTD_isError(left))
        fail(ErrorCode::bad_data, "{}: corrupt zstd data near byte {}: {}", name(), position(),
             ZSTD_getErrorName(left));
      begin_ = in.pos;
      in_frame_ = left != 0;
      more_inside_ = out.pos == out.size && in_frame_;
    }
    return out.pos;
  }

 private:
  ZSTD_DCtx* context_;
  bool in_frame_ = true, more_inside_ = false;  // an empty file counts as truncated
};

class FileSink : public ByteSink {
 public:
  explicit FileSink(AtomicFile& file) : file_(file) {}
  void write(std::string_view bytes) override { file_.write(bytes); }
  void end_member() override { file_.flush(); }
  int64_t position() const override { return static_cast<int64_t>(file_.position()); }

 private:
  AtomicFile& file_;
};

class DescriptorSink : public ByteSink {
 public:
  DescriptorSink(int fd, std::string name, const std::atomic<bool>* stop)
      : fd_(fd), name_(std::move(name)), stop_{stop} {}
  void write(std::string_view bytes) override {
    buffer_.append(bytes);
    if (buffer_.size() >= kOutputBlock) end_member();
  }
  void end_member() override {
    write_all(fd_, buffer_, name_, stop_);
    written_ += static_cast<int64_t>(buffer_.size());
    buffer_.clear();
  }
  int64_t position() const override { return written_ + static_cast<int64_t>(buffer_.size()); }

 private:
  int fd_;
  std::string name_, buffer_;
  WriteStop stop_;
  int64_t written_ = 0;
};

class GzipSink : public ByteSink {
 public:
  explicit GzipSink(std::unique_ptr<ByteSink> out) : out_(std::move(out)), block_(kOutputBlock) {
    // The header contains no time and no name: the same rows produce the same bytes.
    if (deflateInit2(&stream_, kGzipLevel, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
      fail(ErrorCode::internal, "zlib: cannot start");
  }
  ~GzipSink() override { deflateEnd(&stream_); }
  void write(std::string_view bytes) override {
    while (!bytes.empty()) {
      const size_t n = std::min(bytes.size(), size_t{1} << 30);
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
      stream_.avail_in = static_cast<uInt>(n);
      begun_ = true;
      run(Z_NO_FLUSH);
      bytes.remove_prefix(n);
    }
  }
  void end_member() override {
    // A file without any data still gets one empty member, so that it is a valid .gz.
    if (begun_ || out_->position() == 0) {
      run(Z_FINISH);
      deflateReset(&stream_);
      begun_ = false;
    }
    out_->end_member();
  }
  int64_t position() const override { return out_->position(); }

 private:
  void run(int flush) {
    int status = Z_OK;
    do {
      stream_.next_out = block_.data();
      stream_.avail_out = static_cast<uInt>(block_.size());
      status = deflate(&stream_, flush);
      BRIM_CHECK(status != Z_STREAM_ERROR, "zlib: deflate says {}", status);
      out_->write({reinterpret_cast<const char*>(block_.data()), block_.size() - stream_.avail_out});
    } while (flush == Z_FINISH ? status != Z_STREAM_END : stream_.avail_out == 0);
  }
  std::unique_ptr<ByteSink> out_;
  z_stream stream_{};
  std::vector<Bytef> block_;
  bool begun_ = false;
};

class ZstdSink : public ByteSink {
 public:
  explicit ZstdSink(std::unique_ptr<ByteSink> out)
      : out_(std::move(out)), context_(ZSTD_createCCtx()), block_(kOutputBlock) {
    if (context_ == nullptr) fail(ErrorCode::internal, "zstd: cannot start");
    ZSTD_CCtx_setParameter(context_, ZSTD_c_compressionLevel, kZstdLevel);
    ZSTD_CCtx_setParameter(context_, ZSTD_c_checksumFlag, 1);
  }
  ~ZstdSink() override { ZSTD_freeCCtx(context_); }
  void write(std::string_view bytes) override {
    if (bytes.empty()) return;
    begun_ = true;
    run(bytes, ZSTD_e_continue);
  }
  void end_member() override {
    if (begun_ || out_->position() == 0) {
      run({}, ZSTD_e_end);
      begun_ = false;
    }
    out_->end_member();
  }
  int64_t position() const override { return out_->position(); }

 private:
  void run(std::string_view bytes, ZSTD_EndDirective end) {
    ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
    size_t left = 0;
    do {
      ZSTD_outBuffer out{block_.data(), block_.size(), 0};
      left = ZSTD_compressStream2(context_, &out, &in, end);
      BRIM_CHECK(!ZSTD_isError(left), "zstd: {}", ZSTD_getErrorName(left));
      out_->write({block_.data(), out.pos});
    } while (end == ZSTD_e_end ? left != 0 : in.pos < in.size);
  }
  std::unique_ptr<ByteSink> out_;
  ZSTD_CCtx* context_;
  std::vector<char> block_;
  bool begun_ = false;
};

// Detects the format by the first bytes: 1F 8B is gzip; 28 B5 2F FD is zstd, as is a skippable frame (5x 2A 4D 18).
Compression compression_by_magic(std::string_view head) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(head[i]); };
  if (head.size() >= 2 && byte(0) == 0x1F && byte(1) == 0x8B) return Compression::gzip;
  if (head.size() >= 4 && byte(0) == 0x28 && byte(1) == 0xB5 && byte(2) == 0x2F && byte(3) == 0xFD)
    return Compression::zstd;
  if (head.size() >= 4 && (byte(0) & 0xF0) == 0x50 && byte(1) == 0x2A && byte(2) == 0x4D && byte(3) == 0x18)
    return Compression::zstd;
  return Compression::none;
}

bool ends_with(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

}  // namespace

Compression compression_of(std::string_view path) {
  if (ends_with(path, ".gz")) return Compression::gzip;
  if (ends_with(path, ".zst")) return Compression::zstd;
  return Compression::none;
}

std::string_view without_compression(std::string_view path) {
  switch (compression_of(path)) {
    case Compression::gzip:
      return path.substr(0, path.size() - 3);
    case Compression::zstd:
      return path.substr(0, path.size() - 4);
    case Compression::none:
      break;
  }
  return path;
}

bool is_rereadable(const std::string& path) {
  struct stat info {};
  return path != "-" && ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

void ByteSource::skip(int64_t bytes) {
  std::vector<char> sink(static_cast<size_t>(std::min<int64_t>(bytes, int64_t{1} << 20)));
  while (bytes > 0) {
    const size_t n =
        read(sink.data(), static_cast<size_t>(std::min<int64_t>(bytes, static_cast<int64_t>(sink.size()))));
    if (n == 0) fail(ErrorCode::bad_data, "{}: ends {} bytes before the resume position", name(), bytes);
    bytes -= static_cast<int64_t>(n);
  }
}

std::unique_ptr<ByteSource> decompressed(std::unique_ptr<ByteSource> inner) {
  std::string head(4, '\0');
  size_t n = 0;
  while (n < head.size()) {
    const size_t got = inner->read(head.data() + n, head.size() - n);
    if (got == 0) break;
    n += got;
    // An interactive pipe may deliver one byte and pause: continue only while a magic number is still possible.
    if (compression_by_magic({head.data(), n}) == Compression::gzip) break;
    if (head[0] != 0x1F && head[0] != 0x28 && (head[0] & 0xF0) != 0x50) break;
  }
  head.resize(n);
  const Compression found = compression_by_magic(head);
  const Compression named = compression_of(inner->name());
  if (named != Compression::none && found != named && n > 0 && found == Compression::none)
    fail(ErrorCode::bad_data, "{}: byte 0: not {} data despite the file name; rename the file or download it again",
         inner->name(), named == Compression::gzip ? "gzip" : "zstd");
  auto peeked = std::make_unique<PeekedSource>(std::move(inner), std::move(head));
  switch (found != Compression::none ? found : named) {
    case Compression::gzip:
      return std::make_unique<GzipSource>(std::move(peeked));
    case Compression::zstd:
      return std::make_unique<ZstdSource>(std::move(peeked));
    case Compression::none:
      break;
  }
  return peeked;
}

std::unique_ptr<ByteSource> open_source(const std::string& path, std::shared_ptr<const InputWait> wait) {
  if (path == "-") return decompressed(std::make_unique<FileSource>("stdin", STDIN_FILENO, false, std::move(wait)));
  // Do not wait here for a named pipe without a writer: later waits can be interrupted.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail(ErrorCode::usage, "{}: cannot open: {}", path, std::strerror(errno));
  struct stat info {};
  if (::fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
    ::close(fd);
    fail(ErrorCode::usage, "{}: is a directory; give files", path);
  }
  return decompressed(std::make_unique<FileSource>(path, fd, true, std::move(wait)));
}

std::string read_head(const std::string& path, size_t bytes) {
  std::string head(bytes, '\0');
  const auto source = open_source(path);
  size_t used = 0;
  try {
    for (size_t n = 1; n > 0 && used < bytes; used += n) n = source->read(head.data() + used, bytes - used);
  } catch (const Error&) {  // reading the stream to its end reports the error
  }
  head.resize(used);
  return head;
}

std::unique_ptr<ByteSource> memory_source(std::string name, std::string bytes, size_t piece) {
  return std::make_unique<MemorySource>(std::move(name), std::move(bytes), piece);
}

std::unique_ptr<ByteSource> range_of(std::unique_ptr<ByteSource> inner, int64_t begin, int64_t bytes) {
  return std::make_unique<RangeSource>(std::move(inner), begin, bytes);
}

std::unique_ptr<ByteSink> make_sink(AtomicFile& file, Compression compression) {
  auto plain = std::make_unique<FileSink>(file);
  switch (compression) {
    case Compression::gzip:
      return std::make_unique<GzipSink>(std::move(plain));
    case Compression::zstd:
      return std::make_unique<ZstdSink>(std::move(plain));
    case Compression::none:
      break;
  }
  return plain;
}

std::unique_ptr<ByteSink> make_sink(int fd, std::string name, const std::atomic<bool>* stop) {
  return std::make_unique<DescriptorSink>(fd, std::move(name), stop);
}

}  // namespace brim::io
