// SPDX-License-Identifier: Apache-2.0
// Results of scoring: of one text, of many texts as columns, and tokens of a text. Uses standard types only.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "brim/error.h"

namespace brim {

struct Entity {
  std::string group, word;
  float score = 0;
  int32_t start = 0, end = 0;  // code points of the text
  int32_t token = -1;          // Aggregation::none: index among the text's tokens, including special ones
};

// Latency of a submitted text in seconds.
struct Timing {
  double waited = 0;    // from submit() to the start of its batch
  double computed = 0;  // from there to its result
};

// Result for one text. Outputs that the model does not have are empty.
struct Prediction {
  std::string label;
  float score = 0;            // score of that label
  std::vector<float> scores;  // in the order of Scorer::score_names()
  std::vector<Entity> entities;
  std::vector<float> embedding;
  int32_t vectors = 0;     // number of vectors in `embedding`: 1, or with Pooling::none one per token read
  bool truncated = false;  // its end was cut off, or its beginning with keep_end
  int32_t tokens = 0;      // in the whole text, including special ones; 0 for rules
  Timing timing;
  std::optional<Error> error;  // if set, there is no result
};

// Results for many texts as columns; row i belongs to text i.
struct Predictions {
  size_t rows = 0, width = 0;
  std::vector<int32_t> labels;                   // indices into Scorer::labels(); -1 if none
  std::vector<float> scores;                     // [rows,width]: one column per score_names(), or the embeddings
  std::vector<float> label_scores;               // score of the chosen label
  std::vector<std::vector<Entity>> entities;     // empty except for taggers
  std::vector<uint8_t> truncated;                // 0 or 1
  std::vector<std::pair<size_t, Error>> errors;  // texts without a result, by row
  int64_t tokens = 0;                            // total tokens read, including special ones; 0 for rules
};

struct TextToken {
  int32_t id = 0;
  std::string text;            // spelling in the vocabulary
  int32_t start = 0, end = 0;  // code points of the text
  bool special = false;        // added by the tokenizer
};

}  // namespace brim
