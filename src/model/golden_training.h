// SPDX-License-Identifier: Apache-2.0
// Test support for training: runs the golden sequences and targets of a tiny model on any device and compares its
// gradients with PyTorch's (gradients.json, fp64).
#pragma once
#include <algorithm>
#include <memory>
#include <numeric>

#include "base/token.h"
#include "memory/ledger.h"
#include "model/golden_models.h"
#include "model/train_runner.h"
#include "model/weights.h"

namespace brim::model {

class GoldenTraining {
 public:
  // `dropout` applies everywhere; the goldens use none.
  GoldenTraining(device::Device& device, const std::string& name, ops::Precision precision, int threads = 1,
                 float dropout = 0, const Freeze& freeze = {}, const hub::LoraConfig& lora = {})
      : device_(device),
        precision_(precision),
        threads_(threads),
        shape_(as_trained(read_shape(golden_models() / name), dropout, freeze, lora)),
        gradients_(golden_json(name, "gradients.json")),
        ids_(golden_json(name, "golden.json")["ids"].get<std::vector<std::vector<int32_t>>>()),
        stream_(device.make_stream()),
        state_(device, shape_, precision, Optimizer::adamw) {
    std::vector<float> master;
    load_master(*hub::WeightSource::open(golden_models() / name), shape_, 0, 0, master);
    state_.upload(*stream_, master);
  }

  const ModelShape& shape() const { return shape_; }
  const nlohmann::json& golden() const { return gradients_; }
  TrainState& state() { return state_; }
  device::Stream& stream() { return *stream_; }
  size_t sequences() const { return ids_.size(); }

  // Number of counted targets in these sequences, the denominator of the mean loss.
  double weight(const std::vector<size_t>& rows) const {
    double sum = 0;
    for (const size_t r : rows) {
      if (shape_.token_classes == 0)
        ++sum;
      else
        for (const auto& t : gradients_["targets"][r]) sum += t != -100;
    }
    return sum;
  }

  // Call before a step with these sequences; computes the fp8 scales, with calibration passes at the start of a run.
  void begin_step(const std::vector<size_t>& rows, double scale) {
    const auto unit = static_cast<float>(scale);
    for (int i = 0, n = state_.needs_calibration() ? kFp8CalibrationPasses : 0; i < n; ++i) {
      state_.begin_step(*stream_, unit);
      pass(rows, Recompute::none, scale);
      state_.end_calibration(*stream_);
    }
    state_.begin_step(*stream_, unit);
  }

  // Runs one micro-batch of these sequences: accumulates gradients of loss * scale, returns the summed loss.
  double pass(const std::vector<size_t>& rows, Recompute recompute, double scale) {
    std::vector<std::vector<int32_t>> sequences;
    std::vector<int32_t> classes;
    std::vector<float> marks;
    for (const size_t r : rows) {
      sequences.push_back(ids_[r]);
      const auto& target = gradients_["targets"][r];
      if (shape_.token_classes > 0)
        for (const auto& t : target) classes.push_back(t);
      else if (shape_.regression)
        marks.push_back(target);
      else if (shape_.multi_label)
        for (const auto& t : target) marks.push_back(t);
      else
        classes.push_back(target);
    }
    std::vector<device::DeviceBuffer> held;
    const auto put = [&](const auto& values, tensor::DType type, std::initializer_list<int64_t> dims) {
      held.push_back(memory::Ledger::allocate(device_, nullptr, memory::Tag::staging, "test",
                                              static_cast<int64_t>(values.size() * sizeof values[0])));
      stream_->copy(held.back().data(), values.data(), held.back().bytes());
      return tensor::TensorView(held.back().data(), type, dims);
    };
    const auto ints = [&](const std::vector<int32_t>& v) {
      return put(v, tensor::DType::i32, {static_cast<int64_t>(v.size())});
    };
    const GoldenBatch batch(sequences, shape_.position_offset);
    const std::vector<int32_t> by_id = sorted_by(batch.ids), by_position = sorted_by(batch.positions);
    ops::BatchView view = batch.view();
    view.ids = ints(batch.ids);
    view.positions = ints(batch.positions);
    view.starts = ints(batch.starts);
    view.order = ints(batch.order);
    const bool cpu = device_.kind() == device::DeviceKind::cpu;
    const TrainPassPlan plan =
        plan_train_pass(shape_, precision_, recompute, device_.kind(), cpu ? device::best_isa() : device::Isa::generic,
                        threads_, {view.T, view.B, view.S});
    const device::DeviceBuffer arena = memory::Ledger::allocate(device_, nullptr, plan.placement.at_peak, "test");
    const std::vector<uint8_t> poison(arena.bytes(), 0xFF);  // NaN, to detect reads of uninitialized memory
    stream_->copy(arena.data(), poison.data(), poison.size());
    TrainPass pass{state_.architecture(), state_.params(), recompute, {}, {{}, ints(by_id), ints(by_position)}};
    pass.training.dropout = {shape_.has_dropout(), 0x5eed};
    pass.loss.sequence_scale = pass.loss.token_scale = static_cast<float>(scale);
    TrainTargets t;
    if (shape_.token_classes > 0)
      t.token = ints(classes);
    else if (shape_.number_targets())
      t.sequence = put(marks, tensor::DType::f32, {view.B, shape_.sequence_classes});
    else
      t.sequence = ints(classes);
    const TrainResult result = run_train_pass(*stream_, arena.data(), plan, pass, view, t, threads_);
    float losses[2] = {};
    stream_->copy(losses, result.loss.data, sizeof losses);
    stream_->synchronize();
    return losses[shape_.token_classes > 0 ? 1 : 0];
  }

  // Accumulated gradient of parameter p.
  std::vector<float> gradient(size_t p) {
    const tensor::TensorView& g = state_.params()[p].grad;
    std::vector<float> values(static_cast<size_t>(g ? g.elements() : 0));
    if (g) stream_->copy(values.data(), g.data, static_cast<size_t>(g.bytes()));
    stream_->synchronize();
    return values;
  }

 private:
  static ModelShape as_trained(ModelShape shape, float dropout, const Freeze& freeze, const hub::LoraConfig& lora) {
    shape.freeze = freeze;
    shape.lora = lora;
    shape.hidden_dropout = shape.attention_dropout = shape.head_dropout = dropout;
    shape.feed_forward_dropout = shape.gated ? dropout : 0;
    shape.regression = shape.sequence_classes == 1;
    return shape;
  }
  static std::vector<int32_t> sorted_by(const std::vector<int32_t>& keys) {
    std::vector<int32_t> rows(keys.size());
    std::iota(rows.begin(), rows.end(), 0);
    std::stable_sort(rows.begin(), rows.end(), [&](int32_t a, int32_t b) {
      return id_of(keys[static_cast<size_t>(a)]) < id_of(keys[static_cast<size_t>(b)]);
    });
    return rows;
  }

  device::Device& device_;
  ops::Precision precision_;
  int threads_;
  ModelShape shape_;
  nlohmann::json gradients_;
  std::vector<std::vector<int32_t>> ids_;
  std::unique_ptr<device::Stream> stream_;
  TrainState state_;
};

}  // namespace brim::model
