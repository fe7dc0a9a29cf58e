// SPDX-License-Identifier: Apache-2.0
#include "http/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <climits>

#include "base/error.h"
#include "http/key_file.h"

namespace brim::http {
namespace {

template <class T, void (*free)(T*)>
struct Deleter {
  void operator()(T* object) const { free(object); }
};
using Context = std::unique_ptr<SSL_CTX, Deleter<SSL_CTX, SSL_CTX_free>>;
using Session = std::unique_ptr<SSL, Deleter<SSL, SSL_free>>;

std::string last_error() {
  const unsigned long code = ::ERR_peek_last_error();
  const char* reason = code == 0 ? nullptr : ::ERR_reason_error_string(code);
  ::ERR_clear_error();
  return reason == nullptr ? "unknown error" : reason;
}

// ALPN: rejects clients that do not offer HTTP/1.1, before they send a request.
int choose_protocol(SSL*, const unsigned char** out, unsigned char* size, const unsigned char* offered,
                    unsigned int length, void*) {
  constexpr std::string_view kHttp = "http/1.1";
  for (unsigned int at = 0; at < length && at + 1 + offered[at] <= length; at += 1u + offered[at]) {
    const std::string_view name(reinterpret_cast<const char*>(offered) + at + 1, offered[at]);
    if (name != kHttp) continue;
    *out = offered + at + 1;
    *size = offered[at];
    return SSL_TLSEXT_ERR_OK;
  }
  return SSL_TLSEXT_ERR_ALERT_FATAL;
}

class OpenSslContext final : public TlsContext {
 public:
  OpenSslContext(const std::string& certificate, const std::string& key)
      : context_(::SSL_CTX_new(TLS_server_method())) {
    ::ERR_clear_error();
    SSL_CTX* c = context_.get();
    if (c == nullptr) fail(ErrorCode::internal, "cannot initialize TLS: {}", last_error());
    ::SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
    // TLS 1.2 needs forward secrecy and authenticated encryption; all suites of TLS 1.3 have both.
    if (::SSL_CTX_set_cipher_list(c, "ECDHE+AESGCM:ECDHE+CHACHA20") != 1)
      fail(ErrorCode::internal, "no usable TLS cipher suite: {}", last_error());
    ::SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    ::SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS);  // saves memory on idle connections
    ::SSL_CTX_set_alpn_select_cb(c, choose_protocol, nullptr);
    ::SSL_CTX_set_default_passwd_cb(c, [](char*, int, int, void*) { return 0; });  // no prompt
    constexpr unsigned char kName[] = "brim";
    ::SSL_CTX_set_session_id_context(c, kName, sizeof kName - 1);
    if (::SSL_CTX_use_certificate_chain_file(c, certificate.c_str()) != 1)
      fail(ErrorCode::usage, Remedy{"give a PEM file with the server's certificate and its intermediate certificates"},
           "`tls_cert={}`: invalid certificate file: {}", certificate, last_error());
    check_key_file("tls_key", key, KeyFile::secret);
    if (::SSL_CTX_use_PrivateKey_file(c, key.c_str(), SSL_FILETYPE_PEM) != 1)
      fail(ErrorCode::usage, Remedy{"give the certificate's key as PEM, without a passphrase"},
           "`tls_key={}`: invalid key for {}: {}", key, certificate, last_error());
  }
  SSL_CTX* get() const { return context_.get(); }

 private:
  Context context_;
};

class OpenSslSession final : public TlsSession {
 public:
  explicit OpenSslSession(std::shared_ptr<const TlsContext> context)
      : context_(std::move(context)), ssl_(::SSL_new(static_cast<const OpenSslContext&>(*context_).get())) {
    in_ = ::BIO_new(BIO_s_mem());
    out_ = ::BIO_new(BIO_s_mem());
    BRIM_CHECK(ssl_ != nullptr && in_ != nullptr && out_ != nullptr, "cannot allocate a TLS session");
    ::SSL_set_bio(ssl_.get(), in_, out_);  // ssl_ owns both
    ::SSL_set_accept_state(ssl_.get());
  }

  bool decrypt(std::string_view received, std::string& plaintext) override {
    ::ERR_clear_error();
    while (!received.empty()) {
      const auto piece = static_cast<int>(std::min<size_t>(received.size(), kPiece));
      if (::BIO_write(in_, received.data(), piece) != piece) return false;
      received.remove_prefix(static_cast<size_t>(piece));
      const bool open = read_plaintext(plaintext);
      collect_outgoing();
      if (!open) return false;
    }
    return true;
  }

  bool ready() const override { return ::SSL_is_init_finished(ssl_.get()) == 1; }

  bool broken() const override { return broken_; }

  bool encrypt(std::string_view plaintext) override {
    ::ERR_clear_error();
    for (; !plaintext.empty(); plaintext.remove_prefix(std::min<size_t>(plaintext.size(), kPiece))) {
      const auto piece = static_cast<int>(std::min<size_t>(plaintext.size(), kPiece));
      broken_ = broken_ || ::SSL_write(ssl_.get(), plaintext.data(), piece) != piece;
      if (broken_) {
        ::ERR_clear_error();
        return false;
      }
      collect_outgoing();
    }
    return true;
  }

  void shut_down() override {
    if (broken_ || !ready()) return;
    ::ERR_clear_error();
    ::SSL_shutdown(ssl_.get());
    ::ERR_clear_error();
    collect_outgoing();
  }

 private:
  static constexpr size_t kPiece = 16 << 10;

  // False if the session has ended.
  bool read_plaintext(std::string& plaintext) {
    char buffer[kPiece];
    for (;;) {
      const int n = ::SSL_read(ssl_.get(), buffer, sizeof buffer);  // also runs the handshake
      if (n > 0) {
        plaintext.append(buffer, static_cast<size_t>(n));
        continue;
      }
      const int error = ::SSL_get_error(ssl_.get(), n);
      if (error == SSL_ERROR_WANT_READ) return true;
      broken_ = error != SSL_ERROR_ZERO_RETURN;
      ::ERR_clear_error();
      return false;
    }
  }

  void collect_outgoing() {
    char buffer[kPiece];
    for (int n; (n = ::BIO_read(out_, buffer, sizeof buffer)) > 0;) outgoing_.append(buffer, static_cast<size_t>(n));
  }

  const std::shared_ptr<const TlsContext> context_;
  Session ssl_;
  BIO *in_ = nullptr, *out_ = nullptr;
  bool broken_ = false;
};

}  // namespace

std::shared_ptr<const TlsContext> TlsContext::load(const std::string& certificate, const std::string& key) {
  return std::make_shared<OpenSslContext>(certificate, key);
}

std::unique_ptr<TlsSession> TlsSession::begin(std::shared_ptr<const TlsContext> context) {
  return std::make_unique<OpenSslSession>(std::move(context));
}

}  // namespace brim::http
