// SPDX-License-Identifier: Apache-2.0
// State of a queue: waiting items, results of flushes, and answers given under idempotency keys. It changes only
// through records, and the same records give the same state: the journal is replayed through apply().
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace brim::serve {

using QueueJson = nlohmann::ordered_json;  // items keep the order of their keys

struct QueueItem {
  std::string text, source;
  QueueJson item;  // an object, as the client sent it
};
// What two items that are the same have in common: their id, where they have one, else text and item.
std::string sameness_of(const QueueItem& item);
int64_t tokens_of(const QueueItem& item);  // an estimate: four bytes a token
size_t bytes_of(const QueueItem& item);    // with what the client sent beside its text

struct WaitingItem : QueueItem {
  uint64_t number = 0;
  int64_t queued_ms = 0;  // unix time
  int64_t steady_ms = 0;  // the same moment by the steady clock of this process
  size_t bytes = 0;       // as bytes_of
};

struct Flush {
  int64_t done_ms = 0;
  bool delivered = false;  // somebody was answered with it
  std::vector<QueueItem> items;
  std::vector<QueueJson> results;
};

// A request that was answered under a key.
struct KeyedAnswer {
  uint32_t request = 0;  // checksum of what was asked
  int64_t done_ms = 0;
  uint64_t flush = 0;  // 0: `body` is the whole answer; else the flush's items belong to it
  int status = 200;
  QueueJson body;
};

constexpr size_t kMostKept = 100'000;  // results, keys
constexpr size_t kMostKeptBytes = size_t{256} << 20;
constexpr int64_t kKeepMs = 24 * 3600 * 1000;

struct QueueState {
  uint64_t next_number = 1, next_flush = 1;
  std::deque<WaitingItem> waiting;
  std::map<uint64_t, Flush> flushes;
  size_t unseen = 0;  // of the flushes, not delivered
  std::map<std::string, KeyedAnswer> keys;
  std::unordered_map<std::string, std::pair<uint64_t, size_t>> flushed;  // by sameness: flush and index in it
  // Records may be missing, so the items of a flush are matched by content instead of being counted.
  bool damaged = false;
  bool flush_ids_known = false;  // a record gave the id of the next flush
  size_t maybe_flushes = 0;      // damaged records since then that may have been flushes

  // Throws bad_data if it is not a record of a queue.
  void apply(const QueueJson& record);
  // Continues after `records` damaged records with these bytes.
  void skip_damaged(std::string_view bytes, size_t records);
  // After the last record. Damaged records that may have been flushes use up ids, so that no id is given twice. If no
  // record gave an id, flushes continue with the time in seconds, which is larger than any id given before.
  void end_replay(int64_t now_ms);
  // Records that give this state, without what has been kept long enough by `now_ms`: delivered results and keys after
  // a day, at most kMostKept and kMostKeptBytes of each. Results that nobody has seen stay.
  std::vector<QueueJson> snapshot(int64_t now_ms, const std::string& name, size_t most_bytes = kMostKeptBytes) const;
};

// Constructors of records. `key` is optional (null).
struct UsedKey {
  std::string key;
  uint32_t request = 0;
};
QueueJson start_record(const std::string& name, const QueueState& state);
// `next_flush`: the id of the next flush, known from any intact record after a damaged one; 0: left out.
QueueJson add_record(const std::vector<QueueItem>& items, int64_t now_ms, const UsedKey* key, const QueueJson& answer,
                     uint64_t next_flush = 0);
// `taken`: number of waiting items that it took. `id` 0: left out, as in journals of older versions.
QueueJson flush_record(size_t taken, const Flush& flush, const UsedKey* key, const QueueJson& answer, uint64_t id = 0);
QueueJson key_record(const UsedKey& key, int64_t now_ms, const QueueJson& answer);
QueueJson acknowledge_record(uint64_t flush);

std::string text_of(const QueueJson& json);          // on one line; bytes that are not UTF-8 are replaced
QueueJson parse_record(const std::string& payload);  // throws bad_data

}  // namespace brim::serve
