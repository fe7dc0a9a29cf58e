// SPDX-License-Identifier: Apache-2.0
// Part of ops_cuda_bench: int8 products of RoBERTa-base, relative to the rate of mma.sync from registers and to an fp16
// kernel with the same tiles.
#include "ops/cuda/bench.h"
#include "ops/cuda/tile_gemm.cuh"
#include "ops/int8.h"

namespace brim::ops {
namespace {

constexpr int kPeakSteps = 4096, kPeakTiles = 8, kPeakWarps = 8;

// Independent products of random registers.
template <class Mul>
__global__ void __launch_bounds__(32 * kPeakWarps) peak_kernel(uint32_t* out) {
  typename Mul::Sum c[kPeakTiles][4] = {};
  uint32_t a[kPeakTiles][4], b[2];
  const auto word = [](int i) {
    const uint64_t bits = dropout_bits(1, 0, threadIdx.x, static_cast<uint32_t>(i));
    const auto all = static_cast<uint32_t>(bits);
    return std::is_same_v<Mul, MultiplyHalf> ? (all & 0x83FF83FFu) | 0x38003800u : all;  // halves up to 1
  };
  for (int i = 0; i < kPeakTiles; ++i)
    for (int j = 0; j < 4; ++j) a[i][j] = word(4 * i + j);
  b[0] = word(100);
  b[1] = word(101);
#pragma unroll 1
  for (int step = 0; step < kPeakSteps; ++step)
#pragma unroll
    for (int i = 0; i < kPeakTiles; ++i) Mul::run(c[i], a[i], b[0], b[1]);
  typename Mul::Sum sum = 0;
  for (int i = 0; i < kPeakTiles; ++i)
    for (int j = 0; j < 4; ++j) sum += c[i][j];
  if (sum == static_cast<typename Mul::Sum>(12345)) out[0] = 1;  // keeps the products
}

// TFLOP/s. An MMA has 16 x 8 outputs and 32 bytes of K.
template <class Mul>
double measure_peak(Bench& b) {
  auto& s = static_cast<device::CudaStream&>(b.stream());
  const TensorView out = b.raw(DType::u8, {16});
  const int blocks = 2 * s.info().sm_count;
  const auto run = [&] {
    device::launch<peak_kernel<Mul>>(s, dim3(static_cast<unsigned>(blocks)), dim3(32 * kPeakWarps),
                                     static_cast<uint32_t*>(out.data));
  };
  for (int i = 0; i < 20; ++i) run();
  const double depth = std::is_same_v<Mul, MultiplyInt8> ? 32 : 16;
  return 2.0 * 16 * 8 * depth * kPeakSteps * kPeakTiles * kPeakWarps * blocks / b.us(run, 1.0) / 1e6;
}

struct Product {
  const char* name;
  int64_t N, K;
  bool gelu, blocks;  // gelu: an int8 result. blocks: reads such a result
};
constexpr Product kProducts[] = {{"qkv", 2304, 768, false, false},
                                 {"out", 768, 768, false, false},
                                 {"up, GELU", 3072, 768, true, false},
                                 {"down", 768, 3072, false, true}};

TileProblem problem_of(const TensorView& x, const TensorView& w, const TensorView& bias, const TensorView& y) {
  TileProblem p{};
  p.x = static_cast<const char*>(x.data);
  p.w = static_cast<const char*>(w.data);
  p.bias = bias.data;
  p.y = y.data;
  p.ldx = p.ldw = x.bytes() / x.rows();
  p.ldy = y.ld();
  p.T = static_cast<int>(x.rows());
  p.N = static_cast<int>(w.rows());
  p.K = static_cast<int>(p.ldx);
  return p;
}

template <class Shape>
void launch_half(Bench& b, const TileProblem& p, bool gelu) {
  auto& s = static_cast<device::CudaStream&>(b.stream());
  if (gelu)
    launch_tiles<Shape, MultiplyHalf, __half, __half, false, Epilogue::gelu>(s, p);
  else
    launch_tiles<Shape, MultiplyHalf, __half, __half, false, Epilogue::none>(s, p);
}
template <class Shape>
void launch_codes(Bench& b, const TileProblem& p, const Product& product) {
  auto& s = static_cast<device::CudaStream&>(b.stream());
  if (product.gelu)
    launch_tiles<Shape, MultiplyInt8, __half, int8_t, false, Epilogue::gelu>(s, p);
  else if (!product.blocks)
    launch_tiles<Shape, MultiplyInt8, __half, __half, false, Epilogue::none>(s, p);
  else
    launch_tiles<Shape, MultiplyInt8, __half, __half, true, Epilogue::none>(s, p);
}

// One row per product.
template <class Shape>
void compare(Bench& b, int64_t T, const char* title, double int8_peak, double half_peak) {
  const auto row = [&](const char* name, double flops, double int8_us, double half_us) {
    const double int8 = flops / int8_us / 1e6, half = flops / half_us / 1e6;
    std::printf("%-12s %9.1f %9.0f %8.1f %% %9.1f %9.0f %8.1f %% %8.2f\n", name, int8_us, int8, 100 * int8 / int8_peak,
                half_us, half, 100 * half / half_peak, half_us / int8_us);
    std::fflush(stdout);
  };
  std::printf("\n%-12s %9s %9s %10s %9s %9s %10s %8s\n", title, "int8 us", "TFLOP/s", "of peak", "fp16 us", "TFLOP/s",
              "of peak", "ratio");
  double flops = 0, int8_total = 0, half_total = 0;
  for (const Product& product : kProducts) {
    const int64_t N = product.N, K = product.K;
    const TensorView x = b.normal(DType::f16, {T, K}), w = b.normal(DType::f16, {N, K}, 0.03f),
                     bias = b.normal(DType::f16, {N}, 0.1f), y = b.raw(DType::f16, {T, N});
    const double half_us = b.us([&] { launch_half<Shape>(b, problem_of(x, w, bias, y), product.gelu); });
    const TensorView codes = b.raw(DType::i8, {T, K}), row_scales = b.raw(DType::f32, {T}),
                     weights = b.raw(DType::i8, {N, K}), w_scale = b.raw(DType::f32, {N}),
                     result = product.gelu ? b.raw(DType::i8, {T, N}) : y,
                     blocks = b.normal(DType::f32, {int8_blocks(std::max(N, K)), T}, 0.01f);
    convert(b.stream(), {.x = x, .y = codes, .scale = row_scales});
    convert(b.stream(), {.x = w, .y = weights, .scale = w_scale});
    TileProblem p = problem_of(codes, weights, bias, result);
    p.x_scale = (product.blocks ? blocks : row_scales).as<float>();
    p.ld_x_scale = p.ld_y_scale = static_cast<int>(T);
    p.w_scale = w_scale.as<float>();
    p.y_scale = blocks.as<float>();
    const double int8_us = b.us([&] { launch_codes<Shape>(b, p, product); });
    const double work = 2.0 * static_cast<double>(T) * static_cast<double>(N * K);
    row(product.name, work, int8_us, half_us);
    flops += work;
    int8_total += int8_us;
    half_total += half_us;
    b.free_last(product.gelu ? 10 : 9);
  }
  row("sum", flops, int8_total, half_total);
}

}  // namespace

void int8_part(Bench& b, const Options& o) {
  const double int8 = measure_peak<MultiplyInt8>(b), half = measure_peak<MultiplyHalf>(b);
  std::printf("mma.sync from registers: int8 %.0f TFLOP/s, fp16 %.0f TFLOP/s (%.2f)\n", int8, half, int8 / half);
  compare<TileShape<2, 4, 4, 8, 64, 4, 1>>(b, o.tokens, "128x256x64", int8, half);
  if (o.tune > 0) compare<TileShape<2, 2, 4, 8, 64, 4, 2>>(b, o.tokens, "128x128x64", int8, half);
}

}  // namespace brim::ops
