// SPDX-License-Identifier: Apache-2.0
#include "engine/label.h"

#include "text/vader/vader.h"

namespace brim::engine {

const std::vector<std::string>& vader_labels() {
  static const std::vector<std::string> names = {"negative", "neutral", "positive"};
  return names;
}

const std::vector<std::string>& vader_score_names() {
  static const std::vector<std::string> names = {"neg", "neu", "pos", "compound"};
  return names;
}

void score_by_vader(std::string_view text, float* four) {
  const text::VaderScores v = text::vader_scores(text);
  four[0] = static_cast<float>(v.neg);
  four[1] = static_cast<float>(v.neu);
  four[2] = static_cast<float>(v.pos);
  four[3] = static_cast<float>(v.compound);
}

Choice choose_vader_label(const float* four) {
  const double compound = four[3];  // exact to its four decimals as a float
  const text::VaderLabelScores shares = text::vader_label_scores(compound);
  const std::string_view label = text::vader_label(compound);
  const auto& names = vader_labels();
  return {static_cast<int32_t>(std::find(names.begin(), names.end(), label) - names.begin()),
          static_cast<float>(std::max({shares.negative, shares.neutral, shares.positive}))};
}

}  // namespace brim::engine
