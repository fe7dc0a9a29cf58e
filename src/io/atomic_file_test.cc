// SPDX-License-Identifier: Apache-2.0
#include "io/atomic_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <vector>

#include "base/test_files.h"
#include "base/test_syscalls.h"

namespace brim::io {
namespace {

namespace fs = std::filesystem;

size_t files_in(const fs::path& dir) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(dir), fs::directory_iterator()));
}

TEST(AtomicFile, AppearsOnlyWhenCommitted) {
  const TempDir dir;
  put_file(dir / "out", "old");
  {
    AtomicFile file(dir / "out");
    file.write("new ");
    file.write(std::string(1 << 20, 'x'));
    EXPECT_EQ(file.position(), (1u << 20) + 4);
    EXPECT_EQ(get_file(dir / "out"), "old");
    EXPECT_EQ(file.part().parent_path(), dir.path());
    EXPECT_TRUE(fs::exists(file.part()));
    file.commit();
  }
  EXPECT_EQ(get_file(dir / "out").size(), (1u << 20) + 4);
  EXPECT_EQ(files_in(dir.path()), 1u);
}

TEST(AtomicFile, SyncsContentBeforeAndDirectoryAfterTheRename) {
  const TempDir dir;
  const std::vector<std::function<void(const std::string&)>> ways = {
      [&](const std::string& text) { write_file_atomically(dir / "out", text); },
      [&](const std::string& text) {
        AtomicFile file(dir / "out");
        file.write(text);
        file.commit();
      }};
  for (size_t way = 0; way < 4; ++way) {
    const SyscallLog log;
    ways[way / 2](std::string(way % 2 == 0 ? 3 : 1 << 20, 'x'));  // AtomicFile buffers only short texts
    const auto calls = log.calls();
    const size_t renamed = find_call(calls, "rename", (dir / "out").string());
    ASSERT_LT(renamed, calls.size());
    EXPECT_LT(find_call(calls, "write", calls[renamed].path), renamed);
    EXPECT_LT(find_call(calls, "fsync", calls[renamed].path), renamed);
    EXPECT_EQ(unsynced(calls, renamed, dir.path().string()), std::vector<std::string>{});
    EXPECT_LT(find_call(calls, "fsync", dir.path().string(), renamed), calls.size());
    EXPECT_EQ(unsynced(calls, calls.size(), dir.path().string()), std::vector<std::string>{});
  }
}

