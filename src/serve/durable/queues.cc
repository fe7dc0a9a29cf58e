// SPDX-License-Identifier: Apache-2.0
#include "serve/durable/queues.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "engine/zero_shot.h"
#include "serve/answers.h"
#include "serve/durable/queue_repair.h"
#include "serve/zero_shot.h"

namespace brim::serve {
namespace {

constexpr size_t kMaxItems = 10'000;               // per request
constexpr size_t kMaxUnseen = 10'000;              // flushes by age that no client has fetched
constexpr int64_t kMaxTokens = 16 << 20;           // waiting tokens, regardless of the rules
constexpr size_t kMaxBytes = size_t{64} << 20;     // waiting bytes; also bytes of earlier results in one response
constexpr size_t kCompactBytes = size_t{1} << 20;  // smaller journals are not compacted
constexpr int64_t kRetryMs = 5000;

uint32_t request_checksum(const QueueJson& request, bool scoring) {
  const std::string text = (scoring ? "score" : "flush") + text_of(request);
  return static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size()));
}

// The shortest decimal that parses to the same float, as other routes write it.
double plain_number(float value) { return std::stod(fmt::format("{}", value)); }

QueueJson to_json(const std::vector<Entity>& entities) {
  QueueJson list = QueueJson::array();
  for (const Entity& e : entities)
    list.push_back({{"entity_group", e.group},
                    {"score", plain_number(e.score)},
                    {"word", e.word},
                    {"start", e.start},
                    {"end", e.end}});
  return list;
}

std::string source_in(const QueueJson& object) {
  const auto found = object.find("source");
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// Parses a client's {"text","item","source"}, or a bare item if allowed. The source is next to the text, else in the
// item, else that of the request.
QueueItem read_item(const QueueJson& json, const std::string& source, bool scoring, bool& has_text) {
  if (!json.is_object()) fail(ErrorCode::bad_data, "an entry of `items` must be an object");
  QueueItem item;
  const bool wrapped = scoring || (json.contains("item") && json.at("item").is_object());
  const auto text = json.find("text");
  has_text = text != json.end() && text->is_string();
  if (has_text) item.text = text->get<std::string>();
  if (scoring && !has_text) fail(ErrorCode::bad_data, "`text` must be a string");
  if (scoring && !json.contains("item"))
    item.item = {{"text", item.text}};  // lets the client identify the result
  else
    item.item = wrapped ? json.at("item") : json;
  if (!item.item.is_object()) fail(ErrorCode::bad_data, "`item` must be an object");
  item.source = source_in(json);
  if (item.source.empty()) item.source = source_in(item.item);
  if (item.source.empty()) item.source = source;
  return item;
}

// Labels of a request, for all its items. Throws bad_data if they are invalid.
std::optional<ZeroShot> labels_in(const QueueJson& request, size_t items) {
  nlohmann::json parameters = nlohmann::json::object();
  for (const char* key : {"candidate_labels", "hypothesis_template", "multi_label"})
    if (request.contains(key)) parameters[key] = nlohmann::json(request.at(key));
  try {
    auto zero_shot = zero_shot_of(parameters);
    if (!zero_shot) return zero_shot;
    limit_pairs(label_cost(*zero_shot), items, items * zero_shot->labels.size());
    engine::check_zero_shot(*zero_shot, {.labels = "candidate_labels", .pattern = "hypothesis_template"});
    return zero_shot;
  } catch (const Refusal& refusal) {
    fail(ErrorCode::bad_data, "{}", refusal.message);
  } catch (const Error& error) {
    fail(ErrorCode::bad_data, "{}", error.problem());
  }
}

}  // namespace

// Makes other calls with the same key wait until this one is answered.
class Queue::KeyInFlight {
 public:
  KeyInFlight(Queue& queue, std::unique_lock<std::mutex>& lock, const ParsedRequest& parsed)
      : queue_(queue), lock_(lock), key_(parsed.keyed ? parsed.key.key : "") {
    if (!key_.empty()) queue_.keys_in_flight_.insert(key_);
  }
  ~KeyInFlight() {
    if (key_.empty()) return;
    if (!lock_.owns_lock()) lock_.lock();
    queue_.keys_in_flight_.erase(key_);
    queue_.changed_.notify_all();
  }
  KeyInFlight(const KeyInFlight&) = delete;
  KeyInFlight& operator=(const KeyInFlight&) = delete;

