// SPDX-License-Identifier: Apache-2.0
#include "memory/allocator.h"

#include <algorithm>

namespace brim::memory {

using tensor::TensorView;

TensorView LifetimeRecorder::allocate(Tag tag, tensor::DType dtype, std::initializer_list<int64_t> dims) {
  TensorView view(reinterpret_cast<void*>(next_), dtype, dims);
  entries_.push_back({next_, Lifetime{tag, view.bytes(), step_, step_}, false});
  next_ += static_cast<uintptr_t>(align_up(view.bytes()) + kArenaAlignment);  // leave a gap, so that views never touch
  return view;
}

LifetimeRecorder::Entry* LifetimeRecorder::find(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  auto it = std::upper_bound(entries_.begin(), entries_.end(), address,
                             [](uintptr_t a, const Entry& e) { return a < e.address; });
  if (it == entries_.begin()) return nullptr;
  --it;
  return address < it->address + static_cast<uintptr_t>(std::max<int64_t>(it->life.bytes, 1)) ? &*it : nullptr;
}

void LifetimeRecorder::extend(const TensorView& view) {
  if (Entry* entry = find(view.data)) entry->life.last = std::max(entry->life.last, step_ - 1);
}

void LifetimeRecorder::keep(const TensorView& view) {
  if (Entry* entry = find(view.data)) entry->kept = true;
}

void LifetimeRecorder::on_use(const TensorView& view) {
  if (Entry* entry = find(view.data)) entry->life.last = step_;  // others are weights or inputs
}

void LifetimeRecorder::on_op(const char* op, double flops, double bytes) {
  auto& total = ops_[op];
  ++total.calls;
  total.flops += flops;
  total.bytes += bytes;
  flops_ += flops;
  bytes_ += bytes;
  ++step_;
}

std::vector<Lifetime> LifetimeRecorder::lifetimes() const {
  std::vector<Lifetime> all;
  for (const auto& e : entries_) {
    all.push_back(e.life);
    if (e.kept) all.back().last = step_;
  }
  return all;
}

TensorView PlannedAllocator::allocate(Tag tag, tensor::DType dtype, std::initializer_list<int64_t> dims) {
  BRIM_CHECK(next_ < placement_->offsets.size(), "tensor {} requested, {} planned", next_, placement_->offsets.size());
  TensorView view(base_ + placement_->offsets[next_], dtype, dims);
  BRIM_CHECK(view.bytes() <= placement_->bytes[next_], "{} tensor {} needs {} bytes, {} planned", tag_name(tag), next_,
             view.bytes(), placement_->bytes[next_]);
  ++next_;
  return view;
}

}  // namespace brim::memory
