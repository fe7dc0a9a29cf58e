// SPDX-License-Identifier: Apache-2.0
// An append-only file of records, each with its length and checksum. commit() returns once a record is durable; records
// that wait together share one fdatasync. Does not know the content of records.
//
//   u32 length, u32 crc32 of length and payload (both little-endian), payload
//
// Opening skips damaged records that are followed by an intact one and leaves their bytes in the file. Bytes after the
// last intact record (a write cut short by a kill) are cut off and kept as NAME.tail, NAME.tail.2, and so on.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace brim::serve {

// Bytes of a journal that are not an intact record.
struct JournalDamage {
  size_t before = 0;       // index of the first intact record after it; the number of records if there is none
  size_t offset = 0;       // in the file
  size_t records = 1;      // estimated from the length fields
  bool recovered = false;  // only the length field was wrong; the record is listed with the intact ones
  std::string bytes;
};

class QueueJournal {
 public:
  struct Content {
    std::vector<std::string_view> records;  // intact, in file order
    std::vector<JournalDamage> damage;      // in file order
    size_t bytes = 0;                       // up to the end of the last intact record
    // The bytes after it look like a complete record that was changed later, not like a torn write. They are in the
    // last entry of `damage`.
    bool damaged_tail = false;
  };
  // Finds all intact records in `bytes`, also behind damaged ones, in near-linear time. The views point into `bytes`.
  static Content read(std::string_view bytes);
  static std::string frame(std::string_view payload);

  // Opens the file, or creates it with the record `first`. Throws cannot_write.
  QueueJournal(std::filesystem::path path, std::string_view first);
  ~QueueJournal();
  QueueJournal(const QueueJournal&) = delete;
  QueueJournal& operator=(const QueueJournal&) = delete;

  const std::vector<std::string>& opened() const { return opened_; }  // the records found when opening
  const std::vector<JournalDamage>& damage() const { return damage_; }
  // Opening removed damaged bytes, or the file had no intact record, so the next opening will not see this damage.
  bool damage_removed() const { return damage_removed_; }
  void forget_opened();  // frees opened() and damage()

  // Adds a record; records are written in the order of these calls. Returns the ticket for commit().
  uint64_t append(std::string_view payload);
  // Returns when that record and all before it are durable. Throws cannot_write, also from then on: the file ends
  // with the last committed record, and a new QueueJournal may try again.
  void commit(uint64_t record);
  // Compaction: replaces the whole content, including uncommitted records. Throws cannot_write; then the old file is
  // unchanged and in use, or failed() is true: the new file is complete but could not be opened. A file that had
  // damage when it was opened is kept as NAME.damaged.
  void rewrite(const std::vector<std::string>& payloads);
  bool failed() const;  // nothing more can be appended or committed

  size_t bytes() const;

 private:
  void open_to_append();
  void cut_tail(std::string_view tail);
  void write_and_sync(std::string_view bytes, size_t at);

  std::filesystem::path path_;
  int fd_ = -1;
  std::vector<std::string> opened_;
  std::vector<JournalDamage> damage_;
  bool damage_removed_ = false;
  bool damage_in_file_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string waiting_;  // framed, not yet written
  uint64_t appended_ = 0, durable_ = 0;
  size_t bytes_ = 0;
  bool syncing_ = false;
  std::string failure_;
};

// Gives `path` a second name, PATH.SUFFIX or PATH.SUFFIX.2 and so on, which keeps its content when `path` is replaced.
// Returns the name. Throws cannot_write.
std::filesystem::path keep_original(const std::filesystem::path& path, const std::string& suffix);

}  // namespace brim::serve
