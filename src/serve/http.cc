// SPDX-License-Identifier: Apache-2.0
// I/O threads of a server: accepting connections within the limits.
#include "serve/http.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "serve/http_loop.h"

namespace brim::serve {
namespace {

constexpr std::chrono::milliseconds kTick(100);
constexpr int64_t kWarnAgainNs = 60'000'000'000;
// For one new connection: an idle connection may get a request before it is closed.
constexpr int kMostEvictions = 8;

std::string address_text(const Protocol::endpoint& peer) {
  char text[INET6_ADDRSTRLEN] = "";
  const sockaddr* name = peer.data();
  if (name->sa_family == AF_INET)
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(name)->sin_addr, text, sizeof text);
  else if (name->sa_family == AF_INET6)
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(name)->sin6_addr, text, sizeof text);
  return text[0] == '\0' ? "unix" : text;
}

}  // namespace

void IoLoop::run() {
  for (;;) {
    try {
      io.run();
      return;
    } catch (const std::exception& e) {  // of one connection; the others go on
      log_warning("an I/O thread goes on after: {}", e.what());
    }
  }
}

void IoLoop::accept() {
  if (accepting || server.deaf) return;
  accepting = true;
  acceptor.async_accept(peer, [this](const Failure& failure, Socket socket) {
    accepting = false;
    if (failure == asio::error::operation_aborted || server.deaf) return;
    if (failure && !acceptor.is_open()) return;
    if (failure) {
      const bool scarce = failure.value() == EMFILE || failure.value() == ENFILE || failure.value() == ENOBUFS ||
                          failure.value() == ENOMEM;
      if (!scarce) return accept();  // a client that left at once
      if (const int64_t now = now_ns(); now - server.warned_ns.load() > kWarnAgainNs) {
        server.warned_ns = now;
        log_warning("connections are not accepted for now: {}", failure.message());
      }
      pause.expires_after(kTick);
      pause.async_wait([this](const Failure& stopped) {
        if (!stopped) accept();
      });
      return;
    }
    newcomer_remote = address_text(peer);
    newcomer.emplace(std::move(socket));
    admit_newcomer(kMostEvictions);
  });
}

void IoLoop::admit_newcomer(int evictions_left) {
  std::shared_ptr<ConnectionSlot> slot;
  const ConnectionTable::Admission admission = server.table.add(newcomer_remote, index, slot);
  if (admission == ConnectionTable::Admission::full && evictions_left > 0 && make_place(evictions_left)) return;
  settle_newcomer(std::move(slot));
}

bool IoLoop::make_place(int evictions_left) {
  int64_t since_ns = 0;
  const std::shared_ptr<ConnectionSlot> idle = server.table.claim_longest_waiting(newcomer_remote, since_ns);
  if (idle == nullptr) return false;
  if (const int64_t now = now_ns(); now - server.warned_full_ns.load() > kWarnAgainNs) {
    server.warned_full_ns = now;
    log_warning("{} connections are open, the limit is {}: closing idle ones", server.table.size(),
                server.options.connections);
  }
  IoLoop& other = *server.loops[static_cast<size_t>(idle->loop)];
  asio::post(other.io, [this, idle, since_ns, evictions_left, remote = newcomer_remote] {
    std::shared_ptr<ConnectionSlot> slot;
    if (idle->connection != nullptr && idle->waiting_since_ns == since_ns) {
      server.table.replace(idle, remote, index, slot);
      idle->connection->close();
    } else {
      server.table.unclaim(idle);
    }
    asio::post(io, [this, slot, evictions_left] {
      if (slot == nullptr)
        admit_newcomer(evictions_left - 1);
      else
        settle_newcomer(slot);
    });
  });
  return true;
}

void IoLoop::settle_newcomer(std::shared_ptr<ConnectionSlot> slot) {
  Socket socket = std::move(*newcomer);
  newcomer.reset();
  if (server.deaf) {
    if (slot != nullptr) server.table.remove(slot);
    return;
  }
  if (slot != nullptr) {
    open_connection(std::move(socket), std::move(slot));
  } else {
    ++server.refused_connections;
    // Under TLS the client only sees the connection close.
    if (server.tls() == nullptr) turn_away(socket, server.handler.refused(503, "too many connections"));
  }
  accept();
}

