// SPDX-License-Identifier: Apache-2.0
// An HTTP server for models: options, lifecycle, draining. Tests run it in-process; `brim serve` adds the command line.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "brim/brim.h"
#include "serve/server_options.h"

namespace brim::serve {

// Fingerprint of a model in 8 hexadecimal digits, from the names, sizes and times of its files and those of its
// adapter, and from its zero-shot labels.
std::string model_revision(const std::string& directory, const std::optional<ZeroShot>& labels = {},
                           const std::optional<EntityLabels>& entities = {}, const std::string& adapter = "");

// Fails if the address is not loopback and there are neither API keys nor `insecure`.
void require_allowed(const ServerOptions& options);

class Server {
 public:
  explicit Server(ServerOptions options);  // starts listening; throws on failure
  ~Server();                               // stops without draining
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void start();
  uint16_t port() const;
  std::string address() const;  // "http://127.0.0.1:8080"; https with TLS
  // Blocks until `stop` is set or a client requests a drain, then drains. Returns false if the device was lost. Setting
  // `reload` reloads keys and changed models; run() clears it. Calls `draining` before it drains.
  bool run(const std::atomic<bool>& stop, std::atomic<bool>* reload = nullptr,
           const std::function<void()>& draining = {});
  // Rejects new texts, finishes accepted ones, closes.
  void drain();
  // Instead of start(): measures the ladders' gates and returns the warnings that /health would report.
  std::vector<std::string> check();

 private:
  class Impl;
  class Sampler;
  std::unique_ptr<Impl> impl_;
};

}  // namespace brim::serve
