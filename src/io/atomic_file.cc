// SPDX-License-Identifier: Apache-2.0
#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "io/descriptor.h"

namespace brim::io {
namespace fs = std::filesystem;
namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;

}  // namespace

struct AtomicFile::State {
  fs::path path;   // as the caller named it, for messages
  fs::path final;  // what the rename replaces: `path`, or what it links to
  fs::path part;   // where bytes go until commit; equal to `final` when direct
  int fd = -1;
  bool direct = false;
  bool keep = false;
  uint64_t written = 0;  // bytes handed to the system
  std::string buffer;
  WriteStop stop;

  ~State() {
    if (fd < 0) return;
    if (!keep && !direct) ::unlink(part.c_str());
    ::close(fd);
  }

  void hand_over(std::string_view bytes) {
    write_all(fd, bytes, part.string(), stop);
    written += bytes.size();
  }

  void flush() {
    hand_over(buffer);
    buffer.clear();
  }

  void sync() {
    flush();
    // Pipes and some devices have nothing to sync.
    if (::fsync(fd) != 0 && errno != EINVAL && errno != EROFS && errno != ENOTSUP)
      fail_write(part.string(), "cannot sync", errno);
  }
};

namespace {

// A link is kept and what it names is replaced.
fs::path behind_link(const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(fs::symlink_status(path, error))) return path;
  const fs::path target = fs::weakly_canonical(path, error);
  return error ? path : target;
}

// Opens and locks `part`. Two writers of one output would interleave, so the second is refused.
int open_part(const fs::path& part, bool create) {
  for (;;) {
    const int fd = ::open(part.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT : 0), 0666);
    if (fd < 0 && errno == ENOENT && create) {
      const fs::path wanted = fs::path(part).replace_extension();  // as named: without .part
      fail(ErrorCode::cannot_write, "{}: cannot create: {}; make the directory {} first", wanted.string(),
           std::strerror(ENOENT), wanted.parent_path().string());
    }
    if (fd < 0) fail_write(part.string(), create ? "cannot create" : "cannot continue", errno);
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {  // other errors: no locks on this file system
      ::close(fd);
      fail(ErrorCode::cannot_write, "{}: another process is writing it: wait for it or choose another output",
           part.string());
    }
    // Between open and lock another writer may have renamed this very file into place: then it is not ours.
    struct stat ours {
    }, named{};
    if (::fstat(fd, &ours) == 0 && ::stat(part.c_str(), &named) == 0 && ours.st_ino == named.st_ino &&
        ours.st_dev == named.st_dev)
      return fd;
    ::close(fd);
  }
}

}  // namespace

fs::path AtomicFile::part_path(const fs::path& path) { return behind_link(path).string() + ".part"; }

AtomicFile::AtomicFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
AtomicFile::AtomicFile(AtomicFile&&) noexcept = default;
AtomicFile& AtomicFile::operator=(AtomicFile&&) noexcept = default;
AtomicFile::~AtomicFile() = default;

AtomicFile::AtomicFile(const fs::path& path) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.path = s.final = path;
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::is_directory(status)) fail(ErrorCode::cannot_write, "{}: is a directory: name a file", path.string());
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    s.direct = true;
    s.part = path;
    s.fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (s.fd < 0) fail_write(path.string(), "cannot open", errno);
    return;
  }
  s.final = behind_link(path);
  s.part = part_path(s.final);
  const int fd = open_part(s.part, true);
  s.fd = fd;
  if (::ftruncate(fd, 0) != 0) fail_write(s.part.string(), "cannot empty", errno);
  // An output that exists keeps its permissions and must be one we may write: rename alone would not ask.
  if (fs::exists(status)) {
    if (::access(s.final.c_str(), W_OK) != 0) fail_write(s.final.string(), "cannot write", errno);
    if (::fchmod(fd, static_cast<mode_t>(status.permissions()) & 07777) != 0)
      fail_write(s.part.string(), "cannot write", errno);
  }
}

AtomicFile AtomicFile::resume(const fs::path& path, uint64_t offset) {
  auto state = std::make_unique<State>();
  state->path = path;
  state->final = behind_link(path);
  state->part = part_path(state->final);
  state->fd = open_part(state->part, false);
  state->keep = true;  // until the resumed state is known good, lose nothing
  struct stat info {};
  if (::fstat(state->fd, &info) != 0) fail_write(state->part.string(), "cannot read its size", errno);
  if (static_cast<uint64_t>(info.st_size) < offset)
    fail(ErrorCode::cannot_write, Remedy{"start again without `resume`"}, "{}: has {} bytes, {} were written before",
         state->part.string(), info.st_size, offset);
  if (::ftruncate(state->fd, static_cast<off_t>(offset)) != 0) fail_write(state->part.string(), "cannot cut", errno);
  if (::lseek(state->fd, static_cast<off_t>(offset), SEEK_SET) < 0)
    fail_write(state->part.string(), "cannot seek", errno);
  state->written = offset;
  return AtomicFile(std::move(state));
}

void AtomicFile::write(const void* data, size_t bytes) {
  State& s = *state_;
  BRIM_CHECK(s.fd >= 0, "{} written after commit", s.path.string());
  const char* text = static_cast<const char*>(data);
  if (s.buffer.size() + bytes > kBufferBytes) s.flush();
  if (bytes >= kBufferBytes)
    s.hand_over({text, bytes});
  else
    s.buffer.append(text, bytes);
}

uint64_t AtomicFile::position() const { return state_->written + state_->buffer.size(); }
void AtomicFile::flush() { state_->flush(); }
void AtomicFile::sync() { state_->sync(); }
void AtomicFile::keep_part() { state_->keep = true; }
void AtomicFile::stop_by(const std::atomic<bool>* stop) { state_->stop = {stop}; }
const fs::path& AtomicFile::path() const { return state_->path; }

void AtomicFile::commit() {
  State& s = *state_;
  BRIM_CHECK(s.fd >= 0, "{} committed twice", s.path.string());
  s.sync();
  // Rename while the file is still open, so that its lock covers the change of name.
  if (!s.direct && ::rename(s.part.c_str(), s.final.c_str()) != 0)
    fail_write(s.final.string(), "cannot rename into place", errno);
  const int fd = std::exchange(s.fd, -1);
  if (::close(fd) != 0 && errno != EINTR) fail_write(s.final.string(), "cannot close", errno);
  if (s.direct) return;
  const fs::path parent = s.final.has_parent_path() ? s.final.parent_path() : fs::path(".");
  const int dir = ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0) return;  // a directory we may write but not read: the rename happened, only its durability is unknown
  const int error = ::fsync(dir) == 0 ? 0 : errno;
  ::close(dir);
  if (error != 0 && error != EINVAL && error != EROFS && error != ENOTSUP)
    fail_write(parent.string(), "cannot sync", error);
}

void require_writable(const fs::path& path) {
  std::error_code ignored;
  const auto kind = fs::status(path, ignored).type();
  if (kind == fs::file_type::not_found || kind == fs::file_type::regular || kind == fs::file_type::directory)
    AtomicFile trial(path);  // a pipe is not opened twice
}

void write_file_atomically(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace brim::io