void IoLoop::open_connection(Socket socket, std::shared_ptr<ConnectionSlot> slot) {
  try {
    const auto connection = make_connection(*this, std::move(socket), slot);
    slot->connection = connection.get();
    open.emplace(connection.get(), connection);
    connection->begin();
  } catch (const std::exception& e) {  // the thread goes on to accept others
    log_warning("a connection failed to open: {}", e.what());
    if (OpenConnection* const half_open = slot->connection; half_open != nullptr && open.contains(half_open))
      half_open->close();
    else
      server.table.remove(slot);
  }
}

void IoLoop::tick() {
  timer.expires_after(kTick);
  timer.async_wait([this](const Failure& failure) {
    if (failure) return;
    const int64_t now = now_ns();
    std::vector<std::shared_ptr<OpenConnection>> all;
    all.reserve(open.size());
    for (const auto& [raw, connection] : open) all.push_back(connection);
    for (const auto& connection : all) {
      if (server.deaf && connection->is_idle())
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

void Handler::take(Exchange&, std::string_view) {}
void Handler::sent(Exchange&) {}
std::optional<uint64_t> Handler::body_limit(const RequestHead&) const { return std::nullopt; }

HttpServer::HttpServer(const ListenAddress& address, const HttpOptions& options, Handler& handler)
    : impl_(std::make_unique<Impl>(address, options, handler)) {
  BRIM_CHECK(options.threads >= 1, "{} threads", options.threads);
  for (int i = 0; i < options.threads; ++i) {
    auto& loop = impl_->loops.emplace_back(std::make_unique<IoLoop>(*impl_, i));
    const int descriptor = ::fcntl(impl_->listener.descriptor(), F_DUPFD_CLOEXEC, 0);
    if (descriptor < 0) fail(ErrorCode::internal, "cannot share a listening socket: {}", std::strerror(errno));
    loop->acceptor.assign(Protocol(impl_->listener.family(), 0), descriptor);
    loop->acceptor.non_blocking(true);
  }
}

HttpServer::~HttpServer() { stop(); }

void HttpServer::start() {
  for (auto& loop : impl_->loops) {
    loop->accept();
    loop->tick();
    loop->thread = std::thread([raw = loop.get()] { raw->run(); });
  }
}

uint16_t HttpServer::port() const { return impl_->listener.port(); }
int HttpServer::threads() const { return static_cast<int>(impl_->loops.size()); }
size_t HttpServer::connections() const { return impl_->table.size(); }
size_t HttpServer::busy() const { return impl_->busy; }
uint64_t HttpServer::refused_connections() const { return impl_->refused_connections; }

void HttpServer::post(int thread, std::function<void()> work) {
  asio::post(impl_->loops[static_cast<size_t>(thread)]->io, std::move(work));
}

void HttpServer::set_tls(std::shared_ptr<const TlsContext> tls) {
  std::lock_guard lock(impl_->tls_mutex);
  impl_->options.tls = std::move(tls);
}

void HttpServer::close_after_answers() { impl_->closing = true; }

void HttpServer::stop_accepting() {
  // Not a std::latch: a loop that has ended would never count down.
  struct Closing {
    std::mutex mutex;
    std::condition_variable changed;
    size_t open = 0;
  };
  const auto closing = std::make_shared<Closing>();
  std::unique_lock lock(closing->mutex);
  for (auto& loop : impl_->loops) {
    if (!loop->thread.joinable() || loop->io.stopped()) continue;  // nobody would answer
    ++closing->open;
    asio::post(loop->io, [raw = loop.get(), closing] {
      Failure failure;
      raw->acceptor.close(failure);
      asio::post(raw->io, [closing] {  // behind what was accepted before
        std::lock_guard done(closing->mutex);
        --closing->open;
        closing->changed.notify_all();
      });
    });
  }
  closing->changed.wait(lock, [&] { return closing->open == 0; });
}

void HttpServer::stop_listening() {
  if (impl_->deaf.exchange(true)) return;
  for (auto& loop : impl_->loops)
    asio::post(loop->io, [raw = loop.get()] {
      Failure failure;
      raw->acceptor.close(failure);
    });
}

void HttpServer::stop() {
  impl_->deaf = true;
  for (auto& loop : impl_->loops) {
    if (!loop->thread.joinable()) continue;
    asio::post(loop->io, [raw = loop.get()] {
      while (!raw->open.empty()) raw->open.begin()->second->close();
      raw->io.stop();
    });
    loop->thread.join();
  }
}

}  // namespace brim::serve
