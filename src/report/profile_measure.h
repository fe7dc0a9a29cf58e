// SPDX-License-Identifier: Apache-2.0
// Measuring one model; profile.cc puts several, and a language model, together.
#pragma once
#include <span>

#include "report/profile.h"

namespace brim::monitor {
class Nvml;
}  // namespace brim::monitor

namespace brim::report {

// Some of the texts, and as many second texts or none.
struct TextsTaken {
  std::span<const std::string_view> texts, pairs;
  std::optional<std::string_view> pair(size_t i) const {
    return pairs.empty() ? std::nullopt : std::optional(pairs[i]);
  }
};

// The texts in turn, however many are asked for.
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

// A model under test. Texts in, labels out, through the doors users have.
class Subject {
 public:
  explicit Subject(std::unique_ptr<engine::TextModel> model) : model_(std::move(model)) {}
  engine::TextModel& model() const { return *model_; }
  engine::Engine* engine() const { return model_->engine(); }  // null: rules
  bool per_token() const;
  void score(const TextsTaken& taken) const;

 private:
  std::unique_ptr<engine::TextModel> model_;
};

using Step = std::function<void(const std::string& what)>;  // one step of the progress begins

ModelProfile measure_model(const ProfileOptions& options, const std::string& name, const std::filesystem::path& dir,
                           const ProfileTexts& texts, monitor::Nvml& nvml, const Step& step);
int64_t steps_per_model(const ProfileOptions& options);

// Asks the system to forget the directory's files; the share it still holds, where it tells. Needs no privilege: pages
// that another process has mapped stay.
std::optional<double> drop_from_cache(const std::filesystem::path& dir);

void throw_if_stopped(const std::atomic<bool>* stop);

}  // namespace brim::report
