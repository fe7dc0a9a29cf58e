// SPDX-License-Identifier: Apache-2.0
// A build without OpenSSL.
#include "base/error.h"
#include "serve/tls.h"

namespace brim::serve {

std::shared_ptr<const TlsContext> TlsContext::load(const std::string& certificate, const std::string&) {
  fail(ErrorCode::usage, Remedy{"build it where libssl-dev is, or put a proxy with TLS before it"},
       "`tls_cert={}`: this program was built without OpenSSL and has no TLS", certificate);
}

std::unique_ptr<TlsSession> TlsSession::begin(std::shared_ptr<const TlsContext>) { return nullptr; }

}  // namespace brim::serve
