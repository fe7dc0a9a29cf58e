// SPDX-License-Identifier: Apache-2.0
// Configuration of a queue: its model, when it is flushed, and the fields its items get.
#pragma once
#include <cstdint>
#include <string>

namespace brim::serve {

// Names of the fields added to a scored item; empty: not added.
struct ApplyFields {
  std::string compound = "sentiment_score";  // p(positive) - p(negative), or VADER's compound
  std::string label = "sentiment_label";
  std::string score = "sentiment_confidence";
  std::string entities = "entities";      // taggers: in place of label and score
  std::string error = "sentiment_error";  // error message of a text without a score
  std::string reason = "reason";          // reason for the choice of model
  std::string instead_of = "instead_of";  // the rung that this model replaces
};

struct QueueRules {
  std::string name;
  std::string location;      // file and line, for messages; may be empty
  std::string model;         // model or ladder; empty: default
  int64_t flush_size = 10;   // items
  int64_t flush_tokens = 0;  // estimated tokens of the waiting texts; 0: no limit
  int64_t flush_age_ms = 0;  // age of the oldest item; 0: no limit
  bool immediate = false;    // score every call at once
  ApplyFields apply;
};

}  // namespace brim::serve
