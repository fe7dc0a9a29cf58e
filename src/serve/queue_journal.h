// SPDX-License-Identifier: Apache-2.0
// An append-only file of records, each with its length and checksum. A record is durable when commit() returns: those
// that wait together share one fdatasync. A kill at any byte leaves a torn tail, which opening cuts off; nothing that
// was committed is lost. What is cut off is kept beside the file as NAME.tail, NAME.tail.2, and so on, should it be
// more than a torn tail, and the log says so.
//
//   u32 length, u32 crc32 of length and payload (both little-endian), payload
#pragma once
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace brim::serve {

class QueueJournal {
 public:
  struct Content {
    std::vector<std::string_view> records;
    size_t bytes = 0;  // up to the end of the last whole record
  };
  // The whole records at the beginning of `bytes`, which must stay.
  static Content read(std::string_view bytes);
  static std::string frame(std::string_view payload);

  // Opens the file or makes one with the record `first`. Throws cannot_write.
  QueueJournal(std::filesystem::path path, std::string_view first);
  ~QueueJournal();
  QueueJournal(const QueueJournal&) = delete;
  QueueJournal& operator=(const QueueJournal&) = delete;

  const std::vector<std::string>& opened() const { return opened_; }  // the records that were there
  void forget_opened();

  // Adds a record; records stand in the file as they were added. Returns what commit() waits for.
  uint64_t append(std::string_view payload);
  // Returns when that record and all before it are durable. Throws cannot_write, then and ever after: the file ends
  // with the last record that was committed, and a new QueueJournal may try again.
  void commit(uint64_t record);
  // Replaces the whole content, uncommitted records too, by these: compaction. Throws cannot_write; the file is then
  // as it was and goes on, or has failed(): it is whole and new, but not open.
  void rewrite(const std::vector<std::string>& payloads);
  bool failed() const;  // nothing more can be appended or committed

  size_t bytes() const;  // committed

 private:
  void open_to_append();
  void write_and_sync(std::string_view bytes, size_t at);

  std::filesystem::path path_;
  int fd_ = -1;
  std::vector<std::string> opened_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string waiting_;  // framed, not yet handed to the system
  uint64_t appended_ = 0, durable_ = 0;
  size_t bytes_ = 0;
  bool syncing_ = false;
  std::string failure_;
};

}  // namespace brim::serve
