// SPDX-License-Identifier: Apache-2.0
// Functions of brim::Scorer and its base that its implementations override only if they support them, and submit() with
// a future.
#include <future>
#include <memory>

#include "base/error.h"
#include "brim/brim.h"

namespace brim {
namespace {

// Self-deleting completion that fulfils a std::promise.
class FutureCompletion final : public Completion {
 public:
  void done(std::span<Answer> answers) noexcept override {
    promise.set_value(std::move(answers[0].prediction));
    delete this;
  }
  std::promise<Prediction> promise;
};

}  // namespace

std::vector<std::shared_ptr<Scorer>> Scorer::open_together(std::span<const ScorerOptions> options) {
  return brim::open_together(options);
}
std::shared_ptr<Scorer> Scorer::open_beside(const Scorer& other, const ScorerOptions& options, bool other_stays) {
  return brim::open_beside(other, options, other_stays);
}
MemoryPlan Scorer::plan_together(std::span<const std::shared_ptr<Scorer>> scorers) {
  return brim::plan_together(scorers);
}

Completion::~Completion() = default;
PooledModel::~PooledModel() = default;
Scorer::~Scorer() = default;
ZeroShotLabels::~ZeroShotLabels() = default;
int64_t ZeroShotLabels::tokens_per_text() const { return 0; }
ScorerWork PooledModel::work() const { return {}; }
std::string Scorer::pci_bus_id() const { return {}; }
// For scorers without turns between clients
ClientWait PooledModel::wait_of(uint64_t, int64_t tokens, bool,
                                std::optional<std::chrono::steady_clock::time_point>) const {
  const ScorerLoad all = load();
  const double seconds = all.tokens_per_second > 0 ? static_cast<double>(tokens) / all.tokens_per_second : 0;
  return {all.tokens, all.wait_seconds, all.wait_seconds + seconds};
}
Predictions Scorer::score_pairs(std::span<const std::string_view>, std::span<const std::string_view>, std::stop_token,
                                const std::function<void(size_t)>&) {
  fail(ErrorCode::usage, "this model does not support pairs");
}
Predictions Scorer::embed(std::span<const std::string_view>, std::string_view, std::stop_token,
                          const std::function<void(size_t)>&) {
  fail(ErrorCode::usage, "embeddings require a scorer opened with `pooling`");
}
Predictions Scorer::embed_pairs(std::span<const std::string_view> texts, std::span<const std::string_view>,
                                std::string_view prompt, std::stop_token stop,
                                const std::function<void(size_t)>& progress) {
  return Scorer::embed(texts, prompt, stop, progress);
}
std::string Scorer::model() const { return {}; }
bool Scorer::multi_label() const { return false; }
std::string Scorer::precision_reason() const { return {}; }
std::optional<Error> Scorer::why_no_pairs() const {
  return Error(ErrorCode::usage, "this model does not support pairs");
}
std::optional<Pooling> Scorer::pooling() const { return std::nullopt; }
Residence PooledModel::residence() const { return Residence::resident; }
std::shared_ptr<const ZeroShotLabels> Scorer::prepare_labels(const ZeroShot&) const {
  fail(ErrorCode::usage, "candidate_labels: requires an NLI model; VADER's rules have fixed labels");
}
bool Scorer::finds_entities_by_label() const { return false; }
std::shared_ptr<const ZeroShotLabels> Scorer::prepare_entities(const EntityLabels&) const {
  fail(ErrorCode::usage, "labels: entities by label require a GLiNER model");
}
Predictions Scorer::classify(std::span<const std::string_view>, const ZeroShotLabels&, std::stop_token,
                             const std::function<void(size_t)>&) {
  fail(ErrorCode::usage, "candidate_labels: requires an NLI model; VADER's rules have fixed labels");
}
void PooledModel::park() {}
void PooledModel::load_weights() {}
void PooledModel::keep_loaded(bool) {}
bool PooledModel::close_device() { return false; }

std::string Scorer::decode(std::span<const int32_t>, bool) const {
  fail(ErrorCode::usage, "this model has no tokenizer");
}

std::future<Prediction> Scorer::submit(const Request& request) {
  auto completion = std::make_unique<FutureCompletion>();
  std::future<Prediction> answer = completion->promise.get_future();
  submit(request, *completion);
  (void)completion.release();  // it is completed already, or will be
  return answer;
}

}  // namespace brim
