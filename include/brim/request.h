// SPDX-License-Identifier: Apache-2.0
// Requests to a scorer and the interface that receives their answers. Uses standard types only.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "brim/options.h"
#include "brim/result.h"

namespace brim {

// Labels checked and tokenized for one scorer, see Scorer::prepare_labels and Scorer::prepare_entities.
class BRIM_API ZeroShotLabels {
 public:
  virtual ~ZeroShotLabels();
  virtual const std::vector<std::string>& labels() const = 0;
  virtual bool multi_label() const = 0;
  virtual int64_t tokens_per_text() const;  // tokens that are computed for the labels again with each text
};

struct Request {
  std::string_view text;                                               // not used after submit() returns
  uint64_t ticket = 0;                                                 // chosen by the caller; returned in Answer
  std::optional<std::chrono::steady_clock::time_point> deadline = {};  // work not started by then is rejected
  std::stop_token stop = {};                                           // cancels work that is not started
  std::optional<LongText> long_text = {};                              // default: the scorer's
  int64_t max_length = 0;   // tokens of this text, at most the scorer's; 0: the scorer's; not with `ids`
  bool keep_end = false;    // truncate at the beginning instead
  bool raw_scores = false;  // scores before softmax or sigmoid; requires ScorerOptions::raw_scores
  bool bulk = false;        // low priority; still gets a tenth of the batches
  uint64_t client = 0;  // waiting texts of several clients take turns by tokens; deadlines order texts of one client
  std::optional<std::string_view> pair = {};  // second text of a pair; same lifetime as `text`
  // If not empty: token ids used unchanged instead of `text`; no special tokens are added. Not for taggers.
  std::span<const int32_t> ids = {};
  std::optional<std::string_view> prompt = {};  // embedding models only: prepended to `text`; default: the scorer's
  std::optional<Aggregation> aggregation = {};  // taggers only; default: the scorer's
  bool outside = false;                         // taggers only: also return tokens and words tagged O
  // Tokens shared by neighbouring windows of a long text, at most half a window. Negative: a quarter window for
  // taggers, 0 otherwise. A tagger takes each shared token from the window in which it is farther from an edge.
  int32_t overlap = -1;
  // For scorers opened with a tagger: also return its entities, from the same pass. The label of a text longer than one
  // window comes from its beginning, as with truncation.
  bool entities = false;
  // From prepare_labels() of this scorer: classify by these labels instead; Prediction::scores are in their order. Or
  // from prepare_entities(): find these entities.
  std::shared_ptr<const ZeroShotLabels> zero_shot = {};
};

struct Answer {
  uint64_t ticket = 0;
  Prediction prediction;
};

// Receives answers: exactly one per request, those of one batch in one call. Called on the device thread, or on the
// thread that submits or closes; must not block.
class BRIM_API Completion {
 public:
  virtual ~Completion();
  virtual void done(std::span<Answer> answers) noexcept = 0;
};

}  // namespace brim
