// SPDX-License-Identifier: Apache-2.0
#include "train/train_data.h"

#include <algorithm>
#include <cmath>

#include "base/env.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "base/units.h"
#include "train/content_hash.h"
#include "train/token_cache.h"

namespace brim::train {
namespace {

// Weights inversely proportional to the number of rows of each class; 0 for classes without rows.
std::vector<float> balanced_weights(const TaskSpec& spec, const TrainSet& train_set) {
  const auto K = static_cast<size_t>(spec.shape.sequence_classes);
  std::vector<float> weights;
  std::vector<double> count(K, 0);
  double rows = 0;
  if (spec.shape.multi_label) {
    for (size_t i = 0; i < train_set.multi_label.size(); ++i) {
      const float mark = std::max(0.0f, train_set.multi_label[i]);  // -1: unlabelled row
      count[i % K] += mark;
      rows += mark;
    }
  } else {
    for (const int32_t label : train_set.label)
      if (label >= 0) {
        ++count[static_cast<size_t>(label)];
        ++rows;
      }
  }
  for (const double c : count)
    weights.push_back(c > 0 ? static_cast<float>(rows / (static_cast<double>(K) * c)) : 0.0f);
  return weights;
}

std::vector<float> parse_class_weights(const TaskSpec& spec, const TrainSet& train_set) {
  const std::string& text = spec.settings.class_weights;
  const auto K = static_cast<size_t>(spec.shape.sequence_classes);
  if (text == "none" || K == 0) return {};
  if (text == "balanced") return balanced_weights(spec, train_set);
  std::vector<float> weights;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    char* stop = nullptr;
    const std::string part = text.substr(at, end - at);
    weights.push_back(std::strtof(part.c_str(), &stop));
    if (stop != part.c_str() + part.size() || part.empty())
      fail(ErrorCode::usage, "class_weights '{}': use none, balanced or numbers separated by commas", text);
    at = end + 1;
  }
  if (weights.size() != K)
    fail(ErrorCode::usage, "class_weights has {} numbers, the model has {} classes: {}", weights.size(), K,
         fmt::join(spec.labels.sequence, ", "));
  for (const float w : weights)
    if (!(w >= 0) || std::isinf(w)) fail(ErrorCode::usage, "class_weights '{}': weights must be numbers from 0", text);
  if (std::none_of(weights.begin(), weights.end(), [](float w) { return w > 0; }))
    fail(ErrorCode::usage, "class_weights '{}': all weights are zero", text);
  return weights;
}

std::string hash_of_data(const TrainData& data) {
  ContentHash hash;
  for (const TrainSet* set : {&data.train_set, &data.validation_set}) {
    hash.add_all(set->ids, set->mapped.get());
    hash.add_all(set->begin, set->mapped.get());
    hash.add_all(set->label, set->mapped.get());
    hash.add_all(set->multi_label, set->mapped.get());
    hash.add_all(set->token_label, set->mapped.get());
  }
  return hash.hex();
}

}  // namespace

TrainData read_train_data(const TaskSpec& spec) {
  const TrainSettings& s = spec.settings;
  ThreadPool pool(spec.device->kind() == device::DeviceKind::cpu ? spec.threads : hardware_threads());
  const auto cached = cache_dir() / "tokens";
  TokenCache cache(cached, cache_limit(cached));
  const auto load = [&](const std::vector<std::string>& files, const std::string& token_file) {
    TrainSet set = cache.get(
        token_cache_key(files, token_file, s, spec.task, spec.labels, spec.model_dir, spec.max_length),
        [&](TrainRows& rows) {
          collect_rows(rows, files, token_file, s, spec.task, spec.labels, *spec.tokenizer, spec.max_length, pool);
        });
    if (set.rows() == 0) fail(ErrorCode::bad_data, "{}: no rows", files[0]);
    return set;
  };
  TrainData data;
  data.train_set = load(s.train_files, s.token_train_file);
  data.tokens_cached = cache.hit();
  data.unlabelled = data.train_set.unlabelled();
  if (data.unlabelled > 0 && s.hard_weight == 1)
    fail(ErrorCode::usage, Remedy{"set `hard_weight` below 1"},
         "`hard_weight=1`: {} without a label would have no effect", format_count(data.unlabelled, "row"));
  data.validation_set =
      s.validation_files.empty() ? TrainSet(TrainRows{}) : load(s.validation_files, s.token_validation_file);
  data.data_hash = hash_of_data(data);
  data.class_weights = parse_class_weights(spec, data.train_set);
  return data;
}

std::vector<std::string> notes_on_data(const TaskSpec& spec, const TrainData& data) {
  const std::vector<std::string>& names = spec.labels.sequence;
  std::vector<std::string> notes;
  if (!spec.settings.numbers()) {
    if (std::string note = note_on_labels(names); !note.empty()) notes.push_back(std::move(note));
    if (spec.task != TrainTask::token)
      for (std::string& note : notes_on_classes(names, rows_by_class(data.train_set, names.size())))
        notes.push_back(std::move(note));
  }
  for (const TrainSet* set : {&data.train_set, &data.validation_set})
    if (set->skipped > 0)
      notes.push_back(fmt::format(
          "{} skipped{}", format_count(set->skipped, set == &data.train_set ? "training row" : "validation row"),
          set->first_skipped.empty() ? "" : ", first: " + set->first_skipped));
  if (data.train_set.truncated > 0)
    notes.push_back(fmt::format("{} truncated to {} tokens", format_count(data.train_set.truncated, "training text"),
                                spec.max_length));
  return notes;
}

}  // namespace brim::train
