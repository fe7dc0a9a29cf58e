// SPDX-License-Identifier: Apache-2.0
// Durable named queues: items arrive one by one, are scored together, and get the scores written into them.
// Acknowledged items survive a kill at any moment; a call repeated under its idempotency key gets the first answer and
// is not scored again. Calls block (disk, scoring) and may come from any thread; flushes of one queue run one after
// another, in the order of arrival of the items.
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

#include "serve/queue_journal.h"
#include "serve/queue_rules.h"
#include "serve/queue_state.h"
#include "serve/state_dir.h"

namespace brim::serve {

// One text's scores for a queue.
struct QueueScore {
  std::string label, model;
  std::string reason, instead_of;  // why that model was chosen, and the rung it stands in for
  float score = 0;
  std::optional<float> compound;  // where the classes are negative and positive
  std::string error;              // not empty: the text could not be scored
};

class QueueScorer {
 public:
  virtual ~QueueScorer() = default;
  // One entry a text, in order. Throws where nothing can be scored: the items then go on waiting.
  virtual std::vector<QueueScore> score(const QueueRules& rules, std::span<const QueueItem> items) = 0;
};

struct QueueAnswer {
  int status = 200;  // of HTTP: 200, or 202 for what waits
  QueueJson body;
};

class Queue {
 public:
  struct Clock {
    std::function<int64_t()> unix_ms;    // for records and answers
    std::function<int64_t()> steady_ms;  // for ages and retries: setting the system's clock must not delay a flush
  };

  // Opens `file` or creates it. Throws cannot_write, bad_data.
  Queue(QueueRules rules, std::filesystem::path file, QueueScorer& scorer, Clock clock);

  // {"text","item","source"} or {"items":[{"text","item"}],"source"}. Answers 202 where they wait, or 200 with all
  // items where this call filled the batch. Throws bad_data for a request that is none, busy where too much waits,
  // cannot_write where the disk takes nothing more, and what the scorer throws.
  QueueAnswer score_or_queue(const QueueJson& request, const std::string& key);
  // {"items":[…]}, optional: everything that waits, then those given that do not wait and were not flushed before.
  QueueAnswer flush_and_apply(const QueueJson& request, const std::string& key);
  // Flushes what is old enough; the result is kept for a client to find. Whether there was anything. Throws as
  // flush_and_apply does, busy where too many results have not been fetched; then it is tried again a little later.
  bool flush_by_age();
  std::optional<int64_t> due_ms() const;  // next time for flush_by_age, by the steady clock

  // describe(), fault() and size() wait for no disk and no other call: health and dashboard ask while a journal is
  // rewritten.
  QueueJson describe() const;
  // Flushes appear here once their record is durable.
  QueueJson flushes(uint64_t after) const;  // {"flushes":[{"flush_id",…}]} with higher ids
  std::optional<QueueJson> flush(uint64_t id) const;
  bool acknowledge(uint64_t id);  // false: there is no such flush

  std::string fault() const;   // why the queue cannot be written or flushed; empty if it can
  std::string damage() const;  // damage found in the journal; empty if none
  size_t size() const;
  const QueueRules& rules() const { return rules_; }

 private:
  struct Given {
    QueueItem item;
    bool has_text = true;
  };
  struct Asked {
    std::vector<Given> items;
    UsedKey key;
    bool keyed = false;
  };
  struct Batch {
    Flush flush;
    size_t taken = 0;  // number of waiting items, which come first
    // Results of the given items after those that waited; empty: the next of those scored in this flush.
    std::vector<std::optional<QueueJson>> others;
    bool reused = false;  // some results are not from this flush
  };
  class KeyInFlight;

  void open();
  void require_open(std::unique_lock<std::mutex>& lock);
  void become_read_only(const std::string& fault);  // for a while
  void show();                                      // to shown(), after each change
  void await_turn(std::unique_lock<std::mutex>& lock);
  std::optional<int64_t> due_at() const;
  Asked read_request(const QueueJson& request, const std::string& key, bool scoring) const;
  std::optional<QueueAnswer> answered(std::unique_lock<std::mutex>& lock, const Asked& asked);
  bool fills(const Asked& asked) const;
  std::optional<QueueJson> earlier_result(const Given& given, size_t& bytes) const;
  Batch collect(const Asked& asked, bool scoring) const;
  void score(std::unique_lock<std::mutex>& lock, Batch& batch);
  std::optional<uint64_t> record_flush(const Asked& asked, const Batch& batch, const QueueAnswer& answer);
  QueueAnswer queue(std::unique_lock<std::mutex>& lock, const Asked& asked);
  QueueAnswer run_flush(std::unique_lock<std::mutex>& lock, const Asked& asked, bool scoring, bool delivered);
  QueueJson applied(const QueueItem& item, const QueueScore& score) const;
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
  size_t taken_ = 0;    // of the waiting items, by the flush that runs
  int committing_ = 0;  // calls that wait for the disk
  std::set<std::string> keys_in_flight_;
  uint64_t last_ticket_ = 0;    // of the last record
  uint64_t durable_flush_ = 0;  // id of the last flush whose record is durable
  size_t damaged_ = 0;          // records of the journal
  size_t compacted_bytes_ = 0;  // size after the last compaction
  std::string fault_;
  int64_t retry_ms_ = 0;  // by the steady clock, as is the next
  std::string age_fault_;
  int64_t age_retry_ms_ = 0;

  // As of the last change, for those that must not wait.
  struct Shown {
    size_t waiting = 0, flushes = 0, unseen = 0, journal_bytes = 0;
    int64_t oldest_ms = 0;    // arrival of the first waiting item, by the steady clock
    uint64_t last_flush = 0;  // durable
    size_t damaged = 0;
    std::string fault, age_fault;
  };
  Shown shown() const;
  mutable std::mutex shown_mutex_;
  Shown shown_;
};

class Queues {
 public:
  // Opens queues/NAME.journal in the state directory for each. A queue that cannot be opened is left out and named in
  // faults().
  Queues(const StateDir& state, const std::vector<QueueRules>& rules, QueueScorer& scorer, const Queue::Clock& clock);

  Queue* find(const std::string& name) const;
  std::vector<std::string> names() const;
  std::vector<std::string> faults() const;  // sentences; health is degraded while there are any
  void flush_by_age();
  std::optional<int64_t> due_ms() const;

 private:
  std::map<std::string, std::unique_ptr<Queue>> queues_;
  std::vector<std::string> unopened_;
};

}  // namespace brim::serve
