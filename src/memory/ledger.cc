// SPDX-License-Identifier: Apache-2.0
#include "memory/ledger.h"

#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "base/units.h"

namespace brim::memory {

using device::Device;
using device::DeviceBuffer;

namespace {

std::string name_of(const LedgerEntry& e) { return fmt::format("{} ({})", e.owner, tag_name(e.tag)); }

constexpr const char* kRoundingOwner = "rounding of blocks";

}  // namespace

int64_t total_bytes(const std::vector<LedgerEntry>& entries) {
  int64_t sum = 0;
  for (const LedgerEntry& e : entries) sum += e.bytes;
  return sum;
}

// State shared by a ledger and its reservations; lives as long as any of them.
class LedgerBook : public std::enable_shared_from_this<LedgerBook> {
 public:
  explicit LedgerBook(int64_t limit) : limit_(limit) {}

  void set_limit(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (sum_ > bytes)
      fail(ErrorCode::does_not_fit, "cannot set the memory limit to {}: {} already reserved: {}", format_bytes(bytes),
           format_bytes(sum_), holders());
    limit_ = bytes;
  }
  int64_t limit() const {
    const std::lock_guard lock(mutex_);
    return limit_;
  }
  int64_t sum() const {
    const std::lock_guard lock(mutex_);
    return sum_;
  }
  int64_t most() const {
    const std::lock_guard lock(mutex_);
    return most_;
  }

  // `asks` names the requester in error messages.
  Reservation reserve(LedgerEntry entry, const std::string& requester) {
    const std::lock_guard lock(mutex_);
    BRIM_CHECK(entry.bytes >= 0, "{} reserves {} bytes", requester, entry.bytes);
    charge(requester, entry.bytes);
    return add(std::move(entry));
  }
  void resize(LedgerEntry& entry, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    BRIM_CHECK(bytes >= 0, "{} resized to {} bytes", entry.owner, bytes);
    charge(name_of(entry), bytes - entry.bytes);
    entry.bytes = bytes;
  }
  Reservation split(LedgerEntry& from, int64_t bytes, Tag tag, std::string owner) {
    const std::lock_guard lock(mutex_);
    BRIM_CHECK(bytes >= 0 && bytes <= from.bytes, "{} of {} bytes split off", bytes, from.bytes);
    from.bytes -= bytes;
    return add({tag, std::move(owner), bytes});
  }
  void join(LedgerEntry& to, std::list<LedgerEntry>::iterator from) {
    const std::lock_guard lock(mutex_);
    to.bytes += from->bytes;
    entries_.erase(from);
  }
  void release(std::list<LedgerEntry>::iterator at) noexcept {
    const std::lock_guard lock(mutex_);
    sum_ -= at->bytes;
    entries_.erase(at);
  }

  void hold_context(const std::string& owner, int64_t bytes, int64_t for_rounding) {
    const std::lock_guard lock(mutex_);
    if (bytes > context_.bytes) {
      const LedgerEntry next{Tag::context, owner, bytes};
      charge(name_of(next), bytes - context_.bytes);
      context_ = next;
    }
    sum_ -= beyond_planned(rounding_);
    rounding_planned_ = std::max(rounding_planned_, for_rounding);
    sum_ += beyond_planned(rounding_);
  }

  int64_t context() const {
    const std::lock_guard lock(mutex_);
    return context_.bytes;
  }

  LedgerEntry release_context() {
    const std::lock_guard lock(mutex_);
    sum_ -= context_.bytes;
    return std::exchange(context_, {Tag::context, "", 0});
  }

  // Charges the driver's rounding of a block: first to the context's share for it, then to free memory.
  void round_up(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    const int64_t after = rounding_ + bytes;
    charge(kRoundingOwner, beyond_planned(after) - beyond_planned(rounding_));
    rounding_ = after;
  }
  void round_down(int64_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    sum_ -= beyond_planned(rounding_) - beyond_planned(rounding_ - bytes);
    rounding_ -= bytes;
  }

  std::vector<LedgerEntry> entries() const {
    const std::lock_guard lock(mutex_);
    return all_entries();
  }

 private:
  int64_t beyond_planned(int64_t rounding) const { return std::max<int64_t>(0, rounding - rounding_planned_); }

  std::vector<LedgerEntry> all_entries() const {
    std::vector<LedgerEntry> all;
    if (context_.bytes > 0) all.push_back(context_);
    for (const LedgerEntry& e : entries_)
      if (e.bytes > 0) all.push_back(e);
    if (const int64_t more = beyond_planned(rounding_); more > 0) all.push_back({Tag::context, kRoundingOwner, more});
    return all;
  }

