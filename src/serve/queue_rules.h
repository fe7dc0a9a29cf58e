// SPDX-License-Identifier: Apache-2.0
// How a queue is set up: whose model scores it, when it is flushed, and what its items are given.
#pragma once
#include <cstdint>
#include <string>

namespace brim::serve {

// Names of the fields that a scored item gets; empty: not added.
struct ApplyFields {
  std::string compound = "sentiment_score";  // signed: positive minus negative, or VADER's
  std::string label = "sentiment_label";
  std::string score = "sentiment_confidence";
  std::string error = "sentiment_error";  // what is wrong with a text that has no score
  std::string reason = "reason";          // why its model was chosen
  std::string instead_of = "instead_of";  // the rung that model stands in for
};

struct QueueRules {
  std::string name;
  std::string place;         // file and line it was read from; may be empty
  std::string model;         // a model or a ladder; empty: the default one
  int64_t flush_size = 10;   // items
  int64_t flush_tokens = 0;  // of waiting texts, estimated; 0: however many
  int64_t flush_age_ms = 0;  // of the oldest item; 0: however old
  bool immediate = false;    // nothing waits
  ApplyFields apply;
};

}  // namespace brim::serve
