// SPDX-License-Identifier: Apache-2.0
// Distributes rows of CPU ops over threads. Pieces have a fixed size independent of the number of threads, so results
// are bit-identical for any thread count.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/thread_pool.h"
#include "device/stream.h"

namespace brim::ops {

inline ThreadPool* pool_of(const device::Stream& stream) {
  return static_cast<const device::CpuStream&>(stream).pool();
}
inline int threads_of(const device::Stream& stream) { return pool_of(stream) == nullptr ? 1 : pool_of(stream)->size(); }

// Calls fn(begin, end, worker) for pieces of at most `piece` of [0, n), on the stream's pool or the calling thread.
template <class Fn>
void parallel_pieces(const device::Stream& stream, int64_t n, int64_t piece, Fn&& fn) {
  if (n <= 0) return;
  const int64_t pieces = (n + piece - 1) / piece;
  ThreadPool* pool = pool_of(stream);
  if (pool == nullptr || pieces == 1) {
    for (int64_t i = 0; i < pieces; ++i) fn(i * piece, std::min(n, (i + 1) * piece), 0);
    return;
  }
  pool->parallel_for(static_cast<size_t>(pieces), [&](size_t i, int worker) {
    const int64_t begin = static_cast<int64_t>(i) * piece;
    fn(begin, std::min(n, begin + piece), worker);
  });
}

// Rows per piece so that one moves about 32 KiB: small enough to balance, large enough to amortise scheduling.
inline int64_t rows_per_piece(int64_t row_elements) {
  return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, row_elements));
}

}  // namespace brim::ops
