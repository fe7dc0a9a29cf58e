// SPDX-License-Identifier: Apache-2.0
// linear on the CPU: rows are made ready for the kernel (rounded, tiled) once into scratch, then blocks of rows x columns
// are handed to it. With a pool the threads share both steps; alone, the caller does them in turn for as many rows as its
// second-level cache holds well.
#include <algorithm>
#include <atomic>
#include <thread>

#include "ops/check.h"
#include "ops/cpu/parallel.h"
#include "ops/gemm/kernels.h"
#include "ops/kernel_table.h"
#include "ops/linear_testing.h"

namespace brim {
namespace {

constexpr int64_t kRowsAThread = 256;   // made ready at a time, a thread
constexpr int64_t kRowsABlock = 256;    // handed to a kernel at a time: its packed rows stay in the second-level cache

std::atomic<const char*> last_kernel{""};

// Rows made ready at once; what scratch must hold.
int64_t round_rows(const gemm::Kernel& kernel, int64_t T, int threads) {
  return gemm::round_up(std::min(T, kRowsAThread * threads), kernel.mr);
}
int64_t scratch_bytes(const gemm::Kernel& kernel, int64_t T, int64_t K, Precision precision, int threads) {
  if (kernel.pack_rows == nullptr) return 0;
  const int64_t rows = round_rows(kernel, T, threads);
  return gemm::round_up(rows * gemm::row_bytes(kernel, K), 64) + (precision == Precision::int8 ? rows * 4 : 0) + 64;
}

// Every thread of a pool passes, or none. Workers run at the same time by the pool's contract, so spinning is brief.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void wait() {
    if (threads_ == 1) return;
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

gemm::Act act_of(Activation activation, Precision precision) {
  switch (activation) {
    case Activation::none: return gemm::Act::none;
    case Activation::gelu: return precision == Precision::fp32 ? gemm::Act::gelu : gemm::Act::gelu_fast;
    case Activation::relu: return gemm::Act::relu;
    case Activation::tanh: return gemm::Act::tanh;
  }
  return gemm::Act::none;
}

// How the blocks of one round are cut: row_blocks x column_blocks of equal size as near as steps allow.
struct Grid {
  int64_t rows_step, row_blocks, n_step, column_units, column_blocks;
  Grid(const gemm::Kernel& kernel, int64_t rows, int64_t N, int threads) {
    n_step = threads == 1 ? kernel.nr : kernel.n_step;
    column_units = (N + n_step - 1) / n_step;
    rows_step = gemm::round_up(std::min(rows, kRowsABlock), kernel.mr);
    row_blocks = (rows + rows_step - 1) / rows_step;
    // Few rows: one equal share of the columns a thread. Many: more blocks than threads, handed out as they finish.
    const int64_t wanted = row_blocks == 1 ? threads : 4 * threads;
    column_blocks = threads == 1 ? 1 : std::clamp<int64_t>((wanted + row_blocks - 1) / row_blocks, 1, column_units);
  }
  int64_t column(int64_t block, int64_t N) const { return std::min(N, column_units * block / column_blocks * n_step); }
};

}  // namespace

const char* linear_kernel_name(Isa isa, Precision precision) { return gemm::kernel_for(isa, precision).name; }
const char* linear_last_kernel() { return last_kernel.load(std::memory_order_relaxed); }

int64_t linear_scratch_bytes(const Stream& stream, int64_t T, int64_t, int64_t K, Precision precision, int threads) {
  if (target_kind(stream) == DeviceKind::cuda) return kCudaLinearScratchBytes;
  return scratch_bytes(gemm::kernel_for(target_isa(stream), precision), T, K, precision, threads);
}

void linear_cpu(Stream& stream, const LinearArgs& args) {
  const int64_t T = args.x.rows(), N = args.w.N, K = args.w.K;
  if (T == 0 || N == 0) return;
  const gemm::Kernel& kernel = gemm::kernel_for(args.w.isa, args.w.precision);
  const int threads = threads_of(stream);
  const bool packs = kernel.pack_rows != nullptr, int8 = args.w.precision == Precision::int8;
  check_scratch("linear", args.scratch, scratch_bytes(kernel, T, K, args.w.precision, threads));
  last_kernel.store(kernel.name, std::memory_order_relaxed);

  const int64_t round = packs ? round_rows(kernel, T, threads) : T, row_bytes = gemm::row_bytes(kernel, K);
  auto* a = reinterpret_cast<char*>(gemm::round_up(reinterpret_cast<intptr_t>(args.scratch.data), 64));
  auto* a_scale = reinterpret_cast<float*>(a + gemm::round_up(round * row_bytes, 64));
  const auto* x = static_cast<const char*>(args.x.data);
  const int64_t x_bytes = dtype_bytes(args.x.dtype), y_bytes = dtype_bytes(args.y.dtype);

  gemm::Block whole{};
  whole.lda = packs ? 0 : args.x.ld();
  whole.b = args.w.data.data;
  whole.b_scale = int8 ? args.w.scale.as<float>() : nullptr;
  if (kernel.column_sums)
    whole.b_sums = reinterpret_cast<const int32_t*>(static_cast<const char*>(whole.b) + gemm::panel_bytes(kernel, N, K));
  whole.bias = args.bias.as<float>();
  whole.ld_residual = args.residual ? args.residual.ld() : 0;
  whole.ld_y = args.y.ld();
  whole.N = N;
  whole.K = K;
  whole.y_bf16 = args.y.dtype == DType::bf16;
  whole.act = act_of(args.activation, args.w.precision);

  const auto pack = [&](int64_t first, int64_t begin, int64_t end) {  // rows first + [begin, end) into place `begin`
    if (begin >= end) return;
    kernel.pack_rows({x + (first + begin) * args.x.ld() * x_bytes, args.x.ld(), end - begin, K, args.x.dtype == DType::bf16},
                     a + begin * row_bytes, a_scale + begin);
  };
  const auto compute = [&](int64_t first, int64_t begin, int64_t end, int64_t n_begin, int64_t n_end) {
    if (begin >= end || n_begin >= n_end) return;
    gemm::Block block = whole;
    block.a = packs ? a + begin * row_bytes : x + (first + begin) * args.x.ld() * x_bytes;
    block.a_scale = a_scale + begin;
    block.m = end - begin;
    block.n_begin = n_begin;
    block.n_end = n_end;
    block.y = static_cast<char*>(args.y.data) + (first + begin) * args.y.ld() * y_bytes;
    if (args.residual) block.residual = args.residual.as<float>() + (first + begin) * args.residual.ld();
    kernel.run(block);
  };

  if (threads == 1) {
    for (int64_t first = 0; first < T; first += kRowsABlock) {
      const int64_t rows = std::min(T - first, kRowsABlock);
      if (packs) pack(first, 0, rows);
      compute(first, 0, rows, 0, N);
    }
    return;
  }
  Barrier barrier(threads);
  std::atomic<int64_t> next{0};
  pool_of(stream)->run([&](int worker) {
    int64_t taken = 0;  // blocks of the rounds before
    for (int64_t first = 0; first < T; first += round) {
      const int64_t rows = std::min(round, T - first);
      if (packs) {
        const int64_t tiles = (rows + kernel.mr - 1) / kernel.mr;
        pack(first, tiles * worker / threads * kernel.mr, std::min(rows, tiles * (worker + 1) / threads * kernel.mr));
        barrier.wait();
      }
      const Grid grid(kernel, rows, N, threads);
      const int64_t blocks = grid.row_blocks * grid.column_blocks;
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed) - taken) < blocks;) {
        const int64_t c = i / grid.row_blocks, begin = i % grid.row_blocks * grid.rows_step;
        compute(first, begin, std::min(rows, begin + grid.rows_step), grid.column(c, N), grid.column(c + 1, N));
      }
      if (first + round >= T) break;
      barrier.wait();  // nobody reads this round's rows or counts its blocks any more
      taken += blocks + threads;  // each thread asked for one block too many
    }
  });
}

}  // namespace brim
