// SPDX-License-Identifier: Apache-2.0
#include "train/micro_batch.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/token.h"
#include "memory/placement.h"
#include "model/staging.h"
#include "ops/gather_tokens.h"
#include "ops/loss.h"

namespace brim::train {

using memory::Tag;
using tensor::TensorView;

namespace {

// Rows ordered by (key, row): a stable counting sort. Keys are positions, or tokens of any type.
void sort_rows(const std::vector<int32_t>& keys, std::vector<int32_t>& out) {
  int32_t largest = 0;
  for (const int32_t k : keys) largest = std::max(largest, id_of(k));
  std::vector<int32_t> at(static_cast<size_t>(largest) + 2, 0);
  for (const int32_t k : keys) ++at[static_cast<size_t>(id_of(k)) + 1];
  std::partial_sum(at.begin(), at.end(), at.begin());
  out.resize(keys.size());
  for (size_t r = 0; r < keys.size(); ++r)
    out[static_cast<size_t>(at[static_cast<size_t>(id_of(keys[r]))]++)] = static_cast<int32_t>(r);
}

TensorView ints(const std::vector<int32_t>& v) {
  return TensorView(const_cast<int32_t*>(v.data()), tensor::DType::i32, {static_cast<int64_t>(v.size())});
}

}  // namespace

StepScales step_scales(const MicroBatch& m, const model::ModelShape& shape, double loss_scale) {
  const auto scale = static_cast<float>(loss_scale);
  StepScales s;
  if (shape.sequence_classes > 0 && m.step_weight > 0) s.sequence = scale / static_cast<float>(m.step_weight);
  if (shape.token_classes > 0 && m.step_tagged > 0) s.token = scale / static_cast<float>(m.step_tagged);
  const float larger = std::max(s.sequence, s.token);
  s.unit = larger > 0 ? larger : scale;
  return s;
}

void build_micro_batch(const TrainSet& set, const SoftLabels& soft, const std::vector<int64_t>& rows,
                       const model::ModelShape& shape, MicroBatch& out) {
  out.packed.clear();
  out.sequence_targets.clear();
  out.token_targets.clear();
  out.multi_targets.clear();
  out.soft_targets.clear();
  out.begins.clear();
  for (const int64_t r : rows) {
    const auto begin = static_cast<size_t>(set.begin[static_cast<size_t>(r)]);
    const int32_t length = set.length(r);
    out.packed.add({set.ids.data() + begin, length, static_cast<uint64_t>(r)}, shape.position_offset);
    out.begins.push_back(static_cast<int64_t>(begin));
    if (shape.sequence_classes > 0) {
      if (shape.number_targets()) {
        const auto k = static_cast<size_t>(shape.sequence_classes);
        out.multi_targets.insert(
            out.multi_targets.end(), set.multi_label.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(r) * k),
            set.multi_label.begin() + static_cast<std::ptrdiff_t>((static_cast<size_t>(r) + 1) * k));
      } else {
        out.sequence_targets.push_back(set.label[static_cast<size_t>(r)]);
      }
    }
    if (!soft.empty()) {
      const auto at = static_cast<std::ptrdiff_t>(r * soft.classes);
      if (at < static_cast<std::ptrdiff_t>(soft.logits.size()))
        out.soft_targets.insert(out.soft_targets.end(), soft.logits.begin() + at,
                                soft.logits.begin() + at + soft.classes);
      else  // a row of the token task, whose loss ignores them
        out.soft_targets.resize(out.soft_targets.size() + static_cast<size_t>(soft.classes));
    }
    if (shape.token_classes > 0)
      out.token_targets.insert(out.token_targets.end(), set.token_label.begin() + static_cast<std::ptrdiff_t>(begin),
                               set.token_label.begin() + static_cast<std::ptrdiff_t>(begin) + length);
  }
  out.packed.finish();
  sort_rows(out.packed.ids, out.sorted);
  sort_rows(out.packed.positions, out.sorted_positions);
}

struct BatchStager::Slot {
  device::DeviceBuffer host;
  char* device = nullptr;
  std::unique_ptr<device::Event> copied, used;
  bool in_use = false;
};

