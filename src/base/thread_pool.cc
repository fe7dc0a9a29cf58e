// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

#include "base/clock.h"

namespace brim {
namespace {

// Two wake-ups of a sleeping thread cost about this much, so spinning longer never pays off.
constexpr int64_t kSpinNs = 50'000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Cores allowed by a cgroup v2 quota, or a large number.
int cgroup_cores() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 1 << 20;
  return std::max(1, static_cast<int>(std::stod(quota) / period + 0.5));
}

}  // namespace

int hardware_threads() {
  static const int threads = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    int cores = static_cast<int>(std::thread::hardware_concurrency());
    if (sched_getaffinity(0, sizeof set, &set) == 0) cores = CPU_COUNT(&set);
    return std::max(1, std::min(cores, cgroup_cores()));
  }();
  return threads;
}

void yield_core() {
  constexpr int kNice = 10;  // affects only the calling thread on Linux; the process may have a higher value already
  if (::getpriority(PRIO_PROCESS, 0) < kNice) static_cast<void>(::setpriority(PRIO_PROCESS, 0, kNice));
}

ThreadPool::ThreadPool(int threads) : size_(std::max(1, threads)) {
  threads_.reserve(size_ - 1);
  try {
    for (int i = 1; i < size_; ++i) threads_.emplace_back([this, i] { worker_loop(i); });
  } catch (...) {  // no thread, or no memory for its stack: join the running threads before destroying members
    end();
    throw;
  }
}

ThreadPool::~ThreadPool() { end(); }

void ThreadPool::end() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void ThreadPool::call_guarded(int worker) {
  try {
    call_(fn_, worker);
  } catch (...) {
    std::lock_guard lock(error_mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

void ThreadPool::run_erased(void* fn, Call call) {
  std::lock_guard one_at_a_time(run_mutex_);
  fn_ = fn;
  call_ = call;
  if (size_ > 1) {
    running_.store(size_ - 1, std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst) > 0) {
      std::lock_guard lock(mutex_);
      wake_.notify_all();
    }
  }
  call_guarded(0);
  for (int64_t spins = 0; running_.load(std::memory_order_acquire) > 0; ++spins) {
    if (spins < 20'000)
      relax();
    else
      std::this_thread::yield();
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::worker_loop(int worker) {
  uint64_t seen = 0;
  for (;;) {
    const int64_t idle_since = now_ns();
    for (int spins = 0; round_.load(std::memory_order_acquire) == seen && !stop_; ++spins) {
      relax();
      if (spins % 256 == 255 && now_ns() - idle_since > kSpinNs) {
        std::unique_lock lock(mutex_);
        sleeping_.fetch_add(1, std::memory_order_seq_cst);
        wake_.wait(lock, [&] { return stop_ || round_.load(std::memory_order_seq_cst) != seen; });
        sleeping_.fetch_sub(1, std::memory_order_relaxed);
      }
    }
    if (stop_) return;
    ++seen;
    call_guarded(worker);
    running_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

}  // namespace brim
