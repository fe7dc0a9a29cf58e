// SPDX-License-Identifier: Apache-2.0
// The shared pool of compute threads. Work is given to all workers at once and the caller takes part, so a pool of N
// has N-1 threads. Workers spin briefly before they sleep, because the gap between two ops of a layer is microseconds.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace brim {

int hardware_threads();  // usable cores, limited by affinity and cgroup quota
// Permanently lowers the priority of the calling thread.
void yield_core();

class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // Calls fn(worker) once on each of the size() workers and waits. Rethrows the first exception.
  template <class Fn>
  void run(Fn&& fn) {
    run_erased(const_cast<void*>(static_cast<const void*>(&fn)),
               [](void* f, int worker) { (*static_cast<std::remove_reference_t<Fn>*>(f))(worker); });
  }

  // Calls fn(i, worker) for i in [0, n), with dynamic scheduling.
  template <class Fn>
  void parallel_for(size_t n, Fn&& fn) {
    if (n == 0) return;
    if (size_ == 1 || n == 1) {
      for (size_t i = 0; i < n; ++i) fn(i, 0);
      return;
    }
    std::atomic<size_t> next{0};
    run([&](int worker) {
      for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) fn(i, worker);
    });
  }

 private:
  using Call = void (*)(void*, int);
  void run_erased(void* fn, Call call);
  void worker_loop(int worker);
  void call_guarded(int worker);
  void end();

  const int size_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;      // for sleeping workers
  std::mutex run_mutex_;  // one run at a time
  std::condition_variable wake_;
  std::atomic<uint64_t> round_{0};
  std::atomic<int> running_{0}, sleeping_{0};
  std::atomic<bool> stop_{false};
  void* fn_ = nullptr;
  Call call_ = nullptr;
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

}  // namespace brim
