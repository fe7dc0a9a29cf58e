// SPDX-License-Identifier: Apache-2.0
// Time of every CUDA op at RoBERTa-base's shapes on a packed batch of tweet-like lengths, against the card's two roofs
// (copy bandwidth and a large GEMM, measured first), then the whole encoder, forward and backward, built of the same
// calls.
//   ops_cuda_bench [--tokens 65536] [--tune SECONDS per GEMM] [--dtype bf16|f16|f32] [--only
//   forward|train|fp8|fp8train|modern]
// fp8train: products and conversions of a layer trained in fp8; modern: a layer of ModernBERT-base, of tweets and of
// texts of 4,096 tokens. Medians over groups; the card settles at its power limit after a second of work, so it is
// warmed first.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "device/cuda_info.h"
#include "device/event.h"
#include "device/graph.h"
#include "memory/ledger.h"
#include "ops/adamw.h"
#include "ops/amax.h"
#include "ops/attention.h"
#include "ops/embedding.h"
#include "ops/fp8_cast.h"
#include "ops/gather_tokens.h"
#include "ops/gemm_tuner.h"
#include "ops/glu.h"
#include "ops/layer_norm.h"
#include "ops/linear.h"
#include "ops/loss.h"
#include "ops/rope.h"
#include "ops/rows.h"

