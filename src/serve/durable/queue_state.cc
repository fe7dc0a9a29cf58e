// SPDX-License-Identifier: Apache-2.0
#include "serve/durable/queue_state.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace brim::serve {
namespace {

constexpr uint64_t kVersion = 1;
constexpr int kMaxDepth = 64;  // nesting of an item; requests have a lower limit

uint64_t unsigned_from(const QueueJson& number) {
  if (!number.is_number_integer() || (!number.is_number_unsigned() && number.get<int64_t>() < 0))
    fail(ErrorCode::bad_data, "not a non-negative integer");
  return number.get<uint64_t>();
}

int64_t milliseconds(const QueueJson& number) { return static_cast<int64_t>(unsigned_from(number) & INT64_MAX); }

QueueJson to_json(const ZeroShot& zero_shot) {
  return {{"labels", zero_shot.labels}, {"template", zero_shot.text_template}, {"multi_label", zero_shot.multi_label}};
}

QueueJson to_json(const QueueItem& item) {
  QueueJson json = {{"text", item.text}, {"item", item.item}};
  if (!item.source.empty()) json["source"] = item.source;
  if (item.zero_shot) json["zero_shot"] = to_json(*item.zero_shot);
  return json;
}

QueueItem item_from(const QueueJson& json) {
  QueueItem item{json.at("text").get<std::string>(), json.value("source", ""), json.at("item")};
  if (!item.item.is_object()) fail(ErrorCode::bad_data, "item is not an object");
  if (const auto found = json.find("zero_shot"); found != json.end())
    item.zero_shot = {found->at("labels").get<std::vector<std::string>>(), found->at("template").get<std::string>(),
                      found->at("multi_label").get<bool>()};
  return item;
}

void add_key(QueueJson& record, const UsedKey* key, const QueueJson& answer) {
  if (key == nullptr) return;
  record["key"] = key->key;
  record["request"] = key->request;
  record["answer"] = answer;
}

// Stores the response that a record carries under an idempotency key.
void keep_key(QueueState& state, const QueueJson& record, int64_t done_ms, uint64_t flush, int status) {
  if (!record.contains("key")) return;
  state.keys[record.at("key").get<std::string>()] = {
      static_cast<uint32_t>(unsigned_from(record.at("request"))), done_ms, flush,
      record.contains("status") ? static_cast<int>(unsigned_from(record.at("status")) % 1000) : status,
      record.at("answer")};
}

void know_flush_ids(QueueState& state) {
  state.flush_ids_known = true;
  state.maybe_flushes = 0;
}

void apply_add(QueueState& state, const QueueJson& record) {
  const int64_t ms = milliseconds(record.at("ms"));
  if (record.contains("next_flush")) {
    state.next_flush = std::max(state.next_flush, unsigned_from(record.at("next_flush")) & INT64_MAX);
    know_flush_ids(state);
  }
  for (const QueueJson& json : record.at("items")) {
    WaitingItem item{item_from(json), state.next_number++, ms};
    item.bytes = bytes_of(item);
    state.waiting.push_back(std::move(item));
  }
  keep_key(state, record, ms, 0, 202);
}

void forget_flush(QueueState& state, uint64_t id) {
  const auto found = state.flushes.find(id);
  if (found == state.flushes.end()) return;
  if (!found->second.delivered) --state.unseen;
  state.flushes.erase(found);
}

std::string content_of(const QueueItem& item) {
  return item.text + '\0' + item.source + '\0' + text_of(item.item) + '\0' + labels_text(item);
}

void take_from_waiting(QueueState& state, const Flush& flush, uint64_t taken) {
  auto& waiting = state.waiting;
  if (!state.damaged) {
    if (taken > waiting.size())
      fail(ErrorCode::bad_data, "flush of {} items, but {} are waiting", taken, waiting.size());
    waiting.erase(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(taken));
    return;
  }
  // Taken items may have been added by a damaged record, and waiting ones taken by one.
  std::unordered_map<std::string, size_t> left;
  for (size_t i = 0; i < std::min<uint64_t>(taken, flush.items.size()); ++i) ++left[content_of(flush.items[i])];
  std::erase_if(waiting, [&](const WaitingItem& item) {
    const auto found = left.find(content_of(item));
    return found != left.end() && found->second > 0 && found->second-- > 0;
  });
}

uint64_t id_of_flush(const QueueState& state, const QueueJson& record) {
  if (record.contains("id")) return unsigned_from(record.at("id"));
  // Older versions number flushes by position, which is unreliable after damage.
  if (state.damaged && record.contains("answer") && record.at("answer").contains("flush_id")) {
    const uint64_t id = unsigned_from(record.at("answer").at("flush_id"));
    if (!state.flushes.contains(id)) return id;
  }
  return state.next_flush;
}

void apply_flush(QueueState& state, const QueueJson& record) {
  Flush flush;
  flush.done_ms = milliseconds(record.at("ms"));
  flush.delivered = record.at("delivered").get<bool>();
  for (const QueueJson& json : record.at("items")) flush.items.push_back(item_from(json));
  for (const QueueJson& json : record.at("results")) flush.results.push_back(json);
  if (flush.items.size() != flush.results.size())
    fail(ErrorCode::bad_data, "flush with different numbers of items and results");
  const uint64_t id = id_of_flush(state, record);
  take_from_waiting(state, flush, unsigned_from(record.at("taken")));
  state.next_flush = std::max(state.next_flush, id + 1);
  if (record.contains("id")) know_flush_ids(state);
  keep_key(state, record, flush.done_ms, id, 200);
  for (size_t i = 0; i < flush.items.size(); ++i) state.flushed[identity_of(flush.items[i])] = {id, i};
  forget_flush(state, id);
  if (!flush.delivered) ++state.unseen;
  state.flushes[id] = std::move(flush);
}

}  // namespace

