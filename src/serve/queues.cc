// SPDX-License-Identifier: Apache-2.0
#include "serve/queues.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "serve/queue_repair.h"

namespace brim::serve {
namespace {

constexpr size_t kMostItems = 10'000;              // of one request
constexpr size_t kMostUnseen = 10'000;             // flushes by age that nobody has fetched
constexpr int64_t kMostTokens = 16 << 20;          // that wait, whatever the rules say
constexpr size_t kMostBytes = size_t{64} << 20;    // that wait; of earlier results in one answer
constexpr size_t kCompactBytes = size_t{1} << 20;  // a smaller journal is left alone
constexpr int64_t kRetryMs = 5000;

uint32_t request_checksum(const QueueJson& request, bool scoring) {
  const std::string text = (scoring ? "score" : "flush") + text_of(request);
  return static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size()));
}

// As other routes write it: the shortest that is the same float.
double plain_number(float value) { return std::stod(fmt::format("{}", value)); }

// A client's {"text","item","source"}, or where that is allowed an item by itself.
QueueItem read_item(const QueueJson& json, const std::string& source, bool scoring, bool& has_text) {
  if (!json.is_object()) fail(ErrorCode::bad_data, "an entry of `items` must be an object");
  QueueItem item;
  const bool wrapped = scoring || (json.contains("item") && json.at("item").is_object());
  const auto own_source = json.find("source");
  item.source =
      wrapped && own_source != json.end() && own_source->is_string() ? own_source->get<std::string>() : source;
  const auto text = json.find("text");
  has_text = text != json.end() && text->is_string();
  if (has_text) item.text = text->get<std::string>();
  if (scoring && !has_text) fail(ErrorCode::bad_data, "`text` must be a string");
  if (scoring && !json.contains("item"))
    item.item = {{"text", item.text}};  // so that it can be told what comes back
  else
    item.item = wrapped ? json.at("item") : json;
  if (!item.item.is_object()) fail(ErrorCode::bad_data, "`item` must be an object");
  return item;
}

}  // namespace

