// SPDX-License-Identifier: Apache-2.0
#include "memory/ledger.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <random>
#include <thread>

#include "base/error.h"

namespace brim::memory {

using device::DeviceBuffer;

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::does_not_fit) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "not refused";
  return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Rounds like a driver, counts allocated bytes, and can have less memory than the ledger assumes.
class RoundingDevice final : public device::Device {
 public:
  explicit RoundingDevice(int64_t piece) : device::Device(device::DeviceKind::cpu, 0), piece_(piece) {}
  std::string name() const override { return "rounding"; }
  device::MemoryInfo memory() const override { return {}; }
  std::unique_ptr<device::Stream> make_stream() override { return nullptr; }
  DeviceBuffer allocate_host(size_t) override { return {}; }
  int64_t rounded_bytes(int64_t bytes) const override { return (bytes + piece_ - 1) / piece_ * piece_; }
  std::atomic<int64_t> given{0}, most{0};
  std::atomic<bool> empty{false};

 protected:
  DeviceBuffer allocate(size_t bytes) override {
    if (empty) fail(ErrorCode::does_not_fit, "the driver has no room");
    const int64_t now = given += rounded_bytes(static_cast<int64_t>(bytes));
    for (int64_t seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
    }
    return DeviceBuffer(this, std::malloc(1), bytes, false);
  }
  void release(void* data, size_t bytes, bool) noexcept override {
    given -= rounded_bytes(static_cast<int64_t>(bytes));
    std::free(data);
  }

 private:
  int64_t piece_;
};

TEST(Ledger, ReservesUpToTheLimitAndListsHolders) {
  Ledger ledger(100 * kMiB);
  Reservation weights = ledger.reserve(Tag::weights, "finbert", 60 * kMiB);
  const Reservation arena = ledger.reserve(Tag::activations, "roberta", 30 * kMiB);
  EXPECT_EQ(ledger.reserved_bytes(), 90 * kMiB);
  EXPECT_EQ(ledger.left_bytes(), 10 * kMiB);
  const std::string why = refusal([&] { (void)ledger.reserve(Tag::staging, "batches", 11 * kMiB); });
  for (const char* part : {"batches (staging)", "11.0 MiB", "10.0 MiB of the 100 MiB limit",
                           "finbert (weights) 60.0 MiB", "roberta (activations) 30.0 MiB", "`memory_limit=101MiB`"})
    EXPECT_TRUE(has(why, part)) << why << "\nlacks " << part;
  EXPECT_EQ(ledger.reserved_bytes(), 90 * kMiB) << "a rejected reservation reserves nothing";
  const Reservation exact = ledger.reserve(Tag::staging, "batches", 10 * kMiB);  // exact fit
  EXPECT_EQ(ledger.left_bytes(), 0);
  weights.release();
  EXPECT_FALSE(weights);
  EXPECT_EQ(ledger.left_bytes(), 60 * kMiB);
  EXPECT_EQ(ledger.most_reserved_bytes(), 100 * kMiB);
  EXPECT_EQ(ledger.entries(),
            (std::vector<LedgerEntry>{{Tag::activations, "roberta", 30 * kMiB}, {Tag::staging, "batches", 10 * kMiB}}));
}

TEST(Ledger, ListsOnlyTheLargestOfManyHolders) {
  Ledger ledger(100);
  std::vector<Reservation> all;
  for (int i = 1; i <= 9; ++i) all.push_back(ledger.reserve(Tag::weights, fmt::format("m{}", i), i));
  const std::string why = refusal([&] { (void)ledger.reserve(Tag::weights, "big", 100); });
  EXPECT_TRUE(has(why, "m9 (weights) 9 B, m8")) << why;
  EXPECT_TRUE(has(why, "and 3 more 6 B")) << why;
}

TEST(Ledger, ReservationsMoveGrowShrinkSplitAndJoin) {
  Ledger ledger(100);
  Reservation a = ledger.reserve(Tag::weights, "a", 40);
  Reservation b = std::move(a);
  EXPECT_FALSE(a);
  EXPECT_EQ(a.bytes(), 0);
  EXPECT_EQ(b.owner(), "a");
  b.resize(90);
  EXPECT_EQ(ledger.reserved_bytes(), 90);
  refusal([&] { b.resize(101); });
  EXPECT_EQ(b.bytes(), 90);
  b.resize(50);
  Reservation part = b.split(20, "part");
  EXPECT_EQ(ledger.reserved_bytes(), 50);
  EXPECT_EQ(b.bytes(), 30);
  EXPECT_EQ(part.tag(), Tag::weights);
  b.join(std::move(part));
  EXPECT_EQ(b.bytes(), 50);
  EXPECT_EQ(ledger.entries().size(), 1u);
  b = ledger.reserve(Tag::staging, "another", 10);  // releases the previous reservation
  EXPECT_EQ(ledger.reserved_bytes(), 10);
}