std::string text_of(const QueueJson& json) { return json.dump(-1, ' ', false, QueueJson::error_handler_t::replace); }

QueueJson parse_record(const std::string& payload) {
  try {
    return QueueJson::parse(payload, [](int depth, QueueJson::parse_event_t, QueueJson&) {
      if (depth > kMaxDepth) fail(ErrorCode::bad_data, "nested deeper than {}", kMaxDepth);
      return true;
    });
  } catch (const QueueJson::exception& e) {
    fail(ErrorCode::bad_data, "invalid queue record: {}", e.what());
  }
}

std::string identity_of(const QueueItem& item) {
  const auto id = item.item.find("id");
  if (id != item.item.end() && (id->is_string() || id->is_number_integer())) return "id " + text_of(*id);
  return "content " + item.text + '\0' + text_of(item.item);
}

std::string labels_text(const QueueItem& item) { return item.zero_shot ? text_of(to_json(*item.zero_shot)) : ""; }

int64_t tokens_of(const QueueItem& item) {
  const auto passes = item.zero_shot ? static_cast<int64_t>(item.zero_shot->labels.size()) : 1;
  return passes * static_cast<int64_t>(item.text.size() / 4 + 2);
}

size_t bytes_of(const QueueItem& item) {
  return item.text.size() + text_of(item.item).size() + labels_text(item).size();
}

void QueueState::apply(const QueueJson& record) {
  try {
    const std::string kind = record.at("record").get<std::string>();
    if (kind == "start") {
      if (const uint64_t version = unsigned_from(record.at("version")); version != kVersion)
        fail(ErrorCode::bad_data, "unsupported version {} (expected {})", version, kVersion);
      // Restarting the counters would reuse ids.
      if (!waiting.empty() || !flushes.empty() || !keys.empty())
        fail(ErrorCode::bad_data, "start record after other records");
      next_number = unsigned_from(record.at("next_number"));
      next_flush = std::max(damaged ? next_flush : 0, unsigned_from(record.at("next_flush")));
      know_flush_ids(*this);
    } else if (kind == "add") {
      apply_add(*this, record);
    } else if (kind == "flush") {
      apply_flush(*this, record);
    } else if (kind == "key") {
      keep_key(*this, record, milliseconds(record.at("ms")),
               record.contains("flush") ? unsigned_from(record.at("flush")) : 0, 200);
    } else if (kind == "acknowledge") {
      const uint64_t id = unsigned_from(record.at("flush"));
      next_flush = std::max(next_flush, id + 1);
      const auto found = flushes.find(id);
      if (found == flushes.end()) return;
      for (const QueueItem& item : found->second.items)
        if (const auto entry = flushed.find(identity_of(item));
            entry != flushed.end() && entry->second.first == found->first)
          flushed.erase(entry);
      forget_flush(*this, found->first);
    } else {
      fail(ErrorCode::bad_data, "unknown record kind {}", kind);
    }
  } catch (const QueueJson::exception& e) {
    fail(ErrorCode::bad_data, "invalid queue record: {}", e.what());
  }
}

