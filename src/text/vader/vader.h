// SPDX-License-Identifier: Apache-2.0
// VADER, the rule-based sentiment scorer, in one pass over the text: a lexicon of rated words, and rules for
// negation, intensifiers, capitals, punctuation, "but", a few idioms and emoji (read by their descriptions).
// Scores equal those of the Python package vaderSentiment 3.3.2 under Python 3.11, its accidents included, to the
// last rounded digit; time grows linearly where the reference's grows with the square of the text.
#pragma once
#include <string_view>

namespace brim::text {

struct VaderScores {
  double neg, neu, pos;  // shares of the text, rounded to 3 decimals; they sum to about 1, or are all 0 for no words
  double compound;       // the summed valence squeezed into [-1, 1], rounded to 4 decimals
};

// Any bytes are accepted; invalid UTF-8 counts as U+FFFD. Safe to call from any number of threads.
VaderScores vader_scores(std::string_view utf8);

// "positive" from 0.05 up, "negative" from -0.05 down, else "neutral": the thresholds VADER's authors give.
const char* vader_label(double compound);

// A share for each label, for output that wants one score a label as a classifier gives. neg, neu and pos will not do:
// they are shares of words, so that neutral nearly always leads whatever the label is. These are read off the
// compound instead: the leaning side gets 0 at compound 0, one half at the threshold, 1 at the end of the scale,
// straight lines between; neutral gets the rest. They sum to 1, and the largest belongs to vader_label's label.
// A measure of strength, not a calibrated probability.
struct VaderLabelScores {
  double negative, neutral, positive;
};
VaderLabelScores vader_label_scores(double compound);

}  // namespace brim::text
