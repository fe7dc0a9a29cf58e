// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/multiply.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "ops/cpu/parallel.h"
#include "ops/gemm/kernels.h"

namespace brim::ops::gemm {
namespace {

constexpr int64_t kRowsAThread = 256;  // rows packed at a time, per thread

// Rows packed at once; determines the scratch size.
int64_t round_rows(const Kernel& kernel, int64_t T, int threads) {
  return round_up(std::min(T, kRowsAThread * threads), kernel.mr);
}

// Barrier for all threads of a pool. The pool runs its workers concurrently, so spinning is brief.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void wait() {
    const int round = round_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins)
      if (spins > 4000) std::this_thread::yield();
  }

 private:
  const int threads_;
  std::atomic<int> arrived_{0}, round_{0};
};

// Partition of one round: row_blocks x column_blocks, as equal as the step sizes allow.
struct Grid {
  int64_t rows_step, row_blocks, column_units, column_blocks, n_step;
  Grid(const Kernel& kernel, int64_t rows, int64_t N, int threads) : n_step(kernel.n_step) {
    column_units = (N + n_step - 1) / n_step;
    rows_step = round_up(std::min(rows, kRowsABlock), kernel.mr);
    row_blocks = (rows + rows_step - 1) / rows_step;
    // Few rows: one equal share of the columns per thread. Many: more blocks than threads, assigned dynamically.
    const int64_t wanted = row_blocks == 1 ? threads : 4 * threads;
    column_blocks = std::clamp<int64_t>((wanted + row_blocks - 1) / row_blocks, 1, column_units);
  }
  int64_t column(int64_t block, int64_t N) const { return std::min(N, column_units * block / column_blocks * n_step); }
};

// Parts of a product; rows are relative to the start of the current round.
struct Parts {
  const Kernel& kernel;
  const Product& p;
  const int64_t T = p.y.rows(), K = p.turned ? p.x.rows() : p.x.cols(), N = p.y.cols();
  const int64_t a_row = row_bytes(kernel, K);
  char* a = reinterpret_cast<char*>(round_up(reinterpret_cast<intptr_t>(p.scratch), 64));
  float *a_scale = nullptr, *a_centre = nullptr;

  const char* x_at(int64_t element) const {
    return static_cast<const char*>(p.x.data) + element * dtype_bytes(p.x.dtype);
  }
  const char* x_row(int64_t row) const { return x_at(row * p.x.ld()); }

  // Rows begin .. end of the `rows` starting at `first`.
  void pack(int64_t first, int64_t rows, int64_t begin, int64_t end) const {
    if (begin >= end) return;
    const bool bf16 = p.x.dtype == tensor::DType::bf16;
    if (p.turned)
      kernel.pack_turned_rows({x_at(first), p.x.ld(), rows, K, bf16, begin, end}, a);
    else
      kernel.pack_rows({x_row(first), p.x.ld(), rows, K, bf16, begin, end, a_centre}, a, a_scale);
  }
  void compute(int64_t first, int64_t begin, int64_t end, int64_t n_begin, int64_t n_end) const {
    if (begin >= end || n_begin >= n_end) return;
    const bool packs = kernel.pack_rows != nullptr;
    Block block{};
    block.a = packs ? a + begin * a_row : x_row(first + begin);
    block.lda = packs ? 0 : p.x.ld();
    block.a_scale = a_scale ? a_scale + begin : nullptr;
    block.a_centre = a_centre ? a_centre + begin : nullptr;
    block.b = p.b;
    block.b_scale = p.b_scale;
    block.b_total = p.b_total;
    if (kernel.column_sums)
      block.b_sums = reinterpret_cast<const int32_t*>(static_cast<const char*>(p.b) + panel_bytes(kernel, N, K));
    block.bias = p.bias.as<float>();
    if (p.residual) block.residual = p.residual.as<float>() + (first + begin) * p.residual.ld();
    block.ld_residual = p.residual.ld();
    block.y = static_cast<char*>(p.y.data) + (first + begin) * p.y.ld() * dtype_bytes(p.y.dtype);
    block.ld_y = p.y.ld();
    block.m = end - begin;
    block.n_begin = n_begin;
    block.n_end = n_end;
    block.N = N;
    block.K = K;
    block.y_bf16 = p.y.dtype == tensor::DType::bf16;
    block.act = p.act;
    kernel.run(block);
  }
};

}  // namespace

int64_t multiply_scratch_bytes(const Kernel& kernel, int64_t T, int64_t K, int threads) {
  if (kernel.pack_rows == nullptr) return 0;
  const int64_t rows = round_rows(kernel, T, threads);
  return round_up(rows * row_bytes(kernel, K), 64) + rows * 8 + 64;  // rows, their scales and centres, alignment
}

void multiply(const device::Stream& stream, const Kernel& kernel, const Product& product) {
  Parts parts{.kernel = kernel, .p = product};
  const int64_t T = parts.T, N = parts.N;
  if (T == 0 || N == 0) return;
  const int threads = threads_of(stream);
  const bool packs = kernel.pack_rows != nullptr;
  const int64_t round = packs ? round_rows(kernel, T, threads) : T;
  parts.a_scale = reinterpret_cast<float*>(parts.a + round_up(round * parts.a_row, 64));
  if (product.b_total != nullptr) parts.a_centre = parts.a_scale + round;

  if (threads == 1) {
    for (int64_t first = 0; first < T; first += kRowsABlock) {
      const int64_t rows = std::min(T - first, kRowsABlock);
      if (packs) parts.pack(first, rows, 0, rows);
      parts.compute(first, 0, rows, 0, N);
    }
    return;
  }
  Barrier barrier(threads);
  std::atomic<int64_t> next{0};
  pool_of(stream)->run([&](int worker) {
    int64_t taken = 0;  // blocks of earlier rounds
    for (int64_t first = 0; first < T; first += round) {
      const int64_t rows = std::min(round, T - first);
      if (packs) {
        const int64_t step = product.turned ? kernel.mr : kernel.pack_step, steps = (rows + step - 1) / step;
        parts.pack(first, rows, steps * worker / threads * step, std::min(rows, steps * (worker + 1) / threads * step));
        barrier.wait();
      }
      const Grid grid(kernel, rows, N, threads);
      const int64_t blocks = grid.row_blocks * grid.column_blocks;
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed) - taken) < blocks;) {
        const int64_t c = i / grid.row_blocks, begin = i % grid.row_blocks * grid.rows_step;
        parts.compute(first, begin, std::min(rows, begin + grid.rows_step), grid.column(c, N), grid.column(c + 1, N));
      }
      if (first + round >= T) break;
      barrier.wait();             // no thread uses the rows or the block counter of this round any more
      taken += blocks + threads;  // each thread requested one block too many
    }
  });
}

}  // namespace brim::ops::gemm
