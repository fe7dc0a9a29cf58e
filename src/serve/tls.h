// SPDX-License-Identifier: Apache-2.0
// TLS as bytes in and bytes out; sockets are http.cc's. Nobody else sees OpenSSL. A build without it has tls_none.cc,
// whose context cannot be made and says why.
#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace brim::serve {

// A certificate chain and its key, in PEM. Never changes: who wants others makes another, for connections to come.
class TlsContext {
 public:
  // Fails with a usage error that names the file.
  static std::shared_ptr<const TlsContext> load(const std::string& certificate, const std::string& key);
  virtual ~TlsContext() = default;

 protected:
  TlsContext() = default;
};

// One connection, on the server's side.
class TlsSession {
 public:
  static std::unique_ptr<TlsSession> begin(std::shared_ptr<const TlsContext> context);
  virtual ~TlsSession() = default;

  // Bytes that came; what they say is appended to `plain`. False: the client ended it, or broke the protocol.
  virtual bool take(std::string_view came, std::string& plain) = 0;
  virtual bool ready() const = 0;                 // the handshake is done
  virtual bool broken() const = 0;                // nothing can be said any more, not even goodbye
  virtual bool seal(std::string_view plain) = 0;  // into outgoing(), once it is ready; false: it is broken
  virtual void end() = 0;                         // says goodbye, once
  std::string& outgoing() { return outgoing_; }   // bytes to send, in order; the caller takes them out

 protected:
  TlsSession() = default;
  std::string outgoing_;
};

}  // namespace brim::serve
