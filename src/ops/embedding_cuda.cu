// SPDX-License-Identifier: Apache-2.0
// embedding on CUDA: gathers rows of the word, position and token-type tables, adds, normalises and stores.
#include "base/token.h"
#include "ops/cuda/norm.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

template <class Elem, int kVec, int kGroup, bool kTrain>
__global__ void __launch_bounds__(kNormThreads)
    embedding_kernel(const int32_t* ids, const int32_t* positions, const Elem* word, const Elem* position,
                     const Elem* type, int64_t ld_word, int64_t ld_position, int64_t ld_type, int T, int H,
                     NormOutput<Elem> out, DropoutMask drop) {
  constexpr int kRows = kNormThreads / 32 / kGroup;
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / (32 * kGroup);
  const bool valid = r < T;
  let_next_begin();
  wait_for_previous();
  if (kGroup == 1 && !valid) return;
  NormRow<kVec, kGroup> row;
  row.lane = threadIdx.x % (32 * kGroup);
  row.pieces = H / 8;
  const int token = valid ? ids[r] : 0;
  const Elem* w = word + (token & kIdMask) * ld_word;
  const Elem* p = position == nullptr ? nullptr : position + (valid ? positions[r] * ld_position : 0);
  Raw8<Elem> a[kVec], b[kVec];
#pragma unroll
  for (int i = 0; i < kVec; ++i)
    if (row.has(i)) {
      a[i] = load_raw8(w + row.column(i));
      if (position != nullptr) b[i] = load_raw8(p + row.column(i));
    }
#pragma unroll
  for (int i = 0; i < kVec; ++i)
    if (row.has(i)) {
      float other[8];
      unpack8<Elem>(a[i], row.v[i]);
      if (position != nullptr) {
        unpack8<Elem>(b[i], other);
#pragma unroll
        for (int j = 0; j < 8; ++j) row.v[i][j] += other[j];
      }
      if (type != nullptr) {
        load8(type + (token >> kTypeShift) * ld_type + row.column(i), other);
#pragma unroll
        for (int j = 0; j < 8; ++j) row.v[i][j] += other[j];
      }
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) row.v[i][j] = 0.0f;
    }
  normalise_and_store<Elem, kVec, kGroup, kTrain>(row, r, valid, out, drop);
}

}  // namespace

void embedding_cuda(device::Stream& stream, const EmbeddingArgs& a) {
  cuda_op(stream, "embedding", [&](device::CudaStream& s) {
    const int64_t T = a.batch.T, H = a.word.cols();
    for (const auto& [name, view] : NamedViews{{"word", a.word},
                                               {"position", a.position},
                                               {"type", a.type},
                                               {"gamma", a.gamma},
                                               {"beta", a.beta},
                                               {"y", a.y},
                                               {"sum", a.sum},
                                               {"y_fp8", a.y_fp8}})
      check_norm_view("embedding", name, view);
    const bool train = a.sum || a.mean || a.rstd || a.dropout.on();
    dispatch_elem(a.y.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      const NormOutput<Elem> out = norm_output<Elem>(a, H);
      dispatch_norm("embedding", H, [&](auto shape) {
        using Shape = decltype(shape);
        const dim3 grid(device::blocks_for(T, kNormThreads / 32 / Shape::group)), block(kNormThreads);
        const auto *word = static_cast<const Elem*>(a.word.data), *position = static_cast<const Elem*>(a.position.data),
                   *type = static_cast<const Elem*>(a.type.data);
        const auto *ids = a.batch.ids.as<int32_t>(), *positions = a.batch.positions.as<int32_t>();
        if (train)
          device::launch_chained<embedding_kernel<Elem, Shape::vec, Shape::group, true>>(
              s, grid, block, ids, positions, word, position, type, a.word.ld(), a.position.ld(), a.type.ld(),
              static_cast<int>(T), static_cast<int>(H), out, dropout_mask(a.dropout));
        else
          device::launch_chained<embedding_kernel<Elem, Shape::vec, Shape::group, false>>(
              s, grid, block, ids, positions, word, position, type, a.word.ld(), a.position.ld(), a.type.ld(),
              static_cast<int>(T), static_cast<int>(H), out, DropoutMask{});
      });
    });
  });
}

}  // namespace brim::ops
