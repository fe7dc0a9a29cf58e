// SPDX-License-Identifier: Apache-2.0
// TLS over real sockets: answers of every size, certificates that change, and clients that are none.
#include "serve/tls.h"

#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <csignal>
#include <fstream>

#include "serve/service_fixture.h"

namespace brim::serve {
namespace {

// A key and a certificate of that name, signed by itself.
void make_certificate(const std::filesystem::path& dir, const char* name, const char* passphrase = nullptr,
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

// A client that trusts everybody and says who it met.
class TlsClient {
 public:
  explicit TlsClient(uint16_t port, int version = 0, const std::string& protocols = "\x08http/1.1",
                     const char* ciphers = nullptr)
      : descriptor_(::socket(AF_INET, SOCK_STREAM, 0)), context_(::SSL_CTX_new(TLS_client_method())) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{60, 0};
    for (const int what : {SO_RCVTIMEO, SO_SNDTIMEO})
      ::setsockopt(descriptor_, SOL_SOCKET, what, &patience, sizeof patience);
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
  std::string name() const {
    char text[64] = "";
    X509* certificate = ::SSL_get1_peer_certificate(ssl_);
    ::X509_NAME_get_text_by_NID(::X509_get_subject_name(certificate), NID_commonName, text, sizeof text);
    ::X509_free(certificate);
    return text;
  }
  std::string version() const { return ::SSL_get_version(ssl_); }
  void send(const std::string& bytes) { ASSERT_GT(::SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size())), 0); }
  // An answer with a length: status and body.
  std::pair<int, std::string> read() {
    size_t end;
    while ((end = in_.find("\r\n\r\n")) == std::string::npos)
      if (!more()) return {};
    const int status = std::stoi(in_.substr(9, 3));
    const size_t field = in_.find("Content-Length: ");
    const size_t length = field < end ? std::stoul(in_.substr(field + 16)) : 0;
    in_.erase(0, end + 4);
    while (in_.size() < length)
      if (!more()) return {};
    std::string body = in_.substr(0, length);
    in_.erase(0, length);
    return {status, body};
  }
  std::pair<int, std::string> post(const std::string& path, const std::string& body, const std::string& fields = "") {
    send("POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n" + fields + "\r\n" + body);
    return read();
  }
  bool read_some() { return more(); }
  void send_unsealed(std::string_view bytes) {
    ASSERT_GT(::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
  }
  // Whether the server said goodbye, and did not just go.
  bool ended_well() {
    while (more()) {
    }
    return (::SSL_get_shutdown(ssl_) & SSL_RECEIVED_SHUTDOWN) != 0;
  }

 private:
  bool more() {
    char buffer[65536];
    const int n = ::SSL_read(ssl_, buffer, sizeof buffer);
    if (n > 0) in_.append(buffer, static_cast<size_t>(n));
    return n > 0;
  }
  int descriptor_;
  SSL_CTX* context_;
  SSL* ssl_ = nullptr;
  bool connected_ = false;
  std::string in_;
};

class TlsTest : public ServiceTest {
 protected:
  TlsTest() { std::signal(SIGPIPE, SIG_IGN); }  // OpenSSL's writes to a server that has left