namespace brim::ops {

using device::Stream;
using tensor::DType;
using tensor::TensorView;

namespace {

constexpr int64_t kH = 768, kHeads = 12, kF = 3072, kLayers = 12, kVocabulary = 50265, kPositions = 514;

struct Roofs {
  double flops = 0, bytes = 0;  // a second
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
  // Normal values; one host pattern per type and spread, repeated.
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
        // Like words: a few ids very often, a start token each time.
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
int32_t tweet_length(std::mt19937& g) {
  std::lognormal_distribution<double> d(3.1, 0.55);  // mean 25.8
  return std::clamp(static_cast<int32_t>(std::lround(d(g))), 3, 128);
}

struct Options {
  int64_t tokens = 65536;
  double tune = 0;
  DType type = DType::bf16;
  std::string only;
};
Precision precision_of(DType t) {
  return t == DType::bf16     ? Precision::bf16
         : t == DType::f16    ? Precision::fp16
         : t == DType::f8e4m3 ? Precision::fp8
                              : Precision::fp32;
}

struct Layer {
  LinearWeight qkv, out, up, down;
  TensorView b_qkv, b_out, b_up, b_down, gamma, beta;
};

// Queries, keys and values beside each other in one tensor.
AttentionArgs attention_of(const TensorView& qkv, const TensorView& out, const BatchView& batch) {
  return {.q = qkv.slice_cols(0, kH),
          .k = qkv.slice_cols(kH, 2 * kH),
          .v = qkv.slice_cols(2 * kH, 3 * kH),
          .out = out,
          .batch = batch,
          .heads = kHeads};
}

class Encoder {
 public:
  Encoder(Bench& b, const Options& o, const Batch& batch, bool fp8)
      : b_(b), batch_(batch), type_(o.type), fp8_(fp8), T_(batch.view.T) {
    const DType type = type_;
    word_ = b.normal(type, {kVocabulary, kH});
    position_ = b.normal(type, {kPositions, kH});
    kind_ = b.normal(type, {1, kH});
    gamma_ = b.normal(type, {kH}, 0.1f);
    beta_ = b.normal(type, {kH}, 0.1f);
    one_ = b.scalar(1);
    const auto weight = [&](int64_t N, int64_t K) {
      LinearWeight w{.N = N, .K = K, .precision = fp8 ? Precision::fp8 : precision_of(type)};
      w.data = fp8 ? b.fp8({N, K}, 0.03f, 512) : b.normal(type, {N, K}, 0.03f);
      if (fp8) w.scale = b.scalar(1.0f / 512);
      return w;
    };
    // Two layers' weights in turn: more than fits in L2, as in the model.
    for (int i = 0; i < 2; ++i)
      layers_.push_back({weight(3 * kH, kH), weight(kH, kH), weight(kF, kH), weight(kH, kF),
                         b.normal(type, {3 * kH}, 0.1f), b.normal(type, {kH}, 0.1f), b.normal(type, {kF}, 0.1f),
                         b.normal(type, {kH}, 0.1f), gamma_, beta_});
    x_ = b.normal(type, {T_, kH});
    x1_ = b.normal(type, {T_, kH});
    y_ = b.normal(type, {T_, kH});
    qkv_ = b.normal(type, {T_, 3 * kH});
    att_ = fp8 ? b.fp8({T_, kH}, 1, 16) : b.normal(type, {T_, kH});
    up_ = fp8 ? b.fp8({T_, kF}, 1, 16) : b.normal(type, {T_, kF});
    if (fp8) {
      x8_ = b.fp8({T_, kH}, 1, 8);
      x18_ = b.fp8({T_, kH}, 1, 8);
      s8_ = b.scalar(8);
      s16_ = b.scalar(16);
      i8_ = b.scalar(1.0f / 8);
      i16_ = b.scalar(1.0f / 16);
    }
    scratch_ = b.raw(DType::u8, {kCudaLinearScratchBytes});
  }
  LinearArgs gemm(int which, int layer) const {
    const Layer& l = layers_[static_cast<size_t>(layer % 2)];
    LinearArgs a{.scratch = scratch_};
    switch (which) {
      case 0:
        a.x = fp8_ ? x8_ : x_, a.w = l.qkv, a.bias = l.b_qkv, a.y = qkv_, a.x_scale = i8_;
        break;
      case 1:
        a.x = att_, a.w = l.out, a.bias = l.b_out, a.y = y_, a.x_scale = i16_;
        break;
      case 2:
        a.x = fp8_ ? x18_ : x1_, a.w = l.up, a.bias = l.b_up, a.y = up_, a.activation = Activation::gelu,
        a.x_scale = i8_, a.y_scale = s16_;
        break;
      default:
        a.x = up_, a.w = l.down, a.bias = l.b_down, a.y = y_, a.x_scale = i16_;
        break;
    }
    return a;
  }
  AttentionArgs attend(const BatchView& batch) const {
    AttentionArgs a = attention_of(qkv_, att_, batch);
    if (fp8_) a.out_scale = s16_;
    return a;
  }
  LayerNormArgs norm(bool second) const {
    LayerNormArgs a{
        .x = y_, .residual = second ? x1_ : x_, .gamma = gamma_, .beta = beta_, .y = second ? x_ : x1_, .eps = 1e-5f};
    if (fp8_) {
      a.y_fp8 = second ? x8_ : x18_;
      a.fp8_scale = s8_;
    }
    return a;
  }
  EmbeddingArgs embed() const {
    EmbeddingArgs a{.batch = batch_.view,
                    .word = word_,
                    .position = position_,
                    .type = kind_,
                    .gamma = gamma_,
                    .beta = beta_,
                    .y = x_,
                    .eps = 1e-5f};
    if (fp8_) {
      a.y_fp8 = x8_;
      a.fp8_scale = s8_;
    }
    return a;
  }
  void forward() {
    Stream& s = b_.stream();
    embedding(s, embed());
    for (int i = 0; i < kLayers; ++i) {
      linear(s, gemm(0, i));
      attention(s, attend(batch_.view));
      linear(s, gemm(1, i));
      layer_norm(s, norm(false));
      linear(s, gemm(2, i));
      linear(s, gemm(3, i));
      layer_norm(s, norm(true));
    }
  }
  double gemm_flops(int which) const {
    const LinearArgs a = gemm(which, 0);
    return linear_work(a).flops;
  }
  double forward_flops() const {
    return kLayers * (gemm_flops(0) + gemm_flops(1) + gemm_flops(2) + gemm_flops(3) + 4.0 * kH * batch_.pairs);
  }

  void report(const char* name) {
    const double time = b_.us([&] { forward(); }, 3.0);
    std::printf(
        "%-34s %9.0f us  %.2f M tokens/s  %.0f sequences/s  %.1f %% MFU of the GEMM roof above (%.1f %% of 774 "
        "TFLOP/s)\n",
        name, time, static_cast<double>(T_) / time, static_cast<double>(batch_.view.B) / time * 1e6,
        100 * forward_flops() / time * 1e6 / b_.roofs.flops, 100 * forward_flops() / time / 774e6);
  }