// Checks the log of the tests: linkat() names a file as rename() does.
TEST(AtomicFile, LogReportsUnnamedFileLinkedBeforeItIsSynced) {
  const TempDir dir;
  for (const bool synced : {false, true}) {
    const SyscallLog log;
    const int unnamed = ::open(dir.path().c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (unnamed < 0) GTEST_SKIP() << "this file system has no unnamed files";
    EXPECT_EQ(::write(unnamed, "x", 1), 1);
    if (synced) ::fsync(unnamed);
    const fs::path made = dir / (synced ? "synced" : "not synced");
    const std::string source = "/proc/self/fd/" + std::to_string(unnamed);
    EXPECT_EQ(::linkat(AT_FDCWD, source.c_str(), AT_FDCWD, made.c_str(), AT_SYMLINK_FOLLOW), 0);
    ::fsync(unnamed);  // too late
    EXPECT_EQ(::rename(made.c_str(), (dir / "out").c_str()), 0);
    ::close(unnamed);
    std::vector<std::string> expected = {dir.path().string()};
    if (!synced) expected.push_back(made.string() + ": named before " + made.string() + " was synced");
    EXPECT_EQ(unsynced(log.calls(), SIZE_MAX, dir.path().string()), expected);
  }
}

TEST(AtomicFile, SyncMakesAllWrittenBytesDurable) {
  const TempDir dir;
  const SyscallLog log;
  AtomicFile file(dir / "out");
  file.write("buffered");
  file.sync();
  const auto calls = log.calls();
  EXPECT_LT(find_call(calls, "write", ""), calls.size());
  EXPECT_EQ(unsynced(calls, calls.size(), dir.path().string()), std::vector<std::string>{});
}

TEST(AtomicFile, RemovesAnUncommittedFile) {
  const TempDir dir;
  put_file(dir / "out", "old");
  { AtomicFile(dir / "out").write("new"); }
  EXPECT_EQ(get_file(dir / "out"), "old");
  EXPECT_EQ(files_in(dir.path()), 1u);
}

TEST(AtomicFile, TemporaryNamesAreRandomAndOtherPartFilesAreKept) {
  const TempDir dir;
  put_file(dir / "out.part", "foreign");
  AtomicFile first(dir / "out"), second(dir / "out");
  EXPECT_NE(first.part(), second.part());
  first.write("first");
  second.write("second");
  second.commit();
  first.commit();
  EXPECT_EQ(get_file(dir / "out"), "first");
  EXPECT_EQ(get_file(dir / "out.part"), "foreign");
}

TEST(AtomicFile, NewFilesGetTheModeOfTheUmask) {
  const TempDir dir;
  const mode_t before = ::umask(027);
  write_file_atomically(dir / "out", "x");
  ::umask(before);
  EXPECT_EQ(fs::status(dir / "out").permissions(), fs::perms(0640));
}

// Small files are replaced often, so a kill must not leave temporary files behind.
TEST(AtomicFile, KillDuringASmallWriteLeavesNothing) {
  const TempDir dir;
  const int unnamed = ::open(dir.path().c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (unnamed < 0) GTEST_SKIP() << "this file system has no unnamed files";
  ::close(unnamed);
  const std::string text(size_t{8} << 20, 'x');
  size_t left = 0;
  for (int i = 0; i < 20; ++i) {
    const pid_t child = ::fork();
    if (child == 0)
      for (;;) write_file_atomically(dir / "out", text);
    ::usleep(static_cast<useconds_t>(3000 + 700 * i));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    left = files_in(dir.path());
  }
  if (fs::exists(dir / "out")) {
    EXPECT_EQ(get_file(dir / "out").size(), text.size());
  }
  EXPECT_LE(left, 3u) << "at most a kill between link and rename leaves a file";
}

TEST(AtomicFile, LongNamesLeaveSpaceForTheTemporaryName) {
  const TempDir dir;
  const std::string name(250, 'n');
  write_file_atomically(dir / name, "x");
  EXPECT_EQ(get_file(dir / name), "x");
}

TEST(AtomicFile, StartPartRejectsAnExistingFile) {
  const TempDir dir;
  put_file(dir / "out.part", "foreign");
  EXPECT_HAS(error_of(ErrorCode::cannot_write, [&] { AtomicFile::start_part(dir / "out"); }),
             "out.part: already exists; move it away");
  EXPECT_EQ(get_file(dir / "out.part"), "foreign");
}

TEST(AtomicFile, ResumeDoesNotWriteThroughAHardLink) {
  const TempDir dir;
  put_file(dir / "precious", "precious");
  fs::create_hard_link(dir / "precious", dir / "out.part");
  EXPECT_HAS(error_of(ErrorCode::cannot_write, [&] { AtomicFile::resume(dir / "out", 0); }), "other hard links");
  EXPECT_EQ(get_file(dir / "precious"), "precious");
}

TEST(AtomicFile, ResumeDoesNotFollowASymbolicLink) {
  const TempDir dir;
  put_file(dir / "precious", "precious");
  fs::create_symlink(dir / "precious", dir / "out.part");
  EXPECT_HAS(error_of(ErrorCode::cannot_write, [&] { AtomicFile::resume(dir / "out", 0); }), "symbolic link");
  EXPECT_EQ(get_file(dir / "precious"), "precious");
}

TEST(AtomicFile, ResumeDoesNotWaitForAFifo) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "out.part").c_str(), 0600), 0);
  EXPECT_HAS(error_of(ErrorCode::cannot_write, [&] { AtomicFile::resume(dir / "out", 0); }), "not a regular file");
  const int reader = ::open((dir / "out.part").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  EXPECT_HAS(error_of(ErrorCode::cannot_write, [&] { AtomicFile::resume(dir / "out", 0); }), "not a regular file");
  ::close(reader);
}

TEST(AtomicFile, KeepsPartForResume) {
  const TempDir dir;
  {
    AtomicFile file = AtomicFile::start_part(dir / "out");
    file.keep_part();
    file.write("row 1\nrow 2\nhalf a r");
    file.flush();
  }
  EXPECT_FALSE(fs::exists(dir / "out"));
  {
    AtomicFile file = AtomicFile::resume(dir / "out", 12);
    EXPECT_EQ(file.position(), 12u);
    file.write("row 3\n");
    file.commit();
  }
  EXPECT_EQ(get_file(dir / "out"), "row 1\nrow 2\nrow 3\n");
}