 private:
  Queue& queue_;
  std::unique_lock<std::mutex>& lock_;
  std::string key_;
};

Queue::Queue(QueueRules rules, std::filesystem::path file, QueueScorer& scorer, Clock clock)
    : rules_(std::move(rules)), file_(std::move(file)), scorer_(scorer), clock_(std::move(clock)) {
  open();
}

void Queue::open() {
  auto journal = std::make_unique<QueueJournal>(file_, text_of(start_record(rules_.name, {})));
  QueueState state;
  const int64_t now = clock_.unix_ms(), steady = clock_.steady_ms();
  try {
    state = replay_queue(journal->opened(), journal->damage(), now);
  } catch (const Error& e) {
    fail(e.code(), "{}: {}", file_.string(), e.what());
  }
  // A queue time in the future means that the clock was set back.
  for (WaitingItem& item : state.waiting) item.steady_ms = steady - std::max<int64_t>(0, now - item.queued_ms);
  if (const size_t damaged = count_damaged(journal->damage()); damaged > 0) {
    log_warning("{}: {}", file_.string(), format_count(static_cast<int64_t>(damaged), "damaged record"));
    damaged_ = std::max(damaged_, damaged);
  }
  // The next opening does not see this damage, so record that these ids are used.
  if (journal->damage_removed() && state.next_flush > 1)
    journal->commit(journal->append(text_of(acknowledge_record(state.next_flush - 1))));
  journal->forget_opened();
  last_ticket_ = 0;
  durable_flush_ = state.next_flush - 1;
  compacted_bytes_ = journal->bytes();
  journal_ = std::move(journal);
  state_ = std::move(state);
  fault_.clear();
  publish_status();
}

// After a failed write, reopens the queue from disk, at most every kRetryMs.
void Queue::require_open(std::unique_lock<std::mutex>& lock) {
  if (fault_.empty()) return;
  if (clock_.steady_ms() < retry_ms_) fail(ErrorCode::cannot_write, "queue {} is read-only: {}", rules_.name, fault_);
  changed_.wait(lock, [&] { return committing_ == 0 && !flushing_; });
  if (fault_.empty()) return;  // another call has reopened it
  try {
    journal_.reset();
    open();
  } catch (const Error& e) {
    become_read_only(e.what());
    throw;
  }
}

void Queue::become_read_only(const std::string& fault) {
  fault_ = fault;
  retry_ms_ = clock_.steady_ms() + kRetryMs;
  publish_status();
}

// Waits until no flush runs and the queue is writable.
void Queue::wait_until_idle(std::unique_lock<std::mutex>& lock) {
  for (;;) {
    require_open(lock);
    if (!flushing_) return;
    changed_.wait(lock);
  }
}

Queue::ParsedRequest Queue::read_request(const QueueJson& request, const std::string& key, bool scoring) const {
  ParsedRequest parsed;
  if (!request.is_object()) fail(ErrorCode::bad_data, "the request must be an object");
  const std::string source = source_in(request);
  const auto add = [&](const QueueJson& json) {
    RequestItem entry;
    entry.item = read_item(json, source, scoring, entry.has_text);
    parsed.items.push_back(std::move(entry));
  };
  const auto items = request.find("items");
  if (items != request.end() && !items->is_null()) {
    if (!items->is_array()) fail(ErrorCode::bad_data, "`items` must be a list");
    if (items->size() > kMaxItems)
      fail(ErrorCode::bad_data, "`items` has {} entries, at most {} in one request", items->size(), kMaxItems);
    for (const QueueJson& json : *items) add(json);
  } else if (scoring) {
    add(request);
  }
  if (const auto zero_shot = labels_in(request, parsed.items.size()))
    for (RequestItem& entry : parsed.items) entry.item.zero_shot = zero_shot;
  if (scoring && parsed.items.empty()) fail(ErrorCode::bad_data, "`items` cannot be empty");
  parsed.keyed = !key.empty();
  if (key.size() > 256) fail(ErrorCode::bad_data, "idempotency key longer than 256 characters");
  parsed.key = {key, request_checksum(request, scoring)};
  return parsed;
}