 private:
  Bench& b_;
  const Batch& batch_;
  DType type_;
  bool fp8_;
  int64_t T_;
  std::vector<Layer> layers_;
  TensorView word_, position_, kind_, gamma_, beta_, one_, x_, x1_, y_, qkv_, att_, up_, x8_, x18_, s8_, s16_, i8_,
      i16_, scratch_;
};

const char* const kGemmNames[] = {"linear qkv", "linear out", "linear ffn1 + gelu", "linear ffn2"};

void measure_roofs(Bench& b, DType type) {
  const int64_t n = 8192;
  const TensorView from = b.normal(DType::bf16, {n, n * 8}), to = b.raw(DType::bf16, {n, n * 8});
  LinearArgs a{.x = from.slice_cols(0, n), .scratch = b.raw(DType::u8, {kCudaLinearScratchBytes})};
  const double copy = b.us([&] { b.stream().copy(to.data, from.data, static_cast<size_t>(from.bytes())); });
  b.roofs.bytes = 2.0 * static_cast<double>(from.bytes()) / copy * 1e6;
  a.x = b.normal(type, {n, n});
  a.y = b.raw(type, {n, n});
  a.w = {.N = n, .K = n, .precision = precision_of(type), .data = b.normal(type, {n, n}, 0.03f)};
  for (int i = 0; i < 40; ++i) linear(b.stream(), a);
  const double gemm = b.us([&] { linear(b.stream(), a); }, 1.0);
  b.roofs.flops = 2.0 * n * n * n / gemm * 1e6;
  std::printf("copy %.2f TB/s, %s GEMM of 8192³ %.0f TFLOP/s\n", b.roofs.bytes * 1e-12, dtype_name(type),
              b.roofs.flops * 1e-12);
}

void tune(Bench& b, Encoder& e, double seconds) {
  for (int which = 0; which < 4; ++which) {
    const GemmChoice c = tune_linear(b.stream(), e.gemm(which, 0), seconds);
    std::printf("tuned %-28s %8.1f us, the library's own choice %8.1f us, %d tried\n", kGemmNames[which], c.us,
                c.default_us, c.tried);
  }
}

void attention_rows(Bench& b, const Encoder& e, const Options& o, const Batch& tweets,
                    const std::function<void(const std::string&, const Batch&)>& row) {
  row("tweets", tweets);
  for (const int32_t n : {16, 32, 48, 64, 128, 256, 512})
    row(std::to_string(n) + " tokens each", Batch(b, o.tokens, [n](std::mt19937&) { return n; }));
  row("1 in 64 is 512, else 25",
      Batch(b, o.tokens, [i = 0](std::mt19937&) mutable { return ++i % 64 == 0 ? 512 : 25; }));
  static_cast<void>(e);
}

void forward_part(Bench& b, const Options& o, const Batch& batch, bool fp8) {
  Encoder e(b, o, batch, fp8);
  Stream& s = b.stream();
  const double row_bytes = static_cast<double>(o.tokens * kH) * dtype_bytes(o.type);
  if (fp8) b.roofs.flops *= 2;
  if (o.tune > 0) tune(b, e, o.tune);
  Bench::header(fp8 ? "fp8 forward" : "forward");
  for (int which = 0; which < 4; ++which) {
    const LinearArgs a = e.gemm(which, 0);
    b.row(kGemmNames[which], linear_work(a).flops, linear_work(a).bytes,
          [&, i = 0]() mutable { linear(s, e.gemm(which, ++i)); });
  }
  b.row("layer_norm + residual", 0, layer_norm_work(e.norm(false)).bytes, [&] { layer_norm(s, e.norm(false)); });
  b.row("embedding", 0, embedding_work(e.embed()).bytes, [&] { embedding(s, e.embed()); });
  attention_rows(b, e, o, batch, [&](const std::string& name, const Batch& batch_of) {
    b.row("attention, " + name, 4.0 * kH * batch_of.pairs, (fp8 ? 3.5 : 4) * row_bytes,
          [&] { attention(s, e.attend(batch_of.view)); });
  });
  if (!fp8) {
    const TensorView q = b.normal(o.type, {batch.view.B, kH}), kv = b.normal(o.type, {o.tokens, 2 * kH}),
                     x = b.normal(o.type, {o.tokens, kH}), few = b.raw(o.type, {batch.view.B, kH}),
                     pooled = b.raw(DType::f32, {batch.view.B, kH});
    AttentionArgs first{.q = q,
                        .k = kv.slice_cols(0, kH),
                        .v = kv.slice_cols(kH, 2 * kH),
                        .out = few,
                        .batch = batch.view,
                        .first_query_only = true,
                        .heads = kHeads};
    b.row("attention, first queries only", 4.0 * kH * static_cast<double>(o.tokens), 2 * row_bytes,
          [&] { attention(s, first); });
    b.row("gather_rows", 0, 2.0 * static_cast<double>(few.bytes()),
          [&] { gather_rows(s, {.x = x, .rows = batch.first_rows, .y = few}); });
    std::vector<int64_t> places;
    for (int64_t i = 0; i < batch.view.B; ++i)
      places.push_back(i * 7919 % (256 * o.tokens - kPositions));  // all over a set of 256 batches
    const TensorView set = b.raw(DType::i32, {256 * o.tokens}), begins = b.longs(places),
                     ids = b.raw(DType::i32, {o.tokens}), positions = b.raw(DType::i32, {o.tokens});
    GatherTokensArgs cut{
        .tokens = set, .begins = begins, .starts = batch.view.starts, .ids = ids, .positions = positions};
    b.row("gather_tokens", 0, gather_tokens_work(cut).bytes, [&] { gather_tokens(s, cut); });
    b.row("pool_mean", 0, row_bytes, [&] { pool_mean(s, {.x = x, .batch = batch.view, .y = pooled}); });
    const TensorView head = b.normal(o.type, {9, kH}), logits = b.raw(DType::f32, {o.tokens, 9}),
                     scores = b.raw(DType::f32, {o.tokens, 9});
    LinearArgs narrow{.x = x, .w = {.N = 9, .K = kH, .precision = precision_of(o.type), .data = head}, .y = logits};
    b.row("linear to 9 labels, every token", linear_work(narrow).flops, row_bytes, [&] { linear(s, narrow); });
    b.row("softmax of 9 labels", 0, 2.0 * static_cast<double>(logits.bytes()),
          [&] { softmax(s, {.x = logits, .y = scores}); });
    const TensorView eight = b.raw(DType::f8e4m3, {o.tokens, kH}), one = b.scalar(1);
    b.row("convert to fp8", 0, 1.5 * row_bytes, [&] { convert(s, {.x = x, .y = eight, .scale = one}); });
    b.row("amax", 0, row_bytes, [&] { amax(s, {.x = x, .amax = one}); });
  }
  std::printf("\n");
  e.report(fp8 ? "12 layers, fp8" : "12 layers");
  if (fp8) b.roofs.flops /= 2;

  // One text: what launches cost, and what a graph saves.
  const Batch one(b, 26, [](std::mt19937&) { return 26; });
  Encoder small(b, o, one, fp8);
  std::printf("%-34s %9.0f us launched", "12 layers, one text of 26 tokens", b.us([&] { small.forward(); }));
  small.forward();
  begin_capture(s);
  small.forward();
  const auto graph = end_capture(s);
  std::printf(", %.0f us as a graph\n", b.us([&] { graph->launch(s); }));
}

// Products of fp8 training and the conversions before them; per layer the four of each kind.
void fp8_train_part(Bench& b, const Options& o) {
  Stream& s = b.stream();
  const int64_t T = o.tokens, P = fp8_columns(T);
  const auto tokens = static_cast<double>(T);
  const TensorView scratch = b.raw(DType::u8, {kCudaLinearScratchBytes}), one = b.scalar(1), small = b.scalar(0.01f);
  Bench::header("fp8 training");
  struct Shape {
    const char* name;
    int64_t N, K;
  };
  for (const Shape& shape : {Shape{"qkv", 3 * kH, kH}, {"out", kH, kH}, {"ffn1", kF, kH}, {"ffn2", kH, kF}}) {
    const int64_t N = shape.N, K = shape.K;
    const double flops = 2 * tokens * static_cast<double>(N * K);
    const TensorView x = b.fp8({T, K}, 1, 64), w = b.fp8({N, K}, 0.03f, 1024), w_t = b.fp8({K, N}, 0.03f, 1024),
                     d_y = b.fp8({T, N}, 1, 64), x_t = b.fp8({K, P}, 1, 64), d_y_t = b.fp8({N, P}, 1, 64),
                     y = b.raw(DType::bf16, {T, N}), d_x = b.raw(DType::bf16, {T, K}), d_w = b.raw(DType::f32, {N, K}),
                     bias = b.raw(DType::bf16, {N});
    const auto product = [&](const TensorView& left, const TensorView& right, const TensorView& to, bool add,
                             LinearRole role) {
      LinearArgs a{.x = left, .y = to, .scratch = scratch, .x_scale = small};
      a.w = {.N = right.rows(), .K = right.cols(), .precision = Precision::fp8, .data = right, .scale = small};
      if (add) a.residual = to;
      if (role == LinearRole::forward) a.bias = bias;
      a.role = role;
      return a;
    };
    const auto row = [&](const std::string& name, const LinearArgs& a) {
      b.row(name + " " + shape.name, flops, linear_work(a).bytes, [&] { linear(s, a); });
    };
    row("forward", product(x, w, y, false, LinearRole::forward));
    LinearArgs exact = product(x, w, y, false, LinearRole::input_gradient);
    row("forward, exact sums,", exact);
    row("dX", product(d_y, w_t, d_x, false, LinearRole::input_gradient));
    LinearArgs quick = product(d_y, w_t, d_x, false, LinearRole::input_gradient);
    quick.role = LinearRole::forward;
    row("dX, quick sums,", quick);
    row("dX added", product(d_y, w_t, d_x, true, LinearRole::input_gradient));
    row("dW", product(d_y_t, x_t, d_w, true, LinearRole::weight_gradient));
  }
  for (const int64_t C : {kH, 3 * kH, kF}) {
    const TensorView x = b.normal(DType::bf16, {T, C}), gate = b.normal(DType::bf16, {T, C}),
                     rows = b.raw(DType::f8e4m3, {T, C}), columns = b.raw(DType::f8e4m3, {C, P}),
                     inverse = b.raw(DType::f32, {1}), most = b.raw(DType::f32, {1}), sums = b.raw(DType::f32, {C}),
                     shares = b.raw(DType::u8, {fp8_cast_scratch_bytes(s, T, C)});
    const double each = tokens * static_cast<double>(C);
    const Fp8CastArgs both{
        .x = x, .rows = rows, .columns = columns, .scale = one, .inverse = inverse, .amax = most, .scratch = shares};
    const auto row = [&](const std::string& name, double bytes, const Fp8CastArgs& a) {
      b.row("cast " + std::to_string(C) + name, 0, bytes * each, [&] { fp8_cast(s, a); });
    };
    Fp8CastArgs a = both;
    row(", rows and columns", 4, a);
    a.d_bias = sums;
    row(", the same, bias summed", 4, a);
    a = both;
    a.columns = {};
    row(", rows", 3, a);
    a = both;
    a.rows = {};
    row(", columns", 3, a);
    if (C != kF) continue;
    a = both;
    a.activation = Activation::gelu;
    row(", GELU", 4, a);
    a.gate = gate;
    a.d_bias = sums;
    row(", GELU's slope, bias", 6, a);
  }
}

void train_part(Bench& b, const Options& o, const Batch& batch) {
  Encoder e(b, o, batch, false);
  Stream& s = b.stream();
  const int64_t T = o.tokens;
  const double row_bytes = static_cast<double>(T * kH) * dtype_bytes(o.type);
  const TensorView scratch = b.raw(DType::u8, {kCudaLinearScratchBytes}), x = b.normal(o.type, {T, kH}),
                   wide = b.normal(o.type, {T, kF}), d_x = b.normal(o.type, {T, kH}),
                   d_wide = b.normal(o.type, {T, kF}), qkv = b.normal(o.type, {T, 3 * kH}),
                   d_qkv = b.normal(o.type, {T, 3 * kH});
  Bench::header("training");
  struct Shape {
    const char* name;
    TensorView x, d_y, d_x;
  };
  for (const Shape& shape : {Shape{"linear_grad qkv", x, qkv, d_x},
                             {"linear_grad out", x, d_x, x},
                             {"linear_grad ffn1", x, wide, d_x},
                             {"linear_grad ffn2", wide, x, d_wide}}) {
    const int64_t N = shape.d_y.cols(), K = shape.x.cols();
    LinearGradArgs a{.x = shape.x,
                     .w_plain = b.normal(o.type, {N, K}, 0.03f),
                     .d_y = shape.d_y,
                     .d_x = shape.d_x,
                     .d_w = b.raw(DType::f32, {N, K}),
                     .d_bias = b.raw(DType::f32, {N}),
                     .scratch = scratch,
                     .precision = precision_of(o.type)};
    b.row(shape.name, linear_grad_work(a).flops, linear_grad_work(a).bytes, [&] { linear_grad(s, a); });
  }
  const TensorView out = b.normal(o.type, {T, kH}), d_out = b.normal(o.type, {T, kH}),
                   lse = b.raw(DType::f32, {T, kHeads}), a_scratch = b.raw(DType::u8, {T * kHeads * 4});
  attention_rows(b, e, o, batch, [&](const std::string& name, const Batch& batch_of) {
    AttentionArgs f = attention_of(qkv, out, batch_of.view);
    f.lse = lse;
    f.dropout = {.probability = 0.1f, .seed = 1};
    b.row("attention + dropout, " + name, 4.0 * kH * batch_of.pairs, 4 * row_bytes, [&] { attention(s, f); });
    AttentionGradArgs g{.q = f.q,
                        .k = f.k,
                        .v = f.v,
                        .out = out,
                        .lse = lse,
                        .d_out = d_out,
                        .d_q = d_qkv.slice_cols(0, kH),
                        .d_k = d_qkv.slice_cols(kH, 2 * kH),
                        .d_v = d_qkv.slice_cols(2 * kH, 3 * kH)};
    g.batch = batch_of.view;
    g.heads = kHeads;
    g.scratch = a_scratch;
    g.dropout = f.dropout;
    b.row("attention_grad, " + name, 10.0 * kH * batch_of.pairs, 8 * row_bytes, [&] { attention_grad(s, g); });
  });
  const TensorView gamma = b.normal(o.type, {kH}), mean = b.normal(DType::f32, {T}, 0),
                   rstd = b.normal(DType::f32, {T}), d_gamma = b.raw(DType::f32, {kH}),
                   d_beta = b.raw(DType::f32, {kH}),
                   norm_scratch = b.raw(DType::u8, {layer_norm_grad_scratch_bytes(s, T, kH, 1)});
  LayerNormArgs norm{.x = x,
                     .residual = out,
                     .gamma = gamma,
                     .beta = gamma,
                     .y = d_x,
                     .sum = d_out,
                     .mean = mean,
                     .rstd = rstd,
                     .dropout = {.probability = 0.1f, .seed = 2}};
  b.row("layer_norm + dropout, kept", 0, layer_norm_work(norm).bytes, [&] { layer_norm(s, norm); });
  LayerNormGradArgs norm_grad{.sum = x,
                              .mean = mean,
                              .rstd = rstd,
                              .gamma = gamma,
                              .d_y = out,
                              .d_sum = d_out,
                              .d_x = d_x,
                              .d_gamma = d_gamma,
                              .d_beta = d_beta,
                              .scratch = norm_scratch};
  norm_grad.dropout = norm.dropout;
  norm_grad.d_bias = b.raw(DType::f32, {kH});
  b.row("layer_norm_grad", 0, 4 * row_bytes, [&] { layer_norm_grad(s, norm_grad); });
  b.row("activate_grad gelu", 0, 12 * row_bytes, [&] { activate_grad(s, {.x = wide, .d_y = d_wide, .d_x = d_wide}); });
  const TensorView d_wide_bias = b.raw(DType::f32, {wide.cols()}),
                   sums = b.raw(DType::u8, {activate_grad_scratch_bytes(s, wide.rows(), wide.cols())});
  b.row("activate_grad gelu, bias summed", 0, 12 * row_bytes,
        [&] { activate_grad(s, {.x = wide, .d_y = d_wide, .d_x = d_wide, .d_bias = d_wide_bias, .scratch = sums}); });
  const TensorView active = b.raw(o.type, {wide.rows(), wide.cols()});  // in place, wide would be another in each round
  ActivationGradArgs with_output{.x = wide, .d_y = d_wide, .d_x = d_wide, .y = active, .d_bias = d_wide_bias};
  with_output.scratch = sums;
  b.row("activate_grad gelu, bias summed, output made", 0, 16 * row_bytes, [&] { activate_grad(s, with_output); });
  b.row("activate gelu", 0, 8 * row_bytes, [&] { activate(s, {.x = wide, .y = active}); });
  const TensorView d_word = b.raw(DType::f32, {kVocabulary, kH}), d_position = b.raw(DType::f32, {kPositions, kH}),
                   d_type = b.raw(DType::f32, {1, kH}),
                   type_scratch = b.raw(DType::u8, {embedding_grad_scratch_bytes(s, T, kH, 1)});
  b.row("embedding_grad", 0, 3 * row_bytes, [&] {
    embedding_grad(s, {.batch = batch.view,
                       .d_sum = x,
                       .sorted = batch.sorted,
                       .sorted_positions = batch.sorted_positions,
                       .d_word = d_word,
                       .d_position = d_position,
                       .d_type = d_type,
                       .scratch = type_scratch});
  });
  const int64_t n = 124'600'000;
  const TensorView master = b.normal(DType::f32, {n}), grad = b.normal(DType::f32, {n}, 0.01f),
                   m = b.raw(DType::f32, {n}), v = b.raw(DType::f32, {n}), copy = b.raw(DType::bf16, {n}),
                   norm_out = b.raw(DType::f32, {1}), factor = b.scalar(1),
                   g_scratch = b.raw(DType::u8, {grad_norm_scratch_bytes(n)});
  b.row("grad_norm of 124.6 M", 0, 4.0 * n,
        [&] { grad_norm(s, {.grad = grad, .norm = norm_out, .factor = factor, .scratch = g_scratch, .max_norm = 1}); });
  const TensorView table = b.raw(DType::f32, {1, 1, kAdamWRowFloats});
  set_step(s, {.rows = table, .row = adamw_row(1e-5f, 0.9f, 0.999f, 1e-8f, 0, 1)});
  b.row("adamw of 124.6 M", 0, 30.0 * n,
        [&] { adamw(s, {.master = master, .grad = grad, .m = m, .v = v, .copy = copy, .table = {.rows = table}}); });
  const TensorView m8 = b.raw(DType::u8, {n}), v8 = b.raw(DType::u8, {n}),
                   m_scale = b.raw(DType::f32, {(n + kAdamBlock - 1) / kAdamBlock}),
                   v_scale = b.raw(DType::f32, {(n + kAdamBlock - 1) / kAdamBlock});
  b.row("adamw, 8-bit", 0, 18.0 * n, [&] {
    adamw(s, {.master = master,
              .grad = grad,
              .m = m8,
              .v = v8,
              .m_scale = m_scale,
              .v_scale = v_scale,
              .copy = copy,
              .table = {.rows = table}});
  });
}

void modern_part(Bench& b, const Options& o, const Batch& batch) {
  constexpr int64_t kGated = 1152, kWindow = 64;
  Stream& s = b.stream();
  const int64_t T = o.tokens;
  const double row_bytes = static_cast<double>(T * kH) * dtype_bytes(o.type);
  const TensorView x = b.normal(o.type, {T, kH}), sum = b.normal(o.type, {T, kH}), y = b.raw(o.type, {T, kH}),
                   qkv = b.normal(o.type, {T, 3 * kH}), wide = b.normal(o.type, {T, 2 * kGated}),
                   gated = b.normal(o.type, {T, kGated}), gamma = b.normal(o.type, {kH}, 0.1f),
                   scratch = b.raw(DType::u8, {kCudaLinearScratchBytes});
  const auto product = [&](const char* name, const TensorView& from, const TensorView& to, const TensorView& residual) {
    LinearArgs a{.x = from, .residual = residual, .y = to, .scratch = scratch};
    a.w = {.N = to.cols(), .K = from.cols(), .precision = precision_of(o.type)};
    a.w.data = b.normal(o.type, {a.w.N, a.w.K}, 0.03f);
    b.row(name, linear_work(a).flops, linear_work(a).bytes, [&] { linear(s, a); });
  };
  const auto norm = [&](const char* name, const LayerNormArgs& a) {
    b.row(name, 0, layer_norm_work(a).bytes, [&] { layer_norm(s, a); });
  };
  Bench::header("a layer of ModernBERT");
  product("linear qkv", x, qkv, {});
  product("linear out", x, y, {});
  product("linear out + residual", x, y, sum);
  product("linear up, both halves", x, wide, {});
  product("linear down + residual", gated, y, sum);
  norm("layer_norm", {.x = x, .gamma = gamma, .y = y, .eps = 1e-5f});
  norm("layer_norm + residual, sum kept", {.x = x, .residual = sum, .gamma = gamma, .y = y, .sum = x, .eps = 1e-5f});
  b.row("glu", 0, 4.5 * row_bytes, [&] { glu(s, {.x = wide, .y = gated}); });
  b.row("rope of q and k", 0, 4 * row_bytes, [&] {
    rope(s, {.x = qkv.slice_cols(0, 2 * kH), .positions = batch.view.positions, .head_size = kH / kHeads});
  });
  const auto attend = [&](const std::string& name, const Batch& of) {
    for (const int64_t window : {int64_t{0}, kWindow})
      for (const bool rotary : {false, true}) {
        AttentionArgs a = attention_of(qkv, y, of.view);
        a.window = window;
        if (rotary) {
          a.rope_theta = 10000;
          a.scratch =
              b.raw(DType::u8, {attention_scratch_bytes(s, T, of.view.S, kH, kHeads, Precision::bf16, 1, true)});
        }
        const double pairs = window == 0 ? of.pairs : std::min(of.pairs, static_cast<double>(T) * (2.0 * kWindow + 1));
        b.row("attention, " + name + (window > 0 ? ", local" : "") + (rotary ? ", rotary" : ""), 4.0 * kH * pairs,
              4 * row_bytes, [&] { attention(s, a); });
      }
  };
  attend("tweets", batch);
  for (const int32_t n : {64, 128, 512, 4096, 8192})
    attend(std::to_string(n), Batch(b, T, [n](std::mt19937&) { return n; }));
}

int run(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i], value = i + 1 < argc ? argv[++i] : "";
    if (flag == "--tokens")
      o.tokens = std::stoll(value);
    else if (flag == "--tune")
      o.tune = std::stod(value);
    else if (flag == "--only")
      o.only = value;
    else if (flag == "--dtype")
      o.type = value == "f16" ? DType::f16 : value == "f32" ? DType::f32 : DType::bf16;
    else
      fail(ErrorCode::usage, "{}: unknown flag", flag);
  }
  if (const auto reason = device::cuda_unavailable_reason(0)) fail(ErrorCode::device_lost, "{}", *reason);
  const auto part = [&](const char* name, const std::function<void(Bench&, const Batch&)>& f) {
    if (!o.only.empty() && o.only != name) return;
    Bench b;  // one at a time: each frees its memory
    std::printf("\n%s, sm_%d, %lld tokens, %s\n", b.device().name().c_str(), cuda_info(b.device()).capability,
                static_cast<long long>(o.tokens), dtype_name(o.type));
    load_gemm_choices(b.stream());
    measure_roofs(b, o.type);
    const Batch batch(b, o.tokens, tweet_length);
    std::printf("%zu sequences, mean %.1f tokens, longest %lld\n", batch.lengths.size(),
                static_cast<double>(o.tokens) / static_cast<double>(batch.lengths.size()),
                static_cast<long long>(batch.view.S));
    f(b, batch);
    if (o.tune > 0) save_gemm_choices(b.stream());
  };
  part("forward", [&](Bench& b, const Batch& batch) { forward_part(b, o, batch, false); });
  part("fp8", [&](Bench& b, const Batch& batch) {
    if (cuda_info(b.device()).fp8 && o.type == DType::bf16) forward_part(b, o, batch, true);
  });
  part("train", [&](Bench& b, const Batch& batch) { train_part(b, o, batch); });
  part("fp8train", [&](Bench& b, const Batch&) {
    if (cuda_info(b.device()).fp8) fp8_train_part(b, o);
  });
  part("modern", [&](Bench& b, const Batch& batch) { modern_part(b, o, batch); });
  return 0;
}

}  // namespace
}  // namespace brim::ops

int main(int argc, char** argv) {
  try {
    return brim::ops::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