BatchStager::BatchStager(device::Device& device, const model::ModelShape& shape, model::BatchLimits limits, int depth,
                         bool soft_labels, TensorView token_set, memory::PlannedMemory* planned)
    : device_(device), shape_(shape), token_set_(token_set) {
  if (device.kind() == device::DeviceKind::cpu && !token_set) return;
  copy_ = device.make_stream();
  spans_ = device::DeviceSpans::make(device, *copy_, "copy", Zone::copy);
  memory::TagBytes each;
  each[Tag::staging] = staged_micro_batch_bytes(shape, limits, soft_labels);
  if (token_set) each[Tag::token_set] = staged_offsets_bytes(limits);
  memory::TagBytes all;
  for (const Tag tag : {Tag::staging, Tag::token_set}) all[tag] = depth * each[tag];
  block_ = memory::Ledger::allocate(device, planned, all, "micro-batches in flight");
  for (int i = 0; i < depth; ++i) {
    auto slot = std::make_unique<Slot>();
    slot->host = device.allocate_host(static_cast<size_t>(each.total()));
    slot->device = static_cast<char*>(block_.data()) + i * each.total();
    slot->copied = make_event(device, false);
    slot->used = make_event(device, false);
    slots_.push_back(std::move(slot));
  }
}

BatchStager::~BatchStager() = default;

StagedBatch BatchStager::stage(const MicroBatch& m, device::Stream& compute) {
  StagedBatch s;
  s.batch = m.packed.view();
  s.sorted = ints(m.sorted);
  s.sorted_positions = ints(m.sorted_positions);
  if (shape_.sequence_classes > 0)
    s.targets.sequence = shape_.number_targets()
                             ? TensorView(const_cast<float*>(m.multi_targets.data()), tensor::DType::f32,
                                          {m.packed.sequences(), shape_.sequence_classes})
                             : ints(m.sequence_targets);
  if (shape_.token_classes > 0) s.targets.token = ints(m.token_targets);
  if (!m.soft_targets.empty())
    s.targets.teacher_sequence = TensorView(const_cast<float*>(m.soft_targets.data()), tensor::DType::f32,
                                            {m.packed.sequences(), shape_.sequence_classes});
  if (slots_.empty()) return s;
  current_ = next_;
  Slot& slot = *slots_[next_];
  next_ = (next_ + 1) % slots_.size();
  if (slot.in_use) {  // the device may still read the host copy
    ScopedZone zone(Zone::wait_device);
    slot.used->synchronize();
  }
  report_copies();
  ScopedZone zone(Zone::stage, m.packed.tokens());
  int64_t at = 0;
  const auto assign = [&](TensorView& v) {
    v.data = slot.device + at;
    at += memory::align_up(v.bytes());
  };
  const auto send = [&](TensorView& v) {
    if (!v) return;
    std::memcpy(static_cast<char*>(slot.host.data()) + at, v.data, static_cast<size_t>(v.bytes()));
    assign(v);
  };
  TensorView begins(const_cast<int64_t*>(m.begins.data()), tensor::DType::i64, {m.packed.sequences()});
  for (TensorView* v : {&s.batch.starts, &s.batch.order, &s.sorted, &s.sorted_positions, &s.targets.sequence,
                        &s.targets.token, &s.targets.teacher_sequence})
    send(*v);
  if (token_set_)
    send(begins);
  else {
    send(s.batch.ids);
    send(s.batch.positions);
  }
  if (spans_) spans_->begin();
  copy_->copy(slot.device, slot.host.data(), static_cast<size_t>(at));
  if (token_set_) {
    assign(s.batch.ids);
    const int64_t positions_at = at;
    assign(s.batch.positions);
    ops::gather_tokens(*copy_, {.tokens = token_set_,
                                .begins = begins,
                                .starts = s.batch.starts,
                                .ids = s.batch.ids,
                                .positions = s.batch.positions,
                                .position_offset = shape_.position_offset});
    if (m.packed.padding_tokens > 0) {  // the kernel counts every token
      char* from = static_cast<char*>(slot.host.data()) + positions_at;
      std::memcpy(from, m.packed.positions.data(), static_cast<size_t>(s.batch.positions.bytes()));
      copy_->copy(s.batch.positions.data, from, static_cast<size_t>(s.batch.positions.bytes()));
    }
  }
  if (spans_) spans_->end(at);
  slot.copied->record(*copy_);
  slot.copied->wait(compute);
  return s;
}

void BatchStager::report_copies() {
  if (spans_) spans_->record_completed();
}

void BatchStager::mark_used(device::Stream& compute) {
  if (slots_.empty()) return;
  slots_[current_]->used->record(compute);
  slots_[current_]->in_use = true;
}

}  // namespace brim::train
