// SPDX-License-Identifier: Apache-2.0
#include "http/http.h"

#include <fcntl.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>

#include "base/error.h"
#include "http/event_loop.h"

namespace brim::http {

void Handler::take(Exchange&, std::string_view) {}
void Handler::sent(Exchange&) {}
std::optional<uint64_t> Handler::body_limit(const RequestHead&) const { return std::nullopt; }

HttpServer::HttpServer(const ListenAddress& address, const HttpOptions& options, Handler& handler)
    : impl_(std::make_unique<Impl>(address, options, handler)) {
  BRIM_CHECK(options.threads >= 1, "{} threads", options.threads);
  for (int i = 0; i < options.threads; ++i) {
    auto& loop = impl_->loops.emplace_back(std::make_unique<IoLoop>(*impl_, i));
    const int descriptor = ::fcntl(impl_->listener.descriptor(), F_DUPFD_CLOEXEC, 0);
    if (descriptor < 0) fail(ErrorCode::internal, "cannot duplicate the listening socket: {}", std::strerror(errno));
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
  // Not a std::latch, because a loop that has stopped would never count down.
  struct Pending {
    std::mutex mutex;
    std::condition_variable changed;
    size_t loops = 0;
  };
  const auto pending = std::make_shared<Pending>();
  std::unique_lock lock(pending->mutex);
  for (auto& loop : impl_->loops) {
    if (!loop->thread.joinable() || loop->io.stopped()) continue;
    ++pending->loops;
    asio::post(loop->io, [raw = loop.get(), pending] {
      IoError ignored;
      raw->acceptor.close(ignored);
      asio::post(raw->io, [pending] {  // after the connections that were already accepted
        std::lock_guard done(pending->mutex);
        --pending->loops;
        pending->changed.notify_all();
      });
    });
  }
  pending->changed.wait(lock, [&] { return pending->loops == 0; });
}

void HttpServer::stop_listening() {
  if (impl_->stopped_listening.exchange(true)) return;
  for (auto& loop : impl_->loops)
    asio::post(loop->io, [raw = loop.get()] {
      IoError ignored;
      raw->acceptor.close(ignored);
    });
}

void HttpServer::stop() {
  impl_->stopped_listening = true;
  for (auto& loop : impl_->loops) {
    if (!loop->thread.joinable()) continue;
    asio::post(loop->io, [raw = loop.get()] {
      while (!raw->connections.empty()) raw->connections.begin()->second->close();
      raw->io.stop();
    });
    loop->thread.join();
  }
}

}  // namespace brim::http
