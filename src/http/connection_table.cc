// SPDX-License-Identifier: Apache-2.0
#include "http/connection_table.h"

#include <optional>

namespace brim::http {

bool ConnectionTable::is_local(const std::string& remote) const {
  if (proxies_.trusts(remote)) return false;  // its clients may be remote
  if (remote == "unix") return true;
  const std::optional<IpAddress> address = IpAddress::read(remote);
  return address && address->is_loopback();
}

ConnectionTable::Admission ConnectionTable::add(const std::string& remote, int loop,
                                                std::shared_ptr<ConnectionSlot>& slot) {
  std::lock_guard lock(mutex_);
  return add_locked(remote, loop, slot);
}

ConnectionTable::Admission ConnectionTable::replace(const std::shared_ptr<ConnectionSlot>& old,
                                                    const std::string& remote, int loop,
                                                    std::shared_ptr<ConnectionSlot>& slot) {
  std::lock_guard lock(mutex_);
  remove_locked(old);
  return add_locked(remote, loop, slot);
}

void ConnectionTable::remove(const std::shared_ptr<ConnectionSlot>& slot) {
  std::lock_guard lock(mutex_);
  remove_locked(slot);
}

ConnectionTable::Admission ConnectionTable::add_locked(const std::string& remote, int loop,
                                                       std::shared_ptr<ConnectionSlot>& slot) {
  const bool local = is_local(remote), unlimited = remote == "unix" || proxies_.trusts(remote);
  const auto held = by_address_.find(remote);
  if (!unlimited && held != by_address_.end() && held->second >= limits_.per_address) return Admission::address_full;
  const size_t others = slots_.size() - local_;
  if (slots_.size() >= limits_.total || (!local && others + limits_.reserved >= limits_.total)) return Admission::full;
  slot = std::make_shared<ConnectionSlot>();
  slot->remote = remote;
  slot->local = local;
  slot->loop = loop;
  slots_.insert(slot);
  ++by_address_[remote];
  local_ += local ? 1 : 0;
  size_ = slots_.size();
  return Admission::admitted;
}

void ConnectionTable::remove_locked(const std::shared_ptr<ConnectionSlot>& slot) {
  if (slots_.erase(slot) == 0) return;
  if (--by_address_[slot->remote] == 0) by_address_.erase(slot->remote);
  local_ -= slot->local ? 1 : 0;
  size_ = slots_.size();
}

std::shared_ptr<ConnectionSlot> ConnectionTable::claim_longest_waiting(const std::string& remote, int64_t& since_ns) {
  const bool local = is_local(remote);
  std::lock_guard lock(mutex_);
  // Remote connections cannot displace reserved local ones.
  const bool may_evict_local = local || local_ > limits_.reserved;
  std::shared_ptr<ConnectionSlot> longest;
  since_ns = ConnectionSlot::kBusy;
  for (const auto& slot : slots_) {
    const int64_t since = slot->waiting_since_ns.load(std::memory_order_relaxed);
    if (since >= since_ns || slot->claimed || (slot->local && !may_evict_local)) continue;
    since_ns = since;
    longest = slot;
  }
  if (longest != nullptr) longest->claimed = true;
  return longest;
}

void ConnectionTable::unclaim(const std::shared_ptr<ConnectionSlot>& slot) {
  std::lock_guard lock(mutex_);
  slot->claimed = false;
}

}  // namespace brim::http
