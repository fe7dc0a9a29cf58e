// SPDX-License-Identifier: Apache-2.0
// State of a queue: waiting items, results of flushes, and responses stored under idempotency keys. It changes only
// through records, and the same records give the same state; the journal is replayed through apply().
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

#include "brim/brim.h"

namespace brim::serve {

using QueueJson = nlohmann::ordered_json;  // keeps the key order of items

struct QueueItem {
  std::string text, source;
  QueueJson item;                          // JSON object, as sent by the client
  std::optional<ZeroShot> zero_shot = {};  // labels for an NLI model
};
// The item's labels with their options as one text, to compare and group items; empty without labels.
std::string labels_text(const QueueItem& item);
// Key for detecting duplicates: the item's id if it has one, else text and item.
std::string identity_of(const QueueItem& item);
int64_t tokens_of(const QueueItem& item);  // estimate: four bytes per token, once per label
size_t bytes_of(const QueueItem& item);    // text and item

struct WaitingItem : QueueItem {
  uint64_t number = 0;
  int64_t queued_ms = 0;  // Unix time
  int64_t steady_ms = 0;  // the same time on this process's steady clock
  size_t bytes = 0;       // see bytes_of()
};

struct Flush {
  int64_t done_ms = 0;
  bool delivered = false;  // returned to a client
  std::vector<QueueItem> items;
  std::vector<QueueJson> results;
};

// Response to a request with an idempotency key.
struct KeyedAnswer {
  uint32_t request = 0;  // checksum of the request
  int64_t done_ms = 0;
  uint64_t flush = 0;  // 0: `body` is the whole response; otherwise it includes the items of this flush
  int status = 200;
  QueueJson body;
};

constexpr size_t kMaxKept = 100'000;  // results, keys
constexpr size_t kMaxKeptBytes = size_t{256} << 20;
constexpr int64_t kKeepMs = 24 * 3600 * 1000;

struct QueueState {
  uint64_t next_number = 1, next_flush = 1;
  std::deque<WaitingItem> waiting;
  std::map<uint64_t, Flush> flushes;
  size_t unseen = 0;  // flushes that are not delivered
  std::map<std::string, KeyedAnswer> keys;
  std::unordered_map<std::string, std::pair<uint64_t, size_t>> flushed;  // by identity_of(): flush and index in it
  // Records may be missing, so the items of a flush are matched by content instead of being counted.
  bool damaged = false;
  bool flush_ids_known = false;  // a record gave the id of the next flush
  size_t maybe_flushes = 0;      // damaged records since then that may have been flushes

  // Throws bad_data for an invalid record.
  void apply(const QueueJson& record);
  // Accounts for `records` damaged records with these bytes.
  void skip_damaged(std::string_view bytes, size_t records);
  // Call after the last record. Damaged records that may have been flushes consume ids, so that no id is used twice. If
  // no record gave an id, ids continue with the time in seconds, which is larger than any earlier id.
  void end_replay(int64_t now_ms);
  // Records that reproduce this state, without what has expired by `now_ms`: delivered results and keys after a day, at
  // most kMaxKept and kMaxKeptBytes of each. Undelivered results stay.
  std::vector<QueueJson> snapshot(int64_t now_ms, const std::string& name, size_t max_bytes = kMaxKeptBytes) const;
};

// Record constructors. `key` may be null.
struct UsedKey {
  std::string key;
  uint32_t request = 0;
};
QueueJson start_record(const std::string& name, const QueueState& state);
// `next_flush`: id of the next flush, which every intact record after a damaged one restores; 0: omitted.
QueueJson add_record(const std::vector<QueueItem>& items, int64_t now_ms, const UsedKey* key, const QueueJson& answer,
                     uint64_t next_flush = 0);
// `taken`: number of waiting items in the flush. `id` 0: omitted, as in journals of older versions.
QueueJson flush_record(size_t taken, const Flush& flush, const UsedKey* key, const QueueJson& answer, uint64_t id = 0);
QueueJson key_record(const UsedKey& key, int64_t now_ms, const QueueJson& answer);
QueueJson acknowledge_record(uint64_t flush);

std::string text_of(const QueueJson& json);          // one line; invalid UTF-8 is replaced
QueueJson parse_record(const std::string& payload);  // throws bad_data

}  // namespace brim::serve