// Another call with the same key waits until this one is answered.
class Queue::KeyInFlight {
 public:
  KeyInFlight(Queue& queue, std::unique_lock<std::mutex>& lock, const Asked& asked)
      : queue_(queue), lock_(lock), key_(asked.keyed ? asked.key.key : "") {
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
  // An item from the future was queued before the clock was set back.
  for (WaitingItem& item : state.waiting) item.steady_ms = steady - std::max<int64_t>(0, now - item.queued_ms);
  if (const size_t damaged = count_damaged(journal->damage()); damaged > 0) {
    log_warning("{}: {}", file_.string(), format_count(static_cast<int64_t>(damaged), "damaged record"));
    damaged_ = std::max(damaged_, damaged);
  }
  // The next opening does not see this damage, so the file must tell it that these ids are used.
  if (journal->damage_removed() && state.next_flush > 1)
    journal->commit(journal->append(text_of(acknowledge_record(state.next_flush - 1))));
  journal->forget_opened();
  last_ticket_ = 0;
  durable_flush_ = state.next_flush - 1;
  compacted_bytes_ = journal->bytes();
  journal_ = std::move(journal);
  state_ = std::move(state);
  fault_.clear();
  show();
}

// After a failed write the queue is read again from the disk, at the earliest after kRetryMs.
void Queue::require_open(std::unique_lock<std::mutex>& lock) {
  if (fault_.empty()) return;
  if (clock_.steady_ms() < retry_ms_) fail(ErrorCode::cannot_write, "queue {} is read-only: {}", rules_.name, fault_);
  changed_.wait(lock, [&] { return committing_ == 0 && !flushing_; });
  if (fault_.empty()) return;  // another call was faster
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
  show();
}

// Until no flush runs and the queue can be written.
void Queue::await_turn(std::unique_lock<std::mutex>& lock) {
  for (;;) {
    require_open(lock);
    if (!flushing_) return;
    changed_.wait(lock);
  }
}

Queue::Asked Queue::read_request(const QueueJson& request, const std::string& key, bool scoring) const {
  Asked asked;
  if (!request.is_object()) fail(ErrorCode::bad_data, "the request must be an object");
  const auto named = request.find("source");
  const std::string source = named != request.end() && named->is_string() ? named->get<std::string>() : "";
  const auto add = [&](const QueueJson& json) {
    Given given;
    given.item = read_item(json, source, scoring, given.has_text);
    asked.items.push_back(std::move(given));
  };
  const auto items = request.find("items");
  if (items != request.end() && !items->is_null()) {
    if (!items->is_array()) fail(ErrorCode::bad_data, "`items` must be a list");
    if (items->size() > kMostItems)
      fail(ErrorCode::bad_data, "`items` has {} entries, at most {} in one request", items->size(), kMostItems);
    for (const QueueJson& json : *items) add(json);
  } else if (scoring) {
    add(request);
  }
  if (scoring && asked.items.empty()) fail(ErrorCode::bad_data, "`items` cannot be empty");
  asked.keyed = !key.empty();
  if (key.size() > 256) fail(ErrorCode::bad_data, "an idempotency key has at most 256 characters");
  asked.key = {key, request_checksum(request, scoring)};
  return asked;
}

QueueAnswer Queue::answer_of(const KeyedAnswer& keyed) const {
  QueueAnswer answer{keyed.status, keyed.body};
  if (keyed.flush == 0 || answer.body.contains("items")) return answer;
  const auto found = state_.flushes.find(keyed.flush);
  answer.body["items"] = found == state_.flushes.end() ? std::vector<QueueJson>{} : found->second.results;
  if (found == state_.flushes.end()) answer.body["acknowledged"] = true;
  return answer;
}

std::optional<QueueAnswer> Queue::answered(std::unique_lock<std::mutex>& lock, const Asked& asked) {
  require_open(lock);
  if (!asked.keyed) return std::nullopt;
  while (keys_in_flight_.contains(asked.key.key)) {
    changed_.wait(lock);
    require_open(lock);  // an answer that did not reach the disk is none
  }
  const auto found = state_.keys.find(asked.key.key);
  if (found == state_.keys.end()) return std::nullopt;
  if (found->second.request != asked.key.request)
    fail(ErrorCode::bad_data, "the idempotency key {} was used for another request", asked.key.key);
  return answer_of(found->second);
}

bool Queue::fills(const Asked& asked) const {
  const size_t waiting = state_.waiting.size() - taken_;
  if (waiting + asked.items.size() >= static_cast<size_t>(rules_.flush_size)) return true;
  int64_t tokens = 0;
  size_t bytes = 0;
  for (size_t i = taken_; i < state_.waiting.size(); ++i) {
    tokens += tokens_of(state_.waiting[i]);
    bytes += state_.waiting[i].bytes;
  }
  for (const Given& given : asked.items) {
    tokens += tokens_of(given.item);
    bytes += bytes_of(given.item);
  }
  if (bytes >= kMostBytes) return true;  // a flush is one record
  return tokens >= (rules_.flush_tokens > 0 ? std::min(rules_.flush_tokens, kMostTokens) : kMostTokens);
}

uint64_t Queue::record(const QueueJson& json) {
  last_ticket_ = journal_->append(text_of(json));
  const size_t before = state_.waiting.size();
  state_.apply(json);
  for (size_t i = before; i < state_.waiting.size(); ++i) state_.waiting[i].steady_ms = clock_.steady_ms();
  show();
  return last_ticket_;
}

// Releases the lock while it waits, so that calls that arrive meanwhile share the next fdatasync.
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
    // Answered calls are on disk either way. The old file stays in use and is compacted at twice its size.
    log_warning("queue {}: its journal is not compacted: {}", rules_.name, e.what());
    if (journal_->failed()) become_read_only(e.what());
  }
  compacted_bytes_ = journal_->bytes();
  show();
}

QueueAnswer Queue::queue(std::unique_lock<std::mutex>& lock, const Asked& asked) {
  const int64_t now = clock_.steady_ms();
  std::vector<QueueItem> items;
  for (const Given& given : asked.items) items.push_back(given.item);
  QueueJson body = {
      {"status", "queued"}, {"queued", state_.waiting.size() - taken_ + items.size()}, {"flush_in_ms", nullptr}};
  if (rules_.flush_age_ms > 0) {
    const int64_t oldest = state_.waiting.size() > taken_ ? state_.waiting[taken_].steady_ms : now;
    body["flush_in_ms"] = std::max<int64_t>(0, oldest + rules_.flush_age_ms - now);
  }
  const UsedKey* key = asked.keyed ? &asked.key : nullptr;
  commit(lock, record(add_record(items, clock_.unix_ms(), key, body, state_.next_flush)));
  return {202, std::move(body)};
}

