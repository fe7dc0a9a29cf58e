// SPDX-License-Identifier: Apache-2.0
#include "http/connection_table.h"

#include <gtest/gtest.h>

#include <vector>

namespace brim::http {
namespace {

using Admission = ConnectionTable::Admission;
using Slot = std::shared_ptr<ConnectionSlot>;

class ConnectionTableTest : public ::testing::Test {
 protected:
  ConnectionTable& make(ConnectionTable::Limits limits, const char* proxies = "") {
    table_ = std::make_unique<ConnectionTable>(limits, TrustedProxies(proxies));
    return *table_;
  }
  // Waiting for its client since `since_ns`.
  Slot add(const std::string& remote, int64_t since_ns = ConnectionSlot::kBusy) {
    Slot slot;
    EXPECT_EQ(table_->add(remote, 0, slot), Admission::admitted) << remote;
    if (slot != nullptr) slot->waiting_since_ns = since_ns;
    return slot;
  }
  Admission try_add(const std::string& remote) {
    Slot slot;
    return table_->add(remote, 0, slot);
  }
  static Slot longest_of(ConnectionTable& table, const std::string& remote) {
    int64_t since = 0;
    const Slot slot = table.claim_longest_waiting(remote, since);
    if (slot != nullptr) {
      EXPECT_EQ(since, slot->waiting_since_ns);
      table.unclaim(slot);
    }
    return slot;
  }
  std::unique_ptr<ConnectionTable> table_;
};

TEST_F(ConnectionTableTest, CountsAllAndByAddress) {
  ConnectionTable& table = make({.total = 3, .per_address = 2});
  const Slot first = add("192.0.2.1");
  add("192.0.2.1");
  EXPECT_EQ(try_add("192.0.2.1"), Admission::address_full);
  add("192.0.2.2");
  EXPECT_EQ(try_add("192.0.2.3"), Admission::full);
  EXPECT_EQ(table.size(), 3u);
  table.remove(first);
  table.remove(first);
  EXPECT_EQ(table.size(), 2u);
  EXPECT_EQ(try_add("192.0.2.1"), Admission::admitted);
}

TEST_F(ConnectionTableTest, ProxiesAndUnixSocketsHaveNoLimitPerAddress) {
  make({.total = 8, .per_address = 1}, "192.0.2.1");
  for (int i = 0; i < 3; ++i) add("192.0.2.1");
  for (int i = 0; i < 3; ++i) add("unix");
  add("192.0.2.2");
  EXPECT_EQ(try_add("192.0.2.2"), Admission::address_full);
}

TEST_F(ConnectionTableTest, ReservesConnectionsForThisMachine) {
  make({.total = 4, .per_address = 100, .reserved = 2}, "127.0.0.9");
  add("192.0.2.1");
  add("127.0.0.9");  // a local proxy has remote clients
  EXPECT_EQ(try_add("192.0.2.2"), Admission::full);
  EXPECT_EQ(try_add("127.0.0.9"), Admission::full);
  add("127.0.0.1");
  add("::1");
  EXPECT_EQ(try_add("unix"), Admission::full);
}

TEST_F(ConnectionTableTest, FindsTheConnectionThatWaitedLongest) {
  ConnectionTable& table = make({.total = 4});
  add("192.0.2.1");
  EXPECT_EQ(longest_of(table, "192.0.2.9"), nullptr) << "all are busy";
  const Slot later = add("192.0.2.2", 20), longest = add("192.0.2.3", 10);
  EXPECT_EQ(longest_of(table, "192.0.2.9"), longest);
  longest->waiting_since_ns = ConnectionSlot::kBusy;
  EXPECT_EQ(longest_of(table, "192.0.2.9"), later);
  table.remove(later);
  EXPECT_EQ(longest_of(table, "192.0.2.9"), nullptr);
}

TEST_F(ConnectionTableTest, ClaimsAConnectionOnlyOnce) {
  ConnectionTable& table = make({.total = 2});
  const Slot first = add("192.0.2.1", 10), second = add("192.0.2.2", 20);
  int64_t since = 0;
  EXPECT_EQ(table.claim_longest_waiting("192.0.2.9", since), first);
  EXPECT_EQ(table.claim_longest_waiting("192.0.2.9", since), second);
  EXPECT_EQ(table.claim_longest_waiting("192.0.2.9", since), nullptr);
  table.unclaim(second);
  Slot slot;
  EXPECT_EQ(table.replace(first, "192.0.2.3", 0, slot), Admission::admitted);
  table.remove(first);  // its connection closes later
  EXPECT_EQ(table.size(), 2u);
  EXPECT_EQ(try_add("192.0.2.4"), Admission::full);
}

TEST_F(ConnectionTableTest, RemoteClientsDoNotDisplaceReservedConnections) {
  ConnectionTable& table = make({.total = 4, .reserved = 1});
  const Slot local = add("127.0.0.1", 10), other = add("192.0.2.1", 20);
  EXPECT_EQ(longest_of(table, "192.0.2.9"), other);
  EXPECT_EQ(longest_of(table, "127.0.0.1"), local);
  add("127.0.0.1", 30);  // one more than reserved
  EXPECT_EQ(longest_of(table, "192.0.2.9"), local);
}

}  // namespace
}  // namespace brim::http
