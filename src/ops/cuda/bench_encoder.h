// SPDX-License-Identifier: Apache-2.0
// The RoBERTa-base encoder as a sequence of op calls, for timing them individually and together in ops_cuda_bench.
#pragma once
#include "ops/cuda/bench.h"
#include "ops/embedding.h"
#include "ops/layer_norm.h"

namespace brim::ops {

struct Layer {
  LinearWeight qkv, out, up, down;
  TensorView b_qkv, b_out, b_up, b_down, gamma, beta;
};

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
    // Alternate between the weights of two layers: more than fits in L2, as in the model.
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

inline constexpr const char* kGemmNames[] = {"linear qkv", "linear out", "linear ffn1 + gelu", "linear ffn2"};

inline void attention_rows(Bench& b, const Options& o, const Batch& tweets,
                           const std::function<void(const std::string&, const Batch&)>& row) {
  row("tweets", tweets);
  for (const int32_t n : {16, 32, 48, 64, 128, 256, 512})
    row(std::to_string(n) + " tokens each", Batch(b, o.tokens, [n](std::mt19937&) { return n; }));
  row("1 in 64 is 512, else 25",
      Batch(b, o.tokens, [i = 0](std::mt19937&) mutable { return ++i % 64 == 0 ? 512 : 25; }));
}

}  // namespace brim::ops
