// SPDX-License-Identifier: Apache-2.0
// Accepts connections within the limits.
#include "http/event_loop.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cerrno>

#include "base/clock.h"
#include "base/log.h"

namespace brim::http {
namespace {

constexpr std::chrono::milliseconds kTick(100);
constexpr int64_t kWarnAgainNs = 60'000'000'000;
// Per new connection. An idle connection may receive a request before it is closed, then the next one is tried.
constexpr int kMaxEvictions = 8;

std::string address_text(const Protocol::endpoint& peer) {
  char text[INET6_ADDRSTRLEN] = "";
  const sockaddr* name = peer.data();
  if (name->sa_family == AF_INET)
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(name)->sin_addr, text, sizeof text);
  else if (name->sa_family == AF_INET6)
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(name)->sin6_addr, text, sizeof text);
  return text[0] == '\0' ? "unix" : text;
}

// Limits a warning to about one per kWarnAgainNs.
bool warning_due(std::atomic<int64_t>& warned_ns) {
  const int64_t now = now_ns();
  if (now - warned_ns.load() <= kWarnAgainNs) return false;
  warned_ns = now;
  return true;
}

}  // namespace

void IoLoop::run() {
  for (;;) {
    try {
      io.run();
      return;
    } catch (const std::exception& e) {  // from one connection; the others continue
      log_warning("I/O thread: unexpected error: {}", e.what());
    }
  }
}

void IoLoop::accept() {
  if (accepting || server.stopped_listening) return;
  accepting = true;
  acceptor.async_accept(peer, [this](const IoError& error, Socket socket) {
    accepting = false;
    if (error == asio::error::operation_aborted || server.stopped_listening) return;
    if (error && !acceptor.is_open()) return;
    if (error) return on_accept_error(error);
    pending_remote = address_text(peer);
    pending_socket.emplace(std::move(socket));
    admit_pending(kMaxEvictions);
  });
}

void IoLoop::on_accept_error(const IoError& error) {
  const bool exhausted =
      error.value() == EMFILE || error.value() == ENFILE || error.value() == ENOBUFS || error.value() == ENOMEM;
  if (!exhausted) return accept();  // the client disconnected at once
  if (warning_due(server.warned_accept_ns)) log_warning("cannot accept connections: {}", error.message());
  retry_timer.expires_after(kTick);
  retry_timer.async_wait([this](const IoError& cancelled) {
    if (!cancelled) accept();
  });
}

void IoLoop::admit_pending(int evictions_left) {
  std::shared_ptr<ConnectionSlot> slot;
  const ConnectionTable::Admission admission = server.table.add(pending_remote, index, slot);
  if (admission == ConnectionTable::Admission::full && evictions_left > 0 && evict_idle(evictions_left)) return;
  finish_pending(std::move(slot));
}

bool IoLoop::evict_idle(int evictions_left) {
  int64_t since_ns = 0;
  const std::shared_ptr<ConnectionSlot> idle = server.table.claim_longest_waiting(pending_remote, since_ns);
  if (idle == nullptr) return false;
  if (warning_due(server.warned_full_ns))
    log_warning("{} of at most {} connections are open: closing idle ones", server.table.size(),
                server.options.connections);
  IoLoop& other = *server.loops[static_cast<size_t>(idle->loop)];
  asio::post(other.io, [this, idle, since_ns, evictions_left, remote = pending_remote] {
    std::shared_ptr<ConnectionSlot> slot;
    if (idle->connection != nullptr && idle->waiting_since_ns == since_ns) {
      server.table.replace(idle, remote, index, slot);
      idle->connection->close();
    } else {
      server.table.unclaim(idle);
    }
    asio::post(io, [this, slot, evictions_left] {
      if (slot == nullptr)
        admit_pending(evictions_left - 1);
      else
        finish_pending(slot);
    });
  });
  return true;
}

void IoLoop::finish_pending(std::shared_ptr<ConnectionSlot> slot) {
  Socket socket = std::move(*pending_socket);
  pending_socket.reset();
  if (server.stopped_listening) {
    if (slot != nullptr) server.table.remove(slot);
    return;
  }
  if (slot != nullptr) {
    open_connection(std::move(socket), std::move(slot));
  } else {
    ++server.refused_connections;
    // With TLS the client only sees the connection close.
    if (server.tls() == nullptr) send_rejection(socket, server.handler.refused(503, "too many connections"));
  }
  accept();
}

void IoLoop::open_connection(Socket socket, std::shared_ptr<ConnectionSlot> slot) {
  try {
    const auto connection = make_connection(*this, std::move(socket), slot);
    slot->connection = connection.get();
    connections.emplace(connection.get(), connection);
    connection->begin();
  } catch (const std::exception& e) {  // the thread continues to accept
    log_warning("cannot open a connection: {}", e.what());
    if (OpenConnection* const half_open = slot->connection; half_open != nullptr && connections.contains(half_open))
      half_open->close();
    else
      server.table.remove(slot);
  }
}

void IoLoop::tick() {
  timer.expires_after(kTick);
  timer.async_wait([this](const IoError& error) {
    if (error) return;
    const int64_t now = now_ns();
    std::vector<std::shared_ptr<OpenConnection>> all;
    all.reserve(connections.size());
    for (const auto& [raw, connection] : connections) all.push_back(connection);
    for (const auto& connection : all) {
      if (server.stopped_listening && connection->is_idle())
        connection->close();
      else
        connection->expire(now);
    }
    tick();
  });
}

const std::string& IoLoop::date() {
  const std::time_t now = std::time(nullptr);
  if (now != date_second || date_text.empty()) {
    date_second = now;
    std::tm utc{};
    ::gmtime_r(&now, &utc);
    char text[64];
    std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc);
    date_text = text;
  }
  return date_text;
}

}  // namespace brim::http
