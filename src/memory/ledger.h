// SPDX-License-Identifier: Apache-2.0
// Accounts for the bytes held on a device, under one limit. Every device block needs a reservation, so Brim's own
// memory cannot exceed the limit: a request beyond it is refused here, listing the current holders, before the driver
// is called.
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

// Reserved bytes, released in the destructor. A reservation is not thread-safe; a ledger is.
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

  void resize(int64_t bytes);  // growing may fail, leaving the reservation unchanged
  // Splits off a part with a different owner. The sum stays the same, so this never fails for lack of memory.
  Reservation split(int64_t bytes, std::string owner);
  void join(Reservation&& other);  // takes over the bytes of another reservation of the same ledger
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

// Entries of a plan, reserved together. Blocks draw from the entries with their tag. Drawing more than planned is
// refused even if the limit allows it, because other users rely on that memory.
class PlannedMemory {
 public:
  Reservation draw(Tag tag, int64_t bytes, const std::string& owner);
  std::vector<Reservation> draw(const TagBytes& bytes, const std::string& owner);
  // Switches to another plan: drawn memory is kept and counted towards the new plan. Fails without changes if the new
  // plan does not fit.
  void change(const std::vector<LedgerEntry>& entries);
  int64_t bytes() const;  // planned bytes, drawn or not

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
  // The ledger of a device, shared by all models on it; unlimited until a limit is set.
  static Ledger& of(device::Device& device);

  void set_limit(int64_t bytes);  // fails below the reserved bytes
  int64_t limit_bytes() const;
  bool limited() const { return limit_bytes() != kNoLimit; }
  int64_t reserved_bytes() const;
  int64_t left_bytes() const { return limit_bytes() - reserved_bytes(); }
  int64_t most_reserved_bytes() const;  // high-water mark

  // Throws does_not_fit with the requested bytes, the remaining bytes and the holders of the rest.
  Reservation reserve(Tag tag, std::string owner, int64_t bytes);
  // Reserves all entries or none; `name` is the owner.
  PlannedMemory reserve(const std::string& name, const std::vector<LedgerEntry>& entries);
  // Reserves the memory of driver and libraries (on a CPU, of the program) once for all models: the maximum requested
  // so far, until the device is closed. `for_rounding` bytes of it cover the driver's rounding of blocks.
  void hold_context(const std::string& owner, int64_t bytes, int64_t for_rounding);

  int64_t context_bytes() const;
  // Called when the device is closed. Returns the released context, to be held again after reopening.
  LedgerEntry release_context();

  std::vector<LedgerEntry> entries() const;  // in order of reservation

  // The only way to allocate device memory: a block the size of its reservation, which it owns and releases when freed.
  // The driver's rounding is charged too.
  static device::DeviceBuffer allocate(device::Device& device, Reservation&& reservation);
  static device::DeviceBuffer allocate(device::Device& device,
                                       std::vector<Reservation>&& reservations);  // one block for all
  // Draws from `planned`; if null (tests, measurements), reserves directly.
  static device::DeviceBuffer allocate(device::Device& device, PlannedMemory* planned, Tag tag,
                                       const std::string& owner, int64_t bytes);
  static device::DeviceBuffer allocate(device::Device& device, PlannedMemory* planned, const TagBytes& bytes,
                                       const std::string& owner);

 private:
  std::shared_ptr<LedgerBook> book_;
};

}  // namespace brim::memory
