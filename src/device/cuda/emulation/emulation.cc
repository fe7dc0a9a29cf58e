// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/emulation/emulation.h"

#include <setjmp.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace brim::device::emulation {

Lane* current = nullptr;
uint3 block_index;
dim3 block_size, grid_size;

namespace {

constexpr size_t kStackBytes = 256 << 10;

struct Meeting {
  int arrived = 0;
  int64_t generation = 0;
  const void* tag = nullptr;
};
struct Fiber : Lane {
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  ucontext_t start;
  jmp_buf resume;
  bool started = false, done = false;
  const Meeting* waiting = nullptr;  // waits until its generation exceeds `seen`
  int64_t seen = 0;
};
struct Warp : Meeting {
  WarpSlots slots;
};

std::vector<std::unique_ptr<Fiber>> fibers;
std::vector<Warp> warps;
Meeting whole_block;
jmp_buf scheduler;
const std::function<void()>* kernel;

[[noreturn]] void stop(const char* what) {
  std::fprintf(stderr, "emulated kernel: block (%u,%u,%u) thread %u: %s\n", block_index.x, block_index.y, block_index.z,
               current == nullptr ? 0 : current->thread.x, what);
  std::abort();
}

// Fibers are reused across blocks, because creating one needs system calls.
void enter() {
  for (;;) {
    (*kernel)();
    auto* self = static_cast<Fiber*>(current);
    self->done = true;
    if (_setjmp(self->resume) == 0) _longjmp(scheduler, 1);
  }
}

void meet(Meeting& m, int wanted, const void* tag, const std::function<void()>& last) {
  if (m.arrived == 0) m.tag = tag;
  if (m.tag != tag) stop("lanes of one warp or block execute different collectives");
  if (++m.arrived == wanted) {
    last();
    m.arrived = 0;
    ++m.generation;
    return;
  }
  auto* self = static_cast<Fiber*>(current);
  self->waiting = &m;
  self->seen = m.generation;
  if (_setjmp(self->resume) == 0) _longjmp(scheduler, 1);
  self->waiting = nullptr;
}

void switch_to(Fiber& fiber) {
  current = &fiber;
  if (_setjmp(scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.resume, 1);
  fiber.started = true;
  ::getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack.get();
  fiber.start.uc_stack.ss_size = kStackBytes;
  fiber.start.uc_link = nullptr;
  ::makecontext(&fiber.start, enter, 0);
  ::setcontext(&fiber.start);
}

void run_block(int threads, bool reversed) {
  while (static_cast<int>(fibers.size()) < threads) fibers.push_back(std::make_unique<Fiber>());
  warps.assign(static_cast<size_t>(threads / 32), Warp{});
  for (auto& w : warps) std::memset(&w.slots, 0xFF, sizeof w.slots);
  whole_block = {};
  for (int i = 0; i < threads; ++i) {
    Fiber& f = *fibers[i];
    const auto u = static_cast<unsigned>(i);
    f.thread = {u % block_size.x, u / block_size.x % block_size.y, u / block_size.x / block_size.y};
    f.warp = i / 32;
    f.lane = i % 32;
    f.done = false;
    f.waiting = nullptr;
  }
  for (int left = threads; left > 0;) {
    bool moved = false;
    for (int i = 0; i < threads; ++i) {
      Fiber& f = *fibers[reversed ? threads - 1 - i : i];
      if (f.done || (f.waiting != nullptr && f.waiting->generation == f.seen)) continue;
      moved = true;
      switch_to(f);
      if (f.done) --left;
    }
    if (!moved) stop("a collective waits for lanes that never arrive");
  }
}

}  // namespace

WarpSlots& warp_slots() { return warps[current->warp].slots; }
void meet_warp(const void* tag, const std::function<void(WarpSlots&)>& compute) {
  Warp& w = warps[current->warp];
  meet(w, 32, tag, [&] { compute(w.slots); });
}
void meet_block(const void* tag) {
  meet(whole_block, static_cast<int>(block_size.x * block_size.y * block_size.z), tag, [] {});
}

void run(dim3 grid, dim3 block, const std::function<void()>& body) {
  const int threads = static_cast<int>(block.x * block.y * block.z);
  if (threads % 32 != 0 || threads > 1024) stop("blocks are whole warps, at most 1024 threads");
  kernel = &body;
  block_size = block;
  grid_size = grid;
  bool reversed = false;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        block_index = {x, y, z};
        run_block(threads, reversed);
        reversed = !reversed;
      }
  current = nullptr;
}

}  // namespace brim::device::emulation
