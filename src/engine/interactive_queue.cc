// SPDX-License-Identifier: Apache-2.0
#include "engine/interactive_queue.h"

#include <algorithm>

#include "base/clock.h"
#include "base/timeline.h"
#include "base/units.h"
#include "engine/scheduler.h"

namespace brim::engine {

using batch::PackedBatch;

namespace {

// Limit for texts dropped under the lock while one batch is packed; the rest is dropped with the next batch.
constexpr int kMostDrops = 1024;
// A batch is closed before its predicted time exceeds this share of the time until a deadline.
constexpr double kDeadlineShare = 0.8;

}  // namespace

int64_t PendingText::bytes() const {
  return static_cast<int64_t>(sizeof(*this) + tokens.ids.size() * sizeof(tokens.ids[0]) +
                              tokens.windows.size() * sizeof(tokens.windows[0]) +
                              tokens.words.size() * sizeof(tokens.words[0]) + scores.size() * sizeof(float)) +
         more_bytes;
}

InteractiveQueue::InteractiveQueue(Scheduler& scheduler, ModelHost& model, const Limits& limits, Answer answer)
    : scheduler_(scheduler),
      model_(model),
      limits_(limits),
      answer_(std::move(answer)),
      tokens_per_second_(std::max(1.0, limits.tokens_per_second)) {
  scheduler_.require_process();
  std::lock_guard lock(scheduler_.mutex_);
  scheduler_.interactive_queues_.push_back(this);
}

void InteractiveQueue::submit(PendingTexts texts) {
  scheduler_.require_process();
  const int64_t now = now_ns();
  size_t most = 0;  // texts of this call that may wait together
  int64_t bytes = 0;
  for (const auto& text : texts) {
    text->submitted_ns = now;
    text->windows_left = text->tokens.windows.size();
    const size_t rows = limits_.per_token ? text->tokens.ids.size() : text->tokens.windows.size();
    const size_t scores = rows * static_cast<size_t>(limits_.width);
    bytes += text->bytes() + static_cast<int64_t>(scores * sizeof(float));
    // The first text is admitted regardless of its size, unless it needs vectors for every token.
    if (bytes > limits_.most_bytes && (most > 0 || limits_.per_token)) continue;
    text->scores.resize(scores);
    ++most;
  }
  PendingTexts refused;
  bool any = false;
  {
    std::lock_guard lock(scheduler_.mutex_);
    std::optional<Caller> caller_state;
    for (size_t i = 0; i < texts.size(); ++i) {
      auto& text = texts[i];
      if (!caller_state || caller_state->client != text->client || caller_state->bulk != text->bulk)
        caller_state = caller(*text);
      if (closed_)
        text->error.emplace(ErrorCode::cancelled, "the scorer was closed");
      else if (scheduler_.failure_)
        text->error = error_of(scheduler_.failure_);
      else if (i >= most)
        text->error.emplace(ErrorCode::bad_data,
                            fmt::format("the texts of this call need {} while waiting, the limit is {}",
                                        format_bytes(bytes), format_bytes(limits_.most_bytes)),
                            Remedy{"send fewer texts per call"});
      else
        text->error = reason_to_reject(*caller_state, *text);
      if (text->error) {
        refused.push_back(std::move(text));
        continue;
      }
      any = true;
      waiting_bytes_ += text->bytes();
      const uint64_t client = text->client;
      const auto tokens = static_cast<int64_t>(text->tokens.ids.size());
      const int64_t due_ns = due(text->bulk, text->deadline);
      (text->bulk ? bulk_ : waiting_).push(client, tokens, std::move(text), due_ns);
    }
    if (any) scheduler_.start();
  }
  for (const auto& text : refused) text->done_ns = now_ns();
  if (!refused.empty()) answer_(refused);
  if (!any) return;
  scheduler_.arrivals_.fetch_add(1);
  scheduler_.work_.notify_one();
}

bool InteractiveQueue::shares_batches_with(const InteractiveQueue& other) const {
  return limits_.width == other.limits_.width && limits_.per_token == other.limits_.per_token &&
         limits_.average_tokens == other.limits_.average_tokens && model_.shares_batches_with(other.model_);
}

void InteractiveQueue::pack(PackedBatch& batch, batch::PackLimits& limits, std::vector<Piece>& pieces,
                            PendingTexts& refused) {
  ScopedZone zone(Zone::pack);
  const auto now = std::chrono::steady_clock::now();
  const int64_t ns = now_ns();
  const bool bulk_first = !bulk_.empty() && (waiting_.empty() || batches_before_bulk_ >= kBatchesBeforeBulk);
  batches_before_bulk_ = bulk_first ? 0 : batches_before_bulk_ + 1;
  limits.tokens = std::min(limits.tokens, limits_.pack.tokens);
  limits.sequences = std::min(limits.sequences, limits_.pack.sequences);
  int64_t& most = limits.tokens;
  for (int drops = 0; has_work() && drops < kMostDrops;) {
    const bool from_bulk = waiting_.empty() || (bulk_first && !bulk_.empty());
    Queue& queue = from_bulk ? bulk_ : waiting_;
    PendingText& text = *queue.front();
    std::optional<Error> error;
    if (text.stop.stop_requested())
      error.emplace(ErrorCode::cancelled, "cancelled by the caller");
    else if (text.deadline && *text.deadline <= now)
      error.emplace(ErrorCode::timed_out, "the deadline passed before the device was free");
    if (error) {
      text.done_ns = ns;
      drop(queue, *error, refused);
      ++drops;
      continue;
    }
    const auto& window = text.tokens.windows[text.next_window];
    const int64_t tokens = batch.tokens() + window.length;
    if (batch.sequences() > 0 && (tokens > most || batch.sequences() >= limits.sequences)) break;
    if (text.deadline) {
      // A text that would be late even alone does not limit the batch.
      const double left = std::chrono::duration<double>(*text.deadline - now).count();
      const double in_time = std::min(kDeadlineShare * left * tokens_per_second_ - static_cast<double>(running_tokens_),
                                      static_cast<double>(most));
      if (in_time >= window.length) most = std::max(tokens, static_cast<int64_t>(in_time));
    }
    if (text.next_window == 0) text.started_ns = ns;
    batch.add(text.tokens.sequence(text.next_window, pieces.size()), limits_.position_offset);
    pieces.push_back({&text, text.next_window++});
    queue.charge(window.length);
    if (text.next_window < text.tokens.windows.size()) continue;
    waiting_bytes_ -= text.bytes();
    started_texts_.emplace(&text, queue.pop());
  }
}

// If a client has nothing waiting, the texts of one call are admitted together unless they would take this long; the
// first of them is admitted regardless of its length.
InteractiveQueue::Caller InteractiveQueue::caller(const PendingText& text) const {
  constexpr double kLongCallSeconds = 30;
  Caller caller{text.client, text.bulk, limits_.most_seconds};
  if ((text.bulk ? bulk_ : waiting_).cost_of(text.client) > 0)
    caller.first = false;
  else if (!has_work() ||
           seconds_until(text.client, 0, text.bulk, due(text.bulk, text.deadline)) <= limits_.most_seconds)
    caller.most_seconds = std::max(limits_.most_seconds, kLongCallSeconds);
  else
    caller.first = false;  // other clients alone exceed the limit
  return caller;
}

std::optional<Error> InteractiveQueue::reason_to_reject(Caller& caller, const PendingText& text) const {
  const auto tokens = static_cast<int64_t>(text.tokens.ids.size());
  const int64_t due_ns = due(text.bulk, text.deadline);
  const bool first = std::exchange(caller.first, false);
  if (const int64_t bytes = waiting_bytes_ + text.bytes(); bytes > limits_.most_bytes && waiting_bytes_ > 0)
    return Error(ErrorCode::busy,
                 fmt::format("waiting texts hold {}, {} with this one; the limit is {}", format_bytes(waiting_bytes_),
                             format_bytes(bytes), format_bytes(limits_.most_bytes)));
  // Summing all waiting texts is cheap; computing the part ahead of one client is not.
  const bool few = wait_seconds() + static_cast<double>(tokens) / tokens_per_second_ <= caller.most_seconds;
  if (first || (few && !caller.refused)) return std::nullopt;
  if (!caller.refused && seconds_until(text.client, tokens, text.bulk, due_ns) <= caller.most_seconds)
    return std::nullopt;
  caller.refused = true;
  return Error(ErrorCode::busy,
               fmt::format("{} tokens are waiting, {:.3f} s of work before this text; the limit is {} s",
                           waiting_tokens(), seconds_until(text.client, 0, text.bulk, due_ns), caller.most_seconds));
}

void InteractiveQueue::drop(Queue& queue, const Error& error, PendingTexts& out) {
  PendingText& text = *queue.front();
  text.error = error;
  text.windows_left -= text.tokens.windows.size() - text.next_window;
  waiting_bytes_ -= text.bytes();
  if (text.windows_left == 0)
    out.push_back(queue.pop());
  else
    started_texts_.emplace(&text, queue.pop());
}

void InteractiveQueue::take_all(PendingTexts& out, const Error& error) {
  for (Queue* queue : {&waiting_, &bulk_})
    while (!queue->empty()) drop(*queue, error, out);
}

// On a CPU models alternate batch by batch, and each rate covers the model's own batches only. On a GPU the time of a
// batch includes those in flight before it, so the rate already accounts for other models.
double InteractiveQueue::with_others(double seconds) const {
  if (scheduler_.queue_->device().kind() != device::DeviceKind::cpu) return seconds;
  double all = seconds;
  for (const InteractiveQueue* other : scheduler_.interactive_queues_)
    if (&other->model_ != &model_) all += std::min(seconds, other->own_seconds());
  return all;
}

double InteractiveQueue::own_seconds() const {
  return static_cast<double>(waiting_tokens() + running_tokens_) / tokens_per_second_;
}

double InteractiveQueue::wait_seconds() const { return with_others(own_seconds()); }

int64_t InteractiveQueue::due(bool bulk, const Deadline& deadline) {
  return bulk || !deadline ? Queue::kNeverDue : static_cast<int64_t>(deadline->time_since_epoch().count());
}

// Time until `tokens` more tokens of this client with this due time are computed. Bulk texts get one batch in ten.
double InteractiveQueue::seconds_until(uint64_t client, int64_t tokens, bool bulk, int64_t due_ns) const {
  int64_t sum = running_tokens_;
  if (bulk) {
    sum += waiting_.cost() + bulk_.cost_until(client, tokens);
  } else {
    sum += waiting_.cost_until(client, tokens, due_ns);
    sum += std::min(bulk_.cost(), sum / kBatchesBeforeBulk);
  }
  return with_others(static_cast<double>(sum) / tokens_per_second_);
}

ScorerLoad InteractiveQueue::load() const {
  std::lock_guard lock(scheduler_.mutex_);
  ScorerLoad load;
  load.texts = static_cast<int64_t>(waiting_.size() + bulk_.size());
  load.tokens = waiting_tokens();
  load.bulk_tokens = bulk_.cost();
  load.tokens_per_second = tokens_per_second_;
  load.wait_seconds = wait_seconds();
  return load;
}

ClientWait InteractiveQueue::wait_of(uint64_t client, int64_t tokens, bool bulk, Deadline deadline) const {
  std::lock_guard lock(scheduler_.mutex_);
  return {(bulk ? bulk_ : waiting_).cost_of(client), seconds_until(client, 0, bulk, due(bulk, deadline)),
          seconds_until(client, tokens, bulk, due(bulk, deadline))};
}

// Only full batches are measured: small ones are bound by more than their tokens, and nothing waits behind them.
void InteractiveQueue::measure(int64_t tokens, int64_t started_ns, int64_t done_ns) {
  constexpr double kWeight = 0.1;
  const int64_t since = std::max(started_ns, last_done_ns_);
  last_done_ns_ = done_ns;
  if (tokens * 2 < limits_.pack.tokens || done_ns <= since) return;
  const double rate = static_cast<double>(tokens) * 1e9 / static_cast<double>(done_ns - since);
  tokens_per_second_ += kWeight * (rate - tokens_per_second_);
}

void InteractiveQueue::close() {
  PendingTexts cancelled;
  Scheduler::Lock lock(scheduler_.mutex_);
  if (std::exchange(closed_, true)) {
    scheduler_.progress_.wait(lock, [&] { return started_ == 0 && answering_ == 0; });
    return;
  }
  ++answering_;
  take_all(cancelled, Error(ErrorCode::cancelled, "the scorer was closed"));
  lock.unlock();
  if (!cancelled.empty()) answer_(cancelled);
  lock.lock();
  --answering_;
  scheduler_.progress_.notify_all();
  scheduler_.progress_.wait(lock, [&] { return started_ == 0 && answering_ == 0; });
  std::erase(scheduler_.interactive_queues_, this);
}

}  // namespace brim::engine
