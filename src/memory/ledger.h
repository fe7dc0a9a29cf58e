// SPDX-License-Identifier: Apache-2.0
// Who holds how many bytes of a device, under one limit. Every device block is paid for by a reservation, so Brim's own
// memory cannot pass the limit: what would is refused here, with who holds the rest, before the driver is asked.
#pragma once
#include <cstdint>
#include <limits>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "memory/tag.h"

namespace brim::memory {

struct LedgerEntry {
  Tag tag = Tag::weights;
  std::string owner;
  int64_t bytes = 0;
  bool operator==(const LedgerEntry&) const = default;
};
int64_t total_bytes(const std::vector<LedgerEntry>& entries);

class LedgerBook;

// Bytes set aside, given back when the object goes. One thread at a time may use a reservation; any thread its ledger.
class Reservation {
 public:
  Reservation() = default;
  ~Reservation() { release(); }
  Reservation(Reservation&& other) noexcept { swap(other); }
  Reservation& operator=(Reservation&& other) noexcept {
    if (this != &other) {
      release();
      swap(other);
    }
    return *this;
  }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  Tag tag() const { return entry().tag; }
  const std::string& owner() const { return entry().owner; }
  int64_t bytes() const { return book_ ? entry().bytes : 0; }
  explicit operator bool() const { return book_ != nullptr; }

  void resize(int64_t bytes);  // growing may be refused; nothing has changed then
  // A part of it with an owner of its own: the sum stays, so this is never refused for want of room.
  Reservation split(int64_t bytes, std::string owner);
  void join(Reservation&& other);  // the other's bytes become this one's; of the same ledger
  void release() noexcept;

 private:
  friend class Ledger;
  friend class LedgerBook;
  friend class PlannedMemory;
  const LedgerEntry& entry() const;
  void swap(Reservation& other) noexcept;
  std::shared_ptr<LedgerBook> book_;
  std::list<LedgerEntry>::iterator at_;
};

// A plan's entries, reserved together. Blocks draw from those of their tag: more than was planned is refused even where
// the limit has room, because others count on that room.
class PlannedMemory {
 public:
  Reservation draw(Tag tag, int64_t bytes, const std::string& owner);
  std::vector<Reservation> draw(const TagBytes& bytes, const std::string& owner);
  // Another plan takes over: what was drawn stays and counts as the new plan's. Refused where the new one does not fit;
  // nothing has changed then.
  void change(const std::vector<LedgerEntry>& entries);
  int64_t bytes() const;  // planned: drawn or not

 private:
  friend class Ledger;
  struct Part {
    Tag tag;
    std::string owner;
    int64_t planned, drawn;
    Reservation rest;
  };
  std::shared_ptr<LedgerBook> book_;
  std::string name_;
  std::vector<Part> parts_;
};

class Ledger {
 public:
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  explicit Ledger(int64_t limit_bytes = kNoLimit);
  // A device's own, without a limit until one is set: all models on a device share it.
  static Ledger& of(device::Device& device);

  void set_limit(int64_t bytes);  // refused below what is reserved
  int64_t limit_bytes() const;
  bool limited() const { return limit_bytes() != kNoLimit; }
  int64_t reserved_bytes() const;
  int64_t left_bytes() const { return limit_bytes() - reserved_bytes(); }
  int64_t most_reserved_bytes() const;  // at any time so far

  // Throws does_not_fit with what was asked, what is left and who holds the rest.
  Reservation reserve(Tag tag, std::string owner, int64_t bytes);
  // All entries or none; `name` says whose they are.
  PlannedMemory reserve(const std::string& name, const std::vector<LedgerEntry>& entries);
  // What driver and libraries (on a CPU: the program) hold, once for all models: the most that any of them asked for,
  // until the device goes. `for_rounding` of it is there for what a driver adds when it rounds blocks up.
  void hold_context(const std::string& owner, int64_t bytes, int64_t for_rounding);

  int64_t context_bytes() const;
  // The device is closed: nothing of it is held any more. What was, for who opens it again.
  LedgerEntry release_context();

  std::vector<LedgerEntry> entries() const;  // in order of reservation

  // The only way to device memory: a block as large as its reservation, which it owns and gives back when it is freed.
  // What the driver rounds up is charged too.
  static device::DeviceBuffer allocate(device::Device& device, Reservation&& reservation);
  static device::DeviceBuffer allocate(device::Device& device,
                                       std::vector<Reservation>&& reservations);  // one block for all
  // Draws from `planned`; null (tests, measurements): reserves at once.
  static device::DeviceBuffer allocate(device::Device& device, PlannedMemory* planned, Tag tag,
                                       const std::string& owner, int64_t bytes);
  static device::DeviceBuffer allocate(device::Device& device, PlannedMemory* planned, const TagBytes& bytes,
                                       const std::string& owner);

 private:
  std::shared_ptr<LedgerBook> book_;
};

}  // namespace brim::memory