  // Largest first.
  std::string holders() const {
    std::vector<LedgerEntry> all = all_entries();
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
    constexpr size_t kNamed = 6;
    std::string text;
    int64_t rest = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      if (i < kNamed)
        text += (text.empty() ? "" : ", ") + name_of(all[i]) + " " + format_bytes(all[i].bytes);
      else
        rest += all[i].bytes;
    }
    if (all.size() > kNamed) text += fmt::format(" and {} more {}", all.size() - kNamed, format_bytes(rest));
    return text.empty() ? "none" : text;
  }

  void charge(const std::string& requester, int64_t more) {
    if (more > limit_ - sum_) {
      const int64_t mib = (sum_ + more + (1 << 20) - 1) >> 20;
      fail(ErrorCode::does_not_fit, Remedy{fmt::format("set `memory_limit={}MiB`", mib)},
           "{} needs {}, but only {} of the {} limit is free; reserved: {}", requester, format_bytes(more),
           format_bytes(limit_ - sum_), format_bytes(limit_), holders());
    }
    sum_ += more;
    most_ = std::max(most_, sum_);
  }
  Reservation add(LedgerEntry entry) {
    Reservation r;
    r.at_ = entries_.insert(entries_.end(), std::move(entry));
    r.book_ = shared_from_this();
    return r;
  }

  mutable std::mutex mutex_;
  int64_t limit_, sum_ = 0, most_ = 0;
  std::list<LedgerEntry> entries_;
  LedgerEntry context_{Tag::context, "", 0};
  int64_t rounding_ = 0, rounding_planned_ = 0;  // rounding of all blocks; part of it covered by the context
};

const LedgerEntry& Reservation::entry() const {
  BRIM_CHECK(book_ != nullptr, "reservation is empty");
  return *at_;
}
void Reservation::swap(Reservation& other) noexcept {
  std::swap(book_, other.book_);
  std::swap(at_, other.at_);
}
void Reservation::resize(int64_t bytes) {
  static_cast<void>(entry());
  book_->resize(*at_, bytes);
}
Reservation Reservation::split(int64_t bytes, std::string owner) {
  return book_->split(*at_, bytes, entry().tag, std::move(owner));
}
void Reservation::join(Reservation&& other) {
  BRIM_CHECK(book_ != nullptr && book_ == other.book_ && this != &other, "reservations of different ledgers");
  book_->join(*at_, other.at_);
  other.book_.reset();
}
void Reservation::release() noexcept {
  if (book_) book_->release(at_);
  book_.reset();
}

Reservation PlannedMemory::draw(Tag tag, int64_t bytes, const std::string& owner) {
  BRIM_CHECK(book_ != nullptr, "{}: {} requested before planning", owner, tag_name(tag));
  int64_t planned = 0, left = 0;
  for (const Part& part : parts_)
    if (part.tag == tag) {
      planned += part.planned;
      left += part.rest.bytes();
    }
  if (bytes > left)
    fail(ErrorCode::does_not_fit, "{}: {} needs {} of {}, but the plan has {} with {} left", name_, owner,
         format_bytes(bytes), tag_name(tag), format_bytes(planned), format_bytes(left));
  Reservation drawn = book_->reserve({tag, fmt::format("{}: {}", name_, owner), 0}, owner);
  for (const bool own : {true, false})  // entries planned for this owner first
    for (Part& part : parts_) {
      if (part.tag != tag || (part.owner == owner) != own) continue;
      const int64_t take = std::min(bytes - drawn.bytes(), part.rest.bytes());
      part.drawn += take;
      drawn.join(part.rest.split(take, owner));
    }
  return drawn;
}

std::vector<Reservation> PlannedMemory::draw(const TagBytes& bytes, const std::string& owner) {
  std::vector<Reservation> all;
  for (int t = 0; t < kTagCount; ++t)
    if (const auto tag = static_cast<Tag>(t); bytes[tag] > 0) all.push_back(draw(tag, bytes[tag], owner));
  return all;
}

