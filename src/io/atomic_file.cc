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

void take_mode_of(const fs::path& final, int fd, const std::string& shown);
void sync_file(int fd, const std::string& shown);

}  // namespace

struct AtomicFile::State {
  fs::path path;   // as given by the caller, for messages
  fs::path final;  // replaced by the rename: `path`, or its link target
  fs::path part;   // receives the bytes until commit; equal to `final` when direct
  int fd = -1;
  bool direct = false;
  bool keep = false;
  std::string shown;     // in messages about `part`: its name if it is predictable, otherwise the caller's
  uint64_t written = 0;  // bytes passed to the system
  std::string buffer;
  WriteStop stop;

  static std::unique_ptr<State> for_part(const fs::path& path);

  ~State() {
    if (fd < 0) return;
    if (!keep && !direct) ::unlink(part.c_str());
    ::close(fd);
  }

  void hand_over(std::string_view bytes) {
    write_all(fd, bytes, shown, stop);
    written += bytes.size();
  }

  void flush() {
    hand_over(buffer);
    buffer.clear();
  }

  void sync() {
    flush();
    sync_file(fd, shown);
  }

  void take_mode_of_output() { take_mode_of(final, fd, shown); }
};

namespace {

// Resolves a link: the link is kept and its target is replaced.
fs::path behind_link(const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(fs::symlink_status(path, error))) return path;
  const fs::path target = fs::weakly_canonical(path, error);
  return error ? path : target;
}

[[noreturn]] void fail_create(const fs::path& path, int error) {
  if (error == ENOENT)
    fail(ErrorCode::cannot_write, "{}: cannot create: {}; create the directory {} first", path.string(),
         std::strerror(error), path.parent_path().string());
  fail_write(path.string(), "cannot create", error);
}

int create(const fs::path& file) {
  return ::open(file.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_CREAT | O_EXCL, 0666);
}

// Calls `make` with random names next to `final` until one does not exist. Returns the result of `make`, -1 on failure.
template <class Make>
int with_unique_name(const fs::path& final, fs::path& made, const Make& make) {
  constexpr size_t kLongestStem = 230;  // leaves space for the suffix within NAME_MAX
  const fs::path stem = fs::path(final).replace_filename(final.filename().string().substr(0, kLongestStem));
  for (;;) {
    uint64_t random = 0;
    if (::getentropy(&random, sizeof random) != 0) return -1;
    made = fmt::format("{}.{:012x}.part", stem.string(), random >> 16);
    const int result = make(made);
    if (result >= 0 || errno != EEXIST) return result;
  }
}

// mkstemp(3) would create the file with mode 0600 instead of applying the umask.
int create_unique(const fs::path& final, fs::path& made) { return with_unique_name(final, made, create); }

// An existing output keeps its permissions and must be writable: rename(2) alone would not check.
void take_mode_of(const fs::path& final, int fd, const std::string& shown) {
  struct stat info {};
  if (::stat(final.c_str(), &info) != 0) return;
  if (::access(final.c_str(), W_OK) != 0) fail_write(final.string(), "cannot write", errno);
  if (::fchmod(fd, info.st_mode & 07777) != 0) fail_write(shown, "cannot write", errno);
}

void sync_file(int fd, const std::string& shown) {
  // Pipes and some devices have nothing to sync.
  if (::fsync(fd) != 0 && errno != EINVAL && errno != EROFS && errno != ENOTSUP)
    fail_write(shown, "cannot sync", errno);
}

fs::path parent_of(const fs::path& final) { return final.has_parent_path() ? final.parent_path() : fs::path("."); }

// Makes a rename durable.
void sync_parent(const fs::path& final) {
  const fs::path parent = parent_of(final);
  const int dir = ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0)
    return;  // a directory that is writable but not readable: the rename happened, only its durability is unknown
  const int error = ::fsync(dir) == 0 ? 0 : errno;
  ::close(dir);
  if (error != 0 && error != EINVAL && error != EROFS && error != ENOTSUP)
    fail_write(parent.string(), "cannot sync", error);
}

// Writes through an unnamed file, so that a kill leaves nothing behind. Returns false if the file system does not
// support such files or linking them.
bool write_unnamed(const fs::path& final, std::string_view text, const std::string& shown) {
  struct Closed {
    int fd;
    ~Closed() {
      if (fd >= 0) ::close(fd);
    }
  } file{::open(parent_of(final).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666)};
  if (file.fd < 0) return false;
  take_mode_of(final, file.fd, shown);
  WriteStop never;
  write_all(file.fd, text, shown, never);
  sync_file(file.fd, shown);
  const std::string source = fmt::format("/proc/self/fd/{}", file.fd);
  fs::path made;
  const auto link = [&](const fs::path& to) {
    return ::linkat(AT_FDCWD, source.c_str(), AT_FDCWD, to.c_str(), AT_SYMLINK_FOLLOW);
  };
  if (with_unique_name(final, made, link) != 0) return false;
  if (::rename(made.c_str(), final.c_str()) != 0) {
    const int error = errno;
    ::unlink(made.c_str());
    fail_write(final.string(), "cannot rename into place", error);
  }
  sync_parent(final);
  return true;
}

