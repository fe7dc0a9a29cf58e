// SPDX-License-Identifier: Apache-2.0
#include "serve/queue_state.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace brim::serve {
namespace {

constexpr uint64_t kVersion = 1;
constexpr int kMostDepth = 64;  // of an item; requests are held to less

uint64_t whole(const QueueJson& number) {
  if (!number.is_number_integer() || (!number.is_number_unsigned() && number.get<int64_t>() < 0))
    fail(ErrorCode::bad_data, "a number that is not whole, or below zero");
  return number.get<uint64_t>();
}

int64_t milliseconds(const QueueJson& number) { return static_cast<int64_t>(whole(number) & INT64_MAX); }

QueueJson to_json(const QueueItem& item) {
  QueueJson json = {{"text", item.text}, {"item", item.item}};
  if (!item.source.empty()) json["source"] = item.source;
  return json;
}

QueueItem item_from(const QueueJson& json) {
  QueueItem item{json.at("text").get<std::string>(), json.value("source", ""), json.at("item")};
  if (!item.item.is_object()) fail(ErrorCode::bad_data, "an item that is no object");
  return item;
}

void add_key(QueueJson& record, const UsedKey* key, const QueueJson& answer) {
  if (key == nullptr) return;
  record["key"] = key->key;
  record["request"] = key->request;
  record["answer"] = answer;
}

// The answer a record carries under a key.
void keep_key(QueueState& state, const QueueJson& record, int64_t done_ms, uint64_t flush, int status) {
  if (!record.contains("key")) return;
  state.keys[record.at("key").get<std::string>()] = {
      static_cast<uint32_t>(whole(record.at("request"))), done_ms, flush,
      record.contains("status") ? static_cast<int>(whole(record.at("status")) % 1000) : status, record.at("answer")};
}

void apply_add(QueueState& state, const QueueJson& record) {
  const int64_t ms = milliseconds(record.at("ms"));
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

void apply_flush(QueueState& state, const QueueJson& record) {
  const uint64_t taken = whole(record.at("taken"));
  if (taken > state.waiting.size())
    fail(ErrorCode::bad_data, "a flush of {} items where {} wait", taken, state.waiting.size());
  Flush flush;
  flush.done_ms = milliseconds(record.at("ms"));
  flush.delivered = record.at("delivered").get<bool>();
  for (const QueueJson& json : record.at("items")) flush.items.push_back(item_from(json));
  for (const QueueJson& json : record.at("results")) flush.results.push_back(json);
  if (flush.items.size() != flush.results.size()) fail(ErrorCode::bad_data, "a flush with too few results");
  const uint64_t id = record.contains("id") ? whole(record.at("id")) : state.next_flush;
  state.next_flush = std::max(state.next_flush, id + 1);
  state.waiting.erase(state.waiting.begin(), state.waiting.begin() + static_cast<std::ptrdiff_t>(taken));
  keep_key(state, record, flush.done_ms, id, 200);
  for (size_t i = 0; i < flush.items.size(); ++i) state.flushed[sameness_of(flush.items[i])] = {id, i};
  forget_flush(state, id);
  if (!flush.delivered) ++state.unseen;
  state.flushes[id] = std::move(flush);
}

}  // namespace

std::string text_of(const QueueJson& json) { return json.dump(-1, ' ', false, QueueJson::error_handler_t::replace); }

QueueJson parse_record(const std::string& payload) {
  try {
    return QueueJson::parse(payload, [](int depth, QueueJson::parse_event_t, QueueJson&) {
      if (depth > kMostDepth) fail(ErrorCode::bad_data, "nested deeper than {}", kMostDepth);
      return true;
    });
  } catch (const QueueJson::exception& e) {
    fail(ErrorCode::bad_data, "not a record of a queue: {}", e.what());
  }
}

std::string sameness_of(const QueueItem& item) {
  const auto id = item.item.find("id");
  if (id != item.item.end() && (id->is_string() || id->is_number_integer())) return "id " + text_of(*id);
  return "content " + item.text + '\0' + text_of(item.item);
}

int64_t tokens_of(const QueueItem& item) { return static_cast<int64_t>(item.text.size() / 4 + 2); }

size_t bytes_of(const QueueItem& item) { return item.text.size() + text_of(item.item).size(); }

void QueueState::apply(const QueueJson& record) {
  try {
    const std::string kind = record.at("record").get<std::string>();
    if (kind == "start") {
      if (const uint64_t version = whole(record.at("version")); version != kVersion)
        fail(ErrorCode::bad_data, "version {}; this Brim reads version {}", version, kVersion);
      // Numbers that begin anew would be given twice.
      if (!waiting.empty() || !flushes.empty() || !keys.empty())
        fail(ErrorCode::bad_data, "a start behind other records");
      next_number = whole(record.at("next_number"));
      next_flush = whole(record.at("next_flush"));
    } else if (kind == "add") {
      apply_add(*this, record);
    } else if (kind == "flush") {
      apply_flush(*this, record);
    } else if (kind == "key") {
      keep_key(*this, record, milliseconds(record.at("ms")), record.contains("flush") ? whole(record.at("flush")) : 0,
               200);
    } else if (kind == "acknowledge") {
      const auto found = flushes.find(whole(record.at("flush")));
      if (found == flushes.end()) return;
      for (const QueueItem& item : found->second.items)
        if (const auto at = flushed.find(sameness_of(item)); at != flushed.end() && at->second.first == found->first)
          flushed.erase(at);
      forget_flush(*this, found->first);
    } else {
      fail(ErrorCode::bad_data, "a record of the unknown kind {}", kind);
    }
  } catch (const QueueJson::exception& e) {
    fail(ErrorCode::bad_data, "not a record of a queue: {}", e.what());
  }
}

QueueJson start_record(const std::string& name, const QueueState& state) {
  return {{"record", "start"},
          {"version", kVersion},
          {"queue", name},
          {"next_number", state.next_number},
          {"next_flush", state.next_flush}};
}

QueueJson add_record(const std::vector<QueueItem>& items, int64_t now_ms, const UsedKey* key, const QueueJson& answer) {
  QueueJson record = {{"record", "add"}, {"ms", now_ms}, {"items", QueueJson::array()}};
  for (const QueueItem& item : items) record["items"].push_back(to_json(item));
  add_key(record, key, answer);
  return record;
}

QueueJson flush_record(size_t taken, const Flush& flush, const UsedKey* key, const QueueJson& answer) {
  QueueJson record = {{"record", "flush"},        {"ms", flush.done_ms},
                      {"taken", taken},           {"delivered", flush.delivered},
                      {"results", flush.results}, {"items", QueueJson::array()}};
  for (const QueueItem& item : flush.items) record["items"].push_back(to_json(item));
  add_key(record, key, answer);
  return record;
}

QueueJson key_record(const UsedKey& key, int64_t now_ms, const QueueJson& answer) {
  QueueJson record = {{"record", "key"}, {"ms", now_ms}};
  add_key(record, &key, answer);
  return record;
}

QueueJson acknowledge_record(uint64_t flush) { return {{"record", "acknowledge"}, {"flush", flush}}; }

std::vector<QueueJson> QueueState::snapshot(int64_t now_ms, const std::string& name, size_t most_bytes) const {
  // Numbers go up again as the waiting items are added.
  QueueState before = {};
  before.next_number = next_number - waiting.size();
  before.next_flush = next_flush;
  std::vector<QueueJson> records = {start_record(name, before)};
  size_t delivered = 0, bytes = 0;
  std::vector<QueueJson> newest_first;
  for (auto it = flushes.rbegin(); it != flushes.rend(); ++it) {
    QueueJson record = flush_record(0, it->second, nullptr, {});
    record["id"] = it->first;
    if (it->second.delivered) {
      delivered += it->second.results.size();
      bytes += text_of(record).size();
      if (delivered > kMostKept || bytes > most_bytes || now_ms - it->second.done_ms > kKeepMs) continue;
    }
    newest_first.push_back(std::move(record));
  }
  std::move(newest_first.rbegin(), newest_first.rend(), std::back_inserter(records));
  std::vector<const std::pair<const std::string, KeyedAnswer>*> recent;
  for (const auto& entry : keys)
    if (now_ms - entry.second.done_ms <= kKeepMs) recent.push_back(&entry);
  std::stable_sort(recent.begin(), recent.end(),
                   [](const auto* a, const auto* b) { return a->second.done_ms > b->second.done_ms; });
  recent.resize(std::min(recent.size(), kMostKept));
  bytes = 0;
  for (const auto* entry : recent) {
    QueueJson record = key_record({entry->first, entry->second.request}, entry->second.done_ms, entry->second.body);
    if (bytes += text_of(record).size(); bytes > most_bytes) break;
    record["flush"] = entry->second.flush;
    record["status"] = entry->second.status;
    records.push_back(std::move(record));
  }
  for (const WaitingItem& item : waiting) records.push_back(add_record({item}, item.queued_ms, nullptr, {}));
  return records;
}

}  // namespace brim::serve
