// SPDX-License-Identifier: Apache-2.0
// What queues, jobs and streams of rows have in common: the choice of their model, and scoring with it. Off the I/O
// threads.
#include "base/error.h"
#include "serve/service.h"

namespace brim::serve {

// Throws does_not_fit where the model, or every rung, cannot answer for now, and bad_model where there is none.
Service::RequestOptions Service::choose_for_bulk(const std::string& model, const std::string& source) {
  RequestOptions w;
  w.bulk = true;  // load splits neither a flush nor a job
  w.may_wait = true;
  try {
    choose_model(w, model, source, {ModelKind::classifier, ModelKind::rules});
  } catch (const Refusal& refusal) {
    fail(refusal.status == 503 ? ErrorCode::does_not_fit : ErrorCode::bad_model, "{}", refusal.message);
  }
  return w;
}

// Of rows. A model that cannot be loaded is reported, so that its ladder chooses another the next time.
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
  metrics_->count_beside([&](Counts& c) {
    c.texts[model][1][static_cast<size_t>(reason_of(options.reason))] += texts;
    c.tokens[model] += static_cast<uint64_t>(tokens);
  });
}

}  // namespace brim::serve