QueueAnswer Queue::score_or_queue(const QueueJson& request, const std::string& key) {
  const Asked asked = read_request(request, key, true);
  std::unique_lock lock(mutex_);
  if (auto known = answered(lock, asked)) return std::move(*known);
  const KeyInFlight in_flight(*this, lock, asked);
  for (;;) {
    require_open(lock);
    if (!rules_.immediate && !fills(asked)) return queue(lock, asked);
    if (!flushing_) return run_flush(lock, asked, true, true);
    changed_.wait(lock);  // the flush that runs may leave room
  }
}

QueueAnswer Queue::flush_and_apply(const QueueJson& request, const std::string& key) {
  const Asked asked = read_request(request, key, false);
  std::unique_lock lock(mutex_);
  if (auto known = answered(lock, asked)) return std::move(*known);
  const KeyInFlight in_flight(*this, lock, asked);
  await_turn(lock);
  return run_flush(lock, asked, false, true);
}

QueueJson Queue::applied(const QueueItem& item, const QueueScore& score) const {
  QueueJson result = item.item;
  const ApplyFields& fields = rules_.apply;
  for (const std::string* field :
       {&fields.compound, &fields.label, &fields.score, &fields.error, &fields.reason, &fields.instead_of})
    if (!field->empty()) result.erase(*field);  // of an earlier scoring
  if (!score.error.empty()) {
    if (!fields.error.empty()) result[fields.error] = score.error;
    return result;
  }
  if (!fields.compound.empty() && score.compound) result[fields.compound] = plain_number(*score.compound);
  if (!fields.label.empty()) result[fields.label] = score.label;
  if (!fields.score.empty()) result[fields.score] = plain_number(score.score);
  result["model"] = score.model;
  if (!fields.reason.empty()) result[fields.reason] = score.reason;
  if (!fields.instead_of.empty() && !score.instead_of.empty()) result[fields.instead_of] = score.instead_of;
  return result;
}

// The result of an item that was flushed before with the same text, if kept. Adds its size to `bytes`.
std::optional<QueueJson> Queue::earlier_result(const Given& given, size_t& bytes) const {
  const auto before = state_.flushed.find(identity_of(given.item));
  if (before == state_.flushed.end()) return std::nullopt;
  const auto [id, index] = before->second;
  const Flush& flush = state_.flushes.at(id);
  if (given.has_text && flush.items[index].text != given.item.text) return std::nullopt;
  if (bytes += text_of(flush.results[index]).size(); bytes > kMostBytes)
    fail(ErrorCode::bad_data, "the results of items that were flushed before have more than {} bytes", kMostBytes);
  return flush.results[index];
}

