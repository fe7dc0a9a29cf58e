// SPDX-License-Identifier: Apache-2.0
// Every matrix kernel of this machine compared with an fp64 reference, at tile edges, with odd strides and misaligned
// starts. Tolerances are derived: a sum of K products in fp32 has an error of at most K plus a few roundings of the
// sum of |a||b|.
#include "ops/linear.h"

#include <cstring>

#include "ops/linear_testing.h"
#include "ops/testing.h"

namespace brim::ops {

using device::CpuStream;
using device::Isa;
using tensor::DType;
using tensor::TensorView;

namespace {

using testing::HostTensor;
using testing::kEps32;
using testing::kEpsBf16;

constexpr Precision kPrecisions[] = {Precision::fp32, Precision::bf16, Precision::int8};

struct LinearCase {
  int64_t T = 1, N = 1, K = 1;
  Activation activation = Activation::none;
  bool bias = true, residual = false;
  DType x_type = DType::f32, y_type = DType::f32;
  int64_t pad = 0;    // elements between the rows of x, residual and y
  int64_t shift = 0;  // offset of x and y from an aligned address, in elements
  int threads = 1;
  double x_scale = 1;
  double x_mean = 0;
  bool centred = false;  // int8 rows are packed around their centres
};

std::string text(const LinearCase& c, Precision precision, Isa isa) {
  return fmt::format(
      "{} {}: T {} N {} K {} activation {} bias {} residual {} x {} y {} pad {} shift {} threads {} centred {}",
      isa_name(isa), precision_name(precision), c.T, c.N, c.K, static_cast<int>(c.activation), c.bias, c.residual,
      dtype_name(c.x_type), dtype_name(c.y_type), c.pad, c.shift, c.threads, c.centred);
}

// Rows of a tensor that begins `shift` elements into its storage, so that vectors straddle cache lines.
struct Matrix {
  HostTensor storage;
  TensorView view;
  Matrix(DType type, int64_t rows, int64_t cols, int64_t pad, int64_t shift, uint64_t seed, double scale,
         double mean = 0)
      : storage(testing::random_tensor(type, {rows + 1, cols + shift}, seed, scale, mean, pad)),
        view(storage.view().slice_rows(0, rows).slice_cols(shift, cols + shift)) {}
  double at(int64_t r, int64_t c) const { return storage.at(r, c + storage.cols() - view.cols()); }
};

// A packed weight with its memory.
struct Packed {
  HostTensor data, scale, total;
  LinearWeight weight;
};
Packed pack(const TensorView& w, Precision precision, Isa isa, const TensorView& source_scale = {},
            bool centred = false) {
  const int64_t N = w.rows(), K = w.cols(), bytes = linear_packed_bytes(N, K, precision, isa);
  Packed p{testing::bytes_tensor(bytes + 64), HostTensor(DType::f32, {N}), HostTensor(DType::f32, {N}), {}};
  linear_pack(w, source_scale, precision, isa, p.data.as<uint8_t>(), p.scale.as<float>(),
              centred ? p.total.as<float>() : nullptr);
  for (int64_t i = bytes; i < bytes + 64; ++i) EXPECT_EQ(p.data.as<uint8_t>()[i], 0xFF) << "packing wrote past its end";
  p.weight = {N, K, precision, TensorView(p.data.as<uint8_t>(), DType::u8, {bytes}), {}, isa};
  if (precision == Precision::int8) p.weight.scale = p.scale;
  if (centred) p.weight.total = p.total;
  return p;
}

// int8 form of a row, by the fp32 operations that define the format.
struct QuantisedRow {
  std::vector<int> q;
  float scale = 0, centre = 0;
};
template <class At>
QuantisedRow quantise_centred(int64_t K, At&& at) {
  float high = 0, low = 0;  // 0 is always in the range
  for (int64_t k = 0; k < K; ++k) {
    high = std::max(high, static_cast<float>(at(k)));
    low = std::min(low, static_cast<float>(at(k)));
  }
  const float half = 0.5f * high - 0.5f * low, inverse = half > 0 ? 127 / half : 0;
  QuantisedRow row{{}, half / 127, 0.5f * high + 0.5f * low};
  for (int64_t k = 0; k < K; ++k)
    row.q.push_back(static_cast<int>(std::nearbyint((static_cast<float>(at(k)) - row.centre) * inverse)));
  return row;
}
template <class At>
QuantisedRow quantise(int64_t K, At&& at, bool centred = false) {
  if (centred) return quantise_centred(K, at);
  float most = 0;
  for (int64_t k = 0; k < K; ++k) most = std::max(most, std::fabs(static_cast<float>(at(k))));
  const float inverse = most > 0 ? 127 / most : 0;
  QuantisedRow row{{}, most / 127, 0};
  for (int64_t k = 0; k < K; ++k)
    row.q.push_back(static_cast<int>(std::nearbyint(static_cast<float>(at(k)) * inverse)));
  return row;
}

struct LinearReference {
  std::vector<double> y, tolerance;
};

template <class X, class W>
LinearReference reference(const LinearCase& c, Precision precision, const X& x, const W& w, const HostTensor& bias,
                          const Matrix& residual) {
  LinearReference ref;
  std::vector<QuantisedRow> xq, wq;
  if (precision == Precision::int8) {
    for (int64_t t = 0; t < c.T; ++t)
      xq.push_back(quantise(
          c.K, [&](int64_t k) { return x.at(t, k); }, c.centred));
    for (int64_t n = 0; n < c.N; ++n) wq.push_back(quantise(c.K, [&](int64_t k) { return w.at(n, k); }));
  }
  for (int64_t t = 0; t < c.T; ++t)
    for (int64_t n = 0; n < c.N; ++n) {
      double sum = 0, size = 0, error = 0;
      if (precision == Precision::int8) {
        int64_t exact = 0, total = 0;
        for (int64_t k = 0; k < c.K; ++k) {
          exact += static_cast<int64_t>(xq[t].q[k]) * wq[n].q[k];
          total += wq[n].q[k];
        }
        const double moved = static_cast<double>(total) * wq[n].scale * xq[t].centre;
        sum = static_cast<double>(exact) * xq[t].scale * wq[n].scale;
        // Conversion of the integer, product of the scales, product of both; the same for the centre; their sum.
        error = 3 * kEps32 * (std::fabs(sum) + std::fabs(moved)) + kEps32 * std::fabs(sum + moved);
        sum += moved;
      } else {
        for (int64_t k = 0; k < c.K; ++k) {
          double a = x.at(t, k), b = w.at(n, k);
          if (precision == Precision::bf16) {
            a = to_float(tensor::to_bf16(static_cast<float>(a)));
            b = to_float(tensor::to_bf16(static_cast<float>(b)));
          }
          sum += a * b;
          size += std::fabs(a * b);
        }
        // Products and partial sums are rounded once each, and none exceeds `size`. bf16 units may round to odd, with
        // twice the error, and flush denormals.
        const double roundings = static_cast<double>(precision == Precision::bf16 ? 4 * c.K : 2 * c.K);
        error = roundings * kEps32 * size + static_cast<double>(c.K) * 0x1p-125;
      }
      if (c.bias) {
        sum += bias.at(n);
        error += kEps32 * std::fabs(sum);
      }
      double value = testing::activation64(c.activation, sum);
      if (c.activation == Activation::gelu) {
        // |gelu'| < 1.13. In fp32 the formula has an error of a few roundings, more in the tail, where e^(-x²/2)
        // magnifies that of its argument; in half precision 5e-5.
        error = 1.13 * error +
                (precision == Precision::fp32 ? (8 + sum * sum) * kEps32 * std::fabs(value) + 2 * kEps32 : 5e-5);
      } else if (c.activation == Activation::tanh) {
        error += 8 * kEps32 * std::fabs(value);
      } else if (c.activation != Activation::none && c.activation != Activation::relu) {
        error = 1.13 * error + testing::activation_roundings(c.activation, sum) * kEps32 * std::fabs(value);
      }
      if (c.residual) {
        value += residual.at(t, n);
        error += kEps32 * std::fabs(value);
      }
      if (c.y_type == DType::bf16) error = error * (1 + kEpsBf16) + kEpsBf16 * std::fabs(value) + 0x1p-133;
      ref.y.push_back(value);
      ref.tolerance.push_back(error + 0x1p-149);
    }
  return ref;
}

struct Inputs {
  Matrix x;
  HostTensor w, bias;
  Matrix residual;
  explicit Inputs(const LinearCase& c)
      : x(c.x_type, c.T, c.K, c.pad, c.shift, 1, c.x_scale, c.x_mean),
        w(testing::random_tensor(DType::f32, {c.N, c.K}, 2, 0.7)),
        bias(testing::random_tensor(DType::f32, {c.N}, 3)),
        residual(DType::f32, c.T, c.N, c.pad, 0, 4, 1) {}
};

// Runs one case on one kernel: poisoned output and scratch, guards around both, and a check that the named kernel has
// run.
void check(const LinearCase& c, Precision precision, Isa isa, const Inputs& in, const LinearReference& ref) {
  SCOPED_TRACE(text(c, precision, isa));
  const auto& [x, w, bias, residual] = in;
  Packed packed = pack(w, precision, isa, {}, c.centred);
  HostTensor storage(c.y_type, {c.T + 1, c.N + c.shift}, c.pad + 5);
  const TensorView y = storage.view().slice_rows(0, c.T).slice_cols(c.shift, c.N + c.shift);

  ThreadPool pool(c.threads);
  CpuStream stream(c.threads > 1 ? &pool : nullptr, isa);
  const int64_t scratch_bytes = linear_scratch_bytes(stream, c.T, c.N, c.K, precision, c.threads);
  HostTensor scratch = testing::bytes_tensor(scratch_bytes + 64);
  LinearArgs args;
  args.x = x.view;
  args.w = packed.weight;
  if (c.bias) args.bias = bias;
  if (c.residual) args.residual = residual.view;
  args.y = y;
  args.scratch = TensorView(scratch.as<uint8_t>(), DType::u8, {scratch_bytes});
  args.activation = c.activation;
  linear(stream, args);

  if (c.T > 0 && c.N > 0) {
    const std::string name = linear_last_kernel();
    EXPECT_TRUE(name.ends_with(precision_name(precision))) << name;
    EXPECT_EQ(name, linear_kernel_name(isa, precision));
  }
  std::vector<double> actual;
  for (int64_t t = 0; t < c.T; ++t)
    for (int64_t n = 0; n < c.N; ++n) actual.push_back(storage.at(t, n + c.shift));
  EXPECT_TRUE(testing::close(actual, ref.y, [&](size_t i) { return ref.tolerance[i]; }));
  // Only y was written: memory before the start of a row, between rows and after the last row is still poison.
  const int64_t ld = storage.view().ld(), size = dtype_bytes(c.y_type);
  const auto* raw = static_cast<const uint8_t*>(storage.view().data);
  for (int64_t i = 0; i < (c.T + 1) * ld; ++i) {
    if (i < c.T * ld && i % ld >= c.shift && i % ld < c.shift + c.N) continue;
    for (int64_t b = 0; b < size; ++b) ASSERT_EQ(raw[i * size + b], 0xFF) << "element " << i << " of the storage";
  }
  for (int64_t i = scratch_bytes; i < scratch_bytes + 64; ++i)
    ASSERT_EQ(scratch.as<uint8_t>()[i], 0xFF) << "scratch overrun";
}

void check_all(const LinearCase& c) {
  const Inputs in(c);
  for (const Precision precision : kPrecisions) {
    if (precision == Precision::fp32 && c.x_type != DType::f32) continue;
    for (const bool centred : {false, true}) {
      if (centred && precision != Precision::int8) continue;
      LinearCase form = c;
      form.centred = centred;
      const LinearReference ref = reference(form, precision, in.x, in.w, in.bias, in.residual);
      for (const Isa isa : device::supported_isas()) check(form, precision, isa, in, ref);
    }
  }
}

TEST(Linear, MatchesFp64AtTileEdges) {
  for (const int64_t T : {1, 2, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 50})
    for (const int64_t N : {1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 65}) check_all({.T = T, .N = N, .K = 40});
}

TEST(Linear, MatchesFp64AtDepthEdges) {
  for (const int64_t K : {1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 127, 129, 384, 768})
    for (const int64_t T : {1, 19}) check_all({.T = T, .N = 37, .K = K, .residual = true});
}

TEST(Linear, HandlesEmptySizes) {
  check_all({.T = 0, .N = 16, .K = 16});
  check_all({.T = 3, .N = 0, .K = 16});
  check_all({.T = 3, .N = 5, .K = 0, .residual = true});  // no products: only bias and residual
}

TEST(Linear, HandlesStridesAndMisalignedStarts) {
  for (const int64_t pad : {0, 1, 3})
    for (const int64_t shift : {0, 1, 3, 7})
      check_all({.T = 19, .N = 50, .K = 67, .residual = true, .pad = pad, .shift = shift});
}

TEST(Linear, AppliesActivations) {
  for (const Activation activation : testing::kEveryActivation)
    for (const bool bias : {false, true})
      for (const bool residual : {false, true})
        for (const DType y_type : {DType::f32, DType::bf16})
          for (const double scale : {0.05, 1.0})
            check_all({.T = 17,
                       .N = 51,
                       .K = 30,
                       .activation = activation,
                       .bias = bias,
                       .residual = residual,
                       .y_type = y_type,
                       .x_scale = scale});
}

TEST(Linear, AcceptsRowsFarFromZero) {
  for (const double mean : {-3.0, 3.0, 1e30})
    for (const int64_t K : {7, 64, 100}) check_all({.T = 18, .N = 35, .K = K, .x_mean = mean});
}

TEST(Linear, AcceptsBf16Input) {
  for (const int64_t K : {5, 32, 100})
    check_all({.T = 21, .N = 50, .K = K, .x_type = DType::bf16, .y_type = DType::bf16, .pad = 3, .shift = 1});
}

TEST(Linear, MatchesFp64AtModelShapes) {
  check_all({.T = 32, .N = 96, .K = 384});
  check_all({.T = 33, .N = 50, .K = 1536, .activation = Activation::gelu});
}

TEST(Linear, SharesOneOpAmongThreads) {
  for (const int threads : {2, 3, 7})
    for (const int64_t T : {1, 5, 33, 300})
      for (const int64_t N : {3, 48, 200}) check_all({.T = T, .N = N, .K = 20, .residual = true, .threads = threads});
  check_all({.T = 1500, .N = 40, .K = 12, .threads = 2});  // several rounds of scratch
}

// Same bits for any number of threads and any split of the rows.
TEST(Linear, ThreadsAndChunksDoNotChangeBits) {
  const int64_t T = 77, N = 130, K = 96;
  const HostTensor x = testing::random_tensor(DType::f32, {T, K}, 1), w = testing::random_tensor(DType::f32, {N, K}, 2),
                   bias = testing::random_tensor(DType::f32, {N}, 3);
  for (const Isa isa : device::supported_isas())
    for (const auto& [precision, centred] : {std::pair(Precision::fp32, false),
                                             {Precision::bf16, false},
                                             {Precision::int8, false},
                                             {Precision::int8, true}}) {
      Packed packed = pack(w, precision, isa, {}, centred);
      HostTensor alone(DType::f32, {T, N}), shared(DType::f32, {T, N}), chunks(DType::f32, {T, N});
      ThreadPool pool(3);
      CpuStream one(nullptr, isa), three(&pool, isa);
      HostTensor scratch = testing::bytes_tensor(linear_scratch_bytes(three, T, N, K, precision, 3));
      const auto run = [&](device::Stream& stream, const HostTensor& y, int64_t begin, int64_t end) {
        LinearArgs args;
        args.x = x.view().slice_rows(begin, end);
        args.w = packed.weight;
        args.bias = bias;
        args.y = y.view().slice_rows(begin, end);
        args.scratch = scratch;
        args.activation = Activation::gelu;
        linear(stream, args);
      };
      run(one, alone, 0, T);
      run(three, shared, 0, T);
      for (int64_t t = 0; t < T; t += 13) run(one, chunks, t, std::min(T, t + 13));
      EXPECT_TRUE(testing::same_bits(alone, shared)) << isa_name(isa) << " " << precision_name(precision);
      EXPECT_TRUE(testing::same_bits(alone, chunks)) << isa_name(isa) << " " << precision_name(precision);
    }
}

// Extreme integers: every product is maximal, so a kernel that saturates or overflows 16 bits is detected.
TEST(Linear, Int8IsExactForExtremeValues) {
  const int64_t T = 9, N = 50, K = 768;
  for (const Isa isa : device::supported_isas())
    for (const int sign : {-1, 1}) {
      HostTensor x(DType::f32, {T, K}), w(DType::i8, {N, K}), w_scale(DType::f32, {N}), y(DType::f32, {T, N});
      x.fill(sign * 127.0);  // scale exactly 1
      w_scale.fill(1);
      for (int64_t i = 0; i < N * K; ++i)
        w.as<int8_t>()[i] = static_cast<int8_t>(i % K < K / 2 || i / K % 2 == 0 ? -128 : 127);
      Packed packed = pack(w, Precision::int8, isa, w_scale);
      CpuStream stream(nullptr, isa);
      HostTensor scratch = testing::bytes_tensor(linear_scratch_bytes(stream, T, N, K, Precision::int8, 1));
      LinearArgs args;
      args.x = x;
      args.w = packed.weight;
      args.y = y;
      args.scratch = scratch;
      linear(stream, args);
      for (int64_t t = 0; t < T; ++t)
        for (int64_t n = 0; n < N; ++n) {
          int64_t exact = 0;
          for (int64_t k = 0; k < K; ++k) exact += sign * 127 * w.as<int8_t>()[n * K + k];
          ASSERT_EQ(y.at(t, n), static_cast<double>(exact)) << isa_name(isa) << " row " << t << " column " << n;
        }
    }
}

struct NotFiniteCase {
  Activation activation;
  double value;
  bool centred;
};
std::vector<NotFiniteCase> not_finite_cases(Precision precision) {
  std::vector<NotFiniteCase> cases;
  for (const Activation activation : testing::kEveryActivation) {
    cases.push_back({activation, NAN, false});
    if (precision == Precision::int8)
      for (const double value : {static_cast<double>(NAN), -static_cast<double>(NAN)})
        cases.push_back({activation, value, true});
  }
  return cases;
}

TEST(Linear, PropagatesNanAndInfinity) {
  const int64_t T = 3, N = 20, K = 40;
  for (const Isa isa : device::supported_isas())
    for (const Precision precision : kPrecisions)
      for (const auto& [activation, value, centred] : not_finite_cases(precision)) {
        const HostTensor x = testing::random_tensor(DType::f32, {T, K}, 1),
                         w = testing::random_tensor(DType::f32, {N, K}, 2);
        x.set(1, 7, value);
        Packed packed = pack(w, precision, isa, {}, centred);
        CpuStream stream(nullptr, isa);
        HostTensor scratch = testing::bytes_tensor(linear_scratch_bytes(stream, T, N, K, precision, 1)),
                   y(DType::f32, {T, N});
        LinearArgs args;
        args.x = x;
        args.w = packed.weight;
        args.y = y;
        args.scratch = scratch;
        args.activation = activation;
        linear(stream, args);
        for (int64_t n = 0; n < N; ++n) {
          EXPECT_TRUE(std::isfinite(y.at(0, n)) && std::isfinite(y.at(2, n)));
          EXPECT_TRUE(std::isnan(y.at(1, n)))
              << isa_name(isa) << " " << precision_name(precision) << " " << static_cast<int>(activation);
        }
      }
}

// Values after GELU are at least -0.17: a range around their centre has half the step of one around zero.
TEST(Linear, CentresHalveTheErrorOfOneSidedRows) {
  const int64_t T = 16, N = 32, K = 384;
  const HostTensor x = testing::random_tensor(DType::f32, {T, K}, 1), w = testing::random_tensor(DType::f32, {N, K}, 2);
  for (int64_t t = 0; t < T; ++t)
    for (int64_t k = 0; k < K; ++k) x.set(t, k, std::max(-0.17, x.at(t, k)));
  HostTensor w8(DType::f32, {N, K});  // rounded to int8, so that only the rows have an error
  for (int64_t n = 0; n < N; ++n) {
    const QuantisedRow row = quantise(K, [&](int64_t k) { return w.at(n, k); });
    for (int64_t k = 0; k < K; ++k) w8.set(n, k, row.q[static_cast<size_t>(k)] * static_cast<double>(row.scale));
  }
  for (const Isa isa : device::supported_isas()) {
    double errors[2] = {};
    for (const bool centred : {false, true}) {
      Packed packed = pack(w8, Precision::int8, isa, {}, centred);
      CpuStream stream(nullptr, isa);
      HostTensor scratch = testing::bytes_tensor(linear_scratch_bytes(stream, T, N, K, Precision::int8, 1)),
                 y(DType::f32, {T, N});
      LinearArgs args;
      args.x = x;
      args.w = packed.weight;
      args.y = y;
      args.scratch = scratch;
      linear(stream, args);
      for (int64_t t = 0; t < T; ++t)
        for (int64_t n = 0; n < N; ++n) {
          double exact = 0;
          for (int64_t k = 0; k < K; ++k) exact += x.at(t, k) * w8.at(n, k);
          errors[centred] += std::pow(y.at(t, n) - exact, 2);
        }
    }
    EXPECT_LT(std::sqrt(errors[true]), 0.65 * std::sqrt(errors[false])) << isa_name(isa);
  }
}

TEST(Linear, ResidualMayAliasY) {
  const int64_t T = 11, N = 50, K = 33;
  for (const Isa isa : device::supported_isas()) {
    const HostTensor x = testing::random_tensor(DType::f32, {T, K}, 1),
                     w = testing::random_tensor(DType::f32, {N, K}, 2);
    const HostTensor residual = testing::random_tensor(DType::f32, {T, N}, 3);
    HostTensor apart(DType::f32, {T, N}), in_place(DType::f32, {T, N});
    std::memcpy(in_place.as<float>(), residual.as<float>(), static_cast<size_t>(T * N) * sizeof(float));
    Packed packed = pack(w, Precision::fp32, isa);
    CpuStream stream(nullptr, isa);
    HostTensor scratch = testing::bytes_tensor(linear_scratch_bytes(stream, T, N, K, Precision::fp32, 1));
    LinearArgs args;
    args.x = x;
    args.w = packed.weight;
    args.scratch = scratch;
    args.residual = residual;
    args.y = apart;
    linear(stream, args);
    args.residual = args.y = in_place;
    linear(stream, args);
    EXPECT_TRUE(testing::same_bits(apart, in_place)) << isa_name(isa);
  }
}

TEST(LinearPack, HalfAndInt8SourcesMatchTheirFloatValues) {
  const int64_t N = 35, K = 50;
  const HostTensor w = testing::random_tensor(DType::f32, {N, K}, 2);
  for (const Isa isa : device::supported_isas()) {
    for (const DType type : {DType::f16, DType::bf16}) {
      HostTensor half(type, {N, K}), wide(DType::f32, {N, K});
      for (int64_t n = 0; n < N; ++n)
        for (int64_t k = 0; k < K; ++k) {
          half.set(n, k, w.at(n, k));
          wide.set(n, k, half.at(n, k));
        }
      for (const Precision precision : kPrecisions) {
        const Packed a = pack(half, precision, isa), b = pack(wide, precision, isa);
        EXPECT_EQ(std::memcmp(a.weight.data.data, b.weight.data.data, static_cast<size_t>(a.weight.data.bytes())), 0);
      }
    }
    // An int8 export packs back to the same bytes and scales.
    HostTensor q(DType::i8, {N, K}), scale(DType::f32, {N});
    for (int64_t n = 0; n < N; ++n) {
      const QuantisedRow row = quantise(K, [&](int64_t k) { return w.at(n, k); });
      scale.as<float>()[n] = row.scale;
      for (int64_t k = 0; k < K; ++k) q.as<int8_t>()[n * K + k] = static_cast<int8_t>(row.q[k]);
    }
    const Packed a = pack(q, Precision::int8, isa, scale), b = pack(w, Precision::int8, isa);
    EXPECT_EQ(std::memcmp(a.weight.data.data, b.weight.data.data, static_cast<size_t>(a.weight.data.bytes())), 0)
        << isa_name(isa);
    EXPECT_TRUE(testing::same_bits(a.scale, b.scale));
  }
}

TEST(Linear, RejectsInvalidArguments) {
  HostTensor x(DType::f32, {3, 8}), w(DType::f32, {4, 8}), y(DType::f32, {3, 4}), narrow(DType::f32, {3, 3});
  x.fill(1);
  w.fill(1);
  Packed packed = pack(w, Precision::fp32, Isa::generic);
  CpuStream stream(nullptr, Isa::generic);
  LinearArgs args;
  args.x = x;
  args.w = packed.weight;
  args.y = narrow;
  EXPECT_THROW(linear(stream, args), Error);
  args.y = y;
  linear(stream, args);
  args.w.data = TensorView(packed.data.as<uint8_t>(), DType::u8, {args.w.data.bytes() - 1});
  EXPECT_THROW(linear(stream, args), Error);
  Packed bf16 = pack(w, Precision::bf16, Isa::generic);
  args.w = bf16.weight;
  EXPECT_THROW(linear(stream, args), Error) << "no scratch given";
  for (const Precision precision : {Precision::tf32, Precision::fp16, Precision::fp8})
    EXPECT_THROW(linear_packed_bytes(4, 8, precision, Isa::generic), Error);
}

TEST(Linear, RoundTripsPrecisionNames) {
  for (const char* name : {"fp32", "tf32", "bf16", "fp16", "fp8", "int8"})
    EXPECT_STREQ(precision_name(*precision_from_name(name)), name);
  EXPECT_EQ(precision_from_name("BF16"), Precision::bf16);
  EXPECT_FALSE(precision_from_name("fp64"));
}

TEST(Linear, WorkCountsProductsAndMinimumTraffic) {
  LinearArgs args;
  args.x = TensorView(nullptr, DType::f32, {10, 20});
  args.y = TensorView(nullptr, DType::f32, {10, 30});
  args.w.N = 30;
  args.w.K = 20;
  args.w.precision = Precision::bf16;
  EXPECT_EQ(linear_work(args).flops, 2.0 * 10 * 20 * 30);
  EXPECT_EQ(linear_work(args).bytes, 10 * 20 * 4 + 20 * 30 * 2 + 10 * 30 * 4);
}

#if defined(__x86_64__)
// Cascade Lake and Ice Lake have VNNI but no BF16: they use AVX-512 for all but bf16 products.
TEST(Linear, Avx512WithoutBf16HasItsOwnKernels) {
  EXPECT_STREQ(linear_kernel_name(Isa::avx512_vnni, Precision::fp32), "avx512_vnni_fp32");
  EXPECT_STREQ(linear_kernel_name(Isa::avx512_vnni, Precision::int8), "avx512_vnni_int8");
  EXPECT_STREQ(linear_kernel_name(Isa::avx512_vnni, Precision::bf16), "avx2_bf16");
}
#endif

}  // namespace
}  // namespace brim::ops
