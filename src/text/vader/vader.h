// SPDX-License-Identifier: Apache-2.0
// VADER, the rule-based sentiment scorer, in one pass over the text: a lexicon of rated words and rules for negation,
// intensifiers, capitals, punctuation, "but", a few idioms and emoji (by their descriptions). Scores equal those of the
// Python package vaderSentiment 3.3.2 under Python 3.11, including its quirks, to the last rounded digit; run time is
// linear, while the reference is quadratic in the text length.
#pragma once
#include <string_view>

namespace brim::text {

struct VaderScores {
  double neg, neu, pos;  // fractions of the text, rounded to 3 decimals; sum about 1, or all 0 without words
  double compound;       // total valence normalized to [-1, 1], rounded to 4 decimals
};

// Accepts any bytes; invalid UTF-8 counts as U+FFFD. Thread-safe.
VaderScores vader_scores(std::string_view utf8);

// "positive" from 0.05 up, "negative" from -0.05 down, else "neutral": the thresholds of VADER's authors.
const char* vader_label(double compound);

// One score per label, for classifier-like output. neg, neu and pos are unsuitable: they are fractions of words, so
// neutral is nearly always the largest regardless of the label. These scores are derived from the compound: the
// score of its sign is 0 at compound 0, one half at the threshold and 1 at the end of the scale, linear in between;
// neutral gets the rest. They sum to 1, and the largest belongs to vader_label's label. They measure strength and are
// not calibrated probabilities.
struct VaderLabelScores {
  double negative, neutral, positive;
};
VaderLabelScores vader_label_scores(double compound);

}  // namespace brim::text
