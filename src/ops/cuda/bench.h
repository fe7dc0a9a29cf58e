// SPDX-License-Identifier: Apache-2.0
// Shared parts of ops_cuda_bench: a GPU with its two roofs and table output, batches of texts, shapes of RoBERTa-base.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "device/cuda_info.h"
#include "device/event.h"
#include "memory/ledger.h"
#include "ops/attention.h"
#include "ops/linear.h"
#include "ops/rows.h"

namespace brim::ops {

using device::Stream;
using tensor::DType;
using tensor::TensorView;

constexpr int64_t kH = 768, kHeads = 12, kF = 3072, kLayers = 12, kVocabulary = 50265, kPositions = 514;

struct Roofs {
  double flops = 0, bytes = 0;  // per second
};

class Bench {
 public:
  Bench()
      : device_(device::open_cuda_device(0)),
        stream_(device_->make_stream()),
        begin_(make_event(*device_, true)),
        end_(make_event(*device_, true)) {
    pattern_.resize(4 << 20);
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    for (float& x : pattern_) x = normal(generator);
  }
  device::Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  Roofs roofs;

  TensorView raw(DType type, std::initializer_list<int64_t> dims) {
    TensorView v(nullptr, type, dims);
    buffers_.push_back(memory::Ledger::allocate(*device_, nullptr, memory::Tag::workspace, "bench", v.bytes() + 256));
    v.data = buffers_.back().data();
    stream_->fill_zero(v.data, static_cast<size_t>(v.bytes()));
    return v;
  }
  // Normal values: one host pattern per type and spread, repeated.
  TensorView normal(DType type, std::initializer_list<int64_t> dims, float spread = 1) {
    const TensorView v = raw(type, dims);
    std::vector<char> host(pattern_.size() * static_cast<size_t>(dtype_bytes(type)));
    std::vector<float> scaled = pattern_;
    for (float& x : scaled) x *= spread;
    convert_elements(scaled.data(), DType::f32, host.data(), type, static_cast<int64_t>(scaled.size()));
    for (size_t at = 0; at < static_cast<size_t>(v.bytes()); at += host.size())
      stream_->copy(static_cast<char*>(v.data) + at, host.data(),
                    std::min(host.size(), static_cast<size_t>(v.bytes()) - at));
    stream_->synchronize();
    return v;
  }
  void free_last(int buffers) {
    stream_->synchronize();
    buffers_.erase(buffers_.end() - buffers, buffers_.end());
  }
  TensorView scalar(float value) {
    const TensorView v = raw(DType::f32, {1});
    stream_->copy(v.data, &value, sizeof value);
    stream_->synchronize();
    return v;
  }
  TensorView fp8(std::initializer_list<int64_t> dims, float spread, float scale) {
    const TensorView v = raw(DType::f8e4m3, dims), source = normal(DType::bf16, dims, spread), factor = scalar(scale);
    convert(*stream_, {.x = source, .y = v, .scale = factor});
    stream_->synchronize();
    buffers_.erase(buffers_.end() - 2);
    return v;
  }
  TensorView ints(const std::vector<int32_t>& values) {
    const TensorView v = raw(DType::i32, {static_cast<int64_t>(values.size())});
    stream_->copy(v.data, values.data(), values.size() * 4);
    stream_->synchronize();
    return v;
  }

  TensorView longs(const std::vector<int64_t>& values) {
    const TensorView v = raw(DType::i64, {static_cast<int64_t>(values.size())});
    stream_->copy(v.data, values.data(), values.size() * 8);
    stream_->synchronize();
    return v;
  }

  double us(const std::function<void()>& f, double seconds = 0.12) {
    f();
    const auto once = [&](int runs) {
      begin_->record(*stream_);
      for (int i = 0; i < runs; ++i) f();
      end_->record(*stream_);
      end_->synchronize();
      return end_->ms_since(*begin_) * 1e3 / runs;
    };
    const double first = once(2);
    const int runs = std::clamp(static_cast<int>(seconds * 1e6 / first / 5), 1, 2000);
    std::vector<double> times;
    for (int i = 0; i < 5; ++i) times.push_back(once(runs));
    std::sort(times.begin(), times.end());
    return times[2];
  }
  void row(const std::string& name, double flops, double bytes, const std::function<void()>& f) {
    const double time = us(f), floor = std::max(flops / roofs.flops, bytes / roofs.bytes) * 1e6;
    std::printf("%-34s %9.1f %9.1f %8.2f %9.1f %6.0f %%\n", name.c_str(), time, flops / time / 1e6, bytes / time / 1e6,
                floor, 100 * floor / time);
    std::fflush(stdout);
  }
  static void header(const char* title) {
    std::printf("\n%-34s %9s %9s %8s %9s %8s\n", title, "us", "TFLOP/s", "TB/s", "floor us", "of floor");
  }