Queue::Batch Queue::collect(const Asked& asked, bool scoring) const {
  Batch batch;
  std::unordered_map<std::string, std::vector<std::string>> waiting_texts;
  for (const WaitingItem& item : state_.waiting) {
    batch.flush.items.push_back(item);
    if (!asked.items.empty()) waiting_texts[identity_of(item)].push_back(item.text);
  }
  batch.taken = batch.flush.items.size();
  size_t reused_bytes = 0;
  for (const Given& given : asked.items) {
    if (!scoring) {
      const auto waits = waiting_texts.find(identity_of(given.item));
      if (waits != waiting_texts.end() && std::ranges::any_of(waits->second, [&](const std::string& text) {
            return !given.has_text || text == given.item.text;
          }))
        continue;
      if (auto result = earlier_result(given, reused_bytes)) {
        batch.others.emplace_back(std::move(result));
        batch.reused = true;
        continue;
      }
    }
    if (given.has_text) {
      batch.others.emplace_back();
      batch.flush.items.push_back(given.item);
    } else {
      QueueScore none;
      none.error = "no `text`, and no waiting item is the same";
      batch.others.emplace_back(applied(given.item, none));
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
  for (size_t i = 0; i < scores.size(); ++i) batch.flush.results.push_back(applied(items[i], scores[i]));
}

// Returns the ticket of the record; empty if there is nothing to record.
std::optional<uint64_t> Queue::record_flush(const Asked& asked, const Batch& batch, const QueueAnswer& answer) {
  if (!fault_.empty()) fail(ErrorCode::cannot_write, "queue {} is read-only: {}", rules_.name, fault_);
  const bool empty = batch.flush.items.empty();
  const UsedKey* key = asked.keyed ? &asked.key : nullptr;
  QueueJson kept = QueueJson::object();
  // The flush itself has the items, unless the answer has results of other flushes.
  for (const auto& [name, value] : answer.body.items())
    if (key != nullptr && (name != "items" || batch.reused || empty)) kept[name] = value;
  if (!empty) return record(flush_record(batch.taken, batch.flush, key, kept, state_.next_flush));
  if (key != nullptr) return record(key_record(*key, batch.flush.done_ms, kept));
  return std::nullopt;
}

QueueAnswer Queue::run_flush(std::unique_lock<std::mutex>& lock, const Asked& asked, bool scoring, bool delivered) {
  Batch batch = collect(asked, scoring);
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
    const std::vector<QueueJson>& results = batch.flush.results;
    std::vector<QueueJson> items(results.begin(), results.begin() + static_cast<std::ptrdiff_t>(batch.taken));
    size_t next = batch.taken;
    for (std::optional<QueueJson>& other : batch.others) items.push_back(other ? std::move(*other) : results[next++]);
    answer.body["items"] = std::move(items);
    ticket = record_flush(asked, batch, answer);
  } catch (...) {
    end_flush();
    throw;
  }
  end_flush();
  // Without a record of its own, the answer may still have results of a flush that is being written.
  commit(lock, ticket.value_or(last_ticket_));
  if (id) durable_flush_ = std::max(durable_flush_, *id);
  show();
  compact_if_large();
  return answer;
}

bool Queue::flush_by_age() {
  std::unique_lock lock(mutex_);
  const auto due = due_at();
  if (!due || clock_.steady_ms() < *due) return false;
  try {
    await_turn(lock);
    if (state_.waiting.empty() || clock_.steady_ms() < state_.waiting.front().steady_ms + rules_.flush_age_ms)
      return false;
    if (state_.unseen >= kMostUnseen)
      fail(ErrorCode::busy, "{} flushes wait to be fetched and acknowledged", state_.unseen);
    run_flush(lock, {}, false, false);
    age_fault_.clear();
    show();
    return true;
  } catch (const Error& e) {
    if (!lock.owns_lock()) lock.lock();
    age_fault_ = e.what();
    age_retry_ms_ = clock_.steady_ms() + kRetryMs;
    show();
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

void Queue::show() {
  Shown now{.waiting = state_.waiting.size(),
            .flushes = state_.flushes.size(),
            .unseen = state_.unseen,
            .journal_bytes = journal_ ? journal_->bytes() : 0,
            .oldest_ms = state_.waiting.empty() ? 0 : state_.waiting.front().steady_ms,
            .last_flush = durable_flush_,
            .damaged = damaged_,
            .fault = fault_,
            .age_fault = age_fault_};
  const std::lock_guard lock(shown_mutex_);
  shown_ = std::move(now);
}

Queue::Shown Queue::shown() const {
  const std::lock_guard lock(shown_mutex_);
  return shown_;
}

QueueJson Queue::describe() const {
  const Shown now = shown();
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
  const Shown now = shown();
  if (!now.fault.empty()) return fmt::format("queue {} is read-only: {}", rules_.name, now.fault);
  if (!now.age_fault.empty()) return fmt::format("queue {} could not be flushed: {}", rules_.name, now.age_fault);
  return {};
}

std::string Queue::damage() const {
  const size_t records = shown().damaged;
  if (records == 0) return {};
  return fmt::format("queue {}: {} in its journal; stop the server and run `brim queue repair`", rules_.name,
                     format_count(static_cast<int64_t>(records), "damaged record"));
}

size_t Queue::size() const { return shown().waiting; }

}  // namespace brim::serve