TEST(Ledger, AcceptsALaterLimitButNotBelowReservedBytes) {
  Ledger ledger;
  EXPECT_FALSE(ledger.limited());
  const Reservation a = ledger.reserve(Tag::weights, "a", 500);
  EXPECT_TRUE(has(refusal([&] { ledger.set_limit(499); }), "a (weights) 500 B"));
  EXPECT_FALSE(ledger.limited());
  ledger.set_limit(500);
  EXPECT_EQ(ledger.left_bytes(), 0);
}

TEST(Ledger, ReservationsOutliveTheirLedger) {
  auto ledger = std::make_unique<Ledger>(10);
  Reservation a = ledger->reserve(Tag::weights, "a", 5);
  ledger.reset();
  a.resize(9);
  EXPECT_EQ(a.bytes(), 9);
}

TEST(Ledger, BlockOwnsItsReservation) {
  const auto device = device::open_cpu_device(1);
  Ledger& ledger = Ledger::of(*device);
  EXPECT_EQ(&ledger, &Ledger::of(*device));
  ledger.set_limit(1000);
  {
    DeviceBuffer block = Ledger::allocate(*device, ledger.reserve(Tag::weights, "a", 600));
    EXPECT_EQ(block.bytes(), 600u);
    DeviceBuffer moved = std::move(block);
    EXPECT_EQ(ledger.reserved_bytes(), 600);
    TagBytes two;
    two[Tag::activations] = 300;
    two[Tag::workspace] = 100;
    const DeviceBuffer arena = Ledger::allocate(*device, nullptr, two, "arena");
    EXPECT_EQ(arena.bytes(), 400u);
    EXPECT_EQ(ledger.entries().size(), 3u);
    EXPECT_EQ(ledger.left_bytes(), 0);
    refusal([&] { (void)Ledger::allocate(*device, nullptr, Tag::staging, "b", 1); });
  }
  EXPECT_EQ(ledger.reserved_bytes(), 0);
  EXPECT_FALSE(Ledger::allocate(*device, nullptr, Tag::staging, "nothing", 0));
}

TEST(Ledger, DriverFailureReleasesEverything) {
  RoundingDevice device(100);
  device.empty = true;
  Ledger& ledger = Ledger::of(device);
  refusal([&] { (void)Ledger::allocate(device, nullptr, Tag::weights, "a", 10); });
  EXPECT_EQ(ledger.reserved_bytes(), 0);
}

TEST(Ledger, ChargesDriverRounding) {
  RoundingDevice device(100);
  Ledger& ledger = Ledger::of(device);
  ledger.set_limit(1000);
  ledger.hold_context("driver", 300, 50);  // 50 of it for rounding
  EXPECT_EQ(ledger.reserved_bytes(), 300);
  {
    const DeviceBuffer a = Ledger::allocate(device, nullptr, Tag::weights, "a", 160);  // rounds up by 40
    EXPECT_EQ(ledger.reserved_bytes(), 460);
    const DeviceBuffer b = Ledger::allocate(device, nullptr, Tag::weights, "b", 170);  // by 30, of which 10 remain
    EXPECT_EQ(ledger.reserved_bytes(), 650);
    EXPECT_EQ(total_bytes(ledger.entries()), 650);
    const std::string why = refusal([&] { (void)Ledger::allocate(device, nullptr, Tag::weights, "c", 310); });
    EXPECT_TRUE(has(why, "rounding of blocks needs 90 B")) << why;
    EXPECT_EQ(ledger.reserved_bytes(), 650);
    ledger.hold_context("driver", 300, 70);  // the context of another model includes more for it
    EXPECT_EQ(ledger.reserved_bytes(), 630);
  }
  EXPECT_EQ(ledger.reserved_bytes(), 300);
  EXPECT_EQ(device.given, 0);
}

TEST(Ledger, HoldsTheContextOnceAtItsMaximum) {
  Ledger ledger(1000);
  ledger.hold_context("driver", 300, 0);
  ledger.hold_context("driver", 200, 0);
  EXPECT_EQ(ledger.reserved_bytes(), 300);
  ledger.hold_context("driver", 400, 0);
  EXPECT_EQ(ledger.entries(), (std::vector<LedgerEntry>{{Tag::context, "driver", 400}}));
  refusal([&] { ledger.hold_context("driver", 1001, 0); });
  EXPECT_EQ(ledger.reserved_bytes(), 400);
}

