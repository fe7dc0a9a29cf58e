// SPDX-License-Identifier: Apache-2.0
#include "train/validation.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/thread_pool.h"
#include "batch/packed_batch.h"
#include "memory/placement.h"
#include "ops/loss.h"
#include "rows/metrics.h"

namespace brim::train {

using model::Output;

namespace {

ThreadPool* pool_of(device::Stream& stream) {
  return stream.kind() == device::DeviceKind::cpu ? static_cast<device::CpuStream&>(stream).pool() : nullptr;
}

double cross_entropy_of(const float* logits, int64_t K, int32_t target) {
  const float top = *std::max_element(logits, logits + K);
  double sum = 0;
  for (int64_t k = 0; k < K; ++k) sum += std::exp(static_cast<double>(logits[k]) - top);
  return std::log(sum) + top - logits[target];
}

}  // namespace

double ValidationResult::value(const std::string& name) const {
  for (const auto& [key, number] : values)
    if (key == name) return number;
  std::vector<std::string> names;
  for (const auto& [key, number] : values) names.push_back(key);
  fail(ErrorCode::usage, "metric_for_best_model {}: not available for this task, which has {}", name,
       fmt::join(names, ", "));
}

Validator::Validator(const TrainJob& job, const model::TrainState& state)
    : job_(job),
      weights_(state.params()),
      plan_(plan_validation(job.shape, job.precision, job.device->kind(), device::best_isa(), job.threads,
                            job.plan.limits())) {}

void Validator::run_pass(device::Stream& stream, Output output,
                         const std::function<void(int64_t, const float*, int32_t)>& take) {
  const model::ForwardPlan& plan = output == Output::token_logits ? plan_.token : plan_.sequence;
  model::ForwardRunner runner(job_.shape, weights_, plan, arena_, pool_of(stream));
  const int64_t K = output_width(job_.shape, output);
  const TrainSet& set = job_.validation_set;
  batch::Packer packer({plan_.limits.tokens, plan_.limits.sequences}, job_.shape.position_offset);
  batch::PackedBatch batch;
  std::vector<float> host;
  const bool cpu = stream.kind() == device::DeviceKind::cpu;
  char* staging = static_cast<char*>(arena_) + plan_.pass_bytes();
  auto flush = [&] {
    packer.pop(batch);
    ops::BatchView view = batch.view();
    if (!cpu) {
      int64_t at = 0;
      for (tensor::TensorView* v : {&view.ids, &view.positions, &view.starts, &view.order}) {
        stream.copy(staging + at, v->data, static_cast<size_t>(v->bytes()));
        v->data = staging + at;
        at += memory::align_up(v->bytes());
      }
    }
    if (spans_ != nullptr) spans_->begin();
    const tensor::TensorView result = runner.run(stream, view);
    if (spans_ != nullptr) spans_->end(batch.tokens());
    host.resize(static_cast<size_t>(result.elements()));
    stream.copy(host.data(), result.data, host.size() * 4);
    stream.synchronize();
    if (spans_ != nullptr) spans_->record_completed();
    for (int64_t b = 0; b < batch.sequences(); ++b) {
      const int64_t row = output == Output::token_logits ? batch.starts[static_cast<size_t>(b)] : b;
      take(static_cast<int64_t>(batch.tickets[static_cast<size_t>(b)]), host.data() + row * K,
           batch.starts[static_cast<size_t>(b) + 1] - batch.starts[static_cast<size_t>(b)]);
    }
    if (cpu) set.release_pages();
  };
  for (int64_t row = 0; row < set.rows(); ++row) {
    packer.push({set.ids.data() + set.begin[static_cast<size_t>(row)], set.length(row), static_cast<uint64_t>(row)});
    while (packer.ready()) flush();
  }
  while (!packer.empty()) flush();
}

ValidationResult Validator::run(device::Stream& stream) {
  ValidationResult result;
  if (job_.shape.sequence_classes > 0) evaluate_classes(stream, result);
  if (job_.shape.token_classes > 0) evaluate_tags(stream, result);
  return result;
}

void Validator::evaluate_classes(device::Stream& stream, ValidationResult& result) {
  const TrainSet& set = job_.validation_set;
  const int64_t K = job_.shape.sequence_classes;
  double loss = 0, weight = 0;
  std::vector<int32_t> expected, predicted;
  std::vector<double> wanted, given;  // regression only
  rows::MultiLabelCounts counts(static_cast<size_t>(K));
  run_pass(stream, Output::sequence_logits, [&](int64_t row, const float* logits, int32_t) {
    if (job_.shape.regression) {
      wanted.push_back(static_cast<double>(set.multi_label[static_cast<size_t>(row)]));
      given.push_back(static_cast<double>(logits[0]));
      return;
    }
    if (job_.shape.multi_label) {
      const float* target = set.multi_label.data() + row * K;
      if (target[0] < 0) return;
      expected.clear();
      predicted.clear();
      for (int64_t k = 0; k < K; ++k) {
        const double z = logits[k];
        loss += (std::max(z, 0.0) - z * target[k] + std::log1p(std::exp(-std::abs(z)))) / static_cast<double>(K);
        expected.push_back(target[k] > 0.5f);
        predicted.push_back(z > 0);
      }
      counts.add(expected, predicted);
      ++weight;
      return;
    }
    const int32_t label = set.label[static_cast<size_t>(row)];
    if (label < 0) return;  // row of the other task, or unlabelled
    loss += cross_entropy_of(logits, K, label);
    ++weight;
    expected.push_back(label);
    predicted.push_back(static_cast<int32_t>(std::max_element(logits, logits + K) - logits));
  });
  if (job_.shape.regression) {
    const rows::RegressionMetrics m = rows::regression_metrics(wanted, given);
    result.values = {{"loss", m.mse}, {"mse", m.mse}, {"pearson", m.pearson}, {"spearman", m.spearman}};
    return;
  }
  const rows::ClassificationMetrics m =
      job_.shape.multi_label ? counts.metrics()
                             : rows::classification_metrics(expected, predicted, static_cast<int32_t>(K));
  result.values = {{"loss", loss / std::max(1.0, weight)},
                   {"accuracy", m.accuracy},
                   {"macro_f1", m.macro_f1},
                   {"macro_recall", m.macro_recall}};
}

void Validator::evaluate_tags(device::Stream& stream, ValidationResult& result) {
  const TrainSet& set = job_.validation_set;
  const int64_t K = job_.shape.token_classes;
  double token_loss = 0, tagged = 0;
  std::vector<std::vector<std::string>> expected, predicted;
  run_pass(stream, Output::token_logits, [&](int64_t row, const float* logits, int32_t length) {
    std::vector<std::string> want, got;
    for (int32_t t = 0; t < length; ++t) {
      const int32_t label = set.token_label[static_cast<size_t>(set.begin[static_cast<size_t>(row)] + t)];
      if (label == ops::kIgnoredTarget) continue;
      const float* of_token = logits + t * K;
      token_loss += cross_entropy_of(of_token, K, label);
      ++tagged;
      want.push_back(job_.labels.token[static_cast<size_t>(label)]);
      got.push_back(job_.labels.token[static_cast<size_t>(std::max_element(of_token, of_token + K) - of_token)]);
    }
    if (want.empty()) return;
    expected.push_back(std::move(want));
    predicted.push_back(std::move(got));
  });
  const double mean_loss = token_loss / std::max(1.0, tagged), f1 = rows::entity_metrics(expected, predicted).f1;
  if (result.values.empty()) {
    result.values = {{"loss", mean_loss}, {"entity_f1", f1}};
    return;
  }
  // Both heads: the loss is their sum, same as in training.
  const double macro_f1 = result.value("macro_f1"), sequence_loss = result.values[0].second;
  result.values[0].second += mean_loss;
  result.values.emplace_back("entity_f1", f1);
  result.values.emplace_back("mean_f1", (macro_f1 + f1) / 2);
  result.values.emplace_back("sequence_loss", sequence_loss);
  result.values.emplace_back("token_loss", mean_loss);
}

}  // namespace brim::train
