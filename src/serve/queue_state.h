// SPDX-License-Identifier: Apache-2.0
// What a queue holds: items that wait, results that were flushed, and the answers given under idempotency keys. It
// changes by records alone, and the same records give the same state: the journal is replayed through apply().
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
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
  int64_t queued_ms = 0;
  size_t bytes = 0;  // as bytes_of
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
  std::unordered_map<std::string, std::pair<uint64_t, size_t>> flushed;  // by sameness: flush and place in it

  // Throws bad_data for what is no record of a queue.
  void apply(const QueueJson& record);
  // Records that give this state, without what has been kept long enough by `now_ms`: delivered results and keys after
  // a day, at most kMostKept and kMostKeptBytes of each. Results that nobody has seen stay.
  std::vector<QueueJson> snapshot(int64_t now_ms, const std::string& name, size_t most_bytes = kMostKeptBytes) const;
};

// The records. `key` may be null: none.
struct UsedKey {
  std::string key;
  uint32_t request = 0;
};
QueueJson start_record(const std::string& name, const QueueState& state);
QueueJson add_record(const std::vector<QueueItem>& items, int64_t now_ms, const UsedKey* key, const QueueJson& answer);
// `taken`: how many of the waiting items it took.
QueueJson flush_record(size_t taken, const Flush& flush, const UsedKey* key, const QueueJson& answer);
QueueJson key_record(const UsedKey& key, int64_t now_ms, const QueueJson& answer);
QueueJson acknowledge_record(uint64_t flush);

std::string text_of(const QueueJson& json);          // on one line; bytes that are not UTF-8 are replaced
QueueJson parse_record(const std::string& payload);  // throws bad_data

}  // namespace brim::serve
