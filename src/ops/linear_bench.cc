// SPDX-License-Identifier: Apache-2.0
// Benchmark of linear on the CPU: GFLOP/s and fraction of the register-resident peak per instruction set and precision,
// with shapes of BERT-base and MiniLM. Weights rotate through copies larger than L2, as in a forward pass; rows stay in
// cache, as in a chunk. Each result is checked against a few outputs computed in fp64.
//   linear_bench [--isa NAME] [--precision NAME] [--threads N] [--rows M,M,…] [--shape KxN,…] [--gelu] [--bf16-io]
//                [--hot]
//   linear_bench --layer [--hidden H] [--threads N] …   the four products of a layer, one chunk of rows per thread
//   linear_bench --grad [--rows T] …                    both gradients
// --hot keeps one copy of the weights instead, in whichever cache holds it.
//
// For scale, 256 rows, K 768, N 3072 in bf16: 1.21 GFLOP (0.46 ms at 2.6 TFLOP/s per core) and 0.8 MB of x, 4.7 MB of
// weights, 3.1 MB of y (0.35 ms at 25 GB/s from L3, so prefetching can hide it and y in bf16 pays off).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/thread_pool.h"
#include "ops/linear.h"
#include "ops/linear_testing.h"

namespace brim::ops {

using device::Isa;
using tensor::DType;
using tensor::TensorView;

namespace {

#if defined(__x86_64__)
#define I12(op) \
  op "0\n" op "1\n" op "2\n" op "3\n" op "4\n" op "5\n" op "6\n" op "7\n" op "8\n" op "9\n" op "10\n" op "11\n"
#define PEAK(name, text)                                \
  void name(int64_t n) {                                \
    for (; n > 0; --n) asm volatile(text ::: "memory"); \
    asm volatile("vzeroupper");                         \
  }
PEAK(fma_ymm, I12("vfmadd231ps %%ymm14, %%ymm15, %%ymm"))
PEAK(madd_ymm,
     "vpmaddwd %%ymm14, %%ymm15, %%ymm0\nvpaddd %%ymm0, %%ymm1, %%ymm1\nvpmaddwd %%ymm14, %%ymm15, %%ymm0\nvpaddd "
     "%%ymm0, %%ymm2, %%ymm2\n"
     "vpmaddwd %%ymm14, %%ymm15, %%ymm0\nvpaddd %%ymm0, %%ymm3, %%ymm3\nvpmaddwd %%ymm14, %%ymm15, %%ymm0\nvpaddd "
     "%%ymm0, %%ymm4, %%ymm4\n")
PEAK(fma_zmm, I12("vfmadd231ps %%zmm30, %%zmm31, %%zmm"))
PEAK(busd_zmm, I12("vpdpbusd %%zmm30, %%zmm31, %%zmm"))
PEAK(dpbf16_zmm, I12("vdpbf16ps %%zmm30, %%zmm31, %%zmm"))
alignas(64) const struct {
  uint8_t palette = 1, start = 0, zero[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
} kTiles;
void tile_bf16(int64_t n) {
  asm volatile("ldtilecfg %0" ::"m"(kTiles));
  for (; n > 0; --n)
    asm volatile(
        "tdpbf16ps %%tmm5, %%tmm4, %%tmm0\ntdpbf16ps %%tmm5, %%tmm4, %%tmm1\ntdpbf16ps %%tmm5, %%tmm4, "
        "%%tmm2\ntdpbf16ps %%tmm5, %%tmm4, %%tmm3\n" ::
            : "memory");
  asm volatile("tilerelease");
}
void tile_int8(int64_t n) {
  asm volatile("ldtilecfg %0" ::"m"(kTiles));
  for (; n > 0; --n)
    asm volatile(
        "tdpbssd %%tmm5, %%tmm4, %%tmm0\ntdpbssd %%tmm5, %%tmm4, %%tmm1\ntdpbssd %%tmm5, %%tmm4, %%tmm2\ntdpbssd "
        "%%tmm5, %%tmm4, %%tmm3\n" ::
            : "memory");
  asm volatile("tilerelease");
}
#elif defined(__aarch64__)
#define R24(op, tail)                                                                                        \
  op "8" tail op "9" tail op "10" tail op "11" tail op "12" tail op "13" tail op "14" tail op "15" tail op   \
     "16" tail op "17" tail op "18" tail op "19" tail op "20" tail op "21" tail op "22" tail op "23" tail op \
     "24" tail op "25" tail op "26" tail op "27" tail op "28" tail op "29" tail op "30" tail op "31" tail
#define VECTORS                                                                                                        \
  "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", \
      "v25", "v26", "v27", "v28", "v29", "v30", "v31"
#define PEAK(name, text)                                                   \
  void name(int64_t n) {                                                   \
    for (; n > 0; --n) asm volatile(".arch armv8.6-a\n" text ::: VECTORS); \
  }
PEAK(fmla, R24("fmla v", ".4s, v0.4s, v1.s[0]\n"))
PEAK(sdot, R24("sdot v", ".4s, v0.16b, v1.4b[0]\n"))
PEAK(bfmmla, R24("bfmmla v", ".4s, v0.8h, v1.8h\n"))
PEAK(smmla, R24("smmla v", ".4s, v0.16b, v1.16b\n"))
#endif

struct Peak {
  void (*run)(int64_t) = nullptr;
  double ops = 0;  // per iteration
};
Peak peak_of(Isa isa, Precision precision) {
  const bool fp32 = precision == Precision::fp32, int8 = precision == Precision::int8;
#if defined(__x86_64__)
  if (isa == Isa::avx2) return int8 ? Peak{madd_ymm, 4 * 32} : Peak{fma_ymm, 12 * 16};
  if (isa == Isa::avx512_vnni && (fp32 || int8)) return fp32 ? Peak{fma_zmm, 12 * 32} : Peak{busd_zmm, 12 * 128};
  if (isa == Isa::avx512_vnni) return {fma_ymm, 12 * 16};
  if (isa == Isa::avx512)
    return fp32 ? Peak{fma_zmm, 12 * 32} : int8 ? Peak{busd_zmm, 12 * 128} : Peak{dpbf16_zmm, 12 * 64};
  if (isa == Isa::amx)
    return fp32 ? Peak{fma_zmm, 12 * 32} : int8 ? Peak{tile_int8, 4 * 32768} : Peak{tile_bf16, 4 * 16384};
#elif defined(__aarch64__)
  if (isa == Isa::neon_mm && !fp32) return int8 ? Peak{smmla, 24 * 64} : Peak{bfmmla, 24 * 32};
  if (isa == Isa::neon_dot && int8) return {sdot, 24 * 32};
  if (isa != Isa::generic) return {fmla, 24 * 8};
#endif
  (void)isa, (void)fp32, (void)int8;
  return {};
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}
// Gop/s of one core, best of many runs of about 0.1 ms: short enough to find periods without other load.
double peak_gops(const Peak& peak) {
  if (peak.run == nullptr) return 0;
  const auto iterations = static_cast<int64_t>(1e7 / peak.ops * (peak.ops > 1e4 ? 20 : 1)) + 1;
  double best = 0;
  for (int i = 0; i < 200; ++i) {
    const int64_t begin = now_ns();
    peak.run(iterations);
    best = std::max(best, static_cast<double>(iterations) * peak.ops / static_cast<double>(now_ns() - begin));
  }
  return best;
}

template <class T>
struct Aligned {
  explicit Aligned(size_t n)
      : bytes(n * sizeof(T) + 64),
        data(reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(bytes.data()) + 63) / 64 * 64)) {}
  std::vector<char> bytes;
  T* data;
};

struct Options {
  std::vector<Isa> isas = device::supported_isas();
  std::vector<Precision> precisions = {Precision::fp32, Precision::bf16, Precision::int8};
  std::vector<int64_t> rows = {1, 8, 32, 256};
  std::vector<std::pair<int64_t, int64_t>> shapes = {
      {768, 768}, {768, 2304}, {768, 3072}, {3072, 768}, {384, 1536}};  // K, N
  int threads = 1;
  bool gelu = false, bf16_io = false, hot = false, layer = false, grad = false;
  int64_t hidden = 768;
};

void bench(const Options& o, Isa isa, Precision precision, int64_t M, int64_t K, int64_t N, ThreadPool* pool) {
  const bool half = o.bf16_io && precision != Precision::fp32;
  const DType type = half ? DType::bf16 : DType::f32;
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Aligned<float> w(static_cast<size_t>(N * K)), x32(static_cast<size_t>(M * K)), y(static_cast<size_t>(M * N)),
      bias(static_cast<size_t>(N));
  for (int64_t i = 0; i < N * K; ++i) w.data[i] = uniform(random) * 0.05f;
  for (int64_t i = 0; i < M * K; ++i) x32.data[i] = uniform(random);
  for (int64_t i = 0; i < N; ++i) bias.data[i] = uniform(random);
  Aligned<tensor::bf16_t> x16(static_cast<size_t>(M * K));
  convert_elements(x32.data, DType::f32, x16.data, DType::bf16, M * K);
  const int64_t bytes = linear_packed_bytes(N, K, precision, isa);
  const int copies = o.hot ? 1 : static_cast<int>(std::clamp<int64_t>((24 << 20) / std::max<int64_t>(bytes, 1), 2, 32));
  std::vector<std::unique_ptr<Aligned<uint8_t>>> packed;
  Aligned<float> scale(static_cast<size_t>(N));
  for (int i = 0; i < copies; ++i) {
    packed.push_back(std::make_unique<Aligned<uint8_t>>(static_cast<size_t>(bytes)));
    if (i == 0)
      linear_pack(TensorView(w.data, DType::f32, {N, K}), {}, precision, isa, packed[0]->data, scale.data);
    else
      std::memcpy(packed[i]->data, packed[0]->data, static_cast<size_t>(bytes));
  }
  device::CpuStream stream(pool, isa);
  const int64_t scratch_bytes = linear_scratch_bytes(stream, M, N, K, precision, o.threads);
  Aligned<uint8_t> scratch(static_cast<size_t>(scratch_bytes) + 1);
  LinearArgs args;
  args.x = half ? TensorView(x16.data, type, {M, K}) : TensorView(x32.data, type, {M, K});
  args.w = {N, K, precision, {}, {}, isa};
  if (precision == Precision::int8) args.w.scale = TensorView(scale.data, DType::f32, {N});
  args.bias = TensorView(bias.data, DType::f32, {N});
  args.y = TensorView(y.data, type, {M, N});
  args.scratch = TensorView(scratch.data, DType::u8, {scratch_bytes});
  args.activation = o.gelu ? Activation::gelu : Activation::none;
  int next = 0;
  const auto once = [&] {
    args.w.data = TensorView(packed[next]->data, DType::u8, {bytes});
    next = (next + 1) % copies;
    linear(stream, args);
  };
  once();
  double worst = 0;  // compared with fp64, relative to the magnitude of the sum
  for (int i = 0; i < 64; ++i) {
    const int64_t m = static_cast<int64_t>(random() % M), n = static_cast<int64_t>(random() % N);
    double sum = bias.data[n], size = 0;
    for (int64_t k = 0; k < K; ++k) {
      const double p = static_cast<double>(x32.data[m * K + k]) * w.data[n * K + k];
      sum += p;
      size += p * p;
    }
    if (o.gelu) sum = 0.5 * sum * std::erfc(-sum / std::sqrt(2.0));
    const double got = half ? to_float(reinterpret_cast<tensor::bf16_t*>(y.data)[m * N + n]) : y.data[m * N + n];
    worst = std::max(worst, std::fabs(got - sum) / std::sqrt(size));
  }
  const double flops = linear_work(args).flops;
  const double peak = peak_gops(peak_of(isa, precision)) * o.threads;
  const int repeats = static_cast<int>(std::clamp(2e7 / flops, 1.0, 100.0));
  std::vector<double> rates;
  for (const int64_t start = now_ns(); rates.size() < 20 || (now_ns() - start < 300'000'000 && rates.size() < 2000);) {
    const int64_t begin = now_ns();
    for (int i = 0; i < repeats; ++i) once();
    rates.push_back(flops * repeats / static_cast<double>(now_ns() - begin));
  }
  const double rate = median(rates), best = *std::max_element(rates.begin(), rates.end());
  std::printf(
      "%-14s M %4ld K %4ld N %4ld  median %8.1f  best %8.1f Gop/s  peak %8.1f  %5.1f %%  %8.1f us  weights %6.1f GB/s  "
      "error %.1e%s\n",
      linear_last_kernel(), M, K, N, rate, best, peak, peak > 0 ? 100 * best / peak : 0.0, flops / best / 1e3,
      static_cast<double>(bytes) / (flops / best), worst, worst > 0.05 ? "  WRONG" : "");
  std::fflush(stdout);
}

// Both gradients of one linear layer, as in training: T tokens on all threads of one op.
void bench_grad(const Options& o, Isa isa, Precision precision, int64_t T, int64_t K, int64_t N, ThreadPool* pool) {
  if (precision == Precision::int8) return;
  Aligned<float> x(static_cast<size_t>(T * K)), w(static_cast<size_t>(N * K)), d_y(static_cast<size_t>(T * N)),
      d_x(static_cast<size_t>(T * K));
  Aligned<float> d_w(static_cast<size_t>(N * K)), d_bias(static_cast<size_t>(N));
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (int64_t i = 0; i < T * K; ++i) x.data[i] = uniform(random);
  for (int64_t i = 0; i < N * K; ++i) w.data[i] = uniform(random);
  for (int64_t i = 0; i < T * N; ++i) d_y.data[i] = uniform(random);
  device::CpuStream stream(pool, isa);
  const int64_t bytes = linear_grad_scratch_bytes(stream, T, N, K, precision, o.threads);
  Aligned<uint8_t> scratch(static_cast<size_t>(bytes));
  LinearGradArgs args;
  args.x = TensorView(x.data, DType::f32, {T, K});
  args.w_plain = TensorView(w.data, DType::f32, {N, K});
  args.d_y = TensorView(d_y.data, DType::f32, {T, N});
  args.d_x = TensorView(d_x.data, DType::f32, {T, K});
  args.d_w = TensorView(d_w.data, DType::f32, {N, K});
  args.d_bias = TensorView(d_bias.data, DType::f32, {N});
  args.d_w_write = GradWrite::overwrite;
  args.scratch = TensorView(scratch.data, DType::u8, {bytes});
  args.precision = precision;
  std::vector<double> rates;
  for (const int64_t start = now_ns(); rates.size() < 5 || (now_ns() - start < 500'000'000 && rates.size() < 200);) {
    const int64_t begin = now_ns();
    linear_grad(stream, args);
    rates.push_back(linear_grad_work(args).flops / static_cast<double>(now_ns() - begin));
  }
  double sum = 0;
  for (int64_t n = 0; n < N; ++n) sum += static_cast<double>(d_y.data[(T - 1) * N + n]) * w.data[n * K];
  const double peak = peak_gops(peak_of(isa, precision)) * o.threads,
               best = *std::max_element(rates.begin(), rates.end());
  std::printf("grad %-12s T %4ld K %4ld N %4ld  median %8.1f  best %8.1f Gop/s  peak %8.1f  %5.1f %%  error %.1e\n",
              linear_kernel_name(isa, precision), T, K, N, median(rates), best, peak,
              peak > 0 ? 100 * best / peak : 0.0, std::fabs(sum - d_x.data[(T - 1) * K]));
  std::fflush(stdout);
}

// The four products of a layer in a worker, when every core processes its own chunk of rows one layer at a time:
// weights are shared and too large for a core's own cache, rows are private. Reports all threads together.
void bench_layer(const Options& o, Isa isa, Precision precision, int64_t M) {
  constexpr int kLayers = 4;
  const int64_t H = o.hidden, F = 4 * H;
  const std::pair<int64_t, int64_t> shapes[] = {{H, 3 * H}, {H, H}, {H, F}, {F, H}};
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-0.05f, 0.05f);
  Aligned<float> w(static_cast<size_t>(F * H)), zeros(static_cast<size_t>(F));
  for (int64_t i = 0; i < F * H; ++i) w.data[i] = uniform(random);
  std::memset(zeros.data, 0, static_cast<size_t>(F) * 4);
  std::vector<std::unique_ptr<Aligned<uint8_t>>> packed;
  Aligned<float> scale(static_cast<size_t>(F));
  double flops = 0;
  for (const auto& [K, N] : shapes) flops += 2.0 * static_cast<double>(M * K * N);
  for (int l = 0; l < kLayers; ++l)
    for (const auto& [K, N] : shapes) {
      packed.push_back(
          std::make_unique<Aligned<uint8_t>>(static_cast<size_t>(linear_packed_bytes(N, K, precision, isa))));
      linear_pack(TensorView(w.data, DType::f32, {N, K}), {}, precision, isa, packed.back()->data, scale.data);
    }
  const DType middle = o.bf16_io && precision != Precision::fp32 ? DType::bf16 : DType::f32;
  ThreadPool pool(o.threads);
  std::vector<std::vector<double>> times(static_cast<size_t>(o.threads));
  for (int attempt = 0; attempt < 3; ++attempt)
    pool.run([&](int worker) {
      device::CpuStream stream(nullptr, isa);
      Aligned<float> x(static_cast<size_t>(M * H)), qkv(static_cast<size_t>(M * 3 * H)), y(static_cast<size_t>(M * H)),
          h(static_cast<size_t>(M * F));
      for (int64_t i = 0; i < M * H; ++i) x.data[i] = w.data[i % (F * H)];
      const int64_t bytes = linear_scratch_bytes(stream, M, H, F, precision, 1);
      Aligned<uint8_t> scratch(static_cast<size_t>(bytes) + 1);
      const auto apply = [&](int layer, int which, const TensorView& in, const TensorView& out,
                             const TensorView& residual, Activation activation) {
        const auto [K, N] = shapes[which];
        LinearArgs args;
        args.x = in;
        args.w = {N,
                  K,
                  precision,
                  TensorView(packed[static_cast<size_t>(layer * 4 + which)]->data, DType::u8,
                             {linear_packed_bytes(N, K, precision, isa)}),
                  {},
                  isa};
        if (precision == Precision::int8) args.w.scale = TensorView(scale.data, DType::f32, {N});
        args.bias = TensorView(zeros.data, DType::f32, {N});
        args.residual = residual;
        args.y = out;
        args.scratch = TensorView(scratch.data, DType::u8, {bytes});
        args.activation = activation;
        linear(stream, args);
      };
      const TensorView vx(x.data, DType::f32, {M, H}), vqkv(qkv.data, DType::f32, {M, 3 * H}),
          vy(y.data, DType::f32, {M, H}), vh(h.data, middle, {M, F});
      for (const int64_t start = now_ns(); now_ns() - start < 300'000'000;) {
        const int64_t begin = now_ns();
        for (int l = 0; l < kLayers; ++l) {
          apply(l, 0, vx, vqkv, {}, Activation::none);
          apply(l, 1, vqkv.slice_cols(0, H), vy, vx, Activation::none);
          apply(l, 2, vy, vh, {}, Activation::gelu);
          apply(l, 3, vh, vy, vx, Activation::none);
        }
        times[static_cast<size_t>(worker)].push_back(static_cast<double>(now_ns() - begin) / kLayers);
      }
    });
  double rate = 0, best = 0;
  for (const auto& t : times) {
    rate += flops / median(t);
    best += flops / *std::min_element(t.begin(), t.end());
  }
  std::printf(
      "layer %-10s M %4ld H %4ld threads %2d middle %-4s  median %9.1f  best %9.1f Gop/s together; peak of one %8.1f\n",
      linear_kernel_name(isa, precision), M, H, o.threads, dtype_name(middle), rate, best,
      peak_gops(peak_of(isa, precision)));
  std::fflush(stdout);
}

}  // namespace
}  // namespace brim::ops

