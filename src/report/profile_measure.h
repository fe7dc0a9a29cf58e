// SPDX-License-Identifier: Apache-2.0
// Measures one model; profile.cc combines several and the language model.
#pragma once
#include <span>

#include "engine/scorer_access.h"
#include "report/profile.h"

namespace brim::monitor {
class Nvml;
}  // namespace brim::monitor

namespace brim::report {

// A selection of texts, with as many second texts or none.
struct TextsTaken {
  std::span<const std::string_view> texts, pairs;
  std::optional<std::string_view> pair(size_t i) const {
    return pairs.empty() ? std::nullopt : std::optional(pairs[i]);
  }
};

// Cycles through the texts, for any number requested.
class TextRing {
 public:
  explicit TextRing(const ProfileTexts& from) : from_(from) {}
  TextsTaken take(size_t count);
  size_t next() const { return next_; }

 private:
  const ProfileTexts& from_;
  std::vector<std::string_view> texts_, pairs_;
  size_t next_ = 0;
};

// A model under test: texts in, labels out, through the public interfaces.
class Subject {
 public:
  explicit Subject(std::shared_ptr<Scorer> model) : model_(std::move(model)) {}
  Scorer& model() const { return *model_; }
  bool is_rules() const { return model_->kind() == ModelKind::rules; }
  bool per_token() const { return model_->kind() == ModelKind::tagger; }
  engine::Engine& engine() const { return engine::engine_of(*model_); }  // throws for rules
  double busy_seconds() const { return is_rules() ? 0 : engine().busy_seconds(); }
  void score(const TextsTaken& taken) const;

 private:
  std::shared_ptr<Scorer> model_;
};

using Step = std::function<void(const std::string& what)>;  // a progress step begins

ModelProfile measure_model(const ProfileOptions& options, const std::string& name, const std::filesystem::path& dir,
                           const ProfileTexts& texts, monitor::Nvml& nvml, const Step& step);
int64_t steps_per_model(const ProfileOptions& options);

// Asks the kernel to drop the directory's files from the page cache; returns the fraction still cached, if known. Needs
// no privileges: pages mapped by other processes stay.
std::optional<double> drop_from_cache(const std::filesystem::path& dir);

// Options of the model in `dir`; of VADER if empty.
ScorerOptions profile_options(const ProfileOptions& options, const std::filesystem::path& dir);

void throw_if_stopped(const std::atomic<bool>* stop);

}  // namespace brim::report