QueueAnswer Queue::answer_of(const KeyedAnswer& keyed) const {
  QueueAnswer answer{.status = keyed.status, .body = keyed.body};
  if (keyed.flush == 0 || answer.body.contains("items")) return answer;
  const auto found = state_.flushes.find(keyed.flush);
  answer.body["items"] = found == state_.flushes.end() ? std::vector<QueueJson>{} : found->second.results;
  if (found == state_.flushes.end()) answer.body["acknowledged"] = true;
  return answer;
}

std::optional<QueueAnswer> Queue::stored_answer(std::unique_lock<std::mutex>& lock, const ParsedRequest& parsed) {
  require_open(lock);
  if (!parsed.keyed) return std::nullopt;
  while (keys_in_flight_.contains(parsed.key.key)) {
    changed_.wait(lock);
    require_open(lock);  // an answer that was not written to disk does not count
  }
  const auto found = state_.keys.find(parsed.key.key);
  if (found == state_.keys.end()) return std::nullopt;
  if (found->second.request != parsed.key.request)
    fail(ErrorCode::bad_data, "idempotency key {} was already used for another request", parsed.key.key);
  return answer_of(found->second);
}

bool Queue::fills_batch(const ParsedRequest& parsed) const {
  const size_t waiting = state_.waiting.size() - taken_;
  if (waiting + parsed.items.size() >= static_cast<size_t>(rules_.flush_size)) return true;
  int64_t tokens = 0;
  size_t bytes = 0;
  for (size_t i = taken_; i < state_.waiting.size(); ++i) {
    tokens += tokens_of(state_.waiting[i]);
    bytes += state_.waiting[i].bytes;
  }
  for (const RequestItem& entry : parsed.items) {
    tokens += tokens_of(entry.item);
    bytes += bytes_of(entry.item);
  }
  if (bytes >= kMaxBytes) return true;  // a flush is a single record
  return tokens >= (rules_.flush_tokens > 0 ? std::min(rules_.flush_tokens, kMaxTokens) : kMaxTokens);
}

uint64_t Queue::record(const QueueJson& json) {
  last_ticket_ = journal_->append(text_of(json));
  const size_t before = state_.waiting.size();
  state_.apply(json);
  for (size_t i = before; i < state_.waiting.size(); ++i) state_.waiting[i].steady_ms = clock_.steady_ms();
  publish_status();
  return last_ticket_;
}

// Releases the lock while waiting, so that concurrent calls share the next fdatasync.
void Queue::commit(std::unique_lock<std::mutex>& lock, uint64_t ticket) {
  ++committing_;
  QueueJournal& journal = *journal_;
  lock.unlock();
  std::string failure;
  try {
    journal.commit(ticket);
  } catch (const Error& e) {
    failure = e.what();
  }
  lock.lock();
  --committing_;
  changed_.notify_all();
  if (failure.empty()) return;
  become_read_only(failure);
  fail(ErrorCode::cannot_write, "queue {} is read-only: {}", rules_.name, failure);
}

void Queue::compact_if_large() {
  const size_t bytes = journal_->bytes();
  if (bytes < kCompactBytes || bytes < 2 * compacted_bytes_) return;
  std::vector<std::string> records;
  QueueState kept;
  for (const QueueJson& json : state_.snapshot(clock_.unix_ms(), rules_.name)) {
    records.push_back(text_of(json));
    kept.apply(json);
  }
  try {
    journal_->rewrite(records);
    for (size_t i = 0; i < kept.waiting.size(); ++i) kept.waiting[i].steady_ms = state_.waiting[i].steady_ms;
    state_ = std::move(kept);
  } catch (const Error& e) {
    // Answered calls are on disk in either case. The old file stays in use and is compacted at twice its size.
    log_warning("queue {}: cannot compact the journal: {}", rules_.name, e.what());
    if (journal_->failed()) become_read_only(e.what());
  }
  compacted_bytes_ = journal_->bytes();
  publish_status();
}

