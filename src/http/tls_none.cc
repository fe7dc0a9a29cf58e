// SPDX-License-Identifier: Apache-2.0
// Replaces tls.cc in builds without OpenSSL.
#include "base/error.h"
#include "http/tls.h"

namespace brim::http {

std::shared_ptr<const TlsContext> TlsContext::load(const std::string& certificate, const std::string&) {
  fail(ErrorCode::usage, Remedy{"build with libssl-dev installed, or terminate TLS in a reverse proxy"},
       "`tls_cert={}`: this build has no TLS (OpenSSL was missing)", certificate);
}

std::unique_ptr<TlsSession> TlsSession::begin(std::shared_ptr<const TlsContext>) { return nullptr; }

}  // namespace brim::http