void PlannedMemory::change(const std::vector<LedgerEntry>& entries) {
  TagBytes drawn;
  int64_t have = 0, need = 0;
  for (const Part& part : parts_) {
    drawn[part.tag] += part.drawn;
    have += part.rest.bytes();
  }
  std::vector<Part> next;
  for (const LedgerEntry& e : entries) {
    const int64_t covered = std::min(drawn[e.tag], e.bytes);
    drawn[e.tag] -= covered;
    need += e.bytes - covered;
    next.push_back({e.tag, e.owner, e.bytes, covered, {}});
  }
  for (int t = 0; t < kTagCount; ++t)
    BRIM_CHECK(drawn.bytes[static_cast<size_t>(t)] == 0, "{}: {} bytes of {} in use exceed the new plan", name_,
               drawn.bytes[static_cast<size_t>(t)], tag_name(static_cast<Tag>(t)));
  Reservation pool = book_->reserve({Tag::workspace, name_, std::max<int64_t>(0, need - have)}, name_);
  for (Part& part : parts_) pool.join(std::move(part.rest));
  for (Part& part : next)
    part.rest = book_->split(*pool.at_, part.planned - part.drawn, part.tag, fmt::format("{}: {}", name_, part.owner));
  parts_ = std::move(next);
}

int64_t PlannedMemory::bytes() const {
  int64_t sum = 0;
  for (const Part& part : parts_) sum += part.planned;
  return sum;
}

Ledger::Ledger(int64_t limit_bytes) : book_(std::make_shared<LedgerBook>(limit_bytes)) {}

Ledger& Ledger::of(Device& device) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (!device.ledger_) device.ledger_ = std::make_shared<Ledger>();
  return *device.ledger_;
}

void Ledger::set_limit(int64_t bytes) { book_->set_limit(bytes); }
int64_t Ledger::limit_bytes() const { return book_->limit(); }
int64_t Ledger::reserved_bytes() const { return book_->sum(); }
int64_t Ledger::most_reserved_bytes() const { return book_->most(); }
int64_t Ledger::context_bytes() const { return book_->context(); }
LedgerEntry Ledger::release_context() { return book_->release_context(); }
std::vector<LedgerEntry> Ledger::entries() const { return book_->entries(); }

Reservation Ledger::reserve(Tag tag, std::string owner, int64_t bytes) {
  const std::string requester = name_of({tag, owner, bytes});
  return book_->reserve({tag, std::move(owner), bytes}, requester);
}

PlannedMemory Ledger::reserve(const std::string& name, const std::vector<LedgerEntry>& entries) {
  PlannedMemory memory;
  memory.book_ = book_;
  memory.name_ = name;
  memory.change(entries);
  return memory;
}

void Ledger::hold_context(const std::string& owner, int64_t bytes, int64_t for_rounding) {
  book_->hold_context(owner, bytes, for_rounding);
}

namespace {

// Reservations owned by a block, released after its memory.
struct Charge {
  std::vector<Reservation> reservations;
  std::shared_ptr<LedgerBook> book;
  int64_t rounding = 0;
  ~Charge() {
    if (book) book->round_down(rounding);
  }
};

}  // namespace

DeviceBuffer Ledger::allocate(Device& device, std::vector<Reservation>&& reservations) {
  auto charge = std::make_shared<Charge>();
  charge->reservations = std::move(reservations);
  int64_t bytes = 0;
  for (const Reservation& r : charge->reservations) bytes += r.bytes();
  if (bytes == 0) return {};
  const auto& book = charge->reservations[0].book_;
  const int64_t rounding = device.rounded_bytes(bytes) - bytes;
  book->round_up(rounding);
  charge->book = book;
  charge->rounding = rounding;
  DeviceBuffer buffer = device.allocate(static_cast<size_t>(bytes));
  buffer.charge_ = std::move(charge);
  return buffer;
}

DeviceBuffer Ledger::allocate(Device& device, Reservation&& reservation) {
  std::vector<Reservation> one;
  one.push_back(std::move(reservation));
  return allocate(device, std::move(one));
}

DeviceBuffer Ledger::allocate(Device& device, PlannedMemory* planned, Tag tag, const std::string& owner,
                              int64_t bytes) {
  return allocate(device,
                  planned != nullptr ? planned->draw(tag, bytes, owner) : of(device).reserve(tag, owner, bytes));
}

DeviceBuffer Ledger::allocate(Device& device, PlannedMemory* planned, const TagBytes& bytes, const std::string& owner) {
  if (planned != nullptr) return allocate(device, planned->draw(bytes, owner));
  std::vector<Reservation> at_once;
  for (int t = 0; t < kTagCount; ++t)
    if (const auto tag = static_cast<Tag>(t); bytes[tag] > 0)
      at_once.push_back(of(device).reserve(tag, owner, bytes[tag]));
  return allocate(device, std::move(at_once));
}

}  // namespace brim::memory