QueueAnswer Queue::queue(std::unique_lock<std::mutex>& lock, const ParsedRequest& parsed) {
  const int64_t now = clock_.steady_ms();
  std::vector<QueueItem> items;
  for (const RequestItem& entry : parsed.items) items.push_back(entry.item);
  QueueJson body = {
      {"status", "queued"}, {"queued", state_.waiting.size() - taken_ + items.size()}, {"flush_in_ms", nullptr}};
  if (rules_.flush_age_ms > 0) {
    const int64_t oldest = state_.waiting.size() > taken_ ? state_.waiting[taken_].steady_ms : now;
    body["flush_in_ms"] = std::max<int64_t>(0, oldest + rules_.flush_age_ms - now);
  }
  const UsedKey* key = parsed.keyed ? &parsed.key : nullptr;
  commit(lock, record(add_record(items, clock_.unix_ms(), key, body, state_.next_flush)));
  return {.status = 202, .body = std::move(body), .texts = items.size()};
}

QueueAnswer Queue::score_or_queue(const QueueJson& request, const std::string& key) {
  const ParsedRequest parsed = read_request(request, key, true);
  std::unique_lock lock(mutex_);
  if (auto known = stored_answer(lock, parsed)) return std::move(*known);
  const KeyInFlight in_flight(*this, lock, parsed);
  for (;;) {
    require_open(lock);
    if (!rules_.immediate && !fills_batch(parsed)) return queue(lock, parsed);
    if (!flushing_) return run_flush(lock, parsed, true, true);
    changed_.wait(lock);  // the running flush may make room
  }
}

QueueAnswer Queue::flush_and_apply(const QueueJson& request, const std::string& key) {
  const ParsedRequest parsed = read_request(request, key, false);
  std::unique_lock lock(mutex_);
  if (auto known = stored_answer(lock, parsed)) return std::move(*known);
  const KeyInFlight in_flight(*this, lock, parsed);
  wait_until_idle(lock);
  return run_flush(lock, parsed, false, true);
}

QueueJson Queue::apply_score(const QueueItem& item, const QueueScore& score) const {
  QueueJson result = item.item;
  const ApplyFields& fields = rules_.apply;
  for (const std::string* field : {&fields.compound, &fields.label, &fields.score, &fields.entities, &fields.error,
                                   &fields.reason, &fields.instead_of})
    if (!field->empty()) result.erase(*field);  // from an earlier scoring
  if (!score.error.empty()) {
    if (!fields.error.empty()) result[fields.error] = score.error;
    return result;
  }
  if (!fields.compound.empty() && score.compound) result[fields.compound] = plain_number(*score.compound);
  if (score.entities) {
    if (!fields.entities.empty()) result[fields.entities] = to_json(*score.entities);
  } else {
    if (!fields.label.empty()) result[fields.label] = score.label;
    if (!fields.score.empty()) result[fields.score] = plain_number(score.score);
  }
  result["model"] = score.model;
  if (!fields.reason.empty()) result[fields.reason] = score.reason;
  if (!fields.instead_of.empty() && !score.instead_of.empty()) result[fields.instead_of] = score.instead_of;
  return result;
}

// The kept result of an item that was flushed before with the same text. Adds its size to `bytes`.
std::optional<QueueJson> Queue::earlier_result(const RequestItem& entry, size_t& bytes) const {
  const auto previous = state_.flushed.find(identity_of(entry.item));
  if (previous == state_.flushed.end()) return std::nullopt;
  const auto [id, index] = previous->second;
  const Flush& flush = state_.flushes.at(id);
  if (entry.has_text && flush.items[index].text != entry.item.text) return std::nullopt;
  if (entry.item.zero_shot && labels_text(flush.items[index]) != labels_text(entry.item)) return std::nullopt;
  if (bytes += text_of(flush.results[index]).size(); bytes > kMaxBytes)
    fail(ErrorCode::bad_data, "the results of already flushed items exceed {} bytes", kMaxBytes);
  return flush.results[index];
}

