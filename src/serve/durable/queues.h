// SPDX-License-Identifier: Apache-2.0
// Durable named queues: items arrive one by one, are scored together, and are returned with their scores. Acknowledged
// items survive a kill at any time; repeating a call with its idempotency key returns the first answer without scoring
// again. Calls block (disk, scoring) and are thread-safe; flushes of a queue run one at a time, in the order in which
// items arrived.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "brim/brim.h"
#include "serve/durable/queue_journal.h"
#include "serve/durable/queue_rules.h"
#include "serve/durable/queue_state.h"
#include "serve/durable/state_dir.h"

namespace brim::serve {

// Scores of one text.
struct QueueScore {
  std::string label, model;
  std::string reason, instead_of;  // reason for the choice of model, and the rung it replaces
  float score = 0;
  std::optional<float> compound;                // if the classes include negative and positive
  std::optional<std::vector<Entity>> entities;  // taggers, instead of a label
  std::string error;                            // not empty: the text could not be scored
  int64_t tokens = 0;                           // total of the texts scored in one call; set in the first of them only
  size_t pairs = 0;                             // zero-shot pairs of this text
};

class QueueScorer {
 public:
  virtual ~QueueScorer() = default;
  // Returns one entry per text, in order. Throws if nothing can be scored; the items then stay queued.
  virtual std::vector<QueueScore> score(const QueueRules& rules, std::span<const QueueItem> items) = 0;
};

struct QueueAnswer {
  int status = 200;  // HTTP status: 200, or 202 if the items wait
  QueueJson body;
  // For the access log: texts that this call queued or scored, tokens and zero-shot pairs of the scored ones, and the
  // model of the last one.
  size_t texts = 0;
  int64_t tokens = 0;
  size_t pairs = 0;
  std::string model = {};
};

class Queue {
 public:
  struct Clock {
    std::function<int64_t()> unix_ms;    // for records and answers
    std::function<int64_t()> steady_ms;  // for ages and retries, which must not depend on the system clock
  };

  // Opens `file` or creates it. Throws cannot_write, bad_data.
  Queue(QueueRules rules, std::filesystem::path file, QueueScorer& scorer, Clock clock);

  // Accepts {"text","item","source"} or {"items":[{"text","item"}],"source"}. Answers 202 if the items wait, or 200
  // with all items if this call completed a batch. Throws bad_data for an invalid request, busy if too much is waiting,
  // cannot_write if the disk is full, and the scorer's errors.
  QueueAnswer score_or_queue(const QueueJson& request, const std::string& key);
  // {"items":[…]}, optional. Flushes all waiting items, and the given ones that neither wait nor were flushed before.
  QueueAnswer flush_and_apply(const QueueJson& request, const std::string& key);
  // Flushes if the oldest item is old enough, and keeps the result for a client to fetch. Returns whether it flushed.
  // Throws as flush_and_apply() does, and busy if too many results have not been fetched; then retries later.
  bool flush_by_age();
  std::optional<int64_t> due_ms() const;  // next time for flush_by_age(), steady clock

  // describe(), fault() and size() never wait for the disk or other calls, because health and dashboard use them while
  // a journal is rewritten.
  QueueJson describe() const;
  // Lists a flush once its record is durable.
  QueueJson flushes(uint64_t after) const;  // {"flushes":[{"flush_id",…}]} with higher ids
  std::optional<QueueJson> flush(uint64_t id) const;
  bool acknowledge(uint64_t id);  // false if there is no such flush

  std::string fault() const;   // why the queue cannot be written or flushed; empty if it can
  std::string damage() const;  // damage found in the journal; empty if none
  size_t size() const;
  const QueueRules& rules() const { return rules_; }