// Two writers of one output would interleave, so the second one fails. Returns false if `part` no longer names this
// file.
bool lock_part(int fd, const fs::path& part) {
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {  // other errors: no locks on this file system
    ::close(fd);
    fail(ErrorCode::cannot_write, "{}: is being written by another process; wait for it or choose another output",
         part.string());
  }
  // Between open and lock another writer may have renamed this file into place: then it must not be used.
  struct stat ours {
  }, named{};
  return ::fstat(fd, &ours) == 0 && ::lstat(part.c_str(), &named) == 0 && ours.st_ino == named.st_ino &&
         ours.st_dev == named.st_dev;
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
  s.shown = path.string();
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::is_directory(status)) fail(ErrorCode::cannot_write, "{}: is a directory; give a file", path.string());
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    s.direct = true;
    s.part = path;
    s.fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (s.fd < 0) fail_write(path.string(), "cannot open", errno);
    return;
  }
  s.final = behind_link(path);
  s.fd = create_unique(s.final, s.part);
  if (s.fd < 0) fail_create(s.final, errno);
  s.take_mode_of_output();
}

std::unique_ptr<AtomicFile::State> AtomicFile::State::for_part(const fs::path& path) {
  auto state = std::make_unique<State>();
  state->path = path;
  state->final = behind_link(path);
  state->part = part_path(state->final);
  state->shown = state->part.string();
  return state;
}

AtomicFile AtomicFile::start_part(const fs::path& path) {
  auto state = State::for_part(path);
  const int fd = create(state->part);
  if (fd < 0 && errno == EEXIST) refuse_foreign_file(state->shown, "already exists");
  if (fd < 0) fail_create(state->final, errno);
  if (!lock_part(fd, state->part)) {
    ::close(fd);
    fail(ErrorCode::cannot_write, "{}: was replaced by another process; choose another output", state->shown);
  }
  state->fd = fd;
  state->take_mode_of_output();
  return AtomicFile(std::move(state));
}

AtomicFile AtomicFile::open_part(const fs::path& path) {
  auto state = State::for_part(path);
  state->keep = true;  // keep everything until cut_to()
  for (;;) {
    const int fd = open_own_file(state->shown, O_WRONLY);
    if (fd < 0) fail_write(state->shown, "cannot open", errno);
    if (lock_part(fd, state->part)) {
      state->fd = fd;
      return AtomicFile(std::move(state));
    }
    ::close(fd);
  }
}

AtomicFile AtomicFile::resume(const fs::path& path, uint64_t offset) {
  AtomicFile file = open_part(path);
  file.cut_to(offset);
  return file;
}

void AtomicFile::cut_to(uint64_t offset) {
  State& s = *state_;
  struct stat info {};
  if (::fstat(s.fd, &info) != 0) fail_write(s.shown, "cannot read the size", errno);
  if (static_cast<uint64_t>(info.st_size) < offset)
    fail(ErrorCode::cannot_write, Remedy{"remove it to start over"},
         "{}: has {} bytes, fewer than the {} written earlier", s.shown, info.st_size, offset);
  if (::ftruncate(s.fd, static_cast<off_t>(offset)) != 0) fail_write(s.shown, "cannot truncate", errno);
  if (::lseek(s.fd, static_cast<off_t>(offset), SEEK_SET) < 0) fail_write(s.shown, "cannot seek", errno);
  s.written = offset;
  s.keep = offset > 0;
  if (offset == 0) s.take_mode_of_output();
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
const fs::path& AtomicFile::part() const { return state_->part; }

void AtomicFile::commit() {
  State& s = *state_;
  BRIM_CHECK(s.fd >= 0, "{} committed twice", s.path.string());
  s.sync();
  // Rename while the file is still open, so that the lock covers the rename.
  if (!s.direct && ::rename(s.part.c_str(), s.final.c_str()) != 0)
    fail_write(s.final.string(), "cannot rename into place", errno);
  const int fd = std::exchange(s.fd, -1);
  if (::close(fd) != 0 && errno != EINTR) fail_write(s.final.string(), "cannot close", errno);
  if (s.direct) return;
  sync_parent(s.final);
}

void require_writable(const fs::path& path) {
  std::error_code ignored;
  const auto kind = fs::status(path, ignored).type();
  if (kind == fs::file_type::not_found || kind == fs::file_type::regular || kind == fs::file_type::directory)
    AtomicFile trial(path);  // a pipe must not be opened twice
}

void write_file_atomically(const fs::path& path, std::string_view text) {
  std::error_code ignored;
  const fs::path final = behind_link(path);
  const fs::file_status status = fs::status(final, ignored);
  const bool is_regular = !fs::exists(status) || fs::is_regular_file(status);
  if (is_regular && write_unnamed(final, text, path.string())) return;
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace brim::io
