// SPDX-License-Identifier: Apache-2.0
// Labels given by a call instead of the model's own: classes of an NLI model (zero_shot.h) or entities of a GLiNER
// model (entity_task.h). Immutable; must not outlive the engine it was made by.
#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "base/error.h"
#include "brim/brim.h"
#include "engine/engine_options.h"
#include "engine/tokenized_texts.h"

namespace brim::engine {

class EntityTask;

class LabelTask : public ZeroShotLabels {
 public:
  // The engine that made it; another one may have other token ids, classes or limits.
  const void* engine = nullptr;
  // All settings as text: equal if and only if the results of tasks of one engine are.
  virtual std::string identity() const = 0;
  // Appends a text with its windows.
  virtual std::optional<Error> tokenize(std::string_view text, const TextOptions& options,
                                        TokenizedTexts& out) const = 0;
  // Converts the logits of a text's windows to one score per label. `how` merges the parts of a long text. Classes
  // only.
  virtual void merge(std::span<const float> logits, LongText how, float* scores) const = 0;
  // Work and memory per text as a multiple of that of a text without such labels.
  virtual size_t cost() const = 0;
  virtual const EntityTask* entities() const { return nullptr; }  // this if it finds entities
  // Words of a window for a head on a device.
  virtual batch::SequenceWords words_of(const TokenizedTexts&, size_t) const { return {}; }
};

inline batch::Sequence TokenizedTexts::sequence(size_t window, uint64_t ticket) const {
  batch::Sequence made{ids.data() + windows[window].begin, windows[window].length, ticket};
  if (zero_shot != nullptr) made.words = zero_shot->words_of(*this, window);
  return made;
}

}  // namespace brim::engine