 private:
  struct RequestItem {
    QueueItem item;
    bool has_text = true;
  };
  struct ParsedRequest {
    std::vector<RequestItem> items;
    UsedKey key;
    bool keyed = false;
  };
  struct Batch {
    Flush flush;
    size_t taken = 0;  // number of waiting items, which come first
    // Results of the given items, which follow the waiting ones; empty: the next result scored in this flush.
    std::vector<std::optional<QueueJson>> others;
    bool reused = false;  // some results are not from this flush
    int64_t tokens = 0;
    size_t pairs = 0;
    std::string model = {};  // model of the last item
  };
  class KeyInFlight;

  void open();
  void require_open(std::unique_lock<std::mutex>& lock);
  void become_read_only(const std::string& fault);  // until the next retry
  void publish_status();                            // call after each change
  void wait_until_idle(std::unique_lock<std::mutex>& lock);
  std::optional<int64_t> due_at() const;
  ParsedRequest read_request(const QueueJson& request, const std::string& key, bool scoring) const;
  std::optional<QueueAnswer> stored_answer(std::unique_lock<std::mutex>& lock, const ParsedRequest& parsed);
  bool fills_batch(const ParsedRequest& parsed) const;
  std::optional<QueueJson> earlier_result(const RequestItem& entry, size_t& bytes) const;
  Batch collect(const ParsedRequest& parsed, bool scoring) const;
  void score(std::unique_lock<std::mutex>& lock, Batch& batch);
  std::optional<uint64_t> record_flush(const ParsedRequest& parsed, const Batch& batch, const QueueAnswer& answer);
  QueueAnswer queue(std::unique_lock<std::mutex>& lock, const ParsedRequest& parsed);
  QueueAnswer run_flush(std::unique_lock<std::mutex>& lock, const ParsedRequest& parsed, bool scoring, bool delivered);
  QueueJson apply_score(const QueueItem& item, const QueueScore& score) const;
  QueueAnswer answer_of(const KeyedAnswer& keyed) const;
  uint64_t record(const QueueJson& json);
  void end_flush();
  void commit(std::unique_lock<std::mutex>& lock, uint64_t ticket);
  void compact_if_large();

  const QueueRules rules_;
  const std::filesystem::path file_;
  QueueScorer& scorer_;
  const Clock clock_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<QueueJournal> journal_;
  QueueState state_;
  bool flushing_ = false;
  size_t taken_ = 0;    // waiting items that the running flush has taken
  int committing_ = 0;  // calls waiting for the disk
  std::set<std::string> keys_in_flight_;
  uint64_t last_ticket_ = 0;    // ticket of the last record
  uint64_t durable_flush_ = 0;  // id of the last flush whose record is durable
  size_t damaged_ = 0;          // damaged records in the journal
  size_t compacted_bytes_ = 0;  // size after the last compaction
  std::string fault_;
  int64_t retry_ms_ = 0;  // steady clock, as is age_retry_ms_
  std::string age_fault_;
  int64_t age_retry_ms_ = 0;

  // Status after the last change, readable without mutex_.
  struct Status {
    size_t waiting = 0, flushes = 0, unseen = 0, journal_bytes = 0;
    int64_t oldest_ms = 0;    // arrival of the oldest waiting item, steady clock
    uint64_t last_flush = 0;  // durable
    size_t damaged = 0;
    std::string fault, age_fault;
  };
  Status status() const;
  mutable std::mutex status_mutex_;
  Status status_;
};

class Queues {
 public:
  // Opens queues/NAME.journal in the state directory for each. A queue that cannot be opened is missing and listed in
  // faults().
  Queues(const StateDir& state, const std::vector<QueueRules>& rules, QueueScorer& scorer, const Queue::Clock& clock);

  Queue* find(const std::string& name) const;
  std::vector<std::string> names() const;
  std::vector<std::string> faults() const;  // health is degraded while there are any
  void flush_by_age();
  std::optional<int64_t> due_ms() const;

 private:
  std::map<std::string, std::unique_ptr<Queue>> queues_;
  std::vector<std::string> unopened_;
};

}  // namespace brim::serve
