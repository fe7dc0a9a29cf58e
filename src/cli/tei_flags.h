// SPDX-License-Identifier: Apache-2.0
// text-embeddings-inference's flags of `brim serve`, so that its command lines work: those that mean something here are
// taken, the others refused with what there is instead.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace brim::cli {

struct TeiFlags {
  std::string served_model_name, hostname, dtype, auto_truncate;
  int64_t port = -1, tokenization_workers = 0, max_concurrent_requests = 0, max_batch_tokens = 0;

  void add_to(CLI::App& app);
  std::optional<std::string> listen() const;     // of hostname and port
  std::optional<std::string> precision() const;  // of dtype
  std::optional<bool> truncates() const;
};

}  // namespace brim::cli
