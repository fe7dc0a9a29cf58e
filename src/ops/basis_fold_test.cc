// SPDX-License-Identifier: Apache-2.0
#include "ops/basis_fold.h"

#include "ops/testing.h"

namespace brim::ops {

using device::CpuStream;
using tensor::DType;
using tensor::TensorView;

namespace {
using namespace brim::ops::testing;

// [G,rows,cols] with a gap after every lane.
struct Lanes3 {
  HostTensor memory;
  TensorView view;
  Lanes3(int64_t G, int64_t rows, int64_t cols, uint64_t seed, bool shared = false)
      : memory(random_tensor(DType::f32, {shared ? 1 : G, rows * cols}, seed, 1, 0, 16)),
        view(memory.view().data, DType::f32, {G, rows, cols}) {
    view.stride[0] = shared ? 0 : rows * cols + 16;
  }
  double at(int64_t g, int64_t r, int64_t c) const {
    return view.as<float>()[g * view.stride[0] + r * view.stride[1] + c];
  }
};

TEST(BasisFold, ForwardAndGradientMatchFp64) {
  for_each_cpu_stream([](CpuStream& stream) {
    for (const auto& [P, N, W] : {std::tuple<int64_t, int64_t, int64_t>{6, 24, 1}, {1, 8, 33}, {10, 17, 64}})
      for (const bool shared : {false, true}) {
        const int64_t G = 3;
        const Lanes3 basis(G, P, N, 1, shared), theta(G, P, W, 2), v(G, N, W, 3), d_v(G, N, W, 4), d_theta(G, P, W, 5),
            added(G, P, W, 5);
        basis_fold(stream, {.basis = basis.view, .theta = theta.view, .v = v.view});
        basis_fold_grad(stream, {.basis = basis.view, .d_v = d_v.view, .d_theta = d_theta.view});
        basis_fold_grad(
            stream,
            {.basis = basis.view, .d_v = d_v.view, .d_theta = added.view, .d_theta_write = GradWrite::accumulate});
        const Lanes3 was(G, P, W, 5);
        // A sum of n products: n roundings of its absolute value.
        for (int64_t g = 0; g < G; ++g)
          for (int64_t w = 0; w < W; ++w) {
            for (int64_t n = 0; n < N; ++n) {
              double sum = 0, size = 0;
              for (int64_t p = 0; p < P; ++p) {
                sum += basis.at(g, p, n) * theta.at(g, p, w);
                size += std::fabs(basis.at(g, p, n) * theta.at(g, p, w));
              }
              EXPECT_NEAR(v.at(g, n, w), sum, static_cast<double>(P + 1) * kEps32 * size);
            }
            for (int64_t p = 0; p < P; ++p) {
              double sum = 0, size = 0;
              for (int64_t n = 0; n < N; ++n) {
                sum += basis.at(g, p, n) * d_v.at(g, n, w);
                size += std::fabs(basis.at(g, p, n) * d_v.at(g, n, w));
              }
              const double allowed = static_cast<double>(N + 2) * kEps32 * (size + std::fabs(was.at(g, p, w)));
              EXPECT_NEAR(d_theta.at(g, p, w), sum, allowed);
              EXPECT_NEAR(added.at(g, p, w), sum + was.at(g, p, w), allowed);
            }
          }
      }
  });
}

}  // namespace
}  // namespace brim::ops