int main(int argc, char** argv) {
  using namespace brim;
  using namespace brim::ops;
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    const auto each = [&](auto&& fn) {
      for (size_t at = 0; at <= value.size();) {
        const size_t end = std::min(value.find(',', at), value.size());
        fn(value.substr(at, end - at));
        at = end + 1;
      }
      ++i;
    };
    if (flag == "--gelu")
      o.gelu = true;
    else if (flag == "--bf16-io")
      o.bf16_io = true;
    else if (flag == "--hot")
      o.hot = true;
    else if (flag == "--layer")
      o.layer = true;
    else if (flag == "--grad")
      o.grad = true;
    else if (flag == "--hidden") {
      o.hidden = std::stol(value);
      ++i;
    } else if (flag == "--threads") {
      o.threads = std::stoi(value);
      ++i;
    } else if (flag == "--rows") {
      o.rows.clear();
      each([&](const std::string& s) { o.rows.push_back(std::stol(s)); });
    } else if (flag == "--shape") {
      o.shapes.clear();
      each([&](const std::string& s) { o.shapes.emplace_back(std::stol(s), std::stol(s.substr(s.find('x') + 1))); });
    } else if (flag == "--precision") {
      o.precisions.clear();
      each([&](const std::string& s) { o.precisions.push_back(*precision_from_name(s)); });
    } else if (flag == "--isa") {
      o.isas.clear();
      each([&](const std::string& s) {
        for (const Isa isa : device::supported_isas())
          if (s == isa_name(isa)) o.isas.push_back(isa);
      });
    } else {
      std::fprintf(stderr, "unknown flag %s\n", flag.c_str());
      return 2;
    }
  }
  std::unique_ptr<ThreadPool> pool = o.threads > 1 ? std::make_unique<ThreadPool>(o.threads) : nullptr;
  for (const Isa isa : o.isas)
    for (const Precision precision : o.precisions)
      for (const int64_t M : o.rows) {
        if (o.layer) bench_layer(o, isa, precision, M);
        for (const auto& [K, N] : o.shapes) {
          if (o.grad)
            bench_grad(o, isa, precision, M, K, N, pool.get());
          else if (!o.layer)
            bench(o, isa, precision, M, K, N, pool.get());
        }
      }
}
