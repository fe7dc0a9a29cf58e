// SPDX-License-Identifier: Apache-2.0
// A model as it is served: its scorer with the name and options under which requests find it.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "brim/brim.h"

namespace brim::serve {

constexpr size_t kBytesPerToken = 4;  // estimate, for admission

// Size of a model's or request's labels. With zero-shot labels a text is computed once per label; a GLiNER model reads
// all labels together with each text.
struct LabelCost {
  size_t labels = 0;  // 0: the model's own classes, or entities
  // Template or marker, and label, in bytes: of all labels, and of the longest one.
  size_t hypothesis_bytes = 0, longest_hypothesis = 0;
};

struct ServedModel {
  std::string name;                // name used in requests
  std::string id;                  // as given by the user: a directory or repository name
  std::string revision;            // fingerprint of its files, 8 digits
  std::shared_ptr<Scorer> scorer;  // closed before the server is destroyed, so that no result arrives later
  std::optional<Pooling> pooling = {};
  double keep_alive_seconds = -1;  // idle time before it leaves the device; negative: never
  // Name and revision of the tagger whose head is part of `scorer`; empty: none.
  std::string tagger = {}, tagger_revision = {};
  std::string fault = {};  // load error if `scorer` is null
  LabelCost label_cost = {};
  std::string base = {};  // directory or name of the model of which it is an adapter; empty: none
};
using Served = std::shared_ptr<const ServedModel>;

}  // namespace brim::serve
