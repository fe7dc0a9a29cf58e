// SPDX-License-Identifier: Apache-2.0
// A TLS client for tests that accepts every certificate, and self-signed certificates for the server.
#pragma once
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace brim::http {

// Writes cert.pem, self-signed for common name `name`, and key.pem.
inline void make_certificate(const std::filesystem::path& dir, const char* name, const char* passphrase = nullptr,
                             bool rsa = false) {
  EVP_PKEY* key = rsa ? ::EVP_RSA_gen(2048) : ::EVP_EC_gen("P-256");
  X509* certificate = ::X509_new();
  ::X509_set_version(certificate, 2);
  ::ASN1_INTEGER_set(::X509_get_serialNumber(certificate), 1);
  ::X509_gmtime_adj(::X509_getm_notBefore(certificate), -60);
  ::X509_gmtime_adj(::X509_getm_notAfter(certificate), 3600);
  ::X509_set_pubkey(certificate, key);
  X509_NAME* subject = ::X509_get_subject_name(certificate);
  ::X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
  ::X509_set_issuer_name(certificate, subject);
  ::X509_sign(certificate, key, ::EVP_sha256());
  FILE* out = std::fopen((dir / "cert.pem").c_str(), "w");
  ::PEM_write_X509(out, certificate);
  std::fclose(out);
  out = std::fopen((dir / "key.pem").c_str(), "w");
  const auto* secret = reinterpret_cast<const unsigned char*>(passphrase);
  ::PEM_write_PrivateKey(out, key, passphrase == nullptr ? nullptr : ::EVP_aes_128_cbc(), secret,
                         passphrase == nullptr ? 0 : static_cast<int>(std::strlen(passphrase)), nullptr, nullptr);
  std::fclose(out);
  ::X509_free(certificate);
  ::EVP_PKEY_free(key);
}

class TlsClient {
 public:
  // `version`: TLS1_2_VERSION etc., 0 for any; `protocols`: ALPN names with their length bytes.
  explicit TlsClient(uint16_t port, int version = 0, const std::string& protocols = "\x08http/1.1",
                     const char* ciphers = nullptr)
      : descriptor_(::socket(AF_INET, SOCK_STREAM, 0)), context_(::SSL_CTX_new(TLS_client_method())) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval timeout{60, 0};
    for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO})
      ::setsockopt(descriptor_, SOL_SOCKET, option, &timeout, sizeof timeout);
    if (::connect(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return;
    if (version != 0) {
      ::SSL_CTX_set_security_level(context_, 0);
      ::SSL_CTX_set_min_proto_version(context_, version);
      ::SSL_CTX_set_max_proto_version(context_, version);
    }
    if (ciphers != nullptr) {
      EXPECT_EQ(::SSL_CTX_set_cipher_list(context_, ciphers), 1) << ciphers;
    }
    ssl_ = ::SSL_new(context_);
    ::SSL_set_alpn_protos(ssl_, reinterpret_cast<const unsigned char*>(protocols.data()),
                          static_cast<unsigned int>(protocols.size()));
    ::SSL_set_fd(ssl_, descriptor_);
    connected_ = ::SSL_connect(ssl_) == 1;
  }
  ~TlsClient() {
    ::SSL_free(ssl_);
    ::SSL_CTX_free(context_);
    ::close(descriptor_);
  }
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  bool connected() const { return connected_; }
  std::string version() const { return ::SSL_get_version(ssl_); }
  std::string certificate_name() const {  // the server's common name
    char text[64] = "";
    X509* certificate = ::SSL_get1_peer_certificate(ssl_);
    ::X509_NAME_get_text_by_NID(::X509_get_subject_name(certificate), NID_commonName, text, sizeof text);
    ::X509_free(certificate);
    return text;
  }
  void send(const std::string& bytes) { ASSERT_GT(::SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size())), 0); }
  void send_plaintext(std::string_view bytes) {  // past the TLS session
    ASSERT_GT(::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
  }
  // Status and body of a response with Content-Length; status 0 if the connection ended.
  std::pair<int, std::string> read() {
    size_t end;
    while ((end = in_.find("\r\n\r\n")) == std::string::npos)
      if (!receive()) return {};
    const int status = std::stoi(in_.substr(9, 3));
    const size_t field = in_.find("Content-Length: ");
    const size_t length = field < end ? std::stoul(in_.substr(field + 16)) : 0;
    in_.erase(0, end + 4);
    while (in_.size() < length)
      if (!receive()) return {};
    std::string body = in_.substr(0, length);
    in_.erase(0, length);
    return {status, body};
  }
  std::pair<int, std::string> get(const std::string& path) {
    send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    return read();
  }
  std::pair<int, std::string> post(const std::string& path, const std::string& body, const std::string& fields = "") {
    send("POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n" + fields + "\r\n" + body);
    return read();
  }
  // Appends received bytes to the buffer of read(); false once the connection has ended.
  bool receive() {
    char buffer[65536];
    const int n = ::SSL_read(ssl_, buffer, sizeof buffer);
    if (n > 0) in_.append(buffer, static_cast<size_t>(n));
    return n > 0;
  }
  bool closed_cleanly() {  // waits for the end; true if the server sent close_notify
    while (receive()) {
    }
    return (::SSL_get_shutdown(ssl_) & SSL_RECEIVED_SHUTDOWN) != 0;
  }

 private:
  int descriptor_;
  SSL_CTX* context_;
  SSL* ssl_ = nullptr;
  bool connected_ = false;
  std::string in_;
};

}  // namespace brim::http