TEST(PlannedMemory, IsReservedAsAWholeAndDrawnByTag) {
  Ledger ledger(1000);
  const std::vector<LedgerEntry> entries = {
      {Tag::weights, "model", 400}, {Tag::activations, "pass", 200}, {Tag::activations, "evaluation", 50}};
  PlannedMemory memory = ledger.reserve("finbert", entries);
  EXPECT_EQ(memory.bytes(), 650);
  EXPECT_EQ(ledger.reserved_bytes(), 650);
  EXPECT_EQ(ledger.entries()[2].owner, "finbert: evaluation");
  const std::string why = refusal([&] { (void)ledger.reserve("roberta", entries); });
  EXPECT_TRUE(has(why, "roberta needs 650 B")) << why;
  EXPECT_TRUE(has(why, "finbert: model (weights) 400 B")) << why;
  EXPECT_EQ(ledger.entries().size(), 3u) << "all or nothing";

  const Reservation weights = memory.draw(Tag::weights, 400, "model");
  const Reservation arena = memory.draw(Tag::activations, 220, "pass");  // from both entries
  EXPECT_EQ(arena.bytes(), 220);
  EXPECT_EQ(arena.owner(), "finbert: pass");
  EXPECT_EQ(ledger.reserved_bytes(), 650) << "drawn memory was already reserved";
  const std::string beyond = refusal([&] { (void)memory.draw(Tag::activations, 31, "more"); });
  EXPECT_TRUE(has(beyond, "finbert: more needs 31 B of activations, but the plan has 250 B with 30 B left")) << beyond;
  refusal([&] { (void)memory.draw(Tag::graphs, 1, "graphs"); });
  EXPECT_EQ(ledger.left_bytes(), 350) << "although the limit is not reached";
}

TEST(PlannedMemory, KeepsDrawnMemoryWhenThePlanChanges) {
  Ledger ledger(1000);
  PlannedMemory memory = ledger.reserve("run", {{Tag::weights, "state", 400}, {Tag::activations, "pass", 300}});
  const Reservation state = memory.draw(Tag::weights, 400, "state");
  memory.change({{Tag::weights, "state", 400}, {Tag::activations, "pass", 100}, {Tag::token_set, "tokens", 450}});
  EXPECT_EQ(ledger.reserved_bytes(), 950);
  EXPECT_EQ(memory.bytes(), 950);
  refusal([&] { memory.change({{Tag::weights, "state", 400}, {Tag::activations, "pass", 601}}); });
  EXPECT_EQ(ledger.reserved_bytes(), 950);
  EXPECT_EQ(memory.draw(Tag::token_set, 450, "tokens").bytes(), 450);
  memory = PlannedMemory();
  EXPECT_EQ(ledger.reserved_bytes(), 400) << "drawn memory outlives the plan";
  EXPECT_EQ(state.bytes(), 400);
}

// Threads reserve, resize, split, allocate and release at random: neither the reserved nor the allocated bytes ever
// exceed the limit, and in the end all is free.
TEST(Ledger, NeverExceedsItsLimitUnderConcurrency) {
  constexpr int kThreads = 16, kSteps = 2000;
  RoundingDevice device(64);
  Ledger& ledger = Ledger::of(device);
  ledger.set_limit(20'000);
  ledger.hold_context("driver", 1000, 100);
  std::atomic<int64_t> refused{0}, granted{0};
  std::atomic<bool> done{false};
  std::thread watcher([&] {
    while (!done) {
      EXPECT_LE(total_bytes(ledger.entries()), 20'000);
      EXPECT_GE(ledger.left_bytes(), 0);
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<Reservation> held;
      std::vector<DeviceBuffer> blocks;
      std::vector<PlannedMemory> plans;
      const auto any = [&](auto& from) -> auto& { return from[random() % from.size()]; };
      for (int step = 0; step < kSteps; ++step) try {
          const auto bytes = static_cast<int64_t>(random() % 900);
          switch (random() % 8) {
            case 0:
              held.push_back(ledger.reserve(Tag::weights, fmt::format("thread {}", t), bytes));
              break;
            case 1:
              if (!held.empty()) any(held).resize(bytes);
              break;
            case 2:
              if (!held.empty()) held.push_back(any(held).split(0, "part"));
              break;
            case 3:
              blocks.push_back(Ledger::allocate(device, nullptr, Tag::activations, "block", bytes));
              break;
            case 4:
              plans.push_back(ledger.reserve("plan", {{Tag::weights, "w", bytes}, {Tag::staging, "s", 50}}));
              blocks.push_back(Ledger::allocate(device, &plans.back(), Tag::staging, "s", 50));
              break;
            case 5:
              if (!plans.empty()) any(plans).change({{Tag::weights, "w", bytes}, {Tag::staging, "s", 60}});
              break;
            case 6:
              if (!held.empty()) {
                std::swap(any(held), held.back());
                held.pop_back();
              }
              if (!blocks.empty()) blocks.pop_back();
              break;
            default:
              if (random() % 4 == 0) plans.clear();
          }
          ++granted;
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), ErrorCode::does_not_fit) << e.what();
          ++refused;
        }
    });
  for (auto& thread : threads) thread.join();
  done = true;
  watcher.join();
  EXPECT_GT(refused, 0) << "the limit was never reached";
  EXPECT_GT(granted, kThreads * kSteps / 10);
  EXPECT_LE(ledger.most_reserved_bytes(), 20'000);
  EXPECT_LE(device.most, 20'000 - 1000 + 100);
  EXPECT_EQ(device.given, 0);
  EXPECT_EQ(ledger.reserved_bytes(), 1000);
}

}  // namespace
}  // namespace brim::memory