Queue::Batch Queue::collect(const ParsedRequest& parsed, bool scoring) const {
  Batch batch;
  std::unordered_map<std::string, std::vector<const QueueItem*>> waiting_items;
  for (const WaitingItem& item : state_.waiting) {
    batch.flush.items.push_back(item);
    if (!parsed.items.empty()) waiting_items[identity_of(item)].push_back(&item);
  }
  batch.taken = batch.flush.items.size();
  size_t reused_bytes = 0;
  for (const RequestItem& entry : parsed.items) {
    if (!scoring) {
      const auto waiting = waiting_items.find(identity_of(entry.item));
      if (waiting != waiting_items.end() && std::ranges::any_of(waiting->second, [&](const QueueItem* item) {
            return (!entry.has_text || item->text == entry.item.text) &&
                   (!entry.item.zero_shot || labels_text(*item) == labels_text(entry.item));
          }))
        continue;
      if (auto result = earlier_result(entry, reused_bytes)) {
        batch.others.emplace_back(std::move(result));
        batch.reused = true;
        continue;
      }
    }
    if (entry.has_text) {
      batch.others.emplace_back();
      batch.flush.items.push_back(entry.item);
    } else {
      QueueScore missing;
      missing.error = "missing `text`, and no matching item is waiting";
      batch.others.emplace_back(apply_score(entry.item, missing));
      batch.reused = true;
    }
  }
  return batch;
}

void Queue::end_flush() {
  flushing_ = false;
  taken_ = 0;
  changed_.notify_all();
}

void Queue::score(std::unique_lock<std::mutex>& lock, Batch& batch) {
  if (batch.flush.items.empty()) return;
  const std::vector<QueueItem>& items = batch.flush.items;
  std::vector<QueueScore> scores;
  lock.unlock();
  try {
    scores = scorer_.score(rules_, items);
    BRIM_CHECK(scores.size() == items.size(), "{} scores for {} items", scores.size(), items.size());
  } catch (...) {
    lock.lock();
    throw;
  }
  lock.lock();
  for (size_t i = 0; i < scores.size(); ++i) {
    batch.flush.results.push_back(apply_score(items[i], scores[i]));
    batch.tokens += scores[i].tokens;
    batch.pairs += scores[i].pairs;
  }
  batch.model = scores.back().model;
}

// Returns the record's ticket; empty if there is nothing to record.
std::optional<uint64_t> Queue::record_flush(const ParsedRequest& parsed, const Batch& batch,
                                            const QueueAnswer& answer) {
  if (!fault_.empty()) fail(ErrorCode::cannot_write, "queue {} is read-only: {}", rules_.name, fault_);
  const bool empty = batch.flush.items.empty();
  const UsedKey* key = parsed.keyed ? &parsed.key : nullptr;
  QueueJson kept = QueueJson::object();
  // The flush already contains the items, unless the answer includes results of other flushes.
  for (const auto& [name, value] : answer.body.items())
    if (key != nullptr && (name != "items" || batch.reused || empty)) kept[name] = value;
  if (!empty) return record(flush_record(batch.taken, batch.flush, key, kept, state_.next_flush));
  if (key != nullptr) return record(key_record(*key, batch.flush.done_ms, kept));
  return std::nullopt;
}

QueueAnswer Queue::run_flush(std::unique_lock<std::mutex>& lock, const ParsedRequest& parsed, bool scoring,
                             bool delivered) {
  Batch batch = collect(parsed, scoring);
  batch.flush.delivered = delivered;
  flushing_ = true;
  taken_ = batch.taken;
  QueueAnswer answer;
  std::optional<uint64_t> ticket, id;
  try {
    score(lock, batch);
    batch.flush.done_ms = clock_.unix_ms();
    if (!batch.flush.items.empty()) id = state_.next_flush;
    if (scoring) answer.body["status"] = "scored";
    answer.body["flush_id"] = id ? QueueJson(*id) : QueueJson();
    answer.texts = batch.flush.items.size();
    answer.tokens = batch.tokens;
    answer.pairs = batch.pairs;
    answer.model = batch.model;
    const std::vector<QueueJson>& results = batch.flush.results;
    std::vector<QueueJson> items(results.begin(), results.begin() + static_cast<std::ptrdiff_t>(batch.taken));
    size_t next = batch.taken;
    for (std::optional<QueueJson>& other : batch.others) items.push_back(other ? std::move(*other) : results[next++]);
    answer.body["items"] = std::move(items);
    ticket = record_flush(parsed, batch, answer);
  } catch (...) {
    end_flush();
    throw;
  }
  end_flush();
  // Even without its own record, the answer may include results of a flush that is being written.
  commit(lock, ticket.value_or(last_ticket_));
  if (id) durable_flush_ = std::max(durable_flush_, *id);
  publish_status();
  compact_if_large();
  return answer;
}