void QueueState::skip_damaged(std::string_view bytes, size_t records) {
  damaged = true;
  // The kind of most damaged records is still readable. Items may contain the same text, which only skips a few ids.
  const auto count = [&](const char* kind) {
    const std::string prefix = fmt::format("{{\"record\":\"{}\"", kind);
    size_t found = 0;
    for (size_t pos = bytes.find(prefix); pos != bytes.npos; pos = bytes.find(prefix, pos + 1)) ++found;
    return found;
  };
  const size_t flushes_found = count("flush");
  const size_t readable = flushes_found + count("start") + count("add") + count("key") + count("acknowledge");
  next_flush += flushes_found;
  maybe_flushes += records - std::min(records, readable);
}

void QueueState::end_replay(int64_t now_ms) {
  next_flush += maybe_flushes;
  if (damaged && !flush_ids_known)
    next_flush = std::max(next_flush, static_cast<uint64_t>(std::max<int64_t>(0, now_ms / 1000)));
  maybe_flushes = 0;
  damaged = false;  // records from now on are complete
}

QueueJson start_record(const std::string& name, const QueueState& state) {
  return {{"record", "start"},
          {"version", kVersion},
          {"queue", name},
          {"next_number", state.next_number},
          {"next_flush", state.next_flush}};
}

QueueJson add_record(const std::vector<QueueItem>& items, int64_t now_ms, const UsedKey* key, const QueueJson& answer,
                     uint64_t next_flush) {
  QueueJson record = {{"record", "add"}, {"ms", now_ms}, {"items", QueueJson::array()}};
  if (next_flush > 0) record["next_flush"] = next_flush;
  for (const QueueItem& item : items) record["items"].push_back(to_json(item));
  add_key(record, key, answer);
  return record;
}

QueueJson flush_record(size_t taken, const Flush& flush, const UsedKey* key, const QueueJson& answer, uint64_t id) {
  QueueJson record = {{"record", "flush"},        {"ms", flush.done_ms},
                      {"taken", taken},           {"delivered", flush.delivered},
                      {"results", flush.results}, {"items", QueueJson::array()}};
  for (const QueueItem& item : flush.items) record["items"].push_back(to_json(item));
  if (id > 0) record["id"] = id;
  add_key(record, key, answer);
  return record;
}

QueueJson key_record(const UsedKey& key, int64_t now_ms, const QueueJson& answer) {
  QueueJson record = {{"record", "key"}, {"ms", now_ms}};
  add_key(record, &key, answer);
  return record;
}

QueueJson acknowledge_record(uint64_t flush) { return {{"record", "acknowledge"}, {"flush", flush}}; }

std::vector<QueueJson> QueueState::snapshot(int64_t now_ms, const std::string& name, size_t max_bytes) const {
  // Replaying the waiting items increments next_number again.
  QueueState before = {};
  before.next_number = next_number - waiting.size();
  before.next_flush = next_flush;
  // Written twice: if nothing waits and all flushes are acknowledged, no other record has the counters.
  std::vector<QueueJson> records(2, start_record(name, before));
  size_t delivered = 0, bytes = 0;
  std::vector<QueueJson> newest_first;
  for (auto it = flushes.rbegin(); it != flushes.rend(); ++it) {
    QueueJson record = flush_record(0, it->second, nullptr, {}, it->first);
    record["id"] = it->first;  // also 0
    if (it->second.delivered) {
      delivered += it->second.results.size();
      bytes += text_of(record).size();
      if (delivered > kMaxKept || bytes > max_bytes || now_ms - it->second.done_ms > kKeepMs) continue;
    }
    newest_first.push_back(std::move(record));
  }
  std::move(newest_first.rbegin(), newest_first.rend(), std::back_inserter(records));
  std::vector<const std::pair<const std::string, KeyedAnswer>*> recent;
  for (const auto& entry : keys)
    if (now_ms - entry.second.done_ms <= kKeepMs) recent.push_back(&entry);
  std::stable_sort(recent.begin(), recent.end(),
                   [](const auto* a, const auto* b) { return a->second.done_ms > b->second.done_ms; });
  recent.resize(std::min(recent.size(), kMaxKept));
  bytes = 0;
  for (const auto* entry : recent) {
    QueueJson record = key_record({entry->first, entry->second.request}, entry->second.done_ms, entry->second.body);
    if (bytes += text_of(record).size(); bytes > max_bytes) break;
    record["flush"] = entry->second.flush;
    record["status"] = entry->second.status;
    records.push_back(std::move(record));
  }
  for (const WaitingItem& item : waiting)
    records.push_back(add_record({item}, item.queued_ms, nullptr, {}, next_flush));
  return records;
}

}  // namespace brim::serve
