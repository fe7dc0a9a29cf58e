// SPDX-License-Identifier: Apache-2.0
#include "serve/durable/queue_repair.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/error.h"
#include "io/atomic_file.h"
#include "io/descriptor.h"
#include "serve/durable/state_dir.h"

namespace brim::serve {
namespace {

namespace fs = std::filesystem;

// A repair by root must leave a journal that the server's user can still open.
void keep_owner(const fs::path& path, const fs::path& original) {
  struct stat before {};
  struct stat now {};
  if (::stat(original.c_str(), &before) != 0 || ::stat(path.c_str(), &now) != 0) return;
  if (before.st_uid == now.st_uid && before.st_gid == now.st_gid) return;
  if (::chown(path.c_str(), before.st_uid, before.st_gid) != 0)
    io::fail_write(path.string(), "cannot restore the owner", errno);
}

JournalReport check_journal(const fs::path& path, bool apply, int64_t now_ms) {
  JournalReport report;
  report.journal = path;
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(ErrorCode::cannot_write, "cannot read");
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  QueueJournal::Content content = QueueJournal::read(bytes);
  report.records = content.records.size();
  if (!content.damaged_tail) report.torn_bytes = bytes.size() - content.bytes;
  if (content.records.empty() && content.damage.empty()) content.damage.push_back({0, 0, 1, false, bytes});
  report.damage = std::move(content.damage);
  const QueueState state = replay_queue({content.records.begin(), content.records.end()}, report.damage, now_ms);
  report.waiting = state.waiting.size();
  report.flushes = state.flushes.size();
  report.next_flush = state.next_flush;
  if (!apply || report.damage.empty()) return report;
  std::string repaired;
  for (const QueueJson& record : state.snapshot(now_ms, path.stem().string()))
    repaired += QueueJournal::frame(text_of(record));
  report.kept = keep_original(path, "damaged");
  io::write_file_atomically(path, repaired);
  keep_owner(path, report.kept);
  return report;
}

}  // namespace

QueueState replay_queue(const std::vector<std::string>& records, const std::vector<JournalDamage>& damage,
                        int64_t now_ms) {
  QueueState state;
  auto next = damage.begin();
  const auto skip_upto = [&](size_t record) {
    for (; next != damage.end() && next->before <= record; ++next)
      if (!next->recovered) state.skip_damaged(next->bytes, next->records);
  };
  for (size_t i = 0; i < records.size(); ++i) {
    skip_upto(i);
    state.apply(parse_record(records[i]));
  }
  skip_upto(records.size());
  state.end_replay(now_ms);
  return state;
}

size_t count_damaged(const std::vector<JournalDamage>& damage) {
  size_t count = 0;
  for (const JournalDamage& part : damage) count += part.records;
  return count;
}

std::vector<JournalReport> repair_queues(const fs::path& state_dir, bool apply, int64_t now_ms) {
  std::error_code error;
  const fs::path folder = state_dir / "queues";
  if (!fs::is_directory(folder, error))
    fail(ErrorCode::usage, "{}: no queues found; give the state directory of a server", state_dir.string());
  // A dry run creates nothing; without a lock file no server is running.
  std::optional<StateDir> lock;
  if (apply || fs::exists(state_dir / "lock", error)) lock.emplace(state_dir, "stop that server first");
  std::vector<fs::path> journals;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".journal") journals.push_back(entry.path());
  std::sort(journals.begin(), journals.end());
  std::vector<JournalReport> reports;
  for (const fs::path& journal : journals) {
    try {
      reports.push_back(check_journal(journal, apply, now_ms));
    } catch (const Error& e) {
      reports.push_back({.journal = journal, .problem = e.what()});
    }
  }
  return reports;
}

}  // namespace brim::serve
