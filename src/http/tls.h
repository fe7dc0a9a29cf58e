// SPDX-License-Identifier: Apache-2.0
// Server side of TLS on buffers; sockets belong to Connection. Only tls.cc includes OpenSSL. A build without it has
// tls_none.cc, where TlsContext::load() fails.
#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace brim::http {

// A certificate chain and its key, both PEM. Immutable: to change the certificate, load another context for new
// connections.
class TlsContext {
 public:
  // Throws a usage error that names the file.
  static std::shared_ptr<const TlsContext> load(const std::string& certificate, const std::string& key);
  virtual ~TlsContext() = default;

 protected:
  TlsContext() = default;
};

// One connection.
class TlsSession {
 public:
  static std::unique_ptr<TlsSession> begin(std::shared_ptr<const TlsContext> context);
  virtual ~TlsSession() = default;

  // Processes received bytes and appends their plaintext. False if the client ended the session or broke the protocol.
  virtual bool decrypt(std::string_view received, std::string& plaintext) = 0;
  virtual bool ready() const = 0;                        // the handshake is complete
  virtual bool broken() const = 0;                       // nothing can be sent any more, not even close_notify
  virtual bool encrypt(std::string_view plaintext) = 0;  // appends to outgoing(); false if not ready or broken
  virtual void shut_down() = 0;                          // appends close_notify to outgoing(); call once
  std::string& outgoing() { return outgoing_; }          // bytes to send in order; the caller removes them

 protected:
  TlsSession() = default;
  std::string outgoing_;
};

}  // namespace brim::http