 private:
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<device::Event> begin_, end_;
  std::vector<float> pattern_;
  std::vector<device::DeviceBuffer> buffers_;
};

struct Batch {
  std::vector<int32_t> lengths, starts{0};
  BatchView view;
  TensorView first_rows, sorted, sorted_positions;
  double pairs = 0;  // sum of squared lengths

  Batch(Bench& b, int64_t T, const std::function<int32_t(std::mt19937&)>& length) {
    std::mt19937 generator(7);
    while (starts.back() < T) {
      const auto n = static_cast<int32_t>(std::min<int64_t>(length(generator), T - starts.back()));
      lengths.push_back(n);
      starts.push_back(starts.back() + n);
      pairs += static_cast<double>(n) * n;
    }
    std::vector<int32_t> order(lengths.size()), ids, positions, by_id(static_cast<size_t>(T)), by_position;
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int x, int y) { return lengths[x] > lengths[y]; });
    for (const int32_t n : lengths)
      for (int32_t i = 0; i < n; ++i) {
        // Word-like distribution: a few ids very often, and a start token per text.
        ids.push_back(i == 0 ? 0
                             : static_cast<int32_t>(std::pow(static_cast<double>(kVocabulary - 1),
                                                             static_cast<double>(generator() % 10000) / 1e4)));
        positions.push_back(2 + i % (static_cast<int32_t>(kPositions) - 2));
      }
    std::iota(by_id.begin(), by_id.end(), 0);
    by_position = by_id;
    std::stable_sort(by_id.begin(), by_id.end(), [&](int x, int y) { return ids[x] < ids[y]; });
    std::stable_sort(by_position.begin(), by_position.end(), [&](int x, int y) { return positions[x] < positions[y]; });
    view.T = T;
    view.B = static_cast<int64_t>(lengths.size());
    view.S = *std::max_element(lengths.begin(), lengths.end());
    view.n_long = std::count_if(lengths.begin(), lengths.end(), [](int32_t n) { return n > kShortTokens; });
    view.starts = b.ints(starts);
    view.order = b.ints(order);
    view.ids = b.ints(ids);
    view.positions = b.ints(positions);
    first_rows = b.ints(std::vector<int32_t>(starts.begin(), starts.end() - 1));
    sorted = b.ints(by_id);
    sorted_positions = b.ints(by_position);
  }
};

inline int32_t tweet_length(std::mt19937& g) {
  std::lognormal_distribution<double> d(3.1, 0.55);  // mean 25.8
  return std::clamp(static_cast<int32_t>(std::lround(d(g))), 3, 128);
}

struct Options {
  int64_t tokens = 65536;
  double tune = 0;
  DType type = DType::bf16;
  std::string only;
};

inline Precision precision_of(DType t) {
  return t == DType::bf16     ? Precision::bf16
         : t == DType::f16    ? Precision::fp16
         : t == DType::f8e4m3 ? Precision::fp8
                              : Precision::fp32;
}

// Queries, keys and values as column ranges of one tensor.
inline AttentionArgs attention_of(const TensorView& qkv, const TensorView& out, const BatchView& batch) {
  AttentionArgs args;
  args.q = qkv.slice_cols(0, kH);
  args.k = qkv.slice_cols(kH, 2 * kH);
  args.v = qkv.slice_cols(2 * kH, 3 * kH);
  args.out = out;
  args.batch = batch;
  args.heads = kHeads;
  return args;
}

// Parts of the benchmark. `fp8` selects fp8 products in the same forward pass.
void forward_part(Bench& b, const Options& o, const Batch& batch, bool fp8);
void train_part(Bench& b, const Options& o, const Batch& batch);
void fp8_train_part(Bench& b, const Options& o);
void int8_part(Bench& b, const Options& o);
void modern_part(Bench& b, const Options& o, const Batch& batch);

}  // namespace brim::ops
