// SPDX-License-Identifier: Apache-2.0
// Admits requests by their head, and passes them to the handlers of their routes.
#pragma once
#include <atomic>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/server_parts.h"

namespace brim::serve {

class Router final : public Handler {
 public:
  explicit Router(ServerParts& server);  // must outlive it

  static Routes routes();
  static std::vector<std::pair<std::string, std::string>> route_names();  // pairs of method and path

  std::optional<Response> admit(Exchange& exchange) override;
  void handle(Exchange& exchange) override;
  void gone(Exchange& exchange) noexcept override { server_.dispatcher.gone(exchange); }
  void take(Exchange& exchange, std::string_view bytes) override;
  void sent(Exchange& exchange) override;
  std::optional<uint64_t> body_limit(const RequestHead& head) const override;
  Response refused(int status, const std::string& problem) override;
  void answered(Exchange& exchange, int status, size_t bytes) noexcept override {
    server_.dispatcher.answered(exchange, status, bytes);
  }

 private:
  // The origin of a cross-origin request.
  struct Origin {
    std::string_view name;
    bool listed = false;   // in cors_origins
    bool allowed = false;  // listed, or any origin is
    bool preflight = false;
  };
  std::string request_id(const RequestHead& head);
  Origin origin_of(const RequestHead& head, bool known_path) const;
  std::optional<Refusal> check(Call& call, const Origin& origin, const std::string& methods);
  std::optional<Refusal> check_key(Call& call, const ApiKeys& keys) const;
  std::optional<Refusal> check_route(const Call& call, const std::string& methods) const;
  std::optional<Refusal> check_body(const Call& call) const;
  void run(Call& call);

  ServerParts& server_;
  std::atomic<uint64_t> next_id_{0};
  std::string id_prefix_;
};

}  // namespace brim::serve
