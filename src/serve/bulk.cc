// SPDX-License-Identifier: Apache-2.0
// Shared by queues, jobs and row streams: model choice and scoring. Runs off the I/O threads.
#include "base/error.h"
#include "serve/service.h"

namespace brim::serve {

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
    try {
      Predictions p = score_texts(*options.served->scorer, texts, pairs, std::move(stop));
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