bool Queue::flush_by_age() {
  std::unique_lock lock(mutex_);
  const auto due = due_at();
  if (!due || clock_.steady_ms() < *due) return false;
  try {
    wait_until_idle(lock);
    if (state_.waiting.empty() || clock_.steady_ms() < state_.waiting.front().steady_ms + rules_.flush_age_ms)
      return false;
    if (state_.unseen >= kMaxUnseen)
      fail(ErrorCode::busy, "{} flushes have not been fetched and acknowledged", state_.unseen);
    run_flush(lock, {}, false, false);
    age_fault_.clear();
    publish_status();
    return true;
  } catch (const Error& e) {
    if (!lock.owns_lock()) lock.lock();
    age_fault_ = e.what();
    age_retry_ms_ = clock_.steady_ms() + kRetryMs;
    publish_status();
    throw;
  }
}

std::optional<int64_t> Queue::due_at() const {
  if (rules_.flush_age_ms == 0 || state_.waiting.empty()) return std::nullopt;
  return std::max(state_.waiting.front().steady_ms + rules_.flush_age_ms, age_retry_ms_);
}

std::optional<int64_t> Queue::due_ms() const {
  const std::lock_guard lock(mutex_);
  return due_at();
}

void Queue::publish_status() {
  Status now{.waiting = state_.waiting.size(),
             .flushes = state_.flushes.size(),
             .unseen = state_.unseen,
             .journal_bytes = journal_ ? journal_->bytes() : 0,
             .oldest_ms = state_.waiting.empty() ? 0 : state_.waiting.front().steady_ms,
             .last_flush = durable_flush_,
             .damaged = damaged_,
             .fault = fault_,
             .age_fault = age_fault_};
  const std::lock_guard lock(status_mutex_);
  status_ = std::move(now);
}

Queue::Status Queue::status() const {
  const std::lock_guard lock(status_mutex_);
  return status_;
}

QueueJson Queue::describe() const {
  const Status now = status();
  QueueJson oldest = nullptr;
  if (now.waiting > 0) oldest = std::max<int64_t>(0, clock_.steady_ms() - now.oldest_ms);
  return {{"queue", rules_.name},
          {"model", rules_.model},
          {"queued", now.waiting},
          {"oldest_ms", oldest},
          {"flush_size", rules_.flush_size},
          {"flush_age_ms", rules_.flush_age_ms},
          {"flushes", now.flushes},
          {"unseen_flushes", now.unseen},
          {"last_flush_id", now.last_flush == 0 ? QueueJson() : QueueJson(now.last_flush)},
          {"journal_bytes", now.journal_bytes},
          {"read_only", !now.fault.empty()}};
}

QueueJson Queue::flushes(uint64_t after) const {
  const std::lock_guard lock(mutex_);
  QueueJson all = QueueJson::array();
  for (auto it = state_.flushes.upper_bound(after); it != state_.flushes.end() && it->first <= durable_flush_; ++it)
    all.push_back({{"flush_id", it->first},
                   {"done_ms", it->second.done_ms},
                   {"items", it->second.results.size()},
                   {"delivered", it->second.delivered}});
  return {{"flushes", all}};
}

std::optional<QueueJson> Queue::flush(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = state_.flushes.find(id);
  if (found == state_.flushes.end() || id > durable_flush_) return std::nullopt;
  return QueueJson{{"flush_id", id}, {"done_ms", found->second.done_ms}, {"items", found->second.results}};
}

bool Queue::acknowledge(uint64_t id) {
  std::unique_lock lock(mutex_);
  require_open(lock);
  if (!state_.flushes.contains(id) || id > durable_flush_) return false;
  commit(lock, record(acknowledge_record(id)));
  compact_if_large();
  return true;
}

std::string Queue::fault() const {
  const Status now = status();
  if (!now.fault.empty()) return fmt::format("queue {} is read-only: {}", rules_.name, now.fault);
  if (!now.age_fault.empty()) return fmt::format("cannot flush queue {}: {}", rules_.name, now.age_fault);
  return {};
}

std::string Queue::damage() const {
  const size_t records = status().damaged;
  if (records == 0) return {};
  return fmt::format("queue {}: {} in its journal; stop the server and run `brim queue repair`", rules_.name,
                     format_count(static_cast<int64_t>(records), "damaged record"));
}

size_t Queue::size() const { return status().waiting; }

}  // namespace brim::serve