  ServerOptions secure_files() {
    ServerOptions o;
    o.listen = "127.0.0.1:0";
    o.lame_duck_seconds = 0;
    o.tls_cert = temp_.path() / "cert.pem";
    o.tls_key = temp_.path() / "key.pem";
    return o;
  }
  ServerOptions secure() {
    make_certificate(temp_.path(), "first");
    ServerOptions o = secure_files();
    o.models.push_back({"vader", "vader", "1", Scorer::open({.model = "vader"})});
    return o;
  }
};

TEST_F(TlsTest, AnswersOfEverySizeInOrder) {
  start(secure());
  EXPECT_TRUE(server_->address().starts_with("https://"));
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsClient client(server_->port(), version);
    ASSERT_TRUE(client.connected());
    EXPECT_EQ(client.version(), version == TLS1_2_VERSION ? "TLSv1.2" : "TLSv1.3");
    EXPECT_EQ(client.post("/predict", R"({"inputs":"I love it"})").first, 200);
    // A body of a megabyte, and an answer of many sealed pieces; then two requests in one record.
    Json texts = Json::array();
    for (int i = 0; i < 1000; ++i) texts.push_back(std::string(1000, 'a') + " good");
    const auto [status, body] = client.post("/classify", Json{{"input", texts}}.dump());
    EXPECT_EQ(status, 200);
    ASSERT_GT(body.size(), 100u << 10);
    EXPECT_EQ(Json::parse(body)["data"].size(), 1000u);
    const std::string ping = "GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n";
    client.send(ping + ping);
    EXPECT_EQ(client.read().first, 200);
    EXPECT_EQ(client.read().first, 200);
    client.send(
        "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 17\r\n"
        "Expect: 100-continue\r\n\r\n");
    EXPECT_EQ(client.read().first, 100);
    client.send(R"({"inputs":"good"})");
    EXPECT_EQ(client.read().first, 200);
    EXPECT_EQ(client.post("/predict", "{", "Connection: close\r\n").first, 400);
    EXPECT_TRUE(client.ended_well());
  }
}

TEST_F(TlsTest, AnotherRequestFollowsAJobsOutput) {
  ServerOptions o = secure();
  o.state_dir = temp_.path() / "state";
  start(o);
  TlsClient client(server_->port());
  const std::string id = Json::parse(client.post("/jobs?format=txt", "I love it\n").second)["id"];
  const auto get = [&](const std::string& path) {
    client.send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    return client.read();
  };
  wait_until([&] { return Json::parse(get("/jobs/" + id).second)["status"] == "completed"; });
  EXPECT_NE(get("/jobs/" + id + "/output").second.find("positive"), std::string::npos);
  EXPECT_EQ(get("/health/live").first, 200);
}

TEST_F(TlsTest, ReadsTheCertificateAnew) {
  start(secure());
  TlsClient old(server_->port());
  EXPECT_EQ(old.name(), "first");
  make_certificate(temp_.path(), "second");
  EXPECT_EQ(old.post("/admin/reload", "").first, 200);
  EXPECT_EQ(TlsClient(server_->port()).name(), "second");
  std::ofstream(temp_.path() / "cert.pem") << "no certificate";
  const auto [status, body] = old.post("/admin/reload", "");  // and the old connection goes on
  EXPECT_EQ(status, 424);
  EXPECT_NE(body.find("cert.pem"), std::string::npos) << body;
  EXPECT_EQ(TlsClient(server_->port()).name(), "second");
}

TEST_F(TlsTest, RefusesWhatIsNoneOfIt) {
  start(secure());
  EXPECT_FALSE(TlsClient(server_->port(), TLS1_1_VERSION).connected());
  EXPECT_FALSE(TlsClient(server_->port(), 0, "\x02h2").connected());
  const RawAnswer plain = get("/ping");
  EXPECT_EQ(plain.status, 400);
  EXPECT_NE(plain.body.find("https://"), std::string::npos);
  EXPECT_TRUE(client_->at_end());  // it was counted before
  TlsClient asking(server_->port());
  asking.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const std::string metrics = asking.read().second, sum = "brim_request_duration_seconds_sum{route=\"\"} ";
  const size_t at = metrics.find(sum);
  ASSERT_NE(at, std::string::npos) << metrics;
  EXPECT_LT(std::stod(metrics.substr(at + sum.size())), 60) << "from its first byte, not from the machine's";
  for (const std::string_view bytes :
       {std::string_view("\x16\x03\x01\x00\x05hello", 10), std::string_view("\0\0", 2)}) {
    RawClient client(server_->port());
    client.send(bytes);
    if (bytes.front() == '\0') client.send(std::string(100, '\0'));
    client.rest();  // the server ends it
  }
  EXPECT_EQ(TlsClient(server_->port()).post("/predict", R"({"inputs":"good"})").first, 200);
}

TEST_F(TlsTest, Tls12AllowsOnlyForwardSecrecyWithAuthenticatedEncryption) {
  start(secure());
  make_certificate(temp_.path(), "rsa", nullptr, true);
  ServerOptions rsa = secure_files();
  rsa.models.push_back({"vader", "vader", "1", Scorer::open({.model = "vader"})});
  Server rsa_server(std::move(rsa));
  rsa_server.start();
  const auto connects = [](Server& server, const char* ciphers) {
    return TlsClient(server.port(), TLS1_2_VERSION, "\x08http/1.1", ciphers).connected();
  };
  for (const char* good : {"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"})
    EXPECT_TRUE(connects(*server_, good)) << good;
  for (const char* good : {"ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-CHACHA20-POLY1305"})
    EXPECT_TRUE(connects(rsa_server, good)) << good;
  EXPECT_FALSE(connects(*server_, "ECDHE-ECDSA-AES128-SHA:ECDHE-ECDSA-AES256-SHA384")) << "CBC";
  for (const char* bad : {"AES128-SHA", "AES128-GCM-SHA256", "ECDHE-RSA-AES128-SHA", "ECDHE-RSA-AES256-SHA384"})
    EXPECT_FALSE(connects(rsa_server, bad)) << bad;
}

TEST_F(TlsTest, ClosesAConnectionWhoseHandshakeTakesTooLong) {
  struct Nothing final : Handler {
    std::optional<Response> admit(Exchange&) override { return Response{}; }
    void handle(Exchange&) override {}
    void gone(Exchange&) noexcept override {}
    Response refused(int status, const std::string&) override { return {.status = status}; }
    void answered(Exchange&, int, size_t) noexcept override {}
  } handler;
  const ServerOptions files = secure();
  HttpOptions options;
  options.tls = TlsContext::load(files.tls_cert, files.tls_key);
  options.tls_seconds = 0.1;
  HttpServer server(parse_listen_address("127.0.0.1:0"), options, handler);
  server.start();
  {
    RawClient silent(server.port());
    silent.send("\x16");
    EXPECT_TRUE(silent.at_end());
  }
  bool connected = false;  // on a busy machine also a good client may be too slow, and then comes again
  for (int i = 0; i < 100 && !connected; ++i) {
    wait_until([&] { return server.connections() == 0; });
    connected = TlsClient(server.port()).connected();
  }
  EXPECT_TRUE(connected);
}

TEST_F(TlsTest, LeavesAClientThatBreaksTheProtocol) {
  struct Long final : Handler {
    std::optional<Response> admit(Exchange&) override { return std::nullopt; }
    void handle(Exchange& exchange) override {  // later, so that the client is listened to
      server->post(exchange.thread(), [&exchange] { exchange.answer({.body = std::string(64 << 20, 'a')}); });
    }
    void gone(Exchange&) noexcept override { ++left; }
    Response refused(int status, const std::string&) override { return {.status = status}; }
    void answered(Exchange&, int, size_t) noexcept override { ++whole; }
    HttpServer* server = nullptr;
    std::atomic<int> left{0}, whole{0};
  } handler;
  const ServerOptions files = secure();
  HttpOptions options;
  options.tls = TlsContext::load(files.tls_cert, files.tls_key);
  options.answer_seconds = 600;
  HttpServer server(parse_listen_address("127.0.0.1:0"), options, handler);
  handler.server = &server;
  server.start();
  TlsClient client(server.port());
  client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(client.read_some());  // the rest does not fit into the sockets
  client.send_unsealed(std::string(100, '\0'));
  for (int i = 0; i < 6000 && server.connections() > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(server.connections(), 0u);
  EXPECT_EQ(handler.left.load(), 1);
  EXPECT_EQ(handler.whole.load(), 0);
  EXPECT_FALSE(TlsSession::begin(options.tls)->seal("before hands are shaken"));
}

TEST_F(TlsTest, SaysWhichFileIsWrong) {
  const std::string cert = temp_.path() / "cert.pem", key = temp_.path() / "key.pem";
  const auto problem = [&](const std::string& c, const std::string& k) -> std::string {
    try {
      TlsContext::load(c, k);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(problem(cert, key).find("`tls_cert="), std::string::npos);
  make_certificate(temp_.path(), "a", "secret");
  EXPECT_NE(problem(cert, key).find("`tls_key="), std::string::npos) << "nobody is asked for a passphrase";
  make_certificate(temp_.path(), "a");
  EXPECT_EQ(problem(cert, key), "");
  std::filesystem::permissions(key, std::filesystem::perms::others_write, std::filesystem::perm_options::add);
  EXPECT_NE(problem(cert, key).find("every user can write it"), std::string::npos) << problem(cert, key);
  std::filesystem::permissions(key, std::filesystem::perms::owner_read);
  std::filesystem::rename(cert, temp_.path() / "other.pem");
  make_certificate(temp_.path(), "b");
  EXPECT_NE(problem(temp_.path() / "other.pem", key).find("other.pem"), std::string::npos);
  ServerOptions half = secure();
  half.tls_key.clear();
  EXPECT_THROW(Server{half}, Error);
}

}  // namespace
}  // namespace brim::serve