TEST(AtomicFile, ResumeRejectsAShorterPartAndKeepsIt) {
  const TempDir dir;
  put_file(dir / "out.part", "short");
  EXPECT_HAS(error_of(ErrorCode::cannot_write, [&] { AtomicFile::resume(dir / "out", 6); }),
             "has 5 bytes, fewer than the 6");
  EXPECT_EQ(get_file(dir / "out.part"), "short");
  EXPECT_HAS(error_of(ErrorCode::cannot_write, [&] { AtomicFile::resume(dir / "none", 0); }), "No such file");
}

TEST(AtomicFile, RejectsASecondWriter) {
  const TempDir dir;
  AtomicFile first = AtomicFile::start_part(dir / "out");
  first.write("first");
  EXPECT_HAS(error_of(ErrorCode::cannot_write, [&] { AtomicFile::open_part(dir / "out"); }), "another process");
  first.commit();
  EXPECT_EQ(get_file(dir / "out"), "first");
}

TEST(AtomicFile, ReportsAFullDevice) {
  // /dev/full fails every write with "no space left".
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  AtomicFile file("/dev/full");
  const std::string message = error_of(ErrorCode::cannot_write, [&] { file.write(std::string(1 << 20, 'x')); });
  EXPECT_HAS(message, "/dev/full: ");
  EXPECT_HAS(message, "No space left on device");
  AtomicFile small("/dev/full");
  small.write("x");  // still buffered: commit must report the error at the latest
  EXPECT_HAS(error_of(ErrorCode::cannot_write, [&] { small.commit(); }), "No space left on device");
}

TEST(AtomicFile, FailedWriteLeavesTheOldFileAndNoPart) {
  // A file size limit simulates a full disk.
  const TempDir dir;
  put_file(dir / "out", "old");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1 << 16, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  {
    AtomicFile file(dir / "out");
    message = error_of(ErrorCode::cannot_write, [&] {
      for (int i = 0; i < 100; ++i) file.write(std::string(10000, 'x'));
      file.commit();
    });
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_HAS(message, "out: ");
  EXPECT_HAS(message, "File too large");
  EXPECT_EQ(get_file(dir / "out"), "old");
  EXPECT_EQ(files_in(dir.path()), 1u);
}

TEST(AtomicFile, ReportsUnwritablePaths) {
  const TempDir dir;
  EXPECT_HAS(error_of(ErrorCode::cannot_write, [&] { AtomicFile(dir / "no/such/out"); }), "No such file or directory");
  EXPECT_HAS(error_of(ErrorCode::cannot_write, [&] { AtomicFile(dir.path()); }), "is a directory");
  put_file(dir / "file", "");
  EXPECT_HAS(error_of(ErrorCode::cannot_write, [&] { AtomicFile(dir / "file/out"); }), "Not a directory");
  if (geteuid() != 0) {  // root may write anything
    put_file(dir / "fixed", "old");
    fs::permissions(dir / "fixed", fs::perms::owner_read);
    EXPECT_HAS(error_of(ErrorCode::cannot_write, [&] { AtomicFile(dir / "fixed"); }), "Permission denied");
    EXPECT_EQ(files_in(dir.path()), 2u);
  }
}

TEST(AtomicFile, WritesDirectlyToDevicesAndPipes) {
  AtomicFile file("/dev/null");
  file.write("x");
  file.commit();
  EXPECT_FALSE(fs::exists("/dev/null.part"));
}

TEST(AtomicFile, KeepsALinkAndItsTargetsMode) {
  const TempDir dir;
  put_file(dir / "real/out", "old");
  fs::permissions(dir / "real/out", fs::perms(0640));
  fs::create_symlink(dir / "real/out", dir / "link");
  write_file_atomically(dir / "link", "new");
  EXPECT_EQ(AtomicFile::part_path(dir / "link"), dir / "real/out.part");
  EXPECT_TRUE(fs::is_symlink(dir / "link"));
  EXPECT_EQ(get_file(dir / "real/out"), "new");
  EXPECT_EQ(fs::status(dir / "real/out").permissions(), fs::perms(0640));
}

}  // namespace
}  // namespace brim::io
