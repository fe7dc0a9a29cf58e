// SPDX-License-Identifier: Apache-2.0
// Rebuilds queues from their journals, also from damaged ones, and repairs the journals of a stopped server.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "serve/durable/queue_journal.h"
#include "serve/durable/queue_state.h"

namespace brim::serve {

// Throws bad_data for an intact record that does not belong to a queue.
QueueState replay_queue(const std::vector<std::string>& records, const std::vector<JournalDamage>& damage,
                        int64_t now_ms);
size_t count_damaged(const std::vector<JournalDamage>& damage);  // number of damaged records

struct JournalReport {
  std::filesystem::path journal;
  size_t records = 0;  // intact
  std::vector<JournalDamage> damage;
  size_t torn_bytes = 0;  // a torn write, which opening the queue removes
  size_t waiting = 0, flushes = 0;
  uint64_t next_flush = 0;
  std::string problem;         // the journal cannot be read or written
  std::filesystem::path kept;  // the original; empty unless the journal was repaired
};

// Checks queues/*.journal of a state directory. With `apply`, damaged journals are replaced by the records that give
// the same state as opening them, and the originals are kept as NAME.journal.damaged. Throws usage if the directory has
// no queues, cannot_write while a server uses it.
std::vector<JournalReport> repair_queues(const std::filesystem::path& state_dir, bool apply, int64_t now_ms);

}  // namespace brim::serve
