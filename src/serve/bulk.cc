// SPDX-License-Identifier: Apache-2.0
// Shared by queues, jobs and row streams: model choice and scoring. Runs off the I/O threads.
#include <atomic>
#include <utility>

#include "base/error.h"
#include "serve/service.h"

namespace brim::serve {
namespace {

// Texts of one call that are scored but not counted yet, for rates: blocks of a job take long.
class RunningTexts {
 public:
  explicit RunningTexts(std::atomic<size_t>& total) : total_(total) {}
  ~RunningTexts() { total_ -= own_; }
  RunningTexts(const RunningTexts&) = delete;
  RunningTexts& operator=(const RunningTexts&) = delete;
  void set(size_t done) { total_ += done - std::exchange(own_, done); }

 private:
  std::atomic<size_t>& total_;
  size_t own_ = 0;
};

}  // namespace

// Throws does_not_fit if the model, or every rung, is unavailable for now, and bad_model if it is unknown.
Service::RequestOptions Service::choose_for_bulk(const std::string& model, const std::string& source) {
  RequestOptions w;
  w.bulk = true;  // load must not split a flush or a job
  w.may_wait = true;
  try {
    choose_model(w, model, source, {ModelKind::classifier, ModelKind::rules});
  } catch (const Refusal& refusal) {
    fail(refusal.status == 503 ? ErrorCode::does_not_fit : ErrorCode::bad_model, "{}", refusal.message);
  }
  return w;
}

// Scores rows. Reports a model that cannot be loaded, so that its ladder chooses another rung next time.
ScoreTexts Service::bulk_scorer(const RequestOptions& options) {
  return [this, options](Texts texts, Texts pairs, std::stop_token stop) {
    RunningTexts running(slots_[static_cast<size_t>(options.model)]->running_texts);
    try {
      Predictions p = score_texts(*options.served->scorer, texts, pairs, std::move(stop),
                                  [&running](size_t done) { running.set(done); });
      count_bulk(options, texts.size() - p.errors.size(), p.tokens);
      return p;
    } catch (const Error& error) {
      note_if_not_loaded(*options.served, error);
      throw;
    }
  };
}

void Service::count_bulk(const RequestOptions& options, size_t texts, int64_t tokens) {
  const auto model = static_cast<size_t>(options.model);
  metrics_->count_off_thread([&](Counts& c) {
    c.texts[model][1][static_cast<size_t>(reason_of(options.reason))] += texts;
    c.tokens[model] += static_cast<uint64_t>(tokens);
  });
}

}  // namespace brim::serve
