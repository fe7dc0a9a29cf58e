// SPDX-License-Identifier: Apache-2.0
// Counts the open connections of an HttpServer against its limits, and selects the one to close when it is full. It has
// no sockets: the I/O threads accept and close.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "http/proxies.h"

namespace brim::http {

class OpenConnection;

// One admitted connection.
struct ConnectionSlot {
  static constexpr int64_t kBusy = INT64_MAX;

  std::string remote;
  bool local = false;  // from this machine, but not from a trusted proxy
  int loop = 0;        // index of its I/O thread
  // When the server began to wait for the next request; kBusy from the end of a request head to the end of its
  // response.
  std::atomic<int64_t> waiting_since_ns{kBusy};
  OpenConnection* connection = nullptr;  // used by its I/O thread only; null once closed
  bool claimed = false;                  // chosen to be closed; guarded by the table
};

class ConnectionTable {
 public:
  struct Limits {
    size_t total = 1024;
    size_t per_address = 256;  // does not apply to unix sockets and trusted proxies
    size_t reserved = 0;       // part of `total` for connections from this machine
  };
  enum class Admission : uint8_t { admitted, full, address_full };

  ConnectionTable(const Limits& limits, const TrustedProxies& proxies) : limits_(limits), proxies_(proxies) {}

  // Sets `slot` if admitted.
  Admission add(const std::string& remote, int loop, std::shared_ptr<ConnectionSlot>& slot);
  void remove(const std::shared_ptr<ConnectionSlot>& slot);
  // Claims the connection that has waited longest for its client, among those that `remote` may replace; null if all
  // are busy. On its I/O thread compare waiting_since_ns with `since_ns`: if they are equal, call replace() and close
  // the connection, else it has received a request: call unclaim().
  std::shared_ptr<ConnectionSlot> claim_longest_waiting(const std::string& remote, int64_t& since_ns);
  void unclaim(const std::shared_ptr<ConnectionSlot>& slot);
  // remove() and add() in one step, so that no other connection can be added between them.
  Admission replace(const std::shared_ptr<ConnectionSlot>& old, const std::string& remote, int loop,
                    std::shared_ptr<ConnectionSlot>& slot);

  size_t size() const { return size_; }

 private:
  bool is_local(const std::string& remote) const;
  Admission add_locked(const std::string& remote, int loop, std::shared_ptr<ConnectionSlot>& slot);
  void remove_locked(const std::shared_ptr<ConnectionSlot>& slot);

  const Limits limits_;
  const TrustedProxies proxies_;
  mutable std::mutex mutex_;
  std::map<std::string, size_t> by_address_;
  std::set<std::shared_ptr<ConnectionSlot>> slots_;
  size_t local_ = 0;
  std::atomic<size_t> size_{0};
};

}  // namespace brim::http
