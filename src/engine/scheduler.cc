// SPDX-License-Identifier: Apache-2.0
#include "engine/scheduler.h"

#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "base/timeline.h"

namespace brim::engine {

using batch::PackedBatch;

namespace {

constexpr size_t kMostSpare = 2;
// A text often follows the response to the previous one. With a GPU, spinning uses an otherwise idle core; on the CPU
// the cores compute.
constexpr int64_t kSpinNs = 100'000;

}  // namespace

Error error_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    return Error(ErrorCode::internal, error.what());
  } catch (...) {
    return Error(ErrorCode::internal, "unknown exception");
  }
}

Scheduler::Scheduler(std::unique_ptr<DeviceQueue> queue)
    : queue_(std::move(queue)), process_(::getpid()), idle_since_ns_(now_ns()) {}

Scheduler::~Scheduler() {
  if (process_ != ::getpid()) {  // in a child of fork() the thread belongs to the parent
    if (thread_.joinable()) thread_.detach();
    return;
  }
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  work_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Scheduler::require_process() const {
  if (process_ != ::getpid())
    fail(ErrorCode::usage, Remedy{"open the model after the fork"},
         "the model was opened before fork(), and its threads exist only in the parent");
}

void Scheduler::start() {
  if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
}

void Scheduler::call(const std::function<void()>& work) {
  Call call{&work};
  wait_for(call);
}

void Scheduler::wait_for(Call& call) {
  require_process();
  Lock lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  start();
  calls_.push_back(&call);
  work_.notify_one();
  arrivals_.fetch_add(1);
  progress_.wait(lock, [&] { return call.done; });
  if (call.error) std::rethrow_exception(call.error);
}

bool Scheduler::lost() const {
  std::lock_guard lock(mutex_);
  return failure_ != nullptr;
}

double Scheduler::starved_seconds() const {
  std::lock_guard lock(mutex_);
  return starved_seconds_;
}

ModelHost::Work Scheduler::work_of(const ModelHost& model) const {
  std::lock_guard lock(mutex_);
  return model.work;
}

ScorerWork::Idle Scheduler::idle() const {
  std::lock_guard lock(mutex_);
  ScorerWork::Idle idle = idle_;
  if (idle_since_ns_ != 0) idle.no_work += seconds_since(idle_since_ns_);
  return idle;
}

void Scheduler::loop() {
  Timeline::name_thread("compute");
  Lock lock(mutex_);
  idle_.no_work += seconds_since(std::exchange(idle_since_ns_, 0));  // since the scheduler was created
  while (!ending_)
    if (!step(lock)) wait(lock);
}

bool Scheduler::has_work() const {
  const auto working = [](const auto* client) { return client->has_work(); };
  return !calls_.empty() ||
         (!failure_ && (std::any_of(bulk_queues_.begin(), bulk_queues_.end(), working) ||
                        std::any_of(interactive_queues_.begin(), interactive_queues_.end(), working)));
}

void Scheduler::wait(Lock& lock) {
  const bool bulk = !bulk_queues_.empty();
  const int64_t since = now_ns();
  idle_since_ns_ = since;
  {
    std::optional<ScopedZone> zone;
    if (bulk) zone.emplace(Zone::wait_input);
    if (queue_->device().kind() == device::DeviceKind::cuda) {
      const uint64_t seen = arrivals_.load();
      lock.unlock();
      while (arrivals_.load(std::memory_order_relaxed) == seen && now_ns() - since < kSpinNs) {
      }
      lock.lock();
    }
    if (!has_work() && !ending_) work_.wait(lock);
  }
  const double seconds = seconds_since(std::exchange(idle_since_ns_, 0));
  idle_.no_work += seconds;
  if (bulk) starved_seconds_ += seconds;
}

template <class Client>
Client* Scheduler::first_with_work(const std::vector<Client*>& clients) {
  const auto found = std::find_if(clients.begin(), clients.end(), [](const Client* c) { return c->has_work(); });
  return found == clients.end() ? nullptr : *found;
}

bool Scheduler::step(Lock& lock) {
  if (!calls_.empty()) {
    if (!collect_oldest(lock)) run_calls(lock);
    return true;
  }
  if (failure_) return false;
  InteractiveQueue* const texts = first_with_work(interactive_queues_);
  BulkQueue* const bulk = first_with_work(bulk_queues_);
  if (bulk_queues_.empty()) turn_rule_.no_bulk();
  TurnRule::Waiting waiting;
  waiting.texts = texts != nullptr && queue_->has_capacity(texts->model_, Launch::graph, texts->limits_.pass);
  if (bulk != nullptr) waiting.bulk_tokens = bulk->waiting_.front().batch.tokens();
  waiting.bulk_runs =
      std::any_of(bulk_queues_.begin(), bulk_queues_.end(), [](const BulkQueue* b) { return b->started_ > 0; });
  waiting.expects_texts = !interactive_queues_.empty();
  const TurnRule::Next next = turn_rule_.next(waiting);
  if (next == TurnRule::Next::texts) {
    move_to_back(interactive_queues_, texts);
    run(lock, *texts);
  } else if (next == TurnRule::Next::bulk && queue_->has_capacity(bulk->model_, bulk->waiting_.front().launch)) {
    move_to_back(bulk_queues_, bulk);
    run(lock, *bulk);
  } else {
    return collect_oldest(lock);
  }
  return true;
}

void Scheduler::run_calls(Lock& lock) {
  Call& call = *calls_.front();
  calls_.pop_front();
  if (call.model != nullptr) {
    call.error = make_resident(lock, *call.model, call.stays);
  } else {
    const int64_t since = now_ns();
    lock.unlock();
    std::exception_ptr error;
    try {
      (*call.work)();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    idle_.switching += seconds_since(since);
    call.error = error;
  }
  call.done = true;
  progress_.notify_all();
}

template <class Fn>
bool Scheduler::guarded(Lock& lock, Fn&& fn) {
  lock.unlock();
  std::exception_ptr failure;
  try {
    fn();
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  if (failure) fail_all(lock, failure);
  return !failure;
}

bool Scheduler::collect_oldest(Lock& lock) {
  if (failure_ || queue_->in_flight() == 0) return false;
  guarded(lock, [&] { queue_->collect_one(); });
  return true;
}

void Scheduler::run(Lock& lock, BulkQueue& bulk) {
  BulkQueue::Item item = std::move(bulk.waiting_.front());
  bulk.waiting_.pop_front();
  ++bulk.started_;
  turn_rule_.gave_bulk(item.batch.tokens());
  progress_.notify_all();  // capacity is available
  const auto collect = [this, &bulk](const PackedBatch& batch, const float* result, double busy_seconds) {
    std::exception_ptr error;
    const int64_t since = now_ns();
    try {
      bulk.collect_(batch, result);
    } catch (...) {
      error = std::current_exception();
    }
    std::lock_guard guard(mutex_);
    if (queue_->in_flight() == 0) idle_.collect += seconds_since(since);
    --bulk.started_;
    ++bulk.collected_;
    bulk.busy_seconds_ += busy_seconds;
    bulk.model_.work.count_batch(batch, bulk.most_tokens_, busy_seconds);
    bulk.model_.note_texts(batch.sequences(), now_ns());
    if (error && !bulk.failure_) bulk.failure_ = error;
    progress_.notify_all();
  };
  if (const std::exception_ptr error = make_resident(lock, bulk.model_)) {
    if (failure_) return;
    --bulk.started_;
    bulk.waiting_.clear();
    if (!bulk.failure_) bulk.failure_ = error;
    progress_.notify_all();
    return;
  }
  const size_t before = queue_->in_flight();
  const bool went = guarded(lock, [&] { queue_->submit(bulk.model_, item.batch, collect, item.launch); });
  if (went && queue_->in_flight() > before && bulk.spare_.size() < kMostSpare)
    bulk.spare_.push_back(std::move(item.batch));  // started: the client still exists
}

void Scheduler::add_share(InteractiveQueue& texts, batch::PackLimits& limits, std::vector<Share>& shares) {
  Share share{&texts, {}, {}, batch_.sequences()};
  const int64_t before = batch_.tokens();
  texts.pack(batch_, limits, share.pieces, share.refused);
  texts.running_tokens_ += batch_.tokens() - before;
  shares.push_back(std::move(share));
}

// Fills a batch with texts of other adapters of the same base.
void Scheduler::add_other_adapters(const InteractiveQueue& texts, batch::PackLimits& limits,
                                   std::vector<Share>& shares) {
  if (texts.model_.base() == nullptr) return;
  const std::vector<InteractiveQueue*> others = interactive_queues_;
  for (InteractiveQueue* other : others) {
    if (batch_.tokens() >= limits.tokens || batch_.sequences() >= limits.sequences) break;
    if (other == &texts || !other->has_work() || !other->model_.resident() || !other->shares_batches_with(texts) ||
        batch_.tokens() >= other->limits_.pack.tokens)
      continue;
    other->model_.used = ++turns_;
    move_to_back(interactive_queues_, other);
    ++other->started_;
    add_share(*other, limits, shares);
  }
}

void Scheduler::run(Lock& lock, InteractiveQueue& texts) {
  auto shares = std::make_shared<std::vector<Share>>();
  ++texts.started_;
  const int64_t started = now_ns();
  if (const std::exception_ptr error = make_resident(lock, texts.model_)) {
    if (failure_) return;
    Share failed{&texts};
    texts.take_all(failed.refused, error_of(error));  // batches already started have been collected
    const int64_t now = now_ns();
    for (const auto& text : failed.refused) text->done_ns = now;
    batch_.clear();
    shares->push_back(std::move(failed));
  } else {
    const int64_t since = now_ns();
    batch::PackLimits limits = texts.limits_.pack;
    batch_.clear();
    add_share(texts, limits, *shares);
    add_other_adapters(texts, limits, *shares);
    batch_.finish();
    if (queue_->in_flight() == 0) idle_.pack += seconds_since(since);
    turn_rule_.gave_texts(batch_.tokens(), texts.limits_.pack.tokens);
  }
  submit(lock, std::move(shares), started);
}

void Scheduler::submit(Lock& lock, std::shared_ptr<std::vector<Share>> shares, int64_t started_ns) {
  ModelHost* model = nullptr;  // the one with the widest adapter, whose plan has the memory for all
  std::vector<model::AdapterRange> adapters;
  const auto row = [&](size_t sequence) -> int64_t { return batch_.starts[sequence]; };
  for (const Share& share : *shares) {
    if (share.pieces.empty()) continue;
    ModelHost& own = share.texts->model_;
    if (model == nullptr || own.shape().adapter_width > model->shape().adapter_width) model = &own;
    const auto begin = static_cast<size_t>(share.first), end = begin + share.pieces.size();
    adapters.push_back({&own.params(), share.first, static_cast<int64_t>(end), row(begin), row(end)});
  }
  if (adapters.size() == 1) adapters.clear();
  const auto collected = [this, shares, started_ns](const PackedBatch& batch, const float* result, double busy) {
    collect(*shares, batch, result, busy, started_ns);
  };
  const size_t pass = shares->front().texts->limits_.pass;
  const bool went = guarded(lock, [&] {
    for (Share& share : *shares)
      if (!share.refused.empty()) share.texts->answer_(share.refused);
    if (model != nullptr) queue_->submit(*model, batch_, collected, Launch::graph, pass, adapters);
  });
  if (!went) return;
  for (const Share& share : *shares)
    if (share.pieces.empty()) --share.texts->started_;
  progress_.notify_all();
}

void Scheduler::collect(const std::vector<Share>& shares, const PackedBatch& batch, const float* result, double busy,
                        int64_t started_ns) {
  for (const Share& share : shares) {
    if (share.pieces.empty()) continue;
    const InteractiveQueue::Limits& limits = share.texts->limits_;
    {
      std::lock_guard guard(mutex_);
      ModelHost& model = share.texts->model_;
      const auto sequences = static_cast<int64_t>(share.pieces.size());
      model.work.count_part(batch, share.first, share.first + sequences, limits.pack.tokens, busy);
      model.work.shared_batches += sequences < batch.sequences();
      model.note_texts(sequences, now_ns());
      model.work.count_prediction(static_cast<double>(batch.tokens()) / share.texts->tokens_per_second_, busy);
    }
    collect(share,
            WindowResults(batch, result, static_cast<size_t>(limits.width), limits.per_token, limits.average_tokens),
            started_ns);
  }
}

void Scheduler::collect(const Share& share, const WindowResults& results, int64_t started_ns) {
  ScopedZone zone(Zone::collect, results.tokens());
  InteractiveQueue& texts = *share.texts;
  const int64_t since = now_ns();
  const auto first = static_cast<size_t>(share.first);
  for (size_t i = 0; i < share.pieces.size(); ++i) {
    const InteractiveQueue::Piece& piece = share.pieces[i];
    results.put(first + i, piece.text->tokens, piece.window, piece.text->scores);
  }
  PendingTexts answers;
  const int64_t done = now_ns();
  {
    std::lock_guard guard(mutex_);
    texts.running_tokens_ -= results.tokens(first, first + share.pieces.size());
    texts.measure(results.tokens(), started_ns, done);
    for (const InteractiveQueue::Piece& piece : share.pieces)
      if (--piece.text->windows_left == 0)
        answers.push_back(std::move(texts.started_texts_.extract(piece.text).mapped()));
  }
  for (const auto& text : answers) text->done_ns = done;
  if (!answers.empty()) texts.answer_(answers);
  std::lock_guard guard(mutex_);
  if (queue_->in_flight() == 0) idle_.collect += seconds_since(since);
  --texts.started_;
  progress_.notify_all();
}

// Fails all waiting and running work with this error. Nothing is started afterwards if the device is lost, or if the
// state of a GPU's batches in flight is unknown; a CPU has none in flight and continues.
void Scheduler::fail_all(Lock& lock, std::exception_ptr failure) {
  const Error error = error_of(failure);
  if (error.code() == ErrorCode::device_lost)
    failure_ = failure;
  else if (queue_->device().kind() != device::DeviceKind::cpu)
    failure_ = std::make_exception_ptr(Error(ErrorCode::device_lost, fmt::format("a batch failed: {}", error.what())));
  for (BulkQueue* bulk : bulk_queues_) {
    bulk->waiting_.clear();
    bulk->started_ = 0;
    if (!bulk->failure_) bulk->failure_ = failure;
  }
  const auto all = interactive_queues_;
  for (InteractiveQueue* texts : all) ++texts->answering_;
  for (InteractiveQueue* texts : all) {
    PendingTexts answers;
    texts->take_all(answers, error);
    for (auto& [key, text] : texts->started_texts_) answers.push_back(std::move(text));
    texts->started_texts_.clear();
    texts->running_tokens_ = 0;
    texts->started_ = 0;
    for (const auto& text : answers) text->error = error;
    lock.unlock();
    if (!answers.empty()) texts->answer_(answers);
    lock.lock();
    --texts->answering_;
  }
  progress_.notify_all();
}

}  // namespace brim::engine
